"""The reference executor keeps the contract that every executor keeps."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from stepwell.errors import CorruptError, InvalidError, TruncatedError
from stepwell.execution.executor import ExecutorFactory
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.change import Change
from stepwell.lsm.limits import MemoryLimits
from stepwell.plan.reasons import Unsupported
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.execution.executor_contract import CONTRACT_SQL, ExecutorContract, ids, orders, run


class TestReferenceExecutor(ExecutorContract):
    @pytest.fixture
    def factory(self) -> ExecutorFactory:
        return lambda store, env: ReferenceExecutor(CONTRACT_SQL, store, env)

    def test_a_damaged_run_is_named(self, executor: ReferenceExecutor, store: MemoryStore) -> None:
        """K2: never wrong rows."""
        env = ManualEnv(3)
        run(executor, env, {"orders": Change(orders((1, "a", 1)))})
        runs = executor.flush()
        stored = store.get(runs[0].path)
        assert stored is not None
        store.delete(runs[0].path)
        with pytest.raises(TruncatedError, match=runs[0].path):
            executor.load(runs)
        store.put_new(runs[0].path, stored.data[:-1] + b"?")
        with pytest.raises(CorruptError, match=runs[0].path):
            executor.load(runs)


@pytest.mark.parametrize("merged", [1, 1000])
class TestReferenceExecutorInFiles(ExecutorContract):
    """The same with run files, which are compacted as a whole or by ranges of keys."""

    @pytest.fixture
    def factory(self, merged: int) -> ExecutorFactory:
        limits = MemoryLimits(memory_rows_max=1, merged_rows_max=merged)
        return lambda store, env: ReferenceExecutor(CONTRACT_SQL, store, env, limits)


@pytest.mark.parametrize("memory", [0, 1000])
def test_values_of_every_type_survive_a_flush(memory: int) -> None:
    """K2: what is read from a run is what was put into the table, in memory or in a file."""
    sql = (
        "CREATE TABLE t (a BOOLEAN, b SMALLINT, c DOUBLE, d DECIMAL(12,2), e STRING, f BINARY, "
        "g DATE, h TIMESTAMP, i TIMESTAMP_NTZ, j ARRAY<INT>)"
    )
    env = ManualEnv()
    limits = MemoryLimits(memory_rows_max=memory)
    executor = ReferenceExecutor(sql, MemoryStore(env), env, limits)
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    row = {
        "a": True,
        "b": 7,
        "c": float("nan"),
        "d": Decimal("1.50"),
        "e": "ü",
        "f": b"\x00",
        "g": date(2026, 1, 2),
        "h": moment,
        "i": moment.replace(tzinfo=None),
        "j": [1, None],
    }
    run(executor, env, {"t": Change(pa.Table.from_pylist([row, dict.fromkeys(row)]))})
    before = executor.read("t")
    executor.load(executor.flush())
    assert repr(executor.read("t").to_pylist()) == repr(before.to_pylist())
    assert before.num_rows == 2


def test_a_view_over_a_view_follows_and_a_plain_view_is_understood() -> None:
    """S4: in the order in which they are declared."""
    sql = CONTRACT_SQL + (
        "CREATE VIEW large AS SELECT * FROM orders WHERE amount > 10;"
        "CREATE MATERIALIZED VIEW top (who) AS SELECT customer FROM large;"
        "CREATE MATERIALIZED VIEW several AS SELECT customer FROM revenue WHERE n > 1;"
    )
    env = ManualEnv()
    executor = ReferenceExecutor(sql, MemoryStore(env), env)
    run(executor, env, {"orders": Change(orders((1, "a", 11), (2, "a", 1)))})
    assert executor.read("top").to_pylist() == [{"who": "a"}]
    assert executor.read("several").to_pylist() == [{"customer": "a"}]
    run(executor, env, {"orders": Change(None, ids(1))})
    assert executor.read("several").num_rows == 0


def test_what_it_does_not_know_it_refuses() -> None:
    """S3: an oracle that guesses is none."""
    env = ManualEnv()
    executor = ReferenceExecutor("CREATE TABLE t (m MAP<STRING, INT>)", MemoryStore(env), env)
    with pytest.raises(InvalidError, match="does not know the type"):
        run(executor, env, {"t": Change(pa.table({"m": [1]}))})
    with pytest.raises(InvalidError, match="no table x"):
        run(executor, env, {"x": Change(pa.table({"m": [1]}))})


@pytest.mark.parametrize(
    "text",
    [
        "FROM orders INSERT OVERWRITE DIRECTORY '{folder}' USING csv SELECT id",
        "WITH a AS (SELECT 1 AS id) INSERT INTO orders SELECT * FROM a",
        "INSERT INTO orders SELECT * FROM orders",
        "SELECT TRANSFORM(id) USING 'touch {folder}/new' FROM orders",
        "SELECT * FROM text.`{folder}/canary`",
        "SELECT * FROM csv.`{folder}/canary`",
        "SELECT reflect('java.lang.System', 'getenv', 'PATH') FROM orders",
        "DROP TABLE orders",
        "SET x = 1",
    ],
)
def test_a_query_that_would_do_more_than_ask_is_refused(tmp_path: Path, text: str) -> None:
    """R2: it computes what it knows, and knows nothing that reaches further than its relations."""
    (tmp_path / "canary").write_text("sings")
    env = ManualEnv()
    executor = ReferenceExecutor(CONTRACT_SQL, MemoryStore(env), env)
    run(executor, env, {"orders": Change(orders((1, "a", 1)))})
    with pytest.raises((InvalidError, Unsupported)):
        executor.query(text.replace("{folder}", str(tmp_path)))
    assert executor.read("orders").num_rows == 1
    assert [path.name for path in tmp_path.iterdir()] == ["canary"]


def test_a_query_has_no_variables() -> None:
    """R2: what looks like one is a text."""
    env = ManualEnv()
    executor = ReferenceExecutor(CONTRACT_SQL, MemoryStore(env), env)
    run(executor, env, {"orders": Change(orders((1, "a", 1)))})
    found = executor.query("SELECT '${env:PATH}' AS x FROM orders")
    assert found.to_pylist() == [{"x": "${env:PATH}"}]
