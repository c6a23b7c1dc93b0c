"""Dataclasses as JSON objects: one declaration of the fields serves both writing and reading.

    RUN = Record(Run, relation=text, path=text, size=number, group=omitted(ulid))

Fields are declared and written in the order of the dataclass. An unreadable value raises
`CorruptError`, which names the object and the field (`Fields`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from typing import Any, Generic, TypeVar

from stepwell.errors import ensure
from stepwell.model import format_time
from stepwell.store.sealed import Fields, Json

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """How to read a field from an object, and how to write its value."""

    read: Callable[[Fields, str], Any]
    write: Callable[[Any], Json] | None = None
    """None writes the value unchanged."""
    omitted: bool = False


text = Kind(Fields.text)
flag = Kind(Fields.flag)
number = Kind(Fields.number)
time = Kind(Fields.time, format_time)
ulid = Kind(Fields.id)
checksum = Kind(Fields.checksum)
anything = Kind(Fields.any)


def at_least(least: int) -> Kind:
    return Kind(lambda body, name: body.number(name, least=least))


def nullable(kind: Kind) -> Kind:
    """A value that may be None, written as null."""
    write = kind.write
    return Kind(
        lambda body, name: body.maybe(name, lambda field: kind.read(body, field)),
        None if write is None else lambda value: None if value is None else write(value),
    )


def omitted(kind: Kind) -> Kind:
    """A value that is left out while it equals the default of its field."""
    return replace(kind, omitted=True)


def choice(values: Sequence[str]) -> Kind:
    """One of these texts."""

    def read(body: Fields, name: str) -> str:
        value = body.text(name)
        if value not in values:
            raise body.wrong(name, "one of " + ", ".join(values))
        return value

    return Kind(read)


def member(kind: type[Enum]) -> Kind:
    """A member of an enumeration, stored as its value."""
    known = {item.value: item for item in kind}
    value = choice(list(known))
    return Kind(lambda body, name: known[value.read(body, name)], lambda item: item.value)


def _names(body: Fields, name: str) -> tuple[str, ...]:
    found = body.any(name)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise body.wrong(name, "a list of names")
    return tuple(found)


def _texts(body: Fields, name: str) -> dict[str, str]:
    found = body.any(name)
    if not isinstance(found, dict) or not all(isinstance(item, str) for item in found.values()):
        raise body.wrong(name, "names with texts")
    return found


names = Kind(_names, list)
texts = Kind(_texts, dict)


class Record(Generic[T]):
    """The JSON form of a dataclass."""

    def __init__(self, kind: type[T], *, without: Collection[str] = (), **kinds: Kind) -> None:
        """Fields in `without` are not stored here: `read` gets them, or they have a default."""
        declared = [item for item in fields(kind) if item.name not in without]  # type: ignore[arg-type]
        ensure(list(kinds) == [item.name for item in declared], f"{kind.__name__} is complete")
        self._kind = kind
        self._kinds = kinds
        self._reads = [(name, kind.read, kind.omitted) for name, kind in kinds.items()]
        self._defaults: dict[str, Any] = {}
        for item in declared:
            if kinds[item.name].omitted:
                make = item.default_factory
                ensure(
                    item.default is not MISSING or make is not MISSING,
                    f"{kind.__name__}.{item.name} has a default",
                )
                self._defaults[item.name] = item.default if make is MISSING else make()

    def write(self, value: T) -> dict[str, Json]:
        body = {}
        for name, kind in self._kinds.items():
            part = getattr(value, name)
            if kind.omitted and part == self._defaults[name]:
                continue
            body[name] = part if kind.write is None else kind.write(part)
        return body

    def read(self, body: Fields, **given: Any) -> T:
        for name, read, omitted in self._reads:
            if not omitted or body.has(name):
                given[name] = read(body, name)
        return self._kind(**given)


def one(record: Record[Any]) -> Kind:
    return Kind(lambda body, name: record.read(body.child(name)), record.write)


def many(record: Record[Any]) -> Kind:
    return Kind(
        lambda body, name: tuple(map(record.read, body.children(name))),
        lambda values: [record.write(value) for value in values],
    )
