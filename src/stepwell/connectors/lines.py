"""Cutting a byte stream into pieces of complete records, none larger than requested.

A record ends at a line end; in CSV, only outside of quotes. Text that cannot be a record, because
it is too long or because its quote never closes, is cut out on its own, one line at a time, so that
the records after it are still read.

Memory is bounded by the maximum record size, whatever the stream holds: of a line without an end,
only the beginning is cut, and the rest is skipped block by block (`skip_line`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from stepwell.connectors.json_lines import RECORD_BYTES_MAX
from stepwell.connectors.values import Unfit

_BLOCK = 1 << 20
TOO_LONG = f"a record is longer than {RECORD_BYTES_MAX} bytes"
NEVER_CLOSED = "a quote is opened and never closed"


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of a stream: complete records, or an invalid one with the reason."""

    length: int
    lines: int
    wrong: str | None = None
    inside: bool = False
    """Whether it ends inside an overlong record, whose rest is to be skipped."""


class Stream:
    """A byte stream with lookahead."""

    def __init__(self, file: BinaryIO, at: int = 0, end: int | None = None) -> None:
        self.at = at
        """Number of bytes taken so far."""
        self.ended = False
        self.error: Exception | None = None
        """The decompression error that ended the stream early, if any."""
        self._file = file
        self._left = None if end is None else end - at
        self._buffer = bytearray()

    def look(self, length: int) -> bytearray:
        """At least `length` bytes, unless the stream ends before; they are not taken."""
        while len(self._buffer) < length and not self.ended:
            wanted = max(_BLOCK, length - len(self._buffer))
            if self._left is not None:
                wanted = min(wanted, self._left)
            block = self._read(wanted) if wanted else b""
            self._buffer += block
            if self._left is not None:
                self._left -= len(block)
            self.ended = not block or self._left == 0
        return self._buffer

    def _read(self, length: int) -> bytes:
        try:
            return self._file.read(length)
        except (OSError, pa.ArrowException) as error:
            if getattr(error, "errno", None) is not None:
                raise
            self.error = error
            return b""

    def take(self, length: int) -> bytes:
        taken = bytes(self.look(length)[:length])
        del self._buffer[:length]
        self.at += len(taken)
        return taken

    def close(self) -> None:
        self._file.close()


def cut_records(
    stream: Stream, rows_max: int, bytes_max: int, *, delimiter: str | None = None
) -> Cut:
    """The next piece to take; its length is 0 at the end of the stream. `delimiter` is for CSV.

    At least one record is always taken, however small the limits are.
    """
    wanted = min(_BLOCK, max(bytes_max, 1))
    while True:
        buffer = stream.look(wanted)
        if not buffer:
            return Cut(0, 0)
        seen = bytes(buffer)
        if delimiter is not None:
            seen, unclosed = hide_quoted_line_ends(seen, delimiter)
            if unclosed is not None and stream.ended:
                return _before(seen, unclosed, rows_max)
        full = len(seen) > bytes_max and b"\n" in seen
        if full:
            # Everything that fits, and at least the first record.
            end = seen.rfind(b"\n", 0, bytes_max)
            seen = seen[: (seen.index(b"\n") if end < 0 else end) + 1]
        lines = seen.count(b"\n")
        if lines >= rows_max:
            return Cut(_end_of_line(seen, rows_max), rows_max)
        if full or stream.ended:
            return Cut(len(seen), lines + (not seen.endswith(b"\n")))
        last = seen.rfind(b"\n") + 1
        if lines and len(seen) - last > RECORD_BYTES_MAX:
            return Cut(last, lines)  # The overlong record that follows is cut out on its own.
        if len(seen) - last > RECORD_BYTES_MAX:
            # In CSV, a stray opening quote may hide the line ends.
            end = buffer.find(b"\n") + 1
            return Cut(end, 1, TOO_LONG) if end else Cut(len(buffer), 0, TOO_LONG, inside=True)
        wanted = 2 * len(seen)


def hide_quoted_line_ends(data: bytes, delimiter: str) -> tuple[bytes, int | None]:
    """Replace the line ends inside of quotes; also returns the offset of an unclosed quote.

    >>> hide_quoted_line_ends(b'1,"a\\nb",c"\\n2,"d', ",")
    (b'1,"a b",c"\\n2,"d', 13)
    """
    if b'"' not in data:
        return data, None
    unclosed: int | None = None
    made: list[bytes] = []
    kept = 0
    for quoted in _pattern(delimiter).finditer(data):
        if quoted["close"] is None:
            unclosed = quoted.start()
        if b"\n" in quoted[0]:
            made += [data[kept : quoted.start()], quoted[0].replace(b"\n", b" ")]
            kept = quoted.end()
    return b"".join([*made, data[kept:]]) if made else data, unclosed


_PATTERNS: dict[str, re.Pattern[bytes]] = {}


def _pattern(delimiter: str) -> re.Pattern[bytes]:
    if delimiter not in _PATTERNS:
        start = rb"(?:\A|(?<=[\r\n" + re.escape(delimiter.encode()) + rb"]))"
        _PATTERNS[delimiter] = re.compile(start + rb'"[^"]*(?:""[^"]*)*(?P<close>")?')
    return _PATTERNS[delimiter]


def _before(seen: bytes, unclosed: int, rows_max: int) -> Cut:
    """The lines before the one in which a quote opens; that line itself if it is the first."""
    end = seen.rfind(b"\n", 0, unclosed) + 1
    if end == 0:
        # The line ends are hidden here, so `take_cut` finds the end in the original bytes.
        return Cut(0, 1, NEVER_CLOSED)
    lines = seen.count(b"\n", 0, end)
    if lines > rows_max:
        return Cut(_end_of_line(seen, rows_max), rows_max)
    return Cut(end, lines)


def _end_of_line(data: bytes, number: int) -> int:
    end = 0
    for _ in range(number):
        end = data.index(b"\n", end) + 1
    return end


def take_cut(stream: Stream, cut: Cut) -> bytes:
    """Take the bytes of a cut."""
    if cut.wrong is not None and cut.length == 0:
        # The stream has ended, and the rest of it is in memory.
        left = stream.look(1)
        return stream.take(left.find(b"\n") + 1 or len(left))
    return stream.take(cut.length)


def skip_line(stream: Stream, bytes_max: int) -> Iterator[bytes]:
    """Take the rest of a line, block by block, up to about `bytes_max` bytes.

    The last block ends with the line end, unless the stream or the limit ends first.
    """
    left = max(bytes_max, 1)
    while left > 0:
        buffer = stream.look(1)
        if not buffer:
            return
        end = buffer.find(b"\n") + 1
        block = stream.take(end or min(len(buffer), left))
        yield block
        left -= len(block)
        if end:
            return


def without_quoted(data: bytes, delimiter: str) -> bytes:
    """The bytes without quoted text."""
    return _pattern(delimiter).sub(b"", data)


def records_of(data: bytes, delimiter: str | None) -> Iterator[tuple[int, bytes]]:
    """The records in some data, each with the number of records before it, including empty ones."""
    seen = data if delimiter is None else hide_quoted_line_ends(data, delimiter)[0]
    start = 0
    for number, shown in enumerate(seen.split(b"\n")):
        record = data[start : start + len(shown)]
        if record.strip(b"\r"):
            yield number, record
        start += len(shown) + 1


def check_utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Unfit(f"not UTF-8: byte {error.start + 1} is {value[error.start]:#04x}") from None
