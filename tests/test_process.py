"""Is a process alive? Proofs only: whatever cannot be known is unknown, and fences nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stepwell import process
from stepwell.env import SystemEnv
from stepwell.process import Liveness, ProcessId, liveness, this_process

HERE = this_process("alpha")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


def seen(child: subprocess.Popen[bytes]) -> ProcessId:
    stat = process._text(f"{child.pid}/stat")
    return replace(HERE, pid=child.pid, started=process._started(stat))


def test_a_process_that_runs_is_alive_and_one_that_was_killed_is_dead(
    child: subprocess.Popen[bytes],
) -> None:
    """F3, scenario 100: also while its parent has not asked for its exit code (a zombie)."""
    other = seen(child)
    assert liveness(other, HERE) is Liveness.ALIVE
    assert liveness(HERE, HERE) is Liveness.ALIVE
    assert liveness(replace(HERE, pid=1, started=None), HERE) is Liveness.ALIVE
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert liveness(other, HERE) is Liveness.DEAD
    child.wait()
    assert liveness(other, HERE) is Liveness.DEAD


def test_a_pid_that_was_given_to_another_process_is_not_a_sign_of_life(
    child: subprocess.Popen[bytes],
) -> None:
    """Scenario 100: pids are reused; the time of the start tells them apart, ours too."""
    assert liveness(replace(seen(child), started="1"), HERE) is Liveness.DEAD
    assert liveness(replace(HERE, started="1"), HERE) is Liveness.DEAD


@pytest.mark.parametrize(
    "elsewhere",
    [{"host": "beta"}, {"boot": "another"}, {"namespace": "pid:[1]"}, {"namespace": None}],
    ids=str,
)
def test_where_numbers_count_differently_nothing_is_known(elsewhere: dict[str, str]) -> None:
    """Scenario 100: a free number proves nothing in another namespace, boot or machine."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid(), 1):
        other = replace(HERE, pid=pid, **elsewhere)  # type: ignore[arg-type]
        assert liveness(other, HERE) is Liveness.UNKNOWN


def test_without_proc_host_and_number_decide(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS has no /proc; there the number is all there is."""
    monkeypatch.setattr(process, "_PROC", "/nowhere")
    here = this_process("alpha")
    assert here == ProcessId("alpha", os.getpid())
    assert liveness(ProcessId("alpha", child.pid), here) is Liveness.ALIVE
    assert liveness(ProcessId("beta", child.pid), here) is Liveness.UNKNOWN
    child.kill()
    child.wait()
    assert liveness(ProcessId("alpha", child.pid), here) is Liveness.DEAD


def test_a_proc_of_another_namespace_is_not_asked_for_start_times(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 100: there, /proc/<pid> is another process than ours of that number."""
    link = process._link
    monkeypatch.setattr(process, "_link", lambda name: "1" if name == "self" else link(name))
    assert liveness(replace(seen(child), started="1"), HERE) is Liveness.ALIVE


def test_the_process_of_an_environment_is_that_of_a_forked_child_too() -> None:
    env = SystemEnv()
    before = env.process
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, f"{env.process.pid} {env.process == before}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100).decode() == f"{pid} False"
    os.close(read)
    os.close(write)
