"""Does a store keep what Stepwell rests on? Asked once, when a pipeline is opened (F9).

A store which ignores put-if-absent calls every write a success and lets two writers overwrite each
other; nothing later could notice. So two different objects are put to one fresh path: the second
must be refused, and the first must still be there.

A crash leaves an object below `probe/`, which counts as nothing: it is no part of a pipeline, and
anybody may delete it.
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
    """What a store was seen to do."""

    put_if_absent: bool
    compare_and_swap: bool
    sorted_listing: bool
    read_after_write: bool


def probe(store: Store, env: Env) -> None:
    """Refuse a store that ignores put-if-absent. A lost answer surfaces as the error it is.

    What is wrong must be wrong each time: a collector with a wrong clock may delete what is being
    looked at, and a store that lost an object would look like one that replaced it.
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
            hint=_KNOWN_TO_WORK,
        )


def capabilities(store: Store, env: Env) -> Capabilities:
    """Try everything, refuse nothing: what `stepwell doctor` shows."""
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
    except ConfigError:  # It cannot even be asked to create an object only where there is none.
        return Capabilities(False, False, False, False)
    finally:
        _clear(store, path, *paths)


def _put_twice(store: Store, path: str) -> str | None:
    """What is wrong, or None."""
    first, second = f"first {path}".encode(), f"second {path}".encode()
    # The path is fresh, so a conflict here is our own put, sent again below us after a lost answer.
    with suppress(ConflictError):
        store.put_new(path, first)
    try:
        store.put_new(path, second)
    except ConflictError:
        found = store.get(path)
        if found is None:
            return "it refused to create an object, and has none"
        return "it refused to replace an object, and did" if found.data == second else None
    return "it replaced an object which it was told to create"


def _swap_twice(store: Store, path: str) -> bool:
    """Whether the first of two replacements of the same version wins, and only the first."""
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
    # What cannot be deleted now counts as nothing, and must not hide why we are here.
    with suppress(UnavailableError):
        for path in paths:
            store.delete(path)


_KNOWN_TO_WORK = (
    "a local directory works, and so should every service that documents conditional writes"
    " (Amazon S3, Google Cloud Storage, Azure Blob Storage, Cloudflare R2, MinIO); on other servers"
    " look for a version that honours If-None-Match"
)
