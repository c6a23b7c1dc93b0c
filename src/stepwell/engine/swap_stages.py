"""The stages of a program swap, as values.

`swap_stages` builds the list without reading or writing anything. It has three readers:
`stepwell plan` shows it, `program_swap.change_program` applies it stage by stage, and tests compare
it. `CommitManifest` is the commit point: a crash before it leaves the old program, unreferenced
files and perhaps an empty transaction; a crash after it leaves the new program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from stepwell.errors import ensure
from stepwell.lsm.reshape import Places
from stepwell.store.sealed import Json

Convert = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class ProgramChange:
    """The difference between two programs. Names of tables and views are in lower case."""

    program: Json
    """The new program, as the manifest stores it."""
    keep: frozenset[str] = frozenset()
    """Tables and views that keep their stored rows."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Views in `keep` that the new executor does not know, because no view that is built reads
    them; each with its current spelling.
    """
    letters: frozenset[str] = frozenset()
    """Tables that keep their dead letters."""
    fresh: tuple[str, ...] = ()
    """Views to build from the relations they read, in order."""
    refill: Mapping[str, Convert] = field(default_factory=dict)
    """Tables whose rows are converted, each with its conversion."""
    reshape: Mapping[str, Places] = field(default_factory=dict)
    """Tables whose stored columns move to these places."""
    follow: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Sinks that continue: the view each one followed, and the view it follows now."""
    evolve: Mapping[str, Callable[[pa.Schema, pa.Schema], None]] = field(default_factory=dict)
    """Sinks whose columns may change, each with a check that raises if it cannot follow."""
    sources: frozenset[str] = frozenset()
    """Sources that continue from their positions."""


class Relations(Enum):
    """How the swap obtains the relations of the new program."""

    KEPT = "kept"
    """Tables and views are unchanged; only sources, sinks or protection change."""
    BUILT = "built"
    """Built by the swap itself, while the pipeline stands still."""
    SHADOW = "shadow"
    """Built by a shadow build while transactions continued (`shadow_build.py`)."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Flush, so that the manifest holds the old program's state up to transaction N."""


@dataclass(frozen=True, slots=True)
class LoadRuns:
    """Load the runs of relations that keep their rows into the new executor."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Replay into the shadow build the transactions that were committed since its last poll."""


@dataclass(frozen=True, slots=True)
class ReadOld:
    """Make these relations of the old program readable, to be converted or compared."""

    relations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RefillTable:
    """Convert the rows of a table, and insert them into the new executor."""

    table: str


@dataclass(frozen=True, slots=True)
class BuildViews:
    """Compute views from the relations they read."""

    views: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiffSink:
    """Subtract the view a sink has received from the view it follows now."""

    sink: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class WriteRuns:
    """Write the runs of the new program. No manifest names them yet."""


@dataclass(frozen=True, slots=True)
class WriteOutbox:
    """Write the differences to outbox files. No manifest names them yet."""

    sinks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckOrigin:
    """Check that the checkpoint of the shadow build still exists; the commit names its runs."""


@dataclass(frozen=True, slots=True)
class AppendTransactions:
    """Append empty transactions to the journal, so that numbers have no gap.

    One if any relation changes, or as many as the largest difference has parts.
    """


@dataclass(frozen=True, slots=True)
class CommitManifest:
    """Commit program, runs, position, number, outbox and a checkpoint: THE COMMIT POINT."""


Stage: TypeAlias = (
    Flush
    | LoadRuns
    | CatchUp
    | ReadOld
    | RefillTable
    | BuildViews
    | DiffSink
    | WriteRuns
    | WriteOutbox
    | CheckOrigin
    | AppendTransactions
    | CommitManifest
)


def swap_stages(
    change: ProgramChange, begun: Collection[str], relations: Relations
) -> tuple[Stage, ...]:
    """List the stages of a swap, in the order in which they are applied.

    `begun` are the sinks that have received output. A sink that has received none is not compared:
    the next opening sends it the whole view.
    """
    ensure(
        relations is Relations.BUILT or not change.refill,
        "only a swap that builds its relations converts rows",
    )
    return tuple(_stages(change, begun, relations))


def _stages(change: ProgramChange, begun: Collection[str], relations: Relations) -> Iterator[Stage]:
    diffs = tuple(
        DiffSink(sink, before, after)
        for sink, (before, after) in change.follow.items()
        if sink in begun and (before != after or after in change.fresh)
    )
    yield Flush()
    if relations is Relations.SHADOW:
        yield CatchUp()
    elif relations is Relations.BUILT:
        yield LoadRuns()
    read = {diff.before for diff in diffs} | change.refill.keys()
    if relations is Relations.KEPT:
        read |= {diff.after for diff in diffs}
    if read:
        yield ReadOld(tuple(sorted(read)))
    for table in change.refill:
        yield RefillTable(table)
    if relations is Relations.BUILT and change.fresh:
        yield BuildViews(change.fresh)
    yield from diffs
    if relations is not Relations.KEPT:
        yield WriteRuns()
    if diffs:
        yield WriteOutbox(tuple(sorted(diff.sink for diff in diffs)))
    if relations is Relations.SHADOW:
        yield CheckOrigin()
    yield AppendTransactions()
    yield CommitManifest()


def stage_to_json(stage: Stage) -> dict[str, Json]:
    """The stage with its fields, for `stepwell plan --json`.

    >>> stage_to_json(BuildViews(("revenue",)))
    {'stage': 'build_views', 'views': ['revenue']}
    """
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(stage).__name__).lower()
    values = {item.name: getattr(stage, item.name) for item in fields(stage)}
    shown = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}
    return {"stage": name, **shown}
