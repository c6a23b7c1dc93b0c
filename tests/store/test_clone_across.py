"""Clones between kinds of stores: a directory, and a bucket of the S3 stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.engine.pipeline import Pipeline
from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.manifest.clone import clone
from stepwell.manifest.manifest import Manifests
from stepwell.store.base import Store
from stepwell.store.local import LocalStore
from stepwell.store.locate import open_store
from stepwell.testing import FaultyStore, fail_at
from tests.engine.doubles import SQL, everything, order
from tests.store.conftest import BUCKET

ENV = SystemEnv()


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty prefix, which anybody in this process can open by its address."""
    for name, value in {
        "AWS_ENDPOINT": s3_endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{BUCKET}/clones/{ENV.new_id()}", ENV)


def opened(store: Store) -> Pipeline:
    return Pipeline(store, ENV, executor=lambda at, env: ReferenceExecutor(SQL, at, env))


def begun(store: Store) -> Pipeline:
    pipeline = opened(store)
    pipeline.push("orders", [order(1, "a", 5), order(2, "b", 6)])
    pipeline.checkpoint("first")
    pipeline.push("orders", [order(3, "c", 1)])
    return pipeline


def pins(store: Store) -> int:
    found = Manifests(store, ENV).latest()
    assert found is not None
    return len(found.manifest.pins)


@pytest.mark.parametrize("way", ["up", "down"])
def test_between_a_directory_and_a_bucket_the_files_are_copied(
    tmp_path: Path, bucket: Store, way: str
) -> None:
    """C5: what one session cannot read from both is copied, checked on the way; afterwards the
    clone needs its parent no longer, and has no pin there.
    """
    local = LocalStore(str(tmp_path / "store"), ENV)
    source, destination = (local, bucket) if way == "up" else (bucket, local)
    parent = begun(source)
    before = everything(parent)
    # Interrupted while it copies, and run again: what is there is not copied a second time.
    failing = FaultyStore(destination)
    clone(source, failing, ENV, checkpoint="first")
    runs = [call.number for call in failing.calls if call.path.startswith("runs/o")]
    assert runs
    for item in destination.list():
        destination.delete(item.path)
    failing = FaultyStore(destination, fail_at(runs[0], "after"))
    with pytest.raises(UnavailableError):
        clone(source, failing, ENV)
    made = clone(source, destination, ENV)
    assert made.files >= 1
    assert made.entries == 1
    assert pins(source) == 0
    parent.push("orders", [order(4)])
    parent.close()
    for item in source.list():
        source.delete(item.path)
    again = opened(destination)
    assert everything(again) == before
    again.close()


def test_within_a_bucket_nothing_is_copied(bucket: Store) -> None:
    """C5: two prefixes of one kind of store share the files."""
    parent = begun(bucket)
    place = open_store(f"{bucket.uri}-clone", ENV)
    made = clone(bucket, place, ENV)
    assert made.files == 0
    assert pins(bucket) == 1
    child = opened(place)
    assert everything(child) == everything(parent)
    child.push("orders", [order(5)])
    parent.push("orders", [order(6)])
    child.close()
    parent.close()
