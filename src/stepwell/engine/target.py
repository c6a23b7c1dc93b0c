"""Restoring: from which checkpoint, how far along the journal, what is undone, what sinks get.

A restore never turns the transaction number back (`docs/design/0013`). Going back to transaction 40
from 100 is transaction 101: its state is that of 40, and each sink is sent the exact difference. A
large one comes in parts, under as many numbers, and the last of them is the restored state.
Repairing starts from a checkpoint instead of the manifest's runs, and replays the journal to its
end: nothing is undone. Both are one commit to the manifest, made by `Core`; a crash before it
leaves the pipeline as it was.
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
    StepwellError,
    TruncatedError,
    UnavailableError,
)
from stepwell.journal.entry import Cursor, Kind, Recorded
from stepwell.journal.log import JournalReader, Log
from stepwell.model import Transaction, format_time
from stepwell.state.checkpoint import (
    Checkpoint,
    Sums,
    beginning_of,
    check_contents,
    find_checkpoint,
    read_checkpoint,
)
from stepwell.state.manifest import CheckpointRef, Manifest
from stepwell.state.runs import store_of
from stepwell.store.base import Store


@dataclass(frozen=True, slots=True)
class Goal:
    """What a person asked for; nothing of it: repair."""

    checkpoint: str | None = None
    transaction: int | None = None
    time: datetime | None = None

    @property
    def repairs(self) -> bool:
        return self.checkpoint is None and self.transaction is None and self.time is None


PassedOver = tuple[str, str]
"""What could not be used, and why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A checkpoint, and how far to follow the journal after it."""

    checkpoint: Checkpoint
    transaction: Transaction | None
    """The last transaction to hold; None: as far as the journal goes, a repair."""
    replay_from: Cursor | None = None
    """Where the journal is followed from; None: nothing is replayed."""
    passed_over: tuple[PassedOver, ...] = ()
    """Newer checkpoints that would have been used, and why they cannot be (K9)."""


@dataclass(slots=True)
class Undone:
    """What a restore takes back."""

    present: Transaction
    """The pipeline's last transaction before it."""
    known: bool = True
    """False: part of the journal after the target is gone, so the counts are too small."""
    again: Counter[str] = field(default_factory=Counter)
    """Rows by source that will be read again, as new transactions."""
    lost: Counter[str] = field(default_factory=Counter)
    """Pushed rows by table."""
    ahead: tuple[str, ...] = ()
    """Sinks that hold more than the target."""


def choose(goal: Goal, store: Store, log: Log, manifest: Manifest, env: Env) -> Target:
    """The newest whole checkpoint from which the goal can be reached.

    Whole is one whose files have the bytes that were written: all of them are read (K9). Where no
    checkpoint leads to the goal, and the journal was never trimmed, it is followed from its first
    entry. The last resort is a checkpoint that lacks only output for a sink, which is let go.
    `CheckpointMissing` if there is no way; what was passed over is named.
    """
    if goal.checkpoint is not None:
        ref = find_checkpoint(manifest, goal.checkpoint, store.uri)
        found = _inspect(ref, store, env, {}, lambda checkpoint: None)
        if found.checkpoint is None:
            raise CorruptError(f"checkpoint {ref.name or ref.id}", found.problem, hint=_OTHERS)
        if found.checkpoint.state.program != manifest.program:
            raise InvalidError(f"checkpoint {ref.name or ref.id}: {_OTHER_PROGRAM}", hint=_OTHERS)
        return Target(found.checkpoint, ref.transaction)
    passed: list[PassedOver] = []
    spare: list[Target] = []
    sums: Sums = {}
    ways: dict[str, Target] = {}

    def excluded(checkpoint: Checkpoint) -> str | None:
        """Why a checkpoint does not lead to the goal, whole or not; None: it does."""
        if checkpoint.state.generation != manifest.generation:
            return _OTHER_PROGRAM
        way = _follow(goal, checkpoint, log, manifest)
        if isinstance(way, str):
            return way
        ways[checkpoint.id] = way
        return None

    for ref in sorted(manifest.checkpoints, key=lambda ref: ref.id, reverse=True):
        if goal.transaction is not None and ref.transaction > goal.transaction:
            continue
        if goal.time is not None and ref.created > goal.time:
            continue
        found = _inspect(ref, store, env, sums, excluded)
        if found.checkpoint is not None and not found.problem:
            return replace(ways[found.checkpoint.id], passed_over=tuple(passed))
        passed.append((_named(ref), found.problem))
        if found.checkpoint is not None:
            spare.append(ways[found.checkpoint.id])
    beginning = beginning_of(manifest)
    if beginning is not None and (goal.time is None or beginning.created <= goal.time):
        way = _follow(goal, beginning, log, manifest)
        if not isinstance(way, str):
            return replace(way, passed_over=tuple(passed))
        passed.append(("the beginning of the journal", way))
    if spare:
        return replace(spare[0], passed_over=tuple(passed))
    told = "; ".join(f"{name}: {why}" for name, why in passed)
    raise CheckpointMissing(
        f"{store.uri} has no checkpoint from which {_told(goal)} can be reached"
        + (f" ({told})" if told else ""),
        hint="stepwell checkpoint list shows those that are kept",
    )


def _named(ref: CheckpointRef) -> str:
    return f"checkpoint {ref.name or ref.id}"


