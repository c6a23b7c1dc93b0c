"""What a pipeline says about its progress: typed values, given to one listener.

The command line, the user interface and the tests are equal listeners. Events report; they do not
decide: a listener that raises is not heard again, and changes nothing.
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
    """The pipeline is ours, replayed, and serves."""

    lineage: str
    epoch: Epoch
    transaction: Transaction
    replayed: int
    """Transactions that were replayed from the journal."""


@dataclass(frozen=True, slots=True)
class OpeningAt:
    """How far the opening of the pipeline is."""

    stage: str
    percent: int
    done: int = 0
    """Of this stage alone, where that is known."""
    total: int = 0
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Working:
    """How far work is that may take long, such as compacting."""

    what: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True)
class TransactionAt:
    """How far the transaction under way is: of each view that is computed, a share of its rows."""

    transaction: Transaction
    done: int
    rows: int
    """Those that were taken in."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Transactions up to this one were fed again; `together` says how many at once."""

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
    """A transaction is recorded, applied, and on its way to the sinks."""

    transaction: Transaction
    time: datetime
    rows: int
    rejected: int
    views: tuple[str, ...]
    """Those that changed."""
    tables: tuple[str, ...] = ()
    """Those of which rows were rejected."""
    violations: tuple[Violation, ...] = ()
    """What the transaction added to data tests."""
    seconds: float = 0.0
    """How long it took, from reading its input on."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """An explicit transaction was aborted."""

    transaction: Transaction
    steps: int


@dataclass(frozen=True, slots=True)
class Published:
    """A sink holds a transaction, and those before it that came with it in one commit."""

    sink: str
    transaction: Transaction
    rows: int
    transactions: int = 1


@dataclass(frozen=True, slots=True)
class SinkFailed:
    """A sink did not take a transaction. It stays in the outbox; the pipeline goes on."""

    sink: str
    transaction: Transaction
    pending: int
    error: str
    retry_in_s: float
    stops: bool
    """Trying again is of no use: the pipeline takes nothing more in."""


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """A source could not be polled. The others go on; it is tried again."""

    source: str
    error: str
    retry_in_s: float


@dataclass(frozen=True, slots=True)
class Flushed:
    """The manifest holds everything up to this transaction."""

    transaction: Transaction
    position: Position
    runs: int


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A checkpoint was taken."""

    id: str
    transaction: Transaction
    name: str | None


@dataclass(frozen=True, slots=True)
class FlushFailed:
    """Nothing is lost: what was not flushed is in the journal, and will be tried again."""

    error: str


@dataclass(frozen=True, slots=True)
class ChoreFailed:
    """Work beside the transactions failed. Nothing is lost; it is tried again."""

    error: str


@dataclass(frozen=True, slots=True)
class ExecutorLost:
    """What computes the views has ended. Another is started, and the journal replayed."""

    why: str
    time: int
    """The how manieth time lately."""
    times_max: int


@dataclass(frozen=True, slots=True)
class Collected:
    """Objects that nothing needs were removed."""

    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CollectFailed:
    """Nothing that is needed was removed, and the pipeline goes on; it is tried again later."""

    error: str


@dataclass(frozen=True, slots=True)
class StoreUnavailable:
    """A store does not answer. Calls wait, and are made again until then."""

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
    """Something was asked for that has to wait: for a transaction's boundary, or for a sink."""

    what: str
    until: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The loop has ended, at a boundary."""

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
    | ChoreFailed
    | ExecutorLost
    | Collected
    | CollectFailed
    | StoreUnavailable
    | StoreAvailable
    | Waiting
    | Stopped
)
Listener = Callable[[Event], None]


class Events:
    """Gives events to a listener as long as it takes them."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener

    @property
    def heard(self) -> bool:
        """Whether anybody listens: what is told for its own sake need not be made otherwise."""
        return self._listener is not None

    def emit(self, event: Event) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:  # noqa: BLE001 - what a listener does must not undo what was recorded
            self._listener = None
