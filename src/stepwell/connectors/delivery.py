"""Checks shared by all sinks: a change set is well-formed and follows the mark the sink holds."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.engine.evolution import columns_before
from stepwell.engine.ports import Delivered
from stepwell.errors import ConflictError, InvalidError, ensure
from stepwell.lsm.change import WEIGHT
from stepwell.lsm.equality import last_of_each
from stepwell.lsm.large_change import LargeChange


class TableMode(Enum):
    """What a table holds: the rows of its view, or a log of their changes."""

    TABLE = "table"
    CHANGES = "changes"


Numbered = Sequence[tuple[Delivered, pa.Table]]
"""The change sets of consecutive transactions that a sink commits together, each with its mark."""


def check_changes(sink: str, previous: Delivered | None, changes: Numbered) -> Delivered:
    """Check that rows have weights and that transactions increase; returns the last mark."""
    ensure(bool(changes), f"sink {sink} is given changes, never nothing")
    for mark, change in changes:
        some = change.num_rows > 0 or columns_before(change) is not None
        ensure(some, f"sink {sink} is given changes, never nothing")
        ensure(change.column_names[-1] == WEIGHT, f"the last column of a change is {WEIGHT}")
        check_held(sink, previous, previous, mark)
        ensure(
            previous is None or mark.transaction > previous.transaction,
            f"sink {sink} is given rising transactions: {mark} came after {previous}",
        )
        previous = mark
    return changes[-1][0]


def check_large(
    sink: str, previous: Delivered | None, mark: Delivered, change: LargeChange
) -> None:
    """Like `check_changes`, for a change in files."""
    few = change.schema.empty_table()
    if change.num_rows:
        few = pa.table([pa.nulls(1, field.type) for field in change.schema], change.schema)
    check_changes(sink, previous, [(mark, few)])


def all_rows(changes: Numbered) -> pa.Table:
    """The rows of all transactions, in order."""
    return pa.concat_tables([change for _, change in changes])


def change_log(changes: Numbered, transaction: str) -> pa.Table:
    """The rows of all transactions, with their transaction number in a column of the given name."""
    numbers = [
        pa.repeat(pa.scalar(mark.transaction, pa.int64()), change.num_rows)
        for mark, change in changes
    ]
    return all_rows(changes).append_column(transaction, pa.chunked_array(numbers))


def check_held(
    sink: str, held: Delivered | None, previous: Delivered | None, mark: Delivered
) -> None:
    """Check that a change set follows the mark that the sink holds (J7, J16).

    Call it where nothing can come between the check and the commit. Raises `ConflictError` if the
    engine expects another mark, because a fenced writer is late or the sink was restored from a
    backup.
    """
    if held is not None and held.lineage != mark.lineage:
        raise InvalidError(
            f"sink {sink} holds the output of another pipeline: expected lineage {mark.lineage}, "
            f"found {held.lineage}",
            hint="empty the sink, or give this pipeline one of its own",
        )
    if held != previous:
        raise ConflictError(
            f"sink {sink} holds {held or 'nothing'}, not {previous or 'nothing'}: {mark} was not "
            "written",
            hint="the engine asks what the sink holds before it continues",
        )


def latest_by_key(
    sink: str, view: str, key: tuple[str, ...], changes: Numbered
) -> tuple[pa.Table, pa.Table]:
    """The net effect of change sets on a table with a key: the rows to put, and those to delete.

    A retracted row whose key is inserted again is replaced, so it is not among the rows to delete.
    If several transactions touch a key, the last one wins.
    """
    change = changes[0][1]
    missing = [name for name in key if name not in change.column_names]
    if missing:
        raise InvalidError(
            f"sink {sink}: the view {view} has no column {missing[0]}",
            hint="its columns are: " + ", ".join(change.column_names[:-1]),
        )
    places = [change.column_names.index(name) for name in key]
    parts: list[pa.Table] = []
    numbers: list[int] = []
    for number, (_, change) in enumerate(changes):
        weights = change.column(WEIGHT)
        parts += [change.filter(pc.less(weights, 0)), change.filter(pc.greater(weights, 0))]
        numbers += [number] * (parts[-1].num_rows + parts[-2].num_rows)
    if not numbers:
        nothing = change.drop_columns([WEIGHT])
        return nothing, nothing
    every = pa.concat_tables(parts).append_column("number", pa.array(numbers, pa.int64()))
    at = every.num_columns - 1
    come = pc.sum(pc.greater(every.column(at - 1), 0)).as_py()
    last = every.take(last_of_each(every, [at, *places]))
    weights = last.column(at - 1)
    if pc.sum(pc.greater(weights, 0)).as_py() != come or pc.max(weights).as_py() > 1:
        raise InvalidError(
            f"sink {sink}: the view {view} has several rows with the same {', '.join(key)}",
            hint="name columns that identify its rows as the sink's key, or leave key out",
        )
    if len(changes) > 1:
        last = last.take(last_of_each(last, places))
    put = pc.greater(last.column(at - 1), 0)
    rows = last.select(range(at - 1))
    return rows.filter(put), rows.filter(pc.invert(put))
