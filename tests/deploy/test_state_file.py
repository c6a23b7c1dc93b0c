"""The record of a deploy and its log: killed anywhere, and refused where it must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepwell.deploy.log import DeployLog, Header, Record, read_log, remove_log
from stepwell.deploy.state_file import (
    DeployState,
    decide,
    read_state,
    recover,
    save_state,
)
from stepwell.errors import ConflictError, CorruptError, InvalidError, StepwellError
from stepwell.journal import paths
from stepwell.store.base import Store
from stepwell.store.local import LocalStore
from stepwell.store.memory import MemoryStore
from stepwell.store.sealed import Json, seal
from stepwell.testing import Crash, FaultyStore, ManualEnv, SimulatedDisk, When, crash_at, fail_at

LINEAGE = "01KDVDNA001HEAD8X4A1JH69RE"
OTHER = "01KDVDNA00JMRNV7E9Z0C1HT0H"
OLD = {"table.t": {"id": "t1"}, "view.gone": {"id": "g1"}}
NEW = {"table.t": {"id": "t1"}, "view.v": {"id": "v2"}, "sink.s": {"id": "s2"}}
ACTIONS = (
    ("view.v", "create", {"id": "v2"}),
    ("sink.s", "create", {"id": "s2"}),
    ("view.gone", "delete", None),
)


class World:
    """A store with a committed record, and a manifest that a deploy moves from OLD to NEW."""

    def __init__(self, store: Store | None = None) -> None:
        self.env = ManualEnv()
        self.store = store or MemoryStore(self.env)
        self.actual: dict[str, Json] = dict(OLD)
        save_state(self.store, self.env, DeployState(LINEAGE, 1, OLD))

    def deploy(self, store: Store | None = None) -> DeployState:
        """What a deploy does to the record, whole."""
        store = store or self.store
        state = self.recover(store)
        if dict(state.resources) == NEW:
            return state
        header = Header(self.env.new_id(), LINEAGE, state.serial + 1)
        log = DeployLog(store, self.env, header)
        for key, action, value in ACTIONS:
            log.append(Record("intent", key, action, value))
        self.actual = dict(NEW)  # The one commit of the manifest.
        for key, action, value in ACTIONS:
            log.append(Record("done", key, action, value))
        after = replace(state, lineage=LINEAGE, serial=log.serial, resources=NEW)
        after = save_state(store, self.env, after)
        remove_log(store)
        return after

    def recover(self, store: Store | None = None) -> DeployState:
        store = store or self.store
        decided = decide(store, read_state(store), LINEAGE, self.actual)
        return recover(store, self.env, decided)

    def objects(self) -> dict[str, bytes]:
        found = {item.path: self.store.get(item.path) for item in self.store.list()}
        return {path: item.data for path, item in found.items() if item is not None}


def log_of(world: World, serial: int = 2, lineage: str = LINEAGE) -> DeployLog:
    return DeployLog(world.store, world.env, Header(world.env.new_id(), lineage, serial))


def overwrite(store: Store, path: str, data: bytes) -> None:
    store.delete(path)
    store.put_new(path, data)


def test_a_record_is_read_as_it_was_saved() -> None:
    """D1: state version, tool version, lineage, serial, features and resources, sealed."""
    world = World()
    state = read_state(world.store)
    assert (state.lineage, state.serial, dict(state.resources)) == (LINEAGE, 1, OLD)
    data = world.objects()[paths.RESOURCES]
    for field in (b"format", b"tool_version", b"lineage", b"serial", b"features", b"resources"):
        assert b'"' + field + b'":' in data


def test_the_log_has_the_serial_after_the_committed_one() -> None:
    """D1: and a deploy ends with that serial saved and no log left."""
    world = World()
    after = world.deploy()
    assert after.serial == 2
    assert read_state(world.store).resources == NEW
    assert read_log(world.store) is None


def test_a_feature_of_a_later_version_is_refused_by_its_name() -> None:
    """D1: an old tool must not write over what it does not understand."""
    world = World()
    body = {"tool_version": "9.9", "lineage": LINEAGE, "serial": 3, "features": ["shards"]}
    overwrite(world.store, paths.RESOURCES, seal("stepwell-resources/1", {**body, "resources": {}}))
    with pytest.raises(InvalidError, match=r"needs shards.*written by 9\.9"):
        read_state(world.store)


def test_a_record_of_a_later_version_is_told_from_damage() -> None:
    """D1: the message names both versions."""
    world = World()
    overwrite(world.store, paths.RESOURCES, seal("stepwell-resources/2", {}))
    with pytest.raises(InvalidError, match="format 2; this Stepwell reads format 1"):
        read_state(world.store)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_store_call_the_next_deploy_comes_out_the_same(when: str) -> None:
    """D2, D3, D4, scenario 77: no person is needed, and recovering twice changes nothing more."""
    number = 0
    while True:
        number += 1
        world = World()
        try:
            world.deploy(FaultyStore(world.store, crash_at(number, when)))  # type: ignore[arg-type]
        except Crash:
            pass
        else:
            assert number > 15, "a deploy makes more calls than that"
            return
        world.recover()
        once = world.objects()
        world.recover()
        assert world.objects() == once, "recovering twice changes nothing more"
        recorded = read_state(world.store)
        assert recorded.resources == world.actual, "the record says what the manifest says"
        after = world.deploy()
        assert after.serial == 2
        assert (dict(after.resources), read_log(world.store)) == (NEW, None)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_answer_lost_at_any_store_call_does_no_harm(when: str) -> None:
    """D3, scenario 81: what was sent twice is there once."""
    number = 0
    while True:
        number += 1
        world = World()
        faulty = FaultyStore(world.store, fail_at(number, when))  # type: ignore[arg-type]
        try:
            world.deploy(faulty)
        except StepwellError:
            world.deploy()
        if len(faulty.calls) < number:
            return
        state = read_state(world.store)
        assert (state.serial, dict(state.resources)) == (2, NEW)


def test_the_log_cut_after_every_byte_is_recovered_without_a_person() -> None:
    """D3, scenario 77: each record in turn is the last one, cut after each of its bytes."""
    whole = World()
    store = FaultyStore(whole.store)
    whole.deploy(store)
    records = 1 + 2 * len(ACTIONS)
    for last in range(records):
        size = None
        for length in range(10_000):
            world = World()
            puts = [call for call in store.calls if call.path == paths.deploy_log(last)]
            crash = crash_at(puts[0].number, "after")
            with pytest.raises(Crash):
                world.deploy(FaultyStore(world.store, crash))
            path = paths.deploy_log(last)
            data = world.objects()[path]
            size = len(data)
            overwrite(world.store, path, data[:length])
            world.recover()
            assert read_log(world.store) is None
            assert read_state(world.store).resources == world.actual
            assert world.deploy().serial == 2
            if length >= size:
                break
        assert size is not None


def test_deploys_that_fail_before_any_record_leave_the_serial_alone() -> None:
    """D2, scenario 78: two, three or ten in a row."""
    for failures in (1, 2, 3, 10):
        world = World()
        for _ in range(failures):
            world.recover()
            log_of(world)
            assert read_state(world.store).serial == 1
        assert world.deploy().serial == 2


@pytest.mark.parametrize("content", [b"", b"{", b'{"checksum":"0123'])
def test_an_empty_or_torn_header_is_discarded(content: bytes) -> None:
    """D2: it changes nothing, and is removed by the next deploy."""
    world = World()
    world.store.put_new(paths.deploy_log(0), content)
    decided = decide(world.store, read_state(world.store), LINEAGE, OLD)
    assert not decided.save
    assert "discarded" in (decided.message or "")
    assert world.deploy().serial == 2


def test_intents_of_which_nothing_happened_are_discarded() -> None:
    """D2: a serial moves only together with something that it stands for."""
    world = World()
    log = log_of(world)
    for key, action, value in ACTIONS:
        log.append(Record("intent", key, action, value))
    assert world.recover().serial == 1
    assert read_state(world.store).resources == OLD


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_log_that_is_discarded_can_be_killed_anywhere(when: When) -> None:
    """D2: it goes from its end to its beginning. Without its header the rest would be damage, and
    the next deploy refused.
    """

    def left() -> World:
        world = World()
        log = log_of(world)
        for key, action, value in ACTIONS:
            log.append(Record("intent", key, action, value))
        return world

    counting = FaultyStore(left().store)
    left().recover(counting)
    assert len(counting.calls) > len(ACTIONS)
    for call in counting.calls:
        world = left()
        with pytest.raises(Crash):
            world.recover(FaultyStore(world.store, crash_at(call.number, when)))
        assert world.recover().serial == 1
        assert not world.store.list(paths.DEPLOY_LOG)


def test_an_action_whose_outcome_is_not_logged_is_adopted_by_its_id() -> None:
    """D4, scenario 81: done, the answer lost, killed; deletes as well."""
    world = World()
    log = log_of(world)
    for key, action, value in ACTIONS:
        log.append(Record("intent", key, action, value))
    world.actual = dict(NEW)
    decided = decide(world.store, read_state(world.store), LINEAGE, world.actual)
    assert set(decided.adopted) == {"view.v", "sink.s", "view.gone"}
    state = recover(world.store, world.env, decided)
    assert (state.serial, dict(state.resources)) == (2, NEW)


def test_a_resource_of_the_same_key_from_before_is_not_adopted() -> None:
    """D4: the id says which deploy made it, the key does not."""
    world = World()
    log_of(world).append(Record("intent", "table.t", "update", {"id": "t2"}))
    assert world.recover().serial == 1


def test_a_stale_log_is_dropped_and_said() -> None:
    """D3: killed between the save and the removal of the log."""
    world = World()
    log = log_of(world, serial=1)
    log.append(Record("done", "view.old", "create", {"id": "x"}))
    decided = decide(world.store, read_state(world.store), LINEAGE, OLD)
    assert "log of serial 1 was already saved" in (decided.message or "")
    assert recover(world.store, world.env, decided).resources == OLD
    assert read_log(world.store) is None


def damaged_middle(world: World) -> None:
    log = log_of(world)
    for key, action, value in ACTIONS:
        log.append(Record("done", key, action, value))
    overwrite(world.store, paths.deploy_log(2), b'{"checksum":"')


def missing_middle(world: World) -> None:
    damaged_middle(world)
    world.store.delete(paths.deploy_log(2))


def missing_header(world: World) -> None:
    log_of(world).append(Record("done", "view.v", "create", {"id": "v2"}))
    world.store.delete(paths.deploy_log(0))


def two_torn(world: World) -> None:
    damaged_middle(world)
    overwrite(world.store, paths.deploy_log(3), b"")


def future(world: World) -> None:
    log_of(world, serial=7).append(Record("done", "view.v", "create", {"id": "v2"}))


def foreign(world: World) -> None:
    log_of(world, lineage=OTHER).append(Record("done", "view.v", "create", {"id": "v2"}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (damaged_middle, r"wal/0+2\.json.*records after it"),
        (missing_middle, r"wal/0+2\.json: missing"),
        (missing_header, r"wal/0+0\.json: missing"),
        (two_torn, r"wal/0+2\.json"),
        (future, "expected 2, the one after the committed serial 1, found 7"),
        (foreign, f"expected {LINEAGE}, found {OTHER}"),
    ],
)
def test_what_no_crash_can_leave_is_refused_and_kept(
    spoil: Callable[[World], None], words: str
) -> None:
    """D3: both values, the repair command, and not a byte touched."""
    world = World()
    spoil(world)
    before = world.objects()
    with pytest.raises(CorruptError, match=words) as caught:
        world.deploy()
    assert "stepwell state repair" in (caught.value.hint or "")
    assert world.objects() == before


def test_a_record_of_another_pipeline_is_refused() -> None:
    """D3: a store that was copied together from two."""
    world = World()
    with pytest.raises(CorruptError, match=f"expected {OTHER}, found {LINEAGE}"):
        decide(world.store, read_state(world.store), OTHER, OLD)


def test_a_deployer_that_lost_its_lease_cannot_write_into_the_log_of_its_successor() -> None:
    """D3: its record is not part of that log, and does not stop the next recovery."""
    world = World()
    late = log_of(world)
    late.append(Record("intent", "view.x", "create", {"id": "x"}))
    world.recover()
    own = log_of(world)
    own.append(Record("intent", "view.v", "create", {"id": "v2"}))
    with pytest.raises(ConflictError, match="another deploy"):
        late._written = 1
        late.append(Record("done", "view.x", "create", {"id": "x"}))
    late._written = 2
    late.append(Record("done", "view.y", "create", {"id": "y"}))
    with pytest.raises(ConflictError, match="another deploy is running"):
        log_of(world)
    found = read_log(world.store)
    assert found is not None
    assert [record.key for record in found.records] == ["view.v"]
    assert found.dropped == (paths.deploy_log(2),)
    assert world.deploy().serial == 2


def test_a_late_save_is_refused() -> None:
    """D5: the record is replaced only by the process that read it last."""
    world = World()
    read = read_state(world.store)
    world.deploy()
    with pytest.raises(ConflictError, match="changed by another deploy"):
        save_state(world.store, world.env, replace(read, serial=2, resources={}))


def test_power_cut_at_any_call_leaves_the_record_whole() -> None:
    """D1: temp file, fsync, rename, directory fsync; proved on a disk that forgets."""
    number = 0
    while True:
        number += 1
        env = ManualEnv()
        disk = SimulatedDisk(env, seed=number)
        world = World(LocalStore("/store", env, disk))
        try:
            world.deploy(FaultyStore(world.store, crash_at(number, "before")))
        except Crash:
            disk.cut_power()
            world.store = LocalStore("/store", env, disk)
        else:
            return
        assert read_state(world.store).serial in (1, 2)
        assert world.deploy().serial == 2
        assert read_state(world.store).resources == NEW


class FullDisk(FaultyStore):
    """Every write of one kind of object fails, without being applied."""

    def __init__(self, inner: Store, path: str, operation: str) -> None:
        from stepwell.testing import Call, Fault

        def plan(call: Call) -> Fault | None:
            hit = call.path.startswith(path) and call.operation == operation
            return Fault("fail") if hit else None

        super().__init__(inner, plan)


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        (paths.deploy_log(0), "put_new"),
        (paths.deploy_log(2), "put_new"),
        (paths.deploy_log(5), "put_new"),
        (paths.RESOURCES, "replace_if"),
    ],
)
def test_a_full_disk_leaves_the_record_as_it_was(path: str, operation: str) -> None:
    """D2, scenario 82: on append, on save, on rename; the next deploy works."""
    world = World()
    with pytest.raises(StepwellError):
        world.deploy(FullDisk(world.store, path, operation))
    assert read_state(world.store).resources == OLD
    assert read_state(world.store).serial == 1
    after = world.deploy()
    assert (after.serial, dict(after.resources)) == (2, NEW)
