"""What every sink checks before it writes: whose output it holds, and that numbers only rise."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

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


def rows_that_come(change: pa.Table) -> pa.Table:
    """The rows with a positive weight, without it."""
    weights = change.column(change.num_columns - 1)
    return change.remove_column(change.num_columns - 1).filter(pc.greater(weights, 0))


def rows_that_go(change: pa.Table) -> pa.Table:
    """The rows with a negative weight, without it."""
    weights = change.column(change.num_columns - 1)
    return change.remove_column(change.num_columns - 1).filter(pc.less(weights, 0))


def check_key(sink: str, view: str, key: tuple[str, ...], change: pa.Table) -> None:
    """The columns of a sink's key are there, and no two rows come with the same."""
    missing = [name for name in key if name not in change.column_names]
    if missing:
        raise InvalidError(
            f"sink {sink}: the view {view} has no column {missing[0]}",
            hint="its columns are: " + ", ".join(change.column_names[:-1]),
        )
    come = rows_that_come(change).select(list(key))
    weights = change.column(change.num_columns - 1)
    if come.num_rows != come.group_by(list(key)).aggregate([]).num_rows or (
        pc.max(weights).as_py() > 1
    ):
        raise InvalidError(
            f"sink {sink}: the view {view} has several rows with the same {', '.join(key)}",
            hint="name columns that tell its rows apart as the sink's key, or leave key out",
        )
