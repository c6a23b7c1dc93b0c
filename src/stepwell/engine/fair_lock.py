"""A fair lock: threads acquire it in the order in which they arrive.

With a plain lock the loop of a busy pipeline would acquire it again and again, and a thread that
pushes would wait forever. Any thread may release the lock: an explicit transaction holds it
between its steps, and its steps may come from several threads.
"""

from __future__ import annotations

import threading
from collections import deque

from stepwell.errors import InvalidError, ensure


class FairLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Event] = deque()
        self._owner: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether this thread acquired the lock."""
        return self._owner == threading.get_ident()

    def acquire(self, what: str) -> None:
        """Acquire the lock. `InvalidError` if this thread holds it, and would wait for itself.

        `what` names the operation in the error.
        """
        if self.is_mine:
            raise InvalidError(
                f"{what}: this thread holds the pipeline already, and would wait for itself",
                hint="use the transaction that is open, or commit it first; and do not call the "
                "pipeline from its own listener",
            )
        with self._lock:
            if self._owner is None:
                self._owner = threading.get_ident()
                return
            called = threading.Event()
            self._line.append(called)
        try:
            called.wait()
        except BaseException:
            # Interrupted while waiting: leave the queue, or pass on the lock if it just came.
            with self._lock:
                if called in self._line:
                    self._line.remove(called)
                    raise
            self.release()
            raise
        self._owner = threading.get_ident()

    def release(self) -> None:
        """Release the lock to the next thread in the queue."""
        with self._lock:
            ensure(self._owner is not None, "a lock is released once")
            if self._line:
                # The lock stays held until the woken thread owns it, so no other can slip in.
                self._owner = 0
                self._line.popleft().set()
            else:
                self._owner = None
