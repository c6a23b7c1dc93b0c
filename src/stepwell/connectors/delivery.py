"""What every sink checks before it writes: whose output it holds, and that numbers only rise."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.engine.equality import last_of_each
from stepwell.engine.ports import WEIGHT, Delivered
from stepwell.errors import ConflictError, InvalidError, ensure
from stepwell.model import Transaction


def check_next(
    sink: str, held: Delivered | None, lineage: str, transaction: Transaction, change: pa.Table
) -> None:
    """A sink takes only what comes next of the pipeline it holds (J7).

    `ConflictError`: it holds this transaction or a later one already, as when a writer that was
    fenced is late.
    """
    ensure(change.num_rows > 0, f"sink {sink} is given changes, never nothing")
    ensure(change.column_names[-1] == WEIGHT, f"the last column of a change is {WEIGHT}")
    if held is None:
        return
    if held.lineage != lineage:
        raise InvalidError(
            f"sink {sink} holds the output of another pipeline: expected lineage {lineage}, found "
            f"{held.lineage}",
            hint="empty the sink, or give this pipeline one of its own",
        )
    if transaction <= held.transaction:
        raise ConflictError(
            f"sink {sink} holds transaction {held.transaction}, and was given {transaction}",
            hint="what it holds already is not written again",
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
