"""The executor port: the interface through which the engine drives a backend.

    execute -> Executed (the change set of every view), apply it, flush it to runs

An executor holds the relations of a pipeline. Rows are Arrow tables. No value here is larger than
one transaction, except the results of `read` and `query`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from stepwell.env import Env
from stepwell.execution.backend import Fallback
from stepwell.lsm.bulk import Bulk
from stepwell.lsm.cache import Usage
from stepwell.lsm.change import Change, Rejected
from stepwell.lsm.dead_letter import Letters
from stepwell.lsm.large_change import AnyChange
from stepwell.lsm.part import Part
from stepwell.lsm.profiler import ViewProfile
from stepwell.lsm.storage import Report as Report
from stepwell.lsm.storage import not_reported as not_reported
from stepwell.lsm.table_diff import Pieces
from stepwell.manifest.manifest import Run
from stepwell.plan.cost import Costs
from stepwell.sql.lineage import Bound, Columns
from stepwell.store.base import Store


@dataclass(frozen=True, slots=True)
class Executed:
    """The result of one transaction. It has no effect until `Executor.apply`."""

    changes: Mapping[str, AnyChange]
    """For each materialized view that changed: its columns, then the weight of each row."""
    rejected: tuple[Rejected, ...] = ()
    """Rows that became dead letters."""
    recomputed: tuple[str, ...] = ()
    """Views that were recomputed, fully or in part: always (`explain` says why), because that was
    cheaper, or because the plan of the change would have been too large for Spark."""
    cheaper: Mapping[str, Costs] = field(default_factory=dict)
    """Views that were recomputed in part because that costs less, with both estimates."""
    queries: int = 0
    """Spark queries that were run."""
    queries_of: Mapping[str, int] = field(default_factory=dict)
    """Spark queries for each view."""
    jobs_of: Mapping[str, int] = field(default_factory=dict)
    """Spark jobs for each view: those of its queries, and one for each broadcast in them."""
    rows_of: Mapping[str, int] = field(default_factory=dict)
    """Stored rows that were read for each view."""
    profile_of: Mapping[str, ViewProfile] = field(default_factory=dict, compare=False)
    """Where the time spent on each view went."""
    fallbacks_of: Mapping[str, tuple[Fallback, ...]] = field(default_factory=dict, compare=False)
    """Why Spark computed a part of a view that the local backend supports."""
    pending: object = field(default=None, compare=False, repr=False)
    """The change that `apply` makes to the state, in the executor's own representation."""

    @property
    def seconds_of(self) -> dict[str, float]:
        """Time spent on each view."""
        return {view: profile.seconds for view, profile in self.profile_of.items()}


@dataclass(frozen=True, slots=True)
class PendingParts:
    """`Executed.pending` of an executor whose relations are LSM trees."""

    time: datetime
    """The recorded time of the transaction."""
    deltas: Mapping[str, Part]
    """The change set of each relation."""


Starting = Callable[[str], None]
"""Receives the name of each view before it is computed."""


class BackgroundTask(Protocol):
    """Work that changes no result and can run while transactions continue."""

    def run(self) -> None:
        """Do the work, in any thread. If it raises, nothing has happened."""

    def adopt(self) -> None:
        """Use the result, between two transactions. Does nothing if the state has moved on."""


class Executor(Protocol):
    """Holds the relations of a pipeline, and computes their changes."""

    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """Every table with its key columns; empty for a table without a key."""

    def execute(
        self,
        changes: Mapping[str, Change],
        time: datetime,
        letters: Letters | None = None,
    ) -> Executed:
        """Compute one transaction over the current state. If it raises, nothing has happened.

        `letters` is called with the rejected rows and returns all dead letters of the transaction,
        which go to the relations `<table>$errors` (`engine/dead_letters.py`). If it is None, the
        rejected rows are the only dead letters.
        """

    def apply(self, executed: Executed) -> None:
        """Apply a result to the state. The next `execute` builds on it."""

    def unflushed_bytes(self) -> int:
        """The size of the state that is not yet in any run."""

    def background_task(self) -> BackgroundTask | None:
        """The next background task; None if there is none now."""

    def id_floor(self) -> str | None:
        """An id below the ids of the runs that a running background task writes; None if none runs.

        A flush sets the manifest's floor to it, because only a later flush references these runs.
        """

    def compact(self, *, own: bool = False) -> None:
        """Compact each relation to one run, which the next flush writes. Contents do not change.

        `own`: also rewrite a single run if it is in the store of a clone's parent. If this raises,
        the state is unchanged.
        """

    def flush(self) -> tuple[Run, ...]:
        """Write state that is not yet in any run to new runs, durably, and return all runs.

        Until `on_flushed` is called, another call writes and returns new runs again.
        """

    def described(self) -> str | None:
        """Describe the runs, for readers without this executor (`plan/described.py`).

        With it go the decisions on backends. None if there is nothing to describe, or nothing new.
        """

    def on_flushed(self, runs: Sequence[Run]) -> None:
        """Called when the manifest references these runs."""

    def load(self, runs: Sequence[Run], described: str | None = None) -> None:
        """Replace the state with the contents of these runs.

        `described` is what `described()` returned for the program of these runs. What was decided
        for it holds; without it, the executor decides itself.
        """

    def relations(self) -> Mapping[str, str]:
        """Every stored relation, with the table or view it belongs to."""

    def build(self, views: Sequence[str], starting: Starting = lambda view: None) -> None:
        """Compute views from the relations they read, and replace their stored state.

        Called for new and changed views, after `load`; other views that they read are built.
        `starting` is called with each of them, in the order of declaration, before it is computed;
        what it raises ends the build.
        """

    def fill(self, table: str, rows: pa.Table) -> tuple[Rejected, ...]:
        """Insert rows into a table without changing views: the views that read it are built later,
        or already contain these rows. Returns rejected rows, which are not inserted."""

    def bound(self, view: str, tables: Mapping[str, Columns]) -> Bound | None:
        """How a view is maintained, for comparison with another executor's answer.

        `tables` has the known columns of tables, by lower-case name. None if undetermined.
        """

    def read(self, relation: str) -> pa.Table:
        """The rows of a table, a view, or `<table>$errors`."""

    def pieces(self, relation: str, rows_max: int) -> Pieces:
        """Like `read`, in batches of at most `rows_max`; invalid after the next `apply`."""

    def query(self, sql: str) -> pa.Table:
        """The answer to one SELECT over tables, views and `<table>$errors`."""


ExecutorFactory = Callable[[Store, Env], Executor]

"""Creates an executor that writes its runs to a store. The engine then calls `load`."""


def report_to(executor: Executor, report: Report) -> None:
    """Make an executor report its progress, if it can."""
    hear: Callable[[Report], None] | None = getattr(executor, "report_to", None)
    if hear is not None:
        hear(report)


def cache_usage(executor: Executor) -> Usage | None:
    """Usage of the executor's cache; None if it has none."""
    ask: Callable[[], Usage] | None = getattr(executor, "cache_usage", None)
    return None if ask is None else ask()


def java_pid(executor: Executor) -> int | None:
    """The Java process that computes for an executor; None if there is none on this machine."""
    pid: int | None = getattr(executor, "java_pid", None)
    return pid


def bulk_of(executor: Executor) -> Bulk | None:
    """What stages bulk input for an executor; None if it has to be given all rows."""
    found: Bulk | None = getattr(executor, "bulk", None)
    return found


def lost(executor: Executor) -> str | None:
    """Why an executor was lost; None if it was not, or cannot tell."""
    ask: Callable[[], str | None] | None = getattr(executor, "lost", None)
    return None if ask is None else ask()
