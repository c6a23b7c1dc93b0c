"""Which process of which machine: how one is identified, and whether it is still alive.

The only place that decides whether a process is alive. A host name and a number do not identify a
process: containers share the host's name and each begins to count at 1, and numbers are reused.
So the boot and the PID namespace in which the number counts, and the time the process was started,
belong to its identity.

`DEAD` is a proof: the number counts in our own namespace of our own boot, and nothing with that
start time has it. Whatever cannot be proved is `UNKNOWN`, and nobody may be fenced because of it.
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
    """On another machine, in another container, or before this machine was started."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process. None where the system does not tell: there is no /proc on macOS."""

    host: str
    pid: int
    boot: str | None = None
    """The id of the boot: another one whenever a machine is started."""
    namespace: str | None = None
    """The PID namespace in which `pid` counts."""
    started: str | None = None
    """When the process was started, in ticks since the boot; tells apart who had the same pid."""

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"


def this_process(host: str) -> ProcessId:
    """Ours."""
    return ProcessId(
        host,
        os.getpid(),
        _text("sys/kernel/random/boot_id"),
        _link("self/ns/pid"),
        _started(_text("self/stat")),
    )


def liveness(other: ProcessId, here: ProcessId) -> Liveness:
    """Whether a process is alive, as far as `here` can know."""
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
    # A /proc of another namespace counts in other numbers than ours.
    if _link("self") != str(os.getpid()):
        return Liveness.ALIVE
    stat = _text(f"{other.pid}/stat")
    if stat is not None and _state(stat) in ("Z", "X"):
        return Liveness.DEAD  # Ended; only its parent has not asked yet.
    return _same(other, _started(stat))


def _same(other: ProcessId, started: str | None) -> Liveness:
    """A process has that number now; is it the same one?"""
    told = other.started is not None and started is not None
    return Liveness.DEAD if told and other.started != started else Liveness.ALIVE


def _state(stat: str) -> str:
    # The name of the program stands before it, in parentheses, and may hold anything.
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
