"""Replay: recorded transactions go through the same function as new ones.

Inputs, boundaries and times are the recorded ones (J2). The input of every transaction is
checksummed per source and compared with the journal before anything is computed from it (J5).

If no sink needs the output, consecutive transactions are computed as one: the state is the same,
and the executor is called once. `fold` makes sure that a delete matches a row exactly if it did
originally. A transaction whose columns have other types begins a new batch, because its rows could
not be compared with earlier ones.

After a crash during replay, the next opening continues from the last flush.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from stepwell.engine.bulk import BulkReader
from stepwell.engine.events import Replayed
from stepwell.engine.intakes import Alike
from stepwell.engine.payload import checksum_intake, read_again, recorded_key
from stepwell.engine.ports import Intake
from stepwell.engine.sources import Sources
from stepwell.engine.transaction import Gathered, Open, State, Step, transact
from stepwell.errors import CorruptError, ReplayMismatchError
from stepwell.journal.entry import Cursor, Draft, Input, Kind, Recorded
from stepwell.lsm.checksum import add_checksums
from stepwell.model import Checksum, Transaction


@dataclass(frozen=True, slots=True)
class Sum:
    """Row count and checksum of one source in one transaction."""

    rows: int
    checksum: Checksum

    def __str__(self) -> str:
        return f"{self.rows} rows with checksum {self.checksum}"


class Replay:
    """Replays entries into a state: `feed` every entry in order, then `finish`."""

    def __init__(
        self,
        state: State,
        sources: Sources,
        *,
        rows_max: int,
        fed: Callable[[Cursor], None] = lambda cursor: None,
    ) -> None:
        """`rows_max` bounds a batch. `fed` is called with each cursor that memory has reached."""
        self._state = state
        self._sources = sources
        self._rows_max = rows_max
        self._fed = fed
        self._drafts: list[Draft] = []
        self._waiting: list[tuple[Gathered, Cursor]] = []
        """Transactions that will be computed together."""
        self._rows = 0
        self._alike = Alike()
        self._wanted = False
        self._cursor: Cursor | None = None
        self.transactions = 0

    def feed(self, recorded: Recorded) -> None:
        """Feed one entry. A step counts as consumed only with its transaction (J3)."""
        draft = recorded.entry.draft
        self._check(recorded)
        self._wanted = False
        if draft.kind is Kind.ABORT:
            self._drafts = []
        elif draft.kind is Kind.CLOSE:
            self._close(recorded)
        else:
            self._drafts.append(draft)
            if draft.closes:
                self._close(recorded)
        if self._drafts:
            return
        # Only now: a batch that was computed before this entry does not reach up to it.
        self._cursor = recorded.cursor
        if self._wanted:
            self._feed_waiting()
        elif not self._waiting:
            self._fed(recorded.cursor)

    def finish(self) -> Open | None:
        """Compute the last batch; return the transaction inside which the journal ends, if any.

        The input of an automatic transaction is read and compared; that of an explicit one is not.
        """
        self._feed_waiting()
        if not self._drafts:
            return None
        first, last = self._drafts[0], self._drafts[-1]
        open = Open(first.transaction, explicit=first.step == 0, recorded=last.step)
        if not open.explicit:
            open.steps = list(self._read(first.transaction))
        return open

    def _check(self, recorded: Recorded) -> None:
        """Check the recorded boundaries: entries may be lost, or written by a bug."""
        draft = recorded.entry.draft
        where = f"journal entry {recorded.entry.position}"
        expected = self._next()
        if draft.transaction != expected:
            raise CorruptError(
                where,
                f"belongs to transaction {draft.transaction}, but {expected} comes next",
                field="transaction",
            )
        begun = [item.step for item in self._drafts]
        allowed = {begun[-1] + 1} if begun else {0, 1}
        if draft.step not in allowed or (not begun and draft.kind is not Kind.STEP):
            raise CorruptError(
                where,
                f"is {draft.kind.value} {draft.step} of its transaction, after {begun or 'none'}",
                field="step",
            )

    def _next(self) -> Transaction:
        return Transaction(self._state.transaction + len(self._waiting) + 1)

    def _close(self, recorded: Recorded) -> None:
        last = recorded.entry.draft
        steps = self._read(last.transaction)
        # The entry that closes an explicit transaction has no input, but perhaps its key.
        lines = last.inputs if last.kind is Kind.CLOSE else ()
        key = next(filter(None, map(recorded_key, lines)), None)
        gathered = Gathered(last.transaction, last.time, steps, key=key)
        self._drafts = []
        self.transactions += 1
        self._wanted = any(outbox.wants(last.transaction) for outbox in self._state.outboxes)
        rows = gathered.rows
        full = self._rows + rows > self._rows_max
        if self._waiting and (self._wanted or full or not self._alike.takes(gathered.intakes)):
            self._feed_waiting()
        if not self._waiting and not self._alike.takes(gathered.intakes):
            # Its own intakes do not match each other: nothing is added to this batch.
            self._rows = self._rows_max
        self._waiting.append((gathered, recorded.cursor))
        self._rows += rows

    def _feed_waiting(self) -> None:
        waiting, self._waiting, self._rows, self._alike = self._waiting, [], 0, Alike()
        if not waiting:
            return
        last, closed = waiting[-1]
        gathered = replace(last, earlier=tuple(gathered for gathered, _ in waiting[:-1]))
        transact(self._state, lambda: gathered, lambda gathered: closed)
        event = Replayed(gathered.transaction, gathered.together, gathered.rows)
        self._state.events.emit(event)
        if self._cursor is not None:
            self._fed(self._cursor)

    def _read(self, transaction: Transaction) -> tuple[Step, ...]:
        """Read the steps again, and compare them with the journal."""
        steps = []
        alone = sum(len(draft.inputs) for draft in self._drafts if draft.step) == 1
        for draft in self._drafts:
            if draft.step:
                bulk = self._state.bulk if alone else None
                intakes = tuple(self._read_input(transaction, item, bulk) for item in draft.inputs)
                steps.append(Step.recorded(intakes, draft.inputs))
        recorded = [item for step in steps for item in step.inputs]
        found = [intake for step in steps for intake in step.intakes]
        compare(transaction, sum_inputs(recorded), sum_intakes(found))
        return tuple(steps)

    def _read_input(self, transaction: Transaction, item: Input, bulk: BulkReader | None) -> Intake:
        try:
            return read_again(item, self._sources.get(item.source), bulk)
        except ReplayMismatchError as error:
            raise ReplayMismatchError(
                f"transaction {transaction}, source {item.source}: {error.message}",
                hint=error.hint,
            ) from error


def compare(
    transaction: Transaction, recorded: Mapping[str, Sum], found: Mapping[str, Sum]
) -> None:
    """Raise `ReplayMismatchError` at the first source that differs (J5)."""
    hint = (
        "an input was changed, truncated or removed after it was read. Nothing of this "
        "transaction was published; restore the input and open the pipeline again"
    )
    for source in sorted({*recorded, *found}):
        before, now = recorded.get(source), found.get(source)
        if before == now:
            continue
        if before is None or now is None:
            side = "replay, but not in the journal" if before is None else "the journal only"
            raise ReplayMismatchError(
                f"transaction {transaction}: source {source} is in {side} ({before or now})",
                hint=hint,
            )
        raise ReplayMismatchError(
            f"transaction {transaction}: source {source} recorded {before}, replay found {now}",
            hint=hint,
        )


def sum_inputs(inputs: Iterable[Input]) -> dict[str, Sum]:
    return _sums((item.source, Sum(item.rows, item.checksum)) for item in inputs)


def sum_intakes(intakes: Iterable[Intake]) -> dict[str, Sum]:
    return _sums((intake.source, Sum(intake.rows, checksum_intake(intake))) for intake in intakes)


def _sums(parts: Iterable[tuple[str, Sum]]) -> dict[str, Sum]:
    sums: dict[str, Sum] = {}
    for source, part in parts:
        so_far = sums.get(source)
        sums[source] = (
            part
            if so_far is None
            else Sum(so_far.rows + part.rows, add_checksums([so_far.checksum, part.checksum]))
        )
    return sums
