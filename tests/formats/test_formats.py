"""Pipelines that were stored by an earlier version, or by this one, are read by today's code."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.deploy.apply import deploy, plan_project
from stepwell.deploy.lease import read_lease
from stepwell.deploy.log import read_log
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.plan import Action, decode_plan
from stepwell.deploy.program import as_deployed
from stepwell.deploy.project import Project, load_project
from stepwell.deploy.snapshot import take_snapshot
from stepwell.deploy.verify import verify_deployed
from stepwell.errors import InvalidError
from stepwell.journal.paths import parse
from stepwell.manifest.clone import clone
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.manifest.verify import verify
from stepwell.store.base import Store
from stepwell.store.memory import SHARED
from stepwell.testing import ManualEnv
from tests.formats.generate import rows_of
from tests.formats.stored import (
    CHANGED,
    YML,
    Stored,
    archives,
    formats_in,
    formats_in_code,
    put_store,
    sink_rows,
    unpack,
    write_file,
)


@pytest.fixture
def env() -> ManualEnv:
    made = ManualEnv(seed=1)
    made.advance(86400)
    return made


@pytest.fixture(params=archives(), ids=lambda archive: archive.stem)
def stored(request: pytest.FixtureRequest, tmp_path: Path, env: ManualEnv) -> Iterator[Stored]:
    yield unpack(request.param, tmp_path / "project", env)
    SHARED.clear()


def test_every_format_that_the_code_writes_is_stored() -> None:
    """A format whose number was raised is read from a stored pipeline from then on."""
    stored = set().union(*map(formats_in, archives()))
    missing = sorted(formats_in_code() - stored)
    assert not missing, (
        f"tests/formats/stored has no pipeline with {', '.join(missing)}: run `make formats`, look "
        "at the difference and commit it. Until the version is released, its archive is replaced"
    )


def test_no_archive_holds_a_path_of_the_machine_that_made_it() -> None:
    """A fixture that names a folder of one machine passes there and nowhere else."""
    for archive in archives():
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                assert b"file://" not in opened.read(name), name
                assert b"/tmp/" not in opened.read(name), name


def test_a_stored_pipeline_verifies_to_the_last_byte(stored: Stored, env: ManualEnv) -> None:
    """K11: what an earlier version wrote is whole by today's rules."""
    for name in ("parent", "clone"):
        store = stored.stores[name]
        report = verify_deployed(store, env, verify(store, env, deep=True))
        assert report.findings == ()
        assert report.bytes_read > 0


def test_a_stored_pipeline_has_a_tail_an_outbox_and_a_checkpoint(stored: Stored) -> None:
    """An archive that holds nothing proves nothing."""
    manifest = latest(stored.stores["parent"])
    names = [parse(item.path) for item in stored.stores["parent"].list("journal/")]
    last = max(name.number or 0 for name in names if name.kind == "entry")
    assert last > manifest.replay.position, "entries above the last flush"
    assert manifest.progress.outbox
    assert manifest.runs
    assert [item.name for item in manifest.checkpoints if item.name] == ["first"]
    assert [pin.clone for pin in manifest.pins] == ["memory://clone"]
    assert {run.root for run in latest(stored.stores["clone"]).runs} == {"memory://parent"}
    assert read_lease(stored.stores["deploying"]) is not None
    log = read_log(stored.stores["deploying"])
    assert log is not None
    assert log.records


