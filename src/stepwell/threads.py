"""Background threads whose failures are always reported.

This is the only file that starts threads (`tests/test_tidy.py`). By default, Python prints the
exception of a thread and carries on, which leaves a process that watches nothing or delivers
nothing. Here the caller that starts a thread passes a callback for its failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Failed = Callable[[BaseException], None]
"""Callback that receives the exception a thread died of; called in that thread."""


def start(
    name: str, body: Callable[[], None], *, failed: Failed, restarts: int = 0
) -> threading.Thread:
    """Start a daemon thread, which does not keep the process alive.

    If `body` raises, it is run again up to `restarts` times; after that, `failed` is called. Raises
    `RuntimeError` if the system provides no more threads or the process is shutting down.
    """

    def run() -> None:
        for left in range(restarts, -1, -1):
            try:
                body()
                return
            except BaseException as error:  # noqa: BLE001 - reported to `failed`
                if not left:
                    failed(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
