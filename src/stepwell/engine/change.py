"""Changing what a pipeline computes, with data in it: all at once, between two transactions (D11).

    1 flush              the manifest holds everything, up to transaction N, by the old program
    2 load and build     relations that stay keep their runs, tables with other columns too, unless
                         values change: those rows are converted and put again; then fresh views
                         are computed from the tables, beside the old ones
    3 differences        for each sink that goes on: what its view is now, less what it was
    4 runs and files     of what 2 and 3 computed; nobody names them yet
    5 journal            an empty transaction N + 1, so that numbers stay without a gap; several if
                         a difference is large, one for each part of it
    6 manifest commit    program, runs, position, number, outbox, checkpoint: THE COMMIT POINT
    7 this handle ends   opening again finds the new program

A crash before 6 leaves files that nothing refers to and perhaps a transaction without any change.
After it everything has happened: the outbox holds each difference under a number that no sink has
seen, so that it arrives once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

from stepwell.engine.core import Core
from stepwell.engine.evolution import (
    EvolvingDifference,
    evolution,
    evolved,
    is_same,
    with_inferred_decimals,
)
from stepwell.engine.kept import write_kept
from stepwell.engine.lazy import LazyExecutor
from stepwell.engine.pieces import Difference, difference
from stepwell.engine.ports import Executor
from stepwell.engine.push_keys import key_runs
from stepwell.engine.reshape import Places, reshaping
from stepwell.engine.widening import are_decimals
from stepwell.errors import (
    FencedError,
    InvalidError,
    StepwellError,
    UnknownOutcomeError,
    UserCodeError,
)
from stepwell.journal.entry import Cursor, Draft, Kind
from stepwell.model import Transaction
from stepwell.state.checkpoint import (
    adding,
    dropping,
    find_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from stepwell.state.manifest import CheckpointRef, Manifest, Run
from stepwell.state.progress import Delivered, Progress, mark_without_entry
from stepwell.store.sealed import Json

_ROWS_MAX = 100_000
"""Rows of a table that are put anew at once."""

T = TypeVar("T")
Convert = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class ProgramChange:
    """What is to be different. Names of tables and views are in lower case."""

    program: Json
    keep: frozenset[str] = frozenset()
    """Tables and views whose stored rows stay as they are."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Views among them that the executor was not made for, as none that is computed needs them;
    with their names as they are spelled now.
    """
    letters: frozenset[str] = frozenset()
    """Tables that stay, whose dead letters stay with them."""
    fresh: tuple[str, ...] = ()
    """Views to compute from what they read, in order."""
    refill: Mapping[str, Convert] = field(default_factory=dict)
    """Tables whose rows are put anew, and what is made of them."""
    reshape: Mapping[str, Places] = field(default_factory=dict)
    """Tables whose stored rows have their columns in these places."""
    follow: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Sinks that go on: the view each followed, and the one it follows now."""
    evolve: Mapping[str, Callable[[pa.Schema, pa.Schema], None]] = field(default_factory=dict)
    """Sinks whose columns may change; each with what raises if it cannot follow a change."""
    sources: frozenset[str] = frozenset()
    """Sources that go on where they are."""


class BuildError(StepwellError):
    """A resource could not be made; nothing has happened."""

    def __init__(self, key: str, cause: StepwellError) -> None:
        super().__init__(cause.message, hint=cause.hint)
        self.key = key


