"""Deploying and changing a pipeline with data in it: what is rebuilt, what sinks receive."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.deploy.lease import read_lease, take_lease, unlock
from stepwell.deploy.log import DeployLog, Header, Record, remove_log
from stepwell.deploy.migration import Interrupted
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.program import as_deployed, project_differences
from stepwell.deploy.sections import Sections
from stepwell.deploy.state_file import read_state
from stepwell.engine.program_swap import _Swap
from stepwell.engine.settings import Settings
from stepwell.engine.swap_stages import Stage, stage_to_json
from stepwell.errors import ConflictError, FencedError, InvalidError
from stepwell.journal import paths
from stepwell.store.memory import MemoryStore
from stepwell.testing import EXECUTOR_VARIABLE
from tests.deploy.project_world import CHANGED, ORDERS, SQL, YML, Lab, lab

__all__ = ["lab"]


def test_a_first_deploy_creates_and_the_next_plan_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7: create for each, then nothing to do; nothing is written by planning."""
    lab = Lab(tmp_path / "project", monkeypatch)
    assert set(lab.actions().values()) == {"create"}
    assert not lab.inner.list(), "planning writes nothing"
    done = lab.deploy()
    assert (done.serial, dict(done.failed)) == (1, {})
    assert lab.actions() == {}
    assert lab.is_settled()
    assert lab.deploy().changed is None
    assert lab.serial == 1


def test_a_changed_view_is_rebuilt_and_its_sink_receives_the_difference_once(lab: Lab) -> None:
    """D11: retractions included, under a transaction of its own; unaffected views keep runs."""
    before = lab.manifest()
    assert lab.sink() == Counter({("ada", 30): 1, ("bob", 40): 1, ("eve", 1): 1})
    lab.write(CHANGED)
    plan = lab.plan()
    assert lab.actions() == {"view.revenue": "rebuild", "sink.out": "update"}
    step = next(step for step in plan.steps if step.key == "view.revenue")
    assert step.reason == "its query changed"
    assert any(line.startswith("+") and "MAX(amount)" in line for line in step.difference)
    assert step.work == {"orders": len(ORDERS)}
    done = lab.deploy()
    after = lab.manifest()
    assert after.transaction == before.transaction + 1
    assert {run.path for run in after.runs} == {run.path for run in before.runs}
    assert lab.rows("revenue") == Counter({("ada", 25): 1, ("bob", 40): 1, ("eve", 1): 1})
    batches = lab.batches()
    lab.run()
    assert len(lab.batches()) == len(batches) + 1, "one batch, with the difference only"
    assert lab.sink() == lab.rows("revenue")
    assert done.changed is not None
    assert done.changed.transaction == after.transaction
    lab.push((9, "eve", 100))
    assert (
        lab.sink()
        == lab.rows("revenue")
        == Counter({("ada", 25): 1, ("bob", 40): 1, ("eve", 100): 1})
    )


