"""Deciding whether a file that may still be being written has been left alone for long enough.

A file is settled when its size and modification time have not changed for `settle_s` by the
monotonic clock of this process, in at least three observations. The modification time is only
compared with itself, never with a clock: the machine that writes the file, the file server and this
machine may disagree about the time by hours. After a restart nothing is known, and a file is
observed again from the start.

The time between two observations counts for at most half of the required time. So if the machine
and the writer both slept, that time does not pass for a quiet period.

Memory is bounded: at most `_FILES_MAX` files are observed at once, and the others wait their turn.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stepwell.connectors.file_parts import FileListed
from stepwell.env import Env

TICK_S = 2.0
"""An upper bound on the granularity of any file system's times."""
_FILES_MAX = 10_000
_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class _Observed:
    size: int
    mtime_ns: int
    looked: float
    quiet_s: float = 0.0
    changed: bool = False
    """Whether it was seen to change, which means that it is being written."""


class Settling:
    """Observes the files of one source that do not look complete."""

    def __init__(self, env: Env, settle_s: float) -> None:
        self._env = env
        self._settle_s = settle_s
        self._observed: dict[str, _Observed] = {}

    def look(self, file: FileListed) -> bool:
        """Observe a file; returns whether it is settled. The first observation never is."""
        if self._settle_s <= 0:
            return True
        now = self._env.uptime()
        seen = self._observed.get(file.name)
        if seen is None:
            if len(self._observed) < _FILES_MAX:
                self._observed[file.name] = _Observed(file.size, file.mtime_ns, now)
            return False
        if (seen.size, seen.mtime_ns) != (file.size, file.mtime_ns):
            self._observed[file.name] = _Observed(file.size, file.mtime_ns, now, changed=True)
            return False
        seen.quiet_s += min(now - seen.looked, self._needed_s(seen) / 2)
        seen.looked = now
        return seen.quiet_s >= self._needed_s(seen)

    def is_observed(self, name: str) -> bool:
        return name in self._observed

    def is_settled(self, file: FileListed) -> bool:
        """The result of the last observation, if the file has not changed since."""
        if self._settle_s <= 0:
            return True
        seen = self._observed.get(file.name)
        return (
            seen is not None
            and (seen.size, seen.mtime_ns) == (file.size, file.mtime_ns)
            and seen.quiet_s >= self._needed_s(seen)
        )

    def forget(self, name: str) -> None:
        """Stop observing a file that was taken."""
        self._observed.pop(name, None)

    def forget_others(self, names: Collection[str]) -> None:
        """Stop observing files that are gone."""
        if self._observed:
            there = set(names)
            for name in [name for name in self._observed if name not in there]:
                del self._observed[name]

    def wait_s(self) -> float | None:
        """How long to wait before the next observation; None if no file is worth waiting for.

        A file that was seen to change is left out, for callers that cannot wait forever: it may be
        written for hours.
        """
        left = [
            min(self._needed_s(seen) - seen.quiet_s, self._needed_s(seen) / 2)
            for seen in list(self._observed.values())
            if not seen.changed and seen.quiet_s < self._needed_s(seen)
        ]
        return min(left, default=None)

    def _needed_s(self, seen: _Observed) -> float:
        # Times in whole seconds suggest a file system without finer ones; there, a file can be
        # written without a trace for the length of a tick.
        coarse = seen.mtime_ns % _SECOND_NS == 0
        return max(self._settle_s, TICK_S) if coarse else self._settle_s
