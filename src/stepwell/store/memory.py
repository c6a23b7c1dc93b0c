"""A store in memory: deterministic, for tests, simulation and throw-away pipelines.

Nothing survives the process. Within it, every call is atomic.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime

from stepwell.env import Env
from stepwell.errors import ConflictError
from stepwell.model import Bytes
from stepwell.store.base import (
    Listed,
    Object,
    Store,
    check_path,
    check_prefix,
    check_range,
    join,
    page,
)

SHARED: dict[str, Store] = {}
"""In-memory stores that tests can open by their address within this process."""


class MemoryStore:
    def __init__(self, env: Env, name: str = "test") -> None:
        self.uri = f"memory://{name}"
        self._env = env
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, str, datetime]] = {}
        self._writes = 0

    def get(self, path: str) -> Object | None:
        with self._lock:
            found = self._objects.get(check_path(path))
        return Object(found[0], found[1]) if found else None

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        check_range(start, length)
        found = self.get(path)
        return found.data[start : start + length] if found else None

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        body = join(data)
        with self._lock:
            if check_path(path) in self._objects:
                raise ConflictError(f"{self.uri}/{path} exists")
            self._write(path, body)

    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        body = join(data)
        with self._lock:
            found = self._objects.get(check_path(path))
            if found is None or found[1] != etag:
                raise ConflictError(f"{self.uri}/{path} is not the object with etag {etag}")
            self._write(path, body)

    def _write(self, path: str, body: bytes) -> None:
        self._writes += 1
        self._objects[path] = (body, str(self._writes), self._env.now())

    def list(
        self, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> tuple[Listed, ...]:
        check_prefix(prefix)
        with self._lock:
            found = [
                Listed(path, len(data), modified)
                for path, (data, _, modified) in self._objects.items()
                if path.startswith(prefix)
            ]
        return page(found, after, limit)

    def delete(self, *paths: str) -> None:
        for path in paths:
            check_path(path)
        with self._lock:
            for path in paths:
                self._objects.pop(path, None)

    def exists(self, path: str) -> bool:
        with self._lock:
            return check_path(path) in self._objects
