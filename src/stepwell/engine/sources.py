"""The sources of a pipeline, polled in rotation so that none starves another.

Every source gets an equal share of a step; unused shares go to sources with more input. The polling
order rotates. A source that fails is paused, its error is in the status, and the others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepwell.durations import backoff_s
from stepwell.engine.bulk import BulkReader
from stepwell.engine.events import Events, SourceFailed
from stepwell.engine.payload import PUSHED
from stepwell.engine.ports import (
    BulkRead,
    Intake,
    Lags,
    Limits,
    MeasuresLag,
    Names,
    Naming,
    Settles,
    Source,
)
from stepwell.engine.taken_names import Layers, TakenNames
from stepwell.env import Env
from stepwell.errors import (
    ConfigError,
    ExecutorLostError,
    InvalidError,
    StepwellError,
    UnavailableError,
    ensure,
)
from stepwell.lsm.bulk import NotInBulkError
from stepwell.lsm.change import Change
from stepwell.store.sealed import Json
from stepwell.text import did_you_mean

_ROUNDS_MAX = 1_000
"""How often sources that advance without rows are polled again at once."""
_DECLINED_S = 60.0
"""How long a source is read step by step after a bulk read that was not possible."""
_MOVED_NAMES_MAX = 1_000
"""Names that a source may pass without an entry, so that the next entry stays small."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    name: str
    table: str
    position: Json
    """Its position after the last transaction; None: the start."""
    error: str | None = None
    """Why the last poll failed; None if it did not."""
    waiting: str | None = None
    """How far it lags, in words, if it knows."""
    lag: Mapping[str, int] = field(default_factory=dict)
    """How far each of its parts lags (`ports.MeasuresLag`); empty if it does not know."""


@dataclass(slots=True)
class _Failure:
    error: StepwellError
    count: int
    until: float


@dataclass(frozen=True, slots=True)
class _Moved:
    """How a source advanced without rows: the recorded position, the new one, names passed."""

    base: Json
    position: Json
    names: tuple[str, ...]