def test_the_stages_of_a_plan_are_those_that_deploy_applies(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7: a plan that shows other work than is done would be approved for the wrong reason."""
    lab.write(CHANGED)
    planned = lab.plan().to_json()["stages"]
    applied = []
    real = _Swap.apply

    def apply(self: _Swap, stage: Stage) -> None:
        applied.append(stage_to_json(stage))
        real(self, stage)

    monkeypatch.setattr(_Swap, "apply", apply)
    lab.deploy()
    assert applied == planned
    assert {"stage": "build_views", "views": ["revenue"]} in planned
    assert planned[-1] == {"stage": "commit_manifest"}
    assert lab.plan().to_json()["stages"] == [], "there is nothing left to do"


def test_a_large_difference_comes_to_the_sink_in_parts(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11: under numbers of their own, retractions first; the journal has no gap."""
    settings = Sections.settings

    def in_parts(sections: Sections) -> Settings:
        found = settings(sections)
        return replace(found, outbox=replace(found.outbox, part_rows_max=1))

    monkeypatch.setattr(Sections, "settings", in_parts)
    before = lab.manifest().transaction
    lab.write(SQL.replace("SUM(amount) AS total", "SUM(amount) + 1 AS total"))
    lab.deploy()
    assert lab.manifest().transaction == before + 6
    batches = lab.batches()
    lab.run()
    assert [int(name) for name in lab.batches()[len(batches) :]] == list(
        range(before + 1, before + 7)
    )
    assert lab.sink() == lab.rows("revenue")
    lab.push((9, "eve", 100))
    assert lab.sink() == lab.rows("revenue")
    assert lab.is_settled()


def test_a_declined_or_refused_deploy_opens_no_log(lab: Lab) -> None:
    """D6: and leaves every object but the lease as it was."""
    before = {item.path: item.modified for item in lab.inner.list()}
    lab.write(CHANGED)
    assert lab.deploy(approve=False).declined
    lab.write(SQL.replace("customer STRING, amount BIGINT", "customer STRING, amount INT"))
    with pytest.raises(InvalidError, match="cannot become int"):
        lab.deploy()
    after = {item.path: item.modified for item in lab.inner.list()}
    assert {path for path in after if after[path] != before.get(path)} <= {paths.LEASE}
    assert read_lease(lab.inner) is None


def test_an_interrupt_before_the_commit_changes_nothing(lab: Lab) -> None:
    """D6: no log is left, the lease is free, and the next deploy does it."""
    lab.write(CHANGED)
    before = lab.manifest().program

    def interrupt(name: str) -> None:
        if name:
            raise Interrupted

    assert lab.deploy(building=interrupt).interrupted
    assert lab.manifest().program == before
    assert not lab.inner.list(paths.DEPLOY_LOG)
    assert read_lease(lab.inner) is None
    assert lab.deploy().serial == 2


def test_one_failing_view_fails_its_dependants_and_nothing_else(lab: Lab) -> None:
    """D8: the root cause is named, what was done is committed, and the next plan shows the rest."""
    lab.write(
        CHANGED.replace("COUNT(*) AS n FROM clicks", "no_such_function(page) AS n FROM clicks")
        + "CREATE MATERIALIZED VIEW busy AS SELECT customer FROM visits WHERE n > 1;\n"
        + "CREATE MATERIALIZED VIEW pages AS SELECT DISTINCT page FROM clicks;\n"
    )
    done = lab.deploy()
    assert set(done.failed) == {"view.visits", "view.busy"}
    assert "needs view visits, which failed" in done.failed["view.busy"]
    assert lab.rows("revenue")[("ada", 25)] == 1
    assert lab.rows("pages") == Counter()
    assert lab.actions() == {"view.visits": "rebuild", "view.busy": "create"}
    assert lab.serial == 2
    lab.run()
    assert lab.sink() == lab.rows("revenue")


def test_views_are_added_dropped_and_renamed(lab: Lab) -> None:
    """D11: an added view has the rows that came before it; a sink follows a renamed one."""
    lab.write(
        SQL.replace("VIEW revenue AS", "VIEW earnings AS").replace(
            "CREATE MATERIALIZED VIEW visits AS SELECT customer, COUNT(*) AS n FROM clicks "
            "GROUP BY customer;",
            "CREATE MATERIALIZED VIEW best AS SELECT MAX(amount) AS m FROM orders;",
        ),
        YML.replace("view: revenue", "view: earnings"),
    )
    plan = lab.plan()
    assert lab.actions() == {
        "view.revenue": "delete",
        "view.visits": "delete",
        "view.earnings": "create",
        "view.best": "create",
        "sink.out": "update",
    }
    step = next(step for step in plan.steps if step.key == "view.earnings")
    assert step.reason == "it is revenue under another name"
    batches = lab.batches()
    lab.deploy()
    lab.run()
    assert lab.rows("best") == Counter({(40,): 1})
    assert lab.rows("earnings")[("ada", 30)] == 1
    assert lab.batches() == batches, "nothing is different for the sink"
    lab.push((9, "bob", 2))
    assert lab.sink() == lab.rows("earnings")
    assert lab.is_settled()


def test_a_plain_view_that_changes_rebuilds_what_reads_it(lab: Lab) -> None:
    """D7: the reason names the view; the rest is left alone."""
    lab.write(SQL.replace("amount > 10", "amount > 30"))
    assert lab.actions() == {"view.big": "update", "view.whales": "rebuild"}
    lab.deploy()
    assert lab.rows("whales") == Counter({("bob", 1): 1})
    assert lab.is_settled()


def test_comments_and_spaces_change_nothing(lab: Lab) -> None:
    """D7: what means the same is the same."""
    lab.write("-- money\n" + SQL.replace("  SELECT", "\n    SELECT /* x */"))
    assert lab.actions() == {}


def test_settings_that_change_a_meaning_are_deployed_with_views(lab: Lab) -> None:
    """S1: until the next deploy a view keeps its meaning; then it is recomputed."""
    name = "spark.sql.session.timeZone"
    lab.deploy()
    lab.write(
        yml=YML + f"spark: {{conf: {{{name}: Asia/Tokyo, spark.sql.shuffle.partitions: 3}}}}\n"
    )
    program = lab.manifest().program
    running = as_deployed(lab.project(), program).sections.spark.conf
    assert running == {"spark.sql.shuffle.partitions": 3}, "what is deployed has UTC"
    (told,) = {d for d in project_differences(lab.project(), program) if "revenue" in d}
    assert told.endswith(f"(SESSION_CHANGED: {name} was UTC, not Asia/Tokyo)")
    rebuilt = {f"view.{view}": "rebuild" for view in ("revenue", "visits", "whales")}
    assert rebuilt.items() <= lab.actions().items()
    lab.deploy()
    assert lab.actions() == {}
    lab.write()
    program = lab.manifest().program
    assert as_deployed(lab.project(), program).sections.spark.conf == {name: "Asia/Tokyo"}


def test_settings_change_for_all_views_or_for_none(lab: Lab) -> None:
    """D8: a view that cannot follow keeps its settings, and so do the others, and say why."""
    name = "spark.sql.session.timeZone"
    lab.deploy()
    lab.write(
        SQL.replace("COUNT(*) AS n FROM clicks", "no_such_function(page) AS n FROM clicks"),
        YML + f"spark: {{conf: {{{name}: Asia/Tokyo}}}}\n",
    )
    done = lab.deploy()
    assert "no_such_function" in done.failed["view.visits"].lower()
    assert "settings" in done.failed["view.revenue"]
    assert "visits" in done.failed["view.revenue"]
    lab.write()
    assert as_deployed(lab.project(), lab.manifest().program).sections.spark.conf == {}
    assert lab.actions() == {}
    lab.push((9, "ada", 9))
    assert sum(lab.rows("revenue").values()) == 3


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "with rows"])
def test_names_that_are_spelled_otherwise_lose_nothing(lab: Lab, filled: bool) -> None:
    """D11: tables and views are found in any case, and so is what is stored for them."""
    lab.deploy()
    if filled:
        lab.push((9, "zoe", 9))
    before = lab.rows("orders"), lab.rows("revenue"), lab.rows("whales")
    lab.write(SQL.replace("TABLE orders", "TABLE Orders").replace("VIEW whales", "VIEW Whales"))
    assert not lab.deploy().failed
    assert (lab.rows("orders"), lab.rows("revenue"), lab.rows("whales")) == before
    lab.push((10, "zoe", 30))
    assert sum(lab.rows("orders").values()) == sum(before[0].values()) + 1
    assert lab.actions() == {}


