"""The ingest loop of a pipeline, one turn at a time: poll, commit, deliver, flush, rest.

A turn takes one step from the sources. Without latency (`latency_s_max`) each step is a
transaction. With it, steps are recorded as they arrive, and the transaction closes when it is old
or large enough, or when the loop ends: fewer and larger computations over input that is recorded
early. A step that cannot be read again closes the transaction at once: a transaction that cannot be
computed is rolled back, and only input that can be read again may be.

The loop ends at a boundary. After a crash, `transaction.settle` decides about the open transaction.
"""

from __future__ import annotations

from stepwell.engine.stopping import Stop
from stepwell.engine.transaction import Done
from stepwell.engine.writer_session import WriterSession


class IngestLoop:
    """The caller holds the pipeline during a turn, and rests between turns."""

    def __init__(
        self, session: WriterSession, stop: Stop, *, once: bool, transactions_max: int | None
    ) -> None:
        self._session = session
        self._stop = stop
        stop.begin_loop()
        self._once = once
        self._transactions_max = transactions_max
        self._began_at = session.env.uptime()
        self._opened_at = 0.0
        self.transactions = 0
        self.ended = transactions_max == 0
        self.rest_s = 0.0
        """Seconds to rest before the next turn."""

    def continue_with(self, session: WriterSession) -> None:
        """Continue with another session: the program was swapped between two turns."""
        self._session = session

    def turn(self) -> Done | None:
        """Take a step, or ask to rest; return the transaction if one was committed."""
        session = self._session
        self.rest_s = 0.0
        refused, session.refused = session.refused, None
        if refused is not None:
            raise refused
        delivery = session.delivery
        if not delivery.wait_for_room(0.0, deliver=not self._in_background):
            # Rest outside the turn, so that other threads can stop the loop or query meanwhile.
            wait_s, stop = session.settings.sink_wait_s_max, self._stop
            if self._once and not delivery.wait_for_room(wait_s, stop) and not stop.asked:
                raise delivery.no_room()
            self.rest_s = session.settings.idle_s
            return None
        open = session.state.open
        if open is not None and open.failed:
            session.reach_boundary()
            open = None
        step = session.poll()
        done: Done | None = None
        if step is None:
            self._idle()
        elif session.settings.latency_s_max > 0 and step.can_be_read_again and not step.staged:
            if open is None:
                open = session.begin(explicit=False)
                self._opened_at = session.env.uptime()
            session.add(step)
        else:
            done = session.commit(step)
        if done is None and self._is_due(step is None):
            done = session.commit()
        return self._counted(done)

    def finish(self) -> Done | None:
        """End at a boundary, and flush; return the open transaction if one was committed."""
        session = self._session
        done: Done | None = None
        open = session.state.open
        if open is not None and not open.explicit and not open.failed:
            done = self._counted(session.commit())
        session.delivery.deliver(self._stop.allows)
        session.checkpointer.flush()
        return done

    @property
    def _in_background(self) -> bool:
        """Whether each sink has its own thread."""
        return self._session.settings.background_delivery and not self._once

    def _idle(self) -> None:
        session = self._session
        if not self._in_background:
            session.delivery.deliver(lambda: not self._stop.asked)
        session.checkpointer.flush_if_due()
        if self._once:
            # The caller wants all input, so a source that fails is an error.
            session.sources.check()
            wait_s = session.sources.settle_in_s(self._began_at)
            self.ended = wait_s is None
            self.rest_s = wait_s or 0.0
        else:
            self.rest_s = session.settings.idle_s

    def _is_due(self, idle: bool) -> bool:
        session = self._session
        open = session.state.open
        if open is None or not open.steps:
            return False
        old = session.env.uptime() - self._opened_at >= session.settings.latency_s_max
        large = open.rows >= session.settings.limits.rows_max
        return old or large or (idle and self._once)

    def _counted(self, done: Done | None) -> Done | None:
        if done is not None:
            self.transactions += 1
            if self._transactions_max is not None and self.transactions >= self._transactions_max:
                self.ended = True
        return done
