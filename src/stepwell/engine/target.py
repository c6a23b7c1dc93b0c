"""Restoring: from which checkpoint, how far along the journal, what is undone, what sinks get.

A restore never turns the transaction number back (`docs/design/0013`). Going back to transaction 40
from 100 is transaction 101: its state is that of 40, and each sink is sent the exact difference.
Repairing starts from a checkpoint instead of the manifest's runs, and replays the journal to its
end: nothing is undone. Both are one commit to the manifest, made by `Core`; a crash before it
leaves the pipeline as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.engine.checksum import row_hashes
from stepwell.engine.payload import PUSHED
from stepwell.engine.ports import WEIGHT
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
)
from stepwell.journal.entry import Cursor, Kind, Recorded
from stepwell.journal.log import JournalReader, Log
from stepwell.model import Transaction, format_time
from stepwell.state.checkpoint import (
    Checkpoint,
    check_files,
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


@dataclass(frozen=True, slots=True)
class Target:
    """A checkpoint, and how far to follow the journal after it."""

    checkpoint: Checkpoint
    transaction: Transaction | None
    """The last transaction to hold; None: as far as the journal goes, a repair."""
    passed_over: tuple[tuple[CheckpointRef, str], ...] = ()
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

    `CheckpointMissing` if there is none; damaged ones on the way are named.
    """
    if goal.checkpoint is not None:
        ref = find_checkpoint(manifest, goal.checkpoint, store.uri)
        why = _why_not(ref, store, env)
        if why is not None:
            raise CorruptError(f"checkpoint {ref.name or ref.id}", why, hint=_OTHERS)
        checkpoint = read_checkpoint(store, ref.id, ref)
        if checkpoint.state.program != manifest.program:
            raise InvalidError(f"checkpoint {ref.name or ref.id}: {_OTHER_PROGRAM}", hint=_OTHERS)
        return Target(checkpoint, ref.transaction)
    passed: list[tuple[CheckpointRef, str]] = []
    for ref in sorted(manifest.checkpoints, key=lambda ref: ref.id, reverse=True):
        if goal.transaction is not None and ref.transaction > goal.transaction:
            continue
        if goal.time is not None and ref.created > goal.time:
            continue
        why = _why_not(ref, store, env)
        if why is None:
            checkpoint = read_checkpoint(store, ref.id, ref)
            if checkpoint.state.program != manifest.program:
                passed.append((ref, _OTHER_PROGRAM))
                continue
            try:
                return Target(checkpoint, _reach(goal, checkpoint, log, manifest), tuple(passed))
            except _ShortError as short:
                why = str(short)
            except TruncatedError as error:
                why = error.message
        passed.append((ref, why))
    told = "; ".join(f"{ref.name or ref.id}: {why}" for ref, why in passed)
    raise CheckpointMissing(
        f"{store.uri} has no checkpoint from which {_told(goal)} can be reached"
        + (f" ({told})" if told else ""),
        hint="stepwell checkpoint list shows those that are kept",
    )


_OTHER_PROGRAM = "its tables and views are not those the pipeline has now"
_OTHERS = "stepwell checkpoint list shows the others; without --checkpoint the newest whole one"


class _ShortError(Exception):
    """The journal ends before the goal."""


def _told(goal: Goal) -> str:
    if goal.transaction is not None:
        return f"transaction {goal.transaction}"
    return "the end of the journal" if goal.time is None else format_time(goal.time)


def _why_not(ref: CheckpointRef, store: Store, env: Env) -> str | None:
    """What is wrong with a checkpoint, by its list of files."""
    try:
        checkpoint = read_checkpoint(store, ref.id, ref)
        damaged = check_files(checkpoint.files, lambda root: store_of(store, root, env))
    except StepwellError as error:
        return error.message
    if not damaged:
        return None
    first, more = damaged[0], len(damaged) - 1
    return f"{first.where} {first.what}" + (f", and {more} more files" if more else "")


def _reach(goal: Goal, checkpoint: Checkpoint, log: Log, manifest: Manifest) -> Transaction | None:
    """How far the journal has to be followed; `_ShortError` if it does not go so far."""
    state = checkpoint.state
    if goal.transaction == state.transaction:
        return state.transaction
    last = state.transaction
    for recorded in follow(log, state.replay):
        draft = recorded.entry.draft
        if goal.time is not None and draft.time > goal.time:
            break
        if draft.closes:
            # A number is missing where a restore lies between: its own checkpoint leads on.
            if draft.transaction != last + 1:
                break
            last = draft.transaction
        if last == goal.transaction:
            return last
    if goal.transaction is not None or (goal.repairs and last < manifest.transaction):
        wanted = goal.transaction or manifest.transaction
        raise _ShortError(f"the journal leads from there to transaction {last}, not to {wanted}")
    return None if goal.repairs else last


def follow(log: Log, start: Cursor) -> Iterator[Recorded]:
    """The entries after a place, to the end of the journal."""
    reader = JournalReader(log, start)
    while entries := reader.poll():
        yield from entries


def undone(target: Target, log: Log, manifest: Manifest) -> Undone:
    """What is lost and what comes again, read from the journal; nothing is changed."""
    state = target.checkpoint.state
    found = Undone(present=manifest.transaction)
    goal = state.transaction if target.transaction is None else target.transaction
    pending: list[Recorded] = []
    try:
        for recorded in follow(log, state.replay):
            draft = recorded.entry.draft
            pending = [] if draft.kind is Kind.ABORT else [*pending, recorded]
            if not draft.closes:
                continue
            found.present = max(found.present, draft.transaction)
            if target.transaction is not None and draft.transaction > goal:
                for item in (item for step in pending for item in step.entry.draft.inputs):
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
    if state.transaction != target.transaction:
        for recorded in follow(log, target.checkpoint.state.replay):
            draft = recorded.entry.draft
            if target.transaction is not None and draft.transaction > target.transaction:
                break
            replay.feed(recorded)
        replay.finish()
    if target.transaction is not None and state.transaction != target.transaction:
        raise InvalidError(
            f"the journal leads to transaction {state.transaction}, not to {target.transaction}"
        )


def difference(before: pa.Table, after: pa.Table) -> pa.Table:
    """What turns one picture of a view into another: a change set."""
    rows = pa.concat_tables([before, after.cast(before.schema)])
    weights = [-1] * before.num_rows + [1] * after.num_rows
    one, two = row_hashes(rows)
    number = pa.array(range(rows.num_rows), pa.int64())
    known = pa.table([one, two, pa.array(weights, pa.int64()), number], ["a", "b", "w", "n"])
    summed = known.group_by(["a", "b"]).aggregate([("w", "sum"), ("n", "min")])
    summed = summed.filter(pc.not_equal(summed["w_sum"], 0)).sort_by("n_min")
    return rows.take(summed["n_min"]).append_column(WEIGHT, summed["w_sum"])
