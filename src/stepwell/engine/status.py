"""The status of a pipeline: its transaction, journal, sources and sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stepwell.engine.data_tests import OnViolation
from stepwell.engine.memory import Memory, memory
from stepwell.engine.outages import OutageStatus
from stepwell.engine.outbox import SinkStatus
from stepwell.engine.sources import SourceStatus
from stepwell.engine.writer_session import WriterSession
from stepwell.execution.executor import cache_usage, java_pid
from stepwell.lsm.cache import Usage
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
    """Where a pipeline stands: its transaction, its journal, its sources and its sinks."""

    lineage: str
    """The id of the pipeline, which a clone does not share."""
    epoch: Epoch
    """The number of the writer."""
    transaction: Transaction
    """The last recorded transaction."""
    flushed: Transaction
    """The last transaction in the manifest."""
    position: Position
    """The last entry of the journal."""
    replay: Position
    """The last entry that an opening need not replay."""
    unflushed_bytes: int
    """How large the state is that no run holds yet."""
    open: Literal["explicit", "automatic"] | None
    """The kind of the open transaction, if there is one."""
    sources: tuple[SourceStatus, ...]
    """Each source, and how far it was read."""
    sinks: tuple[SinkStatus, ...]
    """Each sink, and how far behind it is."""
    dead_letters: Mapping[str, int]
    """Rejected rows since the pipeline began, by table (J13)."""
    tests: tuple[DataTestStatus, ...] = ()
    """Each data test, and its violations."""
    outages: tuple[OutageStatus, ...] = ()
    """Stores that do not answer now, and whose calls are retried."""
    cache: Usage | None = None
    """What is cached on this machine, if the executor has a cache."""
    journal_bytes: int = 0
    """Bytes that this writer has appended to the journal."""
    memory: Memory | None = None
    """Memory of the process that runs the pipeline: held, mapped, in Arrow and in Java."""


def status_of(session: WriterSession) -> Status:
    """The status of an open pipeline; raises the error that ended it, if there is one."""
    state, manifest = session.state, session.manifest
    open = state.open
    return Status(
        lineage=manifest.lineage,
        epoch=manifest.claim.epoch,
        transaction=state.transaction,
        flushed=manifest.transaction,
        position=session.tip.position,
        replay=manifest.replay.position,
        unflushed_bytes=state.executor.unflushed_bytes(),
        open=None if open is None else "explicit" if open.explicit else "automatic",
        sources=session.sources.status(state.positions),
        sinks=tuple(outbox.status() for outbox in state.outboxes),
        dead_letters=dict(state.dead_letters),
        tests=tuple(
            DataTestStatus(
                test.name, test.violations, test.on_violation, state.violations[test.violations]
            )
            for test in state.tests
        ),
        outages=session.outages.status(),
        cache=cache_usage(state.executor),
        journal_bytes=session.writer.journal.written_bytes,
        memory=memory(java_pid(state.executor)),
    )
