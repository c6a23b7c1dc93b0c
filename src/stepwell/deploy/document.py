"""A YAML file as values with positions, so that every error can point at its place.

The parser reads a subset of YAML on purpose: one document, with mappings and lists of plain values.
There are no tags, so nothing can be constructed. There are no aliases, so a short file cannot
expand into a huge one. `yes`, `on` and `2026-01-01` are texts, because only `true` and `false` mean
the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from stepwell.errors import ConfigError, SqlError
from stepwell.text import Source, Span, did_you_mean

BYTES_MAX = 1024 * 1024
_TAG = "tag:yaml.org,2002:"

Scalar = str | int | float | bool | None


class ProjectError(ConfigError):
    """A mistake in a project; the message shows the line, with a caret below the position."""

    def __init__(self, shown: SqlError) -> None:
        super().__init__(shown.message, hint=shown.hint)
        self.file, self.line, self.column = shown.file, shown.line, shown.column


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its position."""

    content: Scalar | Mapping[str, Node] | tuple[Node, ...]
    source: Source
    span: Span
    key: Span | None = None
    """Position of the key of this value."""

    def error(self, message: str, *, hint: str | None = None) -> ProjectError:
        """Return an error at the value, or at its key if the value is empty or a mapping."""
        at = self.span
        if self.key is not None and (isinstance(self.content, Mapping) or self.content is None):
            at = self.key
        return ProjectError(self.source.error_at(at, message, hint=hint))

    def key_error(self, message: str, *, hint: str | None = None) -> ProjectError:
        return ProjectError(self.source.error_at(self.key or self.span, message, hint=hint))

    def mapping(self, what: str) -> Mapping[str, Node]:
        """Return the entries; an empty value counts as an empty mapping."""
        if self.content is None:
            return {}
        if not isinstance(self.content, Mapping):
            raise self.error(f"{what} must be a mapping, found {self.shown}", hint=f"{what}: {{}}")
        return self.content

    @property
    def shown(self) -> str:
        """The value as messages show it. References are not resolved here."""
        match self.content:
            case None:
                return "nothing"
            case Mapping():
                return "a mapping"
            case tuple():
                return "a list"
            case bool():
                return "true" if self.content else "false"
            case _:
                return repr(self.content)


def read_document(path: Path, name: str) -> Node:
    """Read the mapping in a file, which messages call `name`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    if len(data) > BYTES_MAX:
        raise ConfigError(f"{name} has {len(data):,} bytes, more than the limit of {BYTES_MAX:,}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8: {error}") from error
    return parse_document(Source(name, text))


def parse_document(source: Source) -> Node:
    try:
        loader = _Loader(source.text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
        if root is None:
            raise _error(source, 0, f"{source.name} is empty", hint="stepwell init writes one")
        node = _node(source, root, None, 0)
    except yaml.reader.ReaderError as error:
        raise _error(source, error.position, "a character that YAML does not allow") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = mark.index if mark else 0
        raise _error(source, at, f"this is not YAML: {error.problem}", hint=_hint(error)) from error
    except RecursionError:
        raise _error(source, 0, f"{source.name} is nested too deeply") from None
    if not isinstance(node.content, Mapping):
        raise node.error(f"{source.name} must be a mapping, found {node.shown}", hint="name: ...")
    return node


def check_keys(what: str, entries: Mapping[str, Node], known: Mapping[str, object]) -> None:
    """Reject the first unknown key."""
    for name, node in entries.items():
        if name not in known:
            hint = did_you_mean(name, known) or "keys are: " + ", ".join(known)
            raise node.key_error(f"{what} has no key {name}", hint=hint)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Resolves the kinds of plain values by the rules of YAML 1.2, and nothing more."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def compose_node(self, parent: object, index: object) -> object:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        return super().compose_node(parent, index)


_KINDS = {
    "null": (r"~|null|", ["~", "n", ""]),
    "bool": (r"true|false", ["t", "f"]),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?", list("-+.0123456789")),
}
for _name, (_pattern, _first) in _KINDS.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})$"), _first)


def _node(source: Source, node: yaml.Node, key: Span | None, depth: int) -> Node:
    span = Span(node.start_mark.index, node.end_mark.index)
    kind = node.tag.removeprefix(_TAG)
    if depth > 20:
        raise _error(source, span.start, "nested too deeply")
    if isinstance(node, yaml.MappingNode) and kind == "map":
        return Node(dict(_entries(source, node, depth)), source, span, key)
    if isinstance(node, yaml.SequenceNode) and kind == "seq":
        items = tuple(_node(source, item, None, depth + 1) for item in node.value)
        return Node(items, source, span, key)
    if isinstance(node, yaml.ScalarNode) and kind in (*_KINDS, "str"):
        return Node(_scalar(kind, node.value), source, span, key)
    raise _error(source, span.start, f"the tag {node.tag} is not supported", hint="remove it")


def _entries(source: Source, node: yaml.MappingNode, depth: int) -> Iterator[tuple[str, Node]]:
    seen: dict[str, int] = {}
    for name, value in node.value:
        span = Span(name.start_mark.index, name.end_mark.index)
        if not isinstance(name, yaml.ScalarNode):
            raise _error(source, span.start, "a key must be a word")
        if name.value in seen:
            line, _ = source.place(seen[name.value])
            message = f"{name.value} is set twice, first in line {line}"
            raise ProjectError(source.error_at(span, message, hint="remove one of them"))
        seen[name.value] = span.start
        yield name.value, _node(source, value, span, depth + 1)


def _scalar(kind: str, text: str) -> Scalar:
    match kind:
        case "null":
            return None
        case "bool":
            return text == "true"
        case "int" if len(text) < 20:
            return int(text)
        case "float":
            return float(text)
        case _:
            return text


def _error(source: Source, at: int, message: str, *, hint: str | None = None) -> ProjectError:
    return ProjectError(source.error(min(at, len(source.text)), message, hint=hint))


def _hint(error: yaml.MarkedYAMLError) -> str | None:
    problem = str(error.problem)
    if "alias" in problem:
        return "write the value out in both places"
    if "'\\t'" in problem:
        return "indent with spaces, not with tabs"
    if "expected a single document" in str(error.context):
        return "a project is one document: remove the line ---"
    if "mapping values are not allowed" in problem:
        return "put a text that contains a colon in quotes"
    return None
