"""Race several writers for one object: exactly one must win (F9).

A store that looks whether an object is there and then writes it passes every test in which one
write follows another. Two writers at the same moment both see nothing, and both are told that they
have won. So several threads put different objects to one fresh path at once, many times over.

A bucket is raced once, when a pipeline is created in it, and by `stepwell doctor`: the test takes
about a hundred requests. A directory is not raced at creation, because the kernel creates names
atomically. A crash leaves objects below `probe/`, like the probe.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from stepwell.env import Env
from stepwell.errors import ConfigError, ConflictError, UnavailableError
from stepwell.store.base import Store
from stepwell.store.locate import BUCKETS
from stepwell.store.probe import KNOWN_TO_WORK, PROBE_PREFIX

WRITERS = 8
ROUNDS = 12
DOCTOR_ROUNDS = 40
_CONFIRMED = 2
"""Rounds with a wrong outcome that refuse a store. One could be the work of a collector whose clock
is ahead, which deletes the object between two puts."""


def race_new(store: Store, env: Env) -> None:
    """Refuse a bucket in which a pipeline is about to be created if several writers can win."""
    if store.uri.partition("://")[0] not in BUCKETS:
        return
    problem = race(store, env)
    if problem is not None:
        raise ConfigError(f"{store.uri} has no safe put-if-absent: {problem}", hint=KNOWN_TO_WORK)


def race(store: Store, env: Env, rounds: int = ROUNDS) -> str | None:
    """Describe the problem, or return None if every round had one winner.

    A lost answer propagates as its own error.
    """
    paths = [PROBE_PREFIX + env.new_id() for _ in range(rounds)]
    wrong: list[str] = []
    together = threading.Barrier(WRITERS)
    try:
        with ThreadPoolExecutor(WRITERS, "stepwell-race") as writers:
            for path in paths:
                problem = _round(store, path, writers, together)
                wrong += [] if problem is None else [problem]
                if len(wrong) == _CONFIRMED:
                    return wrong[0]
        return None
    finally:
        with suppress(UnavailableError):
            store.delete(*paths)


def _round(
    store: Store, path: str, writers: ThreadPoolExecutor, together: threading.Barrier
) -> str | None:
    def put(number: int) -> bool:
        together.wait()
        try:
            store.put_new(path, _body(number))
        except ConflictError:
            return False
        return True

    won = [number for number, first in enumerate(writers.map(put, range(WRITERS))) if first]
    if len(won) > 1:
        return f"{len(won)} of {WRITERS} simultaneous writers of one object were told that they won"
    found = store.get(path)
    if found is None:
        return f"{WRITERS} simultaneous writers of one object were refused, and there is none"
    # Without a winner, a lower layer sent a put again after a lost answer, and met its own object.
    if won and found.data != _body(won[0]):
        return "the object of the writer that won was replaced by another writer's"
    return None


def _body(number: int) -> bytes:
    return f"writer {number}".encode()
