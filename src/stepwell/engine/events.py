"""Events that report a pipeline's progress: typed values, passed to one listener.

The command line, the user interface and the tests are equal listeners. Events do not influence the
pipeline: a listener that raises is not called again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from stepwell.engine.data_tests import Violation
from stepwell.model import Epoch, Position, Transaction


@dataclass(frozen=True, slots=True)
class Opened:
    """The pipeline was claimed and replayed, and serves."""

    lineage: str
    epoch: Epoch
    transaction: Transaction
    replayed: int
    """Transactions that were replayed from the journal."""


@dataclass(frozen=True, slots=True)
class OpeningAt:
    """Progress of opening the pipeline."""

    stage: str
    percent: int
    done: int = 0
    """Progress within the stage, where it is known."""
    total: int = 0
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Working:
    """Progress of long work, such as compaction."""

    what: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True)
class TransactionAt:
    """Progress of the current transaction: its rows, in proportion to the views computed."""

    transaction: Transaction
    done: int
    rows: int
    """Input rows."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Transactions up to this one were replayed, `together` of them as one."""

    transaction: Transaction
    together: int
    rows: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The journal ended inside a transaction (J4): it was committed or rolled back."""

    transaction: Transaction
    steps: int
    committed: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction was recorded and applied, and is on its way to the sinks."""

    transaction: Transaction
    time: datetime
    rows: int
    rejected: int
    views: tuple[str, ...]
    """Views that changed."""
    tables: tuple[str, ...] = ()
    """Tables with rejected rows."""
    violations: tuple[Violation, ...] = ()
    """Violations of data tests that the transaction added."""
    seconds: float = 0.0
    """Duration, including the time to read its input."""
    queries: int = 0
    """Spark queries that it took."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """An explicit transaction was aborted."""

    transaction: Transaction
    steps: int


@dataclass(frozen=True, slots=True)
class Published:
    """A sink committed a transaction, together with `transactions - 1` before it."""

    sink: str
    transaction: Transaction
    rows: int
    transactions: int = 1
    seconds: float = 0.0
    """Duration of the commit."""


@dataclass(frozen=True, slots=True)
class SinkFailed:
    """A sink failed to commit a transaction, which stays in the outbox; the pipeline continues."""

    sink: str
    transaction: Transaction
    pending: int
    error: str
    retry_in_s: float
    stops: bool
    """Retrying does not help: the pipeline ingests no more input."""


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """A source could not be polled. It is retried; the others continue."""

    source: str
    error: str
    retry_in_s: float


@dataclass(frozen=True, slots=True)
class Flushed:
    """The manifest holds everything up to this transaction."""

    transaction: Transaction
    position: Position
    runs: int
    seconds: float = 0.0
    """Its duration."""


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A checkpoint was taken."""

    id: str
    transaction: Transaction
    name: str | None


@dataclass(frozen=True, slots=True)
class FlushFailed:
    """A flush failed, and is retried. Nothing is lost: the journal holds every transaction."""

    error: str


@dataclass(frozen=True, slots=True)
class BackgroundTaskFailed:
    """A background task failed, and is retried. Nothing is lost."""

    error: str


@dataclass(frozen=True, slots=True)
class ExecutorLost:
    """The executor was lost. Another one is started, and the journal is replayed."""

    why: str
    time: int
    """How often this has happened recently."""
    times_max: int


@dataclass(frozen=True, slots=True)
class Collected:
    """Garbage was removed."""

    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CollectFailed:
    """Garbage collection failed, and is retried later. No referenced object was removed."""

    error: str


@dataclass(frozen=True, slots=True)
class StoreUnavailable:
    """A store does not answer. Calls are retried until `until`."""

    store: str
    since: datetime
    until: datetime
    error: str


@dataclass(frozen=True, slots=True)
class StoreAvailable:
    """The outage is over."""

    store: str
    after_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request has to wait for the end of a transaction, or for a sink."""

    what: str
    until: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The loop ended between two transactions."""

    transaction: Transaction
    transactions: int


Event: TypeAlias = (
    Opened
    | OpeningAt
    | Working
    | TransactionAt
    | Replayed
    | Settled
    | Committed
    | RolledBack
    | Published
    | SinkFailed
    | SourceFailed
    | Flushed
    | Checkpointed
    | FlushFailed
    | BackgroundTaskFailed
    | ExecutorLost
    | Collected
    | CollectFailed
    | StoreUnavailable
    | StoreAvailable
    | Waiting
    | Stopped
)
Listener = Callable[[Event], None]


def all_of(*listeners: Listener | None) -> Listener | None:
    """Combines several listeners: one that raises is not called again, the others still are."""
    each = [Events(listener) for listener in listeners if listener is not None]
    if not each:
        return None

    def listen(event: Event) -> None:
        for events in each:
            events.emit(event)

    return listen


class Events:
    """Passes events to a listener, until the listener raises."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener

    @property
    def heard(self) -> bool:
        """Whether there is a listener; without one, progress need not be computed."""
        return self._listener is not None

    def emit(self, event: Event) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:  # noqa: BLE001 - a listener must not fail a transaction that is recorded
            self._listener = None
