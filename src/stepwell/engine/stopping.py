"""A request to stop, and the grace period in which sinks that lag may still receive output.

The rest stays in the outbox, which is durable, and the next opening continues with it. So the time
to stop depends on one commit to a sink, never on how far the sink lags.
"""

from __future__ import annotations

import threading

from stepwell.env import Env


class Stop:
    """Requested from any thread or signal handler."""

    def __init__(self, env: Env, grace_s: float) -> None:
        self._env = env
        self._grace_s = grace_s
        self._asked = threading.Event()
        self._since: float | None = None
        """When the grace period began."""
        self._looping = False
        self._left = 0.0
        """When the last loop ended."""

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        self.begin_grace()
        self._asked.set()

    def begin_grace(self) -> None:
        """Begin the grace period, unless it has begun.

        Closing right after a loop was stopped belongs to the same stop. Closing more than a grace
        period later begins another one.
        """
        now, since = self._env.uptime(), self._since
        if since is None or not (self._looping or now < max(since, self._left) + self._grace_s):
            self._since = now

    def begin_loop(self) -> None:
        """End an earlier grace period; begin one if a stop is requested already."""
        self._looping = True
        self._since = self._env.uptime() if self.asked else None

    def end_loop(self) -> None:
        """Acknowledge the request: the loop has ended. The grace period continues."""
        self._asked.clear()
        self._looping = False
        self._left = self._env.uptime()

    def allows(self) -> bool:
        """Whether another commit may be sent to a sink."""
        return self._since is None or self._env.uptime() < self._since + self._grace_s
