"""Addresses of stores: secrets in them, stores that were moved away, names that climb."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stepwell.connectors.listing import Listing
from stepwell.deploy.plan import make_plan
from stepwell.deploy.resources import Resource, resources_of
from stepwell.env import SystemEnv
from stepwell.errors import InvalidError, without_credentials
from stepwell.journal import paths
from stepwell.model import Transaction
from stepwell.store.base import check_path
from stepwell.store.local import LocalStore
from stepwell.testing import ManualEnv
from tests.cli.conftest import Run
from tests.cli.projects import YML, load, put_file, write_project

SECRET = "wJalr/XUtnFEMI:K7@MDENG"
PLACES = [
    "store: s3://AKIA:{}@bucket/x",
    "store: s3:/AKIA:{}@bucket/x",
    "store: s4://AKIA:{}@bucket/x",
    "store: file://AKIA:{}@bucket/x",
    "store: az://container/x?sig={}",
    "store: ./state\njournal: s3://AKIA:{}@bucket/x",
    "store: ./state\njournal: {{store: 's3://AKIA:{}@bucket/x'}}",
    "store: ./state\nsinks: {{s: {{view: revenue, type: delta, path: 's3://AKIA:{}@b/x'}}}}",
    "store: ./state\nsinks: {{s: {{view: revenue, type: files, path: 's3://AKIA:{}@b/x'}}}}",
    "store: ./state\nsources: {{s: {{table: orders, type: files, path: 's3://A:{}@b/x'}}}}",
]


@pytest.mark.parametrize("place", PLACES)
def test_credentials_in_an_address_are_refused_and_repeated_nowhere(
    run: Run, tmp_path: Path, place: str
) -> None:
    """Security: terminals, logs and reports of bugs are read by others."""
    yml = f"name: p\n{place.format(SECRET)}\n"
    folder = write_project(tmp_path / "project", yml)
    for command in ("validate", "status", "plan", "run --once", "validate --json"):
        ended = run("-C", folder, *command.split())
        assert ended.exit_code == 1, command
        for part in ("wJalr", "XUtn", "K7", "MDENG"):
            assert part not in ended.stdout + ended.stderr, command
    assert not (folder / "state").exists()


@pytest.mark.parametrize(
    "command", ["-C {} status", "inspect manifest {}", "doctor {}", "clone . {}"]
)
def test_credentials_on_the_command_line_are_not_repeated(
    run: Run, tmp_path: Path, command: str
) -> None:
    """Security: the same for an address that was typed."""
    ended = run(*command.format(f"s3://AKIA:{SECRET}@bucket/x").split())
    assert ended.exit_code in (1, 2)
    assert "XUtn" not in ended.stdout + ended.stderr
    assert "MDENG" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "options",
    [
        "type: postgres, dsn: 'postgresql://ann:{}@db/shop', schema: a",
        "type: postgres, dsn: 'host=db password={} user=ann', schema: a",
        "type: kafka, topic: t, brokers: 'b:1', config: {{sasl.password: '{}'}}",
    ],
)
def test_a_plan_repeats_no_password(tmp_path: Path, options: str) -> None:
    """Security: a password belongs into a reference; one that is written out is not printed."""
    folder = write_project(tmp_path / "project")

    def resources(options: str) -> dict[str, Resource]:
        sinks = f"sinks:\n  out: {{view: revenue, {options}}}\n"
        (folder / "stepwell.yml").write_text(f"name: p\nstore: ./state\n{sinks}")
        return resources_of(load(folder))

    before, after = resources(options.format("hunter2")), resources(options.format("hunter33"))
    plan = make_plan("", before, after, executor="spark", deployed_executor="spark")
    (step,) = (step for step in plan.steps if step.key == "sink.out")
    assert "changed" in step.reason
    assert "hunter" not in " ".join(step.difference)
    if "://" not in options:
        named = make_plan("", before, resources(options.format("${env:PATH}")), executor="spark")
        (step,) = (step for step in named.steps if step.key == "sink.out")
        assert "${env:PATH}" in " ".join(step.difference), "a reference is no secret"


def test_what_is_not_a_secret_is_shown() -> None:
    """Messages stay readable, and a line keeps its length: carets stand below it."""
    for text in ("s3://bucket/a@b", "2026:/x@y", "a ? b @ c", "file:///a/b.json, line 3: why?"):
        assert without_credentials(text) == text
    line = f"store: s3://AKIA:{SECRET}@bucket/x # mail me@example.org"
    hidden = without_credentials(line)
    assert len(hidden) == len(line)
    assert hidden.endswith("@bucket/x # mail me@example.org")


def test_a_store_that_was_moved_away_is_an_error(run: Run, tmp_path: Path) -> None:
    """K4: a disk that is not mounted must not look like a project that was never run."""
    yml = YML.replace("store: ./state\n", "store: ./state\njournal: {store: ./log}\n")
    assert yml != YML
    folder = write_project(tmp_path / "project", yml)
    put_file(folder, "a.json", [{"id": 1, "customer": "ada", "amount": "1.00"}])
    assert run("-C", folder, "run", "--once").exit_code == 0
    assert run("-C", folder, "status").exit_code == 0
    shutil.move(folder / "state", folder / "elsewhere")
    for options in ([], ["--json"]):
        ended = run("-C", folder, "status", *options)
        assert ended.exit_code == 1
        assert "holds the journal of one" in ended.stdout
        assert "bring it back" in ended.stdout
    for command in ("query SELECT+1+AS+a", "gc", "verify", "checkpoint list", "run --once"):
        ended = run("-C", folder, *(word.replace("+", " ") for word in command.split()))
        assert ended.exit_code == 1, command
    for command in ("query SELECT+1+AS+a", "state show", "checkpoint list"):
        ended = run("-C", folder, *(word.replace("+", " ") for word in command.split()))
        assert ended.exit_code == 1, command
        assert "holds the journal of one" in ended.stderr, command
        assert "bring it back" in ended.stderr, command
    shutil.rmtree(folder / "log")
    ended = run("-C", folder, "status")
    assert ended.exit_code == 1
    assert "is it mounted, or was it moved?" in ended.stdout
    assert "is it mounted, or was it moved?" in run("-C", folder, "state", "show").stderr
    for command in ("gc", "verify"):
        assert "check the address, and that it is mounted" in run("-C", folder, command).stderr


def test_a_push_that_creates_a_pipeline_says_so(run: Run, tmp_path: Path) -> None:
    """K4: rows for a disk that is not mounted went into a new pipeline, without a word."""
    folder = write_project(tmp_path / "project", YML.partition("sinks:")[0])
    rows = tmp_path / "a.json"
    for id, said in ((1, True), (2, False)):
        rows.write_text(json.dumps({"id": id}))
        ended = run("-C", folder, "push", "orders", rows)
        assert ended.exit_code == 0, ended.stderr
        assert (f"nothing is deployed yet in {folder}/state" in ended.stderr) is said


@pytest.mark.parametrize("name", ["../../x", "..", "/etc/x", ".x", "a/../../b", "a\\b", "é/.."])
def test_names_cannot_leave_their_folder(tmp_path: Path, name: str) -> None:
    """Security: relations, sources and sinks may be called anything, and lie where they should."""
    ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    store = LocalStore(str(tmp_path / "store"), SystemEnv())
    made = [
        paths.run(name, ulid),
        paths.run(f"{name}$taken", ulid),
        paths.outbox(name, Transaction(1), ulid),
    ]
    for path in made:
        assert path.count("/") == 2
        assert check_path(path) == path
        store.put_new(path, b"x")
        assert (tmp_path / "store" / path).resolve().is_relative_to(tmp_path / "store")
        assert paths.parse(path).kind in ("run", "outbox")
    assert [item.path for item in store.list()] == sorted(made)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    with pytest.raises(InvalidError, match="not a path inside a store"):
        store.put_new(f"runs/{name}/../../../x", b"x")


def test_a_pattern_does_not_climb_behind_a_wildcard(tmp_path: Path) -> None:
    """Security: which folder is read is decided by the path alone, not by what lies there."""
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "x.json").write_text("{}")
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "in" / "a" / "link").symlink_to(tmp_path)
    listing = Listing(str(tmp_path / "in" / "*" / "link" / ".." / ".." / "*.json"), ManualEnv())
    assert (listing.folder, listing.names()) == (tmp_path / "in", ["x.json"])
