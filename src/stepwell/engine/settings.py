"""Settings of a pipeline. None of them changes a result, except `on_error` and `tests`."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.engine.bulk import BULK_BYTES
from stepwell.engine.data_tests import DataTest
from stepwell.engine.outbox import OutboxSettings
from stepwell.engine.ports import Limits
from stepwell.engine.push_keys import KEEP_S
from stepwell.engine.transaction import OnError
from stepwell.journal.journal import Settings as JournalSettings
from stepwell.manifest.checkpoint import KEEP
from stepwell.manifest.gc import Settings as CollectSettings
from stepwell.manifest.history import History


@dataclass(frozen=True, slots=True)
class Settings:
    limits: Limits = field(default_factory=Limits)
    bulk_bytes: int | None = BULK_BYTES
    """How much waiting input of a source is read in bulk, by executors; None: none is."""
    latency_s_max: float = 0.0
    """How long a transaction of the loop stays open for more steps; 0: one step each."""
    push_keep_s: float = KEEP_S
    """How long push keys are remembered."""
    checkpoint_every_s: float = 60.0
    """How often a busy pipeline takes a checkpoint."""
    checkpoint_keep: int = KEEP
    """How many unnamed checkpoints are kept."""
    memory_bytes_max: int = 256 * 1024 * 1024
    """State that is in no run yet; more than this is flushed at once."""
    on_error: OnError = "dead_letter"
    tests: tuple[DataTest, ...] = ()
    """The data tests of the program."""
    outbox: OutboxSettings = field(default_factory=OutboxSettings)
    sink_wait_s_max: float = 60.0
    """How long a push waits for a sink whose outbox is full."""
    sink_grace_s: float = 5.0
    """How long opening, closing and a push without a loop keep sending to a sink that lags."""
    background_delivery: bool = True
    """Whether the loop sends to each sink from its own thread."""
    source_wait_s_first: float = 0.5
    source_wait_s_max: float = 30.0
    """The first and the longest pause before a failed source is retried."""
    idle_s: float = 0.1
    """How long the loop rests when no source has input."""
    replay_rows_max: int = 1_000_000
    """The most rows that replay computes at once."""
    journal: JournalSettings = field(default_factory=JournalSettings)
    history: History = field(default_factory=History)
    collect_every_s: float = 600.0
    """How often a running pipeline collects garbage."""
    collect: CollectSettings = field(default_factory=CollectSettings)
