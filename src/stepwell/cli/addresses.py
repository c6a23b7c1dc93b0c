"""Resolve an address typed by a user to a store or to one object in it. Writes nothing."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from stepwell.env import Env
from stepwell.errors import InvalidError
from stepwell.store.base import Store
from stepwell.store.locate import open_store

_NUMBERED = re.compile(r"(\d{20})\.(arrow|json)")


@dataclass(frozen=True, slots=True)
class Single:
    """One object, in its store or copied out of it."""

    where: str
    data: bytes
    number: int | None
    """Number in the object's name, if any."""


def read_single(address: str, env: Env, kind: Literal["journal", "manifest"]) -> Single | None:
    """Read the object that an address names; None if the address is that of a store."""
    folder, _, name = address.rpartition("/")
    matched = _NUMBERED.fullmatch(name)
    if not matched and not os.path.isfile(address):
        return None
    other = {"arrow": "journal", "json": "manifest"}[matched[2]] if matched else kind
    if other != kind:
        raise InvalidError(
            f"{name} is not an object of a {kind}", hint=f"stepwell inspect {other} {address}"
        )
    store = open_store(folder or ("/" if address.startswith("/") else "."), env)
    where = f"{store.uri}/{name}"
    found = store.get(name)
    if found is None:
        raise InvalidError(f"{where} does not exist", hint=_see(folder or "."))
    return Single(where, found.data, int(matched[1]) if matched else None)


def open_existing_store(address: str, env: Env) -> Store:
    """Open the store at an address; `InvalidError` if it is a directory that does not exist."""
    store = open_store(address, env)
    root = local_root(store)
    if root is not None and not os.path.isdir(root):
        raise InvalidError(
            f"{root} does not exist",
            hint="give the directory that holds manifest/ and journal/, or the address of a bucket",
        )
    return store


def local_root(store: Store) -> str | None:
    """Return the directory of a local store; None for other stores."""
    scheme, _, path = store.uri.partition("://")
    return path if scheme == "file" else None


def nothing_here(store: Store, what: str) -> InvalidError:
    """Explain why a store has no journal or no manifest, judging by its other objects."""
    from stepwell.journal import paths

    kinds = {paths.parse(listed.path).kind for listed in store.list(limit=1000)}
    if "entry" in kinds or "identity" in kinds:
        hint = f"it holds a journal: stepwell inspect journal {store.uri}"
    elif "manifest" in kinds:
        hint = f"it holds a manifest: stepwell inspect manifest {store.uri}"
    elif store.uri.endswith(("/journal", "/manifest")):
        hint = f"give the store itself: {store.uri.rpartition('/')[0]}"
    elif kinds:
        hint = "it holds other things: check the address"
    else:
        hint = "it is empty: check the address"
    return InvalidError(f"{store.uri} holds no {what}", hint=hint)


def _see(folder: str) -> str:
    store, _, kind = folder.rpartition("/")
    if kind in ("journal", "manifest"):
        return f"list the objects: stepwell inspect {kind} {store or '.'}"
    return "check the address"
