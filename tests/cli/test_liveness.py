"""Who may take over a pipeline: real processes, in PID namespaces where allowed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stepwell.cli.run import Watch
from stepwell.deploy import apply
from stepwell.deploy.plan import Plan
from stepwell.deploy.serving import RunningPipeline
from stepwell.endpoint.starting import Announcement, is_starting
from stepwell.env import Env, SystemEnv
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.store.base import Store
from tests.cli.projects import PATIENCE_S, Process, load, stepwell, wait, write_project

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


SLOWLY = """
import os, sys, time
import stepwell.deploy.apply as apply
import stepwell.deploy.pipeline as pipeline
go, make = sys.argv.pop(1), pipeline.make_executor

def slowly(project, spark=None):
    def made(store, env):
        open(go + ".begun", "w").close()
        while not os.path.exists(go):
            time.sleep(0.02)
        return make(project, spark)(store, env)

    return made

apply.make_executor = pipeline.make_executor = slowly
from stepwell.cli.main import main
main()
"""


class Slow(Process):
    """A command whose executor takes as long to start as it is told to, as Spark would."""

    program = SLOWLY

    def __init__(self, folder: Path, *arguments: str, given: str = "") -> None:
        self.go = folder.parent / f"go-{SystemEnv().new_id()}"
        program = [sys.executable, "-c", self.program, str(self.go)]
        super().__init__(folder, *arguments, program=program, given=given)
        wait(lambda: Path(f"{self.go}.begun").exists(), lambda: self.text)

    def release(self) -> None:
        self.go.touch()


def test_a_starting_run_is_reachable_and_is_not_fenced(folder: Path) -> None:
    """R1, F3: from its first moment. It says how far it is, and a push waits for it."""
    starting = Slow(folder, "run")
    try:
        status = json.loads(stepwell(folder, "status", "--json").stdout)
        assert (status["state"], status["pid"]) == ("opening", starting.pid)
        assert status["opening"] == {"stage": "starting", "percent": 0}
        assert f"process {starting.pid} is opening" in stepwell(folder, "status").stdout
        refused = stepwell(folder, "run")
        assert refused.returncode == 1
        assert f"error: process {starting.pid} is opening the pipeline" in refused.stderr
        assert "--take-over" in refused.stderr
        push = Process(folder, "push", "orders", "-", given=json.dumps(ORDER))
        push.until("waiting: process")
        starting.release()
        assert push.end() == 0
        assert "pushed 1 row to orders, transaction 1" in push.text
        status = json.loads(stepwell(folder, "status", "--json").stdout)
        assert (status["state"], status["pid"], status["epoch"]) == ("running", starting.pid, 1)
    finally:
        starting.kill()


IMPORTING = """
import os, sys, time
from stepwell.cli import lazy
go, wanted = sys.argv.pop(1), lazy.import_module

def slowly(name):
    open(go + ".begun", "w").close()
    while not os.path.exists(go):
        time.sleep(0.02)
    return wanted(name)

