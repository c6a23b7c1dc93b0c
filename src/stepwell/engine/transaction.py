"""One transaction, from input to output: the function that everything goes through.

    gather    what came in: rows, or references to them
    execute   what changes, computed over the state as it is; nothing has changed yet
    record    THE COMMIT POINT: one entry of the journal
    apply     the executor's state, positions and counts move
    publish   into the outbox of every sink whose view changed
    flush     now and then: runs, then a manifest that moves the replay position (`flush.py`)

Before `record` nothing has happened; after it everything will. A crash before leaves the pipeline
as it was, one after is made good by replay, which goes through this same function with `gather`
reading what was recorded and `record` having nothing left to do.

Mostly a transaction is one step, and its entry is the record of both. One of several steps records
each as it comes, without computing anything, and is computed when it closes. Where the journal ends
before that, `settle` is the rule (J4).
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

import pyarrow as pa

from stepwell import threads
from stepwell.engine.data_tests import (
    DataTest,
    Violation,
    added_violations,
    net_change,
    refuse_violations,
)
from stepwell.engine.events import Committed, Events
from stepwell.engine.fold import Keys, fold_intakes
from stepwell.engine.letters import Came, GatheredLetters
from stepwell.engine.outbox import Outbox
from stepwell.engine.payload import PUSHED, Intake, key_line, recorded_key
from stepwell.engine.ports import Executed, Executor
from stepwell.engine.push_keys import Accepted, PushKey, PushKeys, accepted, table_runs
from stepwell.engine.taken_names import Layers, ReadRun, TakenNames
from stepwell.errors import InvalidError, StepwellError, UnknownOutcomeError, ensure
from stepwell.journal.entry import Cursor, Draft, Input, Kind
from stepwell.model import Transaction
from stepwell.state.checkpoint import Checkpoint
from stepwell.state.manifest import Manifest
from stepwell.state.timeline import Timeline
from stepwell.store.sealed import Json

OnError = Literal["dead_letter", "fail"]
_MANY = 10_000
"""Rows of a step that are worth a thread."""


@dataclass(frozen=True, slots=True)
class Step:
    """Input taken at once, and the lines of the journal that record it."""

    intakes: tuple[Intake, ...]
    lines: Callable[[], tuple[Input, ...]]

    @classmethod
    def of(cls, intakes: Sequence[Intake]) -> Step:
        """What came in, to be recorded. `InvalidError` if it cannot be, here or by `inputs`.

        Many rows are summed up and encoded in a thread, while the executor computes with them.
        """
        taken = tuple(intakes)
        if sum(intake.taken.rows for intake in taken) >= _MANY:
            return cls(taken, _begun(partial(_recorded, taken)))
        return cls.recorded(taken, _recorded(taken))

    @classmethod
    def recorded(cls, intakes: tuple[Intake, ...], inputs: tuple[Input, ...]) -> Step:
        """What came in, and how it is recorded, or was."""
        return cls(intakes, lambda: inputs)

    @property
    def inputs(self) -> tuple[Input, ...]:
        return self.lines()

    @property
    def rows(self) -> int:
        return sum(intake.taken.rows for intake in self.intakes)

    @property
    def can_be_read_again(self) -> bool:
        """Whether the rows are somewhere else than in the journal."""
        return all(intake.taken.reference is not None for intake in self.intakes)


def _begun(work: Callable[[], tuple[Input, ...]]) -> Callable[[], tuple[Input, ...]]:
    """Begin work in a thread; what this gives waits for its result."""
    future: Future[tuple[Input, ...]] = Future()

    def run() -> None:
        future.set_result(work())

    try:
        threads.start("stepwell-record", run, failed=future.set_exception)
    except RuntimeError:
        # The process is ending, and starts no threads any more.
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            future.set_exception(error)
    return future.result


def _recorded(intakes: tuple[Intake, ...]) -> tuple[Input, ...]:
    return tuple(intake.record() for intake in intakes)


@dataclass(frozen=True, slots=True)
class Gathered:
    """All steps of a transaction, and its time."""

    transaction: Transaction
    time: datetime
    steps: tuple[Step, ...]
    earlier: tuple[Gathered, ...] = ()
    """Transactions before it that are fed with it: only in replay, where no sink cares."""
    key: PushKey | None = None
    """The key of an explicit transaction."""

    @property
    def together(self) -> int:
        """How many transactions these are."""
        return len(self.earlier) + 1

    @property
    def closing_lines(self) -> tuple[Input, ...]:
        """What the entry that closes it holds beside input."""
        return () if self.key is None else (key_line(self.key),)

    def keys(self, rejected: Iterator[int]) -> Iterator[Accepted]:
        """The keys that are known once it is recorded; `rejected` are the counts of `intakes`."""
        for gathered in self.earlier:
            yield from gathered.keys(rejected)
        for line in chain.from_iterable(step.inputs for step in self.steps):
            count, key = next(rejected), recorded_key(line)
            if key is not None:
                yield accepted(key, self.transaction, count, self.time)
        if self.key is not None:
            yield accepted(self.key, self.transaction, 0, self.time)

    @property
    def intakes(self) -> tuple[Intake, ...]:
        before = chain.from_iterable(gathered.intakes for gathered in self.earlier)
        return (*before, *chain.from_iterable(step.intakes for step in self.steps))

    @property
    def came(self) -> tuple[Came, ...]:
        """The intakes, each with the transaction it came with."""
        before = chain.from_iterable(gathered.came for gathered in self.earlier)
        own = chain.from_iterable(step.intakes for step in self.steps)
        return (*before, *(Came(intake, self.transaction, self.time) for intake in own))

    @property
    def rows(self) -> int:
        before = sum(gathered.rows for gathered in self.earlier)
        return before + sum(step.rows for step in self.steps)


@dataclass(slots=True)
class Open:
    """A transaction whose first steps are recorded and which has not closed yet."""

    transaction: Transaction
    explicit: bool
    steps: list[Step] = field(default_factory=list)
    recorded: int = 0
    """The number of the last entry of it, a step's number."""
    key: PushKey | None = None
    doomed: bool = False
    """It is to be aborted as soon as the journal takes the entry that says so."""
    _names: dict[str, set[str]] = field(default_factory=dict)
    _counted: int = 0
    """How many steps `_names` was gathered from."""

    def names(self, source: str) -> Collection[str]:
        """The names that a source took in its steps."""
        for step in self.steps[self._counted :]:
            for intake in step.intakes:
                if intake.taken.names:
                    self._names.setdefault(intake.source, set()).update(intake.taken.names)
        self._counted = len(self.steps)
        return self._names.get(source, ())

    @property
    def rows(self) -> int:
        return sum(step.rows for step in self.steps)


