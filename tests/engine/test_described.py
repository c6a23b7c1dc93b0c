"""What an executor says of its runs is committed with them, and stays as long as they do."""

from __future__ import annotations

from dataclasses import replace

from stepwell.engine.change import change_program
from stepwell.engine.core import Core
from stepwell.engine.lazy import LazyExecutor
from stepwell.engine.reference_executor import ReferenceExecutor
from stepwell.env import Env
from stepwell.state.checkpoint import read_checkpoint
from stepwell.store.base import Store
from tests.engine.doubles import SETTINGS, SQL, World
from tests.engine.test_change import CHANGE, NEW, push


class Telling(ReferenceExecutor):
    said: str | None = "first"

    def described(self) -> str | None:  # type: ignore[override]
        return self.said


def opened(world: World) -> Core:
    def make(store: Store, env: Env) -> Telling:
        return Telling(SQL, store, env)

    return Core(world.store, world.env, make, [], [], settings=SETTINGS)


def test_a_description_is_committed_with_the_runs_it_is_of() -> None:
    """Of two processes that compile a view differently each describes what it has written."""
    world = World()
    core = opened(world)
    push(core, 1)
    assert core.manifest.described is None, "nothing was stored yet"
    core.flush()
    assert core.manifest.described == "first"
    ref = core.checkpoint("kept")
    assert ref is not None
    assert read_checkpoint(core.store, ref.id, ref).state.described == "first"
    Telling.said = "second"
    try:
        push(core, 2)
        core.flush()
        assert core.manifest.described == "second"
    finally:
        Telling.said = "first"


def test_another_program_brings_its_own_description() -> None:
    """That of the old one would make rows of the new one's runs mean something else."""
    world = World()
    core = opened(world)
    push(core, 1)
    core.flush()
    change_program(core, ReferenceExecutor(NEW, world.store, core.env), CHANGE)
    assert core.manifest.described is None


def test_runs_that_nobody_read_keep_their_description() -> None:
    """A deploy that changes sinks only makes no executor, which could describe anything."""
    world = World()
    core = opened(world)
    push(core, 1)
    core.close()

    def make(store: Store, env: Env) -> LazyExecutor:
        return LazyExecutor(
            lambda: Telling(SQL, store, env),
            Telling(SQL, store, env).tables(),
            lambda _: Telling(SQL, store, env),
        )

    again = Core(world.store, world.env, make, [], [], settings=SETTINGS)
    kept = again.manifest.described
    assert kept == "first"
    change_program(again, None, replace(CHANGE, fresh=()))
    assert again.manifest.described == kept
