"""What every sink checks: that a change is one, and that it comes next upon what the sink holds."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.engine.equality import last_of_each
from stepwell.engine.ports import WEIGHT, Delivered
from stepwell.errors import ConflictError, InvalidError, ensure


def check_change(sink: str, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
    """A sink is given rows with their weights, one transaction after another."""
    ensure(change.num_rows > 0, f"sink {sink} is given changes, never nothing")
    ensure(change.column_names[-1] == WEIGHT, f"the last column of a change is {WEIGHT}")
    check_held(sink, previous, previous, mark)
    ensure(
        previous is None or mark.transaction > previous.transaction,
        f"sink {sink} is given rising transactions: {mark} came after {previous}",
    )


def check_held(
    sink: str, held: Delivered | None, previous: Delivered | None, mark: Delivered
) -> None:
    """A sink takes only what comes next upon the mark it holds (J7, J16).

    To be called where nothing can come between this and the commit. `ConflictError`: the engine
    believes it to hold another mark, as when a writer that was fenced is late, or when the sink was
    put back from a backup.
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
            hint="the engine asks what the sink holds before it goes on",
        )


def latest_by_key(
    sink: str, view: str, key: tuple[str, ...], change: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """What a change comes to in a table with a key: the rows to put, and those to delete.

    A row that goes while another comes with its key is replaced, and so not among the latter.
    """
    missing = [name for name in key if name not in change.column_names]
    if missing:
        raise InvalidError(
            f"sink {sink}: the view {view} has no column {missing[0]}",
            hint="its columns are: " + ", ".join(change.column_names[:-1]),
        )
    places = [change.column_names.index(name) for name in key]
    weights = change.column(change.num_columns - 1)
    come, go = pc.greater(weights, 0), pc.less(weights, 0)
    change = pa.concat_tables([change.filter(go), change.filter(come)])
    last = change.take(last_of_each(change, places))
    weights = last.column(last.num_columns - 1)
    put = pc.greater(weights, 0)
    if pc.sum(put).as_py() != pc.sum(come).as_py() or pc.max(weights).as_py() > 1:
        raise InvalidError(
            f"sink {sink}: the view {view} has several rows with the same {', '.join(key)}",
            hint="name columns that tell its rows apart as the sink's key, or leave key out",
        )
    rows = last.remove_column(last.num_columns - 1)
    return rows.filter(put), rows.filter(pc.invert(put))
