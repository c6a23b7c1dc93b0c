"""Which files were taken, for ever, in as few bytes as will do.

New files may sort before old ones, so the last name alone does not tell. Names that differ in a
number only are kept as ranges of numbers (a million of them as one); a range too short to pay, and
any other name, as a mark of eight bytes. A mark can stand for another name by mistake once in 10^14
new files beside a hundred thousand old ones.

A name stays taken when its file is deleted: a directory that is not mounted for a moment looks just
like that, and what comes back must not come in twice.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right
from collections.abc import Iterable

import xxhash

from stepwell.errors import CorruptError
from stepwell.store.sealed import Json

_NUMBER = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)
_MARK_BYTES = 8
_RANGE_LEAST = 4

_Pattern = tuple[str, int, str]
"""What stands before the number, its digits, and what stands after it."""


class TakenNames:
    """A set of names that is written as JSON."""

    def __init__(self) -> None:
        self._ranges: dict[_Pattern, list[tuple[int, int]]] = {}
        self._marks: set[bytes] = set()

    @classmethod
    def from_json(cls, json: Json) -> TakenNames:
        names = cls()
        try:
            for before, digits, after, ends in json["ranges"]:
                pairs = list(zip(ends[::2], ends[1::2], strict=True))
                names._ranges[(str(before), int(digits), str(after))] = pairs
            marks = base64.b64decode(json["marks"], validate=True)
            names._marks = {marks[i : i + _MARK_BYTES] for i in range(0, len(marks), _MARK_BYTES)}
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError("the position of a files source", f"cannot be read: {error}") from (
                error
            )
        return names

    def to_json(self) -> Json:
        ranges, marks = [], set(self._marks)
        for pattern, pairs in sorted(self._ranges.items()):
            long = [pair for pair in pairs if pair[1] - pair[0] + 1 >= _RANGE_LEAST]
            written = [pattern[0], pattern[1], pattern[2], [end for pair in long for end in pair]]
            # A mark is written with 11 characters.
            if len(str(written)) < 11 * sum(last - first + 1 for first, last in long):
                ranges.append(written)
                pairs = [pair for pair in pairs if pair not in long]
            for first, last in pairs:
                marks |= {_mark(_join(pattern, n)) for n in range(first, last + 1)}
        text = base64.b64encode(b"".join(sorted(marks))).decode()
        return {"ranges": ranges, "marks": text}

    def __contains__(self, name: str) -> bool:
        pattern, number = _split(name)
        if pattern is not None and self._has(pattern, number):
            return True
        return bool(self._marks) and _mark(name) in self._marks

    def add(self, name: str) -> None:
        pattern, number = _split(name)
        if pattern is None:
            self._marks.add(_mark(name))
        elif not self._has(pattern, number):
            self._insert(pattern, number)

    def recognise(self, names: Iterable[str]) -> None:
        """Turn marks into numbers again where the names are known: ranges can grow then."""
        for name in names if self._marks else ():
            mark = _mark(name)
            pattern, number = _split(name)
            if mark in self._marks and pattern is not None:
                self._marks.discard(mark)
                if not self._has(pattern, number):
                    self._insert(pattern, number)

    def copy(self) -> TakenNames:
        made = TakenNames()
        made._ranges = {pattern: list(pairs) for pattern, pairs in self._ranges.items()}
        made._marks = set(self._marks)
        return made

    def _has(self, pattern: _Pattern, number: int) -> bool:
        pairs = self._ranges.get(pattern)
        if not pairs:
            return False
        at = bisect_right(pairs, (number, float("inf"))) - 1
        return at >= 0 and number <= pairs[at][1]

    def _insert(self, pattern: _Pattern, number: int) -> None:
        pairs = self._ranges.setdefault(pattern, [])
        at = bisect_right(pairs, (number, float("inf")))
        first, last, start, end = number, number, at, at
        if at > 0 and pairs[at - 1][1] == number - 1:
            first, start = pairs[at - 1][0], at - 1
        if at < len(pairs) and pairs[at][0] == number + 1:
            last, end = pairs[at][1], at + 1
        pairs[start:end] = [(first, last)]


def _split(name: str) -> tuple[_Pattern | None, int]:
    """A name as a pattern and the last number before its endings.

    >>> _split("2026/part-0041.json.bz2")
    (('2026/part-', 4, '.json.bz2'), 41)
    """
    endings = name.find(".", name.rfind("/") + 1)
    stem, rest = (name, "") if endings < 0 else (name[:endings], name[endings:])
    found = _NUMBER.fullmatch(stem)
    if found is None:
        return None, 0
    return (found[1], len(found[2]), found[3] + rest), int(found[2])


def _join(pattern: _Pattern, number: int) -> str:
    return f"{pattern[0]}{number:0{pattern[1]}d}{pattern[2]}"


def _mark(name: str) -> bytes:
    return xxhash.xxh3_64_digest(name.encode("utf-8", "surrogateescape"))
