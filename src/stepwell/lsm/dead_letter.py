"""Dead letters: rejected input, stored as rows of the relation `<table>$errors`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from stepwell.lsm.change import Change, PartName, Rejected
from stepwell.lsm.json_rows import json_row

ERRORS = "$errors"

"""Suffix that turns a table's name into the name of its dead letters."""

TEXT_MAX = 10_000

"""Maximum length of the record text in a dead letter, in characters."""

CUT = "… (cut)"

"""Marks the end of a truncated text."""


class Letter(NamedTuple):
    """A dead letter: a row of the relation `<table>$errors`."""

    time: datetime
    """Commit time of the transaction, as recorded in the journal."""
    transaction: int
    source: str
    """The name of the source; `push` for pushed rows."""
    position: str
    """Position of the record: `orders-1.json, line 7`."""
    reason: str
    text: str
    """The record's own text, or the row as JSON if that text is not available."""


LETTER = Letter._fields

LETTER_TYPES = ("timestamp", "bigint", "string", "string", "string", "string")

"""The columns of dead letters, and their SQL types."""

Letters = Callable[[Sequence[Rejected]], Mapping[str, Sequence[Letter]]]

"""Returns the dead letters of a transaction by table, given the rows the executor rejected."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """Input that is not a valid row of its table and becomes a dead letter.

    Its texts are always valid Unicode of bounded length, so the dead letter can be stored.
    """

    where: str
    """Position in the source: `orders-1.json, line 7`."""
    reason: str
    text: str
    """The text of the record, cut to `TEXT_MAX`."""

    def __post_init__(self) -> None:
        for name, length_max in (("where", 5_000), ("reason", 1_000), ("text", TEXT_MAX)):
            text = getattr(self, name)
            sound = cut(text, length_max)
            if not sound.isascii():
                # A lone surrogate cannot be encoded; JSON and file names may contain one. Escaping
                # can lengthen the text, so cut it again, or the text would be cut for the first
                # time when read from the journal.
                sound = cut(sound.encode("utf-8", "backslashreplace").decode(), length_max)
            if sound != text:
                object.__setattr__(self, name, sound)


def cut(text: str, length_max: int) -> str:
    """The text, cut to at most `length_max` characters with a mark at the end."""
    return text if len(text) <= length_max else text[: length_max - len(CUT)] + CUT


def own_text(record: bytes) -> str:
    """The text of a record in a dead letter: its bytes decoded and cut."""
    # A character takes at most four bytes; one more character shows that there is more text.
    return cut(record[: 4 * (TEXT_MAX + 1)].decode(errors="replace"), TEXT_MAX)


def letters_of(changes: Mapping[str, Change], time: datetime) -> Letters:
    """The dead letters of changes whose origin is unknown."""

    def letters(rejected: Sequence[Rejected]) -> dict[str, list[Letter]]:
        made: dict[str, list[Letter]] = {}
        given = {table.lower(): change for table, change in changes.items()}
        for row in rejected:
            change = given[row.table.lower()]
            bad = BadRow(
                place_text(row.part, row.at), row.reason, row_text(change, row.part, row.at)
            )
            letter = Letter(time, 0, "", bad.where, bad.reason, bad.text)
            made.setdefault(row.table, []).append(letter)
        return made

    return letters


def place_text(part: PartName, at: int) -> str:
    return f"row {at + 1}" if part == "put" else f"{part}, row {at + 1}"


def row_text(change: Change, part: PartName, at: int) -> str:
    rows: pa.Table = getattr(change, part)
    return json_row(rows, at, TEXT_MAX)
