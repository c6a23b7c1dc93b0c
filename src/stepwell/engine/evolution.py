"""A view whose columns change under a sink that goes on: what becomes of the rows the sink holds.

The rows that the sink holds are taken to the new columns by name: a column that the view lost goes,
one that it gained is NULL, one with a wider type is cast. What the view has beyond that is an
ordinary difference, in the new columns. The first change after the deploy says which columns the
sink had before, in the metadata of its schema, so that a sink alters its table with that
transaction and with no other, and never touches a column that is not Stepwell's. It may have no
rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from stepwell.engine.pieces import Difference
from stepwell.engine.ports import WEIGHT, Pieces
from stepwell.errors import InvalidError

_BEFORE = b"stepwell.columns_before"
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


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
        elif not _is_same(old, field.type):
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
    """A difference in new columns, of which each part says what the columns were before."""

    def __init__(self, change: Difference, before: pa.Schema, after: pa.Schema) -> None:
        self._change = change
        self._metadata = {_BEFORE: json.dumps(before.names).encode()}
        self._after = after

    def parts(self, rows_max: int) -> Iterator[pa.Table]:
        some = False
        for part in self._change.parts(rows_max):
            some = True
            yield part.replace_schema_metadata(self._metadata)
        if not some:
            empty = self._after.append(pa.field(WEIGHT, pa.int64())).empty_table()
            yield empty.replace_schema_metadata(self._metadata)

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


def _is_same(old: pa.DataType, new: pa.DataType) -> bool:
    # Where there are no rows, or only NULL, the reference executor knows no type. A decimal that is
    # not wider stays as wide as it was.
    decimals = pa.types.is_decimal(old) and pa.types.is_decimal(new)
    return bool(old == new or decimals or pa.types.is_null(old) or pa.types.is_null(new))


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of one type is a value of the other, which is another one."""
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) < _INTEGERS.index(new)
    if pa.types.is_decimal(new) and (pa.types.is_decimal(old) or old in _DIGITS):
        scale = old.scale if pa.types.is_decimal(old) else 0
        whole = old.precision - scale if pa.types.is_decimal(old) else _DIGITS[old]
        fits = new.scale >= scale and new.precision - new.scale >= whole
        return bool(fits and old != new)
    return bool(pa.types.is_float32(old) and pa.types.is_float64(new))
