"""Sealed JSON: every JSON object that Stepwell stores carries its checksum and a format.

    {"checksum":"<32 hex digits>","format":"stepwell-manifest/5",...}

The first 45 bytes are the seal. They keep this shape in all future versions. The checksum covers
every byte after the seal, so any byte changed, cut off or added is detected before the JSON is
parsed (K2). Because the seal is checked first, an unknown format is distinguished from damage
(J12). `Fields` then reads the parsed object field by field, with types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from stepwell.errors import CorruptError, InvalidError
from stepwell.model import checksum, is_checksum, is_ulid, parse_time
from stepwell.store.base import Store

Json = Any
T = TypeVar("T")

_HEAD = b'{"checksum":"'
_DIGITS = 32
_BODY = len(_HEAD) + _DIGITS


def seal(format: str, fields: Mapping[str, Json]) -> bytes:
    """Encode an object of the given format; equal fields always give equal bytes."""
    text = json.dumps({"format": format, **fields}, separators=(",", ":"), ensure_ascii=False)
    body = b'",' + text[1:].encode()
    return _HEAD + checksum([body]).encode() + body


def unseal(data: bytes, *, format: str, object: str) -> Fields:
    """Check the seal, then the format, and return the fields."""
    found = data[len(_HEAD) : _BODY].decode("ascii", "replace")
    if not data.startswith(_HEAD) or not is_checksum(found):
        raise CorruptError(object, f"not a sealed JSON object: it starts with {data[:16]!r}")
    computed = checksum([memoryview(data)[_BODY:]])
    if found != computed:
        raise CorruptError(
            object,
            f"stored checksum is {found}, computed {computed} over {len(data)} bytes",
            field="checksum",
        )
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptError(object, f"not JSON: {error}") from error
    fields = Fields(content, object)
    check_format(fields.text("format"), format, object)
    return fields


def read_sealed(store: Store, path: str, format: str) -> tuple[Fields, str] | None:
    """Read the fields and the etag of a stored object; None if it is absent."""
    return reread(lambda: _read_sealed(store, path, format))


def _read_sealed(store: Store, path: str, format: str) -> tuple[Fields, str] | None:
    found = store.get(path)
    if found is None:
        return None
    return unseal(found.data, format=format, object=f"{store.uri}/{path}"), found.etag


def reread(read: Callable[[], T]) -> T:
    """Read, and once more if damaged: a body cut off in transit is not a damaged object."""
    try:
        return read()
    except CorruptError:
        return read()


def check_format(found: str, expected: str, object: str) -> None:
    """Check a format, `stepwell-<what>/<version>`; a version mismatch is reported with both."""
    if found == expected:
        return
    kind, _, version = expected.partition("/")
    found_kind, _, found_version = found.partition("/")
    if found_kind != kind or not found_version.isdecimal():
        raise CorruptError(object, f"expected {expected!r}, found {found!r}", field="format")
    raise InvalidError(
        f"{object} has {kind} format {found_version}; this Stepwell reads format {version}",
        hint="upgrade Stepwell on this machine: pip install --upgrade stepwell"
        if int(found_version) > int(version)
        else "read it with the version of Stepwell that wrote it",
    )


class Fields:
    """A parsed JSON object whose fields are read by type; errors name the object and the field."""

    __slots__ = ("_content", "_index", "_parent", "_place", "object")

    # A manifest has thousands of fields, so the path of each is put together only for an error, and
    # the usual types are tested without further calls.

    def __init__(
        self,
        content: Json,
        object: str,
        place: str = "",
        parent: Fields | None = None,
        index: int | None = None,
    ) -> None:
        self.object = object
        self._place = place
        self._parent = parent
        self._index = index
        if not isinstance(content, dict):
            raise CorruptError(
                object, f"expected an object, found {_short(content)}", field=self._path or None
            )
        self._content = content

    def text(self, name: str) -> str:
        value = self._content.get(name)
        return value if type(value) is str else self._typed(name, str, "text")

    def flag(self, name: str) -> bool:
        return self._typed(name, bool, "true or false")

    def number(self, name: str, *, least: int = 0) -> int:
        value = self._content.get(name)
        if type(value) is int and value >= least:
            return value
        self._value(name)
        raise self.wrong(name, f"a whole number of at least {least}")

    def numbers(self, name: str) -> tuple[int, ...]:
        items = self._typed(name, list, "a list")
        if not all(type(item) is int and item >= 0 for item in items):
            raise self.wrong(name, "a list of whole numbers of at least 0")
        return tuple(items)

    def time(self, name: str) -> datetime:
        return self._parsed(name, parse_time, "a UTC time")

    def id(self, name: str) -> str:
        value = self.text(name)
        if not is_ulid(value):
            raise self.wrong(name, "a ULID")
        return value

    def checksum(self, name: str) -> str:
        value = self.text(name)
        if not is_checksum(value):
            raise self.wrong(name, "a checksum of 32 hex digits")
        return value

    def names(self) -> tuple[str, ...]:
        return tuple(self._content)

    def has(self, name: str) -> bool:
        return name in self._content

    def any(self, name: str) -> Json:
        return self._value(name)

    def child(self, name: str) -> Fields:
        return Fields(self._value(name), self.object, name, self)

    def children(self, name: str) -> tuple[Fields, ...]:
        items = self._typed(name, list, "a list")
        return tuple(
            Fields(item, self.object, name, self, index) for index, item in enumerate(items)
        )

    def maybe(self, name: str, read: Callable[[str], T]) -> T | None:
        """None if the field is null; otherwise the result of `read`, a method of this object."""
        return None if self._value(name) is None else read(name)

    def wrong(self, name: str, expected: str) -> CorruptError:
        found = _short(self._content.get(name))
        return CorruptError(
            self.object, f"expected {expected}, found {found}", field=self._name(name)
        )

    def _typed(self, name: str, kind: type[T], expected: str) -> T:
        value = self._value(name)
        if not isinstance(value, kind):
            raise self.wrong(name, expected)
        return value

    def _parsed(self, name: str, parse: Callable[[str], T], expected: str) -> T:
        try:
            return parse(self.text(name))
        except ValueError as error:
            raise self.wrong(name, expected) from error

    def _value(self, name: str) -> Json:
        if name not in self._content:
            raise CorruptError(self.object, "missing", field=self._name(name))
        return self._content[name]

    @property
    def _path(self) -> str:
        path = self._place if self._parent is None else self._parent._name(self._place)
        return path if self._index is None else f"{path}[{self._index}]"

    def _name(self, name: str) -> str:
        return f"{path}.{name}" if (path := self._path) else name


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."
