"""Who may take over a pipeline: real processes, in PID namespaces where allowed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from stepwell.cli.run import Watch
from stepwell.deploy.serving import RunningPipeline
from stepwell.env import SystemEnv
from stepwell.state.manifest import Manifests
from tests.cli.projects import PATIENCE_S, Process, load, stepwell, write_project

ORDER = {"id": 1, "customer": "ada", "amount": "1.25"}

PRETENDING = """
import stepwell.process as process
link = process._link
process._link = lambda name: "pid:[1]" if name == "self/ns/pid" else link(name)
from stepwell.cli.main import main
main()
"""


@cache
def container() -> tuple[str, ...]:
    """How to start `stepwell` with a process namespace of its own; a pretended one at worst."""
    own = ("unshare", "--pid", "--fork", "--mount-proc")
    for prefix in (own, ("unshare", "--map-root-user", *own[1:])):
        try:
            allowed = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
        except OSError:
            allowed = False
        if allowed:
            return (*prefix, sys.executable, "-m", "stepwell")
    return (sys.executable, "-c", PRETENDING)


def contained(folder: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """A command as in another container: the same host name, other processes, another /tmp."""
    with tempfile.TemporaryDirectory(prefix="sw") as temporary:
        return subprocess.run(
            ["env", f"TMPDIR={temporary}", *container(), "-C", str(folder), *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_project(tmp_path / "project")


@pytest.fixture
def running(folder: Path) -> Iterator[Process]:
    process = Process(folder, "run")
    process.until("running")
    yield process
    process.kill()


@pytest.mark.parametrize(
    "command",
    [("push", "orders", "-"), ("checkpoint", "create"), ("restore", "--confirm")],
    ids=lambda command: command[0],
)
def test_a_writer_in_another_container_is_not_taken_for_dead(
    folder: Path, running: Process, command: tuple[str, ...]
) -> None:
    """F3, scenario 100: its number means nothing in here, so it is not fenced without a word."""
    given = json.dumps(ORDER)
    assert stepwell(folder, "push", "orders", "-", given=given).returncode == 0
    assert stepwell(folder, "checkpoint", "create").returncode == 0
    refused = contained(folder, *command, given=given)
    assert refused.returncode == 1
    assert f"process {running.pid} on host" in refused.stderr
    assert "--take-over" in refused.stderr
    status = json.loads(contained(folder, "status", "--json").stdout)
    assert (status["state"], status["epoch"]) == ("unknown", 1)
    assert json.loads(stepwell(folder, "status", "--json").stdout)["state"] == "running"


def test_a_takeover_from_another_container_is_noticed(folder: Path, running: Process) -> None:
    """F3, scenario 100: whatever host and pid the new writer has."""
    given = json.dumps(ORDER)
    taken = contained(folder, "push", "orders", "-", "--take-over", given=given)
    assert taken.returncode == 0
    assert running.end() == 1
    assert "error: another writer took over" in running.text


def test_a_takeover_by_the_same_host_and_pid_is_noticed(folder: Path) -> None:
    """F3, scenario 100: process 1 of a container is followed by process 1 of the next."""
    env = SystemEnv()
    with RunningPipeline(load(folder), env) as pipeline:
        watch = Watch(pipeline, env, lambda: None)
        try:
            assert not watch.look()
            other = Manifests(pipeline.store, env).claim(writer=env.new_id())
            assert other.claim.process == env.process
            assert watch.look()
            assert watch.error is not None
            assert watch.error.epoch == other.claim.epoch
        finally:
            watch.close()
