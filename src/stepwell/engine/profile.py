"""Where the time of transactions went: the last ones are remembered, and profiled as they happen.

Each phase of a transaction is timed where it happens (`transaction.py`), the views by the executor
(`lsm/profiler.py`), sinks and flushes by the events that report them. That is one reading of the
clock for each phase, whether or not anybody asks; the last `REMEMBERED` transactions are kept, and
only asking adds them up. Nothing is timed during replay.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from stepwell.engine.events import Event, Published
from stepwell.engine.memory import Memory
from stepwell.engine.metrics import PHASES, Metrics
from stepwell.env import Env
from stepwell.execution.executor import Executed
from stepwell.lsm.profiler import VIEW_PHASES, ViewProfile
from stepwell.model import Transaction, format_time

REMEMBERED = 100
"""Transactions that are remembered."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a transaction."""

    name: str
    after_s: float
    """Seconds from the beginning of the transaction."""
    seconds: float


@dataclass(frozen=True, slots=True)
class TransactionProfile:
    """Where the time of one transaction went."""

    transaction: Transaction
    time: datetime
    """Its recorded time."""
    rows: int
    """Input rows."""
    seconds: float
    """Its duration, from reading its input to handing its output over."""
    phases: tuple[Span, ...]
    """Its phases; a flush that followed it counts as its last one."""
    views: Mapping[str, ViewProfile]
    """The views that were computed, in order."""
    queries: int = 0
    """Spark queries that it took."""
    sinks: tuple[Span, ...] = ()
    """The commits of sinks that ended with it; they usually run in threads of their own."""


