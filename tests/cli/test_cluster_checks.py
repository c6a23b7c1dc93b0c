"""`stepwell doctor --cluster`: names the executor that would fail a transaction, and why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from stepwell.cli.checks import Status
from stepwell.cli.cluster_checks import (
    check_clocks,
    check_disks,
    check_packages,
    check_pythons,
    check_reach,
    check_workers,
)
from stepwell.execution.machine import Machine, report, versions
from stepwell.store.address import Address, address_of
from stepwell.store.locate import open_store
from stepwell.testing import ManualEnv
from tests.cli.conftest import Run

ROOT = Path(__file__).resolve().parents[2]
HERE = {"stepwell": "1.2.0", "pyspark": "4.3.1", "pyarrow": "21.0.0"}
GOOD = Machine("a", 1, (3, 11, 4), dict(HERE), 100.0, 50 * 2**30, "/tmp", "from/1")
TWO = [GOOD, replace(GOOD, host="b")]


def other(**fields: object) -> list[Machine]:
    return [GOOD, replace(GOOD, host="b", **fields)]  # type: ignore[arg-type]


def test_executors_like_the_driver_are_fit() -> None:
    """S1: the same code on any master."""
    assert check_workers(TWO, 2).detail == "2 executors on a, b"
    found = [
        check_workers(TWO, 2),
        check_pythons(TWO, (3, 11, 9)),
        check_packages(TWO, HERE),
        check_reach(TWO, [], "s3://x"),
        check_clocks(TWO, 99.0, 101.0),
        check_disks(TWO),
    ]
    assert {check.status for check in found} == {Status.OK}


def test_what_would_fail_a_task_is_missing_and_names_the_machine() -> None:
    """S1: instead of a page of Java and Python tracebacks in the middle of a transaction."""
    python = check_pythons(other(python=(3, 12, 1)), (3, 11, 9))
    assert python.detail == "b: 3.12.1, but the driver has 3.11.9"
    old = check_packages(other(packages={**HERE, "stepwell": "1.1.0"}), HERE)
    assert old.detail == "b: stepwell is 1.1.0, but the driver has 1.2.0"
    assert old.fix == 'on every worker: python -m pip install "stepwell==1.2.0"'
    lacks = check_packages(other(packages={"stepwell": "1.2.0", "pyspark": "4.3.1"}), HERE)
    assert lacks.detail == "b: pyarrow is not installed, but the driver has 21.0.0"
    reach = check_reach(other(store_error="no credentials"), [], "s3://x")
    assert reach.detail == "b cannot use s3://x: no credentials"
    unseen = check_reach(TWO, [TWO[1]], "file:///x")
    assert unseen.detail == "b: the driver does not see what they have written to file:///x"
    clock = check_clocks(other(time_s=8_000.0), 99.0, 101.0)
    assert clock.detail == "the clock of b differs by 7,899 s from this one"
    found = [python, old, lacks, reach, unseen, clock]
    assert {check.status for check in found} == {Status.MISSING}


def test_what_only_costs_time_is_a_warning() -> None:
    """A cluster that is busy, or a little apart, is no reason to refuse it."""
    assert check_workers(TWO, 3).status is Status.WARNING
    assert check_packages(other(packages={**HERE, "pyarrow": "20.1.0"}), HERE).status is (
        Status.WARNING
    )
    slow = check_clocks(other(time_s=90.0), 99.0, 101.0)
    assert (slow.status, slow.detail) == (
        Status.WARNING,
        "the clock of b differs by 9 s from this one",
    )
    full = check_disks(other(free_bytes=2**30, folder="/scratch"))
    assert (full.status, full.detail) == (
        Status.WARNING,
        "at least 1.0 GiB free (b: /scratch)",
    )


def test_a_machine_reads_and_writes_the_store(tmp_path: Path) -> None:
    """S1, K2: of two disks under one path, each machine would see only its own objects."""
    store = open_store(str(tmp_path / "store"), ManualEnv())
    store.put_new("token", b"t1")
    address = address_of(store)
    found = report(address, b"t1")
    assert found.store_error is None
    assert found.wrote is not None
    assert store.get(found.wrote) is not None
    assert (found.python, dict(found.packages)) == (sys.version_info[:3], versions())
    assert found.free_bytes > 0
    assert report(address, b"t2").store_error == "it does not see what the driver has written there"
    nowhere = report(Address(f"file://{tmp_path}/no/such"), b"t1")
    assert nowhere.store_error is not None
    assert nowhere.wrote is None


def test_without_a_project_there_is_no_cluster(run: Run, tmp_path: Path) -> None:
    """The master is a setting of a project."""
    ended = run("-C", tmp_path, "doctor", "--cluster")
    assert ended.exit_code != 0
    assert "stepwell.yml" in ended.stderr + ended.stdout


@pytest.mark.slow
def test_every_executor_of_a_cluster_is_checked(tmp_path: Path) -> None:
    """S1: each of two executors takes a task, and all they try is removed."""
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    project = tmp_path / "project"
    (project / "state").mkdir(parents=True)
    (project / "stepwell.yml").write_text(
        "name: p\nstore: ./state\nspark: {master: 'local-cluster[2,1,1024]'}\n"
    )
    (project / "p.sql").write_text("CREATE TABLE t (id BIGINT PRIMARY KEY);\n")
    ended = subprocess.run(
        [sys.executable, "-m", "stepwell", "-C", str(project), "--json", "doctor", "--cluster"],
        env={**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    checks = {check["name"]: check for check in found["checks"][8:]}
    assert list(checks) == ["workers", "python", "packages", "reach", "clock", "disk"]
    assert checks["workers"]["detail"].startswith("2 executors on ")
    assert checks["reach"]["detail"] == f"every executor reads and writes {project / 'state'}"
    assert checks["packages"]["status"] == "ok", checks
    assert not list((project / "state").iterdir()), "what was tried must not be left behind"
