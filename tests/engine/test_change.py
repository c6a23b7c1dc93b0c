"""Changing the program: what fails on the way leaves the pipeline as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepwell.engine.change import ProgramChange, change_program
from stepwell.engine.core import Core
from stepwell.engine.pushed import pushed_intake
from stepwell.engine.reference_executor import ReferenceExecutor
from stepwell.errors import CheckpointMissing, StepwellError, UnavailableError, UnknownOutcomeError
from stepwell.model import Bytes, Transaction
from stepwell.testing import FaultyStore
from tests.engine.doubles import SETTINGS, SQL, World, order

NEW = SQL.replace("SUM(amount) AS total", "SUM(amount) * 2 AS total")
CHANGE = ProgramChange(
    program="new",
    keep=frozenset({"orders", "clicks"}),
    letters=frozenset({"orders", "clicks"}),
    fresh=("revenue",),
)


class Full(FaultyStore):
    """A disk that is full for objects of one kind."""

    prefix = "none/"

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        if path.startswith(self.prefix):
            raise UnavailableError("no space left", not_applied=True)
        super().put_new(path, data)


def opened(world: World, store: FaultyStore, sql: str = SQL) -> Core:
    return Core(
        store,
        world.env,
        lambda store, env: ReferenceExecutor(sql, store, env),
        [],
        [],
        settings=SETTINGS,
    )


def push(core: Core, id: int) -> Transaction:
    intake = pushed_intake(core.sources, "orders", [order(id)], None, None, ())
    return core.commit([intake]).transaction


@pytest.mark.parametrize("prefix", ["checkpoints/", "manifest/"])
def test_a_disk_that_is_full_after_the_number_was_taken(prefix: str) -> None:
    """D11, J1: the number is in the journal, so this process gives it to nobody else."""
    world = World()
    store = Full(world.store)
    core = opened(world, store)
    assert push(core, 1) == 1
    core.flush()
    store.prefix = prefix
    executor = ReferenceExecutor(NEW, store, core.env)
    with pytest.raises(UnknownOutcomeError):
        change_program(core, executor, CHANGE)
    store.prefix = "none/"
    with pytest.raises(StepwellError):
        push(core, 2)
    again = opened(world, store)
    assert again.state.transaction == 2, "an empty transaction"
    assert push(again, 3) == 3
    assert opened(world, store).state.transaction == 3


def test_a_disk_that_is_full_between_two_numbers() -> None:
    """D11, J1: a large difference takes several; the one that was taken is nobody else's."""
    world = World()
    store = Full(world.store)
    settings = replace(SETTINGS, outbox=replace(SETTINGS.outbox, part_rows_max=1))
    pipeline = world.open(store, settings, sinks={"one": "revenue"}, strike=False)
    for number in range(1, 4):
        pipeline.push("orders", [order(number, f"c{number}", 1)])
    core = pipeline._core
    core.flush()
    change = replace(CHANGE, follow={"one": ("revenue", "revenue")})
    executor = ReferenceExecutor(NEW, store, core.env)
    store.prefix = f"journal/{core.writer.journal.tip.position + 2:020}"
    with pytest.raises(UnavailableError):
        change_program(core, executor, change)
    store.prefix = "none/"
    assert core.state.transaction == 4, "an empty transaction"
    assert push(core, 9) == 5
    again = world.open(sinks={"one": "revenue"})
    assert again.transaction_number == 5
    world.check(again)


def test_a_checkpoint_it_was_built_from_and_that_is_gone() -> None:
    """D11: nothing has happened, and the pipeline goes on."""
    world = World()
    core = opened(world, FaultyStore(world.store))
    push(core, 1)
    ref = core.checkpoint("deploy")
    core.delete_checkpoint("deploy")
    executor = ReferenceExecutor(NEW, core.store, core.env)
    with pytest.raises(CheckpointMissing):
        change_program(core, executor, CHANGE, origin=ref)
    assert push(core, 2) == 2
    assert opened(world, FaultyStore(world.store)).state.transaction == 2
