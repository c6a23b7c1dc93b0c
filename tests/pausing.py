"""Running several writers in one thread, and stopping each between any two of its store calls.

Every task is a greenlet. A `PausingStore` returns control to the driver of the tasks before and
after every call, so a test decides which writer moves next, and can decide so again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from stepwell.model import Bytes
from stepwell.store.base import Listed, Object, Store

T = TypeVar("T")


def pause() -> None:
    """Let the driver go on. Outside of any task it does nothing."""
    parent = getcurrent().parent
    if parent is not None:
        parent.switch()


class Task:
    """One writer's work, which `step` moves to its next pause."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self._body = body
        self._greenlet = greenlet(self._run)
        self.error: BaseException | None = None
        self.result: Any = None
        self.steps = 0

    @property
    def done(self) -> bool:
        return self._greenlet.dead

    def step(self) -> None:
        self.steps += 1
        self._greenlet.switch()

    def run(self, steps: int | None = None) -> Task:
        """Run up to `steps` steps, or to the end."""
        while not self.done and steps != 0:
            self.step()
            steps = None if steps is None else steps - 1
        return self

    def _run(self) -> None:
        try:
            self.result = self._body()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error


class PausingStore:
    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def uri(self) -> str:
        return self.inner.uri

    def get(self, path: str) -> Object | None:
        return self._call(lambda: self.inner.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        return self._call(lambda: self.inner.get_range(path, start, length))

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        self._call(lambda: self.inner.put_new(path, data))

    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        self._call(lambda: self.inner.replace_if(path, data, etag))

    def list(
        self, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> tuple[Listed, ...]:
        return self._call(lambda: self.inner.list(prefix, after=after, limit=limit))

    def delete(self, *paths: str) -> None:
        for path in paths:
            self._call(lambda path=path: self.inner.delete(path))

    def exists(self, path: str) -> bool:
        return self._call(lambda: self.inner.exists(path))

    def _call(self, apply: Callable[[], T]) -> T:
        pause()
        try:
            return apply()
        finally:
            pause()
