"""`stepwell.read`: a snapshot is as of one transaction, and takes nothing from a writer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import stepwell
from stepwell.deploy.project import load_project
from stepwell.deploy.snapshot import query_latest
from stepwell.env import SystemEnv
from stepwell.errors import CorruptError, InvalidError, SnapshotExpiredError
from stepwell.manifest.manifest import Manifests
from stepwell.manifest.run_object import read_run
from tests.deploy.conftest import YML, Write

ROW = {"id": 1, "customer": "ada", "amount": 5}


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_reading_does_not_fence_the_writer(write: Write) -> None:
    """F1: a reader that claimed the pipeline would end the process that runs it."""
    folder = write()
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
        epoch, stored = pipeline.status().epoch, files(folder / "state")
        with stepwell.read(folder) as snapshot:
            assert snapshot.transaction == 1
            assert snapshot.query("SELECT id FROM orders").to_pylist() == [{"id": 1}]
            assert snapshot.table("revenue").num_rows == 1
        assert files(folder / "state") == stored, "reading writes nothing"
        assert pipeline.status().epoch == epoch
        assert pipeline.push("orders", [{**ROW, "id": 2}]) == 2


def test_a_snapshot_stays_as_of_its_transaction(write: Write) -> None:
    """Two answers of one snapshot must fit together, whatever the writer does between them."""
    folder = write()
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
        assert pipeline.status().flushed == 0, "the row is in the journal only"
        before = stepwell.read(folder)
        pipeline.push("orders", [{**ROW, "id": 2}])
        with pipeline.transaction() as transaction:
            transaction.push("orders", [{**ROW, "id": 3}])
            open_meanwhile = stepwell.read(folder)
            assert open_meanwhile.transaction == 2, "an open transaction does not count"
            assert open_meanwhile.table("orders").num_rows == 2
        answer = before.query("SELECT id FROM orders")
        assert (answer.transaction, answer.to_pylist()) == (1, [{"id": 1}])
        after = stepwell.read(folder)
        assert (after.transaction, after.table("orders").num_rows) == (3, 3)
        pipeline.flush()
        assert stepwell.read(folder).table("orders").num_rows == 3


def test_a_stopped_pipeline_is_read_by_project_and_by_address(write: Write) -> None:
    """What is deployed and stored is enough: neither a process nor the project's files."""
    folder = write()
    with pytest.raises(InvalidError, match="no pipeline at"):
        stepwell.read(folder)
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
    stored = files(folder / "state")
    for project in (folder, (folder / "state").as_uri()):
        snapshot = stepwell.read(project)
        answer = snapshot.query("SELECT customer, total FROM revenue")
        assert (answer.transaction, answer.to_pylist()) == (1, [{"customer": "ada", "total": 5}])
        assert isinstance(snapshot.table("ORDERS"), pa.Table), "in any case"
        assert snapshot.table("orders$errors").num_rows == 0
    assert files(folder / "state") == stored


def test_a_snapshot_reads_what_is_deployed(write: Write) -> None:
    """S6: a view that is in the project only has no rows yet."""
    folder = write()
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
    changed = (folder / "pipeline.sql").read_text(encoding="utf-8")
    write(YML, changed + "CREATE MATERIALIZED VIEW late AS SELECT id FROM orders;\n")
    snapshot = stepwell.read(folder)
    assert snapshot.table("revenue").num_rows == 1
    with pytest.raises(InvalidError, match="there is no table or view late"):
        snapshot.table("late")


def test_a_snapshot_needs_no_secret_of_a_source(write: Write) -> None:
    """A reader has no use for the credentials of sources and sinks."""
    folder = write()
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
    write(YML.replace("path: out,", "path: '${env:NOT_SET_HERE}',"))
    assert stepwell.read(folder).table("orders").num_rows == 1


def test_a_snapshot_refuses_what_it_does_not_have(write: Write) -> None:
    """A misspelt name is a mistake of the caller's, and says what there is."""
    folder = write()
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
        with pytest.raises(InvalidError, match="there is no table or view order") as caught:
            pipeline.table("order")
        assert "orders" in str(caught.value.hint)
    with stepwell.read(folder) as snapshot:
        with pytest.raises(InvalidError, match="there is no table or view order") as caught:
            snapshot.table("order")
        assert "orders" in str(caught.value.hint)
        with pytest.raises(InvalidError, match="expected SELECT"):
            snapshot.query("DROP TABLE orders")


def test_a_snapshot_whose_files_were_collected_has_expired(write: Write) -> None:
    """G1: garbage collection is not damage; the reader is told to read again."""
    folder = write()
    project, env = load_project(folder, SystemEnv()), SystemEnv()
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
        pipeline.flush()
        old = stepwell.read(folder)
        found = Manifests(project.open_store(env), env).latest()
        assert found is not None
        for run in found.manifest.runs:
            project.open_store(env).delete(run.path)
        with pytest.raises(CorruptError):
            read_run(project.open_store(env), found.manifest.runs[0], env)
        with pytest.raises(CorruptError):
            old.query("SELECT id FROM orders")  # No newer manifest: the file is missing.
        pipeline.compact()
        pipeline.push("orders", [{**ROW, "id": 2}])
        pipeline.checkpoint()
        with pytest.raises(SnapshotExpiredError, match="as of transaction 1 has expired") as caught:
            old.query("SELECT id FROM orders")
        assert "stepwell.read" in str(caught.value.hint)


def test_a_query_as_of_now_takes_another_snapshot_if_one_expires(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that flushes and collects must not fail a command that only asks."""
    folder = write()
    project, env = load_project(folder, SystemEnv()), SystemEnv()
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
    original, expired = stepwell.Snapshot.query, [0]

    def query(snapshot: stepwell.Snapshot, sql: str) -> stepwell.Answer:
        expired[0] += 1
        if expired[0] < 3:
            raise SnapshotExpiredError("collected")
        return original(snapshot, sql)

    monkeypatch.setattr(stepwell.Snapshot, "query", query)
    answer, _ = query_latest(project, env, "SELECT id FROM orders", lambda why: None)
    assert answer.to_pylist() == [{"id": 1}]
    expired[0] = -10
    with pytest.raises(SnapshotExpiredError):
        query_latest(project, env, "SELECT id FROM orders", lambda why: None)
