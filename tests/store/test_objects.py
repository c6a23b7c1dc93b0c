"""What only a store in a bucket can meet: wrong answers, none, and answers of somebody else."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from stepwell.errors import ConfigError
from stepwell.store.base import Object, Store
from stepwell.store.objects import ObjectsStore
from stepwell.testing import ManualEnv
from tests.store.conftest import BUCKET
from tests.store.http_stub import (
    CALLS,
    FOUND,
    HASTY,
    READS,
    SECRET,
    Reply,
    Request,
    Stub,
    Versions,
    at,
    error,
    every_call,
    listing,
    refusal,
)
from tests.store.test_conditions import google

# Nobody there


@every_call
def test_a_missing_bucket_is_an_error_never_an_empty_store(
    s3_endpoint: str, call: Callable[[Store], object]
) -> None:
    """F10: S3 says 404 for a bucket too; taken for "absent", a typo would start a new pipeline."""
    caught = refusal(call, at(s3_endpoint, bucket="no-such-bucket"))
    assert caught.hint == "create the bucket 'no-such-bucket', or correct its name"


def test_a_bucket_that_vanishes_is_noticed_by_every_call(s3_endpoint: str) -> None:
    """F10: that it was there a moment ago says nothing about now."""
    made = urllib.request.Request(f"{s3_endpoint}/short-lived", data=b"", method="PUT")
    urllib.request.urlopen(made).close()
    store = at(s3_endpoint, bucket="short-lived")
    assert not store.exists("a/b")
    assert store.list() == ()
    gone = urllib.request.Request(f"{s3_endpoint}/short-lived", method="DELETE")
    urllib.request.urlopen(gone).close()
    for call in CALLS.values():
        refusal(call, store)


@every_call
def test_a_closed_port_is_an_error_after_bounded_retries(call: Callable[[Store], object]) -> None:
    """F10: an endpoint that cannot be reached has not said that anything is absent."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    caught = refusal(call, at(f"http://127.0.0.1:{port}"))
    assert "refused" in caught.message
    assert "?" not in caught.message, "a query may hold a signature"
    assert "AWS_ENDPOINT" in str(caught.hint)


@pytest.mark.parametrize("name", ["get", "list", "put_new"])
def test_an_endpoint_that_never_answers_is_given_up(stub: Stub, name: str) -> None:
    """F10: a call that hangs forever can be neither retried nor reported."""
    stub.answer = stub.stall
    hasty = replace(HASTY, request_timeout_s=0.2, retry_timeout_s=0.2, retries_max=1)
    caught = refusal(CALLS[name], at(stub.endpoint, hasty))
    assert "timed out" in caught.message


# Errors


@every_call
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_storm_of_errors_ends_as_unavailable(
    stub: Stub, call: Callable[[Store], object], status: int
) -> None:
    """F10: scenario 19 and 25, a busy store has said nothing about the object."""
    stub.answer = lambda request: Reply(status, error("SlowDown", "Please reduce your rate"))
    caught = refusal(call, at(stub.endpoint))
    assert len(stub.requests) == 1 + HASTY.retries_max
    assert f"{status}" in caught.message
    assert "SlowDown: Please reduce your rate" in caught.message


def test_a_short_storm_is_sat_out(stub: Stub) -> None:
    """Scenario 17: an error, then success, is success."""
    versions = Versions()
    stub.answer = lambda request: versions(request) if len(stub.requests) % 3 == 0 else Reply(503)
    store = at(stub.endpoint)
    store.put_new("a/b", b"bytes")
    found = store.get("a/b")
    assert found is not None
    assert found.data == b"bytes"
    assert len(versions.objects) == 1


def test_a_thousand_objects_are_deleted_in_one_request(stub: Stub) -> None:
    """K3: a collection of 100,000 objects must not be 100,000 requests."""
    versions = stub.answer = Versions()
    store = at(stub.endpoint)
    for name in ("a", "b"):
        store.put_new(f"runs/{name}", b"x")
    before = len(stub.requests)
    store.delete(*(f"runs/{number}" for number in range(1998)), "runs/a", "runs/b")
    assert len(stub.requests) - before == 2
    assert versions.objects == {}


@pytest.mark.parametrize("code", ["InternalError", "AccessDenied"])
def test_of_many_objects_one_that_is_not_deleted_is_an_error(stub: Stub, code: str) -> None:
    """F10: the answer is 200 anyway; taken for success, garbage would be told as gone."""
    part = b"<Deleted><Key>orders/a/b</Key></Deleted>"
    failed = f"<Error><Key>orders/a/c</Key><Code>{code}</Code><Message>no</Message></Error>"
    stub.answer = lambda request: Reply(
        200, b"<DeleteResult>" + part + failed.encode() + b"</DeleteResult>"
    )
    caught = refusal(lambda store: store.delete("a/b", "a/c"), at(stub.endpoint))
    assert "cannot delete" in caught.message


