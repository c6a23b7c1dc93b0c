"""The loop of a pipeline, one turn at a time: poll, commit, deliver, flush, rest.

A turn takes one step from the sources. With no latency allowed the step is a transaction. Otherwise
steps are recorded as they come, and the transaction closes when it is old enough or large enough,
or when the loop ends: fewer and larger computations, and an input that is recorded early. A step
that cannot be read again closes it at once: if a transaction cannot be computed it is taken back,
and only what can be read again may be.

The loop ends at a boundary. A crash in it leaves what `transaction.settle` is for.
"""

from __future__ import annotations

from stepwell.engine.core import Core
from stepwell.engine.stopping import Stop
from stepwell.engine.transaction import Done


class Loop:
    """Whoever drives it holds the pipeline during a turn, and rests between turns."""

    def __init__(self, core: Core, stop: Stop, *, once: bool, transactions_max: int | None) -> None:
        self._core = core
        self._stop = stop
        stop.begin_loop()
        self._once = once
        self._transactions_max = transactions_max
        self._opened_at = 0.0
        self.transactions = 0
        self.ended = transactions_max == 0
        self.rest_s = 0.0
        """How long to rest before the next turn."""

    def go_on_with(self, core: Core) -> None:
        """From now on with this one: the pipeline was changed between two turns."""
        self._core = core

    def turn(self) -> Done | None:
        """Take a step, or rest; the transaction that was committed, if one was."""
        core = self._core
        self.rest_s = 0.0
        refused, core.refused = core.refused, None
        if refused is not None:
            raise refused
        if not core.room(0.0, deliver=not self._in_background):
            # Not waited for inside the turn: others may want to stop the loop, or to look.
            wait_s = core.settings.sink_wait_s_max
            if self._once and not core.room(wait_s, self._stop) and not self._stop.asked:
                raise core.full()
            self.rest_s = core.settings.idle_s
            return None
        open = core.state.open
        if open is not None and open.doomed:
            core.boundary()
            open = None
        step = core.poll()
        done: Done | None = None
        if step is None:
            self._idle()
        elif core.settings.latency_s_max > 0 and step.can_be_read_again:
            if open is None:
                open = core.begin(explicit=False)
                self._opened_at = core.env.uptime()
            core.add(step)
        elif open is None:
            done = core.commit_step(step)
        else:
            done = core.close_open(step)
        if done is None and self._is_due(step is None):
            done = core.close_open()
        return self._counted(done)

    def finish(self) -> Done | None:
        """End at a boundary, flushed; the transaction that was still open, committed."""
        core = self._core
        done: Done | None = None
        open = core.state.open
        if open is not None and not open.explicit and not open.doomed:
            done = self._counted(core.close_open())
        core.deliver(self._stop.allows)
        core.flush()
        return done

    @property
    def _in_background(self) -> bool:
        """Whether sinks have threads of their own."""
        return self._core.settings.background_delivery and not self._once

    def _idle(self) -> None:
        core = self._core
        if not self._in_background:
            core.deliver(lambda: not self._stop.asked)
        core.flush_if_due()
        if self._once:
            # All there is was asked for, so one that cannot say what it has is an error.
            core.sources.check()
            wait_s = core.sources.settle_in_s()
            self.ended = wait_s is None
            self.rest_s = wait_s or 0.0
        else:
            self.rest_s = core.settings.idle_s

    def _is_due(self, idle: bool) -> bool:
        core = self._core
        open = core.state.open
        if open is None or not open.steps:
            return False
        old = core.env.uptime() - self._opened_at >= core.settings.latency_s_max
        large = open.rows >= core.settings.limits.rows_max
        return old or large or (idle and self._once)

    def _counted(self, done: Done | None) -> Done | None:
        if done is not None:
            self.transactions += 1
            if self._transactions_max is not None and self.transactions >= self._transactions_max:
                self.ended = True
        return done
