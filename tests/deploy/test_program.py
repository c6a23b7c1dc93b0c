"""A pipeline is opened by the statements it was made with, and by no others."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell
from stepwell.deploy.project import load_project
from stepwell.deploy.snapshot import take_snapshot
from stepwell.engine.pipeline import Pipeline
from stepwell.env import Env, SystemEnv
from stepwell.errors import InvalidError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.manifest.manifest import Manifests
from stepwell.store.base import Store
from stepwell.store.locate import open_store
from stepwell.store.memory import MemoryStore
from stepwell.testing import EXECUTOR_VARIABLE, Crash, FaultyStore, ManualEnv, crash_at
from tests.deploy.conftest import SQL, YML, Write

ROW = {"id": 1, "customer": "ada", "amount": 5}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("SUM(amount)", "MAX(amount)"), "revenue has changed"),
        (("amount > 100", "amount > 1"), "big has changed"),
        (("id BIGINT PRIMARY KEY", "id BIGINT"), "orders has changed"),
        (("CREATE VIEW big", "CREATE VIEW large"), "big is gone, large is new"),
        (("GROUP BY customer;", "GROUP BY customer;\nCREATE TABLE t (a INT);"), "t is new"),
    ],
)
def test_another_program_is_refused_and_fences_nobody(
    write: Write, change: tuple[str, str], words: str
) -> None:
    """S6: rows stored for one query are not an answer to another; a new view would lack the
    past."""
    folder = write()
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
        write(YML, SQL.replace(*change))
        with pytest.raises(InvalidError, match=words):
            stepwell.open(folder)
        with pytest.raises(InvalidError, match=words):
            take_snapshot(load_project(folder, SystemEnv()), SystemEnv())
        assert pipeline.push("orders", [{**ROW, "id": 2}]) == 2, "it still has the pipeline"


def test_other_settings_that_change_a_meaning_are_refused(write: Write) -> None:
    """S1: a sum that overflows is an error under ANSI and NULL without; stored rows are of one."""
    plain = "spark:\n  conf: {spark.sql.shuffle.partitions: 2}\n"
    other = "spark:\n  conf: {spark.sql.ansi.enabled: false, spark.sql.shuffle.partitions: 3}\n"
    with stepwell.open(write(YML + plain)) as pipeline:
        pipeline.push("orders", [ROW])
    told = "SESSION_CHANGED: spark.sql.ansi.enabled was true, not false"
    with pytest.raises(InvalidError, match=told):
        stepwell.open(write(YML + other))
    same = "spark:\n  conf: {spark.sql.ansi.enabled: true, spark.sql.shuffle.partitions: 9}\n"
    with stepwell.open(write(YML + same)) as again:
        assert again.query("SELECT total FROM revenue").num_rows == 1


def test_what_means_the_same_is_the_same(write: Write) -> None:
    """S6: comments, line ends and indentation are the author's affair."""
    folder = write()
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
    text = "-- what we earn\n" + SQL.replace(" AS\n", "   AS -- sums\r\n") + "\n\n"
    with stepwell.open(write(YML, text)) as again:
        assert again.query("SELECT total FROM revenue").num_rows == 1


def test_spaces_in_a_string_are_not_indentation(write: Write) -> None:
    """S6: 'a b' and 'a  b' are two values."""
    text = SQL.replace("GROUP", "WHERE customer <> 'a b' GROUP")
    with stepwell.open(write(YML, text)):
        pass
    with pytest.raises(InvalidError, match="revenue has changed"):
        stepwell.open(write(YML, text.replace("'a b'", "'a  b'")))


def test_another_executor_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: each stores other relations for the same views."""
    with stepwell.open(write()):
        pass
    monkeypatch.delenv(EXECUTOR_VARIABLE)
    with pytest.raises(InvalidError, match="executor was reference, not spark"):
        stepwell.open(write(YML))


def test_another_sink_is_refused_until_it_is_deployed(write: Write) -> None:
    """D7: what runs is what is deployed; a sink forgotten by accident could not come back."""
    with stepwell.open(write()):
        pass
    with pytest.raises(InvalidError, match="sink revenue_out is gone") as caught:
        stepwell.open(write(YML.split("sinks:")[0]))
    assert "stepwell deploy" in (caught.value.hint or "")


def test_the_program_is_in_the_manifest(write: Write) -> None:
    """K1: the state shows whose it is."""
    folder: Path = write()
    with stepwell.open(folder):
        pass
    found = Manifests(open_store(str(folder / "state"), SystemEnv()), SystemEnv()).latest()
    assert found is not None
    keys = ["table.orders", "view.big", "view.revenue", "source.order_files", "sink.revenue_out"]
    assert list(found.manifest.program["resources"]) == keys


def made(store: Store, env: Env) -> ReferenceExecutor:
    return ReferenceExecutor("CREATE TABLE t (a INT)", store, env)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_while_it_is_recorded_leaves_it_recorded_or_not(when: str) -> None:
    """K1, scenario 44: never something else, and never two of them."""
    for number in range(1, 60):
        env = ManualEnv(number)
        store = MemoryStore(env)
        try:
            Pipeline(
                FaultyStore(store, crash_at(number, when)),  # type: ignore[arg-type]
                env,
                executor=made,
                program={"a": 1},
            ).close()
        except Crash:
            pass
        else:
            return
        found = Manifests(store, env).latest()
        known = None if found is None else found.manifest.program
        assert known in (None, {"a": 1})
        if known is not None:
            with pytest.raises(InvalidError, match="another program"):
                Pipeline(store, env, executor=made, program={"a": 2})
        with Pipeline(store, env, executor=made, program={"a": 1}) as again:
            assert again.push("t", [{"a": 1}]) == 1
    pytest.fail("the opening has more store calls than were tried")