def test_one_of_many_that_is_missing_keeps_none_of_the_others(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 66: another collector was first with some; Google says so of each."""
    monkeypatch.setenv("HOME", str(tmp_path))
    there = {f"{number}" for number in range(0, 40, 2)}

    def answer(request: Request) -> Reply:
        name = unquote(request.path).rpartition("/")[2]
        if request.method != "DELETE" or name not in there:
            return Reply(404, error("NoSuchKey"))
        there.discard(name)
        return Reply(204)

    stub.answer = answer
    store = ObjectsStore("gs", "acme", "orders", ManualEnv(), HASTY, **google(stub))
    store.delete(*(f"a/{number}" for number in range(40)))
    assert there == set()


def test_a_listing_that_fails_on_its_second_page_returns_no_part(stub: Stub) -> None:
    """F10: scenario 21, half a listing would hide the newest objects."""

    def answer(request: Request) -> Reply:
        if "continuation-token" in request.path:
            return Reply(503)
        return Reply(200, listing("orders/a/1", more=True))

    stub.answer = answer
    store = at(stub.endpoint)
    refusal(CALLS["list"], store)
    assert len(stub.requests) == 2 + HASTY.retries_max


@every_call
@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"])
def test_refused_credentials_say_what_to_check(
    stub: Stub, call: Callable[[Store], object], code: str
) -> None:
    """F10: S3 answers 403 for what we may not see; that is not absence either."""
    stub.answer = lambda request: Reply(403, error(code, "No."))
    caught = refusal(call, at(stub.endpoint))
    assert len(stub.requests) == 1, "a refusal is not worth a retry"
    assert code in caught.message
    assert "AWS_ACCESS_KEY_ID" in str(caught.hint)


@pytest.mark.parametrize(
    ("reply", "hint"),
    [
        (Reply(401), "AWS_ACCESS_KEY_ID"),
        (Reply(400, error("ExpiredToken")), "AWS_SESSION_TOKEN"),
        (Reply(400, error("AuthorizationHeaderMalformed")), "AWS_REGION"),
        (Reply(301, error("PermanentRedirect")), "AWS_REGION"),
        (Reply(403, error("RequestTimeTooSkewed")), "clock"),
        (Reply(404, b"<html>Not found</html>"), "endpoint"),
        (Reply(404), "endpoint"),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
def test_an_error_names_what_to_check(stub: Stub, reply: Reply, hint: str) -> None:
    """F10: whatever it is that cannot be understood, it is not an answer to the question."""
    stub.answer = lambda request: reply
    for name in READS:
        assert hint in str(refusal(CALLS[name], at(stub.endpoint)).hint)


def test_a_page_of_a_proxy_is_not_an_empty_store(stub: Stub) -> None:
    """F10: obstore reads "please log in" as a listing without objects."""
    stub.answer = lambda request: Reply(200, b"<html>Please log in.</html>", FOUND)
    caught = refusal(CALLS["list"], at(stub.endpoint))
    assert "proxy" in str(caught.hint)


def test_an_empty_listing_is_checked_once_only(stub: Stub) -> None:
    """That the endpoint is an object store need not be asked each time."""
    versions = Versions()
    stub.answer = lambda request: (
        Reply(200, listing()) if "list-type" in request.path else versions(request)
    )
    store = at(stub.endpoint)
    assert [store.list(), store.list(), store.list("a/")] == [(), (), ()]
    assert len(stub.requests) == 4


def test_without_credentials_the_hint_names_the_variables(stub: Stub) -> None:
    """A machine without a role has nobody to ask, and says so in terms of networks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    options: dict[str, str | bool] = {
        "endpoint": stub.endpoint,
        "metadata_endpoint": nobody,
        "allow_http": True,
    }
    store = ObjectsStore("s3", "acme", "", ManualEnv(), HASTY, **options)
    hint = refusal(CALLS["get"], store).hint
    assert hint is not None
    assert hint.startswith("no credentials were found: set AWS_ACCESS_KEY_ID")


# Short bodies


def test_a_body_cut_short_is_read_again(stub: Stub) -> None:
    """F10: scenario 21, half an object is not an object."""
    replies = [
        Reply(200, b"hal", {**FOUND, "Content-Length": "6"}),
        Reply(503),
        Reply(200, b"halves", FOUND),
    ]
    stub.answer = lambda request: replies[min(len(stub.requests), len(replies)) - 1]
    found = at(stub.endpoint).get("a/b")
    assert found is not None
    assert found.data == b"halves"


def test_a_body_always_cut_short_is_an_error(stub: Stub) -> None:
    """F10: nor is it absent, and the retries end."""
    stub.answer = lambda request: Reply(200, b"hal", {**FOUND, "Content-Length": "6"})
    store = at(stub.endpoint)
    refusal(CALLS["get"], store)
    cut = {**FOUND, "Content-Range": "bytes 0-0/6", "Content-Length": "1"}
    stub.answer = lambda request: Reply(206, b"", cut)
    refusal(CALLS["exists"], store)


def test_a_range_shorter_than_the_object_allows_is_an_error(stub: Stub) -> None:
    """F10: scenario 21, a server may cut a range and announce the cut one."""
    cut = {**FOUND, "Content-Range": "bytes 2-3/10"}
    stub.answer = lambda request: Reply(206, b"cd", cut)
    refusal(lambda store: store.get_range("a/b", 2, 5), at(stub.endpoint))


@pytest.mark.parametrize("short", [1, HASTY.attempts_max])
def test_bytes_are_counted_whatever_the_library_says(
    monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    """F10: scenario 21, a short body that obstore calls a success is read again, or refused."""
    calls = 0

    def get(client: object, path: str, *, options: object) -> object:
        nonlocal calls
        calls += 1
        data = b"hal" if calls <= short else b"halves"
        return SimpleNamespace(meta={"size": 6, "e_tag": '"1"'}, bytes=lambda: data)

    monkeypatch.setattr("stepwell.store.objects.obstore.get", get)
    store = at("http://127.0.0.1:9")
    if short < HASTY.attempts_max:
        assert store.get("a/b") == Object(b"halves", '"1"')
    else:
        assert "expected 6 bytes" in refusal(CALLS["get"], store).message
    assert calls == min(short + 1, HASTY.attempts_max)


def test_an_object_without_an_etag_is_not_handed_out(stub: Stub) -> None:
    """What has no etag can never be replaced, and comes from no object store."""
    stub.answer = lambda request: Reply(200, b"bytes")
    refusal(CALLS["get"], at(stub.endpoint))


# Listing


def test_a_listing_starts_after_and_stops_early(stub: Stub) -> None:
    """Finding the tip of a long journal must not read all its names."""
    page = [f"orders/a/{number:03}" for number in range(100, 200)]
    stub.answer = lambda request: Reply(200, listing(*page, more=len(stub.requests) < 3))
    found = at(stub.endpoint).list("a/", after="a/099", limit=3)
    assert [item.path for item in found] == ["a/100", "a/101", "a/102"]
    (request,) = stub.requests
    assert "start-after=orders%2Fa%2F099" in request.path


def test_folders_and_hidden_names_of_other_tools_are_not_listed(stub: Stub) -> None:
    """The "folder" which a web console made is not the beginning of a pipeline."""
    stub.answer = lambda request: Reply(200, listing("orders/", "orders/.DS_Store"))
    assert at(stub.endpoint).list() == ()
    stub.answer = lambda request: Reply(200, listing("orders/a/", "orders/a/.x/y", "orders/a/b"))
    assert [item.path for item in at(stub.endpoint).list("a/")] == ["a/b"]


def test_an_unordered_listing_is_read_to_its_end(stub: Stub) -> None:
    """S3's directory buckets list in no order, and take no starting point."""

    def answer(request: Request) -> Reply:
        if "continuation-token" in request.path:
            return Reply(200, listing("orders/a/1", "orders/a/4"))
        return Reply(200, listing("orders/a/3", "orders/a/2", more=True))

    stub.answer = answer
    found = at(stub.endpoint, bucket="acme--usw2-az1--x-s3").list("a/", after="a/1", limit=2)
    assert [item.path for item in found] == ["a/2", "a/3"]
    assert "start-after" not in stub.requests[0].path


# Configuration


@pytest.mark.parametrize("options", [{"bogus": "1"}, {"allow_http": "maybe"}, {"timeout": "soon"}])
def test_a_wrong_option_is_a_configuration_error(options: dict[str, str]) -> None:
    """Found when the store is opened, not when the first byte is lost."""
    with pytest.raises(ConfigError, match="cannot open s3://acme") as caught:
        ObjectsStore("s3", "acme", "", ManualEnv(), HASTY, **options)
    assert "AWS_ACCESS_KEY_ID" in str(caught.value.hint)


def test_the_environment_is_heard(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our timeouts must not silently drop AWS_ALLOW_HTTP, which is the client's option too."""
    monkeypatch.setenv("AWS_ENDPOINT", s3_endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    caught = refusal(CALLS["get"], ObjectsStore("s3", BUCKET, "env", ManualEnv(), HASTY))
    assert "AWS_ALLOW_HTTP=true" in str(caught.hint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert ObjectsStore("s3", BUCKET, "env", ManualEnv(), HASTY).get("a/b") is None
