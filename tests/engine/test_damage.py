"""Every object of a small pipeline, damaged in turn: found, named, and never believed.

For each damage: `verify --deep` finds it; opening either fails with an error of ours or answers
rightly; collection deletes nothing that the undamaged pipeline needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import pytest

from stepwell.engine.pipeline import Pipeline
from stepwell.errors import (
    CorruptError,
    InvalidError,
    JournalStoreMismatch,
    StepwellError,
    TruncatedError,
)
from stepwell.journal import paths
from stepwell.journal.log import Log
from stepwell.manifest.checkpoint import files_of, read_checkpoint
from stepwell.manifest.gc import Collector
from stepwell.manifest.gc import Settings as CollectSettings
from stepwell.manifest.history import History
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.manifest.verify import Finding, verify
from stepwell.store.memory import MemoryStore
from stepwell.testing import FaultyStore
from tests.engine.doubles import SETTINGS, World, click, everything, order

Objects = dict[str, tuple[bytes, str, datetime]]
AT_ONCE = CollectSettings(
    grace_s=0, journal_keep_s=0, barrier_keep_s=0, history=History(versions=2)
)


def build(*, closed: bool) -> World:
    """A pipeline with runs, three checkpoints (one by name), undelivered output and a journal."""
    world = World()
    pipeline = world.open()
    pipeline.push("orders", [order(1, "a", 5), order(2, "b", 7)])
    pipeline.push("clicks", [click("a")])
    pipeline.checkpoint("first")
    world.sinks["revenue"].down = True
    pipeline.push("orders", [order(3, "a", 1)])
    pipeline.checkpoint()
    pipeline.push("orders", [order(4, "b", 2)])
    pipeline.checkpoint()
    world.env.advance(1)
    Collector(world.store, world.env, settings=AT_ONCE).collect()
    pipeline.push("clicks", [click("b", "/x")])
    if closed:
        pipeline.close()
    return world


@pytest.fixture(scope="module", params=[True, False], ids=["closed", "killed"])
def whole(request: pytest.FixtureRequest) -> tuple[World, Objects, dict[str, object]]:
    world = build(closed=request.param)
    objects = dict(memory(world)._objects)
    rows = everything(reopened(world))
    memory(world)._objects = dict(objects)
    return world, objects, rows


def memory(world: World) -> MemoryStore:
    assert isinstance(world.store, MemoryStore)
    return world.store


def reopened(world: World) -> Pipeline:
    """Opened without the sinks, whose state is another matter."""
    return world.open(sinks={})


def latest(world: World) -> Manifest:
    found = Manifests(world.store, world.env).latest()
    assert found is not None
    return found.manifest


def needed(world: World) -> set[str]:
    """What the pipeline names, now or when a checkpoint is restored."""
    manifest = latest(world)
    states = [read_checkpoint(world.store, ref.id, ref).state for ref in manifest.checkpoints]
    names = {file.path for state in (manifest, *states) for file in files_of(state)}
    return names | {paths.checkpoint(ref.id) for ref in manifest.checkpoints}


def damages(objects: Objects) -> Iterator[tuple[str, Objects]]:
    """Every single fault: its name, and the store with it."""
    names = sorted(objects)
    for path in names:
        data, etag, when = objects[path]
        yield f"delete {path}", {name: objects[name] for name in names if name != path}
        yield f"truncate {path}", {**objects, path: (data[: len(data) // 2], etag, when)}
        for place in {0, len(data) // 3, len(data) // 2, len(data) - 1}:
            flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            yield f"flip byte {place} of {path}", {**objects, path: (flipped, etag, when)}
    for first, second in pairwise(names):
        if objects[first][0] != objects[second][0]:
            yield (
                f"swap {first} and {second}",
                {**objects, first: objects[second], second: objects[first]},
            )


def unseen(name: str, world: World, objects: Objects) -> bool:
    """Losses that leave no trace: the last entry of a journal that was not closed, a barrier that
    is behind the boundary, and the notes of collectors next to the journal."""
    last = max(path for path in objects if paths.parse(path).kind == "entry")
    trimmed = Log(world.store, latest(world).lineage).trimmed()
    kept = [p for p in objects if paths.parse(p).kind == "entry" and p <= paths.entry(trimmed)]
    if name == f"delete {last}":
        return not latest(world).journal.closed
    return name in {f"delete {path}" for path in (*kept, paths.WATCH, paths.BARRIERS)}


def test_every_single_damage_is_found_never_believed_and_never_leads_to_a_deletion(
    whole: tuple[World, Objects, dict[str, object]],
) -> None:
    """K2, K3, K6, K7, K11: delete, truncate, flip, swap: each object in turn."""
    world, objects, rows = whole
    store = memory(world)
    store._objects = dict(objects)
    wanted = needed(world)
    assert {paths.parse(path).kind for path in wanted} == {"run", "checkpoint", "outbox"}
    assert verify(store, world.env, deep=True).findings == ()
    expired = {d.path for d in Collector(store, world.env, settings=AT_ONCE).plan().garbage}
    missed, wrong = [], []
    refused = count = 0
    for name, damaged in damages(objects):
        store._objects = dict(objects)
        if unseen(name, world, objects):
            continue
        count += 1
        store._objects = dict(damaged)
        rubbish = any(path in name for path in expired)
        if not found(store, world) and not rubbish:
            missed.append(name)
        try:
            Collector(store, world.env, settings=AT_ONCE).collect()
        except (CorruptError, InvalidError):
            assert store._objects == damaged, f"{name}: something was deleted anyway"
        gone = set(damaged) - set(store._objects)
        assert not gone & wanted, f"{name}: {gone & wanted} was deleted"
        assert gone <= expired | {path for path in damaged if "manifest/" in path}, name
        store._objects = dict(damaged)
        try:
            answers = everything(reopened(world))
        except (CorruptError, InvalidError):
            refused += 1
        else:
            if answers != rows:
                wrong.append(name)
    store._objects = dict(objects)
    assert not missed, f"not found: {missed}"
    assert not wrong, f"believed: {wrong}"
    assert count > 100
    assert count > refused > 20


def found(store: MemoryStore, world: World) -> tuple[Finding, ...]:
    return verify(store, world.env, deep=True).findings


# Each kind of damage has a message of its own (K6)


def message(world: World) -> StepwellError:
    with pytest.raises(StepwellError) as caught:
        reopened(world)
    return caught.value


def newest_run(world: World) -> str:
    return latest(world).runs[-1].path


def flip(world: World, path: str) -> None:
    data, etag, when = memory(world)._objects[path]
    at = len(data) // 2
    memory(world)._objects[path] = (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], etag, when)


def lose_the_manifest(world: World) -> str:
    path = paths.manifest(Manifests(world.store, world.env).latest_id() or 0)
    world.store.delete(path)
    return path


def lose_a_run(world: World) -> str:
    path = newest_run(world)
    world.store.delete(path)
    return path


def resize_a_run(world: World) -> str:
    path = newest_run(world)
    data, etag, when = memory(world)._objects[path]
    memory(world)._objects[path] = (data + b"x", etag, when)
    return path


def flip_a_page(world: World) -> str:
    path = newest_run(world)
    flip(world, path)
    return path


KINDS: dict[str, tuple[Callable[[World], str], type[StepwellError], str]] = {
    "manifest lost": (lose_the_manifest, TruncatedError, "the manifest is lost"),
    "run missing": (lose_a_run, TruncatedError, "missing"),
    "run resized": (resize_a_run, CorruptError, "bytes, not"),
    "page flipped": (flip_a_page, CorruptError, "expected checksum"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_opening_says_what_is_damaged_and_how_to_continue(kind: str) -> None:
    """K6: told apart, by object, with the next command; and nobody was fenced for it."""
    world = build(closed=True)
    epoch = latest(world).claim.epoch
    damage, error, text = KINDS[kind]
    path = damage(world)
    caught = message(world)
    assert isinstance(caught, error)
    assert path in caught.message
    assert text in caught.message
    assert "stepwell restore" in (caught.hint or "")
    if kind in ("run missing", "run resized"):
        assert latest(world).claim.epoch == epoch, "asked before the claim"


def test_every_missing_file_is_named() -> None:
    """K6: one message for all, so that they can be looked for together."""
    world = build(closed=True)
    gone = [run.path for run in latest(world).runs]
    for path in gone:
        world.store.delete(path)
    text = message(world).message
    assert len(gone) > 2
    assert all(path in text for path in gone)


def test_a_checkpoint_that_is_damaged_stops_collection_by_its_name_and_not_the_pipeline() -> None:
    """K3, K9: the pipeline opens; gc and verify name the checkpoint, and how to let it go."""
    world = build(closed=True)
    ref = latest(world).checkpoints[0]
    flip(world, paths.checkpoint(ref.id))
    with pytest.raises(CorruptError, match=ref.id):
        Collector(world.store, world.env, settings=AT_ONCE).collect()
    (finding,) = found(memory(world), world)
    assert paths.checkpoint(ref.id) in finding.object
    assert "when checkpoint first is restored" in finding.matters
    assert f"stepwell checkpoint delete {ref.id}" in finding.repair
    pipeline = reopened(world)
    pipeline.delete_checkpoint("first")
    pipeline.close()
    assert found(memory(world), world) == ()


def test_an_entry_missing_in_the_middle_is_said_before_the_claim() -> None:
    """K6: what comes behind it is not buried by a barrier."""
    world = build(closed=False)
    pipeline = reopened(world)
    for page in "123":
        pipeline.push("clicks", [click("c", page)])
    middle = paths.entry(Manifests(world.store, world.env).latest().manifest.replay.next)  # type: ignore[union-attr]
    world.store.delete(middle)
    before = dict(memory(world)._objects)
    caught = message(world)
    assert isinstance(caught, TruncatedError)
    assert middle in caught.message
    assert memory(world)._objects == before
    findings = found(memory(world), world)
    assert any(middle in item.object and "opened" in item.matters for item in findings)


def test_a_journal_store_that_was_swapped_is_said_before_the_claim() -> None:
    """K6, scenario 70: another pipeline's journal, at open and by verify."""
    world, other = World(), World()
    journal, swapped = MemoryStore(world.env, "one"), MemoryStore(world.env, "two")
    world.open(journal_store=journal).push("clicks", [click("a")])
    other.env.advance(5)
    other.open(journal_store=swapped).push("clicks", [click("b")])
    with pytest.raises(JournalStoreMismatch, match="another pipeline"):
        world.open(journal_store=swapped)
    (finding,) = verify(world.store, world.env, journal_store=swapped).findings
    assert "another pipeline" in finding.what


