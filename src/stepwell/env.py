"""The only source of time, randomness, identity and sleep.

All other code takes an `Env` as an argument, so that a simulator can drive the clock, choose every
id and replay a run from its seed. `tests/test_tidy.py` rejects `time`, `random` and `uuid` in any
other file.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from stepwell.process import ProcessId, this_process

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@contextmanager
def with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the block runs, then restore them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Env(Protocol):
    """A process's view of the outside world, apart from its stores."""

    @property
    def host(self) -> str:
        """The name of this machine; only for messages to people."""

    @property
    def pid(self) -> int:
        """The id of this process; only for messages to people."""

    @property
    def process(self) -> ProcessId:
        """The unique identity of this process."""

    def now(self) -> datetime:
        """The wall clock, in UTC. It may jump, so no safety argument relies on it alone."""

    def uptime(self) -> float:
        """Seconds on a clock that never jumps and keeps running while the machine sleeps."""

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""

    def jitter(self) -> float:
        """A random number in [0, 1), to spread retries."""

    def new_id(self) -> str:
        """A new ULID: 26 characters, unique, sorted by creation time."""


class SystemEnv:
    """The real clock, process and randomness of this machine."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self._random = random.SystemRandom()

    @property
    def pid(self) -> int:
        # Read on each call: the value changes in a forked child.
        return os.getpid()

    @property
    def process(self) -> ProcessId:
        return this_process(self.host)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def uptime(self) -> float:
        # CLOCK_MONOTONIC stops while a laptop sleeps, and a writer that slept must notice it (F8).
        # On systems without CLOCK_BOOTTIME, the monotonic clock includes sleep.
        return time.clock_gettime(_CLOCK)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def jitter(self) -> float:
        return self._random.random()

    def new_id(self) -> str:
        return ulid(self.now(), int.from_bytes(os.urandom(10), "big"))


class MonotonicIds:
    """Wraps an Env so that `new_id()` is strictly increasing even if the clock goes backwards."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._last = ""
        self._lock = threading.Lock()

    @property
    def host(self) -> str:
        return self._env.host

    @property
    def pid(self) -> int:
        return self._env.pid

    @property
    def process(self) -> ProcessId:
        return self._env.process

    def now(self) -> datetime:
        return self._env.now()

    def uptime(self) -> float:
        return self._env.uptime()

    def sleep(self, seconds: float) -> None:
        self._env.sleep(seconds)

    def jitter(self) -> float:
        return self._env.jitter()

    def above(self, floor: str | None) -> MonotonicIds:
        """Make all later ids greater than `floor` as well."""
        with self._lock:
            self._last = max(self._last, floor or "")
        return self

    def new_id(self) -> str:
        with self._lock:
            new = self._env.new_id()
            if new <= self._last:
                new = _next_millisecond(self._last) + new[10:]
            self._last = new
            return new


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _CROCKFORD for second in _CROCKFORD]


def ulid(at: datetime, randomness: int) -> str:
    """Format 48 bits of milliseconds and 80 random bits as a ULID.

    >>> ulid(EPOCH, 1)
    '00000000000000000000000001'
    """
    milliseconds = (at - EPOCH) // timedelta(milliseconds=1)
    return _format((milliseconds << 80) | (randomness & ((1 << 80) - 1)))


def _format(number: int) -> str:
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])


def made_at(id: str) -> datetime:
    """The creation time of a ULID, by the clock of the process that created it.

    >>> made_at("00000000010000000000000000")
    datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=datetime.timezone.utc)
    """
    return EPOCH + timedelta(milliseconds=_milliseconds(id))


def _next_millisecond(last: str) -> str:
    """The first 10 characters of an id created one millisecond after `last`.

    >>> _next_millisecond("000000000Z0000000000000001")
    '0000000010'
    """
    return _format((_milliseconds(last) + 1) << 80)[:10]


def _milliseconds(id: str) -> int:
    milliseconds = 0
    for character in id[:10]:
        milliseconds = milliseconds * 32 + _CROCKFORD.index(character)
    return milliseconds


def ulid_number(text: str) -> int:
    """The 128 bits of a ULID; `ulid_text` is its inverse.

    >>> ulid_text(ulid_number("01ARZ3NDEKTSV4RRFFQ69G5FAV"))
    '01ARZ3NDEKTSV4RRFFQ69G5FAV'
    """
    number = 0
    for character in text:
        number = number * 32 + _CROCKFORD.index(character)
    return number


def ulid_text(number: int) -> str:
    """The ULID with these 128 bits."""
    return _format(number)
