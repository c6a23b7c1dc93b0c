"""One transaction, from input to output: the function that every transaction goes through.

    phase     adds                                                        to
    poll      `Intake`: one table's change, with position and reference   (a source, or a push)
    gather    `Step`: intakes and their journal lines; `Gathered`: the    `Intake`
              steps of one transaction, its number and time
    execute   `Executed`: the change of every view; the state is as it    `Gathered`
              was
    record    THE COMMIT POINT: one entry of the journal
    apply     the executor's state, positions and counts move; `Done`     `Executed`
    publish   into the outbox of every sink whose view changed
    flush     now and then: runs, then a manifest that moves the replay position (`flush.py`)

Before `record` nothing has happened; after it everything will. A crash before it leaves the
pipeline as it was. After a crash behind it, replay goes through this same function: `gather` then
reads the recorded input again, and `record` has nothing left to do.

Most transactions have one step, and one entry records both. A transaction of several steps records
each step when it arrives and computes nothing until it closes. `settle` decides about a transaction
inside which the journal ends (J4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Literal

from stepwell import threads
from stepwell.engine.bulk import BULK_BYTES, BulkReader
from stepwell.engine.data_tests import (
    DataTest,
    Violation,
    added_violations,
    net_change,
    refuse_violations,
)
from stepwell.engine.dead_letters import Arrival, GatheredLetters
from stepwell.engine.events import Committed, Events
from stepwell.engine.intakes import fold_intakes
from stepwell.engine.outbox import Outbox
from stepwell.engine.payload import PUSHED, input_line, key_line, recorded_key
from stepwell.engine.ports import Intake
from stepwell.engine.profile import Profiles
from stepwell.engine.push_keys import Accepted, PushKey, PushKeys, accepted, table_runs
from stepwell.engine.taken_names import Layers, TakenNames
from stepwell.errors import (
    InvalidError,
    StepwellError,
    UnknownOutcomeError,
    UserCodeError,
    ensure,
)
from stepwell.execution.executor import Executed, Executor
from stepwell.journal.entry import Cursor, Draft, Input, Kind
from stepwell.lsm.fold import Keys
from stepwell.lsm.large_change import AnyChange
from stepwell.lsm.sorted_runs import ReadRun
from stepwell.manifest.checkpoint import Checkpoint
from stepwell.manifest.manifest import Manifest
from stepwell.manifest.timeline import Timeline
from stepwell.model import Transaction
from stepwell.store.sealed import Json

OnError = Literal["dead_letter", "fail"]
_MANY = 10_000
"""Rows of a step that are worth a thread."""


@dataclass(frozen=True, slots=True)
class Step:
    """Input that one journal entry records: intakes, and the lines of that entry."""

    intakes: tuple[Intake, ...]
    lines: Callable[[], tuple[Input, ...]]

    @classmethod
    def of(cls, intakes: Sequence[Intake]) -> Step:
        """A step to be recorded. `InvalidError` if it cannot be, here or from `inputs`.

        Many rows are checksummed and encoded in a thread while the executor computes.
        """
        every = tuple(intakes)
        if sum(intake.rows for intake in every) >= _MANY:
            return cls(every, _start(partial(_lines, every)))
        return cls.recorded(every, _lines(every))

    @classmethod
    def recorded(cls, intakes: tuple[Intake, ...], inputs: tuple[Input, ...]) -> Step:
        """A step whose lines are known."""
        return cls(intakes, lambda: inputs)

    @property
    def inputs(self) -> tuple[Input, ...]:
        return self.lines()

    @property
    def rows(self) -> int:
        return sum(intake.rows for intake in self.intakes)

    @property
    def staged(self) -> bool:
        """Whether its rows are in files, so that it has to be a transaction of its own."""
        return any(intake.change.staged is not None for intake in self.intakes)

    @property
    def can_be_read_again(self) -> bool:
        """Whether the sources can read all rows again, so that the journal need not hold them."""
        return all(intake.reference is not None for intake in self.intakes)


def _start(work: Callable[[], tuple[Input, ...]]) -> Callable[[], tuple[Input, ...]]:
    """Start work in a thread, and return a function that waits for its result."""
    future: Future[tuple[Input, ...]] = Future()

    def run() -> None:
        future.set_result(work())

    try:
        threads.start("stepwell-record", run, failed=future.set_exception)
    except RuntimeError:
        # The interpreter is shutting down and starts no more threads.
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - raised by `future.result`
            future.set_exception(error)
    return future.result


def _lines(intakes: tuple[Intake, ...]) -> tuple[Input, ...]:
    return tuple(input_line(intake) for intake in intakes)


@dataclass(frozen=True, slots=True)
class Gathered:
    """All input of a transaction: its steps, its number and its time."""

    transaction: Transaction
    time: datetime
    steps: tuple[Step, ...]
    earlier: tuple[Gathered, ...] = ()
    """Preceding transactions that replay computes together with this one, for no sink."""
    key: PushKey | None = None
    """The key of an explicit transaction."""

    @property
    def together(self) -> int:
        """How many transactions are computed together."""
        return len(self.earlier) + 1

    @property
    def closing_lines(self) -> tuple[Input, ...]:
        """The lines of the closing entry that record no input."""
        return () if self.key is None else (key_line(self.key),)

    def keys(self, rejected: Iterator[int]) -> Iterator[Accepted]:
        """The push keys to remember; `rejected` has the number of dead letters of each intake."""
        for gathered in self.earlier:
            yield from gathered.keys(rejected)
        total = 0
        for line in chain.from_iterable(step.inputs for step in self.steps):
            count, key = next(rejected), recorded_key(line)
            total += count
            if key is not None:
                yield accepted(key, self.transaction, count, self.time)
        if self.key is not None:
            yield accepted(self.key, self.transaction, total, self.time)

    @property
    def intakes(self) -> tuple[Intake, ...]:
        before = chain.from_iterable(gathered.intakes for gathered in self.earlier)
        return (*before, *chain.from_iterable(step.intakes for step in self.steps))

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        """The intakes, each with its transaction."""
        before = chain.from_iterable(gathered.arrivals for gathered in self.earlier)
        own = chain.from_iterable(step.intakes for step in self.steps)
        return (*before, *(Arrival(intake, self.transaction, self.time) for intake in own))

    @property
    def rows(self) -> int:
        before = sum(gathered.rows for gathered in self.earlier)
        return before + sum(step.rows for step in self.steps)


@dataclass(slots=True)
class Open:
    """A transaction that has begun and not closed."""

    transaction: Transaction
    explicit: bool
    steps: list[Step] = field(default_factory=list)
    recorded: int = 0
    """The step number of its last entry."""
    key: PushKey | None = None
    failed: bool = False
    """Whether it must be aborted; the ABORT entry could not be appended yet."""
    _names: dict[str, set[str]] = field(default_factory=dict)
    _counted: int = 0
    """How many steps `_names` covers."""

    def names(self, source: str) -> Collection[str]:
        """The names that a source took in this transaction."""
        for step in self.steps[self._counted :]:
            for intake in step.intakes:
                if intake.names:
                    self._names.setdefault(intake.source, set()).update(intake.names)
        self._counted = len(self.steps)
        return self._names.get(source, ())

    @property
    def rows(self) -> int:
        return sum(step.rows for step in self.steps)


@dataclass(slots=True)
class State:
    """Everything that a transaction changes. Used by one thread at a time."""

    executor: Executor
    keys: Keys
    pushes: PushKeys
    """The keys of recorded pushes."""
    outboxes: tuple[Outbox, ...]
    events: Events
    bulk_bytes: int | None = BULK_BYTES
    """How much input is read in bulk; None: none is."""
    profiles: Profiles = field(default_factory=Profiles)
    """Times transactions; not during replay."""
    on_error: OnError = "dead_letter"
    transaction: Transaction = Transaction(0)
    """The last recorded transaction."""
    positions: dict[str, Json] = field(default_factory=dict)
    """The position of each source after it."""
    taken: dict[str, TakenNames] = field(default_factory=dict)
    """The names that each `Naming` source has taken."""
    read: ReadRun | None = None
    """Reads a run of names; None in a state that polls no sources."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    tests: tuple[DataTest, ...] = ()
    gated: bool = False
    """Whether data tests refuse violations; not during replay, whose input was accepted."""
    violations: Counter[str] = field(default_factory=Counter)
    """The number of rows in the view of each data test."""
    open: Open | None = None
    origin: Checkpoint | None = None
    """The checkpoint that this state was loaded from, until a manifest holds the state."""
    diverged: Timeline | None = None
    """The timeline that a restore begins, until a manifest names it."""
    broken: StepwellError | None = None
    """Why memory and journal may disagree; only opening the pipeline again helps."""

    @property
    def bulk(self) -> BulkReader | None:
        """Reads large input in bulk; None if this process reads all of it."""
        none = self.bulk_bytes is None
        return None if none else BulkReader.of(self.executor, self.bulk_bytes or 0)

    @property
    def next(self) -> Transaction:
        return Transaction(self.transaction + 1)

    def position(self, source: str) -> Json:
        """The position of a source, with the steps of an open transaction included."""
        for step in reversed(self.open.steps if self.open else []):
            for intake in reversed(step.intakes):
                if intake.source == source:
                    return intake.position
        return self.positions.get(source)

    def names(self, source: str) -> Layers:
        """The names a source has taken, with the steps of an open transaction included."""
        return Layers(self.taken_by(source), self.open.names(source) if self.open else ())

    def taken_by(self, source: str) -> TakenNames:
        """The names a source has taken up to the last transaction."""
        if source not in self.taken:
            self.taken[source] = TakenNames(source, (), self.read)
        return self.taken[source]

    def unflushed_bytes(self) -> int:
        """The size of the state that is in no run yet."""
        names = sum(taken.unflushed_bytes() for taken in self.taken.values())
        return self.executor.unflushed_bytes() + names + self.pushes.unflushed_bytes()

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken.with_traceback(None)


