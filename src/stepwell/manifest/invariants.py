"""Invariants between a manifest and the next, checked before every commit.

Each rule is a predicate over (before, after) whose docstring names the race or the mistake it
prevents. The first line of that docstring is part of the error message. A rule that fails is a bug
in Stepwell, detected before it could be stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from stepwell.errors import ensure
from stepwell.journal import paths
from stepwell.manifest.timeline import diverged

if TYPE_CHECKING:
    from stepwell.manifest.manifest import Manifest

Rule = Callable[["Manifest", "Manifest"], bool]


def check_commit(before: Manifest, after: Manifest, revived: Collection[str] = frozenset()) -> None:
    """Check the rules for a holder's commit.

    `revived` holds files that a checkpoint names; the change itself checks that the checkpoint
    still exists.
    """

    def files_are_born_above_the_floor(before: Manifest, after: Manifest) -> bool:
        """A collector may delete, at any time, a file at or below the floor that nothing names."""
        return _born_above_the_floor(before, after, revived)

    _check((same_claim, *_ALWAYS, files_are_born_above_the_floor), before, after)


def check_claim(before: Manifest, after: Manifest) -> None:
    """Check the rules for a claim: it takes the next epoch and changes nothing else."""
    _check((next_epoch, only_claimed, *_ALWAYS), before, after)


def same_lineage(before: Manifest, after: Manifest) -> bool:
    """A pipeline keeps its identity, by which its sinks and journal entries are recognised."""
    return before.lineage == after.lineage


def timelines_only_grow(before: Manifest, after: Manifest) -> bool:
    """A lost timeline makes a history look foreign, and drops checkpoints that are needed."""
    if after.timelines == before.timelines:
        return True
    new, known = after.timelines[-1], {item.id for item in before.timelines}
    fits = new.id not in known and new.since >= before.transaction
    return fits and after.timelines == diverged(before.timelines, new)


def same_claim(before: Manifest, after: Manifest) -> bool:
    """Only a claim changes the holder; otherwise a commit could take over without a fence."""
    return before.claim == after.claim


def next_epoch(before: Manifest, after: Manifest) -> bool:
    """A claim raises the epoch by one, so only one of two claims of an epoch is committed."""
    return after.claim.epoch == before.claim.epoch + 1


def only_claimed(before: Manifest, after: Manifest) -> bool:
    """A claim is made before the journal is read, so it must not change anything else."""
    return replace(before, claim=after.claim) == after


def replay_moves_forward(before: Manifest, after: Manifest) -> bool:
    """A flush that went back would replay entries that the runs already hold."""
    return after.replay.position >= before.replay.position and (
        after.replay.position > before.replay.position or after.replay == before.replay
    )


def transaction_moves_forward(before: Manifest, after: Manifest) -> bool:
    """A transaction's number is assigned once, forever: sinks drop numbers they have seen."""
    return after.transaction >= before.transaction


def replay_epoch_is_known(before: Manifest, after: Manifest) -> bool:
    """An entry that a commit covers was written in an epoch that had been claimed before."""
    return after.replay.epoch <= after.claim.epoch


def journal_is_attached_before_use(before: Manifest, after: Manifest) -> bool:
    """While no journal store is recorded, a lost one could not be noticed."""
    return after.journal.id is not None or after.replay == before.replay


def runs_are_distinct(before: Manifest, after: Manifest) -> bool:
    """A run listed twice would count its rows twice."""
    return _distinct(run.path for run in after.all_runs)


def sources_and_sinks_are_distinct(before: Manifest, after: Manifest) -> bool:
    """Of two positions of one source, one would be read and the other lost."""
    progress = after.progress
    return _distinct(item.name for item in progress.sources) and _distinct(
        item.name for item in progress.sinks
    )


def sinks_move_forward(before: Manifest, after: Manifest) -> bool:
    """A sink that went back would be sent a transaction twice, and a number whose entry changed
    would make the output of another history look like ours.
    """
    held = {item.name: item.held for item in before.progress.sinks}
    return all(
        item.held == held.get(item.name)
        or item.delivered > (0 if (was := held.get(item.name)) is None else was.transaction)
        for item in after.progress.sinks
    )


