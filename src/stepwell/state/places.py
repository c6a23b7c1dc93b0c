"""The places of a pipeline: is one free to begin in, and is a journal store the pipeline's own?"""

from __future__ import annotations

from stepwell.journal import paths
from stepwell.journal.identity import Identity, check_identity, read_identity
from stepwell.state.manifest import Manifest
from stepwell.store.base import Store

_LOOK = 1000
_BEFORE = ("probe", "lease", "deploy_log", "spill")
"""What may lie where a pipeline is about to begin."""


def in_the_way(store: Store) -> list[str]:
    """What lies there and keeps a pipeline from beginning: only an empty place is new (K4)."""
    return [
        listed.path
        for listed in store.list(limit=_LOOK)
        if paths.parse(listed.path).kind not in _BEFORE
    ]


def own_journal(store: Store, manifest: Manifest) -> Identity | None:
    """Whose journal lies there; refused unless it is this pipeline's, or it needs none."""
    identity = read_identity(store)
    check_identity(
        store,
        identity,
        lineage=manifest.lineage,
        id=manifest.journal.id,
        closed=manifest.journal.closed,
    )
    return identity
