"""Process identity, and whether a process is still alive.

This is the only module that decides whether a process is alive. A host name and a pid do not
identify a process: containers share the host's name and each starts counting at 1, and pids are
reused. The identity therefore also includes the boot, the PID namespace of the pid, and the start
time of the process.

`DEAD` is a proof: the pid belongs to our own PID namespace and our own boot, and no process with
that start time has it. Everything that cannot be proved is `UNKNOWN`, and no writer may be fenced
because of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

_PROC = "/proc"


class Liveness(Enum):
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """On another machine, in another container, or from an earlier boot of this machine."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """The identity of one process. Fields are None where unavailable: macOS has no /proc."""

    host: str
    pid: int
    boot: str | None = None
    """The boot id, which changes each time the machine starts."""
    namespace: str | None = None
    """The PID namespace to which `pid` belongs."""
    started: str | None = None
    """The start time in ticks since boot; distinguishes processes that had the same pid."""

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"


def this_process(host: str) -> ProcessId:
    """The identity of the current process."""
    return ProcessId(
        host,
        os.getpid(),
        _text("sys/kernel/random/boot_id"),
        _link("self/ns/pid"),
        _started(_text("self/stat")),
    )


def liveness(other: ProcessId, here: ProcessId) -> Liveness:
    """Whether a process is alive, as far as `here` can tell."""
    if (other.host, other.boot, other.namespace) != (here.host, here.boot, here.namespace):
        return Liveness.UNKNOWN
    if other.pid == here.pid:
        return _same(other, here.started)
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return Liveness.DEAD
    except (PermissionError, OverflowError):
        pass
    # A /proc mounted from another PID namespace shows different pids from ours.
    if _link("self") != str(os.getpid()):
        return Liveness.ALIVE
    stat = _text(f"{other.pid}/stat")
    if stat is not None and _state(stat) in ("Z", "X"):
        return Liveness.DEAD  # A zombie: it has ended, but its parent has not reaped it.
    return _same(other, _started(stat))


def _same(other: ProcessId, started: str | None) -> Liveness:
    """Decide whether the process that has this pid now is `other`."""
    told = other.started is not None and started is not None
    return Liveness.DEAD if told and other.started != started else Liveness.ALIVE


def _state(stat: str) -> str:
    # The program name comes before the state, in parentheses, and may contain any character.
    return stat.rpartition(")")[2].split()[0]


def _started(stat: str | None) -> str | None:
    return None if stat is None else stat.rpartition(")")[2].split()[19]


def _text(name: str) -> str | None:
    try:
        with open(f"{_PROC}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _link(name: str) -> str | None:
    try:
        return os.readlink(f"{_PROC}/{name}")
    except OSError:
        return None
