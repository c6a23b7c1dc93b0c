"""How far back a restore reaches: every transaction whose entry `journal.keep` promises (K12)."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepwell.engine.restore import Restored, preview, restore
from stepwell.engine.restore_request import RestoreRequest
from stepwell.engine.settings import Settings
from stepwell.errors import CheckpointMissing, CorruptError, UnavailableError
from stepwell.journal import paths
from stepwell.journal.log import Log
from stepwell.manifest.checkpoint import beginning_of, read_checkpoint, retained
from stepwell.manifest.gc import Collector
from stepwell.manifest.gc import Settings as CollectSettings
from stepwell.manifest.history import History
from stepwell.manifest.manifest import CheckpointRef, Manifest, Manifests
from stepwell.manifest.timeline import RESUMED_MAX, Timeline
from stepwell.model import Transaction
from stepwell.store.local import LocalStore
from stepwell.testing import FaultyStore, fail_at
from tests.engine.clones import Family
from tests.engine.doubles import SETTINGS, Feed, World, everything, order

DAY_S = 86400.0
SPARSE = replace(SETTINGS, checkpoint_every_s=1e9)


def keeping(keep_s: float) -> Settings:
    collect = CollectSettings(grace_s=0, journal_keep_s=keep_s, barrier_keep_s=0, history=History())
    return replace(SPARSE, collect=collect)


def latest(world: World) -> Manifest:
    found = Manifests(world.store, world.env).latest()
    assert found is not None
    return found.manifest


def back(world: World, number: int, settings: Settings) -> Restored:
    request = RestoreRequest(transaction=number)
    target = preview(request, world.store, world.store, world.env).point
    return restore(request, target, lambda base: world.open(settings=settings, base=base))


def pushed(world: World, settings: Settings, id: int) -> dict[str, Any]:
    """A process that opens the pipeline, pushes a row and ends, with a checkpoint."""
    pipeline = world.open(settings=settings)
    pipeline.push("orders", [order(id, "ab"[id % 2], id)])
    found = everything(pipeline)
    pipeline.close()
    return found


@pytest.mark.parametrize("wanted", range(6))
@pytest.mark.parametrize("collected", [False, True])
def test_a_run_and_four_pushes_can_all_be_taken_back(wanted: int, collected: bool) -> None:
    """K12, issue 19: two checkpoints are kept, and the journal has every entry; so each of them
    leads somewhere.
    """
    settings = keeping(7 * DAY_S)
    world = World(feeds={"files": Feed("orders").put(order(100), order(101))})
    pipeline = world.open(settings=settings)
    seen = [everything(pipeline)]
    pipeline.run(once=True)
    seen.append(everything(pipeline))
    pipeline.close()
    seen += [pushed(world, settings, id) for id in range(4)]
    if collected:
        Collector(world.store, world.env, settings=settings.collect).collect()
    done = back(world, wanted, settings)
    assert everything(done.pipeline) == seen[wanted]
    assert done.pipeline.transaction_number == 6
    world.check(done.pipeline)


def test_an_untrimmed_journal_leads_everywhere_though_every_checkpoint_is_gone() -> None:
    """K12: the empty beginning counts as a checkpoint; a repair begins there, too."""
    settings = keeping(7 * DAY_S)
    world = World()
    seen = [pushed(world, settings, id) for id in range(4)]
    for ref in latest(world).checkpoints:
        world.store.delete(paths.checkpoint(ref.id))
    done = back(world, 2, settings)
    assert done.point.checkpoint.is_beginning
    assert len(done.point.passed_over) == 1, "what could not be used is named"
    assert everything(done.pipeline) == seen[1]
    world.check(done.pipeline)
    done.pipeline.close()

    world = World()
    seen = [pushed(world, settings, id) for id in range(4)]
    for run in latest(world).runs:
        world.store.delete(run.path)
    target = preview(RestoreRequest(), world.store, world.store, world.env).point
    assert target.checkpoint.is_beginning
    repaired = restore(
        RestoreRequest(), target, lambda base: world.open(settings=settings, base=base)
    )
    assert everything(repaired.pipeline) == seen[-1]
    assert repaired.pipeline.transaction_number == 4
    world.check(repaired.pipeline)
    repaired.pipeline.close()
    assert everything(world.open()) == seen[-1]


def test_another_program_and_a_clone_do_not_begin_empty() -> None:
    """K12: replay from nothing would compute what never was."""
    world = World()
    pushed(world, keeping(7 * DAY_S), 1)
    Manifests(world.store, world.env).amend(lambda m: replace(m, generation=1), "deploy")
    with pytest.raises(CheckpointMissing, match="no checkpoint from which transaction 0") as error:
        preview(RestoreRequest(transaction=0), world.store, world.store, world.env)
    assert "back to the last deploy of tables and views at most" in str(error.value.hint)
    family = Family()
    try:
        family.parent().close()
        family.clone()
        assert beginning_of(family.manifest("parent")) is not None
        assert beginning_of(family.manifest("clone")) is None
    finally:
        family.close()


@pytest.mark.parametrize("seed", range(6))
def test_every_transaction_that_the_journal_keeps_can_be_restored(seed: int) -> None:
    """K12: whatever was checkpointed, collected and restored, for weeks; few checkpoints stay."""
    dice = random.Random(seed)
    keep_s = dice.choice([6 * 3600.0, DAY_S, 5 * DAY_S])
    settings = keeping(keep_s)
    world = World(views={})
    pipeline = world.open(settings=settings)
    seen = {0: everything(pipeline)}
    times = {0: world.env.now()}
    for id in range(90):
        world.env.advance(dice.choice([60, 1800, 3600, 5 * 3600, DAY_S]))
        match dice.choice(
            ["push", "push", "checkpoint", "checkpoint", "reopen", "collect", "back"]
        ):
            case "push":
                pipeline.push("orders", [order(id, "ab"[id % 2], id)])
            case "checkpoint":
                pipeline.checkpoint()
            case "reopen":
                pipeline.close()
                pipeline = world.open(settings=settings)
            case "collect":
                Collector(world.store, world.env, settings=settings.collect).collect()
            case "back" if dice.random() < 0.4:
                young = [
                    n for n, at in times.items() if world.env.now() - at < timedelta(seconds=keep_s)
                ]
                if young:
                    pipeline.restore(transaction=dice.choice(young))
        number = pipeline.transaction_number
        if number not in seen:
            seen[number], times[number] = everything(pipeline), world.env.now()
        assert len(latest(world).checkpoints) < 2 + 25 + 8 + len(latest(world).timelines)
    pipeline.close()
    Collector(world.store, world.env, settings=settings.collect).collect()
    young = [n for n, at in times.items() if world.env.now() - at < timedelta(seconds=keep_s)]
    for number in young:
        target = preview(
            RestoreRequest(transaction=number), world.store, world.store, world.env
        ).point
        assert number in (target.transaction, target.checkpoint.state.transaction) or (
            target.transaction is None and number == latest(world).transaction
        )
    for number in dice.sample(young, min(3, len(young))):
        done = back(world, number, settings)
        assert everything(done.pipeline) == seen[number]
        done.pipeline.close()
    if keep_s < 5 * DAY_S:
        assert Log(world.store).trimmed() > 0, "old entries do go"


def test_what_came_after_a_restore_can_be_reached() -> None:
    """K12: the journal does not lead over a restore, so its own checkpoint stays."""
    settings = keeping(7 * DAY_S)
    world = World()
    for id in range(3):
        pushed(world, settings, id)
    pipeline = world.open(settings=settings)
    pipeline.restore(transaction=1)
    seen = {4: everything(pipeline)}
    for id in range(5, 11):
        world.env.advance(60)
        pipeline.push("orders", [order(id)])
        seen[id] = everything(pipeline)
        pipeline.checkpoint()
    pipeline.close()
    for wanted in (4, 5, 6):
        done = back(world, wanted, settings)
        assert everything(done.pipeline) == seen[wanted]
        done.pipeline.close()


def test_a_directory_whose_mark_changes_at_every_start_keeps_no_more_than_another(
    tmp_path: Path,
) -> None:
    """F13, K12: `chown -R` in an entrypoint, a mount with unstable inodes; nothing was restored."""
    settings = keeping(7 * DAY_S)

    def restarted(name: str, *, changes: bool) -> tuple[World, list[dict[str, Any]]]:
        world = World()
        world.store = LocalStore(str(tmp_path / name), world.env)
        seen = []
        for id in range(40):
            seen.append(pushed(world, settings, id))
            world.env.advance(60)
            if changes:
                os.utime(tmp_path / name / paths.PLACE)
        return world, seen

    same, _ = restarted("same", changes=False)
    world, seen = restarted("changing", changes=True)
    assert len(latest(same).timelines) == 1
    assert 1 < len(latest(world).timelines) <= RESUMED_MAX + 1
    assert len(latest(world).checkpoints) == len(latest(same).checkpoints)
    for number in (2, 20, 39):
        done = back(world, number, settings)
        assert everything(done.pipeline) == seen[number - 1]
        world.check(done.pipeline)
        done.pipeline.close()
    assert len([item for item in latest(world).timelines if not item.resumed]) == 4


def test_a_sink_that_was_down_through_many_timelines_continues(tmp_path: Path) -> None:
    """F13, J16: marks decide, and no list of timelines: also for one that was forgotten."""
    world = World()
    world.store = LocalStore(str(tmp_path / "one"), world.env)
    pushed(world, SPARSE, 0)
    os.utime(tmp_path / "one" / paths.PLACE)
    pushed(world, SPARSE, 1)
    held, world.down = latest(world).timeline, {"revenue"}
    for id in range(2, 2 * RESUMED_MAX):
        os.utime(tmp_path / "one" / paths.PLACE)
        pushed(world, SPARSE, id)
        world.env.advance(60)
    assert held not in {item.id for item in latest(world).timelines}
    world.down = set()
    pipeline = world.open(settings=SPARSE)
    pipeline.push("orders", [order(90)])
    world.check(pipeline)
    pipeline.close()


def refs(*hours_ago: float, since: World) -> tuple[CheckpointRef, ...]:
    now = since.env.now()
    return tuple(
        CheckpointRef(
            since.env.new_id(),
            Transaction(number + 1),
            now - timedelta(hours=hours),
            1,
            latest(since).replay.checksum,
        )
        for number, hours in enumerate(hours_ago)
    )


def test_checkpoints_are_thinned_out_with_age() -> None:
    """K12: hourly for a day, then daily, and one that is older than the journal reaches."""
    world = World()
    world.open().close()
    hours = sorted((n / 4 for n in range(1, 4 * 24 * 12)), reverse=True)
    manifest = replace(
        latest(world), checkpoints=refs(*hours, since=world), timelines=(Timeline(""),)
    )
    now = world.env.now()
    kept = retained(manifest, 2, now, 7 * DAY_S)
    ages = [(now - item.created).total_seconds() / 3600 for item in kept]
    assert sum(age > 7 * 24 for age in ages) == 1
    assert 6 <= sum(24 <= age <= 7 * 24 for age in ages) <= 8
    assert 23 <= sum(age < 24 for age in ages) <= 26
    again = retained(replace(manifest, checkpoints=kept), 2, now, 7 * DAY_S)
    assert again == kept, "what was thinned out once stays"
    assert len(retained(manifest, 2, now)) == 1
    restored = replace(manifest, timelines=(Timeline("A"), Timeline("B", Transaction(1100))))
    extra = {item.transaction for item in retained(restored, 2, now, 7 * DAY_S)} - {
        item.transaction for item in kept
    }
    assert extra <= {1101}
    two = (Timeline("A"), Timeline("B", Transaction(1100), resumed=True))
    assert retained(replace(manifest, timelines=two), 2, now, 7 * DAY_S) == kept


def test_a_flipped_byte_in_the_newest_checkpoint_is_passed_over() -> None:
    """K9, K12, scenario 95: by contents, not by size; for a restore to a transaction, too."""
    settings = keeping(7 * DAY_S)
    world = World()
    seen = [pushed(world, settings, id) for id in range(4)]
    newest = latest(world).checkpoints[-1]
    own = {run.path for run in read_checkpoint(world.store, newest.id).state.runs}
    for ref in latest(world).checkpoints[:-1]:
        own -= {run.path for run in read_checkpoint(world.store, ref.id).state.runs}
    assert own
    for path in own:
        found = world.store.get(path)
        assert found is not None
        world.store.delete(path)
        middle = len(found.data) // 2
        flipped = bytes([found.data[middle] ^ 1])
        world.store.put_new(path, found.data[:middle] + flipped + found.data[middle + 1 :])
    with pytest.raises(CorruptError, match="checksum"):
        preview(RestoreRequest(checkpoint=newest.id), world.store, world.store, world.env)
    target = preview(RestoreRequest(transaction=4), world.store, world.store, world.env).point
    ((name, why), *_) = target.passed_over
    assert newest.id in name
    assert "was changed: its checksum is" in why
    done = restore(RestoreRequest(), target, lambda base: world.open(settings=settings, base=base))
    assert everything(done.pipeline) == seen[-1]
    world.check(done.pipeline)


def test_a_store_that_does_not_answer_is_not_damage() -> None:
    """F10: an outage must not make a restore go back further than it was asked to."""
    settings = keeping(7 * DAY_S)
    world = World()
    for id in range(3):
        pushed(world, settings, id)
    counting = FaultyStore(world.store)
    preview(RestoreRequest(transaction=3), counting, world.store, world.env)
    failed = 0
    for call in counting.calls:
        faulty = FaultyStore(world.store, fail_at(call.number, "before"))
        with pytest.raises(UnavailableError):
            preview(RestoreRequest(transaction=3), faulty, world.store, world.env)
        failed += 1
    assert failed > 4


def test_a_restore_reads_no_file_twice_and_none_of_a_checkpoint_that_leads_nowhere() -> None:
    """K9: what costs nothing is asked first, and checkpoints share most of their files."""
    world = World()
    for id in range(4):
        pushed(world, keeping(7 * DAY_S), id)
    for ref in latest(world).checkpoints:
        for file in read_checkpoint(world.store, ref.id).files:
            if file.path == max(f.path for f in read_checkpoint(world.store, ref.id).files):
                world.store.delete(file.path)
    counting = FaultyStore(world.store)
    preview(RestoreRequest(transaction=4), counting, world.store, world.env)
    reads = [call.path for call in counting.calls if call.operation == "get_range"]
    assert reads
    assert len(reads) == len(set(reads))
    nowhere = FaultyStore(world.store)
    with pytest.raises(CheckpointMissing):
        preview(RestoreRequest(transaction=99), nowhere, world.store, world.env)
    assert not [call for call in nowhere.calls if call.operation == "get_range"]
