"""Who is told that something was refused: the one whose rows they are, and nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from stepwell.engine.data_tests import DataTest
from stepwell.engine.ingest_loop import IngestLoop
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Intake
from stepwell.engine.push_queue import Committer, PushQueue
from stepwell.engine.pushed import Push
from stepwell.engine.settings import Settings
from stepwell.engine.transaction import Done
from stepwell.errors import CorruptError, InvalidError, UnavailableError
from stepwell.execution.executor import Executed
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.change import Change
from stepwell.model import Transaction
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.engine.doubles import SETTINGS, SQL, Feed, FeedSource, click, contents, order

TESTED = (
    SQL
    + "CREATE MATERIALIZED VIEW bad_violations AS SELECT id, amount FROM orders WHERE amount < 0;"
)
GATED = replace(SETTINGS, latency_s_max=60.0, tests=(DataTest("bad", "bad_violations", "fail"),))
WAIT_S = 20.0


class Bench:
    """A pipeline in memory, and threads that wait for its turn one after another."""

    def __init__(self, sql: str = SQL, settings: Settings = SETTINGS, feed: Feed | None = None):
        self.env = ManualEnv()
        self.store = MemoryStore(self.env)
        self._sql, self._settings, self._feed = sql, settings, feed
        self.pipeline = self.open()
        self.told: dict[str, object] = {}

    def open(self) -> Pipeline:
        return Pipeline(
            self.store,
            self.env,
            executor=lambda store, env: ReferenceExecutor(self._sql, store, env),
            sources=[] if self._feed is None else [FeedSource("feed", self._feed)],
            settings=self._settings,
        )

    def queued(self, *calls: tuple[str, Callable[[], object]]) -> None:
        """Let calls wait for the turn in this order, then give it to them."""
        turns = self.pipeline._turns
        turns.acquire("test")
        threads = []
        for name, call in calls:
            waiting = len(turns._line)
            thread = threading.Thread(target=self._run, args=(name, call))
            thread.start()
            threads.append(thread)
            reached = threading.Event()
            while len(turns._line) == waiting and not reached.wait(0.001):
                assert thread.is_alive(), self.told
        turns.release()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def _run(self, name: str, call: Callable[[], object]) -> None:
        try:
            self.told[name] = call()
        except Exception as error:  # noqa: BLE001 - compared by the test
            self.told[name] = error


def test_a_push_that_another_thread_committed_is_acknowledged_although_it_is_closed() -> None:
    """F11: an error would say that nothing was taken in, and the rows would be sent again."""
    bench = Bench()
    pipeline = bench.pipeline
    bench.queued(
        ("first", lambda: int(pipeline.push("clicks", [click("a")]))),
        ("close", pipeline.close),
        ("second", lambda: int(pipeline.push("clicks", [click("b")]))),
    )
    assert bench.told == {"first": 1, "close": None, "second": 1}
    assert len(contents(bench.open(), "clicks")) == 2


def test_a_damaged_run_of_keys_fails_pushes_with_a_key_only() -> None:
    """J14: those without one need no keys, also when they are committed together."""
    bench = Bench()
    bench.pipeline.push("clicks", [click("a")], key="k1")
    bench.pipeline.close()
    (run,) = (item.path for item in bench.store.list("runs/") if "push" in item.path)
    pipeline = bench.pipeline = bench.open()
    bench.store.delete(run)
    bench.queued(
        ("plain", lambda: int(pipeline.push("clicks", [click("b")]))),
        ("keyed", lambda: int(pipeline.push("clicks", [click("c")], key="k2"))),
    )
    assert bench.told["plain"] == 2
    assert isinstance(bench.told["keyed"], CorruptError)


def test_a_refused_transaction_of_the_loop_is_told_to_the_loop() -> None:
    """J10: a push to another table, a deploy and a close are not blamed for rows of a source."""
    feed = Feed("orders").put(order(1, "a", -5))
    bench = Bench(TESTED, GATED, feed)
    pipeline = bench.pipeline
    loop = IngestLoop(pipeline._session, pipeline._stop, once=False, transactions_max=None)

    def leave_open() -> None:
        assert loop.turn() is None
        assert pipeline._session.state.open is not None

    leave_open()
    assert int(pipeline.push("clicks", [click("z")])) == 1
    assert contents(pipeline, "orders") == []
    with pytest.raises(InvalidError, match="data test bad fails"):
        loop.turn()
    leave_open()
    pipeline._exchange(lambda session: session)
    with pytest.raises(InvalidError, match="data test bad fails"):
        loop.turn()
    leave_open()
    pipeline.close()
    assert len(contents(bench.open(), "clicks")) == 1


def test_a_push_tried_alone_is_tried_again_when_the_executor_is_lost() -> None:
    """R1: another executor takes it; only the push that was refused fails."""
    refused, good = (_push(name) for name in ("refused", "good"))
    lost: list[str] = []
    attempts: list[list[str]] = []

    def commit(intakes: Sequence[Intake]) -> Done:
        attempts.append([intake.table for intake in intakes])
        if "refused" in attempts[-1]:
            raise InvalidError("this row is refused")
        if len(attempts) == 3:
            lost.append("Java has ended")
            raise UnavailableError("the executor was lost", not_applied=True)
        return Done(Transaction(1), ManualEnv().now(), 1, (0,) * len(intakes), {}, Executed({}))

    queue = PushQueue(
        Committer(
            rows_max=lambda: 100,
            ensure_executor=lost.clear,
            executor_is_lost=lambda: bool(lost),
            answer=lambda intake: None,
            commit=commit,
            after=lambda done: None,
        )
    )
    for pushed in (refused, good):
        queue.append(pushed)
    queue.commit()
    assert attempts == [["refused", "good"], ["refused"], ["good"], ["good"]]
    assert isinstance(refused.error, InvalidError)
    assert (good.done, good.error) == (True, None)


def _push(table: str) -> Push:
    rows = pa.table({"id": [1]})
    return Push(Intake("push", table, Change(rows), 1, None, None))
