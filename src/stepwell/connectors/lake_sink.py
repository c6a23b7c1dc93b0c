"""What the sinks of a lakehouse share: who owns a table, and how its columns follow a view.

A table belongs to one sink of one pipeline, which its properties name from its creation on; a table
without them was not created by Stepwell and is left alone. Values are converted exactly or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stepwell.errors import InvalidError
from stepwell.lsm.widening import are_decimals, common_type, holds

LINEAGE = "stepwell.lineage"
SINK = "stepwell.sink"
"""The properties of a table that name its owner."""
TRANSACTION = "_transaction"
"""The column of a log of changes that holds the transaction."""


@dataclass(frozen=True, slots=True)
class SinkTable:
    """The table of a sink, as messages name it, and what its library says of types."""

    sink: str
    view: str
    at: str
    """Where it is: "at <path>", or the name of the table in its catalog."""
    address: str
    """What to change in order to get another table: "path" or "table"."""
    is_same: Callable[[pa.Field, pa.Field], bool]
    """Whether the library stores the types of both fields as one type."""
    converts: bool
    """Whether the library converts between types that it stores as one."""

    def owner(self, properties: Mapping[str, str | None]) -> str:
        """The lineage of the pipeline that owns the table."""
        lineage, sink = properties.get(LINEAGE), properties.get(SINK)
        if lineage is None:
            raise InvalidError(
                f"sink {self.sink}: there is a table {self.at} that Stepwell did not create",
                hint=f"choose another {self.address}, or move the table away",
            )
        if sink != self.sink:
            raise InvalidError(
                f"sink {self.sink}: the table {self.at} belongs to sink {sink}",
                hint="two sinks cannot share a table",
            )
        return str(lineage)

    def check_owner(self, properties: Mapping[str, str | None], lineage: str) -> None:
        """Check the owner by lineage: a table that was created but never filled has no mark."""
        owner = self.owner(properties)
        if owner != lineage:
            raise InvalidError(
                f"sink {self.sink} holds the output of another pipeline: expected lineage "
                f"{lineage}, found {owner}",
                hint=f"choose another {self.address}, or move the table away",
            )

    def check_columns(self, found: Sequence[str], change: pa.Table, *, is_log: bool) -> None:
        """Compare the table's columns of the view with a change set."""
        expected = change.column_names[:-1]
        # A log keeps the columns that the view had before it evolved.
        if not (set(expected) <= set(found) if is_log else set(expected) == set(found)):
            raise InvalidError(
                f"sink {self.sink}: the table {self.at} does not match the view {self.view}: "
                f"expected the columns {', '.join(expected)}, found {', '.join(found)}",
                hint=f"choose another {self.address} for the changed view",
            )

    def widest(self, stored: pa.Schema, field: pa.Field) -> pa.Field:
        """The table's new column for a column of the view: its type only changes if it must widen.

        The table's type may differ from the view's last type: a log keeps a column that the view
        lost, and a decimal never narrows.
        """
        if field.name not in stored.names:
            return field.with_nullable(True)
        existing = stored.field(field.name)
        if self.is_same(existing, field):
            return existing
        common = common_type(existing.type, field.type)
        if common is None:
            raise self._unfit(existing, field)
        return existing if common == existing.type else field.with_type(common).with_nullable(True)

    def fitted(self, stored: pa.Schema, rows: pa.Table) -> pa.Table:
        """Convert rows to the types of the table's columns, exactly.

        The libraries would round decimals and read strings as numbers.
        """
        for position, field in enumerate(rows.schema):
            if field.name not in stored.names:
                continue
            existing = stored.field(field.name)
            if not (holds(existing.type, field.type) or are_decimals(existing.type, field.type)):
                if not self.is_same(existing, field):
                    raise self._unfit(existing, field)
                if self.converts:
                    continue
            if existing.type == field.type:
                continue
            try:
                values = rows.column(position).cast(existing.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise self._unfit(existing, field) from error
            rows = rows.set_column(position, field.with_type(existing.type), values)
        return rows

    @property
    def other_table(self) -> str:
        """A hint for a table that cannot be continued."""
        return f"give the sink another name and {self.address}: it then receives the whole view"

    def _unfit(self, stored: pa.Field, field: pa.Field) -> InvalidError:
        return InvalidError(
            f"sink {self.sink}: column {field.name} of the table {self.at} is {stored.type}, "
            f"and the view {self.view} has values of {field.type} that do not fit into it",
            hint=self.other_table,
        )