class Sources:
    def __init__(
        self,
        sources: Sequence[Source],
        tables: Sequence[str],
        env: Env,
        waits: tuple[float, float] = (0.5, 30.0),
        events: Events | None = None,
    ) -> None:
        """`waits` are the first and the longest pause before a failed source is retried."""
        self._env = env
        self._waits = waits
        self._events = events or Events()
        self._failures: dict[str, _Failure] = {}
        self._moved: dict[str, _Moved] = {}
        self._sources = {source.name: source for source in sources}
        self._tables = {table.lower(): table for table in tables}
        self._declined: dict[str, float] = {}
        """Until when a source is not read in bulk, because some of its input cannot be."""
        self._first = 0
        if len(self._sources) < len(sources):
            raise ConfigError("two sources have the same name")
        if PUSHED in self._sources:
            raise ConfigError(
                f"a source cannot be called {PUSHED}", hint="that name is reserved for pushed rows"
            )
        for source in sources:
            self.table(source.table)

    def table(self, name: str) -> str:
        """The declared spelling of a table; `InvalidError` if there is none."""
        found = self._tables.get(name.lower())
        if found is None:
            raise InvalidError(
                f"there is no table {name}",
                hint=did_you_mean(name, self._tables.values())
                or "tables are: " + ", ".join(self._tables.values()),
            )
        return found

    def get(self, name: str) -> Source | None:
        return self._sources.get(name)

    def all(self) -> tuple[Source, ...]:
        return tuple(self._sources.values())

    def status(self, positions: Mapping[str, Json]) -> tuple[SourceStatus, ...]:
        return tuple(
            SourceStatus(
                source.name,
                source.table,
                positions.get(source.name),
                self._failures[source.name].error.message
                if source.name in self._failures
                else None,
                source.waiting() if isinstance(source, Lags) else None,
                source.lag() if isinstance(source, MeasuresLag) else {},
            )
            for source in self._sources.values()
        )

    def settle_in_s(self, since: float) -> float | None:
        """Seconds to wait for input that a source holds back; None if there is none.

        `since` is the uptime at which the run began.
        """
        settling = (source for source in self.all() if isinstance(source, Settles))
        waits = [source.settles_in_s(since) for source in settling]
        return min((wait for wait in waits if wait is not None), default=None)

    def check(self) -> None:
        """Raise the error of a failed source, if there is one."""
        for failure in self._failures.values():
            raise failure.error.with_traceback(None)

    def poll(
        self,
        position: Callable[[str], Json],
        limits: Limits,
        names: Callable[[str], Layers] = lambda source: Layers(TakenNames(source)),
        bulk: BulkReader | None = None,
    ) -> tuple[Intake, ...]:
        """Poll the sources within the limits; empty if no source has rows.

        `position` and `names` return the position of a source, and the names it has taken. With
        `bulk`, a source with much input may exceed the limits; its intake is then the only one.

        A source that only advances, past a few files without rows, causes no transaction. This
        process continues from there.
        """
        for _ in range(_ROUNDS_MAX):
            intakes, at = self._round(position, limits, names, bulk)
            many = any(len(moved.names) > _MOVED_NAMES_MAX for moved in at.values())
            if many or any(intake.rows for intake in intakes):
                return tuple(intakes)
            moves = any(moved != self._moved.get(name) for name, moved in at.items())
            self._moved |= at
            if not moves:
                break
        return ()

    def _round(
        self,
        position: Callable[[str], Json],
        limits: Limits,
        names: Callable[[str], Layers],
        bulk: BulkReader | None,
    ) -> tuple[list[Intake], dict[str, _Moved]]:
        """Poll each source until the limits are used up; return intakes and new positions."""
        every = list(self._sources.values())
        hungry = every[self._first :] + every[: self._first]
        self._first = (self._first + 1) % max(1, len(every))
        intakes: list[Intake] = []
        at: dict[str, _Moved] = {}
        rows, size = limits.rows_max, limits.bytes_max
        while hungry and rows > 0 and size > 0:
            share = Limits(-(-rows // len(hungry)), -(-size // len(hungry)))
            asked, hungry = hungry, []
            for source in asked:
                if rows <= 0 or size <= 0:
                    break
                name = source.name
                before = at.get(name) or self._after(name, position(name))
                layers = Layers(names(name), frozenset(before.names))
                reader = bulk if name not in at else None
                intake = self._poll(source, before.position, share, layers, reader, not intakes)
                if intake is None:
                    continue
                if name not in at and before.names:
                    # The source moved past these names without rows, so no entry has them yet.
                    intake = replace(intake, names=(*before.names, *intake.names))
                new = intake.names if name not in at else (*before.names, *intake.names)
                at[name] = _Moved(before.base, intake.position, new)
                intakes.append(replace(intake, source=name, table=self.table(source.table)))
                if intake.change.staged is not None:
                    return intakes, at
                rows -= intake.rows
                size -= _size(intake.change)
                if intake.rows >= share.rows_max:
                    hungry.append(source)
        return intakes, at

    def _after(self, name: str, recorded: Json) -> _Moved:
        moved = self._moved.get(name)
        return moved if moved and moved.base == recorded else _Moved(recorded, recorded, ())

    def _poll(
        self,
        source: Source,
        after: Json,
        limits: Limits,
        names: Names,
        bulk: BulkReader | None,
        alone: bool,
    ) -> Intake | None:
        """Poll one source. `alone`: no other has input in this round. A bulk read needs that."""
        failure = self._failures.get(source.name)
        if failure is not None and self._env.uptime() < failure.until:
            return None
        until = self._declined.get(source.name, 0.0)
        if bulk is not None and self._env.uptime() >= until and bulk.serves(source):
            limits = replace(limits, bulk_bytes=bulk.bytes_min)
        try:
            found = _polled(source, after, limits, names)
            if not isinstance(found, BulkRead):
                intake = found
            elif bulk is None or not alone:
                # It comes first in the next round.
                self._first = list(self._sources).index(source.name)
                return None
            else:
                intake = self._read_in_bulk(source, after, found, limits, names, bulk)
        except ExecutorLostError:
            raise
        except StepwellError as error:
            self._pause(source.name, error)
            return None
        except Exception as error:  # noqa: BLE001 - a source may raise anything
            failed = UnavailableError(
                f"source {source.name} failed: {type(error).__name__}: {error}",
                hint="the other sources continue, and it is retried",
            )
            failed.__cause__ = error
            self._pause(source.name, failed)
            return None
        self._failures.pop(source.name, None)
        return intake

    def _read_in_bulk(
        self,
        source: Source,
        after: Json,
        read: BulkRead,
        limits: Limits,
        names: Names,
        bulk: BulkReader,
    ) -> Intake | None:
        try:
            return bulk.intake(source, read)
        except NotInBulkError:
            self._declined[source.name] = self._env.uptime() + _DECLINED_S
            found = _polled(source, after, replace(limits, bulk_bytes=None), names)
            ensure(not isinstance(found, BulkRead), "a source reads in bulk only if it is asked to")
            return None if isinstance(found, BulkRead) else found

    def _pause(self, name: str, error: StepwellError) -> None:
        failure = self._failures.get(name)
        count = 0 if failure is None else failure.count + 1
        first, longest = self._waits
        wait = backoff_s(count, first, longest, self._env)
        self._failures[name] = _Failure(error, count, self._env.uptime() + wait)
        self._events.emit(SourceFailed(name, error.message, wait))


def _polled(source: Source, after: Json, limits: Limits, names: Names) -> Intake | BulkRead | None:
    if isinstance(source, Naming):
        return source.poll_new(after, limits, names)
    return source.poll(after, limits)


def _size(change: Change) -> int:
    return sum(part.nbytes for part in change.parts)
