"""The options of a source or sink in stepwell.yml, read by name and by type.

Any option left after all known ones were read is a mistake, reported with the closest match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar

from stepwell.durations import EXAMPLES, parse_duration, unit_hint
from stepwell.errors import ConfigError, without_credentials
from stepwell.text import did_you_mean

E = TypeVar("E", bound=Enum)


class Options:
    """Options of `what`, such as `source order_files`. Read all, then call `end`."""

    def __init__(self, what: str, given: Mapping[str, object], base: Path) -> None:
        self.what = what
        self._given = dict(given)
        self._known: list[str] = []
        self.base = base

    def text(self, name: str, default: str | None = None) -> str:
        value = self._take(name, default)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a text", value)
        return value

    def character(self, name: str, default: str) -> str:
        """A single character that can separate fields."""
        value = self.text(name, default)
        if len(value) != 1 or not value.isascii() or value in '"\r\n':
            raise self.wrong(name, "one character", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def number(self, name: str, default: float | None, *, least: float = 0) -> float:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < least:
            raise self.wrong(name, f"a number of at least {least:g}", value)
        return value

    def count(self, name: str, default: int | None, *, least: int = 0) -> int:
        value = self._take(name, default)
        if type(value) is not int or value < least:
            raise self.wrong(name, f"a whole number of at least {least}", value)
        return value

    def seconds(self, name: str, default: str) -> float:
        """A duration such as `500ms`, `2s` or `1h`."""
        value = self._take(name, default)
        seconds = parse_duration(value)
        if seconds is None:
            raise self.wrong(name, f"a duration such as {EXAMPLES}", value, unit_hint(value))
        return seconds

    def mode(self, name: str) -> int | None:
        """File permissions such as `"0640"`; None if not given."""
        value = self._take(name, None)
        if value is None:
            return None
        # Without quotes, YAML reads it as a different number.
        if not isinstance(value, str) or re.fullmatch("0?6[0-7]{2}", value) is None:
            hint = 'in quotes, readable and writable for the owner: "0600"'
            raise self.wrong(name, 'permissions such as "0640"', value, hint)
        return int(value, 8)

    def choice(self, name: str, kind: type[E], default: E | None = None) -> E:
        value = self._take(name, None if default is None else default.value)
        known = {str(item.value): item for item in kind}
        if value not in known:
            hint = did_you_mean(str(value), known)
            raise self.wrong(name, " or ".join(known), value, hint)
        return known[str(value)]

    def names(self, name: str) -> tuple[str, ...]:
        """A list of names, or a single name; empty if not given."""
        value = self._take(name, ())
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, Sequence) or not all(isinstance(v, str) and v for v in value):
            raise self.wrong(name, "a name or a list of names", value)
        return tuple(value)

    def table(self, name: str) -> Mapping[str, object]:
        value = self._take(name, {})
        if not isinstance(value, Mapping):
            raise self.wrong(name, "a mapping", value)
        return value

    def text_or_mapping(self, name: str) -> str | Mapping[str, object] | None:
        value = self._take(name, None)
        if value is not None and (not value or not isinstance(value, (str, Mapping))):
            raise self.wrong(name, "a text or a mapping", value)
        return value

    def address(self, name: str) -> str:
        """A path on this machine, or the address of a bucket, without credentials."""
        given = self.text(name)
        if "://" not in given:
            return self.place(name)
        if without_credentials(given) != given:
            raise ConfigError(
                f"{self.what}: option {name} holds credentials",
                hint="they come from the environment, or from options, never from an address",
            )
        return given

    def place(self, name: str) -> str:
        """A path on this machine; a relative path starts at the project's folder."""
        given = self.text(name)
        if "://" in given and not given.startswith("file://"):
            raise self.wrong(name, "a path on this machine", given)
        return str(self.base / Path(given.removeprefix("file://")).expanduser())

    def end(self) -> None:
        """Raise an error for the first unknown option."""
        for name in self._given:
            if name not in self._known:
                raise ConfigError(
                    f"{self.what} has no option {name}",
                    hint=did_you_mean(str(name), self._known)
                    or "its options are: " + ", ".join(self._known),
                )

    def wrong(
        self, name: str, expected: str, found: object, hint: str | None = None
    ) -> ConfigError:
        shown = "nothing" if found is None else repr(found)
        message = f"{self.what}: option {name} must be {expected}, found {shown}"
        return ConfigError(message, hint=hint)

    def _take(self, name: str, default: object) -> object:
        if name not in self._known:
            self._known.append(name)
        return self._given.get(name, default)