@pytest.mark.parametrize("name", ["parent", "clone"])
def test_a_stored_pipeline_is_replayed_and_its_sinks_catch_up(
    stored: Stored, env: ManualEnv, name: str
) -> None:
    """J6: the same rows as when it was written, by a snapshot and by opening it, and it goes on."""
    project = project_of(stored, env, name)
    assert rows_of(take_snapshot(project, env)) == stored.expected[name]
    with ProjectPipeline(project, env) as pipeline:
        assert rows_of(pipeline) == stored.expected[name]
        pipeline.run(once=True)
        assert rows_of(pipeline) == stored.expected[name]
        # Flushed, and in the journal only: both keys are known.
        for key in ("third", "zoë"):
            with pytest.raises(InvalidError, match="was used before"):
                pipeline.push("clicks", [{"customer": "other", "page": "/"}], key=key)
        pipeline.push("clicks", [{"customer": "late", "page": "/"}])
        pipeline.run(once=True)
        # A clone begins without the sinks of its parent.
        for sink, view in (("out", "revenue"), ("down", "visits")) if name == "parent" else ():
            held = sink_rows(project.folder / sink)
            assert set(held.values()) <= {0, 1}
            assert as_text(+held) == as_text(Counter(map(tuple, rows_of(pipeline)[view])))
    with ProjectPipeline(project, env) as pipeline:
        assert rows_of(pipeline)["revenue"] == stored.expected[name]["revenue"]
        assert ["late", 1] in rows_of(pipeline)["visits"]


def test_a_stored_pipeline_goes_back_to_its_checkpoint(stored: Stored, env: ManualEnv) -> None:
    """C1: the checkpoint of an earlier version is a restore point."""
    with ProjectPipeline(project_of(stored, env, "parent"), env) as pipeline:
        pipeline.restore(checkpoint="first")
        assert [row[0] for row in rows_of(pipeline)["orders"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["parent", "clone"])
def test_a_stored_pipeline_is_cloned(stored: Stored, env: ManualEnv, name: str) -> None:
    """C2: and the clone holds the same rows."""
    clone(stored.stores[name], put_store("new", {}, env), env)
    project = project_of(stored, env, "new", folder=stored.project.parent / "new")
    write_file(project.folder / "data" / "b.json", (stored.project / "data/b.json").read_bytes())
    write_file(project.folder / "data" / "a.json", (stored.project / "data/a.json").read_bytes())
    with ProjectPipeline(project, env) as pipeline:
        assert rows_of(pipeline) == stored.expected[name]


def test_a_stored_deploy_that_was_killed_is_finished(stored: Stored, env: ManualEnv) -> None:
    """D4: its lease has expired, its log is read, and the next deploy comes to an end."""
    project = project_of(stored, env, "deploying", sql=CHANGED)
    assert deploy(project, env, approve=lambda plan: True).failed == {}
    assert all(step.action is Action.UNCHANGED for step in plan_project(project, env).steps)
    assert read_lease(stored.stores["deploying"]) is None
    assert read_log(stored.stores["deploying"]) is None


def test_a_stored_plan_is_applied(stored: Stored, env: ManualEnv) -> None:
    """D7: a plan that was kept is what is deployed."""
    store, _, _, wanted = decode_plan(stored.plan, "plan.json")
    assert store == "memory://parent"
    assert "MAX(amount)" in str(wanted["view.revenue"])


def project_of(
    stored: Stored, env: ManualEnv, name: str, *, sql: str | None = None, folder: Path | None = None
) -> Project:
    """The project with another store; as it is deployed, unless a program is given."""
    folder = folder or stored.project
    write_file(folder / "stepwell.yml", YML.format(store=name).encode())
    source = stored.project / "pipeline.sql"
    write_file(folder / "pipeline.sql", source.read_bytes() if sql is None else sql.encode())
    project = load_project(folder, env)
    if sql is None:
        project = as_deployed(project, latest(SHARED[f"memory://{name}"]).program)
    return project


def latest(store: Store) -> Manifest:
    found = Manifests(store, ManualEnv()).latest()
    assert found is not None
    return found.manifest


def as_text(rows: Counter[tuple[Any, ...]]) -> list[str]:
    """Rows to compare: a sink writes a decimal as a number, JSON made of a view as text."""
    return sorted(
        ",".join(str(float(v)) if str(v).replace(".", "").isdigit() else str(v) for v in row)
        for row in rows.elements()
    )
