"""How far a pipeline has come with the world outside: its sources, its sinks, what is on the way.

It is part of the manifest, so that it moves in the same commit as the runs: a source's position and
the rows taken up to it cannot be told apart by a crash.

    sources       where each stands after the last transaction that the runs hold, and the runs
                  that hold the names it has taken, if it takes things by name
    sinks         the mark of the last transaction each is known to hold
    outbox        files with output that a sink did not hold when the replay position passed it
    dead_letters  how many rows were rejected, by table
    violations    how many rows the views of data tests hold

A manifest in which nothing of this is known lacks the field, as those did that were written before
there were transactions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from stepwell.model import Checksum, Position, Transaction, checksum
from stepwell.state.run_ref import Run, run_from_json, run_to_json
from stepwell.store.sealed import Fields, Json


@dataclass(frozen=True, slots=True)
class SourceAt:
    """Where a source stands: `position` is its own, as JSON."""

    name: str
    position: Json
    taken: tuple[Run, ...] = ()
    """Runs of the names it has taken (`engine/taken_names`): every name in one of them, once."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The mark a sink stores, atomically with the rows of a transaction.

    A number alone does not say whose transaction it is: a copy of a pipeline, or one whose store
    was put back from a backup, uses the same numbers for other output. So the mark names the
    journal entry that closed the transaction, by position and checksum. Entries are a chain, so
    the checksum stands for the whole history before it.

    Output that no entry closed (the first load of a sink, the difference that a restore makes) has
    a checksum derived from the end of the journal: see `mark_without_entry`.
    """

    lineage: str
    timeline: str = field(compare=False)
    """Which history it belongs to, for people: the entry says so for certain."""
    transaction: Transaction
    position: Position
    entry: Checksum

    def __str__(self) -> str:
        return f"transaction {self.transaction} (entry {self.position}, {self.entry[:8]})"


def mark_without_entry(
    lineage: str, timeline: str, transaction: Transaction, tip: tuple[Position, Checksum]
) -> Delivered:
    """The mark of output that no entry of its own stands for.

    `tip` is the end of the journal when the output was made. Such output is in a file that a
    manifest names, with this mark, before any of it is sent: so a crash does not make it again.
    """
    position, end = tip
    entry = checksum([end.encode(), b" without entry ", str(transaction).encode()])
    return Delivered(lineage, timeline, transaction, position, entry)


@dataclass(frozen=True, slots=True)
class SinkAt:
    """A sink of this pipeline, and the mark it is known to hold; None: it holds nothing.

    The mark may be ahead of the manifest's own transaction: a flush during replay notes what the
    sink has said, and the rest of the replay leads up to it.
    """

    name: str
    held: Delivered | None = None

    @property
    def delivered(self) -> Transaction:
        """The last transaction it is known to hold; 0: none."""
        return Transaction(0) if self.held is None else self.held.transaction


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Output of one transaction for one sink, kept in a file until the sink holds it."""

    sink: str
    mark: Delivered
    path: str
    size: int
    checksum: Checksum

    @property
    def transaction(self) -> Transaction:
        return self.mark.transaction


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """How many rows of a table were rejected since the pipeline began."""

    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class Violations:
    """How many rows the view of a data test holds."""

    view: str
    rows: int


@dataclass(frozen=True, slots=True)
class Progress:
    sources: tuple[SourceAt, ...] = ()
    sinks: tuple[SinkAt, ...] = ()
    outbox: tuple[Undelivered, ...] = ()
    dead_letters: tuple[DeadLetters, ...] = ()
    violations: tuple[Violations, ...] = ()


NO_PROGRESS = Progress()


def progress_to_json(progress: Progress) -> dict[str, Json]:
    """As it is stored; `progress_from_json` is its inverse."""
    body = {
        item.name: [_flat(value) for value in getattr(progress, item.name)]
        for item in fields(progress)
    }
    return {**body, "sources": [_source(at) for at in progress.sources]}


def _source(at: SourceAt) -> dict[str, Json]:
    known = {"taken": [run_to_json(run) for run in at.taken]} if at.taken else {}
    return {"name": at.name, "position": at.position, **known}


def mark_to_json(mark: Delivered) -> dict[str, Json]:
    """As manifests and sinks store it; `mark_from_json` is its inverse."""
    return {item.name: getattr(mark, item.name) for item in fields(mark)}


def _flat(value: SourceAt | SinkAt | Undelivered | DeadLetters | Violations) -> dict[str, Json]:
    named = {item.name: getattr(value, item.name) for item in fields(value)}
    return {
        name: mark_to_json(part) if isinstance(part, Delivered) else part
        for name, part in named.items()
    }


def mark_from_json(item: Fields) -> Delivered:
    return Delivered(
        lineage=item.id("lineage"),
        timeline=item.id("timeline"),
        transaction=Transaction(item.number("transaction", least=1)),
        position=Position(item.number("position")),
        entry=Checksum(item.checksum("entry")),
    )


def progress_from_json(body: Fields) -> Progress:
    return Progress(
        sources=tuple(
            SourceAt(
                name=item.text("name"),
                position=item.any("position"),
                taken=tuple(run_from_json(run) for run in item.children("taken"))
                if "taken" in item.names()
                else (),
            )
            for item in body.children("sources")
        ),
        sinks=tuple(
            SinkAt(
                name=item.text("name"),
                held=item.maybe("held", lambda field, at=item: mark_from_json(at.child(field))),  # type: ignore[misc]
            )
            for item in body.children("sinks")
        ),
        outbox=tuple(
            Undelivered(
                sink=item.text("sink"),
                mark=mark_from_json(item.child("mark")),
                path=item.text("path"),
                size=item.number("size"),
                checksum=Checksum(item.checksum("checksum")),
            )
            for item in body.children("outbox")
        ),
        dead_letters=tuple(
            DeadLetters(table=item.text("table"), rows=item.number("rows"))
            for item in body.children("dead_letters")
        ),
        violations=tuple(
            Violations(view=item.text("view"), rows=item.number("rows"))
            for item in body.children("violations")
        ),
    )
