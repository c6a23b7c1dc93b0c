"""Several changes of a table, one after another, as one change.

A change is deletes, then puts. What comes after it may delete what it put:

    with a key   a row put and then deleted is not put; the key is deleted all the same, for a row
                 of it may have been there before
    a bag        a row put and then deleted never was; what is left of the deletes takes rows that
                 were there before

Rows are compared by the hash that their checksum is made of, so Spark's idea of equality holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from stepwell.engine.checksum import row_hashes
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
        if _rows(taken.change.put) or _rows(taken.change.delete):
            changes.setdefault(intake.table, []).append(taken.change)
        if taken.bad:
            bad.setdefault(intake.table, []).extend((intake.source, row) for row in taken.bad)
    folded = {table: fold_changes(parts, keys[table]) for table, parts in changes.items()}
    return folded, bad


def fold_changes(changes: Sequence[Change], key: Sequence[str]) -> Change:
    """One change that does what these do, one after another."""
    puts: list[pa.Table] = []
    deletes: list[pa.Table] = []
    for change in changes:
        gone = change.delete
        if gone is not None and gone.num_rows:
            if puts:
                together = _together(puts)
                kept, gone = (_keyed if key else _bag)(together, gone, key)
                puts = [kept] if kept.num_rows else []
            if gone.num_rows:
                deletes.append(gone)
        if change.put is not None and change.put.num_rows:
            puts.append(change.put)
    return Change(_together(puts) if puts else None, _together(deletes) if deletes else None)


def _keyed(put: pa.Table, gone: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    gone = _columns(gone, key)
    deleted = set(_hashes(gone))
    keep = [row not in deleted for row in _hashes(_columns(put, key))]
    return put.filter(pa.array(keep, pa.bool_())), gone


def _bag(put: pa.Table, gone: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    wanted = Counter(_hashes(gone))
    there = _hashes(put)
    cancelled = wanted & Counter(there)
    keep = _without(there, cancelled)
    rest = _without(_hashes(gone), cancelled)
    return put.filter(keep), gone.filter(rest)


def _without(rows: list[tuple[int, int]], cancelled: Counter[tuple[int, int]]) -> pa.Array:
    """Which rows stay when so many of each go; the first ones go first."""
    left = Counter(cancelled)
    keep = []
    for row in rows:
        goes = left[row] > 0
        left[row] -= goes
        keep.append(not goes)
    return pa.array(keep, pa.bool_())


def _hashes(table: pa.Table) -> list[tuple[int, int]]:
    if not table.num_rows:
        return []
    first, second = row_hashes(table)
    return list(zip(first.to_pylist(), second.to_pylist(), strict=True))


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


def _rows(table: pa.Table | None) -> int:
    return 0 if table is None else int(table.num_rows)
