"""`stepwell doctor`: check the requirements, and say how to meet those that are missing.

A missing requirement makes the exit code 1. Spark is not started, which would take many seconds,
except to check a cluster: its version is read from the package, and Java is asked for its own. The
store is tested for real,
in a location of its own inside it that is removed afterwards. A crash leaves a hidden directory, or
objects below `probe/`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import metadata
from statistics import median
from typing import TYPE_CHECKING

from stepwell.cli.addresses import local_root
from stepwell.cli.checks import Check, Status
from stepwell.cli.screen import Screen
from stepwell.env import Env, SystemEnv
from stepwell.errors import ConfigError, InvalidError, StepwellError
from stepwell.execution.java import find_java
from stepwell.store.base import Store
from stepwell.store.locate import open_store
from stepwell.store.probe import capabilities
from stepwell.store.race import DOCTOR_ROUNDS, race

if TYPE_CHECKING:
    from stepwell.cli.project_options import ProjectOptions
    from stepwell.deploy.project import Project

PYTHON = (3, 11)
NEEDED = {"pyarrow": (18,), "obstore": (0, 11), "xxhash": (3, 5)}
SPARK = (4, 3)
WRITES_LOCAL, WRITES_REMOTE = 50, 5
SLOW_MS = 50.0
IN_MEMORY = ("tmpfs", "ramfs")


def project_of(options: ProjectOptions) -> Project:
    """The project whose cluster is checked; its sources and sinks are not opened."""
    return options.project(SystemEnv(), secrets=False)


def show(place: str | None, *, json: bool, cluster: Project | None = None) -> bool:
    """Print every check as it is made; return whether nothing required is missing.

    `cluster`: also check the executors of this project's cluster.
    """
    screen, checks = Screen(), []
    for check in examine(place, SystemEnv(), os.environ, cluster):
        checks.append(check)
        if not json:
            _render(screen, check)
    well = all(check.status is not Status.MISSING for check in checks)
    if json:
        screen.json({"ok": well, "checks": [asdict(check) for check in checks]})
    else:
        screen.line()
        screen.line(_verdict(checks))
    return well


def examine(
    place: str | None, env: Env, environ: Mapping[str, str], cluster: Project | None = None
) -> Iterator[Check]:
    yield check_python(sys.version_info[:3])
    for name, least in NEEDED.items():
        yield check_package(name, least)
    yield check_java(environ)
    yield check_spark()
    try:
        place = place or ("." if cluster is None else cluster.store)
        with _throw_away(place, env) as (store, where):
            yield check_store(store, where, env)
            yield check_speed(store, where, env)
            if cluster is not None:
                # Imported late: only this starts Spark.
                from stepwell.cli.cluster_checks import examine_cluster

                yield from examine_cluster(cluster, store, where, env)
    except (StepwellError, OSError) as error:
        elsewhere = "give another location: stepwell doctor PATH_OR_URI"
        if isinstance(error, StepwellError):
            yield Check("store", Status.MISSING, error.message, error.hint or elsewhere)
        else:
            yield Check("store", Status.MISSING, str(error), elsewhere)


def check_python(version: tuple[int, ...]) -> Check:
    text = ".".join(map(str, version))
    if version >= PYTHON:
        return Check("python", Status.OK, text)
    least = ".".join(map(str, PYTHON))
    return Check(
        "python", Status.MISSING, f"{text}, but {least} is needed", "install a newer Python"
    )


def check_package(name: str, least: tuple[int, ...]) -> Check:
    wanted = f"{name}>={'.'.join(map(str, least))}"
    fix = f'{_pip()} "{wanted}"'
    try:
        importlib.import_module(name)
        version = metadata.version(name)
    except Exception as error:  # noqa: BLE001 - a broken package may raise anything while it loads
        return Check(name, Status.MISSING, f"cannot be imported: {error}", fix)
    if _numbers(version) < least:
        return Check(name, Status.MISSING, f"{version}, but {wanted} is needed", fix)
    return Check(name, Status.OK, version)


def check_java(environ: Mapping[str, str]) -> Check:
    try:
        java = find_java(environ)
    except ConfigError as error:
        return Check("java", Status.MISSING, error.message, f'{_pip()} "stepwell[java]"')
    where = java.program if java.origin == "PATH" else java.origin
    return Check("java", Status.OK, f"{java.version} ({where})")


def check_spark() -> Check:
    # Read from the package metadata: importing pyspark takes long, and starting it longer.
    wanted = ".".join(map(str, SPARK))
    fix = f'{_pip()} "pyspark=={wanted}.*"'
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return Check("pyspark", Status.MISSING, "not installed", fix)
    if _numbers(version)[:2] != SPARK:
        return Check("pyspark", Status.MISSING, f"{version}, but {wanted} is needed", fix)
    return Check("pyspark", Status.OK, version)


def check_store(store: Store, where: str, env: Env) -> Check:
    found = capabilities(store, env)
    words = {
        "put-if-absent": found.put_if_absent,
        "compare-and-swap": found.compare_and_swap,
        "sorted listing": found.sorted_listing,
        "read after write": found.read_after_write,
    }
    problem = race(store, env, DOCTOR_ROUNDS) if found.put_if_absent else None
    if problem is not None:
        fix = "use another server, or a version of this one that creates objects atomically"
        return Check("store", Status.MISSING, f"{where} is not safe: {problem}", fix)
    if all(words.values()):
        each = f"{', '.join(words)}, one winner in {DOCTOR_ROUNDS} races"
        return Check("store", Status.OK, f"{where}: {each}")
    lacking = " nor ".join(word for word, there in words.items() if not there)
    return Check(
        "store",
        Status.MISSING,
        f"{where} does not support {lacking}: two writers could overwrite each other",
        "use a local directory, Amazon S3, Google Cloud Storage, Azure Blob Storage, or a server "
        "that honours If-None-Match and If-Match",
    )


def check_speed(store: Store, where: str, env: Env) -> Check:
    """Measure the time until a small object is durable, which is the latency of an append."""
    root = local_root(store)
    number = WRITES_LOCAL if root else WRITES_REMOTE
    body = bytes(1000)
    taken: list[float] = []
    for index in range(number):
        path = f"speed/{index:04d}"
        start = env.uptime()
        store.put_new(path, body)
        taken.append(env.uptime() - start)
    for index in range(number):
        store.delete(f"speed/{index:04d}")
    middle_ms = median(taken) * 1000
    a_second = 1000 / middle_ms if middle_ms else float("inf")
    detail = (
        f"a durable write takes {middle_ms:.2g} ms (median of {number}): "
        f"about {_rounded(a_second)} appends a second"
    )
    if root and (kind := _in_memory(root)):
        return Check(
            "speed",
            Status.WARNING,
            f"{detail}, because {where} is in memory ({kind}): nothing there survives a power cut",
            "keep pipelines on a disk",
        )
    if middle_ms > SLOW_MS and root:
        return Check("speed", Status.WARNING, f"{detail}, which is slow", "use a local SSD")
    return Check("speed", Status.OK, detail)


@contextmanager
def _throw_away(place: str, env: Env) -> Iterator[tuple[Store, str]]:
    """Open a temporary store inside a location; yield it with the location's name for messages."""
    store = open_store(place, env)
    root = local_root(store)
    if root is None:
        inside = open_store(f"{store.uri}/probe/{env.new_id()}", env)
        try:
            yield inside, store.uri
        finally:
            # A failed removal does not matter, and must not hide the original error.
            with suppress(StepwellError):
                for listed in inside.list():
                    inside.delete(listed.path)
        return
    # A store that does not exist yet will be on the same disk as its parent directory.
    existing = root
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        raise InvalidError(
            f"{existing} is a file, and a store is a directory",
            hint="give the directory, or the address of a bucket: stepwell doctor PATH_OR_URI",
        )
    with tempfile.TemporaryDirectory(prefix=".stepwell-doctor-", dir=existing) as directory:
        yield open_store(directory, env), existing


