"""How much memory this process and its Java use: held apart from mapped.

Held memory is the process's own; the system cannot take it back. Mapped memory is pages of files
(runs, the cache, libraries) that happen to be in memory: the system drops them when it needs room,
so a large number does no harm. `/proc` on Linux tells them apart; on other systems only the peak of
both is known. All of it is counters that the kernel keeps, so asking is cheap.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in use, in bytes. None where the system does not tell."""

    held: int | None
    """Memory of this process that is not backed by a file."""
    mapped: int | None
    """Pages of files that are in memory; the system can drop them."""
    peak: int
    """Most memory that this process has had, held and mapped together."""
    arrow: int
    """Rows in Arrow's memory, a part of the held memory."""
    java: int | None = None
    """Memory held by Spark's Java, which is a process of its own; None if there is none."""


def memory(java_pid: int | None = None, proc: Path = _PROC) -> Memory:
    """The memory of this process, and of its Java, if it has one."""
    own = _resident(proc / "self")
    java = {} if java_pid is None else _resident(proc / str(java_pid))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Memory(
        held=own.get("RssAnon"),
        # Memory shared between processes is backed by a file without a name.
        mapped=own["RssFile"] + own["RssShmem"] if own else None,
        peak=most if sys.platform == "darwin" else most * 1024,
        arrow=pa.total_allocated_bytes(),
        java=java.get("RssAnon"),
    )


def _resident(process: Path) -> dict[str, int]:
    """The kinds of memory of a process that has any; empty if that is unknown."""
    try:
        lines = (process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found = dict(line.split(":", 1) for line in lines if line.startswith("Rss"))
    if found.keys() < {"RssAnon", "RssFile", "RssShmem"}:
        return {}
    return {name: int(text.split()[0]) * 1024 for name, text in found.items()}
