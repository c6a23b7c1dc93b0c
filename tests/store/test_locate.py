"""From an address to a store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.errors import ConfigError
from stepwell.store.local import LocalStore
from stepwell.store.locate import open_store
from stepwell.store.objects import ObjectsStore
from stepwell.store.patient import impatient
from stepwell.testing import ManualEnv
from tests.store.http_stub import HASTY, OPTIONS

ENV = ManualEnv()


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "FILE://{}"])
def test_a_path_and_a_file_address_are_the_same_directory(tmp_path: Path, form: str) -> None:
    """An address in a message can be pasted where a path was."""
    store = open_store(form.format(tmp_path), ENV)
    assert isinstance(impatient(store), LocalStore)
    assert store.uri == f"file://{tmp_path}"
    store.put_new("a/b", b"bytes")
    assert (tmp_path / "a" / "b").read_bytes() == b"bytes"
    assert open_store(store.uri, ENV).uri == store.uri


def test_a_relative_path_is_taken_from_here_and_a_tilde_from_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody wants a directory named `~`, and a store must not move with the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    store = open_store("state", ENV)
    assert store.uri == f"file://{tmp_path}/state"
    assert open_store("~/state", ENV).uri == f"file://{tmp_path}/me/state"
    monkeypatch.chdir("/")
    store.put_new("a", b"")
    assert (tmp_path / "state" / "a").exists()


def test_opening_touches_nothing(tmp_path: Path) -> None:
    """A command that only looks must not leave a directory behind."""
    store = open_store(str(tmp_path / "new"), ENV)
    assert store.list() == ()
    assert store.get("a/b") is None
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("address", "uri"),
    [
        ("s3://acme", "s3://acme"),
        ("s3://acme/", "s3://acme"),
        ("S3://acme/orders/", "s3://acme/orders"),
        ("s3://acme.data-1/team a/orders_2", "s3://acme.data-1/team a/orders_2"),
    ],
)
def test_a_bucket_address_is_kept_in_one_form(address: str, uri: str) -> None:
    """Two spellings of one place must not look like two places."""
    store = open_store(address, ENV, HASTY, endpoint="http://127.0.0.1:9", **OPTIONS)
    assert isinstance(impatient(store), ObjectsStore)
    assert store.uri == uri
    again = open_store(store.uri, ENV, HASTY, endpoint="http://127.0.0.1:9", **OPTIONS)
    assert again.uri == uri


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("s3a://acme/x", "did you mean s3://"),
        ("s4://acme/x", "did you mean s3://"),
        ("gcs://acme/x", "did you mean gs://"),
        ("abfss://acme/x", "did you mean az://"),
        ("fil:///x", "did you mean file://"),
        ("hdfs://acme/x", "s3://bucket/prefix"),
        ("memory://x", "MemoryStore"),
        ("s3:/acme/x", "s3://bucket/prefix"),
        ("file:/x", "file:///directory"),
        ("file://host/x", "./host/x"),
        ("", "a store is a directory"),
    ],
)
def test_an_unknown_address_says_what_is_known(address: str, hint: str) -> None:
    """A typo must not become a directory of that name."""
    with pytest.raises(ConfigError) as caught:
        open_store(address, ENV)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    "rest",
    [
        "key:hunter2@acme/x",
        "acme?secret_access_key=hunter2",
        "acme/x?sig=hunter2",
        "acme/x#hunter2",
        "acme//hunter2",
        "acme/../hunter2",
        "acme/.hunter2",
        "/hunter2",
        "",
    ],
)
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_an_address_with_a_secret_is_refused_and_not_repeated(scheme: str, rest: str) -> None:
    """The text of an address ends up in messages, logs and manifests."""
    with pytest.raises(ConfigError) as caught:
        open_store(f"{scheme}://{rest}", ENV)
    assert "hunter2" not in str(caught.value)
    assert f"{scheme}://bucket/prefix" in caught.value.message


def test_a_directory_takes_no_options(tmp_path: Path) -> None:
    """An endpoint option with a directory is a sign that something else was meant."""
    with pytest.raises(ConfigError, match="takes no options, found endpoint, region"):
        open_store(str(tmp_path), ENV, region="x", endpoint="y")


def python(code: str, *arguments: str) -> str:
    """What a fresh interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_store_in_a_directory_does_not_load_the_object_store_client(tmp_path: Path) -> None:
    """Every command of a local pipeline would pay for it."""
    code = """
import sys
from stepwell.env import SystemEnv
from stepwell.store.locate import open_store
open_store(sys.argv[1], SystemEnv()).put_new("a/b", b"")
print("obstore" in sys.modules)
"""
    assert python(code, str(tmp_path)) == "False"


def test_a_missing_client_names_the_command_that_installs_it() -> None:
    """The traceback of an import helps nobody who asked for a bucket."""
    code = """
import sys
sys.modules["obstore"] = None
from stepwell.env import SystemEnv
from stepwell.errors import ConfigError
from stepwell.store.locate import open_store
try:
    open_store("s3://acme/orders", SystemEnv())
except ConfigError as error:
    print(error.hint)
"""
    assert python(code) == "pip install obstore"
