"""Numbered versions of one value, on storage that offers only "create if absent".

    <prefix>00000000000000000042.json        sealed JSON {id, epoch, put_id, body}

Each version is complete in itself, creating it is the commit, and the highest number is the current
version. This module does not interpret the body. Invariants:

* A version is only ever created, and at the number after the one its author read (F1). So of all
  writers that build on version n, one wins n+1 and the others get a `ConflictError`.
* Epochs do not decrease with the number. A claim raises the epoch by one and fences every writer
  with a lower epoch (F6). A stored epoch *below* a writer's own means that the storage went back in
  time: a hard stop.
* A create whose answer was lost is recognised by its put_id (F7).
* Collection first moves the boundary and then deletes, but never the latest version. No version is
  created at or below the boundary. A create that finds itself there afterwards either landed in a
  hole that a collector left, or was committed and then collected; the two cannot be distinguished.

A crash leaves the whole version or nothing. A version that lost against the boundary remains below
it as garbage until the next collection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stepwell.env import Env
from stepwell.errors import CollectedError, ConflictError, TruncatedError, ensure
from stepwell.model import Epoch
from stepwell.store.base import Store
from stepwell.store.patient import patience_of
from stepwell.store.retry import Retry
from stepwell.store.sealed import Fields, Json, read_sealed, seal, unseal

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Version:
    """One version: its number, the epoch of its writer, and its body."""

    id: int
    epoch: Epoch
    put_id: str
    body: Fields


class Boundary:
    """The numbers at or below which all unprotected versions are permanently deleted.

    The numbers only increase. They are stored in one sealed object, `{"manifest": 12}`, replaced by
    compare-and-swap. A crash leaves the old number or the new one.
    """

    FORMAT = "stepwell-boundary/1"

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path

    def read(self, name: str) -> int:
        """One number; 0 if nothing was ever collected."""
        return self.numbers().get(name, 0)

    def numbers(self) -> Mapping[str, int]:
        """All numbers; an absent one counts as 0."""
        found = self._read()
        return found[0] if found else {}

    def advance(self, name: str, number: int) -> int:
        """Raise one number to at least `number`, and return its new value."""
        while True:
            found = self._read()
            numbers, etag = found or ({}, None)
            if (current := numbers.get(name, 0)) >= number:
                return current
            body = seal(self.FORMAT, {"numbers": {**numbers, name: number}})
            try:
                if etag is None:
                    self._store.put_new(self._path, body)
                else:
                    self._store.replace_if(self._path, body, etag)
                return number
            except ConflictError:
                continue  # Another collector won, or our answer was lost: read again to see which.

    def _read(self) -> tuple[dict[str, int], str] | None:
        found = read_sealed(self._store, self._path, self.FORMAT)
        if found is None:
            return None
        numbers = found[0].child("numbers")
        return {name: numbers.number(name) for name in numbers.names()}, found[1]


class Sequence:
    """The versions under one prefix. Stateless: all handles see the same versions."""

    def __init__(
        self,
        store: Store,
        env: Env,
        *,
        name: str,
        prefix: str,
        format: str,
        boundary: Boundary,
        retry: Retry | None = None,
    ) -> None:
        self.store = store
        self.name = name
        self._env = env
        self._prefix = prefix
        self._format = format
        self._boundary = boundary
        self._patience = patience_of(store, env, retry)
        self._number = re.compile(rf"{re.escape(prefix)}(\d{{20}})\.json")

    def path(self, id: int) -> str:
        return f"{self._prefix}{id:020d}.json"

    def full_name(self, id: int) -> str:
        """The full name of a version, for messages."""
        return f"{self.store.uri}/{self.path(id)}"

    def latest(self) -> Version | None:
        """The latest version, in three requests if one page holds all names; None if there is none.

        The latest version is never collected. So if the highest version is at or below the
        boundary, it was kept for a checkpoint and the versions after it were lost: it must not be
        taken for the latest.
        """
        stale: int | None = None
        while (id := self.latest_id()) is not None:
            version, boundary = self.read(id), self._boundary.read(self.name)
            if version is not None and id > boundary:
                return version
            if id == stale:
                raise TruncatedError(
                    self.full_name(max(id, boundary + 1)),
                    f"missing: the latest version lay above {boundary}, and none does now",
                    hint=f"restore the latest {self.name} objects from a backup",
                )
            # A collector ran between the requests, so there is a later version: try again.
            stale = id
        return None

    def latest_id(self, after: int = 0) -> int | None:
        """The highest number above `after`; None if there is none. Usually one request."""
        page = self.store.list(self._prefix, after=self.path(after), limit=_PAGE)
        ids = [id for id in (self._parse(item.path) for item in page) if id is not None]
        if len(page) < _PAGE:
            return ids[-1] if ids else None
        # Versions kept for a checkpoint lie below the boundary, with gaps between them. Above it
        # there are no gaps, so the end can be searched for.
        boundary = self._boundary.read(self.name)
        last = last_taken(lambda id: self.store.exists(self.path(id)), max(boundary, *ids))
        # The search is valid only if no collector ran meanwhile.
        if self._boundary.read(self.name) > boundary:
            return self.latest_id(after)
        return last if last > boundary else ids[-1]

    def read(self, id: int) -> Version | None:
        """Read and check one version; None if it is absent."""
        found = read_sealed(self.store, self.path(id), self._format)
        return None if found is None else self._version(id, found[0])

    def create(self, id: int, epoch: Epoch, body: Mapping[str, Json]) -> Version:
        """Commit version `id`. On `ConflictError` another writer has it: read and decide again."""
        outdated = ConflictError(f"{self.full_name(id)} is outdated: there is a later version")
        if id <= self._boundary.read(self.name):
            raise outdated
        put_id = self._env.new_id()
        content = {"id": id, "epoch": epoch, "put_id": put_id, "body": body}
        data = seal(self._format, content)

        def unknown() -> str:
            return f"{self.full_name(id)} may or may not have been committed"

        def put() -> bool:
            try:
                self.store.put_new(self.path(id), data)
            except ConflictError:
                # The object may be our own, sent twice because the first answer was lost.
                found = self.read(id)
                return found is not None and found.put_id == put_id
            return True

        ours = self._patience.run(put, unknown)
        # The version may exist, so from here on a failure is an unknown outcome as well.
        if id <= self._patience.run(lambda: self._boundary.read(self.name), unknown):
            # A collector ran meanwhile. Either our version lies in a hole that the collector left,
            # or it was committed, built upon, and collected: the two look the same from here.
            raise CollectedError(
                f"{unknown()}: it was collected in the meantime",
                hint="open the pipeline again: it will see which",
            )
        if not ours:
            raise outdated
        return self._version(id, unseal(data, format=self._format, object=self.full_name(id)))

    def ids(self) -> tuple[int, ...]:
        """All existing numbers, in order: for collectors, not for finding the latest."""
        parsed = (self._parse(item.path) for item in self.store.list(self._prefix))
        return tuple(id for id in parsed if id is not None)

    def collect(self, up_to: int, keep: frozenset[int] = frozenset()) -> tuple[int, ...]:
        """Delete the versions up to a number, except those in `keep`; return the deleted ones.

        The boundary moves first, so that a stalled author that creates one of these numbers again
        finds out (F8). Any number of collectors may run; after a crash, the next one deletes the
        rest.
        """
        latest = self.latest()
        ensure(
            latest is not None and up_to < latest.id, f"the latest {self.name} is never collected"
        )
        self._boundary.advance(self.name, up_to)
        # Not up to the boundary, which another collector may have moved: only that collector knows
        # which versions beyond `up_to` to keep.
        garbage = tuple(id for id in self.ids() if id <= up_to and id not in keep)
        self.store.delete(*map(self.path, garbage))
        return garbage

    def _version(self, id: int, fields: Fields) -> Version:
        if fields.number("id") != id:
            raise fields.wrong("id", f"{id}, as in its name")
        epoch = Epoch(fields.number("epoch"))
        return Version(id, epoch, fields.id("put_id"), fields.child("body"))

    def _parse(self, path: str) -> int | None:
        match = self._number.fullmatch(path)
        return int(match[1]) if match else None


def last_taken(exists: Callable[[int], bool], start: int) -> int:
    """The last number from `start` on that exists without a gap, in O(log n) probes.

    `start` counts as taken and is not probed.

    >>> last_taken(lambda number: number <= 1000, 0)
    1000
    """
    step = 1
    while exists(start + step):
        step *= 2
    low, high = step // 2, step  # start + low is taken, start + high is not.
    while high - low > 1:
        middle = (low + high) // 2
        if exists(start + middle):
            low = middle
        else:
            high = middle
    return start + low
