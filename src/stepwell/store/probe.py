"""Check, when a pipeline is opened, that a store supports conditional writes (F9).

A store that ignores put-if-absent reports every write as a success and lets two writers overwrite
each other; nothing later could notice. The probe therefore puts two different objects to one fresh
path: the second must be refused, and the first must still be there. `race` tests, once, that
simultaneous writers have one winner, too.

A crash leaves an object below `probe/`. It is not part of a pipeline and can be deleted at any
time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from stepwell.env import Env
from stepwell.errors import ConfigError, ConflictError, UnavailableError
from stepwell.store.base import Store

PROBE_PREFIX = "probe/"
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The observed capabilities of a store."""

    put_if_absent: bool
    compare_and_swap: bool
    sorted_listing: bool
    read_after_write: bool


def probe(store: Store, env: Env) -> None:
    """Refuse a store that ignores put-if-absent. A lost answer propagates as its own error.

    The probe must fail every time to count: a collector with a wrong clock may delete the object
    under test, and a store that lost an object would look like one that replaced it.
    """
    problem: str | None = None
    for _ in range(_TRIES):
        path = PROBE_PREFIX + env.new_id()
        try:
            problem = _put_twice(store, path)
        finally:
            _clear(store, path)
        if problem is None:
            return
    if problem:
        raise ConfigError(
            f"{store.uri} ignores put-if-absent: {problem}; two writers would overwrite each other",
            hint=KNOWN_TO_WORK,
        )


def capabilities(store: Store, env: Env) -> Capabilities:
    """Try all operations and refuse nothing, for `stepwell doctor`."""
    path = PROBE_PREFIX + env.new_id()
    paths = tuple(f"{path}-{name}" for name in ("b", "a", "c"))
    try:
        for each in paths:
            with suppress(ConflictError):  # As in `_put_twice`.
                store.put_new(each, each.encode())
        found = [store.get(each) for each in paths]
        listed = [item.path for item in store.list(PROBE_PREFIX, after=path, limit=len(paths))]
        return Capabilities(
            put_if_absent=_put_twice(store, path) is None,
            compare_and_swap=_swap_twice(store, paths[0]),
            sorted_listing=listed == sorted(paths),
            read_after_write=[each and each.data for each in found] == [p.encode() for p in paths],
        )
    except ConfigError:  # It does not even accept a request for put-if-absent.
        return Capabilities(False, False, False, False)
    finally:
        _clear(store, path, *paths)


def _put_twice(store: Store, path: str) -> str | None:
    """Describe the problem, or return None if there is none."""
    first, second = f"first {path}".encode(), f"second {path}".encode()
    # The path is fresh, so a conflict is our own put, resent by a lower layer after a lost answer.
    with suppress(ConflictError):
        store.put_new(path, first)
    try:
        store.put_new(path, second)
    except ConflictError:
        found = store.get(path)
        if found is None:
            return "it refused to create an object, and has none"
        return "it refused to replace an object, and did" if found.data == second else None
    return "it replaced an object that it was told to create"


def _swap_twice(store: Store, path: str) -> bool:
    """Whether, of two replacements of the same version, exactly the first wins."""
    found = store.get(path)
    if found is None:
        return False
    try:
        store.replace_if(path, b"first", found.etag)
    except (ConflictError, ConfigError):
        return False
    with suppress(ConflictError):
        store.replace_if(path, b"second", found.etag)
    after = store.get(path)
    return after is not None and after.data == b"first"


def _clear(store: Store, *paths: str) -> None:
    # An object that cannot be deleted now does no harm, and must not hide the original error.
    with suppress(UnavailableError):
        for path in paths:
            store.delete(path)


KNOWN_TO_WORK = (
    "a local directory works, and so should every service that documents conditional writes"
    " (Amazon S3, Google Cloud Storage, Azure Blob Storage, Cloudflare R2, MinIO); on other servers"
    " look for a version that honours If-None-Match"
)