@dataclass(frozen=True, slots=True)
class ViewTotal:
    """Where the time of one view went, over several transactions."""

    seconds: float
    """Time spent on the view."""
    phases: Mapping[str, float]
    """The same by phase."""
    rows_fetched: int
    """Stored rows that were read for it."""
    rows_shared: int
    """Stored rows it needed that had been read for the same transaction already."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of the last transactions went, and the memory that is in use."""

    transactions: tuple[TransactionProfile, ...]
    """The transactions, oldest first. At most 100 are remembered, of this writer."""
    memory: Memory
    """Memory in use now."""

    @property
    def seconds(self) -> float:
        """Duration of all of them, without sinks and flushes."""
        return sum(item.seconds for item in self.transactions)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase: `poll`, `gather`, `execute`, `record`, `apply`, `publish`, `flush`."""
        found = dict.fromkeys(PHASES, 0.0)
        for item in self.transactions:
            for span in item.phases:
                found[span.name] += span.seconds
        return found

    @property
    def sinks(self) -> dict[str, float]:
        """Seconds by sink."""
        found: dict[str, float] = {}
        for item in self.transactions:
            for span in item.sinks:
                found[span.name] = found.get(span.name, 0.0) + span.seconds
        return found

    @property
    def views(self) -> dict[str, ViewTotal]:
        """Every view, with its seconds by phase and the stored rows that were read for it."""
        every: dict[str, list[ViewProfile]] = {}
        for item in self.transactions:
            for name, profile in item.views.items():
                every.setdefault(name, []).append(profile)
        return {name: _total(profiles) for name, profiles in every.items()}

    def summary(self) -> dict[str, object]:
        """The sums over all transactions, as JSON."""
        numbers = [item.transaction for item in self.transactions]
        return {
            "transactions": len(numbers),
            "first": numbers[0] if numbers else None,
            "last": numbers[-1] if numbers else None,
            "rows": sum(item.rows for item in self.transactions),
            "queries": sum(item.queries for item in self.transactions),
            "seconds": self.seconds,
            "phases": self.phases,
            "sinks": self.sinks,
            "views": {name: asdict(total) for name, total in self.views.items()},
        }

    def to_json(self) -> dict[str, object]:
        """The sums, each transaction, and the memory in use, as JSON."""
        each = [{**asdict(item), "time": format_time(item.time)} for item in self.transactions]
        return {**self.summary(), "each": each, "memory": asdict(self.memory)}


def _total(profiles: Sequence[ViewProfile]) -> ViewTotal:
    phases: dict[str, float] = {}
    for phase in VIEW_PHASES:
        spent = sum(profile.phases.get(phase, 0.0) for profile in profiles)
        if spent:
            phases[phase] = spent
    return ViewTotal(
        sum(profile.seconds for profile in profiles),
        phases,
        sum(profile.rows_fetched for profile in profiles),
        sum(profile.rows_shared for profile in profiles),
    )


Lap = Callable[[str], float]
"""Ends a phase, and begins the next; returns the seconds it took."""


@dataclass(slots=True)
class _Remembered:
    """A transaction that was committed, and what has followed it."""

    profile: TransactionProfile
    began: float
    """When it began, by the clock."""
    flushes: list[Span] = field(default_factory=list)
    sinks: list[Span] = field(default_factory=list)

    def whole(self) -> TransactionProfile:
        phases = (*self.profile.phases, *self.flushes)
        return replace(self.profile, phases=phases, sinks=tuple(self.sinks))


class Profiles:
    """Times the phases of transactions, and remembers the last ones. Without an `Env` it does
    nothing.

    Phases are timed by the thread that holds the pipeline; sinks report from threads of their own.
    """

    def __init__(self, env: Env | None = None, metrics: Metrics | None = None) -> None:
        self._env = env
        self._metrics = metrics
        self._spans: list[tuple[str, float, float]] = []
        """The phases since `begin`: name, beginning by the clock, seconds."""
        self._lock = threading.Lock()
        self._remembered: deque[_Remembered] = deque(maxlen=REMEMBERED)

    def begin(self) -> None:
        """Begin a transaction, and forget the phases of one that was not committed."""
        self._spans = []

    def start(self) -> Lap:
        """Begin the first phase; call what this returns with the name of each phase that ends."""
        if self._env is None:
            return _untimed
        env, at = self._env, self._env.uptime()

        def lap(phase: str) -> float:
            nonlocal at
            began, at = at, env.uptime()
            if phase == "flush":
                self._follow(None, phase, began, at - began)
            else:
                self._spans.append((phase, began, at - began))
            self._observe(phase, at - began)
            return at - began

        return lap

    def committed(
        self, number: Transaction, time: datetime, rows: int, seconds: float, executed: Executed
    ) -> None:
        """Remember a transaction, with the phases since `begin`."""
        if self._env is None:
            return
        spans, self._spans = self._spans, []
        began = spans[0][1] if spans else self._env.uptime() - seconds
        phases = tuple(Span(name, at - began, took) for name, at, took in spans)
        views = executed.profile_of
        made = TransactionProfile(number, time, rows, seconds, phases, views, executed.queries)
        with self._lock:
            self._remembered.append(_Remembered(made, began))

    def published(self, event: Event) -> None:
        """Listen for the commits of sinks, each of which ends with some transaction."""
        if isinstance(event, Published) and self._env is not None:
            began = self._env.uptime() - event.seconds
            self._follow(event.transaction, event.sink, began, event.seconds)

    def last(self, number: int | None = None) -> tuple[TransactionProfile, ...]:
        """The last transactions, oldest first: all that are remembered, or this many."""
        with self._lock:
            found = list(self._remembered)
            first = 0 if number is None else max(0, len(found) - number)
            return tuple(item.whole() for item in found[first:])

    def _follow(
        self, transaction: Transaction | None, name: str, began: float, seconds: float
    ) -> None:
        """Add a flush (to the last transaction), or a commit of a sink."""
        with self._lock:
            for item in reversed(self._remembered):
                if transaction in (None, item.profile.transaction):
                    spans = item.flushes if transaction is None else item.sinks
                    spans.append(Span(name, began - item.began, seconds))
                    return

    def _observe(self, phase: str, seconds: float) -> None:
        try:
            if self._metrics is not None:
                self._metrics.observe("phase_seconds", seconds, phase=phase)
        except Exception:  # noqa: BLE001 - a measurement must not undo what was recorded
            self._metrics = None


def _untimed(phase: str) -> float:
    """Discards everything."""
    return 0.0
