"""Sources and sinks that are added, changed and removed; what continues, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stepwell.deploy.pipeline import make_executor
from stepwell.deploy.project import Project
from stepwell.env import Env
from stepwell.errors import InvalidError
from stepwell.execution.executor import Executor, ExecutorFactory
from stepwell.store.base import Store
from stepwell.testing import FaultyStore
from tests.deploy.project_world import CHANGED, ORDERS, SQL, YML, Lab, lab

__all__ = ["lab"]


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
        SQL.replace(old, query), YML.replace("  out:", "  renamed:").replace("path: out", "path: b")
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
    with pytest.raises(InvalidError, match="format changed, which does not match"):
        lab.deploy()


def test_a_source_continues_from_its_position_and_a_new_one_starts(lab: Lab) -> None:
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


FILES = (
    "sources:\n  files: {table: clicks, type: files, path: data/one/*.json, format: json, "
    "settle: 0s}\n"
)
OLD = "data/one/*.json"


def two_folders(lab: Lab) -> None:
    """A source on the first of two folders, with files of the same name."""
    for folder, customer in (("one", "ada"), ("two", "bob")):
        (lab.folder / "data" / folder).mkdir(parents=True)
        row = json.dumps({"customer": customer, "page": "/"})
        (lab.folder / "data" / folder / "a.json").write_text(f"{row}\n", encoding="utf-8")
    lab.write(SQL, YML + FILES)
    lab.deploy()


@pytest.mark.parametrize(
    "path", ["data/*/*.json", "data/two/*.json", "data/one", '"${env:FOLDER}/*.json"']
)
def test_a_source_that_has_taken_files_keeps_its_base_folder(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """D7, J5, scenario 113: names below another folder are other files, to come twice or never."""
    monkeypatch.setenv("FOLDER", str(lab.folder / "data" / "one"))
    two_folders(lab)
    lab.run()
    lab.write(SQL, YML + FILES.replace(OLD, path))
    with pytest.raises(InvalidError, match=r"base folder .*give the new source another name"):
        lab.deploy()
    assert [step.key for step in lab.plan().refused] == ["source.files"]
    lab.write(SQL, YML + FILES.replace(OLD, path).replace("files:", "more:", 1))
    lab.deploy()
    lab.run()
    assert ("ada", "/") in lab.rows("clicks")


@pytest.mark.parametrize(
    "path", ["data/one/**/*.json", "./data/one/*.json", "data/../data/one/a*", "<folder>/*.json"]
)
def test_a_source_continues_with_another_pattern_below_its_base_folder(lab: Lab, path: str) -> None:
    """D11, J5: what was taken is not taken again, and what the pattern left out is."""
    two_folders(lab)
    lab.run()
    path = path.replace("<folder>", str(lab.folder / "data" / "one"))
    lab.write(SQL, YML + FILES.replace(OLD, path))
    lab.deploy()
    later = '{"customer": "eve", "page": "/"}\n'
    (lab.folder / "data" / "one" / "a2.json").write_text(later, encoding="utf-8")
    lab.run()
    assert lab.rows("clicks") == {("ada", "/"): 1, ("eve", "/"): 1}


def test_a_source_that_has_taken_nothing_may_get_any_path(lab: Lab) -> None:
    """D11: a wrong path is corrected in its place."""
    two_folders(lab)
    lab.write(SQL, YML + FILES.replace(OLD, "data/two/*.json"))
    lab.deploy()
    lab.run()
    assert lab.rows("clicks") == {("bob", "/"): 1}


def test_what_a_source_has_taken_since_the_last_flush_counts(lab: Lab) -> None:
    """D11, J5, scenario 113: a writer was killed; only the journal knows what it took."""
    two_folders(lab)
    killed = lab.open()
    step = killed._session.poll()
    assert step is not None
    killed._session.commit(step)
    assert all(at.position is None for at in lab.manifest().progress.sources)
    lab.write(SQL, YML + FILES.replace(OLD, "data/two/*.json"))
    done = lab.deploy(take_over=True)
    assert "its base folder changes" in done.failed["source.files"]
    lab.run()
    assert lab.rows("clicks") == {("ada", "/"): 1}


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