def test_a_name_that_a_failed_view_keeps_in_use_is_not_given_away(lab: Lab) -> None:
    """D8: a view that becomes a table stays a view, where what reads it could not follow."""
    reader = "CREATE MATERIALIZED VIEW reader AS SELECT customer FROM big;\n"
    lab.write(SQL + reader)
    assert not lab.deploy().failed
    table = SQL.replace(
        "VIEW big AS SELECT * FROM orders WHERE amount > 10",
        "TABLE big (id BIGINT PRIMARY KEY, customer STRING)",
    )
    lab.write(table + reader.replace("customer FROM", "no_such_function(customer) AS c FROM"))
    assert {"view.reader", "table.big"} <= set(lab.deploy().failed)
    lab.write(SQL + reader)
    lab.push((9, "zoe", 99))
    assert lab.rows("reader")[("zoe",)] == 1
    lab.write(table + reader)
    lab.deploy()
    assert lab.rows("reader") == Counter()


def test_columns_are_added_widened_and_dropped(lab: Lab) -> None:
    """D11: rows that are there get NULL or the default, and lose what is dropped."""
    lab.write(
        SQL.replace(
            "customer STRING, amount BIGINT",
            "customer STRING, amount DECIMAL(20,1), note STRING, kind STRING DEFAULT 'web'",
        ).replace("page STRING)", "page STRING, at TIMESTAMP)"),
        YML.split("sinks")[0],
    )
    plan = lab.plan()
    step = next(step for step in plan.steps if step.key == "table.orders")
    assert step.reason == (
        "adds column note, adds column kind, widens amount from bigint to decimal(20,1)"
    )
    lab.deploy()
    assert all(row[3:] == (None, "web") for row in lab.rows("orders"))
    assert sum(lab.rows("orders").values()) == len(ORDERS)
    assert lab.rows("whales") == Counter({("ada", 1): 1, ("bob", 1): 1})
    lab.write(SQL.replace("customer STRING, amount BIGINT", "customer STRING, amount BIGINT"))
    with pytest.raises(InvalidError, match="cannot become bigint"):
        lab.deploy()
    lab.write(
        SQL.replace("customer STRING, amount BIGINT", "customer STRING, amount DECIMAL(20,1)"),
        YML.split("sinks")[0],
    )
    assert "values of note, kind in about 4 rows" in str(lab.plan().lost[0].lost)
    lab.deploy()
    assert all(len(row) == 3 for row in lab.rows("orders"))
    assert lab.is_settled()


