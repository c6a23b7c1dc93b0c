"""`stepwell inspect manifest`: who holds a pipeline, and what it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from stepwell.manifest.manifest import CheckpointRef, Pin
from stepwell.manifest.manifest import Run as StoredRun
from stepwell.model import NO_CHECKSUM, Transaction, format_time
from stepwell.store.sealed import seal
from tests.cli.conftest import Pipeline, Run, flip

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_latest_version_says_who_holds_the_pipeline(run: Run, pipeline: Pipeline) -> None:
    """F3: a fenced writer finds here which writer took over."""
    writer = pipeline.open()
    shown = run("inspect", "manifest", pipeline.directory).stdout.splitlines()
    claim, env = writer.manifest.claim, pipeline.env
    assert shown[:5] == [
        f"manifest     file://{pipeline.manifest(3)}",
        "version      3, the latest; 3 versions kept: 1 to 3",
        f"pipeline     {writer.manifest.lineage}, ready",
        "epoch        2",
        f"held by      host {env.host}, pid {env.pid}, since {format_time(claim.time)}",
    ]
    replay = writer.manifest.replay
    assert f"replay       after position 1 (epoch 1, checksum {replay.checksum})" in shown
    assert f"journal      {writer.manifest.journal.id}, in use: it holds what was" in "\n".join(
        shown
    )
    assert shown[-3:] == ["runs         none", "checkpoints  none", "clones       none"]


def test_runs_checkpoints_and_pins_are_listed(run: Run, pipeline: Pipeline) -> None:
    """What a pipeline refers to is what must not be deleted."""
    id = pipeline.env.new_id()
    pipeline.writer.commit(
        lambda manifest: replace(
            manifest,
            transaction=Transaction(3),
            runs=(StoredRun("orders", "runs/orders/x.parquet", 2_500_000, 1234, NO_CHECKSUM),),
            checkpoints=(CheckpointRef(id, Transaction(3), NEW_YEAR, 9, NO_CHECKSUM, "mine"),),
        ),
        "test",
    )
    pipeline.writer.commit(
        lambda manifest: replace(manifest, pins=(Pin(id, "s3://acme/clone", id),)), "test"
    )
    shown = [
        line.split() for line in run("inspect", "manifest", pipeline.directory).stdout.splitlines()
    ]
    assert ["transaction", "3"] in shown
    assert ["orders", "1,234", "2.5", "MB", "runs/orders/x.parquet"] in shown
    assert [id, "3", "2026-01-01T00:00:00.000000Z", "mine"] in shown
    assert [id, id, "s3://acme/clone"] in shown


def test_an_older_version_is_shown_by_its_number(run: Run, pipeline: Pipeline) -> None:
    """To compare two versions one must be able to see both."""
    ended = run("inspect", "manifest", pipeline.directory, "--id", 1)
    assert "version      1, not the latest, which is 2; 2 versions kept: 1 to 2" in ended.stdout
    assert "replay       from the beginning of the journal" in ended.stdout
    assert "journal      none attached yet" in ended.stdout
    gone = run("inspect", "manifest", pipeline.directory, "--id", 9)
    assert gone.exit_code == 1
    assert f"{pipeline.manifest(9)} does not exist" in gone.stderr
    assert "the versions in the store: 1 to 2" in gone.stderr


def test_json_is_the_manifest_as_it_is_stored(run: Run, pipeline: Pipeline) -> None:
    """One description of a manifest is enough: the one on disk."""
    shown = json.loads(run("inspect", "manifest", pipeline.directory, "--json").stdout)
    stored = json.loads(pipeline.manifest(2).read_bytes())
    assert shown == {
        "object": f"file://{pipeline.manifest(2)}",
        "id": 2,
        **stored["body"],
        "ids": [1, 2],
    }
    alone = json.loads(run("inspect", "manifest", pipeline.manifest(1), "--json").stdout)
    assert alone["id"] == 1
    assert alone["claim"]["epoch"] == 1


def test_a_damaged_version_is_refused_by_name(run: Run, pipeline: Pipeline) -> None:
    """K2: no field of bytes that are not what was written is shown."""
    flip(pipeline.manifest(2), -5)
    for place in (pipeline.directory, pipeline.manifest(2)):
        ended = run("inspect", "manifest", place)
        assert ended.exit_code == 1
        assert ended.stdout == ""
        expected = f"error: file://{pipeline.manifest(2)}: field 'checksum': stored checksum is"
        assert ended.stderr.startswith(expected)


def test_a_field_of_the_wrong_type_is_named(run: Run, pipeline: Pipeline) -> None:
    """K2: sealed well and still wrong: a bug of another version, not a traceback of this one."""
    stored = json.loads(pipeline.manifest(2).read_bytes())
    stored["body"]["replay"]["position"] = "one"
    fields = {name: stored[name] for name in ("id", "epoch", "put_id", "body")}
    pipeline.manifest(2).write_bytes(seal("stepwell-manifest/5", fields))
    ended = run("inspect", "manifest", pipeline.directory)
    assert ended.exit_code == 1
    assert "field 'body.replay.position': expected a whole number" in ended.stderr


def test_a_manifest_of_a_format_to_come_is_named_by_both_versions(
    run: Run, pipeline: Pipeline
) -> None:
    """J12: the same holds for manifests as for entries."""
    pipeline.manifest(3).write_bytes(seal("stepwell-manifest/6", {"whatever": "comes"}))
    for place in (pipeline.directory, pipeline.manifest(3)):
        ended = run("inspect", "manifest", place)
        assert ended.exit_code == 1
        assert "has stepwell-manifest format 6; this Stepwell reads format 5" in ended.stderr
        assert "hint: upgrade Stepwell" in ended.stderr


def test_a_version_under_another_number_is_refused(run: Run, pipeline: Pipeline) -> None:
    """K2: a file copied to another name is not the version it claims to be."""
    pipeline.manifest(7).write_bytes(pipeline.manifest(2).read_bytes())
    ended = run("inspect", "manifest", pipeline.manifest(7))
    assert ended.exit_code == 1
    assert "field 'id'" in ended.stderr


def test_a_place_without_a_pipeline_gets_a_hint(
    run: Run, pipeline: Pipeline, tmp_path: Path
) -> None:
    """K4: a missing manifest is an error that says what else is there, and nothing is begun."""
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "hint: it is empty" in run("inspect", "manifest", empty).stderr
    for id in (1, 2):
        pipeline.manifest(id).unlink()
    ended = run("inspect", "manifest", pipeline.directory)
    assert ended.exit_code == 1
    assert "holds no pipeline: there is no manifest" in ended.stderr
    assert (
        f"it holds a journal: stepwell inspect journal file://{pipeline.directory}" in ended.stderr
    )