def _follow(goal: Goal, checkpoint: Checkpoint, log: Log, manifest: Manifest) -> Target | str:
    """The way from a checkpoint to the goal, or why there is none."""
    try:
        reach = _reach(goal, checkpoint, log, manifest)
    except _ShortError as short:
        return str(short)
    except TruncatedError as error:
        return error.message
    return Target(checkpoint, reach, _start(checkpoint, reach, manifest))


_OTHER_PROGRAM = "its tables and views are not those the pipeline has now"
_OTHERS = "stepwell checkpoint list shows the others; without --checkpoint the newest whole one"


class _ShortError(Exception):
    """The journal ends before the goal."""


def _told(goal: Goal) -> str:
    if goal.transaction is not None:
        return f"transaction {goal.transaction}"
    return "the end of the journal" if goal.time is None else format_time(goal.time)


@dataclass(frozen=True, slots=True)
class _Inspected:
    checkpoint: Checkpoint | None
    """None: it cannot be used."""
    problem: str = ""
    """What is damaged; if it can be used all the same, output that a sink has not received."""


def _inspect(
    ref: CheckpointRef,
    store: Store,
    env: Env,
    sums: Sums,
    excluded: Callable[[Checkpoint], str | None],
) -> _Inspected:
    """Is a checkpoint whole, by the contents of its files? They are not read if it is excluded."""
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
        raise  # A store that does not answer says nothing about the checkpoint (F10).
    except StepwellError as error:
        return _Inspected(None, error.message)
    if not damaged:
        return _Inspected(checkpoint)
    first, more = damaged[0], len(damaged) - 1
    problem = f"{first.where} {first.what}" + (f", and {more} more files" if more else "")
    runs = {run.path for run in checkpoint.state.all_runs}
    usable = not any(item.file.path in runs for item in damaged)
    return _Inspected(checkpoint if usable else None, problem)


def _reach(goal: Goal, checkpoint: Checkpoint, log: Log, manifest: Manifest) -> Transaction | None:
    """How far the journal has to be followed; `_ShortError` if it does not go so far."""
    state = checkpoint.state
    if goal.transaction == state.transaction:
        return state.transaction
    if goal.repairs and state.transaction == manifest.transaction:
        return None
    last = state.transaction
    restored = manifest.transaction
    later = False
    for recorded in follow(log, state.replay):
        draft = recorded.entry.draft
        if goal.time is not None and draft.time > goal.time:
            later = True
            break
        if draft.closes:
            # A number is missing where a restore lies between: its own checkpoint leads on.
            if draft.transaction != last + 1:
                restored = Transaction(draft.transaction - 1)
                break
            last = draft.transaction
        if last == goal.transaction:
            return last
    if goal.time is not None:
        # Of a restore there is no entry: when it was is known by its checkpoint only.
        later = later or last >= manifest.transaction
        next_one = [ref.created for ref in manifest.checkpoints if ref.transaction == restored]
        if not later and not any(created > goal.time for created in next_one):
            raise _ShortError(
                f"the journal leads from there to transaction {last}, not to the time"
            )
        return last
    wanted = manifest.transaction if goal.transaction is None else goal.transaction
    if last < wanted:
        raise _ShortError(f"the journal leads from there to transaction {last}, not to {wanted}")
    return None


def _start(checkpoint: Checkpoint, reach: Transaction | None, manifest: Manifest) -> Cursor | None:
    state = checkpoint.state
    if state.transaction == reach:
        return None
    # Between two states of one transaction lie barriers at most, which may be trimmed.
    return manifest.replay if state.transaction == manifest.transaction else state.replay


def follow(log: Log, start: Cursor) -> Iterator[Recorded]:
    """The entries after a place, to the end of the journal."""
    reader = JournalReader(log, start)
    while entries := reader.poll():
        yield from entries


def undone(target: Target, log: Log, manifest: Manifest) -> Undone:
    """What is lost and what comes again, read from the journal; nothing is changed."""
    state = target.checkpoint.state
    closed = [item.entry.draft for item in follow(log, manifest.replay) if item.entry.draft.closes]
    found = Undone(present=max([manifest.transaction, *(draft.transaction for draft in closed)]))
    goal = state.transaction if target.transaction is None else target.transaction
    pending: list[Recorded] = []
    try:
        for recorded in follow(log, target.replay_from or state.replay):
            draft = recorded.entry.draft
            if draft.kind is Kind.ABORT:
                pending = []
            pending.append(recorded)
            if not draft.closes:
                continue
            if target.transaction is not None and draft.transaction > goal:
                for item in (item for step in pending for item in step.entry.draft.inputs):
                    if not item.rows:
                        continue  # The key of a transaction.
                    if item.source == PUSHED:
                        found.lost[item.table] += item.rows
                    else:
                        found.again[item.source] += item.rows
            pending = []
    except CorruptError:
        found.known = False
    if target.transaction is not None:
        found.ahead = tuple(at.name for at in manifest.progress.sinks if at.delivered > goal)
    return found


def replay_to(target: Target, state: State, sources: Sources, log: Log, rows_max: int) -> None:
    """Feed a state that was loaded from the target's checkpoint, up to its transaction."""
    replay = Replay(state, sources, rows_max=rows_max)
    if target.replay_from is not None:
        for recorded in follow(log, target.replay_from):
            draft = recorded.entry.draft
            if target.transaction is not None and draft.transaction > target.transaction:
                break
            replay.feed(recorded)
        replay.finish()
    if target.transaction is not None and state.transaction != target.transaction:
        raise InvalidError(
            f"the journal leads to transaction {state.transaction}, not to {target.transaction}"
        )
