"""Schema evolution: the columns of a view change, and a sink that follows it continues.

The sink's rows are mapped to the new columns by name: a column that the view lost is dropped, a
column it gained is NULL, a column with a wider type is cast. A decimal that fits into the old type
keeps it. The rest is an ordinary difference in the new columns. Only the first part of the
difference names the sink's previous columns, in its schema metadata. So a sink alters its table
only with that transaction, and never touches a column that is not Stepwell's. The first part may
have no rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from stepwell.errors import InvalidError
from stepwell.lsm.change import WEIGHT
from stepwell.lsm.table_diff import Difference, Pieces
from stepwell.lsm.widening import are_decimals, common_type, holds, is_wider

_BEFORE = b"stepwell.columns_before"


@dataclass(frozen=True, slots=True)
class Evolution:
    """The difference between two schemas of a view."""

    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = (("gains", self.gained), ("loses", self.lost), ("widens", self.widened))
        return "; ".join(f"{verb} {', '.join(names)}" for verb, names in parts if names)


def evolution(before: pa.Schema, after: pa.Schema) -> Evolution:
    """Compare two schemas; `InvalidError` if a column's new type cannot hold all old values."""
    widened = []
    for field in after:
        if field.name not in before.names:
            continue
        old = before.field(field.name).type
        if is_wider(old, field.type):
            widened.append(field.name)
        elif not is_same(old, field.type):
            raise InvalidError(
                f"column {field.name} changes from {old} to {field.type}, which cannot hold every "
                "value of the old type",
                hint="keep its type, or rename the column",
            )
    return Evolution(
        tuple(name for name in after.names if name not in before.names),
        tuple(name for name in before.names if name not in after.names),
        tuple(widened),
    )


class EvolvingDifference:
    """A difference in new columns, whose first part names the previous columns."""

    def __init__(self, change: Difference, before: pa.Schema, after: pa.Schema) -> None:
        self._change = change
        self._metadata = {_BEFORE: json.dumps(before.names).encode()}
        self._after = after

    def parts(self, rows_max: int) -> Iterator[pa.Table]:
        parts = self._change.parts(rows_max)
        empty = self._after.append(pa.field(WEIGHT, pa.int64())).empty_table()
        yield next(parts, empty).replace_schema_metadata(self._metadata)
        yield from parts

    def count(self, rows_max: int) -> int:
        """The number of parts; at least one, which tells the sink of its new columns."""
        return max(1, self._change.count(rows_max))


def evolved(rows: Pieces, after: pa.Schema) -> Pieces:
    """The rows of a view, mapped to new columns as the sink maps them."""
    fields = [_target(rows.schema, field) for field in after]
    schema = pa.schema(fields)

    def pieces() -> Iterator[pa.Table]:
        for piece in rows.pieces:
            columns = [
                piece.column(field.name).cast(field.type)
                if field.name in piece.column_names
                else pa.nulls(piece.num_rows, field.type)
                for field in fields
            ]
            yield pa.table(columns, schema=schema)

    return Pieces(schema, rows.rows, pieces())


def columns_before(change: pa.Table) -> tuple[str, ...] | None:
    """The sink's columns before this change; None if the change does not alter them."""
    found = (change.schema.metadata or {}).get(_BEFORE)
    return None if found is None else tuple(json.loads(found))


def _target(before: pa.Schema, field: pa.Field) -> pa.Field:
    """The column that rows are mapped to. Without rows the new type may be unknown."""
    field = field.with_nullable(True)
    if field.name in before.names and not is_wider(before.field(field.name).type, field.type):
        return field.with_type(before.field(field.name).type)
    return field


def is_same(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a sink's column can keep its type, because it holds every value of the new type.

    Without rows, or with NULL only, the reference executor knows no type.
    """
    if pa.types.is_null(old) or pa.types.is_null(new):
        return True
    return bool(old == new or (are_decimals(old, new) and holds(old, new)))


def with_inferred_decimals(before: pa.Schema, after: pa.Schema) -> pa.Schema:
    """Widen the decimals of a schema that was inferred from rows.

    An inferred decimal is only as wide as its widest value. It gets the type that holds the
    previous values, too, if there is one.
    """
    for place, field in enumerate(after):
        if field.name in before.names:
            old = before.field(field.name).type
            common = common_type(old, field.type) if are_decimals(old, field.type) else None
            after = after.set(place, field.with_type(common or field.type))
    return after
