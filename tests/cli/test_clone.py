"""`stepwell clone`, and every command on what it made."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path

import pytest

import stepwell
from stepwell.env import SystemEnv
from stepwell.manifest.manifest import Manifests
from stepwell.store.local import LocalStore
from tests.cli.conftest import Run
from tests.cli.projects import YML, Process, put_file, sink_rows, write_project

ROWS: list[dict[str, object]] = [
    {"id": 1, "customer": "ada", "amount": "1.50"},
    {"id": 2, "customer": "ada", "amount": "2.00"},
    {"id": 3, "customer": "bob", "amount": "4.00"},
]


@pytest.fixture
def folder(tmp_path: Path, run: Run) -> Path:
    made = write_project(tmp_path / "project")
    put_file(made, "a.json", ROWS)
    ended = run("-C", made, "run", "--once")
    assert ended.exit_code == 0, ended.stderr
    return made


def revenue(run: Run, *place: object) -> list[tuple[str, str]]:
    asked = run(*place, "query", "SELECT customer, total FROM revenue ORDER BY customer", "--json")
    assert asked.exit_code == 0, asked.stderr
    return [(row["customer"], str(row["total"])) for row in json.loads(asked.stdout)["rows"]]


def test_a_clone_is_used_like_any_pipeline(run: Run, folder: Path, tmp_path: Path) -> None:
    """C5, C7: cloned by its project, the clone answers, takes rows in and goes its own way; the
    parent's sink hears nothing of it, and `status` says why.
    """
    place = tmp_path / "try"
    made = run("clone", folder, place)
    assert made.exit_code == 0, made.stderr
    assert "none copied" in made.stdout
    assert f"next: stepwell -C {folder} --store {place} run --once" in made.stdout
    there = ("-C", folder, "--store", place)
    assert revenue(run, *there) == revenue(run, "-C", folder) == [("ada", "3.5"), ("bob", "4.0")]
    pushed = tmp_path / "more.json"
    pushed.write_text('{"id": 9, "customer": "cyd", "amount": "9.00"}\n')
    assert run(*there, "push", "orders", pushed).exit_code == 0
    before = sink_rows(folder)
    once = run(*there, "run", "--once")
    assert once.exit_code == 0
    assert "sinks turned off, because they belong to the parent: revenue_out" in once.stderr
    assert sink_rows(folder) == before
    assert len(revenue(run, *there)) == 3
    assert len(revenue(run, "-C", folder)) == 2
    status = run(*there, "status")
    assert f"clone of   file://{folder}/state" in status.stdout
    assert "sinks off  revenue_out" in status.stdout
    parent = json.loads(run("-C", folder, "status", "--json").stdout)
    assert [item["store"] for item in parent["clones"]] == [f"file://{place}"]
    assert f"file://{place}" in run("-C", folder, "status").stdout
    assert f"file://{place}" in run("inspect", "manifest", folder / "state").stdout
    assert "its files are pinned" in run("inspect", "manifest", place).stdout


def test_a_sink_of_another_name_receives_the_whole_view(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    """J7: in a clone the project's sink is off until it gets a name of its own, and a place."""
    place = tmp_path / "try"
    assert run("clone", folder, place).exit_code == 0
    yml = YML.replace("revenue_out:", "revenue_try:").replace("path: out", "path: out-try")
    (folder / "stepwell.yml").write_text(yml)
    there = ("-C", folder, "--store", place)
    deployed = run(*there, "deploy", "--yes")
    assert deployed.exit_code == 0, deployed.stderr
    assert run(*there, "run", "--once").exit_code == 0
    files = sorted((folder / "out-try").glob("*/part.json"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {row["customer"] for row in rows} == {"ada", "bob"}


def test_a_clone_of_what_another_process_runs(run: Run, folder: Path, tmp_path: Path) -> None:
    """Scenario 61, C5: the process goes on undisturbed; rows it has recorded and not flushed are in
    the clone.
    """
    process = Process(folder, "run")
    try:
        process.until("running;")
        pushed = tmp_path / "more.json"
        pushed.write_text('{"id": 9, "customer": "cyd", "amount": "9.00"}\n')
        assert run("-C", folder, "push", "orders", pushed).exit_code == 0
        made = run("clone", folder, tmp_path / "try", "--json")
        assert made.exit_code == 0, made.stderr
        assert json.loads(made.stdout)["entries"] == 1
        pushed.write_text('{"id": 10, "customer": "dan", "amount": "9.00"}\n')
        assert run("-C", folder, "push", "orders", pushed).exit_code == 0
        assert len(revenue(run, "-C", folder)) == 4
    finally:
        process.kill()
    assert len(revenue(run, "-C", folder, "--store", tmp_path / "try")) == 3


def test_the_journal_store_of_the_project_is_not_the_clones(run: Run, tmp_path: Path) -> None:
    """C3: stepwell.yml names a journal store. It belongs to the store named next to it, and a
    clone in another store has its journal with its state, or where it was told.
    """
    yml = YML + f"journal: {{store: {tmp_path}/journal}}\n"
    folder = write_project(tmp_path / "project", yml)
    put_file(folder, "a.json", ROWS)
    assert run("-C", folder, "run", "--once").exit_code == 0
    assert run("clone", folder, tmp_path / "one").exit_code == 0
    told = run("clone", folder, tmp_path / "two", "--journal", tmp_path / "two-journal")
    assert told.exit_code == 0
    pushed = tmp_path / "more.json"
    for number, name in enumerate(["one", "two"]):
        pushed.write_text(f'{{"id": {10 + number}, "customer": "{name}", "amount": "9.00"}}\n')
        there = ("-C", folder, "--store", tmp_path / name)
        assert run(*there, "push", "orders", pushed).exit_code == 0
        assert run(*there, "status").exit_code == 0
        assert (name, "9.0") in revenue(run, *there)
    assert (tmp_path / "one" / "journal").is_dir()
    assert not (tmp_path / "two" / "journal").exists()
    assert list((tmp_path / "two-journal" / "journal").glob("*.arrow"))
    # A clone of that clone, by its store: its manifest knows where the journal lies.
    assert run("clone", tmp_path / "two", tmp_path / "three").exit_code == 0
    assert ("two", "9.0") in revenue(run, "-C", folder, "--store", tmp_path / "three")


def test_what_cannot_be_cloned_says_why(run: Run, folder: Path, tmp_path: Path) -> None:
    """Scenario 52: each refusal names the place, and the next step."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("mine")
    refused = run("clone", folder, tmp_path / "full")
    assert refused.exit_code == 1
    assert "is not empty: it holds a.txt" in refused.stderr
    assert (
        "has no checkpoint nope"
        in run("clone", folder, tmp_path / "x", "--checkpoint", "nope").stderr
    )
    assert "does not exist" in run("clone", tmp_path / "nowhere", tmp_path / "x").stderr
    assert "holds no pipeline" in run("clone", tmp_path / "full", tmp_path / "x").stderr
    wrong = run("--store", folder / "state", "clone", folder, tmp_path / "x")
    assert "clone takes both locations as arguments" in wrong.stderr
    assert not (tmp_path / "x").exists()
    assert run("clone", folder, tmp_path / "try").exit_code == 0
    again = run("clone", folder, tmp_path / "try")
    assert again.exit_code == 0
    assert "is already that clone; nothing was done" in again.stdout


def test_a_clone_from_python(folder: Path, tmp_path: Path, run: Run) -> None:
    """C5: a pipeline that is open is cloned as it is, rows that are not flushed included."""
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [{"id": 9, "customer": "cyd", "amount": Decimal(9)}])
        made = pipeline.clone(str(tmp_path / "try"))
        assert (made.entries, made.files) == (1, 0)
        copied = pipeline.clone(str(tmp_path / "copy"), copy=True)
        assert copied.files > 0
        pipeline.push("orders", [{"id": 10, "customer": "dan", "amount": Decimal(9)}])
    for name in ("try", "copy"):
        assert len(revenue(run, "-C", folder, "--store", tmp_path / name)) == 3
    env = SystemEnv()
    found = Manifests(LocalStore(str(folder / "state"), env), env).latest()
    assert found is not None
    assert [pin.clone for pin in found.manifest.pins] == [f"file://{tmp_path}/try"]


def test_every_command_works_on_a_clone(run: Run, folder: Path, tmp_path: Path) -> None:
    """C7: checked, merged, checkpointed, gone back with, planned and collected by `--store`, like
    any pipeline; the parent is whole after each.
    """
    place = tmp_path / "try"
    assert run("clone", folder, place).exit_code == 0
    pushed = tmp_path / "more.json"
    pushed.write_text('{"id": 9, "customer": "cyd", "amount": "9.00"}\n')
    for command in (
        ("verify", "--deep"),
        ("push", "orders", pushed),
        ("checkpoint", "create", "--name", "mine"),
        ("plan",),
        ("deploy", "--yes"),
        ("push", "orders", pushed),
        ("compact",),
        ("restore", "--checkpoint", "mine", "--confirm"),
        ("checkpoint", "list"),
        ("gc", "--confirm"),
        ("run", "--once"),
        ("verify", "--deep"),
        ("status",),
    ):
        ended = run("-C", folder, "--store", place, *command)
        assert ended.exit_code == 0, (command, ended.stderr, ended.stdout)
        assert run("-C", folder, "gc", "--confirm").exit_code == 0
        whole = run("-C", folder, "verify", "--deep")
        assert whole.exit_code == 0, (command, whole.stdout)
    assert len(revenue(run, "-C", folder, "--store", place)) == 3
    assert len(revenue(run, "-C", folder)) == 2


def test_destroying_frees_the_parent_and_spares_it(run: Run, folder: Path, tmp_path: Path) -> None:
    """Scenario 59, C7: a parent is not destroyed while a clone needs its files, and the clone is
    named; the clone is destroyed, also unfinished, and the parent is whole.
    """
    place = tmp_path / "try"
    assert run("clone", folder, place).exit_code == 0
    refused = run("-C", folder, "destroy", "--yes")
    assert refused.exit_code == 1
    assert f"has clones that need its files: file://{place}" in refused.stderr
    assert len(revenue(run, "-C", folder)) == 2
    # As a crash leaves it.
    for version in sorted((place / "manifest").iterdir())[1:]:
        version.unlink()
    assert "not completed" in run("-C", folder, "--store", place, "run", "--once").stderr
    shown = run("-C", folder, "--store", place, "status")
    assert "a clone that was not completed" in shown.stdout, shown.stderr
    gone = run("-C", folder, "--store", place, "destroy", "--yes")
    assert gone.exit_code == 0, gone.stderr
    assert not [path for path in place.rglob("*") if path.is_file() and path.name[0] != "."]
    assert run("-C", folder, "run", "--once").exit_code == 0
    assert len(revenue(run, "-C", folder)) == 2
    assert run("clone", folder, place).exit_code == 0
    shutil.rmtree(place)
    gone = run("-C", folder, "destroy", "--yes", "--forget", f"file://{place}")
    assert gone.exit_code == 0, gone.stderr
    assert "no pipeline at" in run("-C", folder, "status").stdout


def test_a_clone_is_detached_and_its_parent_destroyed(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    """C7, scenario 58: afterwards it holds all its data itself."""
    place = tmp_path / "try"
    assert run("clone", folder, place).exit_code == 0
    there = ("-C", folder, "--store", place)
    assert run(*there, "checkpoint", "create", "--name", "early").exit_code == 0
    rows = revenue(run, *there)
    told = run(*there, "compact", "--detach")
    assert told.exit_code == 0, told.stderr
    assert "the parent is still needed by checkpoint early" in told.stdout
    assert run(*there, "checkpoint", "delete", "early").exit_code == 0
    assert run(*there, "checkpoint", "create").exit_code == 0
    again = run(*there, "compact", "--detach")
    assert again.exit_code == 0, again.stderr
    assert f"no longer needs file://{folder}/state" in again.stdout
    assert json.loads(run(*there, "compact", "--detach", "--json").stdout)["parent_needed_by"] == []
    assert json.loads(run("-C", folder, "status", "--json").stdout)["clones"] == []
    assert run("-C", folder, "destroy", "--yes").exit_code == 0
    assert revenue(run, *there) == rows
    assert run(*there, "verify", "--deep").exit_code == 0
    refused = run("-C", folder, "--store", tmp_path / "none", "compact", "--detach")
    assert refused.exit_code == 1


def test_only_a_clone_can_be_detached(run: Run, folder: Path) -> None:
    refused = run("-C", folder, "compact", "--detach")
    assert refused.exit_code == 1
    assert "is not a clone: it owns all its files" in refused.stderr
    assert "hint: " in refused.stderr


def test_a_clone_deleted_by_hand_is_named_by_gc_and_forgotten(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    """C7: its pin keeps files forever, until somebody says that it is gone."""
    place = tmp_path / "try"
    assert run("clone", folder, place).exit_code == 0
    uri = f"file://{place}"
    assert "was not found" not in run("-C", folder, "gc").stdout
    refused = run("-C", folder, "gc", "--forget", uri, "--confirm")
    assert refused.exit_code == 1
    assert "is there (ready), and needs files of" in refused.stderr
    shutil.rmtree(place)
    told = run("-C", folder, "gc")
    assert f"the clone in {uri}, started 20" in told.stdout
    assert "was not found: there is no pipeline" in told.stdout
    told = run("-C", folder, "gc", "--json")
    assert [item["store"] for item in json.loads(told.stdout)["clones_not_found"]] == [uri]
    would = run("-C", folder, "gc", "--forget", uri)
    assert f"the clone in {uri} would be forgotten: there is no pipeline" in would.stdout
    assert len(json.loads(run("-C", folder, "status", "--json").stdout)["clones"]) == 1
    done = run("-C", folder, "gc", "--forget", uri, "--confirm")
    assert done.exit_code == 0, done.stderr
    assert f"the clone in {uri} was forgotten" in done.stdout
    assert json.loads(run("-C", folder, "status", "--json").stdout)["clones"] == []
    assert "was not found" not in run("-C", folder, "gc").stdout
    assert run("-C", folder, "gc", "--forget", uri).exit_code == 1
    assert run("-C", folder, "destroy", "--yes").exit_code == 0


def test_a_store_copied_by_hand_is_refused_until_it_is_adopted(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    """F13, scenario 97: it is told what to do; adopted, it leaves the original's sink alone."""
    place = tmp_path / "copy"
    shutil.copytree(folder / "state", place)
    there = ("-C", folder, "--store", place)
    refused = run(*there, "run", "--once")
    assert refused.exit_code == 1
    assert f"file://{place} is a copy of the pipeline in file://{folder}/state" in refused.stderr
    assert "stepwell adopt --copy" in refused.stderr
    assert revenue(run, *there) == revenue(run, "-C", folder), "looking at it is allowed"
    assert run(*there, "adopt").exit_code == 1
    still = run(*there, "adopt", "--moved")
    assert still.exit_code == 1
    assert f"the pipeline is still in file://{folder}/state" in still.stderr
    adopted = run(*there, "adopt", "--copy")
    assert adopted.exit_code == 0, adopted.stderr
    assert "sinks turned off, because they belong to the original: revenue_out" in adopted.stdout
    pushed = tmp_path / "more.json"
    pushed.write_text('{"id": 9, "customer": "cyd", "amount": "9.00"}\n')
    before = sink_rows(folder)
    assert run(*there, "push", "orders", pushed).exit_code == 0
    assert run(*there, "run", "--once").exit_code == 0
    assert sink_rows(folder) == before
    assert "sinks off  revenue_out: they belong to the original" in run(*there, "status").stdout
    assert len(revenue(run, *there)) == 3
    assert len(revenue(run, "-C", folder)) == 2
    again = json.loads(run(*there, "adopt", "--copy", "--json").stdout)
    assert again["adopted"] is False
