"""Restore requests: which checkpoint to start from, how far to replay, and what is undone.

A restore never decreases the transaction number (`docs/design/0013`). Restoring transaction 40 when
the pipeline is at 100 is transaction 101: it has the state of 40, and each sink receives the exact
difference. A large difference is sent in parts, each under its own number; the last number has the
restored state. A repair starts from a checkpoint instead of the manifest's runs and replays the
journal to its end: nothing is undone. Both are one commit to the manifest; a crash before it leaves
the pipeline as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from stepwell.engine.payload import PUSHED
from stepwell.engine.replay import Replay
from stepwell.engine.sources import Sources
from stepwell.engine.transaction import State
from stepwell.env import Env
from stepwell.errors import (
    CheckpointMissing,
    CorruptError,
    InvalidError,
    NotApplicable,
    StepwellError,
    TruncatedError,
    UnavailableError,
)
from stepwell.journal.entry import Cursor, Kind, Recorded
from stepwell.journal.log import JournalReader, Log
from stepwell.manifest.checkpoint import (
    Checkpoint,
    Sums,
    beginning_of,
    check_contents,
    find_checkpoint,
    read_checkpoint,
)
from stepwell.manifest.manifest import CheckpointRef, Manifest
from stepwell.manifest.run_object import store_of
from stepwell.model import Transaction, format_time
from stepwell.store.base import Store


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What the user asked for: a checkpoint, a transaction or a time; none of them: a repair."""

    checkpoint: str | None = None
    transaction: int | None = None
    time: datetime | None = None

    @property
    def repairs(self) -> bool:
        return self.checkpoint is None and self.transaction is None and self.time is None