def change_program(
    core: Core,
    executor: Executor | None,
    change: ProgramChange,
    *,
    building: Callable[[str], None] = lambda name: None,
    ready: Callable[[Core], None] | None = None,
    origin: CheckpointRef | None = None,
) -> Transaction:
    """Commit a new program. `executor` was made for it, and holds nothing yet; None: tables and
    views are what they were, and so are their runs.

    If it was built beside (`beside.py`), `ready` brings it to where the pipeline is, and `origin`
    is the checkpoint it was built from, which is let go with the commit.

    Returns the transaction that carries the change. `core` is of no use afterwards but to be
    closed. When it raises, nothing has happened, unless it is `UnknownOutcomeError`.
    """
    core.flush()
    before = core.manifest
    old: Executor = core.state.executor
    rows_max = core.settings.outbox.part_rows_max
    if ready is not None:
        ready(core)
    elif executor is not None:
        executor.load(kept_runs(before.runs, executor.relations(), change))
    # A sink that was never begun receives the whole view when the pipeline is opened next.
    begun = {at.name for at in before.progress.sinks}
    differing = {
        sink: (was, now)
        for sink, (was, now) in change.follow.items()
        if sink in begun and (was != now or now in change.fresh)
    }
    if isinstance(old, LazyExecutor):
        read = {was for was, _ in differing.values()} | change.refill.keys()
        if executor is None:
            read |= {now for _, now in differing.values()}
        old = old.reading(read) if read else old
    new = executor or old
    for table, convert in change.refill.items():
        building(table)
        _blamed(f"table.{table}", _refill, old, new, table, convert)
    if ready is None and executor is not None:
        for view in change.fresh:
            building(view)
            _blamed(f"view.{view}", executor.build, view)
    differences = {
        sink: _blamed(
            f"sink.{sink}", _difference, old, new, was, now, rows_max, change.evolve.get(sink)
        )
        for sink, (was, now) in differing.items()
    }
    transaction = core.state.transaction
    counts = [changes.count(rows_max) for changes in differences.values()]
    moves = bool(change.fresh or change.refill or change.reshape or any(counts))
    if moves:
        transaction = Transaction(transaction + max([1, *counts]))
    runs = before.runs
    if executor is not None:
        runs = (*executor.flush(), *_aside(before.runs, change), *key_runs(before.runs))
    tip = core.tip
    added = tuple(
        write_kept(core.store, core.env, sink, _mark(before, number, tip), part)
        for sink, changes in sorted(differences.items())
        for number, part in enumerate(
            changes.parts(rows_max), transaction - changes.count(rows_max) + 1
        )
    )
    revived: frozenset[str] = frozenset()
    if origin is not None:
        ref = find_checkpoint(core.manifest, origin.id, core.store.uri)
        state = read_checkpoint(core.store, ref.id, ref).state
        revived = frozenset(run.path for run in state.all_runs)
    for number in range(core.state.transaction + 1, transaction + 1):
        core.writer.append(Draft(Kind.STEP, Transaction(number), 1, True, core.env.now()))
        # It has happened, with nothing in it. If the next cannot be appended, this handle goes on.
        core.state.transaction = Transaction(number)
    cursor = core.writer.journal.tip
    # Whatever was written so far is in `runs`, or is rubbish.
    floor = core.env.new_id()

    tables = {table.lower(): table for table in new.tables()}

    def changed(manifest: Manifest) -> Manifest:
        if origin is not None:
            # If it is gone, its files may be; else they stay by being named in `runs`.
            manifest = dropping(origin.id, core.store.uri)(manifest)
        progress = manifest.progress
        return replace(
            manifest,
            program=change.program,
            generation=manifest.generation + 1,
            runs=runs,
            described=manifest.described if executor is None else executor.described(),
            replay=cursor,
            transaction=transaction,
            floor=floor,
            progress=Progress(
                sources=tuple(at for at in progress.sources if at.name in change.sources),
                sinks=tuple(at for at in progress.sinks if at.name in change.follow),
                outbox=(*(o for o in progress.outbox if o.sink in change.follow), *added),
                dead_letters=tuple(
                    replace(item, table=tables.get(item.table.lower(), item.table))
                    for item in progress.dead_letters
                    if item.table.lower() in change.letters
                ),
                # Those of views that are new or rebuilt are counted by the next opening.
                violations=tuple(v for v in progress.violations if v.view.lower() in change.keep),
            ),
        )

    try:
        # A checkpoint of the old program is of no use to this one: it begins with one of its own.
        checkpoint = write_checkpoint(core.store, core.env, changed(core.manifest))
        add = adding(checkpoint, core.settings.checkpoint_keep)
        core.writer.commit(lambda manifest: add(changed(manifest)), "deploy", revived)
    except (FencedError, UnknownOutcomeError):
        raise
    except StepwellError as error:
        # The number may be in the journal by now, so it is not for anybody else in this process.
        raise UnknownOutcomeError(
            f"the change of the program was begun, and not committed: {error.message}",
            hint="open the pipeline again: it is as it was; then deploy once more",
        ) from error
    finally:
        # From here on memory is of the old program: whatever happened, opening again is the way.
        core.state.broken = UnknownOutcomeError(
            "the program of this pipeline was changed", hint="open the pipeline again"
        )
    return transaction


