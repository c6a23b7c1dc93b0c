"""`stepwell gc` and `stepwell verify`, on a project without Spark."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.engine.events import Collected, CollectFailed, Event
from stepwell.env import SystemEnv
from stepwell.manifest.manifest import Manifests
from tests.cli.conftest import Run
from tests.cli.projects import YML, load, put_file, write_project

NOW = YML + "journal: {keep: 0s}\ngc: {every: 1s, grace: 0s}\ncheckpoint: {keep: 1}\n"


@pytest.fixture
def folder(tmp_path: Path, run: Run) -> Path:
    """A project that has run four times, so that there is something to collect."""
    folder = write_project(tmp_path / "orders", NOW)
    for number in range(4):
        put_file(folder, f"{number}.json", [{"id": number, "customer": "ada", "amount": 1}])
        assert run("-C", folder, "run", "--once").exit_code == 0
    return folder


def objects(folder: Path) -> set[str]:
    state = folder / "state"
    return {
        str(path.relative_to(state))
        for path in state.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_gc_shows_what_it_would_remove_and_removes_it_when_told(folder: Path, run: Run) -> None:
    """K3, scenario 67: a dry run changes nothing, and lists exactly what would be deleted."""
    before = objects(folder)
    shown = run("-C", folder, "gc")
    assert shown.exit_code == 0
    assert "Nothing was removed. To remove" in shown.stdout
    assert "deleted checkpoints" in shown.stdout
    planned = json.loads(run("-C", folder, "gc", "--json").stdout)
    assert objects(folder) == before
    assert planned["confirmed"] is False
    assert planned["reasons"]["checkpoint"]["objects"] > 0
    assert planned["objects"] == len(planned["paths"]) > 5
    done = json.loads(run("-C", folder, "gc", "--confirm", "--json").stdout)
    assert done["confirmed"] is True
    assert done["paths"] == planned["paths"]
    assert before - objects(folder) == set(planned["paths"])
    assert run("-C", folder, "verify", "--deep").exit_code == 0
    assert "Nothing to remove" in run("-C", folder, "gc").stdout
    answer = run("-C", folder, "query", "SELECT * FROM revenue", "--format", "json").stdout
    assert json.loads(answer)["n"] == 4


def test_verify_says_what_is_damaged_and_exits_1(folder: Path, run: Run) -> None:
    """K11: object, what, since when it matters, how to repair; told apart from all is well."""
    well = run("-C", folder, "verify")
    assert well.exit_code == 0
    assert "No damage found" in well.stdout
    deep = json.loads(run("-C", folder, "verify", "--deep", "--json").stdout)
    assert (deep["ok"], deep["findings"]) == (True, [])
    assert deep["bytes_read"] > 0
    manifest = Manifests(load(folder).open_store(SystemEnv()), SystemEnv()).latest()
    assert manifest is not None
    victim = folder / "state" / manifest.manifest.runs[0].path
    body = bytearray(victim.read_bytes())
    body[len(body) // 2] ^= 1
    victim.write_bytes(body)
    assert run("-C", folder, "verify").exit_code == 0, "its size is right"
    found = run("-C", folder, "verify", "--deep", "--json")
    assert found.exit_code == 1
    (finding,) = json.loads(found.stdout)["findings"]
    assert finding["object"].endswith(manifest.manifest.runs[0].path)
    assert "stepwell restore" in finding["repair"]
    assert "cannot be opened" in finding["matters"]
    victim.unlink()
    shown = run("-C", folder, "verify")
    assert shown.exit_code == 1
    assert "missing" in shown.stdout
    refused = run("-C", folder, "run", "--once")
    assert refused.exit_code == 1
    assert "stepwell restore" in refused.stderr


def test_a_query_does_not_believe_a_manifest_that_is_not_the_latest(folder: Path, run: Run) -> None:
    """K6: without the latest manifest, a look that takes nothing over is refused as well."""
    versions = sorted((folder / "state" / "manifest").iterdir())
    versions[-1].unlink()
    for command in (["query", "SELECT * FROM revenue"], ["verify"], ["gc"], ["run", "--once"]):
        ended = run("-C", folder, *command)
        assert ended.exit_code == 1
        assert "the manifest is lost" in ended.stdout + ended.stderr


def test_gc_and_verify_say_where_there_is_no_pipeline(tmp_path: Path, run: Run) -> None:
    """K4: a wrong address is not an empty pipeline."""
    folder = write_project(tmp_path / "orders", NOW)
    for command in (["gc"], ["verify"]):
        ended = run("-C", folder, *command)
        assert ended.exit_code == 1
        assert "there is no pipeline" in ended.stderr


def test_a_pipeline_that_runs_collects_by_itself(folder: Path) -> None:
    """K3: in a thread of its own; transactions go on, and what it removes is told."""
    heard = threading.Event()
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, (Collected, CollectFailed)):
            heard.set()

    with ProjectPipeline(load(folder), SystemEnv(), listener=listen) as pipeline:
        loop = threading.Thread(target=pipeline.run)
        loop.start()
        assert heard.wait(60)
        pipeline.stop()
        loop.join(60)
    assert any(isinstance(event, Collected) and event.objects > 5 for event in events)
    assert not [event for event in events if isinstance(event, CollectFailed)]