@dataclass(slots=True)
class State:
    """Everything a transaction moves. One thread at a time uses it."""

    executor: Executor
    keys: Keys
    pushes: PushKeys
    """The keys of pushes that are recorded."""
    outboxes: tuple[Outbox, ...]
    events: Events
    on_error: OnError = "dead_letter"
    transaction: Transaction = Transaction(0)
    """The last one that is recorded."""
    positions: dict[str, Json] = field(default_factory=dict)
    """Where each source stands after it."""
    taken: dict[str, TakenNames] = field(default_factory=dict)
    """What each source that takes things by name has taken up to it."""
    read: ReadRun | None = None
    """Reads a run of names; None in a state that is only looked at."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    tests: tuple[DataTest, ...] = ()
    gated: bool = False
    """Whether tests refuse violations: not during replay, for what is recorded was accepted."""
    violations: Counter[str] = field(default_factory=Counter)
    """How many rows the view of each test holds."""
    open: Open | None = None
    origin: Checkpoint | None = None
    """The checkpoint that this state was loaded from, until a manifest holds it."""
    diverged: Timeline | None = None
    """The timeline that a restore begins, until a manifest names it."""
    broken: StepwellError | None = None
    """Why memory and journal may disagree; only opening again helps."""

    @property
    def next(self) -> Transaction:
        return Transaction(self.transaction + 1)

    def position(self, source: str) -> Json:
        """Where a source stands after everything taken in, also by a transaction still open."""
        for step in reversed(self.open.steps if self.open else []):
            for intake in reversed(step.intakes):
                if intake.source == source:
                    return intake.taken.position
        return self.positions.get(source)

    def names(self, source: str) -> Layers:
        """What a source has taken by name, also for a transaction still open."""
        return Layers(self.taken_by(source), self.open.names(source) if self.open else ())

    def taken_by(self, source: str) -> TakenNames:
        """What a source has taken by name up to the last transaction."""
        if source not in self.taken:
            self.taken[source] = TakenNames(source, (), self.read)
        return self.taken[source]

    def unflushed_bytes(self) -> int:
        """How large the state is that no run holds yet."""
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
    """What a manifest holds, ready for what comes after it.

    `pushes` are of the same manifest. `read`: to poll sources, and to flush.
    """
    executor.load(table_runs(manifest.runs))
    sources = manifest.progress.sources
    counted = {item.view: item.rows for item in manifest.progress.violations}
    for view in {test.violations for test in tests} - counted.keys():
        # The test is new: its view was just built, or a query over empty tables has a row.
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
    """A transaction that is recorded and applied."""

    transaction: Transaction
    time: datetime
    rows: int
    rejected: tuple[int, ...]
    """Of each intake, in order: how many of its rows went to the dead letters."""
    tables: Mapping[str, int]
    """The same for each table that has any."""
    executed: Executed
    violations: tuple[Violation, ...] = ()
    """What it added to data tests."""


def transact(
    state: State,
    gather: Callable[[], Gathered | None],
    record: Callable[[Gathered], Cursor],
) -> Done | None:
    """Do one transaction; None if there was nothing to gather.

    `record` returns the place of the entry that closes it.

    When it raises before `record` returned, nothing has happened, unless the journal says that it
    does not know. When it raises afterwards it is `UnknownOutcomeError`, which is `state.broken`
    from then on, or an interrupt; opening again completes it.
    """
    state.check()
    gathered = gather()
    if gathered is None:
        return None

    came = gathered.came
    tables = fold_intakes(gathered.intakes, state.keys)
    letters = GatheredLetters(came, tables)
    changes = {table: item.folded.change for table, item in tables.items()}
    executed = state.executor.execute(changes, gathered.time, letters)
    if state.on_error == "fail":
        _refuse_bad(gathered, executed)
    if state.gated:
        refuse_violations(state.tests, executed)
    rejected = letters.counts(executed.rejected)

    closed = record(gathered)

    with _promised(state, gathered):
        state.executor.keep(executed)
        counts = _advance(state, gathered, rejected)
        for test in state.tests:
            state.violations[test.violations] += net_change(test, executed)
        _publish(state, executed, closed)
    return Done(
        gathered.transaction,
        gathered.time,
        gathered.rows,
        rejected,
        counts,
        executed,
        tuple(added_violations(state.tests, executed)),
    )


def settle(open: Open) -> Kind:
    """The rule for a journal that ends inside a transaction (J4), and its only place.

    None of its output has left, for output leaves only after the entry that closes it.

    * An automatic one is committed as far as it was recorded. Its steps were taken one by one, and
      nobody promised that they would become visible together with anything that is missing. So
      what was recorded as durable is kept. (If it cannot be computed it is taken back, as it would
      have been without the crash; all of it can be read again.)
    * An explicit one is rolled back. Whoever began it and did not live to commit it has not asked
      for it yet; half of it is what they wanted never to see. Its sources are rewound: their
      positions are those of the last transaction that closed.

    The answer is recorded as the first entry of the new writer, before it takes anything in: so a
    transaction's number is used again only after the journal says that its first use is void.
    """
    return Kind.ABORT if open.explicit else Kind.CLOSE


def closing(gathered: Gathered, recorded: int) -> Draft:
    """The entry that closes a transaction of which so many entries are recorded already.

    Its last step is in the same entry, if it is not recorded yet.
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
    """An entry inside a transaction. An explicit one begins with step 0, which takes nothing in."""
    number = 0 if step is None else open.recorded + 1
    inputs = () if step is None else step.inputs
    return Draft(Kind.STEP, open.transaction, number, False, time, inputs)


