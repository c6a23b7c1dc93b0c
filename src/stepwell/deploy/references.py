"""`${env:NAME}`, `${file:path}` and `${var:name}` in a project: resolved at start, never shown.

A value from the environment or from a file is a `Secret`: it can be used like any other text, but
its `repr`, which messages use, is the reference. `$${` is a plain `${`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from stepwell.connectors.base_folder import opaque
from stepwell.deploy.document import Node, Scalar
from stepwell.errors import ConfigError
from stepwell.text import Source, Span, did_you_mean

FILE_BYTES_MAX = 64 * 1024
_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
_FORMS = "${env:NAME}, ${file:path} or ${var:name}"


class Secret(str):
    """A resolved text that messages show as it is written in the project."""

    reference: str

    def __new__(cls, value: str, reference: str) -> Secret:
        made = super().__new__(cls, value)
        made.reference = reference
        return made

    def __repr__(self) -> str:
        return self.reference


class Missing(Secret):
    """A text with an unresolvable reference: an error once its value is needed."""

    error: ConfigError

    @classmethod
    def of(cls, reference: str, error: ConfigError) -> Missing:
        made = cls("", reference)
        made.error = error
        return made


def missing(value: object) -> Missing | None:
    """Return the first unresolvable reference in options."""
    if isinstance(value, Missing):
        return value
    items = value.values() if isinstance(value, Mapping) else value
    if not isinstance(items, str) and isinstance(items, Iterable):
        return next((found for item in items if (found := missing(item)) is not None), None)
    return None


def check_complete(options: Mapping[str, object]) -> None:
    """Raise the error of an unresolvable reference: the options are about to be used."""
    found = missing(options)
    if found is not None:
        raise found.error


def veiled(stored: str) -> str:
    """Return a stored path with each reference made opaque: its value is not known."""
    return _REFERENCE.sub(lambda found: "${" if found[1] is None else opaque(found[1]), stored)


class References:
    """Resolves the references of one project.

    Without `required`, an option with an unresolvable reference is `Missing`.
    """

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str],
        variables: Mapping[str, Node],
        *,
        required: bool = True,
    ) -> None:
        self._folder = folder
        self._environ = environ
        self._variables = variables
        self._required = required
        self._secrets: dict[str, str] = {}

    def resolve(self, node: Node) -> object:
        """Return the value of a node as plain Python, with every reference resolved."""
        content = node.content
        if isinstance(content, Mapping):
            return {name: self.resolve(item) for name, item in content.items()}
        if isinstance(content, tuple):
            return [self.resolve(item) for item in content]
        return self.scalar(node, required=self._required)

    def scalar(self, node: Node, *, required: bool = True) -> Scalar:
        """Return a single value, resolved. A variable that stands alone keeps its type."""
        if not isinstance(node.content, str):
            return None if isinstance(node.content, (Mapping, tuple)) else node.content
        return self._text(node, variables=True, required=required)

    def resolve_stored(self, options: Mapping[str, object], what: str) -> dict[str, object]:
        """Return stored options with their references resolved."""
        return {name: self._stored(value, what) for name, value in options.items()}

    def _stored(self, value: object, what: str) -> object:
        if isinstance(value, Mapping):
            return {name: self._stored(item, what) for name, item in value.items()}
        if isinstance(value, list):
            return [self._stored(item, what) for item in value]
        if isinstance(value, str):
            node = Node(value, Source(what, value), Span(0, len(value)))
            return self._text(node, variables=True, required=self._required)
        return value

    def redact(self, text: str) -> str:
        """Replace the values of secrets in a text; very short ones would match other text."""
        for value, reference in self._secrets.items():
            if len(value) >= 4:
                text = text.replace(value, reference)
        return text

    def _text(self, node: Node, *, variables: bool, required: bool) -> Scalar:
        written = str(node.content)
        parts: list[Scalar] = []
        done, secret = 0, False
        for found in _REFERENCE.finditer(written):
            parts.append(written[done : found.start()])
            done = found.end()
            value: Scalar = (
                "${" if found[1] is None else self._one(node, found[1], variables, required)
            )
            if isinstance(value, Missing):
                return Missing.of(written, value.error)
            secret = secret or isinstance(value, Secret)
            parts.append(value)
        parts.append(written[done:])
        parts = [part for part in parts if part != ""]
        if "${" in written[done:]:
            raise node.error("this ${ is never closed", hint=f"write {_FORMS}; $${{ is a plain ${{")
        if len(parts) == 1 and not isinstance(parts[0], str):
            return parts[0]
        text = "".join(str(part) for part in parts)
        if secret:
            self._secrets[text] = written
            return Secret(text, written)
        return text

    def _one(self, node: Node, written: str, variables: bool, required: bool) -> Scalar:
        kind, colon, name = written.partition(":")
        shown = f"${{{written}}}"
        if not colon or not name:
            raise node.error(f"{shown} is not a reference", hint=f"write {_FORMS}")
        if kind in ("env", "file"):
            try:
                read = self._environment if kind == "env" else self._file
                return read(node, name, shown)
            except ConfigError as error:
                if required:
                    raise
                return Missing.of(shown, error)
        if kind != "var":
            hint = did_you_mean(kind, ("env", "file", "var")) or f"write {_FORMS}"
            raise node.error(f"{shown}: unknown kind of reference {kind}", hint=hint)
        if not variables:
            raise node.error(f"{shown}: a variable cannot name another one", hint="write it out")
        if name not in self._variables:
            hint = did_you_mean(name, self._variables) or "declare it under variables:"
            raise node.error(f"there is no variable {name}", hint=hint)
        variable = self._variables[name]
        if isinstance(variable.content, str):
            return self._text(variable, variables=False, required=required)
        return self.scalar(variable)

    def _environment(self, node: Node, name: str, shown: str) -> Secret:
        value = self._environ.get(name)
        if value is None:
            raise node.error(
                f"the environment variable {name} is not set", hint=f"export {name}=..."
            )
        return self._secret(value, shown)

    def _file(self, node: Node, name: str, shown: str) -> Secret:
        path = self._folder / Path(name).expanduser()
        try:
            with open(path, "rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            if len(data) > FILE_BYTES_MAX:
                raise node.error(f"{shown} has more than {FILE_BYTES_MAX:,} bytes")
            return self._secret(data.decode("utf-8").rstrip("\r\n"), shown)
        except OSError as error:
            raise node.error(f"{shown} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise node.error(f"{shown} is not a text in UTF-8") from error

    def _secret(self, value: str, shown: str) -> Secret:
        self._secrets[value] = shown
        return Secret(value, shown)