def load_state(
    executor: Executor,
    manifest: Manifest,
    pushes: PushKeys,
    outboxes: tuple[Outbox, ...] = (),
    events: Events | None = None,
    tests: tuple[DataTest, ...] = (),
    read: ReadRun | None = None,
) -> State:
    """Load the state that a manifest holds.

    `pushes` belong to the same manifest. `read` is needed to poll sources and to flush.
    """
    executor.load(table_runs(manifest.runs), manifest.described)
    sources = manifest.progress.sources
    counted = {item.view: item.rows for item in manifest.progress.violations}
    for view in {test.violations for test in tests} - counted.keys():
        # A new test: its view was just built, or returns a row even over empty tables.
        counted[view] = executor.pieces(view, _MANY).rows
    return State(
        executor=executor,
        keys=executor.tables(),
        pushes=pushes,
        outboxes=outboxes,
        events=events or Events(),
        transaction=manifest.transaction,
        positions={at.name: at.position for at in sources},
        taken={at.name: TakenNames(at.name, at.taken, read) for at in sources if at.taken},
        read=read,
        dead_letters=Counter({d.table: d.rows for d in manifest.progress.dead_letters}),
        tests=tests,
        violations=Counter({test.violations: counted[test.violations] for test in tests}),
    )


@dataclass(frozen=True, slots=True)
class Done:
    """A transaction that was recorded and applied."""

    transaction: Transaction
    time: datetime
    rows: int
    rejected: tuple[int, ...]
    """The number of dead letters of each intake, in order."""
    tables: Mapping[str, int]
    """The number of dead letters of each table that has any."""
    executed: Executed
    violations: tuple[Violation, ...] = ()
    """The violations of data tests that it added."""


