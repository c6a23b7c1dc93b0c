"""Changing the program: what fails on the way leaves the pipeline as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from stepwell.engine.program_swap import change_program
from stepwell.engine.pushed import pushed_intake
from stepwell.engine.swap_stages import (
    AppendTransactions,
    BuildViews,
    CatchUp,
    CheckOrigin,
    CommitManifest,
    DiffSink,
    Flush,
    LoadRuns,
    ProgramChange,
    ReadOld,
    RefillTable,
    Relations,
    WriteOutbox,
    WriteRuns,
    swap_stages,
)
from stepwell.engine.transaction import Step
from stepwell.engine.writer_session import WriterSession
from stepwell.errors import (
    BugError,
    CheckpointMissing,
    StepwellError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.manifest.manifest import CheckpointRef
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


@dataclass(frozen=True)
class Built:
    """A shadow build that is where the pipeline is."""

    checkpoint: CheckpointRef

    def catch_up(self, session: WriterSession) -> None:
        """Nothing was committed since."""


def opened(world: World, store: FaultyStore, sql: str = SQL) -> WriterSession:
    return WriterSession(
        store,
        world.env,
        lambda store, env: ReferenceExecutor(sql, store, env),
        [],
        [],
        settings=SETTINGS,
    )


def push(session: WriterSession, id: int) -> Transaction:
    intake = pushed_intake(session.sources, "orders", [order(id)], None, None, ())
    return session.commit(Step.of([intake])).transaction


@pytest.mark.parametrize("prefix", ["checkpoints/", "manifest/"])
def test_a_disk_that_is_full_after_the_number_was_taken(prefix: str) -> None:
    """D11, J1: the number is in the journal, so this process gives it to nobody else."""
    world = World()
    store = Full(world.store)
    session = opened(world, store)
    assert push(session, 1) == 1
    session.checkpointer.flush()
    store.prefix = prefix
    executor = ReferenceExecutor(NEW, store, session.env)
    with pytest.raises(UnknownOutcomeError):
        change_program(session, executor, CHANGE)
    store.prefix = "none/"
    with pytest.raises(StepwellError):
        push(session, 2)
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
    session = pipeline._session
    session.checkpointer.flush()
    change = replace(CHANGE, follow={"one": ("revenue", "revenue")})
    executor = ReferenceExecutor(NEW, store, session.env)
    store.prefix = f"journal/{session.writer.journal.tip.position + 2:020}"
    with pytest.raises(UnavailableError):
        change_program(session, executor, change)
    store.prefix = "none/"
    assert session.state.transaction == 4, "an empty transaction"
    assert push(session, 9) == 5
    again = world.open(sinks={"one": "revenue"})
    assert again.transaction_number == 5
    world.check(again)


def test_a_checkpoint_it_was_built_from_and_that_is_gone() -> None:
    """D11: nothing has happened, and the pipeline goes on."""
    world = World()
    session = opened(world, FaultyStore(world.store))
    push(session, 1)
    ref = session.checkpointer.checkpoint("deploy")
    session.checkpointer.delete_checkpoint("deploy")
    executor = ReferenceExecutor(NEW, session.store, session.env)
    with pytest.raises(CheckpointMissing):
        change_program(session, executor, CHANGE, shadow=Built(ref))
    assert push(session, 2) == 2
    assert opened(world, FaultyStore(world.store)).state.transaction == 2


FOLLOWED = replace(
    CHANGE,
    follow={"old": ("revenue", "revenue"), "moved": ("busy", "few"), "same": ("busy", "busy")},
)
ALL = {"old", "moved", "same"}


def test_a_swap_that_builds_its_views_writes_nothing_before_all_is_computed() -> None:
    """D11: a view that cannot be built must not leave runs, outbox files or journal entries."""
    change = replace(FOLLOWED, refill={"clicks": lambda rows: rows})
    assert swap_stages(change, ALL, Relations.BUILT) == (
        Flush(),
        LoadRuns(),
        ReadOld(("busy", "clicks", "revenue")),
        RefillTable("clicks"),
        BuildViews(("revenue",)),
        DiffSink("old", "revenue", "revenue"),
        DiffSink("moved", "busy", "few"),
        WriteRuns(),
        WriteOutbox(("moved", "old")),
        AppendTransactions(),
        CommitManifest(),
    )


def test_a_swap_after_a_shadow_build_computes_no_view_again() -> None:
    """D11: the pipeline stands still, and would do so for the time of a full refresh."""
    assert swap_stages(FOLLOWED, {"old"}, Relations.SHADOW) == (
        Flush(),
        CatchUp(),
        ReadOld(("revenue",)),
        DiffSink("old", "revenue", "revenue"),
        WriteRuns(),
        WriteOutbox(("old",)),
        CheckOrigin(),
        AppendTransactions(),
        CommitManifest(),
    )


def test_a_swap_of_sinks_alone_touches_no_run() -> None:
    """D11: a sink that moves to another view must not cost a rebuild, nor start an executor."""
    change = replace(FOLLOWED, fresh=())
    assert swap_stages(change, ALL, Relations.KEPT) == (
        Flush(),
        ReadOld(("busy", "few")),
        DiffSink("moved", "busy", "few"),
        WriteOutbox(("moved",)),
        AppendTransactions(),
        CommitManifest(),
    )
    none = swap_stages(change, (), Relations.KEPT)
    assert none == (Flush(), AppendTransactions(), CommitManifest()), "no sink has output yet"


def test_only_a_swap_that_builds_its_relations_converts_rows() -> None:
    """D11: a shadow build follows the journal, whose rows have the old columns."""
    change = replace(CHANGE, refill={"clicks": lambda rows: rows})
    with pytest.raises(BugError, match="converts rows"):
        swap_stages(change, (), Relations.SHADOW)
