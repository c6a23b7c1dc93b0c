"""Retries of storage calls, bounded by time. No other module retries them.

An outage is retried for `Retry.patience_s`, with pauses that double up to a limit and are spread by
jitter. Errors that are not an outage, such as a wrong bucket or refused credentials
(`UnavailableError.lasting`), are retried only for `BRIEF_S`. The same holds for every call after
`hurry`, because the process is asked to end.

An error is a claim (F11). `run` with `unknown` is for a write that recognises its own first
attempt: when the time is up, it raises `UnknownOutcomeError`, unless certainly no attempt was
applied. Calls nested inside `run` are not retried on their own: a failed attempt reaches the caller
that resolves it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from stepwell.durations import backoff_s, duration_text
from stepwell.env import Env
from stepwell.errors import StepwellError, UnavailableError, UnknownOutcomeError

T = TypeVar("T")

PATIENCE_S = 300.0
"""How long a pipeline retries during an outage, unless its project sets another limit."""
LOOK_S = 30.0
"""How long a read-only command waits for a store that does not answer."""
BRIEF_S = 1.0
TELL_S = 2.0
"""An outage is reported once it has lasted this long; shorter ones are not."""
_SLICE_S = 0.2
_inside: ContextVar[bool] = ContextVar("inside", default=False)
"""Whether this thread, or this task of a thread, is inside `run`."""


@dataclass(frozen=True, slots=True)
class Retry:
    patience_s: float = PATIENCE_S
    wait_s_first: float = 0.05
    wait_s_max: float = 5.0


@dataclass(frozen=True, slots=True)
class Outage:
    """A store that does not answer, and the time until which it is retried."""

    store: str
    since: datetime
    until: datetime
    error: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """The end of a reported outage."""

    store: str
    after_s: float


@dataclass(slots=True)
class _Waiting:
    """A failed call that is being retried."""

    began: float
    since: datetime
    error: str = ""
    until: float = 0.0


class Patience:
    """The retry policy of one store and its pending calls, shared by all callers. Thread-safe."""

    def __init__(self, env: Env, retry: Retry | None = None, store: str = "the store") -> None:
        self.retry = retry or Retry()
        self.listener: Callable[[Outage | Recovery], None] | None = None
        """Called once when an outage has lasted for `TELL_S`, and once when it is over."""
        self._env = env
        self._store = store
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._told: float | None = None
        self._hurried: float | None = None

    @property
    def outage(self) -> Outage | None:
        """The current outage, if any call is waiting."""
        with self._lock:
            return self._outage()

    def hurry(self) -> None:
        """End outages soon from now on, even for waiting calls. Safe in a signal handler."""
        if self._hurried is None:
            self._hurried = self._env.uptime()

    def relax(self) -> None:
        """Undo `hurry`."""
        self._hurried = None

    def run(self, call: Callable[[], T], unknown: Callable[[], str] | None = None) -> T:
        """Call until it answers or the time is up.

        Only for a call that may safely be applied twice, or that recognises its own first attempt.
        `unknown` describes the unknown outcome once the time is up. Without it, or if certainly no
        attempt was applied, `UnavailableError` is raised.
        """
        inside = _inside.get()
        if inside and unknown is None:
            return call()
        _inside.set(True)
        try:
            try:
                return call()
            except UnavailableError as error:
                return self._again(error, call, unknown)
        finally:
            _inside.set(inside)

    def _again(
        self, error: UnavailableError, call: Callable[[], T], unknown: Callable[[], str] | None
    ) -> T:
        waiting = _Waiting(self._env.uptime(), self._env.now())
        answered, not_applied, attempts = False, error.not_applied, 1
        try:
            while (left := self._until(waiting.began, error) - self._env.uptime()) > 0:
                self._note(waiting, error)
                s = self.retry
                wait = backoff_s(attempts - 1, s.wait_s_first, s.wait_s_max, self._env)
                self._rest(min(wait, left), waiting.began, error)
                attempts += 1
                try:
                    result = call()
                except UnavailableError as again:
                    error = again
                    not_applied = not_applied and again.not_applied
                except StepwellError:
                    answered = True
                    raise
                else:
                    answered = True
                    return result
        finally:
            self._leave(waiting, answered=answered)
        if attempts == 1 and (unknown is None or not_applied):
            raise error
        tried = f"tried {attempts} times in {duration_text(self._env.uptime() - waiting.began)}"
        if unknown is None or not_applied:
            raise UnavailableError(
                f"{error.message} ({tried})",
                hint=error.hint,
                not_applied=not_applied,
                lasting=error.lasting,
            ) from error
        raise UnknownOutcomeError(
            f"{unknown()}: {tried}, the last attempt failed with: {error.message}",
            hint="check the storage, then open the pipeline again: it will see which",
        ) from error

    def _until(self, began: float, error: UnavailableError) -> float:
        patience_s = self.retry.patience_s
        if error.lasting:
            patience_s = min(patience_s, BRIEF_S)
        until, hurried = began + patience_s, self._hurried
        return until if hurried is None else min(until, max(began, hurried) + BRIEF_S)

    def _rest(self, seconds: float, began: float, error: UnavailableError) -> None:
        """Wait in slices, because `hurry` may be called meanwhile."""
        while seconds > 0 and self._env.uptime() < self._until(began, error):
            self._env.sleep(min(seconds, _SLICE_S))
            seconds -= _SLICE_S

    def _note(self, waiting: _Waiting, error: UnavailableError) -> None:
        with self._lock:
            waiting.error, waiting.until = error.message, self._until(waiting.began, error)
            self._waiting[id(waiting)] = waiting
            outage = self._outage()
            first = min(item.began for item in self._waiting.values())
            tell = self._told is None and self._env.uptime() - first >= TELL_S
            if tell:
                self._told = first
        if tell and outage is not None and self.listener is not None:
            self.listener(outage)

    def _leave(self, waiting: _Waiting, *, answered: bool) -> None:
        """End the outage once no call is waiting: some calls may fail while others succeed."""
        with self._lock:
            self._waiting.pop(id(waiting), None)
            if self._waiting:
                return
            told, self._told = self._told, None
        if told is not None and answered and self.listener is not None:
            self.listener(Recovery(self._store, self._env.uptime() - told))

    def _outage(self) -> Outage | None:
        if not self._waiting:
            return None
        first = min(self._waiting.values(), key=lambda item: item.began)
        left = timedelta(seconds=max(0.0, first.until - self._env.uptime()))
        return Outage(self._store, first.since, self._env.now() + left, first.error)
