"""Group commit: pushes that wait for the pipeline are committed in one journal entry.

The thread that acquires the pipeline commits the pushes of the others, too. If one of them makes
that fail, each is tried alone, and each caller gets its own answer. A push whose key is known is
answered, not applied (J14); of two pushes with one key, the second waits for a later entry and is
answered then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepwell.engine.ports import Intake
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
    """The pipeline as the queue needs it. Called by the thread that holds the pipeline."""

    rows_max: Callable[[], int]
    """The most rows to commit together, unless one push has more."""
    ensure_executor: Callable[[], None]
    executor_is_lost: Callable[[], bool]
    answer: Callable[[Intake], Accepted | None]
    """The answer to an earlier push with the same key."""
    commit: Callable[[Sequence[Intake]], Done]
    after: Callable[[Done], None]
    """Called after a transaction; never raises."""


class PushQueue:
    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._waiting: deque[Push] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, pushed: Push) -> None:
        """Add a push; from any thread."""
        self._waiting.append(pushed)

    def withdraw(self, pushed: Push) -> None:
        """Remove a push whose caller no longer waits."""
        if not pushed.done and pushed in self._waiting:
            self._waiting.remove(pushed)

    def commit(self) -> None:
        """Commit waiting pushes in order, as many as fit into one entry. Requires the pipeline."""
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
                        "without a key, check first whether the rows are there",
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
            rows += together[-1].intake.rows
        return together

    def _commit_or_each(self, together: Sequence[Push]) -> None:
        while True:
            self._committer.ensure_executor()
            try:
                return self._commit_each(together)
            except UnknownOutcomeError:
                raise  # They may be recorded; then replay applies them.
            except Exception:
                # Nothing was recorded: retry with another executor.
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
            pushed.fail(error)  # The runs of keys may be damaged; pushes without a key continue.
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
