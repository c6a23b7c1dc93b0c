"""Every object of a deploy, damaged in turn: found by `verify`, and of no harm to the pipeline."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepwell.deploy.log import DeployLog, Header
from stepwell.deploy.repair import repair
from stepwell.deploy.verify import verify_deployed
from stepwell.errors import CorruptError, InvalidError, StepwellError
from stepwell.journal import paths
from stepwell.manifest.clone import clone
from stepwell.manifest.destroy import destroy_pipeline
from stepwell.manifest.verify import Finding, verify
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, crash_at
from tests.deploy.project_world import CHANGED, Lab, lab
from tests.engine.test_damage import Objects, damages

__all__ = ["lab"]


def found(lab: Lab, store: Store | None = None) -> tuple[Finding, ...]:
    store = store or lab.store
    return verify_deployed(store, lab.env, verify(store, lab.env, deep=True)).findings


def settled(lab: Lab) -> None:
    """A pipeline that was deployed twice; the log is gone, the lease is nobody's."""
    lab.write(CHANGED)
    lab.deploy()
    lab.run()


def killed(lab: Lab) -> None:
    """The second deploy died when its log had a header and every intent."""
    lab.write(CHANGED)
    for number in range(1, 200):
        lab.store = FaultyStore(lab.inner, crash_at(number, "after"))
        try:
            lab.deploy()
        except Crash:
            if len(lab.inner.list(paths.DEPLOY_LOG)) == 2:
                break
        lab.store = lab.inner
        lab.env.advance(60)
    lab.store = lab.inner
    lab.env.advance(60)
    assert len(lab.inner.list(paths.DEPLOY_LOG)) == 2


def unseen(name: str, objects: Objects) -> bool:
    """The last object of a log may never have been written."""
    logs = [path for path in sorted(objects) if path.startswith(paths.DEPLOY_LOG)]
    return bool(logs) and name == f"delete {logs[-1]}"


@pytest.mark.parametrize("leave", [settled, killed])
def test_every_single_damage_of_a_deploys_objects_is_found_and_harms_no_pipeline(
    lab: Lab, leave: Callable[[Lab], None]
) -> None:
    """K11, D3: delete, truncate, flip, swap. What is stored and answered stays what it was; the
    next deploy refuses, or does what it would have done.
    """
    leave(lab)
    store = lab.inner
    assert isinstance(store, MemoryStore)
    objects = dict(store._objects)
    assert found(lab) == ()
    rows = lab.rows("visits"), lab.rows("orders")
    lab.deploy()
    expected = lab.rows("revenue")
    missed, count, refused = [], 0, 0
    for name, damaged in damages(objects):
        if "deploy/" not in name or unseen(name, objects):
            continue
        count += 1
        store._objects = dict(damaged)
        if not any("deploy/" in item.object for item in found(lab)):
            missed.append(name)
        if "swap" in name and "manifest" in name:
            continue  # Found, and it is the manifest that is damaged, too.
        assert (lab.rows("visits"), lab.rows("orders")) == rows, name
        lab.env.advance(60)
        try:
            lab.deploy()
        except (CorruptError, InvalidError) as error:
            refused += "deploy/" in str(error)
        else:
            assert lab.rows("revenue") == expected, name
            assert lab.actions() == {}, name
    assert not missed, f"not found: {missed}"
    assert count > 12
    assert count > refused > 4


def test_changes_of_a_running_deploy_are_not_findings(lab: Lab) -> None:
    """K11: a log that is being removed looks damaged to a concurrent reader."""
    lab.write(CHANGED)
    killed(lab)

    class Busy(FaultyStore):
        done = False

        def get(self, path: str) -> object:  # type: ignore[override]
            if path.startswith(paths.DEPLOY_LOG) and not self.done:
                self.done = True
                lab.deploy()
            return super().get(path)

    assert found(lab, Busy(lab.inner)) == ()


def test_a_damaged_lease_stops_a_deploy_for_as_long_as_a_dead_owner_does(lab: Lab) -> None:
    """D5: nobody knows whose it is, so it is waited for; a person is not needed."""
    store = lab.inner
    assert isinstance(store, MemoryStore)
    data, etag, when = store._objects[paths.LEASE]
    store._objects[paths.LEASE] = (data[:-9], etag, when)
    (finding,) = found(lab)
    assert paths.LEASE in finding.object
    assert finding.repair == "stepwell deploy rebuilds it"
    lab.write(CHANGED)
    with pytest.raises(StepwellError, match="whose lease is damaged is deploying") as caught:
        lab.deploy(wait_s=5)
    assert "stepwell unlock DAMAGED" in (caught.value.hint or "")
    assert lab.deploy(wait_s=60).changed is not None
    assert found(lab) == ()


def test_a_clone_has_no_record_until_it_is_deployed(lab: Lab) -> None:
    """C7: its program is its parent's, with the ids of that, and nothing is missing."""
    place = MemoryStore(lab.env, "clone")
    clone(lab.inner, place, lab.env)
    assert [item for item in found(lab, place) if "deploy/" in item.object] == []


def test_a_log_of_a_later_deploy_is_found(lab: Lab) -> None:
    """D3: a serial that nobody has saved is not taken for a crash."""
    header = Header(lab.env.new_id(), lab.manifest().lineage, lab.serial + 5)
    DeployLog(lab.inner, lab.env, header)
    (finding,) = found(lab)
    assert "serial" in finding.what
    assert finding.repair == "stepwell state repair"


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_lost_record_takes_no_serial_a_second_time(lab: Lab, how: str) -> None:
    """D4: ids follow from serials; a second one could show as done what was not."""
    store = lab.inner
    assert isinstance(store, MemoryStore)
    lab.write(CHANGED)
    lab.deploy()
    ids = {item["id"] for item in lab.manifest().program["resources"].values()}
    if how == "deleted":
        store.delete(paths.RESOURCES)
    else:
        data, etag, when = store._objects[paths.RESOURCES]
        store._objects[paths.RESOURCES] = (data[:-1], etag, when)
        with pytest.raises(CorruptError) as caught:
            lab.deploy()
        assert "stepwell state repair" in (caught.value.hint or "")
        repair(lab.project(), lab.env, wait_s=0, say=lambda text: None)
    lab.write(CHANGED.replace("amount > 10", "amount > 11"))
    lab.deploy()
    after = {item["id"] for item in lab.manifest().program["resources"].values()}
    assert lab.serial > 3
    assert after - ids
    lab.write(CHANGED.replace("amount > 10", "amount > 12"))
    lab.deploy()
    newest = {item["id"] for item in lab.manifest().program["resources"].values()}
    assert newest - after - ids, "an id of its own"
    assert found(lab) == ()


def test_what_a_repair_keeps_goes_with_the_pipeline(lab: Lab) -> None:
    """D9: it is nobody else's, though nothing needs it."""
    store = lab.inner
    assert isinstance(store, MemoryStore)
    data, etag, when = store._objects[paths.RESOURCES]
    store._objects[paths.RESOURCES] = (data[:-1], etag, when)
    repair(lab.project(), lab.env, wait_s=0, say=lambda text: None)
    assert store.list(paths.DEPLOY_LOG_KEPT)
    done = destroy_pipeline(store, None, lab.env)
    assert done.left == ()
    assert {item.path for item in store.list()} <= {paths.LEASE}
