"""A deploy that is killed, or whose answers are lost, at every store call."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from stepwell.errors import StepwellError
from stepwell.journal import paths
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, crash_at, fail_at
from tests.deploy.project_world import CHANGED, YML, Lab, lab

__all__ = ["lab"]


def copy_of(store: Store) -> MemoryStore:
    """The same objects in a store of its own, so that many crashes begin alike."""
    made = MemoryStore(ManualEnv())
    for item in store.list():
        found = store.get(item.path)
        assert found is not None
        made.put_new(item.path, found.data)
    return made


def test_killed_at_every_store_call_the_next_deploy_comes_out_as_an_undisturbed_one(
    lab: Lab,
) -> None:
    """D4, D11, scenario 77: views, sinks and record are the same, and each batch arrives once.

    Dying before a call leaves what dying after the one before it does, so `after` is enough.
    """
    start, out = copy_of(lab.inner), lab.folder / "out"
    kept = lab.folder / "kept"
    shutil.copytree(out, kept)
    lab.write(CHANGED)
    number = 0
    while True:
        number += 1
        lab.inner = copy_of(start)
        shutil.rmtree(out)
        shutil.copytree(kept, out)
        lab.store = FaultyStore(lab.inner, crash_at(number, "after"))
        try:
            lab.deploy()
        except Crash:
            pass
        else:
            break
        lab.store = lab.inner
        lab.env.advance(60)  # The dead deploy's lease expires.
        committed = lab.rows("revenue")
        assert committed in (
            Counter({("ada", 30): 1, ("bob", 40): 1, ("eve", 1): 1}),
            Counter({("ada", 25): 1, ("bob", 40): 1, ("eve", 1): 1}),
        ), "readers see the old view or the new one, whole"
        if number % 3 == 0:
            lab.run()  # Somebody runs it in between, as it is.
            assert lab.sink() == committed
        lab.deploy()
        assert lab.serial == 2
        assert lab.is_settled()
        lab.run()
        assert lab.rows("revenue") == Counter({("ada", 25): 1, ("bob", 40): 1, ("eve", 1): 1})
        assert lab.sink() == lab.rows("revenue")
        lab.push((9, "zoe", 7))
        assert lab.sink() == lab.rows("revenue")
    assert number > 40, "a deploy makes more calls than that"


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_answer_lost_at_any_store_call_leaves_all_or_nothing(lab: Lab, when: str) -> None:
    """D4, scenario 81: it succeeds, or says that it did not, and the next one does."""
    start = copy_of(lab.inner)
    lab.write(CHANGED)
    number = 0
    while True:
        number += 1
        lab.inner = copy_of(start)
        faulty = FaultyStore(lab.inner, fail_at(number, when))  # type: ignore[arg-type]
        lab.store = faulty
        try:
            lab.deploy()
        except StepwellError:
            lab.store = lab.inner
            lab.env.advance(60)
            lab.deploy()
        lab.store = lab.inner
        assert (lab.serial, lab.is_settled()) == (2, True)
        if len(faulty.calls) < number:
            return


def test_a_first_deploy_killed_at_every_store_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2, D4, scenario 77: whatever was there, the next one makes the pipeline."""
    lab = Lab(tmp_path / "project", monkeypatch)
    number = 0
    while True:
        number += 1
        lab.inner = MemoryStore(lab.env)
        lab.store = FaultyStore(lab.inner, crash_at(number, "after"))
        try:
            lab.deploy()
        except Crash:
            pass
        else:
            return
        lab.store = lab.inner
        lab.env.advance(60)
        lab.deploy()
        assert (lab.serial, lab.is_settled()) == (1, True)


def test_ten_deploys_killed_before_they_changed_anything(lab: Lab) -> None:
    """D2, scenario 78: the serial does not move, and the eleventh works."""
    lab.write(CHANGED)
    for _ in range(10):
        calls = FaultyStore(lab.inner)
        lab.store = FaultyStore(
            lab.inner,
            lambda call: (
                crash_at(call.number, "before")(call) if call.path == paths.deploy_log(1) else None
            ),
        )
        with pytest.raises(Crash):
            lab.deploy()
        lab.store = calls
        lab.env.advance(60)
        assert lab.serial == 1
    lab.store = lab.inner
    assert lab.deploy().serial == 2


def test_a_change_of_sinks_alone_killed_at_every_store_call(lab: Lab) -> None:
    """D4, scenario 77: the way without an executor is as safe as the other."""
    start, out = copy_of(lab.inner), lab.folder / "out"
    kept = lab.folder / "kept"
    shutil.copytree(out, kept)
    lab.write(yml=YML + "  more: {view: visits, type: files, path: more, format: json}\n")
    rows = lab.rows("revenue"), lab.rows("visits")
    number, done = 0, False
    while not done:
        number += 1
        lab.inner = copy_of(start)
        for folder in (out, lab.folder / "more"):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kept, out)
        lab.store = FaultyStore(lab.inner, crash_at(number, "after"))
        try:
            lab.deploy()
            done = True
        except Crash:
            pass
        lab.store = lab.inner
        lab.env.advance(60)
        assert (lab.rows("revenue"), lab.rows("visits")) == rows
        lab.deploy()
        assert lab.actions() == {}
        assert lab.is_settled()
        lab.run()
        assert lab.sink() == rows[0]
    assert number > 10
