"""Pushes that wait for their turn, committed together: one entry of the journal for all of them.

Whoever gets the turn commits what others have pushed meanwhile. If that fails because of one of
them, each is tried alone, and each caller gets its own answer. A push whose key is known is
answered, and not taken in (J14); of two with one key the second waits for a later entry, and is
answered then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepwell.engine.payload import Intake
from stepwell.engine.push_keys import Accepted
from stepwell.engine.pushed import Push
from stepwell.engine.transaction import Done
from stepwell.errors import (
    FencedError,
    InvalidError,
    StepwellError,
    UnknownOutcomeError,
    UserCodeError,
)


@dataclass(frozen=True, slots=True)
class Committer:
    """What is asked of a pipeline by whoever holds its turn."""

    rows_max: Callable[[], int]
    """How many rows are committed together, unless one push has more."""
    ensure_executor: Callable[[], None]
    executor_is_lost: Callable[[], bool]
    answer: Callable[[Intake], Accepted | None]
    """What became of the same push before, under its key."""
    commit: Callable[[Sequence[Intake]], Done]
    after: Callable[[Done], None]
    """What follows a transaction; fails nobody."""


class PushQueue:
    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._waiting: deque[Push] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, pushed: Push) -> None:
        """From any thread."""
        self._waiting.append(pushed)

    def withdraw(self, pushed: Push) -> None:
        """Forget a push whose caller does not wait any more."""
        if not pushed.done and pushed in self._waiting:
            self._waiting.remove(pushed)

    def commit(self) -> None:
        """With the turn: commit what waits, in order, as far as it goes into one entry."""
        together = self._next()
        try:
            self._commit_or_each(together)
        except StepwellError as error:
            for pushed in together:
                pushed.fail(error)
        except BaseException as error:
            for pushed in together:
                pushed.fail(
                    UnknownOutcomeError(
                        f"the thread that committed these rows was interrupted: {error!r}",
                        hint="open the pipeline again, and push once more with the same key; "
                        "without a key, look first whether the rows are there",
                    )
                )
            raise

    def _next(self) -> list[Push]:
        together: list[Push] = []
        rows, keys = 0, set[str | None]()
        while self._waiting and (not together or rows < self._committer.rows_max()):
            key = self._waiting[0].intake.key
            if key is not None and key in keys:
                break
            keys.add(key)
            together.append(self._waiting.popleft())
            rows += together[-1].intake.taken.rows
        return together

    def _commit_or_each(self, together: Sequence[Push]) -> None:
        while True:
            self._committer.ensure_executor()
            try:
                return self._commit_each(together)
            except UnknownOutcomeError:
                raise  # Perhaps they are recorded; then a replay brings them.
            except Exception:
                # Nothing was recorded: with another executor they are tried again.
                if not self._committer.executor_is_lost():
                    raise

    def _commit_each(self, together: Sequence[Push]) -> None:
        for pushed in together:
            self._answer(pushed)
        try:
            self._commit_together(together)
        except (InvalidError, UserCodeError):
            if len(together) == 1:
                raise
            for pushed in together:
                try:
                    self._commit_together([pushed])
                except StepwellError as error:
                    if self._committer.executor_is_lost():
                        raise
                    pushed.fail(error)

    def _answer(self, pushed: Push) -> None:
        if pushed.done or pushed.intake.key is None:
            return
        try:
            known = self._committer.answer(pushed.intake)
        except FencedError:
            raise
        except StepwellError as error:
            pushed.fail(error)  # Its keys may be damaged; those without a key are taken in.
        else:
            if known is not None:
                pushed.succeed(known.transaction, known.rejected)

    def _commit_together(self, together: Sequence[Push]) -> None:
        left = [pushed for pushed in together if not pushed.done]
        if not left:
            return
        done = self._committer.commit([pushed.intake for pushed in left])
        for pushed, rejected in zip(left, done.rejected, strict=True):
            pushed.succeed(done.transaction, rejected)
        self._committer.after(done)
