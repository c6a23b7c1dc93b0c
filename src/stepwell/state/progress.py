"""How far a pipeline has come with the world outside: its sources, its sinks, what is on the way.

It is part of the manifest, so that it moves in the same commit as the runs: a source's position and
the rows taken up to it cannot be told apart by a crash.

    sources       where each stands after the last transaction that the runs hold
    sinks         the last transaction each is known to hold
    outbox        files with output that a sink did not hold when the replay position passed it
    dead_letters  how many rows were rejected, by table

A manifest in which nothing of this is known lacks the field, as those did that were written before
there were transactions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from stepwell.model import Checksum, Transaction
from stepwell.store.sealed import Fields, Json


@dataclass(frozen=True, slots=True)
class SourceAt:
    """Where a source stands: `position` is its own, as JSON."""

    name: str
    position: Json


@dataclass(frozen=True, slots=True)
class SinkAt:
    """A sink of this pipeline, and the last transaction it is known to hold; 0: none."""

    name: str
    delivered: Transaction


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Output of one transaction for one sink, kept in a file until the sink holds it."""

    sink: str
    transaction: Transaction
    path: str
    size: int
    checksum: Checksum


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """How many rows of a table were rejected since the pipeline began."""

    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class Progress:
    sources: tuple[SourceAt, ...] = ()
    sinks: tuple[SinkAt, ...] = ()
    outbox: tuple[Undelivered, ...] = ()
    dead_letters: tuple[DeadLetters, ...] = ()


NO_PROGRESS = Progress()


def progress_to_json(progress: Progress) -> dict[str, Json]:
    """As it is stored; `progress_from_json` is its inverse."""
    return {
        item.name: [_flat(value) for value in getattr(progress, item.name)]
        for item in fields(progress)
    }


def _flat(value: SourceAt | SinkAt | Undelivered | DeadLetters) -> dict[str, Json]:
    return {item.name: getattr(value, item.name) for item in fields(value)}


def progress_from_json(body: Fields) -> Progress:
    return Progress(
        sources=tuple(
            SourceAt(name=item.text("name"), position=item.any("position"))
            for item in body.children("sources")
        ),
        sinks=tuple(
            SinkAt(name=item.text("name"), delivered=Transaction(item.number("delivered")))
            for item in body.children("sinks")
        ),
        outbox=tuple(
            Undelivered(
                sink=item.text("sink"),
                transaction=Transaction(item.number("transaction", least=1)),
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
    )
