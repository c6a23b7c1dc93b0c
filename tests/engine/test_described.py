"""What an executor says of its runs is committed with them, and stays as long as they do."""

from __future__ import annotations

from dataclasses import replace

from stepwell.engine.program_swap import change_program
from stepwell.engine.writer_session import WriterSession
from stepwell.env import Env
from stepwell.execution.lazy_executor import LazyExecutor
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.manifest.checkpoint import read_checkpoint
from stepwell.store.base import Store
from tests.engine.doubles import SETTINGS, SQL, World
from tests.engine.test_program_swap import CHANGE, NEW, push


class Telling(ReferenceExecutor):
    said: str | None = "first"

    def described(self) -> str | None:  # type: ignore[override]
        return self.said


def opened(world: World) -> WriterSession:
    def make(store: Store, env: Env) -> Telling:
        return Telling(SQL, store, env)

    return WriterSession(world.store, world.env, make, [], [], settings=SETTINGS)


def test_a_description_is_committed_with_the_runs_it_is_of() -> None:
    """Of two processes that compile a view differently each describes what it has written."""
    world = World()
    session = opened(world)
    push(session, 1)
    assert session.manifest.described is None, "nothing was stored yet"
    session.checkpointer.flush()
    assert session.manifest.described == "first"
    ref = session.checkpointer.checkpoint("kept")
    assert ref is not None
    assert read_checkpoint(session.store, ref.id, ref).state.described == "first"
    Telling.said = "second"
    try:
        push(session, 2)
        session.checkpointer.flush()
        assert session.manifest.described == "second"
    finally:
        Telling.said = "first"


def test_a_description_is_committed_before_anything_comes_in() -> None:
    """After a first run that found no input `explain` knew nothing, and a query started Spark."""
    world = World()
    session = opened(world)
    assert session.checkpointer.flush()
    assert session.manifest.described == "first"
    assert not session.checkpointer.flush(), "once is enough"


def test_another_program_brings_its_own_description() -> None:
    """That of the old one would make rows of the new one's runs mean something else."""
    world = World()
    session = opened(world)
    push(session, 1)
    session.checkpointer.flush()
    change_program(session, ReferenceExecutor(NEW, world.store, session.env), CHANGE)
    assert session.manifest.described is None


def test_runs_that_nobody_read_keep_their_description() -> None:
    """A deploy that changes sinks only makes no executor, which could describe anything."""
    world = World()
    session = opened(world)
    push(session, 1)
    session.close()

    def make(store: Store, env: Env) -> LazyExecutor:
        return LazyExecutor(
            lambda: Telling(SQL, store, env),
            Telling(SQL, store, env).tables(),
            lambda _: Telling(SQL, store, env),
        )

    again = WriterSession(world.store, world.env, make, [], [], settings=SETTINGS)
    kept = again.manifest.described
    assert kept == "first"
    change_program(again, None, replace(CHANGE, fresh=()))
    assert again.manifest.described == kept
