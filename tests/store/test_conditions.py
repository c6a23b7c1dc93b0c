"""Conditional writes, as each object store wants them asked and answers them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.errors import ConfigError, ConflictError
from stepwell.store.answers import Scheme
from stepwell.store.objects import ObjectsStore
from stepwell.store.probe import capabilities, probe
from stepwell.testing import ManualEnv
from tests.store.http_stub import (
    CALLS,
    FOUND,
    HASTY,
    OPTIONS,
    Reply,
    Stub,
    Versions,
    at,
    error,
    refusal,
)


@pytest.mark.parametrize("name", ["put_new", "replace_if"])
def test_an_undecided_race_is_run_again(stub: Stub, name: str) -> None:
    """F1: S3 answers 409 when two writes meet; nobody has won yet, so nobody has lost."""
    conflict = Reply(409, error("ConditionalRequestConflict"))
    replies = [conflict, conflict, Reply(200, b"", FOUND)]
    stub.answer = lambda request: replies[min(len(stub.requests), len(replies)) - 1]
    CALLS[name](at(stub.endpoint))
    stub.answer = lambda request: conflict
    refusal(CALLS[name], at(stub.endpoint))


def google(stub: Stub) -> dict[str, str | bool]:
    account = {
        "private_key": "none",
        "private_key_id": "none",
        "client_email": "none",
        "gcs_base_url": stub.endpoint,
        "disable_oauth": True,
    }
    return {"service_account_key": json.dumps(account), "allow_http": True}


def azure(stub: Stub) -> dict[str, str | bool]:
    key = {"account_name": "acme", "account_key": "c2VjcmV0", "allow_http": True}
    return {**key, "endpoint": f"{stub.endpoint}/acme"}


def amazon(stub: Stub) -> dict[str, str | bool]:
    return {**OPTIONS, "endpoint": stub.endpoint}


@pytest.mark.parametrize(
    ("scheme", "options", "missing"),
    [("s3", amazon, "NoSuchKey"), ("gs", google, "NoSuchKey"), ("az", azure, "BlobNotFound")],
)
def test_conditional_writes_speak_each_storages_own_language(
    stub: Stub,
    scheme: Scheme,
    options: Callable[[Stub], dict[str, str | bool]],
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F1: Google compares generations, the others etags; a condition not understood is none."""
    monkeypatch.setenv("HOME", str(tmp_path))  # Where Google's client looks for a login.
    stub.answer = Versions(missing=missing)
    store = ObjectsStore(scheme, "acme", "orders", ManualEnv(), HASTY, **options(stub))
    assert store.uri == f"{scheme}://acme/orders"
    assert store.get("a/b") is None
    assert not store.exists("a/b")
    with pytest.raises(ConflictError):
        store.replace_if("a/b", b"0", "1")
    store.put_new("a/b", b"1")
    with pytest.raises(ConflictError):
        store.put_new("a/b", b"2")
    found = store.get("a/b")
    assert found is not None
    assert found.data == b"1"
    store.replace_if("a/b", b"3", found.etag)
    with pytest.raises(ConflictError):
        store.replace_if("a/b", b"4", found.etag)
    assert store.get_range("a/b", 0, 5) == b"3"
    assert store.get_range("a/b", 1, 5) == b""
    no_bucket = "ContainerNotFound" if scheme == "az" else "NoSuchBucket"
    stub.answer = lambda request: Reply(404, error(no_bucket))
    for call in CALLS.values():
        assert "create the bucket 'acme'" in str(refusal(call, store).hint)


def test_a_server_that_ignores_conditions_is_refused_by_name(stub: Stub) -> None:
    """F9: scenario 24, an S3-compatible server that accepts every write."""
    versions = stub.answer = Versions(honour=False)
    store = at(stub.endpoint)
    with pytest.raises(ConfigError, match="s3://acme/orders ignores put-if-absent") as caught:
        probe(store, ManualEnv())
    assert "MinIO" in str(caught.value.hint)
    assert not versions.objects, "the probe cleans up behind itself"


@pytest.mark.parametrize("how", ["answer", "option"])
def test_a_server_that_refuses_conditions_is_refused_too(stub: Stub, how: str) -> None:
    """F9: some servers do not know the header, and some clients are told not to send it."""
    stub.answer = lambda request: Reply(501, error("NotImplemented", "A header you provided"))
    store = at(stub.endpoint, **({"conditional_put": "disabled"} if how == "option" else {}))
    with pytest.raises(ConfigError, match="s3://acme/orders"):
        probe(store, ManualEnv())
    assert not capabilities(store, ManualEnv()).put_if_absent
