"""Threads that empty the outboxes while the loop runs, one for each sink.

So a sink that is slow holds up neither the pipeline nor another sink, as long as its outbox has
room. They only send; all that is decided about a sink is decided in its outbox.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from stepwell import threads
from stepwell.engine.outbox import Outbox

_WAIT_S_MAX = 1.0


class Deliverers:
    def __init__(self, outboxes: Sequence[Outbox], failed: threads.Failed) -> None:
        self._ending = False
        self._wakes = [threading.Event() for _ in outboxes]
        self._threads = [
            threads.start(
                f"stepwell-sink-{outbox.sink.name}",
                partial(self._run, outbox, wake),
                failed=failed,
            )
            for outbox, wake in zip(outboxes, self._wakes, strict=True)
        ]

    def wake(self) -> None:
        """Something was offered."""
        for wake in self._wakes:
            wake.set()

    def end(self) -> None:
        """Wait for what is being sent now, and stop."""
        self._ending = True
        self.wake()
        for thread in self._threads:
            thread.join()

    def _run(self, outbox: Outbox, wake: threading.Event) -> None:
        while not self._ending:
            wake.clear()
            if outbox.deliver() or outbox.stopped is not None:
                wake.wait(_WAIT_S_MAX)
            else:
                wake.wait(min(_WAIT_S_MAX, max(0.01, outbox.retry_in_s)))
