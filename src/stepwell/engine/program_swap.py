"""Swap the program of a pipeline that holds data, in one commit between two transactions (D11).

`swap_stages` lists the stages and `change_program` applies them one after another:

    flush              the manifest holds the old program's state up to transaction N
    load and build     relations that keep their rows keep their runs, also tables whose columns
                       move; rows whose values change are converted and inserted again; fresh views
                       are computed from the tables
    diff               for each sink that continues: its view now, minus its view before
    write              runs and outbox files; no manifest names them yet
    append             an empty transaction N + 1, so that numbers have no gap; several if a
                       difference is large, one for each part of it
    commit             program, runs, position, number, outbox, checkpoint: THE COMMIT POINT

The session cannot be used afterwards: opening the pipeline again loads the new program. A crash
before the commit leaves unreferenced files and perhaps an empty transaction. After the commit the
outbox holds each difference under a number that no sink has received, so each arrives once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import pyarrow as pa

from stepwell.engine.evolution import (
    EvolvingDifference,
    evolution,
    evolved,
    is_same,
    with_inferred_decimals,
)
from stepwell.engine.outbox_files import write_outbox_file
from stepwell.engine.push_keys import key_runs
from stepwell.engine.swap_stages import (
    AppendTransactions,
    BuildViews,
    CatchUp,
    CheckOrigin,
    CommitManifest,
    Convert,
    DiffSink,
    Flush,
    LoadRuns,
    ProgramChange,
    ReadOld,
    RefillTable,
    Relations,
    Stage,
    WriteOutbox,
    WriteRuns,
    swap_stages,
)
from stepwell.engine.writer_session import WriterSession
from stepwell.errors import (
    BuildError,
    FencedError,
    InvalidError,
    StepwellError,
    UnknownOutcomeError,
    UserCodeError,
    ensure,
)
from stepwell.execution.executor import Executor
from stepwell.execution.lazy_executor import LazyExecutor
from stepwell.journal.entry import Cursor, Draft, Kind
from stepwell.lsm.reshape import reshaping
from stepwell.lsm.table_diff import Difference, difference
from stepwell.lsm.widening import are_decimals
from stepwell.manifest.checkpoint import (
    adding,
    dropping,
    find_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from stepwell.manifest.manifest import CheckpointRef, Manifest, Run
from stepwell.manifest.progress import Delivered, Progress, Undelivered, mark_without_entry
from stepwell.model import Transaction
from stepwell.plan.described import with_kept

_ROWS_MAX = 100_000
"""Rows of a table that are converted at once."""

T = TypeVar("T")


class Shadow(Protocol):
    """A state of the new program, built from a checkpoint while transactions continued."""

    @property
    def checkpoint(self) -> CheckpointRef:
        """The checkpoint it was built from; the commit drops it."""

    def catch_up(self, session: WriterSession) -> None:
        """Replay up to the session's last transaction."""


def change_program(
    session: WriterSession,
    executor: Executor | None,
    change: ProgramChange,
    *,
    building: Callable[[str], None] = lambda name: None,
    shadow: Shadow | None = None,
) -> Transaction:
    """Commit a new program, and return the transaction that carries the change.

    `executor` was made for the new program. It is empty, unless `shadow` built its state. None:
    tables and views are unchanged, and keep their runs. `building` is called before each table or
    view that is computed.

    The session can only be closed afterwards. If this raises, nothing has happened, unless it
    raises `UnknownOutcomeError`.
    """
    relations = Relations.KEPT if executor is None else Relations.BUILT
    if shadow is not None:
        relations = Relations.SHADOW
    begun = {outbox.sink.name for outbox in session.state.outboxes if not outbox.new}
    swap = _Swap(session, executor, change, building, shadow)
    for stage in swap_stages(change, begun, relations):
        swap.apply(stage)
    return swap.transaction


