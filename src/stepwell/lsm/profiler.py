"""Where the time of computing a view goes, and how many stored rows it reads.

A profiler belongs to one thread. Each moment counts for exactly one phase: entering a phase ends
the one before, and leaving it returns to that one. So the phases of a view add up to its time, and
a phase does not include the phases inside it. Entering costs one reading of the clock, so phases
are long: a look-up, a join, the expressions of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["planning", "look-ups", "joins", "expressions", "merging", "spark"]
VIEW_PHASES: dict[Phase, str] = {
    "planning": "choosing and reducing plans, and everything that is in no other phase",
    "look-ups": "finding stored rows by their values, and reading them",
    "joins": "joining these rows",
    "expressions": "filters, projections, groupings and the other operators",
    "merging": "adding the change to stored sums",
    "spark": "queries that Spark computes",
}
"""The phases of computing a view, with their meaning."""


@dataclass(frozen=True, slots=True)
class ViewProfile:
    """Where the time of one view in one transaction went."""

    after_s: float = 0.0
    """Seconds from the beginning of the computation to the beginning of this view."""
    seconds: float = 0.0
    """Time spent on the view."""
    phases: Mapping[Phase, float] = field(default_factory=dict)
    """The same by phase."""
    rows_fetched: int = 0
    """Stored rows that were read for it."""
    rows_shared: int = 0
    """Stored rows it needed that had been read in this transaction already, mostly for others."""


class Profiler:
    """Profiles views one after the other. Without a clock, all times are zero."""

    __slots__ = (
        "_began",
        "_clock",
        "_first",
        "_phase",
        "_seconds",
        "_since",
        "rows_fetched",
        "rows_shared",
    )

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._first = self._began = self._since = 0.0
        self._phase: Phase = "planning"
        self._seconds: dict[Phase, float] = {}
        self.rows_fetched = 0
        self.rows_shared = 0
        self.begin()

    def begin(self) -> None:
        """Begin a transaction."""
        self._first = self._clock()
        self._reset(self._first)

    def enter(self, phase: Phase) -> Phase:
        """Enter a phase, and return the one before, which the caller enters again at the end."""
        now = self._clock()
        before = self._phase
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._phase, self._since = phase, now
        return before

    def view(self) -> ViewProfile:
        """End a view, and begin the next one."""
        self.enter("planning")
        now = self._since
        profile = ViewProfile(
            self._began - self._first,
            now - self._began,
            self._seconds,
            self.rows_fetched,
            self.rows_shared,
        )
        self._reset(now)
        return profile

    def _reset(self, now: float) -> None:
        self._began = self._since = now
        self._phase = "planning"
        self._seconds = {}
        self.rows_fetched = 0
        self.rows_shared = 0
