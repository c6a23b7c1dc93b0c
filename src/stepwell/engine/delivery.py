"""Send output to the sinks of an open pipeline, and hold back input while an outbox is full."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stepwell.engine.events import Waiting
from stepwell.engine.open import Writer
from stepwell.engine.settings import Settings
from stepwell.engine.stopping import Stop
from stepwell.engine.transaction import State
from stepwell.env import Env
from stepwell.errors import UnavailableError


class Delivery:
    """Part of a `WriterSession`: everything about its outboxes together."""

    def __init__(self, state: State, writer: Writer, env: Env, settings: Settings) -> None:
        self._state = state
        self._writer = writer
        self._env = env
        self._settings = settings

    def deliver(self, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Send pending output; return whether every outbox is empty. Never raises for a sink.

        `go_on` is called before each commit to a sink.
        """
        left = [outbox for outbox in self._state.outboxes if not outbox.deliver(go_on)]
        return not left

    def deliver_briefly(self) -> None:
        """Send pending output to each sink for `sink_grace_s`, so that no sink delays the rest."""
        for outbox in self._state.outboxes:
            until = self._env.uptime() + self._settings.sink_grace_s
            outbox.deliver(partial(self._is_before, until))

    def _is_before(self, until: float) -> bool:
        return self._env.uptime() < until

    def wait_for_room(
        self, wait_s_max: float, stop: Stop | None = None, *, deliver: bool = True
    ) -> bool:
        """Wait until every sink can take another transaction; False if that takes too long.

        Returns False also if a stop is requested while an outbox is full. Raises the error of a
        sink that retrying does not fix: the pipeline stops before it ingests more. With `deliver`,
        sends output to full outboxes until there is room, and no longer.
        """
        until = self._env.uptime() + wait_s_max
        reported = False
        while True:
            self._state.check()
            self._writer.journal.check()
            for outbox in self._state.outboxes:
                if outbox.stopped is not None:
                    # A sink with an unknown mark was perhaps written to by our successor.
                    self._writer.check("nothing was committed")
                    raise outbox.stopped.with_traceback(None)
            full = [outbox for outbox in self._state.outboxes if outbox.full]
            if full and deliver:
                for outbox in full:
                    outbox.deliver(lambda outbox=outbox: outbox.full)  # type: ignore[misc]
                full = [outbox for outbox in full if outbox.full and outbox.stopped is None]
            if not full:
                if any(outbox.stopped is not None for outbox in self._state.outboxes):
                    continue
                return True
            left = until - self._env.uptime()
            if left <= 0 or (stop is not None and stop.asked):
                return False
            if not reported:
                waiting = Waiting("input", f"sink {full[0].sink.name} takes its outbox")
                self._state.events.emit(waiting)
                reported = True
            soonest = min(outbox.retry_in_s for outbox in full)
            self._env.sleep(min(left, max(soonest, 0.01)))

    def make_room(self, stop: Stop) -> None:
        """Wait until every sink can take another transaction; raise if that takes too long."""
        if not self.wait_for_room(self._settings.sink_wait_s_max, stop):
            raise self.no_room()

    def no_room(self) -> UnavailableError:
        """The error that says which outbox is full, and why."""
        every = [outbox.status() for outbox in self._state.outboxes]
        status = next((item for item in every if item.full), every[0])
        why = f"the last attempt failed with: {status.error}" if status.error else "it is slow"
        return UnavailableError(
            f"sink {status.name} has not received {status.pending} transactions, and its outbox is "
            f"full; {why}",
            hint="nothing was committed. Bring the sink back, or remove it from the pipeline",
            not_applied=True,
        )