PassedOver = tuple[str, str]
"""A checkpoint that could not be used, and why."""


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A checkpoint, and how far to replay the journal after it."""

    checkpoint: Checkpoint
    transaction: Transaction | None
    """The last transaction to replay; None: to the end of the journal, for a repair."""
    replay_from: Cursor | None = None
    """Where replay starts; None: nothing is replayed."""
    passed_over: tuple[PassedOver, ...] = ()
    """Newer checkpoints that are unusable, and why (K9)."""


@dataclass(slots=True)
class RestoreImpact:
    """The transactions and rows that a restore undoes."""

    present: Transaction
    """The last transaction of the pipeline before the restore."""
    known: bool = True
    """False if part of the journal is gone, so that the counts are lower bounds."""
    again: Counter[str] = field(default_factory=Counter)
    """Rows by source that will be read again in new transactions."""
    lost: Counter[str] = field(default_factory=Counter)
    """Pushed rows by table, which do not come back."""
    ahead: tuple[str, ...] = ()
    """Sinks that have received transactions after the restore point."""


def choose(
    request: RestoreRequest, store: Store, log: Log, manifest: Manifest, env: Env
) -> RestorePoint:
    """Find the newest intact checkpoint from which the request can be reached.

    A checkpoint is intact if its files hold the bytes that were written: all of them are read (K9).
    If no checkpoint qualifies and the journal was never trimmed, replay starts at its first entry.
    The last resort is a checkpoint that lacks only output for a sink, which is dropped.
    `CheckpointMissing` names the checkpoints that were passed over.
    """
    if request.checkpoint is not None:
        ref = find_checkpoint(manifest, request.checkpoint, store.uri)
        found = _inspect(ref, store, env, {}, lambda checkpoint: None)
        if found.checkpoint is None:
            raise CorruptError(f"checkpoint {ref.name or ref.id}", found.problem, hint=_OTHERS)
        if found.checkpoint.state.program != manifest.program:
            raise InvalidError(f"checkpoint {ref.name or ref.id}: {_OTHER_PROGRAM}", hint=_OTHERS)
        return RestorePoint(found.checkpoint, ref.transaction)
    passed: list[PassedOver] = []
    spare: list[RestorePoint] = []
    sums: Sums = {}
    ways: dict[str, RestorePoint] = {}

    def excluded(checkpoint: Checkpoint) -> str | None:
        """Why a checkpoint does not lead to the request, intact or not; None if it does."""
        if checkpoint.state.generation != manifest.generation:
            return _OTHER_PROGRAM
        way = _follow(request, checkpoint, log, manifest)
        if isinstance(way, str):
            return way
        ways[checkpoint.id] = way
        return None

    for ref in sorted(manifest.checkpoints, key=lambda ref: ref.id, reverse=True):
        if request.transaction is not None and ref.transaction > request.transaction:
            continue
        if request.time is not None and ref.created > request.time:
            continue
        found = _inspect(ref, store, env, sums, excluded)
        if found.checkpoint is not None and not found.problem:
            return replace(ways[found.checkpoint.id], passed_over=tuple(passed))
        passed.append((_named(ref), found.problem))
        if found.checkpoint is not None:
            spare.append(ways[found.checkpoint.id])
    beginning = beginning_of(manifest)
    if beginning is not None and (request.time is None or beginning.created <= request.time):
        way = _follow(request, beginning, log, manifest)
        if not isinstance(way, str):
            return replace(way, passed_over=tuple(passed))
        passed.append(("the beginning of the journal", way))
    if spare:
        return replace(spare[0], passed_over=tuple(passed))
    told = "; ".join(f"{name}: {why}" for name, why in passed)
    raise CheckpointMissing(
        f"{store.uri} has no checkpoint from which {_told(request)} can be reached"
        + (f" ({told})" if told else ""),
        hint=(_LAST_DEPLOY if manifest.generation else "")
        + "stepwell checkpoint list shows those that are kept",
    )


def _named(ref: CheckpointRef) -> str:
    return f"checkpoint {ref.name or ref.id}"


def _follow(
    request: RestoreRequest, checkpoint: Checkpoint, log: Log, manifest: Manifest
) -> RestorePoint | str:
    """The restore point that starts from a checkpoint, or why there is none."""
    try:
        reach = _reach(request, checkpoint, log, manifest)
    except _ShortError as short:
        return str(short)
    except TruncatedError as error:
        return error.message
    return RestorePoint(checkpoint, reach, _start(checkpoint, reach, manifest))


_LAST_DEPLOY = "a restore goes back to the last deploy of tables and views at most; "
_OTHER_PROGRAM = "its tables and views differ from those the pipeline has now"
_OTHERS = (
    "stepwell checkpoint list shows the others; without --checkpoint the newest intact one is used"
)


class _ShortError(NotApplicable):
    """The journal ends before the request."""


def _told(request: RestoreRequest) -> str:
    if request.transaction is not None:
        return f"transaction {request.transaction}"
    return "the end of the journal" if request.time is None else format_time(request.time)


@dataclass(frozen=True, slots=True)
class _Inspected:
    checkpoint: Checkpoint | None
    """None if it cannot be used."""
    problem: str = ""
    """What is damaged; in a usable checkpoint only output that a sink has not received."""


def _inspect(
    ref: CheckpointRef,
    store: Store,
    env: Env,
    sums: Sums,
    excluded: Callable[[Checkpoint], str | None],
) -> _Inspected:
    """Check the contents of a checkpoint's files, unless the checkpoint is excluded."""
    try:
        checkpoint = read_checkpoint(store, ref.id, ref)
    except UnavailableError:
        raise
    except StepwellError as error:
        return _Inspected(None, error.message)
    if (reason := excluded(checkpoint)) is not None:
        return _Inspected(None, reason)
    try:
        damaged = check_contents(checkpoint.files, lambda root: store_of(store, root, env), sums)
    except UnavailableError:
        raise  # An unavailable store does not mean a damaged checkpoint (F10).
    except StepwellError as error:
        return _Inspected(None, error.message)
    if not damaged:
        return _Inspected(checkpoint)
    first, more = damaged[0], len(damaged) - 1
    problem = f"{first.where} {first.what}" + (f", and {more} more files" if more else "")
    runs = {run.path for run in checkpoint.state.all_runs}
    usable = not any(item.file.path in runs for item in damaged)
    return _Inspected(checkpoint if usable else None, problem)