def transact(
    state: State,
    gather: Callable[[], Gathered | None],
    record: Callable[[Gathered], Cursor],
) -> Done | None:
    """Do one transaction; None if `gather` found no input.

    `record` returns the cursor of the entry that closes the transaction.

    If this raises before `record` returned, nothing has happened, unless the journal raised
    `UnknownOutcomeError`. Afterwards it raises `UnknownOutcomeError`, which stays in
    `state.broken`, or an interrupt; opening the pipeline again completes the transaction.
    """
    state.check()
    lap = state.profiles.start()
    gathered = gather()
    if gathered is None:
        return None

    tables = fold_intakes(gathered.intakes, state.keys)
    letters = GatheredLetters(gathered.arrivals, tables)
    changes = {table: folded.change for table, folded in tables.items()}
    lap("gather")
    with _blamed(gathered):
        executed = state.executor.execute(changes, gathered.time, letters)
    if state.on_error == "fail":
        _refuse_bad(gathered, executed)
    if state.gated:
        refuse_violations(state.tests, executed)
    rejected = letters.counts(executed.rejected)
    lap("execute")

    closed = record(gathered)
    lap("record")

    with _promised(state, gathered):
        state.executor.apply(executed)
        counts = _advance(state, gathered, rejected)
        for test in state.tests:
            state.violations[test.violations] += net_change(test, executed)
        lap("apply")
        _publish(state, executed, closed)
        lap("publish")
    return Done(
        gathered.transaction,
        gathered.time,
        gathered.rows,
        rejected,
        counts,
        executed,
        tuple(added_violations(state.tests, executed)),
    )


@contextmanager
def _blamed(gathered: Gathered) -> Iterator[None]:
    """Name the transaction, its view and its input in the error of a query: the user has to find
    the row.
    """
    try:
        yield
    except UserCodeError as error:
        rows: Counter[tuple[str, str]] = Counter()
        for intake in gathered.intakes:
            rows[intake.table, intake.source] += intake.rows
        given = ", ".join(f"{n:,} of {table} from {name}" for (table, name), n in rows.items())
        view = "" if error.about is None else f" by view {error.about}"
        error.message = (
            f"transaction {gathered.transaction} cannot be computed{view}: {error.message} "
            f"(rows of the transaction: {given})"
        )
        raise


