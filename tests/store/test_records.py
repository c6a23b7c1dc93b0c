"""Records: one declaration writes a dataclass as JSON and reads it back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest

from stepwell.errors import BugError, CorruptError
from stepwell.store import records
from stepwell.store.records import Record, many, nullable, omitted, one
from stepwell.store.sealed import Fields


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Part:
    id: str
    size: int


@dataclass(frozen=True)
class Thing:
    name: str
    colour: Colour
    made: datetime
    best: Part | None
    parts: tuple[Part, ...]
    tags: tuple[str, ...] = ()
    note: str | None = None


PART = Record(Part, id=records.ulid, size=records.at_least(1))
THING = Record(
    Thing,
    name=records.text,
    colour=records.member(Colour),
    made=records.time,
    best=nullable(one(PART)),
    parts=many(PART),
    tags=omitted(records.names),
    note=omitted(records.text),
)
ID = "01KDVDNA001HEAD8X4A1JH69RE"
FULL = Thing(
    *("a", Colour.BLUE, datetime(2026, 1, 2, tzinfo=UTC), Part(ID, 1)),
    *((Part(ID, 2), Part(ID, 3)), ("x",), "n"),
)
BARE = Thing("b", Colour.RED, FULL.made, None, ())


@pytest.mark.parametrize("thing", [FULL, BARE])
def test_what_is_written_is_read_again(thing: Thing) -> None:
    """K2: a field that is written one way and read another way is lost at the next restart."""
    stored = json.loads(json.dumps(THING.write(thing)))
    assert THING.read(Fields(stored, "object")) == thing


def test_fields_are_written_in_the_order_of_the_dataclass() -> None:
    """Stored bytes are compared and checksummed, so an order that changes is another object.

    A field with `nullable` is written as null, one with `omitted` is left out.
    """
    assert list(THING.write(FULL)) == ["name", "colour", "made", "best", "parts", "tags", "note"]
    assert list(THING.write(BARE)) == ["name", "colour", "made", "best", "parts"]
    assert THING.write(BARE)["best"] is None


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"name": 1}, "name", "expected text, found 1"),
        ({"colour": "pink"}, "colour", "expected one of red, blue"),
        ({"made": "today"}, "made", "expected a UTC time"),
        ({"best": []}, "best", "expected an object"),
        ({"best": {"id": ID, "size": 0}}, "best.size", "a whole number of at least 1"),
        ({"parts": [{"id": ID, "size": 1}, {"size": 1}]}, "parts[1].id", "missing"),
        ({"tags": [1]}, "tags", "expected a list of names"),
        ({"note": None}, "note", "expected text, found null"),
    ],
)
def test_damage_is_named_by_object_and_field(
    change: dict[str, Any], field: str, expected: str
) -> None:
    """K2: to repair a store, a user must know which object to look at, and where in it."""
    with pytest.raises(CorruptError) as caught:
        THING.read(Fields({**THING.write(FULL), **change}, "object"))
    assert caught.value.field == field
    assert expected in str(caught.value)
    assert "object" in str(caught.value)


def test_a_record_that_leaves_out_a_field_is_refused_when_it_is_declared() -> None:
    """K2: a new field of the dataclass that nobody declares would silently not be stored."""
    with pytest.raises(BugError):
        Record(Part, id=records.ulid)
    with pytest.raises(BugError):
        Record(Part, size=records.number, id=records.ulid)
    with pytest.raises(BugError):
        Record(Part, id=records.ulid, size=omitted(records.number))