def _in_memory(path: str) -> str | None:
    """Return the type of the file system if it is in memory. Known on Linux only."""
    kinds: dict[str, str] = {}
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                _, point, kind, *_ = line.split(" ")
                kinds[point] = kind
    except OSError:
        return None
    here = os.path.realpath(path)
    while here not in kinds and here != "/":
        here = os.path.dirname(here)
    kind = kinds.get(here, "")
    return kind if kind in IN_MEMORY else None


def _render(screen: Screen, check: Check) -> None:
    styles = {Status.OK: "", Status.WARNING: "yellow", Status.MISSING: "red"}
    label = f"{check.status.value:<9}{check.name:<9}"
    screen.paragraph(check.detail, first=label, style=styles[check.status])
    if check.fix:
        screen.paragraph(check.fix, first=" " * 18 + "-> ")


def _verdict(checks: list[Check]) -> str:
    missing = [check.name for check in checks if check.status is Status.MISSING]
    if missing:
        return f"Not ready: {', '.join(missing)}. The lines with -> say what to do."
    if any(check.status is Status.WARNING for check in checks):
        return "Ready: nothing required is missing. The warnings can wait."
    return "Ready: everything is here."


def _pip() -> str:
    return f"{os.path.relpath(sys.executable) if _near() else sys.executable} -m pip install"


def _near() -> bool:
    """Return whether the interpreter is below the current directory: its short path is clearer."""
    return os.path.abspath(sys.executable).startswith(os.getcwd() + os.sep)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: enough to compare with a lower bound."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _rounded(number: float) -> str:
    """Round to two significant digits.

    >>> _rounded(2468.0), _rounded(17.3)
    ('2,500', '17')
    """
    return f"{float(f'{number:.2g}'):,.0f}"