def test_a_key_that_does_not_tell_rows_apart_is_refused_and_changes_nothing(lab: Lab) -> None:
    """D11: another key must hold for the rows that are there."""
    lab.write(
        SQL.replace(
            "id BIGINT PRIMARY KEY, customer STRING", "id BIGINT NOT NULL, customer STRING NOT NULL"
        )
    )
    with pytest.raises(InvalidError, match="customer becomes NOT NULL"):
        lab.deploy()
    strict = SQL.replace("customer STRING, amount", "customer STRING NOT NULL, amount")
    lab.inner = lab.store = MemoryStore(lab.env)
    shutil.rmtree(lab.folder / "out")
    lab.write(strict)
    lab.deploy()
    lab.push(*ORDERS)
    lab.write(
        strict.replace("id BIGINT PRIMARY KEY", "id BIGINT NOT NULL").replace(
            "customer STRING NOT NULL, amount", "customer STRING PRIMARY KEY, amount"
        )
    )
    done = lab.deploy()
    assert "4 rows would become 3" in done.failed["table.orders"]
    assert sum(lab.rows("orders").values()) == len(ORDERS)


def test_without_a_key_rows_stay_what_they_are(lab: Lab) -> None:
    """D11: a table may lose its key."""
    lab.write(SQL.replace("id BIGINT PRIMARY KEY", "id BIGINT NOT NULL"))
    lab.deploy()
    assert sum(lab.rows("orders").values()) == len(ORDERS)
    assert lab.is_settled()


def test_a_dropped_table_says_what_is_lost(lab: Lab) -> None:
    """D9: how many rows, before anything happens."""
    lab.write(
        "\n".join(line for line in SQL.splitlines() if "clicks" in line), YML.split("sinks")[0]
    )
    lost = [step.lost for step in lab.plan().lost]
    assert lost == [f"about {len(ORDERS)} rows of table orders"]
    lab.deploy()
    assert lab.is_settled()
    with pytest.raises(InvalidError, match="no table or view orders"):
        lab.rows("orders")


def test_what_is_protected_stays_so_after_it_has_left_the_file(lab: Lab) -> None:
    """D9: it is refused until it was deployed without protection."""
    lab.write(SQL, YML + "protect: [clicks, out]\n")
    assert lab.actions() == {"table.clicks": "update", "sink.out": "update"}
    lab.deploy()
    without = "\n".join(line for line in SQL.splitlines() if "clicks" not in line)
    lab.write(without)
    with pytest.raises(InvalidError, match="table clicks: it is protected"):
        lab.deploy()
    lab.write(SQL)
    lab.deploy()
    lab.write(without)
    lab.deploy()
    assert lab.is_settled()


def test_two_deploys_at_once_one_is_told_who_the_other_is(lab: Lab) -> None:
    """D5, scenario 80: the second waits, and names the owner when it gives up."""
    lab.write(CHANGED)
    seen: list[str] = []

    def second(name: str) -> None:
        if name and not seen:
            with pytest.raises(ConflictError, match="is deploying") as caught:
                lab.deploy(wait_s=1.0)
            seen.append(caught.value.message)

    assert lab.deploy(building=second).serial == 2
    assert seen


