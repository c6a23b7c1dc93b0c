"""The object of a run: written complete under a new name, and checked against the manifest on read.

A crash during a write leaves an orphan, which is never read, or nothing.
"""

from __future__ import annotations

from pathlib import Path

from stepwell.env import Env
from stepwell.errors import CorruptError, TruncatedError
from stepwell.journal import paths
from stepwell.manifest.checkpoint import REPAIR
from stepwell.manifest.manifest import Run
from stepwell.manifest.progress import Undelivered
from stepwell.model import checksum
from stepwell.store.base import Store
from stepwell.store.locate import open_store

_CHUNK = 1024 * 1024


def write_run(store: Store, env: Env, relation: str, body: bytes, rows: int) -> Run:
    """Store the bytes of a run durably; it takes effect once a manifest names it."""
    path = paths.run(relation, env.new_id())
    store.put_new(path, body)
    return Run(relation, path, len(body), rows, checksum([body]))


def store_of(store: Store, root: str | None, env: Env) -> Store:
    """The store that holds a file of this pipeline: its own, or one it was cloned from."""
    return store if root is None else open_store(root, env)


def read_run(store: Store, run: Run, env: Env) -> bytes:
    """Read the bytes of a run, checked against its size and checksum."""
    return read_checked(store_of(store, run.root, env), run, REPAIR)


def read_checked(store: Store, file: Run | Undelivered, hint: str) -> bytes:
    """Read the bytes of a file that the manifest names, checked against size and checksum."""
    where = f"{store.uri}/{file.path}"
    found = store.get(file.path)
    if found is None:
        raise TruncatedError(where, "missing", hint=hint)
    if len(found.data) != file.size:
        what = f"has {len(found.data)} bytes, not {file.size}"
        raise CorruptError(where, what, field="size", hint=hint)
    if checksum([found.data]) != file.checksum:
        what = f"expected checksum {file.checksum}"
        raise CorruptError(where, what, field="checksum", hint=hint)
    return found.data


def check_size(path: Path, run: Run) -> None:
    """Check that a run is there, complete, without reading it."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise _missing(path) from None
    if size != run.size:
        what = f"has {size} bytes, not {run.size}"
        raise CorruptError(str(path), what, field="size", hint=REPAIR)


def check_file(path: Path, run: Run) -> Path:
    """Check a run that is read in place, without loading it into memory (K7)."""
    check_size(path, run)
    try:
        with path.open("rb") as file:
            found = checksum(iter(lambda: file.read(_CHUNK), b""))
    except FileNotFoundError:
        raise _missing(path) from None
    if found != run.checksum:
        what = f"expected checksum {run.checksum}"
        raise CorruptError(str(path), what, field="checksum", hint=REPAIR)
    return path


def _missing(path: Path) -> TruncatedError:
    return TruncatedError(str(path), "missing", hint=REPAIR)
