"""The reference to a run in a manifest: one immutable file of one relation, in any store."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.model import Checksum
from stepwell.store.records import Kind, Record, anything, checksum, number, omitted, text, ulid
from stepwell.store.sealed import Fields, Json


@dataclass(frozen=True, slots=True)
class Run:
    """One immutable file of one relation. The key range lets a reader skip it."""

    relation: str
    path: str
    size: int
    rows: int
    checksum: Checksum
    low: Json = None
    high: Json = None
    root: str | None = None
    """The store of the file, if it is another pipeline's, such as a clone's parent."""
    group: str | None = None
    """The common id of the files of one run, if it has several."""
    columns: tuple[int | None, ...] | None = None
    """For each column of the relation, its index in the file, or None if the file lacks it and it
    is NULL. Set if the table's columns have changed since the file was written.
    """


def _places(body: Fields, name: str) -> tuple[int | None, ...]:
    found = body.any(name)
    if not isinstance(found, list) or not all(
        place is None or (type(place) is int and place >= 0) for place in found
    ):
        raise body.wrong(name, "a list of places and nulls")
    return tuple(found)


RUN = Record(
    Run,
    relation=text,
    path=text,
    size=number,
    rows=number,
    checksum=checksum,
    low=anything,
    high=anything,
    root=omitted(text),
    group=omitted(ulid),
    columns=omitted(Kind(_places, list)),
)
