"""Several changes of a table, one after another, as one change.

What they do together is what their rows do one by one: the same table, and the same deletes that
find nothing.

    with a key   a key that was put and deleted is discarded, whatever was there before
    a bag        a row put and then deleted never was; what is left of the deletes takes rows that
                 were there before

Which operations are left is the matter of `operations.py`. Rows are compared by the hash that their
checksum is made of, so Spark's idea of equality holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.engine.checksum import row_hashes
from stepwell.engine.operations import DELETE, DISCARD, PUT, fold_bag, fold_keyed
from stepwell.engine.payload import Intake
from stepwell.engine.ports import BadRow, Change
from stepwell.errors import InvalidError

Keys = Mapping[str, tuple[str, ...]]
"""The key of every table; a bag has none."""


def fold_intakes(
    intakes: Iterable[Intake], keys: Keys
) -> tuple[dict[str, Change], dict[str, list[tuple[str, BadRow]]]]:
    """What came in, in order, as one change per table, and the bad rows of each with their source.

    A table in whose input nothing but bad rows was found has no change.
    """
    changes: dict[str, list[Change]] = {}
    bad: dict[str, list[tuple[str, BadRow]]] = {}
    for intake in intakes:
        taken = intake.taken
        if taken.change.parts:
            check_discards(intake.table, keys[intake.table], taken.change)
            changes.setdefault(intake.table, []).append(taken.change)
        if taken.bad:
            bad.setdefault(intake.table, []).extend((intake.source, row) for row in taken.bad)
    folded = {table: fold_changes(parts, keys[table]) for table, parts in changes.items()}
    return folded, bad


def check_discards(table: str, key: Sequence[object], change: Change) -> None:
    """`InvalidError` where a bag is to discard: of equal rows it is not said how many may go."""
    if change.discard is not None and change.discard.num_rows and not key:
        raise InvalidError(
            f"{table} has no key, and only a key can be discarded",
            hint="delete takes one equal row away",
        )


def fold_changes(changes: Sequence[Change], key: Sequence[str]) -> Change:
    """One change that does what these do, one after another."""
    if len(changes) == 1:
        return changes[0]
    if all(part is change.put for change in changes for part in change.parts):
        puts = [part for change in changes for part in change.parts]
        return Change(_together(puts) if puts else None)
    return _fold_rows(changes, key)


class Alike:
    """Whether columns of the same name have types whose values can be compared as they are.

    Else two values may be equal in the table and differ here: text and the number it spells.
    """

    def __init__(self) -> None:
        self._types: dict[tuple[str, str], pa.DataType] = {}

    def takes(self, intakes: Iterable[Intake]) -> bool:
        """Whether these are like those that were taken before; then they are taken, too."""
        types = dict(self._types)
        for intake in intakes:
            for part in intake.taken.change.parts:
                for field in part.schema:
                    if pa.types.is_null(field.type):
                        continue
                    known = types.setdefault((intake.table, field.name.lower()), field.type)
                    if known != field.type and not _both_whole(known, field.type):
                        return False
        self._types = types
        return True


def _both_whole(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(one) and pa.types.is_signed_integer(other))


def _fold_rows(changes: Sequence[Change], key: Sequence[str]) -> Change:
    parts: list[pa.Table] = []
    kinds: list[pa.Array] = []
    for change in changes:
        every = ((change.discard, DISCARD), (change.delete, DELETE), (change.put, PUT))
        for part, kind in every:
            if part is not None and part.num_rows:
                parts.append(part if kind == PUT or not key else _columns(part, key))
                kinds.append(pa.repeat(pa.scalar(kind, pa.int8()), part.num_rows))
    keys = [_columns(part, key) for part in parts] if key else parts
    fold = fold_keyed if key else fold_bag
    left = fold(_numbers(keys), pa.concat_arrays(kinds))
    names = _together(keys)
    return Change(
        _some(_together(parts), left.puts),
        _some(names, left.deletes),
        _some(names, left.discards),
    )


def _some(rows: pa.Table, places: pa.Array) -> pa.Table | None:
    return rows.take(places) if len(places) else None


def _numbers(parts: Sequence[pa.Table]) -> pa.Array:
    """A number for every row of every part, equal for equal rows only."""
    lanes = zip(*(row_hashes(part) for part in parts), strict=True)
    first, second = (pa.concat_arrays(lane).dictionary_encode() for lane in lanes)
    width = pa.scalar(len(second.dictionary), pa.int64())
    return pc.add(pc.multiply(first.indices.cast(pa.int64()), width), second.indices)


def _columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Some columns, whatever the case of their names."""
    places = {name.lower(): place for place, name in enumerate(table.column_names)}
    missing = [name for name in names if name.lower() not in places]
    if missing:
        raise InvalidError(
            f"the column {missing[0]} of the key is missing",
            hint="columns given: " + ", ".join(table.column_names),
        )
    return table.select([places[name.lower()] for name in names])


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    if len(tables) == 1:
        return tables[0]
    spelled: dict[str, str] = {}
    for table in tables:
        for name in table.column_names:
            spelled.setdefault(name.lower(), name)
    alike = [t.rename_columns([spelled[n.lower()] for n in t.column_names]) for t in tables]
    try:
        return pa.concat_tables(alike, promote_options="permissive")
    except (pa.ArrowException, TypeError) as error:
        raise InvalidError(f"rows of one table differ in the types of columns: {error}") from error
