"""Folding: combine consecutive changes of a table into one change.

The folded change has the effect of applying the rows one by one: the same table, and the same
rejected deletes.

    with a key   a key that was put and deleted is discarded, whatever was there before
    a bag        a row put and then deleted cancels out; the remaining deletes remove rows that
                 were there before

`operations.py` decides which operations remain. Rows are compared by the hashes that checksums are
made of, so equality is Spark's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.errors import InvalidError
from stepwell.lsm.change import Change, PartName
from stepwell.lsm.checksum import row_hashes
from stepwell.lsm.operations import DELETE, DISCARD, PUT, fold_bag, fold_keyed

Keys = Mapping[str, tuple[str, ...]]
"""The key of each table; a bag has none."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A change folded from several, and the origin of each of its rows."""

    change: Change
    left: Mapping[PartName, pa.Array]
    """Position among all rows of each row of a part; a missing part has all rows in order."""
    parts: Sequence[tuple[int, PartName]] = ()
    """The concatenated parts that those positions refer to: number of the change, and part."""
    starts: Sequence[int] = ()
    number: int = 0
    """The number of the change, if it is the only one."""

    def origin(self, part: PartName, at: int) -> tuple[int, PartName, int]:
        """The origin of a row of the folded change: the change, its part, and the position."""
        if not self.parts:
            return self.number, part, at
        place = self.left[part][at].as_py() if part in self.left else at
        found = bisect_right(self.starts, place) - 1
        number, name = self.parts[found]
        return number, name, place - self.starts[found]


def check_discards(table: str, key: Sequence[object], change: Change) -> None:
    """Raise `InvalidError` for discards on a bag: they do not say how many equal rows to remove."""
    if change.discard is not None and change.discard.num_rows and not key:
        raise InvalidError(
            f"{table} has no key, and only a key can be discarded",
            hint="delete removes one equal row",
        )


def fold_traced(
    changes: Sequence[Change], key: Sequence[str], numbers: Sequence[int] | None = None
) -> Folded:
    """Fold consecutive changes into one, and record the origin of each row.

    `numbers` identifies the changes; by default they are numbered from 0.
    """
    numbers = range(len(changes)) if numbers is None else numbers
    if len(changes) == 1:
        return Folded(changes[0], {}, number=numbers[0])
    names: list[tuple[int, PartName]] = []
    parts: list[pa.Table] = []
    starts = [0]
    for number, change in zip(numbers, changes, strict=True):
        for name, part in _named_parts(change):
            names.append((number, name))
            parts.append(part)
            starts.append(starts[-1] + part.num_rows)
    if all(name == "put" for _, name in names):
        return Folded(Change(_together(parts) if parts else None), {}, names, starts)
    folded, left = _fold_rows(parts, [name for _, name in names], key)
    return Folded(folded, left, names, starts)


def _named_parts(change: Change) -> list[tuple[PartName, pa.Table]]:
    """The non-empty parts, in the order in which they are applied."""
    every: list[tuple[PartName, pa.Table | None]] = [
        ("discard", change.discard),
        ("delete", change.delete),
        ("put", change.put),
    ]
    return [(name, part) for name, part in every if part is not None and part.num_rows]


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
    """A number for every row of every part; two rows share a number exactly if they are equal."""
    lanes = zip(*(row_hashes(part) for part in parts), strict=True)
    first, second = (pa.concat_arrays(lane).dictionary_encode() for lane in lanes)
    width = pa.scalar(len(second.dictionary), pa.int64())
    return pc.add(pc.multiply(first.indices.cast(pa.int64()), width), second.indices)


def _columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Select columns by name, ignoring case."""
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
