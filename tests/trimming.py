"""Trimming a journal without a collection: what `Collector` does with one, for any position."""

from __future__ import annotations

from stepwell.env import Env
from stepwell.journal import paths
from stepwell.journal.identity import read_identity
from stepwell.journal.journal import BARRIER_KEEP_S
from stepwell.journal.log import Log
from stepwell.journal.trim import BARRIERS_KEPT, plan_trim
from stepwell.model import Position
from stepwell.store.base import Store


def trim(
    store: Store,
    env: Env,
    up_to: Position,
    *,
    barrier_keep_s: float = BARRIER_KEEP_S,
    barriers_kept: int = BARRIERS_KEPT,
) -> tuple[Position, ...]:
    """Delete the entries up to a position, but for barriers that may be needed; say which."""
    identity = read_identity(store)
    assert identity is not None
    trimmed = Log(store).trimmed()
    plan = plan_trim(
        store,
        env,
        identity.id,
        up_to,
        trimmed,
        store.list(paths.JOURNAL),
        barrier_keep_s=barrier_keep_s,
        barriers_kept=barriers_kept,
    )
    plan.begin(store)
    store.delete(*(listed.path for listed in plan.garbage))
    plan.end(store)
    return tuple(Position(paths.parse(listed.path).number or 0) for listed in plan.garbage)