def _reach(
    request: RestoreRequest, checkpoint: Checkpoint, log: Log, manifest: Manifest
) -> Transaction | None:
    """The last transaction to replay; `_ShortError` if the journal does not reach it."""
    state = checkpoint.state
    if request.transaction == state.transaction:
        return state.transaction
    if request.repairs and state.transaction == manifest.transaction:
        return None
    last = state.transaction
    restored = manifest.transaction
    later = False
    for recorded in follow(log, state.replay):
        draft = recorded.entry.draft
        if request.time is not None and draft.time > request.time:
            later = True
            break
        if draft.closes:
            # A missing number is a restore, whose own checkpoint leads on.
            if draft.transaction != last + 1:
                restored = Transaction(draft.transaction - 1)
                break
            last = draft.transaction
        if last == request.transaction:
            return last
    if request.time is not None:
        # A restore has no journal entry: only its checkpoint has its time.
        later = later or last >= manifest.transaction
        next_one = [ref.created for ref in manifest.checkpoints if ref.transaction == restored]
        if not later and not any(created > request.time for created in next_one):
            raise _ShortError(f"the journal ends at transaction {last}, before that time")
        return last
    wanted = manifest.transaction if request.transaction is None else request.transaction
    if last < wanted:
        raise _ShortError(f"the journal ends at transaction {last}, before {wanted}")
    return None


def _start(checkpoint: Checkpoint, reach: Transaction | None, manifest: Manifest) -> Cursor | None:
    state = checkpoint.state
    if state.transaction == reach:
        return None
    # Between two states of one transaction there are only barriers, which may be trimmed.
    return manifest.replay if state.transaction == manifest.transaction else state.replay


def follow(log: Log, start: Cursor) -> Iterator[Recorded]:
    """The entries after a cursor, to the end of the journal."""
    reader = JournalReader(log, start)
    while entries := reader.poll():
        yield from entries


def undone(point: RestorePoint, log: Log, manifest: Manifest) -> RestoreImpact:
    """Count from the journal what a restore would lose and read again."""
    state = point.checkpoint.state
    closed = [item.entry.draft for item in follow(log, manifest.replay) if item.entry.draft.closes]
    found = RestoreImpact(
        present=max([manifest.transaction, *(draft.transaction for draft in closed)])
    )
    request = state.transaction if point.transaction is None else point.transaction
    pending: list[Recorded] = []
    try:
        for recorded in follow(log, point.replay_from or state.replay):
            draft = recorded.entry.draft
            if draft.kind is Kind.ABORT:
                pending = []
            pending.append(recorded)
            if not draft.closes:
                continue
            if point.transaction is not None and draft.transaction > request:
                for item in (item for step in pending for item in step.entry.draft.inputs):
                    if not item.rows:
                        continue  # A line with the key of a transaction.
                    if item.source == PUSHED:
                        found.lost[item.table] += item.rows
                    else:
                        found.again[item.source] += item.rows
            pending = []
    except CorruptError:
        found.known = False
    if point.transaction is not None:
        found.ahead = tuple(at.name for at in manifest.progress.sinks if at.delivered > request)
    return found


def replay_to(point: RestorePoint, state: State, sources: Sources, log: Log, rows_max: int) -> None:
    """Replay into a state that was loaded from the checkpoint, up to the restore point."""
    replay = Replay(state, sources, rows_max=rows_max)
    if point.replay_from is not None:
        for recorded in follow(log, point.replay_from):
            draft = recorded.entry.draft
            if point.transaction is not None and draft.transaction > point.transaction:
                break
            replay.feed(recorded)
        replay.finish()
    if point.transaction is not None and state.transaction != point.transaction:
        raise InvalidError(
            f"the journal ends at transaction {state.transaction}, not at {point.transaction}"
        )