class _Swap:
    """Applies stages, and hands the results of earlier stages to later ones."""

    def __init__(
        self,
        session: WriterSession,
        executor: Executor | None,
        change: ProgramChange,
        building: Callable[[str], None],
        shadow: Shadow | None,
    ) -> None:
        self._session = session
        self._executor = executor
        self._change = change
        self._building = building
        self._shadow = shadow
        self._old: Executor = session.state.executor
        self._rows_max = session.settings.outbox.part_rows_max
        self._differences: dict[str, Difference | EvolvingDifference] = {}
        self._runs: tuple[Run, ...] | None = None
        self._outbox: tuple[Undelivered, ...] = ()
        self._revived: frozenset[str] = frozenset()
        self._transaction: Transaction | None = None

    @property
    def transaction(self) -> Transaction:
        """The last transaction of the swap; known once every sink was compared."""
        if self._transaction is None:
            change, last = self._change, self._session.state.transaction
            counts = [item.count(self._rows_max) for item in self._differences.values()]
            if change.fresh or change.refill or change.reshape or any(counts):
                last = Transaction(last + max([1, *counts]))
            self._transaction = last
        return self._transaction

    @property
    def _new(self) -> Executor:
        return self._executor or self._old

    def apply(self, stage: Stage) -> None:
        match stage:
            case Flush():
                self._session.checkpointer.flush()
            case LoadRuns():
                self._load_runs()
            case CatchUp():
                self._origin.catch_up(self._session)
            case ReadOld(relations):
                if isinstance(self._old, LazyExecutor):
                    self._old = self._old.reading(set(relations))
            case RefillTable(table):
                self._building(table)
                convert = self._change.refill[table]
                _attributed(f"table.{table}", _refill, self._old, self._new, table, convert)
            case BuildViews(views):
                self._build(views)
            case DiffSink():
                self._diff(stage)
            case WriteRuns():
                self._write_runs()
            case WriteOutbox():
                self._write_outbox()
            case CheckOrigin():
                self._check_origin()
            case AppendTransactions():
                self._append()
            case CommitManifest():
                self._commit()

    @property
    def _origin(self) -> Shadow:
        ensure(self._shadow is not None, "a swap with a stage of a shadow build has one")
        return self._shadow  # type: ignore[return-value]

    def _load_runs(self) -> None:
        relations = self._new.relations()
        self._new.load(kept_runs(self._session.manifest.runs, relations, self._change))

    def _build(self, views: Sequence[str]) -> None:
        try:
            self._new.build(views, self._building)
        except (InvalidError, UserCodeError) as error:
            # The executor tells which of them it was.
            raise BuildError(f"view.{(error.about or views[0]).lower()}", error) from error

    def _diff(self, stage: DiffSink) -> None:
        self._differences[stage.sink] = _attributed(
            f"sink.{stage.sink}",
            _difference,
            self._old,
            self._new,
            stage.before,
            stage.after,
            self._rows_max,
            self._change.evolve.get(stage.sink),
        )

    def _write_runs(self) -> None:
        before = self._session.manifest.runs
        self._runs = (*self._new.flush(), *_aside(before, self._change), *key_runs(before))

    def _write_outbox(self) -> None:
        session, rows_max = self._session, self._rows_max
        before, tip = session.manifest, session.tip
        self._outbox = tuple(
            write_outbox_file(session.store, session.env, sink, _mark(before, number, tip), part)
            for sink, changes in sorted(self._differences.items())
            for number, part in enumerate(
                changes.parts(rows_max), self.transaction - changes.count(rows_max) + 1
            )
        )

    def _check_origin(self) -> None:
        session, origin = self._session, self._origin.checkpoint
        ref = find_checkpoint(session.manifest, origin.id, session.store.uri)
        state = read_checkpoint(session.store, ref.id, ref).state
        self._revived = frozenset(run.path for run in state.all_runs)

    def _append(self) -> None:
        session, last = self._session, self.transaction
        for number in range(session.state.transaction + 1, last + 1):
            draft = Draft(Kind.STEP, Transaction(number), 1, True, session.env.now())
            session.writer.append(draft)
            # This empty transaction has happened. If the next append fails, the session continues.
            session.state.transaction = Transaction(number)

    def _commit(self) -> None:
        session = self._session
        change = self._changed_manifest()
        try:
            # A checkpoint of the old program cannot restore the new one, which starts with its own.
            checkpoint = write_checkpoint(session.store, session.env, change(session.manifest))
            add = adding(checkpoint, session.settings.checkpoint_keep)
            session.writer.commit(lambda m: add(change(m)), "deploy", self._revived)
        except (FencedError, UnknownOutcomeError):
            raise
        except StepwellError as error:
            # The journal may hold the number already, so this process must not use it again.
            raise UnknownOutcomeError(
                f"the swap of the program was started and not committed: {error.message}",
                hint="open the pipeline again: it is unchanged; then deploy once more",
            ) from error
        finally:
            # Memory holds the old program: whatever happened, only opening again helps.
            session.state.broken = UnknownOutcomeError(
                "the program of this pipeline was changed", hint="open the pipeline again"
            )

    def _changed_manifest(self) -> Callable[[Manifest], Manifest]:
        """The change to the manifest, as a pure function of the latest one."""
        session, change, executor = self._session, self._change, self._executor
        runs = session.manifest.runs if self._runs is None else self._runs
        cursor = session.writer.journal.tip
        # Every file written so far is named in `runs`, or is garbage.
        floor = session.env.new_id()
        tables = {table.lower(): table for table in self._new.tables()}
        origin = None if self._shadow is None else self._shadow.checkpoint
        described = session.manifest.described
        if executor is not None:
            described = with_kept(executor.described(), described, change.aside, session.store.uri)

        def changed(manifest: Manifest) -> Manifest:
            if origin is not None:
                # Fails if the checkpoint is gone: its files may be, too. Its runs stay, because
                # `runs` names them.
                manifest = dropping(origin.id, session.store.uri)(manifest)
            progress = manifest.progress
            waiting = (o for o in progress.outbox if o.sink in change.follow)
            return replace(
                manifest,
                program=change.program,
                generation=manifest.generation + 1,
                runs=runs,
                described=described,
                replay=cursor,
                transaction=self.transaction,
                floor=floor,
                progress=Progress(
                    sources=tuple(at for at in progress.sources if at.name in change.sources),
                    sinks=tuple(at for at in progress.sinks if at.name in change.follow),
                    outbox=(*waiting, *self._outbox),
                    dead_letters=tuple(
                        replace(item, table=tables.get(item.table.lower(), item.table))
                        for item in progress.dead_letters
                        if item.table.lower() in change.letters
                    ),
                    # The next opening counts those of views that are new or rebuilt.
                    violations=tuple(
                        v for v in progress.violations if v.view.lower() in change.keep
                    ),
                ),
            )

        return changed


