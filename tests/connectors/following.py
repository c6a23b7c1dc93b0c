"""A files source as the engine uses it: it is told at every poll which names it has taken.

Positions tell sets of names apart, so what was taken up to each is remembered here for all sources
of a test: also for one that is created again, as by another process.
"""

from __future__ import annotations

import json
from typing import Any

from stepwell.engine.ports import Intake, Limits, Naming, Source
from stepwell.engine.taken_names import TakenNames

_TAKEN: dict[str, frozenset[str]] = {}


class Following:
    """Any source, polled by its position alone."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def poll(self, after: Any, limits: Limits) -> Intake | None:
        if not isinstance(self._source, Naming):
            return self._source.poll(after, limits)
        names = frozenset() if after is None else _TAKEN[_key(after)]
        taken = TakenNames(self._source.name)
        taken.add(names)
        given = self._source.poll_new(after, limits, taken)
        if given is not None:
            _TAKEN[_key(given.position)] = names | set(given.names)
        return given


def _key(position: Any) -> str:
    return json.dumps(position, sort_keys=True)