def test_the_high_water_mark_is_raised_by_checkpoints_and_at_the_end() -> None:
    """K6: without it, the loss of the latest manifest would go unseen."""
    world = World()
    pipeline = world.open()
    pipeline.push("clicks", [click("a")])
    pipeline.checkpoint()
    manifests = Manifests(world.store, world.env)
    last = manifests.latest_id() or 0
    world.store.delete(paths.manifest(last))
    assert "the manifest is lost" in message(world).message
    with pytest.raises(TruncatedError, match="the manifest is lost"):
        Collector(world.store, world.env, settings=AT_ONCE).plan()


def test_changes_of_a_running_writer_are_not_findings() -> None:
    """K11: a flush and a collection in between supersede what was read; it is looked at again."""
    world = build(closed=False)
    pipeline = reopened(world)

    class Busy(FaultyStore):
        done = False

        def list(self, *arguments: object, **named: object) -> object:  # type: ignore[override]
            if not self.done:
                self.done = True
                for number in (10, 11, 12):
                    pipeline.push("orders", [order(number)])
                    pipeline.checkpoint()
                Collector(world.store, world.env, settings=AT_ONCE).collect()
            return super().list(*arguments, **named)  # type: ignore[arg-type]

    assert verify(Busy(world.store), world.env, deep=True).findings == ()


def test_the_requests_of_a_shallow_look_do_not_grow_with_rows() -> None:
    """K11: sizes come from one listing, and what is flushed is not read again."""
    world = build(closed=True)
    counting = FaultyStore(world.store)
    report = verify(counting, world.env)
    assert report.findings == ()
    assert report.bytes_read == 0
    assert len(counting.calls) < 25
    deep = verify(world.store, world.env, deep=True)
    assert deep.bytes_read == sum(
        memory(world)._objects[path][0].__len__()
        for path in needed(world)
        if paths.parse(path).kind != "checkpoint"
    )


def test_settings_reach_the_collector_of_a_pipeline() -> None:
    """K3: what `run` collects is bounded by the settings of the project."""
    world = build(closed=False)
    settings = replace(SETTINGS, collect=AT_ONCE, history=History(versions=1))
    pipeline = world.open(settings=settings, sinks={})
    pipeline._session.collector().collect()
    assert len(Manifests(world.store, world.env).ids()) == 2
