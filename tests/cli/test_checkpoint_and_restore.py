"""`checkpoint`, `restore` and `compact`: at rest, and while a process runs the pipeline."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from stepwell.env import SystemEnv
from stepwell.manifest.manifest import Manifests
from tests.cli.conftest import Run, flip, snapshot
from tests.cli.projects import Process, load, put_file, sink_rows, write_project


@pytest.fixture
def folder(tmp_path: Path, run: Run) -> Path:
    """One transaction by file, a checkpoint `one`, then another row by hand."""
    made = write_project(tmp_path / "project")
    put_file(made, "a.json", [{"id": 1, "customer": "ada", "amount": "1.50"}])
    assert run("-C", made, "run", "--once").exit_code == 0
    created = run("-C", made, "checkpoint", "create", "--name", "one")
    assert created.exit_code == 0, created.stderr
    assert "checkpoint one, transaction 1" in created.stdout
    push(run, made, 2)
    return made


def push(run: Run, folder: Path, id: int) -> None:
    extra = folder / f"more-{id}.json"
    extra.write_text(json.dumps({"id": id, "customer": "bob", "amount": id}) + "\n")
    assert run("-C", folder, "push", "orders", extra).exit_code == 0


def total(run: Run, folder: Path) -> list[dict[str, object]]:
    asked = run("-C", folder, "query", "SELECT customer, n FROM revenue", "--json")
    return list(json.loads(asked.stdout)["rows"])


def test_checkpoints_are_listed_shown_and_deleted(run: Run, folder: Path) -> None:
    """K10: by name, by id, by how the id begins."""
    listed = json.loads(run("-C", folder, "checkpoint", "list", "--json").stdout)["checkpoints"]
    found = [(item["name"], item["transaction"]) for item in listed]
    assert found == [(None, 1), ("one", 1), (None, 2)]
    shown = run("-C", folder, "checkpoint", "show", "one")
    assert shown.exit_code == 0
    assert "stays        until deleted" in shown.stdout
    assert "revenue_out at 1" in shown.stdout
    for which in (listed[1]["id"], listed[1]["id"][:16]):
        found = json.loads(run("-C", folder, "checkpoint", "show", which, "--json").stdout)
        assert (found["name"], found["files"], found["damaged"]) == ("one", 2, [])
    deleted = run("-C", folder, "checkpoint", "delete", "one")
    assert deleted.stdout.startswith("deleted checkpoint one")
    missing = run("-C", folder, "checkpoint", "show", "one")
    assert missing.exit_code == 1
    assert "has no checkpoint one" in missing.stderr


def test_a_damaged_checkpoint_is_shown_as_such(run: Run, folder: Path) -> None:
    """K6: the file is named, and the exit code is 1."""
    (first, *_) = sorted((folder / "state" / "runs" / "orders").iterdir())
    first.write_bytes(first.read_bytes()[:-1])
    shown = run("-C", folder, "checkpoint", "show", "one")
    assert shown.exit_code == 1
    assert f"{first} has " in shown.stdout


def test_a_restore_shows_what_it_would_do_and_stops(run: Run, folder: Path) -> None:
    """K9: nothing is done without --confirm."""
    before = snapshot(folder)
    asked = run("-C", folder, "restore", "--checkpoint", "one")
    assert asked.exit_code == 0
    assert (
        "transaction 3 will set the state back to that of 1, and undo 1 transaction" in asked.stdout
    )
    assert "is lost: 1 row pushed to orders" in asked.stdout
    assert "sink revenue_out is ahead" in asked.stdout
    assert "nothing was done; to restore, add --confirm" in asked.stdout
    assert snapshot(folder) == before


@pytest.mark.parametrize("target", [("--checkpoint", "one"), ("--transaction", "1")])
def test_a_restore_takes_state_and_sinks_back(
    run: Run, folder: Path, target: tuple[str, str]
) -> None:
    """K9: views, and the files of the sink added up, are what they were."""
    assert len(total(run, folder)) == 2
    done = run("-C", folder, "restore", *target, "--confirm")
    assert done.exit_code == 0, done.stderr
    assert "transaction 3 set the state back to that of 1" in done.stdout
    assert total(run, folder) == [{"customer": "ada", "n": 1}]
    assert list(sink_rows(folder)) == [("ada", "1.50", 1)]
    push(run, folder, 9)
    assert len(total(run, folder)) == 2
    assert sum(sink_rows(folder).values()) == 2


def test_a_restore_by_time(run: Run, folder: Path) -> None:
    """K9: the last transaction that was committed by then."""
    when = json.loads(run("-C", folder, "checkpoint", "list", "--json").stdout)
    done = run(
        *("-C", folder, "restore", "--time", when["checkpoints"][0]["created"]),
        *("--confirm", "--json"),
    )
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["to"], told["transaction"], told["lost"]) == (1, 3, {"orders": 1})


def test_a_damaged_pipeline_is_repaired(run: Run, folder: Path) -> None:
    """K7, K9: a flipped byte is an error that names the file; then it is as it was, loudly."""
    store = load(folder).open_store(SystemEnv())
    found = Manifests(store, SystemEnv()).latest()
    assert found is not None
    (path,) = (
        folder / "state" / item.path
        for item in found.manifest.runs[-2:]
        if item.relation == "orders"
    )
    path.unlink()
    refused = run("-C", folder, "query", "SELECT * FROM revenue")
    assert refused.exit_code == 1
    assert str(path) in refused.stderr
    assert "stepwell restore" in refused.stderr
    repaired = run("-C", folder, "restore", "--confirm")
    assert repaired.exit_code == 0, repaired.stderr
    assert "cannot be used" in repaired.stderr
    assert "repaired: the pipeline is at transaction 2, as before" in repaired.stdout
    assert len(total(run, folder)) == 2


def test_a_flipped_byte_in_a_run_is_never_a_wrong_row(run: Run, folder: Path) -> None:
    """K7: wherever it is."""
    for path in (folder / "state" / "runs" / "orders").iterdir():
        good = path.read_bytes()
        for offset in range(0, len(good), 97):
            flip(path, offset)
            asked = run("-C", folder, "query", "SELECT * FROM revenue")
            assert asked.exit_code == 1
            assert path.name in asked.stderr
            path.write_bytes(good)


def test_mistakes_are_told(run: Run, folder: Path, tmp_path: Path) -> None:
    """Bad input gets an error with a hint."""
    cases: list[tuple[tuple[str, ...], str]] = [
        (("restore", "--checkpoint", "x", "--transaction", "1"), "give one of"),
        (("restore", "--time", "yesterday"), "--time must be a time"),
        (("restore", "--transaction", "77"), "transaction 77"),
        (("checkpoint", "create", "--keep", "0s"), "--keep must be longer than 0s"),
        (("checkpoint", "create", "--name", " "), "not a name for a checkpoint"),
        (("checkpoint", "delete", "nothing"), "has no checkpoint nothing"),
    ]
    for arguments, message in cases:
        ended = run("-C", folder, *arguments)
        assert ended.exit_code == 1, arguments
        assert message in ended.stderr
        assert "hint: " in ended.stderr or message == "give one of"
    ended = run("-C", folder, "checkpoint", "create", "--keep", "7")
    assert ended.exit_code == 2
    assert "--keep must be a duration" in ended.stderr
    empty = write_project(tmp_path / "empty")
    for arguments in (("checkpoint", "list"), ("checkpoint", "create"), ("restore",), ("compact",)):
        ended = run("-C", empty, *arguments)
        assert ended.exit_code == 1
        assert "no pipeline" in ended.stderr
    assert not (empty / "state").exists()


def test_runs_are_compacted(run: Run, folder: Path) -> None:
    """What came and went takes no room any more."""
    for id in (3, 4, 5):
        push(run, folder, id)
    before = total(run, folder)
    merged = run("-C", folder, "compact")
    assert merged.exit_code == 0, merged.stderr
    # Of the table, of the keys of pushes, and of the names of files.
    assert merged.stdout.startswith("compacted: 10 files, ")
    assert " before, 3 files, " in merged.stdout
    assert total(run, folder) == before
    assert run("-C", folder, "compact").stdout.startswith("nothing to compact: 3 files")


def test_the_process_that_runs_is_asked(run: Run, folder: Path) -> None:
    """J9: between two of its transactions; it goes on, and cannot be restored under its feet."""
    process = Process(folder, "run")
    try:
        process.until("running")
        push(run, folder, 3)
        created = run("-C", folder, "checkpoint", "create", "--keep", "1h", "--json")
        assert created.exit_code == 0, created.stderr
        told = json.loads(created.stdout)
        assert told["transaction"] == 3
        assert told["expires"] is not None
        assert run("-C", folder, "compact").exit_code == 0
        refused = run("-C", folder, "restore", "--checkpoint", "one", "--confirm")
        assert refused.exit_code == 1
        assert "stop it first" in refused.stderr
        push(run, folder, 4)
        process.send(signal.SIGINT)
        assert process.end() == 130, process.text
    finally:
        process.kill()
    listed = json.loads(run("-C", folder, "checkpoint", "list", "--json").stdout)["checkpoints"]
    assert {item["transaction"] for item in listed} == {1, 2, 3, 4}, "one at a graceful stop"


def test_a_run_and_four_pushes_can_be_taken_back_by_their_numbers(run: Run, tmp_path: Path) -> None:
    """K12: two checkpoints are kept by default; `journal.keep` promises a week."""
    folder = write_project(tmp_path / "project")
    put_file(folder, "a.json", [{"id": 1, "customer": "ada", "amount": "1.50"}])
    assert run("-C", folder, "run", "--once").exit_code == 0
    for id in range(2, 6):
        push(run, folder, id)
    assert total(run, folder) == [{"customer": "ada", "n": 1}, {"customer": "bob", "n": 4}]
    assert run("-C", folder, "gc", "--confirm").exit_code == 0
    restored = run("-C", folder, "restore", "--transaction", "2", "--confirm")
    assert restored.exit_code == 0, restored.stderr
    assert "transaction 6 set the state back to that of 2" in restored.stdout
    assert total(run, folder) == [{"customer": "ada", "n": 1}, {"customer": "bob", "n": 1}]
    assert run("-C", folder, "restore", "--transaction", "0").exit_code == 0
