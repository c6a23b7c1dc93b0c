"""Where a pipeline stands: its transaction, its journal, its sources and its sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stepwell.engine.core import Core
from stepwell.engine.data_tests import OnViolation
from stepwell.engine.outages import OutageStatus
from stepwell.engine.outbox import SinkStatus
from stepwell.engine.sources import SourceStatus
from stepwell.model import Epoch, Position, Transaction


@dataclass(frozen=True, slots=True)
class DataTestStatus:
    name: str
    view: str
    """The view that holds the violations."""
    on_violation: OnViolation
    violations: int


@dataclass(frozen=True, slots=True)
class Status:
    lineage: str
    epoch: Epoch
    transaction: Transaction
    """The last one that is recorded."""
    flushed: Transaction
    """The last one that the manifest holds."""
    position: Position
    """The last entry of the journal."""
    replay: Position
    """The last entry that an opening need not replay."""
    unflushed_bytes: int
    open: Literal["explicit", "automatic"] | None
    """The transaction that is open now, if one is."""
    sources: tuple[SourceStatus, ...]
    sinks: tuple[SinkStatus, ...]
    dead_letters: Mapping[str, int]
    """Rows that were rejected since the pipeline began, by table (J13)."""
    tests: tuple[DataTestStatus, ...] = ()
    outages: tuple[OutageStatus, ...] = ()
    """Stores that do not answer now, and are waited for."""


def status_of(core: Core) -> Status:
    """Of a pipeline at work; raises what ended it, if anything did."""
    state, manifest = core.state, core.manifest
    open = state.open
    return Status(
        lineage=manifest.lineage,
        epoch=manifest.claim.epoch,
        transaction=state.transaction,
        flushed=manifest.transaction,
        position=core.tip.position,
        replay=manifest.replay.position,
        unflushed_bytes=state.executor.unflushed_bytes(),
        open=None if open is None else "explicit" if open.explicit else "automatic",
        sources=core.sources.status(state.positions),
        sinks=tuple(outbox.status() for outbox in state.outboxes),
        dead_letters=dict(state.dead_letters),
        tests=tuple(
            DataTestStatus(
                test.name, test.violations, test.on_violation, state.violations[test.violations]
            )
            for test in state.tests
        ),
        outages=core.outages.status(),
    )