lazy.import_module = slowly
from stepwell.cli.main import main
main()
"""


class Importing(Slow):
    """A command that takes as long to import its modules as it is told to, as on a busy machine."""

    program = IMPORTING


@pytest.mark.parametrize(
    "command",
    [("push", "orders", "-"), ("checkpoint", "create"), ("deploy", "--yes")],
    ids=lambda command: command[0],
)
def test_a_run_that_imports_its_modules_is_not_overtaken(
    folder: Path, command: tuple[str, ...]
) -> None:
    """R1: on a busy machine, a push right behind a `run` in a script had the pipeline first."""
    assert stepwell(folder, "run", "--once").returncode == 0
    with (folder / "pipeline.sql").open("a", encoding="utf-8") as file:
        file.write("CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders;\n")
    starting = Importing(folder, "run")
    second = Process(folder, *command, given=json.dumps(ORDER))
    try:
        second.until("waiting for a process that is starting to run the pipeline")
        starting.release()
        assert second.end() == 0, second.text
        status = json.loads(stepwell(folder, "status", "--json").stdout)
        assert (status["state"], status["pid"]) == ("running", starting.pid)
        assert status["epoch"] == 2 + (command[0] == "deploy"), "a deploy claims it once more"
    finally:
        starting.kill()
        second.kill()


def test_a_run_that_ends_while_it_imports_is_waited_for_no_longer(folder: Path) -> None:
    """R1: however it ends, the system tells the others."""
    starting = Importing(folder, "run")
    push = Process(folder, "push", "orders", "-", given=json.dumps(ORDER))
    try:
        push.until("waiting for a process that is starting to run the pipeline")
        starting.kill()
        assert push.end() == 0, push.text
        assert "pushed 1 row to orders, transaction 1" in push.text
    finally:
        push.kill()


def test_a_run_that_is_announced_is_found_by_any_name_of_its_folder(tmp_path: Path) -> None:
    """R1: also through a link; and only while it is starting."""
    (tmp_path / "project").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "project")
    assert not is_starting(tmp_path / "project")
    with Announcement(tmp_path / "project"), Announcement(tmp_path / "link") as second:
        assert is_starting(tmp_path / "link")
        second.close()
        assert is_starting(tmp_path / "link"), "the other one is still starting"
    assert not is_starting(tmp_path / "project")


def test_a_run_that_starts_while_a_push_does_is_not_fenced(folder: Path) -> None:
    """R1, F3: a claim rests on what was seen; if that has changed, who has it now is asked."""
    assert stepwell(folder, "run", "--once").returncode == 0
    push = Slow(folder, "push", "orders", "-", given=json.dumps(ORDER))
    running = Process(folder, "run")
    try:
        running.until("running;")
        push.release()
        assert push.end() == 0, push.text
        status = json.loads(stepwell(folder, "status", "--json").stdout)
        assert (status["state"], status["pid"]) == ("running", running.pid)
        assert (status["epoch"], status["transaction"]) == (2, 1)
    finally:
        push.kill()
        running.kill()


def test_a_run_that_starts_while_a_deploy_does_waits_for_it(folder: Path) -> None:
    """R1, F3: neither fences the other."""
    deploy = Slow(folder, "deploy", "--yes")
    running = Process(folder, "run")
    try:
        running.until(f"waiting for process {deploy.pid}, which holds the pipeline")
        deploy.release()
        assert deploy.end() == 0, deploy.text
        running.until("running;")
        given = json.dumps(ORDER)
        assert stepwell(folder, "push", "orders", "-", given=given).returncode == 0
    finally:
        deploy.kill()
        running.kill()


@pytest.mark.parametrize("first", [True, False], ids=["first deploy", "later deploy"])
def test_a_deploy_that_was_overtaken_looks_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """R1, F3, D5: its claim rests on what it saw. A person is asked once."""
    env = SystemEnv()
    if not first:
        assert stepwell(folder, "run", "--once").returncode == 0
        sql = (folder / "pipeline.sql").read_text(encoding="utf-8")
        view = "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders;\n"
        (folder / "pipeline.sql").write_text(sql + view, encoding="utf-8")
    begin, overtaken = apply.begin_pipeline, []

    def begin_and_lose(store: Store, env: Env, **options: Any) -> Manifest:
        found = begin(store, env, **options)
        if not overtaken:
            overtaken.append(Manifests(store, env).claim(writer=env.new_id()).claim.epoch)
        return found

    monkeypatch.setattr(apply, "begin_pipeline", begin_and_lose)
    asked: list[Plan] = []
    said: list[str] = []

    def approve(plan: Plan) -> bool:
        asked.append(plan)
        return True

    done = apply.deploy(load(folder), env, approve=approve, say=said.append)
    assert done.changed is not None
    assert len(asked) == 1
    assert "another process has claimed the pipeline in the meantime: trying again" in said
    found = Manifests(load(folder).open_store(env), env).latest()
    assert found is not None
    assert found.epoch == overtaken[0] + 1


def test_of_several_runs_at_once_one_runs(folder: Path) -> None:
    """R1, F6: the others are told which."""
    runs = [Process(folder, "run") for _ in range(3)]
    try:
        wait(lambda: sum("error:" in run.text for run in runs) == 2, lambda: [r.text for r in runs])
        (runner,) = [run for run in runs if "error:" not in run.text]
        runner.until("running;")
        for run in runs:
            if run is not runner:
                assert run.end() == 1
                assert f"error: process {runner.pid} " in run.text
        status = json.loads(stepwell(folder, "status", "--json").stdout)
        assert (status["pid"], status["epoch"]) == (runner.pid, 1)
    finally:
        for run in runs:
            run.kill()


def test_the_session_of_the_readme_works_pasted_as_a_script(folder: Path) -> None:
    """R1: `run &` and a push at once: whichever is first, no row is lost and no writer is
    fenced."""
    assert stepwell(folder, "run", "--once").returncode == 0
    running = Process(folder, "run")
    try:
        pushed = stepwell(folder, "push", "orders", "-", given=json.dumps(ORDER))
        assert pushed.stdout == "pushed 1 row to orders, transaction 1\n", pushed.stderr
        running.until("running;")
        asked = stepwell(folder, "query", "SELECT customer, n FROM revenue", "--format", "json")
        assert asked.stdout == '{"customer":"ada","n":1}\n'
        assert json.loads(stepwell(folder, "status", "--json").stdout)["pid"] == running.pid
    finally:
        running.kill()


@pytest.mark.parametrize(
    "command",
    [
        ("query", "SELECT * FROM orders"),
        ("push", "orders", "-"),
        ("tail", "revenue"),
        ("deploy",),
        ("checkpoint", "create"),
        ("restore", "--confirm"),
    ],
    ids=lambda command: command[0],
)
def test_no_command_hangs_if_a_process_is_stopped(
    folder: Path, running: Process, command: tuple[str, ...]
) -> None:
    """R1: after the time that was given it names the process, and what to do about it."""
    with (folder / "pipeline.sql").open("a", encoding="utf-8") as file:
        file.write("CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders;\n")
    running.send(signal.SIGSTOP)
    told = stepwell(folder, *command, "--timeout", "500ms", given=json.dumps(ORDER))
    assert told.returncode == 1
    host = SystemEnv().host
    assert f"error: process {running.pid} on host {host}" in told.stderr
    assert "has not answered for 0.5 s" in told.stderr
    assert f"kill -CONT {running.pid}" in told.stderr
    running.send(signal.SIGCONT)
    status = json.loads(stepwell(folder, "status", "--json").stdout)
    assert (status["state"], status["transaction"]) == ("running", 0), "nothing was pushed"


def test_status_of_a_stopped_process_shows_what_the_store_does(
    folder: Path, running: Process
) -> None:
    """R1: and names the process."""
    running.send(signal.SIGSTOP)
    told = stepwell(folder, "status", "--timeout", "500ms")
    assert told.returncode == 0
    assert f"process {running.pid} on host" in told.stdout
    assert f"kill -CONT {running.pid}" in told.stdout
    assert "flushed" in told.stdout
    status = json.loads(stepwell(folder, "status", "--timeout", "500ms", "--json").stdout)
    assert status["state"] == "not answering"
    running.send(signal.SIGCONT)


def test_a_process_that_is_stopped_can_be_taken_over(folder: Path, running: Process) -> None:
    """R1, F3: on request; when it wakes up it is fenced, and leaves the other alone."""
    running.send(signal.SIGSTOP)
    second = Process(folder, "run", "--take-over")
    try:
        second.until("running;")
        running.send(signal.SIGCONT)
        assert running.end() == 1
        assert "another writer took over" in running.text
        assert f"process {second.pid}" in stepwell(folder, "status").stdout
    finally:
        second.kill()


def test_a_run_that_was_changed_by_a_deploy_still_watches(folder: Path, running: Process) -> None:
    """R1: progress, Ctrl-C and a later takeover; a deploy crippled the thread that sees to them."""
    sql = (folder / "pipeline.sql").read_text(encoding="utf-8")
    view = "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders;\n"
    (folder / "pipeline.sql").write_text(sql + view, encoding="utf-8")
    assert stepwell(folder, "deploy", "--yes").returncode == 0
    given = json.dumps(ORDER)
    assert stepwell(folder, "push", "orders", "-", given=given).returncode == 0
    assert "Exception in thread" not in running.text
    taken = contained(folder, "push", "orders", "-", "--take-over", given=given)
    assert taken.returncode == 0
    assert running.end() == 1
    assert "error: another writer took over" in running.text