def test_readers_see_what_is_committed_while_a_deploy_is_under_way(lab: Lab) -> None:
    """D5, scenario 79: plan and queries write nothing and wait for nobody."""
    lab.write(CHANGED)
    seen: list[object] = []

    def read(name: str) -> None:
        if name:
            objects = {item.path for item in lab.inner.list()}
            seen.append(lab.rows("revenue")[("ada", 30)])
            seen.append(lab.actions()["view.revenue"])
            assert {item.path for item in lab.inner.list()} == objects

    lab.deploy(building=read)
    assert seen == [1, "rebuild"]


def test_a_kept_plan_is_good_for_what_it_was_made_for(lab: Lab) -> None:
    """D7: it deploys what it shows, whatever the files say by now; and only once."""
    lab.write(CHANGED)
    kept = lab.plan().encode()
    lab.write(SQL)
    lab.deploy(plan_data=("today.plan", kept))
    assert lab.rows("revenue")[("ada", 25)] == 1
    with pytest.raises(ConflictError, match="has changed since it was made"):
        lab.deploy(plan_data=("today.plan", kept))


def test_a_runner_that_takes_over_in_the_middle_wins(lab: Lab) -> None:
    """D4: the deploy is fenced before its commit: nothing happened, and the next one works."""
    lab.write(CHANGED)

    def run(name: str) -> None:
        if name:
            lab.push((9, "bob", 3))

    with pytest.raises(FencedError):
        lab.deploy(building=run)
    assert lab.rows("revenue")[("bob", 43)] == 1
    assert lab.serial == 1
    lab.env.advance(60)
    assert lab.deploy().serial == 2
    lab.run()
    assert (
        lab.sink()
        == lab.rows("revenue")
        == Counter({("ada", 25): 1, ("bob", 40): 1, ("eve", 1): 1})
    )


def test_a_pipeline_that_a_run_has_made_gets_its_record_from_the_next_deploy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: the manifest is the truth, and the record is brought up to it."""
    lab = Lab(tmp_path / "project", monkeypatch)
    ProjectPipeline(lab.project(), lab.env).close()
    assert lab.serial == 0
    assert lab.deploy().changed is None
    assert (lab.serial, lab.is_settled()) == (1, True)
    lab.deploy()
    assert lab.serial == 1


def test_another_executor_is_refused_by_the_plan(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """D7: with the reason, also where nothing else has changed."""
    monkeypatch.delenv(EXECUTOR_VARIABLE)
    lab.write()
    plan = lab.plan()
    assert not plan.changes
    assert "made with the executor reference" in plan.refusals[0]
    with pytest.raises(InvalidError, match="stores other relations than spark"):
        lab.deploy()
    with pytest.raises(InvalidError, match="the executor reference, which is only for tests"):
        lab.open()


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_deploy_that_lost_its_lease_leaves_its_successor_the_log(
    lab: Lab, interrupted: bool
) -> None:
    """D5, D4: its outcomes belong into no log but its own. A successor's that lost its beginning
    would be damage, which stops every deploy after it.
    """
    lab.deploy()
    lab.push(*ORDERS)
    lab.write(CHANGED)
    theirs: dict[str, bytes] = {}

    def objects() -> dict[str, bytes]:
        found = {item.path: lab.inner.get(item.path) for item in lab.inner.list(paths.DEPLOY_LOG)}
        return {path: item.data for path, item in found.items() if item is not None}

    def building(name: str) -> None:
        if not name or theirs:
            return
        owner = read_lease(lab.inner)
        assert owner is not None
        unlock(lab.inner, owner.id)
        take_lease(lab.inner, lab.env, wait_s=0)
        remove_log(lab.inner)
        serial = read_state(lab.inner).serial + 1
        log = DeployLog(
            lab.inner, lab.env, Header(lab.env.new_id(), lab.manifest().lineage, serial)
        )
        log.append(Record("intent", "view.other", "create", {"id": "x"}))
        theirs.update(objects())
        if interrupted:
            raise Interrupted

    with pytest.raises(ConflictError, match="lost its lease"):
        lab.deploy(building=building)
    assert len(theirs) == 2
    assert objects() == theirs
