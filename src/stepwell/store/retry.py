"""Sending a call again after it failed, a bounded number of times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from stepwell.env import Env
from stepwell.errors import UnavailableError, UnknownOutcomeError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently. Pauses double up to a limit and are spread by jitter."""

    attempts: int = 5
    wait_s_first: float = 0.05
    wait_s_max: float = 2.0

    def run(self, call: Callable[[], T], env: Env, unknown: Callable[[], str]) -> T:
        """Call until it answers. `unknown` says what is not known once the attempts are spent.

        If for certain none of them was applied, the last `UnavailableError` is raised instead.
        Only for calls that may safely be applied twice, or that recognise their own first attempt.
        """
        try:
            return call()
        except UnavailableError as error:
            return self.go_on(error, call, env, unknown)

    def go_on(
        self, error: UnavailableError, call: Callable[[], T], env: Env, unknown: Callable[[], str]
    ) -> T:
        """The same, for a call whose first attempt has failed already."""
        not_applied = error.not_applied
        for number in range(1, self.attempts):
            limit = min(self.wait_s_max, self.wait_s_first * 2 ** (number - 1))
            env.sleep(limit * (0.5 + env.jitter() / 2))
            try:
                return call()
            except UnavailableError as again:
                error = again
                not_applied = not_applied and again.not_applied
        if not_applied:
            raise error
        raise UnknownOutcomeError(
            f"{unknown()}: {self.attempts} attempts failed, the last with: {error.message}",
            hint="check the storage, then open the pipeline again: it will see which",
        ) from error
