"""The store protocol: the storage operations that Stepwell needs, and the state after a crash.

Four rules hold for every store; the contract suite (`tests/store/test_contract.py`) checks them:

* An object becomes visible as a whole or not at all. Both the client that wrote an object and a
  client that was refused because of it can rely on it being durable.
* "Absent" is an answer of the storage: `None` or `False`. A call that fails raises
  `UnavailableError` and never counts as absence (F10).
* A write that raised `UnavailableError` may or may not have been applied. A write that raised
  `ConflictError` may have lost to its own earlier attempt, because a lower-level client may have
  sent it again after a lost answer. A writer therefore puts a unique id into the bytes and reads
  the object back to find out (F7).
* A write that raised `UnknownOutcomeError` may have been applied, and reading does not settle it:
  the object may be visible but not durable. The write must not be sent again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Protocol, TypeVar

from stepwell.errors import InvalidError
from stepwell.model import Bytes

_AT_ONCE = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Object:
    """The bytes of an object, and the etag that `replace_if` compares."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of a listing. `modified` comes from the storage's clock, not ours."""

    path: str
    size: int
    modified: datetime


class Store(Protocol):
    """Objects at paths below one prefix. Thread-safe."""

    @property
    def uri(self) -> str:
        """The address, for messages and for reopening the store; contains no secret."""

    def get(self, path: str) -> Object | None:
        """Read the whole object; None if it is absent. Read-only: a crash leaves nothing behind."""

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        """Read `length` bytes from `start`, fewer only at the end of the object; None if absent.

        Read-only: a crash leaves nothing behind.
        """

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        """Create the object; raises `ConflictError` and changes nothing if the path is taken.

        The object is durable when the call returns. A crash during the call leaves the whole object
        or none. Parts are written one after another without being joined first.
        """

    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        """Replace the object if its etag still matches; otherwise raise `ConflictError`.

        An absent object is a conflict too. A crash during the call leaves either the old object or
        the new one, complete. The new object is durable when the call returns.
        """

    def list(
        self, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> tuple[Listed, ...]:
        """List objects whose path starts with `prefix` (empty, or ending in `/`), sorted by path.

        Returns only paths greater than `after`, at most `limit` of them. If the listing fails
        midway, it raises; it never returns a partial result. Read-only: a crash leaves nothing
        behind.
        """

    def delete(self, *paths: str) -> None:
        """Delete objects in as few requests as the storage allows; absent objects are not an error.

        After an error, or a crash during or soon after the call, any subset of the objects may be
        gone, in any order. Delete only unreferenced objects.
        """

    def exists(self, path: str) -> bool:
        """Whether the object exists. Read-only: a crash leaves nothing behind."""


_SEGMENT = r"[^./\\\x00-\x1f\x7f\ud800-\udfff][^/\\\x00-\x1f\x7f\ud800-\udfff]*"
_PATH = re.compile(f"{_SEGMENT}(?:/{_SEGMENT})*")


def check_path(path: str) -> str:
    """Check a path: segments joined by `/`, none empty, hidden (`.x`) or with control characters.

    User-supplied names therefore cannot leave the prefix, and names with a leading dot are reserved
    for Stepwell.

    >>> check_path("runs/orders/01J.parquet")
    'runs/orders/01J.parquet'
    """
    if not _PATH.fullmatch(path):
        raise InvalidError(f"not a path inside a store: {path!r}")
    return path


def check_range(start: int, length: int) -> None:
    """Check a byte range: offsets count from the beginning, never from the end."""
    if start < 0 or length < 0:
        raise InvalidError(f"not a range of bytes: {length} from {start}")


def check_prefix(prefix: str) -> str:
    """Check a listing prefix: empty, or whole segments ending in `/`."""
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidError(f"a listing prefix must end in '/': {prefix!r}")
        check_path(prefix[:-1])
    return prefix


def join(data: Bytes | Sequence[Bytes]) -> bytes:
    """Join the parts, for stores that accept only a single buffer."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    return b"".join(data)


def batched(items: Iterable[T]) -> Iterator[list[T]]:
    """Split items into batches of the size that one delete request takes, where supported.

    >>> [len(some) for some in batched(range(2500))]
    [1000, 1000, 500]
    """
    rest = iter(items)
    while some := list(islice(rest, _AT_ONCE)):
        yield some


def page(found: Sequence[Listed], after: str, limit: int | None) -> tuple[Listed, ...]:
    """Sort and cut a complete listing, for stores that cannot do so themselves."""
    wanted = sorted((item for item in found if item.path > after), key=lambda item: item.path)
    return tuple(wanted if limit is None else wanted[:limit])
