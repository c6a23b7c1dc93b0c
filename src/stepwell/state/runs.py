"""The object of a run: written whole under a new name, read only if it is what the manifest says.

A crash while one is written leaves an object that no manifest names, or none; it is never read.
"""

from __future__ import annotations

from stepwell.env import Env
from stepwell.errors import CorruptError, TruncatedError
from stepwell.journal import paths
from stepwell.model import checksum
from stepwell.state.manifest import Run
from stepwell.store.base import Store


def write_run(store: Store, env: Env, relation: str, body: bytes, rows: int) -> Run:
    """Store the bytes of a run, durably; it counts once a manifest names it."""
    path = paths.run(relation, env.new_id())
    store.put_new(path, body)
    return Run(relation, path, len(body), rows, checksum([body]))


def read_run(store: Store, run: Run) -> bytes:
    """The bytes of a run, checked against its size and checksum."""
    where = f"{store.uri}/{run.path}"
    found = store.get(run.path)
    if found is None:
        raise TruncatedError(where, "missing", hint="restore the object from a backup")
    if len(found.data) != run.size:
        raise CorruptError(where, f"has {len(found.data)} bytes, not {run.size}", field="size")
    if checksum([found.data]) != run.checksum:
        raise CorruptError(where, f"expected checksum {run.checksum}", field="checksum")
    return found.data
