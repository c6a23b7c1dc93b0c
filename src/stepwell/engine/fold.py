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

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.engine.checksum import row_hashes
from stepwell.engine.operations import DELETE, DISCARD, PUT, fold_bag, fold_keyed
from stepwell.engine.payload import Intake
from stepwell.engine.ports import Change, PartName
from stepwell.errors import InvalidError

Keys = Mapping[str, tuple[str, ...]]
"""The key of every table; a bag has none."""


@dataclass(frozen=True, slots=True)
class Folded:
    """One change made of several, and where its rows come from."""

    change: Change
    left: Mapping[PartName, pa.Array]
    """Of each row of a part: its place among all rows; absent: they are all there, in order."""
    parts: Sequence[tuple[int, PartName]] = ()
    """The parts whose rows, one behind the other, those are: which change's, and which part."""
    starts: Sequence[int] = ()

    def origin(self, part: PartName, at: int) -> tuple[int, PartName, int]:
        """The change, its part, and the place there, that a row of the folded change comes from."""
        if not self.parts:
            return 0, part, at
        place = self.left[part][at].as_py() if part in self.left else at
        found = bisect_right(self.starts, place) - 1
        number, name = self.parts[found]
        return number, name, place - self.starts[found]


@dataclass(frozen=True, slots=True)
class FoldedTable:
    """What came in for a table, as one change."""

    folded: Folded
    intakes: Sequence[int]
    """Which of the intakes the changes came with."""

    def origin(self, part: PartName, at: int) -> tuple[int, PartName, int]:
        """The intake, its part, and the place there, that a row comes from."""
        number, name, place = self.folded.origin(part, at)
        return self.intakes[number], name, place


def fold_intakes(intakes: Iterable[Intake], keys: Keys) -> dict[str, FoldedTable]:
    """What came in, in order, as one change per table.

    A table in whose input nothing but bad rows was found has no change.
    """
    changes: dict[str, list[Change]] = {}
    numbers: dict[str, list[int]] = {}
    for number, intake in enumerate(intakes):
        if intake.taken.change.parts:
            check_discards(intake.table, keys[intake.table], intake.taken.change)
            changes.setdefault(intake.table, []).append(intake.taken.change)
            numbers.setdefault(intake.table, []).append(number)
    return {
        table: FoldedTable(fold_traced(parts, keys[table]), numbers[table])
        for table, parts in changes.items()
    }


def check_discards(table: str, key: Sequence[object], change: Change) -> None:
    """`InvalidError` where a bag is to discard: of equal rows it is not said how many may go."""
    if change.discard is not None and change.discard.num_rows and not key:
        raise InvalidError(
            f"{table} has no key, and only a key can be discarded",
            hint="delete takes one equal row away",
        )


def fold_changes(changes: Sequence[Change], key: Sequence[str]) -> Change:
    """One change that does what these do, one after another."""
    return fold_traced(changes, key).change


def fold_traced(changes: Sequence[Change], key: Sequence[str]) -> Folded:
    """The same, and which row of which change each of its rows is."""
    if len(changes) == 1:
        return Folded(changes[0], {})
    names: list[tuple[int, PartName]] = []
    parts: list[pa.Table] = []
    starts = [0]
    for number, change in enumerate(changes):
        for name, part in _named_parts(change):
            names.append((number, name))
            parts.append(part)
            starts.append(starts[-1] + part.num_rows)
    if all(name == "put" for _, name in names):
        return Folded(Change(_together(parts) if parts else None), {}, names, starts)
    folded, left = _fold_rows(parts, [name for _, name in names], key)
    return Folded(folded, left, names, starts)


def _named_parts(change: Change) -> list[tuple[PartName, pa.Table]]:
    """The parts that hold rows, in the order in which they happen."""
    every: list[tuple[PartName, pa.Table | None]] = [
        ("discard", change.discard),
        ("delete", change.delete),
        ("put", change.put),
    ]
    return [(name, part) for name, part in every if part is not None and part.num_rows]


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


_KINDS: Mapping[PartName, int] = {"discard": DISCARD, "delete": DELETE, "put": PUT}


def _fold_rows(
    given: Sequence[pa.Table], names: Sequence[PartName], key: Sequence[str]
) -> tuple[Change, dict[PartName, pa.Array]]:
    parts = [
        part if name == "put" or not key else _columns(part, key)
        for name, part in zip(names, given, strict=True)
    ]
    kinds = [
        pa.repeat(pa.scalar(_KINDS[name], pa.int8()), part.num_rows)
        for name, part in zip(names, given, strict=True)
    ]
    keys = [_columns(part, key) for part in parts] if key else parts
    fold = fold_keyed if key else fold_bag
    left = fold(_numbers(keys), pa.concat_arrays(kinds))
    together = _together(keys)
    change = Change(
        _some(_together(parts), left.puts),
        _some(together, left.deletes),
        _some(together, left.discards),
    )
    return change, {"put": left.puts, "delete": left.deletes, "discard": left.discards}


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
