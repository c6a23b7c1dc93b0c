"""Standard output of commands: lines, facts, tables, or one JSON document.

A table fits the terminal: a text that does not fit into its row goes below it. In a pipe every row
is one line, however long, so that `grep` and `awk` see all of it. Colour only repeats the words;
there is none in a pipe or with NO_COLOR.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

GAP = "  "


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: cells in columns, and a last text that may be long."""

    cells: tuple[str, ...]
    tail: str = ""
    style: str = ""


class Screen:
    """Standard output. `width` is None if lines may have any length."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        # Asked of the stream itself: FORCE_COLOR makes rich assume a terminal where there is none.
        self.width = self._console.width if sys.stdout.isatty() else None

    def json(self, document: object) -> None:
        print(json.dumps(document, indent=2, ensure_ascii=False, default=str))

    def line(self, text: str = "", style: str = "") -> None:
        # Without a style there is nothing for rich to do, and `print` does not break lines.
        if style:
            self._console.print(Text(text, style=style), soft_wrap=True)
        else:
            print(text, flush=True)

    def paragraph(self, text: str, *, first: str = "", indent: str = "", style: str = "") -> None:
        """Print text, wrapped in a terminal, with `first` before its first line."""
        for number, line in enumerate(self._wrapped(text, len(first or indent))):
            self.line((first if first and not number else indent or " " * len(first)) + line, style)

    def facts(self, facts: Iterable[tuple[str, str]], *, indent: str = "") -> None:
        """Print names and values, one pair per line."""
        known = list(facts)
        width = max(len(name) for name, _ in known)
        for name, text in known:
            label = f"{indent}{name:<{width}}{GAP}"
            self.paragraph(text, first=label)

    def table(self, headings: Sequence[str], rows: Sequence[Row]) -> None:
        """Print rows under headings; the last heading is that of the tail. `>name` aligns right."""
        *columns, tail = headings
        names = tuple(column.removeprefix(">") for column in columns)
        widths = [
            max(len(text) for text in column)
            for column in zip(names, *(row.cells for row in rows), strict=True)
        ]
        right = [column.startswith(">") for column in columns]

        def aligned(cells: tuple[str, ...]) -> str:
            cut = zip(cells, widths, right, strict=True)
            return GAP.join(f"{c:>{w}}" if r else f"{c:<{w}}" for c, w, r in cut)

        room = None if self.width is None else self.width - sum(widths) - len(GAP) * len(widths)
        fits = room is None or all(len(row.tail) <= room for row in rows)
        heading = aligned(names) + (GAP + tail if fits and any(row.tail for row in rows) else "")
        below = sum(widths[:2]) + 2 * len(GAP)
        self.line(heading.rstrip(), "bold")
        for row in rows:
            line = aligned(row.cells)
            if fits:
                self.line((line + GAP + row.tail).rstrip(), row.style)
            else:
                self.line(line.rstrip(), row.style)
                if row.tail:
                    self.paragraph(row.tail, indent=" " * below, style=row.style)

    def _wrapped(self, text: str, used: int) -> list[str]:
        if self.width is None:
            return [text]
        room = max(20, self.width - used)
        # A path or a checksum that is split cannot be copied.
        return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def plain(text: str) -> str:
    """Escape control characters in text from stored bytes: a terminal would obey them.

    >>> plain("a" + chr(27) + "[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def count(number: int, noun: str, nouns: str | None = None) -> str:
    """Format a number with its noun.

    >>> count(1, "row"), count(1200, "row"), count(2, "entry", "entries")
    ('1 row', '1,200 rows', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def size(number: int) -> str:
    """Format a number of bytes in about six characters.

    >>> [size(n) for n in (0, 999, 1500, 15_000, 3_400_000)]
    ['0 B', '999 B', '1.5 KB', '15 KB', '3.4 MB']
    """
    value, unit = float(number), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 10 and unit != "B" else f"{value:.0f} {unit}"


def span(numbers: Sequence[int]) -> str:
    """Format the first and the last of a sequence of numbers.

    >>> span([3]), span([3, 4, 9])
    ('3', '3 to 9')
    """
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
