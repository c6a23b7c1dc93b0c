"""A store as other processes open it: they reach it as this one does, and secrets stay unseen."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from stepwell.env import SystemEnv
from stepwell.errors import ConfigError
from stepwell.store.address import Address, address_at, address_of, open_address
from stepwell.store.local import LocalStore
from stepwell.store.memory import MemoryStore
from stepwell.store.objects import ObjectsStore
from tests.store.conftest import BUCKET
from tests.store.http_stub import HASTY, OPTIONS, SECRET

ENV = SystemEnv()


def sent(address: Address) -> Address:
    """As it comes out in another process."""
    found: Address = pickle.loads(pickle.dumps(address))
    return found


def test_a_bucket_is_reached_with_the_options_of_this_process(s3_endpoint: str) -> None:
    """S1: a worker reads what the driver wrote, and the other way round."""
    here = ObjectsStore(
        "s3", BUCKET, f"address/{ENV.new_id()}", ENV, HASTY, endpoint=s3_endpoint, **OPTIONS
    )
    there = open_address(sent(address_of(here, {})), ENV)
    here.put_new("a", b"1")
    there.put_new("b", b"2")
    assert [item.path for item in here.list()] == ["a", "b"]
    found = there.get("a")
    assert found is not None
    assert found.data == b"1"


def test_a_bucket_is_reached_with_the_environment_of_this_process(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: what is set here is set there while the store is opened, and not afterwards."""
    variables = {f"AWS_{name.upper()}": str(value).lower() for name, value in OPTIONS.items()}
    environ = {**variables, "AWS_ENDPOINT": s3_endpoint, "HOME": "/nowhere"}
    address = sent(address_at(f"s3://{BUCKET}/address/{ENV.new_id()}", environ))
    monkeypatch.setenv("AWS_REGION", "of this machine")
    monkeypatch.delenv("AWS_ENDPOINT", raising=False)
    before = dict(os.environ)
    store = open_address(address, ENV)
    assert dict(os.environ) == before
    store.put_new("a", b"1")
    assert store.exists("a")


def test_secrets_are_in_no_text() -> None:
    """S1: it may appear in a traceback, a log, a plan."""
    environ = {"AWS_SECRET_ACCESS_KEY": SECRET}
    address = address_at("s3://acme/orders", environ, {"secret_access_key": SECRET})
    assert SECRET not in f"{address!r} {address}"
    assert dict(address.variables) == environ


@pytest.mark.parametrize(
    "name",
    [
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_PROFILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "GOOGLE_SERVICE_ACCOUNT",
        "AZURE_STORAGE_KEY",
        "PATH",
    ],
)
def test_what_is_of_one_machine_or_of_another_storage_stays(name: str) -> None:
    """S1: a path of this machine is nothing on another one, which has its own."""
    assert not address_at("s3://acme/orders", {name: "x"}).variables


def test_a_directory_needs_nothing_and_memory_cannot_be_reached(tmp_path: Path) -> None:
    """S1: rows in the memory of one process are not rows of a pipeline on many."""
    address = address_of(LocalStore(str(tmp_path), ENV), {"AWS_REGION": "x"})
    assert address.is_directory
    assert not address.variables
    with pytest.raises(ConfigError, match="cannot be opened by another process"):
        address_of(MemoryStore(ENV), {})
