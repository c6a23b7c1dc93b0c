"""The store protocol: what Stepwell asks of storage, and what a crash leaves after each call.

Four rules hold for every store; the contract suite (`tests/store/test_contract.py`) checks them:

* An object becomes visible whole or not at all. Whoever wrote it, or was refused because of it,
  may count on it: it is durable.
* "Absent" is an answer of the storage: `None` or `False`. A call that failed raises
  `UnavailableError` and is never taken for absence (F10).
* A write that raised `UnavailableError` may or may not have been applied. One that raised
  `ConflictError` may have lost to its own earlier attempt, because a client below may have sent it
  again after a lost answer. So whoever writes puts an id of its own into the bytes and looks (F7).
* A write that raised `UnknownOutcomeError` may have been applied, and looking does not tell: what
  is there may not be durable. It must not be sent again.
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
    """An object's bytes, and the tag `replace_if` compares."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of a listing. `modified` is the storage's clock, not ours."""

    path: str
    size: int
    modified: datetime


class Store(Protocol):
    """Bytes at paths below one prefix. Safe to use from several threads."""

    @property
    def uri(self) -> str:
        """Where this is, for messages and for opening it again; never holds a secret."""

    def get(self, path: str) -> Object | None:
        """The whole object, or None if there is none. Reads only: a crash leaves nothing."""

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        """`length` bytes from `start`, fewer only where the object ends; None if there is none.

        Reads only: a crash leaves nothing.
        """

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        """Create the object; `ConflictError` if the path is taken, and then nothing is changed.

        Once it returns the object is durable. A crash during the call leaves the whole object or
        none. Parts are written one after another without being joined first.
        """

    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        """Replace the object if it still is the one with this etag; else `ConflictError`.

        An absent object is a conflict too. A crash during the call leaves the old object or the
        new one, whole; once it returns the new one is durable.
        """

    def list(
        self, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> tuple[Listed, ...]:
        """Objects whose path starts with `prefix` (empty, or ending in `/`), sorted by path.

        Only paths greater than `after`, at most `limit`. A listing that fails on the way raises; it
        never returns a part. Reads only: a crash leaves nothing.
        """

    def delete(self, *paths: str) -> None:
        """Remove objects, in as few requests as the storage allows; no error for any that is not
        there.

        An error, or a crash during or soon after the call, leaves each of them removed or not, in
        no order: deletion is for what nothing refers to any more.
        """

    def exists(self, path: str) -> bool:
        """Whether there is an object. Reads only: a crash leaves nothing."""


_SEGMENT = r"[^./\\\x00-\x1f\x7f\ud800-\udfff][^/\\\x00-\x1f\x7f\ud800-\udfff]*"
_PATH = re.compile(f"{_SEGMENT}(?:/{_SEGMENT})*")


def check_path(path: str) -> str:
    """A path is segments joined by `/`, none empty, hidden (`.x`) or with control characters.

    So no name that came from a user can leave the prefix, and names with a leading dot stay ours.

    >>> check_path("runs/orders/01J.parquet")
    'runs/orders/01J.parquet'
    """
    if not _PATH.fullmatch(path):
        raise InvalidError(f"not a path inside a store: {path!r}")
    return path


def check_range(start: int, length: int) -> None:
    """A range counts from the beginning; there is no counting from the end."""
    if start < 0 or length < 0:
        raise InvalidError(f"not a range of bytes: {length} from {start}")


def check_prefix(prefix: str) -> str:
    """A listing prefix is empty or whole segments ending in `/`."""
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidError(f"a listing prefix must end in '/': {prefix!r}")
        check_path(prefix[:-1])
    return prefix


def join(data: Bytes | Sequence[Bytes]) -> bytes:
    """The parts as one piece, for stores that can only take one."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    return b"".join(data)


def batched(items: Iterable[T]) -> Iterator[list[T]]:
    """As many at a time as are deleted in one request, where the storage can.

    >>> [len(some) for some in batched(range(2500))]
    [1000, 1000, 500]
    """
    rest = iter(items)
    while some := list(islice(rest, _AT_ONCE)):
        yield some


def page(found: Sequence[Listed], after: str, limit: int | None) -> tuple[Listed, ...]:
    """Sort and cut a complete listing, for stores that cannot do it themselves."""
    wanted = sorted((item for item in found if item.path > after), key=lambda item: item.path)
    return tuple(wanted if limit is None else wanted[:limit])
