"""Thrift's compact protocol, in which Parquet writes its footer and its page headers.

The reader raises only `ThriftError`, whatever bytes it is given. Every value takes at least one
byte, so all loops end.
"""

from __future__ import annotations

from collections.abc import Iterator

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)
_WIDTHS = {TRUE: 0, FALSE: 0, BYTE: 1, DOUBLE: 8, UUID: 16}
"""Widths of fixed-width values; the type of a field encodes whether it is true or false."""
_DEPTH_MAX = 16


class ThriftError(ValueError):
    """A value that cannot be read."""


class TooShortError(ThriftError):
    """The data ends inside a value."""


class Compact:
    """Reads a value after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """The number and type of each field of a struct; the caller reads or skips its value."""
        field = 0
        while True:
            byte = self._byte()
            if byte & 0x0F == 0:
                return
            delta = byte >> 4
            field = field + delta if delta else self.integer()
            yield field, byte & 0x0F

    def integer(self) -> int:
        """A number of 32 bits."""
        number = self._varint() & 0xFFFFFFFF
        return (number >> 1) ^ -(number & 1)

    def long(self) -> int:
        """A number of 64 bits."""
        number = self._varint() & 0xFFFFFFFFFFFFFFFF
        return (number >> 1) ^ -(number & 1)

    def text(self) -> str:
        length = self._varint()
        self._pass(length)
        return self._data[self.at - length : self.at].decode(errors="replace")

    def items(self) -> tuple[int, int]:
        """The number and the type of the items of a list; the caller reads or skips each."""
        byte = self._byte()
        return byte >> 4 if byte >> 4 < 15 else self._varint(), byte & 0x0F

    def first_integer(self) -> int:
        """Field 1 of a struct, skipping the other fields; -1 if it is absent."""
        found = -1
        for field, kind in self.fields():
            if field == 1 and kind == I32:
                found = self.integer()
            else:
                self.skip(kind)
        return found

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _DEPTH_MAX:
            raise ThriftError("nested too deeply")
        if kind in _WIDTHS:
            self._pass(_WIDTHS[kind])
        elif kind in (I16, I32, I64):
            self._varint()
        elif kind == BINARY:
            self._pass(self._varint())
        elif kind in (LIST, SET):
            self._skip_list(depth)
        elif kind == MAP:
            self._skip_map(depth)
        elif kind == STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        else:
            raise ThriftError(f"a field of type {kind}")

    def _skip_list(self, depth: int) -> None:
        count, kind = self.items()
        self._skip_items(count, (kind,), depth)

    def _skip_map(self, depth: int) -> None:
        count = self._varint()
        if count:
            byte = self._byte()
            self._skip_items(count, (byte >> 4, byte & 0x0F), depth)

    def _skip_items(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(count):
            for kind in kinds:
                # Unlike a field, a boolean item takes a byte.
                self.skip(BYTE if kind in (TRUE, FALSE) else kind, depth + 1)

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ThriftError("a number of more than ten bytes")

    def _byte(self) -> int:
        self._pass(1)
        return self._data[self.at - 1]

    def _pass(self, count: int) -> None:
        if self.at + count > len(self._data):
            raise TooShortError
        self.at += count
