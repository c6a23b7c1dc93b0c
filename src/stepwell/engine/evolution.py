"""A view whose columns change under a sink that goes on: what becomes of the rows the sink holds.

The rows that the sink holds are taken to the new columns by name: a column that the view lost goes,
one that it gained is NULL, one with a wider type is cast. A decimal that fits into the old type
keeps that one. What the view has beyond that is an ordinary difference, in the new columns. The
first part of the difference, and no other, says which columns the sink had before, in the metadata
of its schema. So a sink alters its table with that transaction only, and never touches a column
that is not Stepwell's. The first part may have no rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from stepwell.engine.pieces import Difference
from stepwell.engine.ports import WEIGHT, Pieces
from stepwell.engine.widening import are_decimals, common_type, holds, is_wider
from stepwell.errors import InvalidError

_BEFORE = b"stepwell.columns_before"


@dataclass(frozen=True, slots=True)
class Evolution:
    """What differs between the columns of a view before and after."""

    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = (("gains", self.gained), ("loses", self.lost), ("widens", self.widened))
        return "; ".join(f"{verb} {', '.join(names)}" for verb, names in parts if names)


def evolution(before: pa.Schema, after: pa.Schema) -> Evolution:
    """The difference; `InvalidError` if a column's values do not all fit into its new type."""
    widened = []
    for field in after:
        if field.name not in before.names:
            continue
        old = before.field(field.name).type
        if is_wider(old, field.type):
            widened.append(field.name)
        elif not is_same(old, field.type):
            raise InvalidError(
                f"column {field.name} was {old} and is {field.type} now, which not every value of "
                "the old type fits into",
                hint="keep its type, or give the column another name",
            )
    return Evolution(
        tuple(name for name in after.names if name not in before.names),
        tuple(name for name in before.names if name not in after.names),
        tuple(widened),
    )


class EvolvingDifference:
    """A difference in new columns, of which the first part says what the columns were before."""

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
        """How many parts there are; at least one, which tells the sink of its new columns."""
        return max(1, self._change.count(rows_max))


def evolved(rows: Pieces, after: pa.Schema) -> Pieces:
    """The rows of a view as a sink holds them once its columns are others."""
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
    """The columns that the sink had before this change, if they are to be others from here on."""
    found = (change.schema.metadata or {}).get(_BEFORE)
    return None if found is None else tuple(json.loads(found))


def _target(before: pa.Schema, field: pa.Field) -> pa.Field:
    """The column that rows are taken to; where there are no rows the new type may be unknown."""
    field = field.with_nullable(True)
    if field.name in before.names and not is_wider(before.field(field.name).type, field.type):
        return field.with_type(before.field(field.name).type)
    return field


def is_same(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a sink keeps the type of its column: it holds every value of the view's new type.

    Where there are no rows, or only NULL, the reference executor knows no type.
    """
    if pa.types.is_null(old) or pa.types.is_null(new):
        return True
    return bool(old == new or (are_decimals(old, new) and holds(old, new)))


def with_inferred_decimals(before: pa.Schema, after: pa.Schema) -> pa.Schema:
    """The columns of a view whose types were inferred from its rows.

    Such a decimal is as wide as the widest of its values, which says nothing about the next one. It
    gets the type that holds those before as well, if there is one.
    """
    for place, field in enumerate(after):
        if field.name in before.names:
            old = before.field(field.name).type
            common = common_type(old, field.type) if are_decimals(old, field.type) else None
            after = after.set(place, field.with_type(common or field.type))
    return after
