"""What can be tuned about a pipeline. Nothing here changes a result."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.engine.data_tests import DataTest
from stepwell.engine.outbox import OutboxSettings
from stepwell.engine.ports import Limits
from stepwell.engine.push_keys import KEEP_S
from stepwell.engine.transaction import OnError
from stepwell.journal.journal import Settings as JournalSettings
from stepwell.state.checkpoint import KEEP
from stepwell.state.collect import Settings as CollectSettings
from stepwell.state.history import History


@dataclass(frozen=True, slots=True)
class Settings:
    limits: Limits = field(default_factory=Limits)
    latency_s_max: float = 0.0
    """How long a transaction of the loop stays open for more steps; 0: every step is one."""
    push_keep_s: float = KEEP_S
    """How long the keys of pushes are known."""
    checkpoint_every_s: float = 60.0
    """How often a pipeline that has work to do takes a checkpoint: a flush that is kept."""
    checkpoint_keep: int = KEEP
    """How many checkpoints without a name stay."""
    memory_bytes_max: int = 256 * 1024 * 1024
    """State that no run holds yet; more than that is flushed at once."""
    on_error: OnError = "dead_letter"
    tests: tuple[DataTest, ...] = ()
    """Data tests of the program, and what each does about a violation."""
    outbox: OutboxSettings = field(default_factory=OutboxSettings)
    sink_wait_s_max: float = 60.0
    """How long a push waits for a sink whose outbox is full."""
    sink_grace_s: float = 5.0
    """How long opening, a push without a loop, and ending go on sending to a sink that lags."""
    background_delivery: bool = True
    """Whether the loop sends to each sink from a thread of its own."""
    source_wait_s_first: float = 0.5
    source_wait_s_max: float = 30.0
    """How patiently a source that cannot be reached is tried again."""
    idle_s: float = 0.1
    """How long the loop rests when no source has anything."""
    replay_rows_max: int = 1_000_000
    """How much replay feeds at once."""
    journal: JournalSettings = field(default_factory=JournalSettings)
    history: History = field(default_factory=History)
    collect_every_s: float = 600.0
    """How often a pipeline that runs removes what nothing needs."""
    collect: CollectSettings = field(default_factory=CollectSettings)
