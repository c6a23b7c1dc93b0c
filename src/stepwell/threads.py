"""Threads of ours: whatever one of them dies of is told to somebody.

The only file that starts threads (`tests/test_tidy.py`). Python prints what a thread raises and
goes on without it: a process stays that watches nothing or delivers nothing. Here whoever starts a
thread says who is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Failed = Callable[[BaseException], None]
"""Told what a thread died of, in that thread."""


def start(
    name: str, body: Callable[[], None], *, failed: Failed, restarts: int = 0
) -> threading.Thread:
    """Start a thread that does not keep the process from ending.

    A body that raises is begun again up to `restarts` times; then `failed` is told. `RuntimeError`
    if the system gives no more threads, or the process is ending.
    """

    def run() -> None:
        for left in range(restarts, -1, -1):
            try:
                body()
                return
            except BaseException as error:  # noqa: BLE001 - somebody is told of it
                if not left:
                    failed(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
