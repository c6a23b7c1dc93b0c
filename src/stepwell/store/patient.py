"""A store wrapper that retries every call for as long as `retry.py` allows.

Reads, listings and deletes may be sent twice. A write whose outcome is unknown is sent again. If
the path is then taken, the object there is read: equal bytes are our own, because every writer puts
a unique id into them (F7). Inside `Patience.run` this wrapper does not retry: the caller resolves
each attempt itself and must see every failure.

A crash leaves the same state as in the wrapped store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stepwell.env import Env
from stepwell.errors import ConflictError, UnavailableError
from stepwell.model import Bytes
from stepwell.store.base import Listed, Object, Store, join
from stepwell.store.retry import Patience, Retry


class PatientStore:
    def __init__(self, inner: Store, env: Env, retry: Retry | None = None) -> None:
        self.inner = inner
        self.patience = Patience(env, retry, inner.uri)

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def options(self) -> Mapping[str, str | bool]:
        """The options with which the wrapped store was opened."""
        found: Mapping[str, str | bool] = getattr(self.inner, "options", {})
        return found

    def get(self, path: str) -> Object | None:
        return self.patience.run(lambda: self.inner.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        return self.patience.run(lambda: self.inner.get_range(path, start, length))

    def exists(self, path: str) -> bool:
        return self.patience.run(lambda: self.inner.exists(path))

    def list(
        self, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> tuple[Listed, ...]:
        return self.patience.run(lambda: self.inner.list(prefix, after=after, limit=limit))

    def delete(self, *paths: str) -> None:
        self.patience.run(lambda: self.inner.delete(*paths))

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        self._write(path, data, lambda: self.inner.put_new(path, data))

    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        self._write(path, data, lambda: self.inner.replace_if(path, data, etag))

    def _write(self, path: str, data: Bytes | Sequence[Bytes], write: Callable[[], None]) -> None:
        doubtful = False

        def attempt() -> None:
            nonlocal doubtful
            try:
                write()
            except UnavailableError as error:
                doubtful = doubtful or not error.not_applied
                raise
            except ConflictError:
                found = self.inner.get(path) if doubtful else None
                if found is None or found.data != join(data):
                    raise

        self.patience.run(attempt)


def impatient(store: Store) -> Store:
    """The store without retries, for a caller that retries on its own and must not block."""
    return store.inner if isinstance(store, PatientStore) else store


def patience_of(store: Store, env: Env, retry: Retry | None = None) -> Patience:
    """The retry policy of a store; `retry` applies if the store has none."""
    return store.patience if isinstance(store, PatientStore) else Patience(env, retry, store.uri)