def _mark(manifest: Manifest, number: int, tip: Cursor) -> Delivered:
    end = tip.position, tip.checksum
    timeline = manifest.timeline_of(number)
    return mark_without_entry(manifest.lineage, timeline, Transaction(number), end)


def kept_runs(
    runs: tuple[Run, ...], owners: Mapping[str, str], change: ProgramChange
) -> tuple[Run, ...]:
    """The runs of relations that stay as they are, under the names that these have now."""

    spelled = {relation.lower(): relation for relation in owners}

    def stays(relation: str) -> bool:
        owner = owners[relation].lower()
        is_letters = relation.lower() != owner and owner in change.letters
        return owner in change.keep or (is_letters and owner in change.refill)

    kept = []
    for run in runs:
        name = spelled.get(run.relation.lower())
        owner = _owner(run.relation).lower()
        if name is not None and stays(name):
            places = change.reshape.get(name.lower())
            columns = run.columns if places is None else reshaping(run, places)
            kept.append(replace(run, relation=name, columns=columns))
        elif name is None and owner in change.keep and owner not in change.aside:
            raise InvalidError(
                f"{owner} is to stay as it is, but {run.relation} is stored for it, which this "
                "version would not store",
                hint=f"use the version that deployed it, or give {owner} another name",
            )
    return tuple(kept)


def _owner(relation: str) -> str:
    """The table or view that a relation belongs to: no name of one has a $ in it."""
    return relation.partition("$")[0]


def _aside(runs: tuple[Run, ...], change: ProgramChange) -> Iterator[Run]:
    """The runs of views that the executor was not made for."""
    for run in runs:
        owner = _owner(run.relation)
        if owner.lower() in change.aside:
            name = change.aside[owner.lower()] + run.relation.removeprefix(owner)
            yield replace(run, relation=name)


def _blamed(key: str, act: Callable[..., T], *arguments: object) -> T:
    """What is wrong with a statement is told of its resource; storage that fails is nobody's."""
    try:
        return act(*arguments)
    except (InvalidError, UserCodeError) as error:
        raise BuildError(key, error) from error


def _refill(old: Executor, executor: Executor, table: str, convert: Convert) -> None:
    rows = old.pieces(table, _ROWS_MAX)
    for piece in rows.pieces:
        rejected = executor.fill(table, convert(piece))
        if rejected:
            row = rejected[0]
            raise InvalidError(f"a row that is there does not fit: {row.reason}: {row.row!r}")
    there = executor.pieces(table, _ROWS_MAX).rows
    if there != rows.rows:
        raise InvalidError(
            f"two rows that are there have the same key: {rows.rows:,} would become {there:,}",
            hint="choose a key that tells them apart",
        )


def _difference(
    old: Executor,
    new: Executor,
    was: str,
    now: str,
    rows_max: int,
    evolve: Callable[[pa.Schema, pa.Schema], None] | None,
) -> Difference | EvolvingDifference:
    """What a view is now, less what it was; with the weight of each row."""
    before, after = old.pieces(was, rows_max), new.pieces(now, rows_max)
    inferred = before.inferred or after.inferred
    if inferred:
        after = replace(after, schema=with_inferred_decimals(before.schema, after.schema))
    alike = _alike(before.schema, after.schema, inferred)
    if alike and (evolve is None or not evolution(before.schema, after.schema).widened):
        return difference(before, after, rows_max)
    if evolve is None:
        raise InvalidError(
            f"{now} has other columns than what the sink has received so far: "
            f"{_described(before.schema)} before, {_described(after.schema)} now",
            hint=_way_out(before.schema, after.schema),
        )
    evolve(before.schema, after.schema)
    changes = difference(evolved(before, after.schema), after, rows_max)
    return EvolvingDifference(changes, before.schema, after.schema)


def _way_out(before: pa.Schema, after: pa.Schema) -> str:
    try:
        evolution(before, after)
    except InvalidError as error:
        return (
            f"{error.message}; give the sink another name and another place: it then begins "
            "with the whole view"
        )
    return (
        "set evolve: true on the sink, and it follows; or give it another name and another place: "
        "it then begins with the whole view"
    )


def _alike(before: pa.Schema, after: pa.Schema, inferred: bool) -> bool:
    """Whether a sink that received the rows before can go on with those after, as it is."""
    if before.names != after.names:
        return False
    return all(
        is_same(a.type, b.type) or (inferred and are_decimals(a.type, b.type))
        for a, b in zip(before, after, strict=True)
    )


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
