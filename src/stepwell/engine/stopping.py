"""A request to end, and how long sinks that lag may still take what waits for them after it.

What they have not taken by then stays in the outbox: it is durable, and the next opening goes on
with it. So how long it takes to end depends on one commit of a sink, never on how far it lags.
"""

from __future__ import annotations

import threading

from stepwell.env import Env


class Stop:
    """Asked for from any thread or signal handler."""

    def __init__(self, env: Env, grace_s: float) -> None:
        self._env = env
        self._grace_s = grace_s
        self._asked = threading.Event()
        self._since: float | None = None
        """When the grace began."""
        self._looping = False
        self._left = 0.0
        """When the last loop was left."""

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        self.begin_grace()
        self._asked.set()

    def begin_grace(self) -> None:
        """Sinks have so long from now on, or from when that was said first.

        Closing right after a loop was stopped is part of the same end. One that comes later than
        another grace after it is an end of its own.
        """
        now, since = self._env.uptime(), self._since
        if since is None or not (self._looping or now < max(since, self._left) + self._grace_s):
            self._since = now

    def begin_loop(self) -> None:
        """A grace that was left from before is over; one that was asked for begins."""
        self._looping = True
        self._since = self._env.uptime() if self.asked else None

    def answer(self) -> None:
        """The loop is over, and nobody who waits for a sink holds it up; the grace goes on."""
        self._asked.clear()
        self._looping = False
        self._left = self._env.uptime()

    def allows(self) -> bool:
        """Whether another commit may be sent to a sink."""
        return self._since is None or self._env.uptime() < self._since + self._grace_s