def _mark(manifest: Manifest, number: int, tip: Cursor) -> Delivered:
    end = tip.position, tip.checksum
    timeline = manifest.timeline_of(number)
    return mark_without_entry(manifest.lineage, timeline, Transaction(number), end)


def kept_runs(
    runs: tuple[Run, ...], owners: Mapping[str, str], change: ProgramChange
) -> tuple[Run, ...]:
    """The runs of relations that keep their rows, under the current spelling of their names."""

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
                f"{owner} would keep its rows, but this version does not know its stored relation "
                f"{run.relation}",
                hint=f"use the version that deployed it, or rename {owner}",
            )
    return tuple(kept)


def _owner(relation: str) -> str:
    """The table or view that a relation belongs to, whose name contains no $."""
    return relation.partition("$")[0]


def _aside(runs: tuple[Run, ...], change: ProgramChange) -> Iterator[Run]:
    """The runs of views that the new executor does not know."""
    for run in runs:
        owner = _owner(run.relation)
        if owner.lower() in change.aside:
            name = change.aside[owner.lower()] + run.relation.removeprefix(owner)
            yield replace(run, relation=name)


def _attributed(key: str, act: Callable[..., T], *arguments: object) -> T:
    """Attribute user errors to the resource being built; let storage errors propagate."""
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
            raise InvalidError(
                f"a stored row does not fit the changed table: {row.reason}: {row.row!r}"
            )
    there = executor.pieces(table, _ROWS_MAX).rows
    if there != rows.rows:
        raise InvalidError(
            f"stored rows share a key: {rows.rows:,} rows would become {there:,}",
            hint="choose a key that is unique",
        )


def _difference(
    old: Executor,
    new: Executor,
    was: str,
    now: str,
    rows_max: int,
    evolve: Callable[[pa.Schema, pa.Schema], None] | None,
) -> Difference | EvolvingDifference:
    """The new view minus the old one, as a change set."""
    before, after = old.pieces(was, rows_max), new.pieces(now, rows_max)
    inferred = before.inferred or after.inferred
    if inferred:
        after = replace(after, schema=with_inferred_decimals(before.schema, after.schema))
    alike = _alike(before.schema, after.schema, inferred)
    if alike and (evolve is None or not evolution(before.schema, after.schema).widened):
        return difference(before, after, rows_max)
    if evolve is None:
        raise InvalidError(
            f"{now} has other columns than the sink has received so far: "
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
            f"{error.message}; rename the sink and give it another location: it then starts "
            "with the whole view"
        )
    return (
        "set evolve: true on the sink, so that it follows; or rename it and give it another "
        "location: it then starts with the whole view"
    )


def _alike(before: pa.Schema, after: pa.Schema, inferred: bool) -> bool:
    """Whether a sink that holds rows of one schema can continue with the other unchanged."""
    if before.names != after.names:
        return False
    return all(
        is_same(a.type, b.type) or (inferred and are_decimals(a.type, b.type))
        for a, b in zip(before, after, strict=True)
    )


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
