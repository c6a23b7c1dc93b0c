"""Progress of one phase of work: how far it is, and an estimate of the remaining time."""

from __future__ import annotations

from stepwell.cli.screen import count
from stepwell.durations import duration_text
from stepwell.env import Env

_PLURALS = {"entry": "entries"}
_ESTIMATE_S = 1.0
"""Minimum time before an estimate: the first pieces of work tell little."""


class PhaseProgress:
    """Tracks one phase at a time; another name begins another phase."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._what = ""
        self._first = 0
        self.began = 0.0
        """Start of the phase on the monotonic clock."""

    def text(self, what: str, done: int, total: int, unit: str) -> str:
        """Return the progress message for the user."""
        now = self._env.uptime()
        if what != self._what or done < self._first:
            self._what, self._first, self.began = what, done, now
        told = f"{what}, {100 * done // max(total, 1)} %"
        if unit:
            told += f", {done:,} of {count(total, unit, _PLURALS.get(unit))}"
        took, made = now - self.began, done - self._first
        if made > 0 and took >= _ESTIMATE_S and done < total:
            told += f", about {duration_text(took / made * (total - done))} left"
        return told
