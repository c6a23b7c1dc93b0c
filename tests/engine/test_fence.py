"""Three writers, paused at every point of the fence, with others running in between.

Scenarios 1 to 8 of the fencing protocol are not picked by hand here: pauses of one writer are
combined with pauses of a second, while a first goes on writing, flushes, or sleeps so long that the
barriers put meanwhile are collected. `make test` runs every seventh pair, `make test-all` all.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

import pytest

from stepwell.engine.open import take_over
from stepwell.errors import FencedError
from stepwell.journal.journal import Settings
from stepwell.manifest.manifest import Manifests
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.pausing import PausingStore, Task
from tests.tiny import Tiny, collect, stored_rows

KEEP_S = 3600.0


class World:
    """One store; an old writer at work, and two that want to take over."""

    def __init__(self) -> None:
        self.env = ManualEnv(host="old", pid=1)
        self.store = MemoryStore(self.env)
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        self.old = Tiny(self.store, self.env, settings=Settings(KEEP_S))
        self.push(self.old, "old-1")
        self.push(self.old, "old-2")

    def push(self, tiny: Tiny, row: str) -> bool:
        """Push one row; whether it was acknowledged."""
        try:
            tiny.push(row)
        except FencedError:
            self.refused.append(row)
            return False
        self.acknowledged.append(row)
        return True

    def successor(self, name: str) -> Task:
        """A writer that opens the pipeline and pushes two rows."""
        env = self.shared(name)

        def body() -> Tiny:
            tiny = Tiny(PausingStore(self.store), env, settings=Settings(KEEP_S))
            for number in (1, 2):
                tiny.push(f"{name}-{number}")
                self.acknowledged.append(f"{name}-{number}")
            return tiny

        return Task(body)

    def shared(self, name: str) -> ManualEnv:
        """The environment of another process, which lives by the same clock."""
        world = self.env

        class Shared(ManualEnv):
            def now(self) -> datetime:
                return world.now()

            def uptime(self) -> float:
                return world.uptime()

        return Shared(ord(name[0]), host=name, pid=ord(name[0]))

    def old_goes_on(self, mode: str) -> None:
        """The old writer pushes; perhaps it flushes, time passes, and a collector comes along."""
        if mode == "idles":
            self.env.advance(KEEP_S / 2)
        self.push(self.old, f"old-late-{len(self.acknowledged)}")
        if mode in ("appends", "idles"):
            return
        with suppress(FencedError):
            self.old.flush()
        if mode == "sleeps":
            self.env.advance(KEEP_S + 1)
        collect(self.store, self.env, barrier_keep_s=KEEP_S)

    def check(self, *tasks: Task) -> None:
        """Nothing acknowledged is lost or doubled, and nothing refused is there; at most one writer
        still has the pipeline.
        """
        rows = stored_rows(self.store, self.env)
        assert not set(self.refused) & set(rows), "a row that was refused is there"
        assert sorted(rows) == sorted(set(rows)), "a row is there twice"
        assert set(self.acknowledged) <= set(rows), "an acknowledged row is lost"
        for task in tasks:
            assert task.done
            assert task.error is None or isinstance(task.error, FencedError), repr(task.error)
        latest = Manifests(self.store, self.env).latest()
        assert latest is not None
        handles = [self.old, *(task.result for task in tasks if task.error is None)]
        alive = [tiny for tiny in handles if self.push(tiny, f"probe-{tiny.writer.epoch}")]
        assert len(alive) <= 1
        for tiny in alive:
            assert tiny.writer.epoch == latest.epoch
        again = Tiny(self.store, self.env)
        assert sorted(again.rows()) == sorted(stored_rows(self.store, self.env))
        assert set(self.acknowledged) <= set(again.rows())
        assert not set(self.refused) & set(again.rows())


def pauses_of_an_open() -> int:
    return World().successor("b").run().steps


MODES = ["appends", "idles", "flushes", "sleeps"]


@pytest.mark.parametrize("mode", MODES)
def test_old_writer_acts_at_every_pause_of_its_successor(mode: str) -> None:
    """F2, F3, F11, scenario 94: an old writer that acts between any two steps of the fence loses
    nothing, doubles nothing, and what it is refused is nowhere. One that was idle for long meets a
    successor that has claimed the pipeline and not put its barrier yet.
    """
    for pause in range(pauses_of_an_open() + 1):
        world = World()
        task = world.successor("b").run(pause)
        world.old_goes_on(mode)
        task.run()
        world.old_goes_on(mode)
        world.check(task)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", ["b", "c"])
def test_of_three_writers_paused_almost_anywhere_only_the_last_survives(
    first: str, mode: str
) -> None:
    """F2, F6: a fencer fenced by a third, at every 31st pair of pauses, never loses a row."""
    pause_everywhere(first, mode, every=31)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", ["b", "c"])
def test_of_three_writers_paused_anywhere_only_the_last_survives(first: str, mode: str) -> None:
    """F2, F6: the same for every pair of pauses."""
    pause_everywhere(first, mode, every=1)


def pause_everywhere(first: str, mode: str, every: int) -> None:
    pauses = pauses_of_an_open()
    for pause_b in range(pauses + 1):
        for pause_c in range(pause_b % every, pauses + 1, every):
            world = World()
            b, c = world.successor("b"), world.successor("c")
            b.run(pause_b)
            world.old_goes_on(mode)
            c.run(pause_c)
            world.old_goes_on(mode)
            for task in (b, c) if first == "b" else (c, b):
                task.run()
            world.check(b, c)


def test_old_writer_is_fenced_before_the_successor_serves() -> None:
    """F3: once a successor has opened, the old writer's next append fails at once and forever."""
    world = World()
    world.successor("b").run()
    before = {listed.path for listed in world.store.list()}
    with pytest.raises(FencedError) as fenced:
        world.old.push("too-late")
    assert {listed.path for listed in world.store.list()} == before
    assert (fenced.value.epoch, fenced.value.host, fenced.value.pid) == (2, "b", ord("b"))
    for later in (
        lambda: world.old.push("again"),
        lambda: world.old.flush(),
        lambda: world.old.rows(),
        lambda: list(world.old.writer.journal.replay()),
    ):
        with pytest.raises(FencedError):
            later()


def test_a_writer_overtaken_during_its_replay_never_serves() -> None:
    """F2, F3: it is told when it has replayed, before it delivers anything to a sink."""
    world = World()
    slow = take_over(world.store, world.shared("b"))
    replayed = list(slow.replay())
    assert len(replayed) == 2
    quick = Tiny(world.store, world.shared("c"))
    with pytest.raises(FencedError, match="the pipeline was not opened"):
        slow.serve()
    quick.push("served")


def test_successor_that_dies_before_its_barrier_leaves_the_old_writer_serving() -> None:
    """F2: until the barrier the old writer may still acknowledge, and a third replays it."""
    for pause in range(pauses_of_an_open()):
        world = World()
        dead = world.successor("b").run(pause)
        was_fenced = not world.push(world.old, "old-3")
        third = world.successor("c").run()
        assert third.error is None
        assert ("old-3" in third.result.rows()) is not was_fenced
        assert not dead.done
        world.check(third)