def outbox_holds_what_is_undelivered(before: Manifest, after: Manifest) -> bool:
    """A file for a sink that has received it, or that does not exist, would be kept forever.

    Output in several files of which one is missing would be delivered in part.
    """
    delivered = {item.name: item.delivered for item in after.progress.sinks}
    files = Counter((item.sink, item.transaction) for item in after.progress.outbox)
    return _distinct(item.path for item in after.progress.outbox) and all(
        item.sink in delivered
        and delivered[item.sink] < item.transaction <= after.transaction
        and files[item.sink, item.transaction] == item.parts
        for item in after.progress.outbox
    )


def marks_are_of_this_pipeline(before: Manifest, after: Manifest) -> bool:
    """A mark of another pipeline would match that of its sink, and be trusted."""
    progress = after.progress
    marks = [item.mark for item in progress.outbox]
    marks += [item.held for item in progress.sinks if item.held is not None]
    return all(mark.lineage == after.lineage for mark in marks)


def checkpoints_are_distinct(before: Manifest, after: Manifest) -> bool:
    """Two checkpoints with the same id could not be distinguished when one is deleted."""
    return _distinct(item.id for item in after.checkpoints)


def floor_moves_forward(before: Manifest, after: Manifest) -> bool:
    """A collector that read the previous version deletes unnamed files up to its floor."""
    return (after.floor or "") >= (before.floor or "")


def checkpoints_are_born_above_the_floor(before: Manifest, after: Manifest) -> bool:
    """A collector may delete an unnamed object at or below the floor at any time."""
    known = {item.id for item in before.checkpoints} | {pin.checkpoint for pin in before.pins}
    new = [item.id for item in after.checkpoints if item.id not in known]
    return all(id > (before.floor or "") for id in new)


def pins_name_what_is_there(before: Manifest, after: Manifest) -> bool:
    """A new pin names an existing checkpoint, which the parent may drop later."""
    known = {item.id for item in before.checkpoints} | {pin.checkpoint for pin in before.pins}
    new = [pin.checkpoint for pin in after.pins if pin not in before.pins]
    return all(checkpoint in known for checkpoint in new)


def pins_are_distinct(before: Manifest, after: Manifest) -> bool:
    """A clone killed and run again must not pin twice: one of the pins would never be freed.

    A copy of a clone has the same lineage, and a pin of its own, for its own address.
    """
    return _distinct(f"{pin.id} {pin.clone}" for pin in after.pins)


def _born_above_the_floor(before: Manifest, after: Manifest, revived: Collection[str]) -> bool:
    """Whether every added run and outbox file is above the floor, or is one of `revived`.

    Files of a clone's parent are pinned there. While a clone is being made, nothing is collected in
    it, and copies keep the names of their originals.
    """
    if before.status == "incomplete" or before.floor is None:
        return True
    known = {*_files(before), *revived}
    new = [path for path in _files(after) if path not in known]
    return all((paths.parse(path).id or "") > before.floor for path in new)


def _files(manifest: Manifest) -> Iterator[str]:
    yield from (run.path for run in manifest.all_runs if run.root is None)
    yield from (item.path for item in manifest.progress.outbox)


def _distinct(values: Iterable[str]) -> bool:
    seen = list(values)
    return len(seen) == len(set(seen))


_ALWAYS: tuple[Rule, ...] = (
    same_lineage,
    timelines_only_grow,
    replay_moves_forward,
    transaction_moves_forward,
    replay_epoch_is_known,
    journal_is_attached_before_use,
    runs_are_distinct,
    sources_and_sinks_are_distinct,
    sinks_move_forward,
    outbox_holds_what_is_undelivered,
    marks_are_of_this_pipeline,
    checkpoints_are_distinct,
    floor_moves_forward,
    checkpoints_are_born_above_the_floor,
    pins_name_what_is_there,
    pins_are_distinct,
)


def _check(rules: tuple[Rule, ...], before: Manifest, after: Manifest) -> None:
    for rule in rules:
        ensure(rule(before, after), f"{rule.__name__}: {(rule.__doc__ or '').splitlines()[0]}")
