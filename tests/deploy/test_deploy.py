"""Deploying and changing a pipeline with data in it: what is rebuilt, what sinks receive."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.deploy.changing import Interrupted
from stepwell.deploy.lease import read_lease
from stepwell.deploy.pipeline import ProjectPipeline, make_executor
from stepwell.deploy.program import as_deployed, project_differences
from stepwell.deploy.project import Project
from stepwell.deploy.sections import Sections
from stepwell.engine.ports import Executor, ExecutorFactory
from stepwell.engine.settings import Settings
from stepwell.env import Env
from stepwell.errors import ConflictError, FencedError, InvalidError, StepwellError
from stepwell.journal import paths
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, ManualEnv, crash_at, fail_at
from tests.deploy.changing import CHANGED, ORDERS, SQL, YML, Lab, lab

__all__ = ["lab"]


def copy_of(store: Store) -> MemoryStore:
    """The same objects in a store of its own, so that many crashes begin alike."""
    made = MemoryStore(ManualEnv())
    for item in store.list():
        found = store.get(item.path)
        assert found is not None
        made.put_new(item.path, found.data)
    return made


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


def test_a_large_difference_comes_to_the_sink_in_parts(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11: under numbers of their own, what goes first; the journal has no gap."""
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


@pytest.mark.parametrize(
    "query",
    [
        "SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer",
        "SELECT customer AS who, SUM(amount) AS total FROM orders GROUP BY customer",
        "SELECT * FROM orders WHERE amount > 0",
        "SELECT * FROM big",
    ],
)
def test_a_sink_that_cannot_follow_is_refused_by_the_plan(lab: Lab, query: str) -> None:
    """D7, D11: names of columns are plain to see; nothing was begun, and the next step is said."""
    old = "SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer"
    assert old in SQL
    lab.write(SQL.replace(old, query))
    (refused,) = lab.plan().refusals
    assert "sink out: revenue has other columns than what it has received so far" in refused
    assert "customer, total before" in refused
    with pytest.raises(InvalidError, match="this cannot be deployed"):
        lab.deploy()
    assert lab.serial == 1
    lab.write(
        SQL.replace(old, query), YML.replace("  out:", "  anew:").replace("path: out", "path: b")
    )
    assert not lab.plan().refusals
    lab.deploy()
    lab.run()
    assert lab.actions() == {}


def test_a_sink_that_never_began_takes_whatever_columns_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11: it begins with the whole view when the pipeline is opened."""
    lab = Lab(tmp_path / "project", monkeypatch)
    lab.deploy()
    lab.write(SQL.replace("SUM(amount) AS total", "SUM(amount) AS total, COUNT(*) AS n"))
    assert not lab.plan().refusals
    assert lab.deploy().failed == {}
    assert lab.actions() == {}


def test_a_sink_that_cannot_follow_holds_its_view_back(lab: Lab) -> None:
    """D8, D11: other types cannot be sent as a difference, and only the executor knows them; the
    view stays, and it is said.
    """
    lab.write(
        SQL.replace("SUM(amount) AS total", "CAST(SUM(amount) AS STRING) AS total").replace(
            "COUNT(*) AS n FROM clicks", "COUNT(*) AS m FROM clicks"
        )
    )
    done = lab.deploy()
    assert "other columns" in done.failed["sink.out"]
    assert "view.revenue" in done.failed
    assert "view.visits" not in done.failed
    assert lab.rows("revenue")[("ada", 30)] == 1


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
    assert step.reason == "as revenue, under another name"
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
    """S1: until the next deploy a view means what it meant; then it is computed anew."""
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
    assert "4 would become 3" in done.failed["table.orders"]
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


def test_sinks_are_added_moved_and_removed(lab: Lab) -> None:
    """D11: a new one gets the whole view, one that is moved too, a removed one is forgotten."""
    both = YML + "  more: {view: whales, type: files, path: more, format: json}\n"
    lab.write(SQL, both)
    lab.deploy()
    lab.run()
    assert lab.sink("more") == lab.rows("whales")
    lab.write(SQL, both.replace("path: out", "path: elsewhere"))
    assert lab.actions() == {"sink.out": "rebuild"}
    lab.deploy()
    lab.run()
    assert lab.sink("elsewhere") == lab.rows("revenue")
    lab.write(SQL, YML.split("sinks")[0])
    lab.deploy()
    lab.run()
    assert lab.is_settled()
    assert not lab.manifest().progress.sinks


def test_a_sink_in_its_place_with_another_format_is_refused(lab: Lab) -> None:
    """D7: half of its files would be of one kind and half of another."""
    lab.write(SQL, YML.replace("format: json", "format: csv"))
    with pytest.raises(InvalidError, match="format changed, which does not fit"):
        lab.deploy()


def test_a_source_goes_on_where_it_stands_and_a_new_one_begins(lab: Lab) -> None:
    """D11: rows are taken once, whatever changes around them."""
    data = lab.folder / "data"
    data.mkdir()
    (data / "a.json").write_text('{"id": 50, "customer": "sue", "amount": 3}\n', encoding="utf-8")
    source = (
        "sources:\n  files: {table: orders, type: files, path: data/*.json, format: json, "
        "settle: 0s}\n"
    )
    lab.write(SQL, YML + source)
    assert lab.actions() == {"source.files": "create"}
    lab.deploy()
    lab.run()
    assert lab.rows("revenue")[("sue", 3)] == 1
    lab.write(CHANGED, YML + source.replace("settle: 0s", "settle: 1ms"))
    lab.deploy()
    lab.run()
    assert lab.rows("orders")[(50, "sue", 3)] == 1
    lab.write(CHANGED, YML + source.replace("table: orders", "table: clicks"))
    with pytest.raises(InvalidError, match="its table changes"):
        lab.deploy()
    lab.write(CHANGED, YML)
    lab.deploy()
    assert not lab.manifest().progress.sources


def test_output_that_waits_for_a_sink_survives_a_deploy(lab: Lab) -> None:
    """D11: what the sink lacks of the old view comes first, then the difference."""
    lab.push((9, "bob", 100))
    out = lab.folder / "out"
    hidden = lab.folder / "hidden"
    out.rename(hidden)
    out.write_text("in the way", encoding="utf-8")
    with lab.open() as pipeline:
        pipeline.push("orders", [{"id": 10, "customer": "new", "amount": 6}])
    lab.write(CHANGED)
    lab.deploy()
    assert [item.sink for item in lab.manifest().progress.outbox] == ["out", "out"]
    out.unlink()
    hidden.rename(out)
    lab.run()
    assert lab.sink() == lab.rows("revenue")


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
    with pytest.raises(ConflictError, match="something else is now"):
        lab.deploy(plan_data=("today.plan", kept))


def test_no_secret_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D7: options are stored with their references, also in a plan that is kept."""
    monkeypatch.setenv("SECRET_FOLDER", "hush-hush")
    lab = Lab(tmp_path / "project", monkeypatch)
    lab.write(SQL, YML.replace("path: out", 'path: "${env:SECRET_FOLDER}"'))
    plan = lab.plan().encode()
    lab.deploy()
    lab.push(*ORDERS)
    lab.run()
    assert lab.sink("hush-hush") == lab.rows("revenue")
    stored = b"".join(
        found.data for item in lab.inner.list() if (found := lab.inner.get(item.path))
    )
    assert b"hush-hush" not in stored + plan
    assert b"${env:SECRET_FOLDER}" in stored
    assert lab.actions() == {}


