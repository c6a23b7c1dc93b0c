"""How far one phase of work is, and how long the rest takes at the pace so far."""

from __future__ import annotations

from stepwell.cli.screen import count
from stepwell.env import Env
from stepwell.store.retry import span_text

_PLURALS = {"entry": "entries"}
_ESTIMATE_S = 1.0
"""Sooner nothing is said about the rest: the first pieces tell little."""


class Pace:
    """One phase at a time; another name begins another one."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._what = ""
        self._first = 0
        self.began = 0.0
        """When the phase began, by the clock that never jumps."""

    def text(self, what: str, done: int, total: int, unit: str) -> str:
        """What a person is told."""
        now = self._env.uptime()
        if what != self._what or done < self._first:
            self._what, self._first, self.began = what, done, now
        told = f"{what}, {100 * done // max(total, 1)} %"
        if unit:
            told += f", {done:,} of {count(total, unit, _PLURALS.get(unit))}"
        took, made = now - self.began, done - self._first
        if made > 0 and took >= _ESTIMATE_S and done < total:
            told += f", about {span_text(took / made * (total - done))} left"
        return told