@contextmanager
def _promised(state: State, gathered: Gathered) -> Iterator[None]:
    """What must not fail, because it has been recorded. If it does, this process is of no use.

    Whoever waits is not told the error itself: "invalid" or "fenced" would say that nothing was
    recorded, and the rows would be sent again (F11).
    """
    try:
        yield
    except BaseException as error:
        # Also an interrupt from the keyboard.
        state.broken = UnknownOutcomeError(
            f"transaction {gathered.transaction} is recorded in the journal, but was not applied "
            f"here: {getattr(error, 'message', error)}",
            hint="open the pipeline again: it replays the transaction",
        )
        if isinstance(error, Exception):
            raise state.broken from error
        raise


def _advance(state: State, gathered: Gathered, rejected: Sequence[int]) -> Counter[str]:
    """Move on; how many rows of each table were rejected."""
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
            state.positions[intake.source] = intake.taken.position
        if intake.taken.names:
            state.taken_by(intake.source).add(intake.taken.names)
        if count:
            counts[intake.table] += count
    state.dead_letters.update(counts)
    return counts


def _publish(state: State, executed: Executed, closed: Cursor) -> None:
    """Into the outboxes. A view that did not change sends nothing (J7)."""
    changed = _changed(executed)
    for outbox in state.outboxes:
        change = changed.get(outbox.sink.view.lower())
        if change is not None and not outbox.new:
            outbox.offer(outbox.mark(state.transaction, closed), change)


def _changed(executed: Executed) -> Mapping[str, pa.Table]:
    return {view.lower(): table for view, table in executed.changes.items() if table.num_rows}


def committed(done: Done, seconds: float = 0.0) -> Committed:
    """The event that tells of it, and how long it took."""
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
    )


def _refuse_bad(gathered: Gathered, executed: Executed) -> None:
    """`on_error: fail` (J13): name the first row that cannot be taken in; nothing is recorded."""
    hint = "correct it at its source; with on_error: dead_letter the rest would go on"
    for intake in gathered.intakes:
        for row in intake.taken.bad:
            raise InvalidError(
                f"a row for table {intake.table} cannot be taken in: source {intake.source}, "
                f"{row.where}: {row.reason}: {row.text[:200]}",
                hint=hint,
            )
    for rejected in executed.rejected:
        raise InvalidError(
            f"a row for table {rejected.table} cannot be taken in: {rejected.reason}: "
            f"{rejected.row!r}",
            hint=hint,
        )
