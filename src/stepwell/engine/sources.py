"""The sources of a pipeline, polled in turn so that none starves another.

Every source gets an equal share of a step; what some leave over goes to those that have more. The
first to be asked is another one each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.engine.payload import PUSHED, Intake
from stepwell.engine.ports import Change, Limits, Source
from stepwell.errors import ConfigError, InvalidError
from stepwell.query.source import did_you_mean
from stepwell.store.sealed import Json


class Sources:
    def __init__(self, sources: Sequence[Source], tables: Sequence[str]) -> None:
        self._sources = {source.name: source for source in sources}
        self._tables = {table.lower(): table for table in tables}
        self._first = 0
        if len(self._sources) < len(sources):
            raise ConfigError("two sources have the same name")
        if PUSHED in self._sources:
            raise ConfigError(
                f"a source cannot be called {PUSHED}", hint="rows that are pushed go by that name"
            )
        for source in sources:
            self.table(source.table)

    def table(self, name: str) -> str:
        """A table as it is spelled where it was declared."""
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

    def poll(self, position: Callable[[str], Json], limits: Limits) -> tuple[Intake, ...]:
        """What there is now, within the limits; nothing if no source has rows."""
        every = list(self._sources.values())
        hungry = every[self._first :] + every[: self._first]
        self._first = (self._first + 1) % max(1, len(every))
        intakes: list[Intake] = []
        at: dict[str, Json] = {}
        rows, size = limits.rows_max, limits.bytes_max
        while hungry and rows > 0 and size > 0:
            share = Limits(-(-rows // len(hungry)), -(-size // len(hungry)))
            asked, hungry = hungry, []
            for source in asked:
                if rows <= 0 or size <= 0:
                    break
                after = at.get(source.name, position(source.name))
                taken = source.poll(after, share)
                if taken is None:
                    continue
                at[source.name] = taken.position
                intakes.append(Intake(source.name, self.table(source.table), taken))
                rows -= taken.rows
                size -= _size(taken.change)
                if taken.rows >= share.rows_max:
                    hungry.append(source)
        # A source that only moves on, past files without rows, is no reason for a transaction.
        return tuple(intakes) if any(intake.taken.rows for intake in intakes) else ()


def _size(change: Change) -> int:
    return sum(part.nbytes for part in (change.put, change.delete) if part is not None)