def test_a_new_sink_that_holds_something_already_fails_alone(lab: Lab) -> None:
    """D8: deployed, it would keep the pipeline from being opened; so it is found out before."""
    lab.write(SQL, YML.split("sinks")[0])
    lab.deploy()
    lab.write(CHANGED, YML)
    done = lab.deploy()
    assert "holds transaction 4" in done.failed["sink.out"]
    assert set(done.failed) == {"sink.out"}
    assert lab.rows("revenue")[("ada", 25)] == 1
    shutil.rmtree(lab.folder / "out")
    assert not lab.deploy().failed
    lab.run()
    assert lab.sink() == lab.rows("revenue")


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


def test_another_executor_is_refused_by_the_plan(lab: Lab) -> None:
    """D7: with the reason, also where nothing else has changed."""
    lab.write(SQL, YML.replace("executor: reference\n", ""))
    plan = lab.plan()
    assert not plan.changes
    assert "made with the executor reference" in plan.refusals[0]
    with pytest.raises(InvalidError, match="stores other relations than spark"):
        lab.deploy()


def test_a_sink_is_removed_together_with_its_secret(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11: what cannot be reached any more can still be let go."""
    monkeypatch.setenv("SECRET_FOLDER", "hush")
    more = '  more: {view: whales, type: files, path: "${env:SECRET_FOLDER}", format: json}\n'
    lab.write(SQL, YML + more)
    lab.deploy()
    lab.run()
    assert lab.sink("hush") == lab.rows("whales")
    monkeypatch.delenv("SECRET_FOLDER")
    lab.write(CHANGED, YML)
    assert not lab.deploy().failed
    lab.run()
    assert lab.sink() == lab.rows("revenue")


@pytest.mark.parametrize("pending", [False, True], ids=["closed", "with entries to replay"])
def test_a_change_of_sources_and_sinks_alone_makes_no_executor(lab: Lab, pending: bool) -> None:
    """D7: only the work it causes; no Spark is started, and no view compiled, for nothing."""
    made: list[str] = []

    def make(project: Project, spark: object) -> ExecutorFactory:
        def factory(store: Store, env: Env) -> Executor:
            made.append("executor")
            return make_executor(project, None)(store, env)

        return factory

    if pending:
        lab.store = dying = FaultyStore(lab.inner)
        pipeline = lab.open()
        pipeline.push("orders", [{"id": 50, "customer": "zoe", "amount": 7}])
        dying.dead = True
        lab.store = lab.inner
    expected = lab.rows("revenue")
    runs = lab.manifest().runs
    more = YML + "  more: {view: visits, type: files, path: more, format: json}\n"
    lab.write(yml=more)
    assert lab.actions() == {"sink.more": "create"}
    assert lab.deploy(executor=make).changed is not None
    assert made == (["executor"] if pending else [])
    assert set(runs) <= set(lab.manifest().runs)
    assert lab.actions() == {}
    assert lab.rows("revenue") == expected
    lab.write(yml=more.replace("view: visits", "view: whales"))
    made.clear()
    lab.run()
    done = lab.deploy(executor=make)
    assert done.changed is not None or done.plan.refusals
    assert len(made) <= 1, "what a sink is to receive is computed by the views there are"
    lab.write(yml=YML)
    made.clear()
    assert lab.actions() == {"sink.more": "delete"}
    lab.deploy(executor=make)
    assert made == []
    assert lab.actions() == {}
    assert lab.rows("revenue") == expected
    lab.push((60, "zoe", 1))
    assert lab.sink() == lab.rows("revenue")


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