def settle(open: Open) -> Kind:
    """Decide about a transaction inside which the journal ends (J4).

    None of its output was published, because output follows the entry that closes a transaction.

    * An automatic transaction is committed as far as it was recorded. Its steps arrived one by one,
      and nothing promised that they become visible together with steps that are missing. (If it
      cannot be computed it is rolled back, as it would have been without the crash; its sources
      can read all of it again.)
    * An explicit transaction is rolled back. Its owner never asked to commit it, and must not see
      half of it. Its sources are rewound to the last transaction that closed.

    The new writer records the decision as its first entry, before it ingests anything: so the
    number of a transaction is reused only after the journal says that its first use is void.
    """
    return Kind.ABORT if open.explicit else Kind.CLOSE


def closing(gathered: Gathered, recorded: int) -> Draft:
    """The entry that closes a transaction of which `recorded` steps are in the journal.

    It contains the last step, if that is not recorded yet.
    """
    fresh = gathered.steps[recorded:]
    ensure(len(fresh) <= 1, "a transaction closes with at most one step that is not recorded")
    return Draft(
        kind=Kind.STEP if fresh else Kind.CLOSE,
        transaction=gathered.transaction,
        step=recorded + 1,
        closes=True,
        time=gathered.time,
        inputs=(*(fresh[0].inputs if fresh else ()), *gathered.closing_lines),
    )


def step_entry(open: Open, step: Step | None, time: datetime) -> Draft:
    """An entry inside a transaction. An explicit one begins with step 0, which has no input."""
    number = 0 if step is None else open.recorded + 1
    inputs = () if step is None else step.inputs
    return Draft(Kind.STEP, open.transaction, number, False, time, inputs)


@contextmanager
def _promised(state: State, gathered: Gathered) -> Iterator[None]:
    """Guard work that must not fail, because the transaction is recorded.

    If it fails, this session is unusable. Callers get another error than the one raised here:
    "invalid" or "fenced" would tell them that nothing was recorded, and they would push the rows
    again (F11).
    """
    try:
        yield
    except BaseException as error:
        # A keyboard interrupt, too.
        state.broken = UnknownOutcomeError(
            f"transaction {gathered.transaction} is recorded in the journal, but was not applied "
            f"here: {getattr(error, 'message', error)}",
            hint="open the pipeline again: it replays the transaction",
        )
        if isinstance(error, Exception):
            raise state.broken from error
        raise


def _advance(state: State, gathered: Gathered, rejected: Sequence[int]) -> Counter[str]:
    """Advance transaction, positions and counts; return the dead letters of each table."""
    ensure(
        gathered.transaction == state.transaction + gathered.together,
        f"transaction {gathered.transaction} comes after {state.transaction}",
    )
    state.transaction = gathered.transaction
    state.open = None
    state.pushes.add(gathered.keys(iter(rejected)), gathered.time)
    counts: Counter[str] = Counter()
    for intake, count in zip(gathered.intakes, rejected, strict=True):
        if intake.source != PUSHED:
            state.positions[intake.source] = intake.position
        if intake.names:
            state.taken_by(intake.source).add(intake.names)
        if count:
            counts[intake.table] += count
    state.dead_letters.update(counts)
    return counts


def _publish(state: State, executed: Executed, closed: Cursor) -> None:
    """Offer the changes to the outboxes. A view that did not change sends nothing (J7)."""
    changed = _changed(executed)
    for outbox in state.outboxes:
        change = changed.get(outbox.sink.view.lower())
        if change is not None and not outbox.new:
            outbox.offer(outbox.mark(state.transaction, closed), change)


def _changed(executed: Executed) -> Mapping[str, AnyChange]:
    return {view.lower(): table for view, table in executed.changes.items() if table.num_rows}


def committed(done: Done, seconds: float = 0.0) -> Committed:
    """The event that reports a transaction, and how long it took."""
    executed = done.executed
    views = tuple(sorted(view for view, change in executed.changes.items() if change.num_rows))
    return Committed(
        done.transaction,
        done.time,
        done.rows,
        sum(done.rejected),
        views,
        tuple(sorted(done.tables)),
        done.violations,
        seconds,
        executed.queries,
    )


def _refuse_bad(gathered: Gathered, executed: Executed) -> None:
    """`on_error: fail` (J13): refuse the transaction, and name its first bad row."""
    hint = (
        "correct it at its source; on_error: dead_letter would reject this row and accept the "
        "others"
    )
    for intake in gathered.intakes:
        for row in intake.bad:
            raise InvalidError(
                f"a row for table {intake.table} cannot be accepted: source {intake.source}, "
                f"{row.where}: {row.reason}: {row.text[:200]}",
                hint=hint,
            )
    for rejected in executed.rejected:
        raise InvalidError(
            f"a row for table {rejected.table} cannot be accepted: {rejected.reason}: "
            f"{rejected.row!r}",
            hint=hint,
        )
