"""Sources and sinks of a project: the relation each belongs to, and a check of its options.

Only the connector knows its options, so each connector is constructed once, which opens nothing.
Its complaint is reported at the position of the option.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from stepwell.connectors.registry import make_sink, make_source
from stepwell.deploy.document import Node
from stepwell.deploy.graph import column_names
from stepwell.deploy.references import References, check_complete, missing
from stepwell.engine.payload import PUSHED
from stepwell.env import Env
from stepwell.errors import StepwellError
from stepwell.sql.statements import MaterializedView, Statement, Table, fold
from stepwell.text import did_you_mean

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}", re.ASCII)
NAME_HINT = "letters, digits, _ and -, beginning with a letter, at most 63"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connection:
    """A source or a sink: its name, its relation, and its resolved options."""

    name: str
    relation: str
    """Table of a source or view of a sink, as declared."""
    type: str
    options: Mapping[str, object] = field(repr=False)


class Connections:
    """Reads sources and sinks, and lets each connector check its own options."""

    def __init__(
        self,
        folder: Path,
        env: Env,
        references: References,
        statements: tuple[Statement, ...],
    ) -> None:
        self._folder = folder
        self._env = env
        self._references = references
        self._relations = {fold(statement.name): statement for statement in statements}

    def sources(self, node: Node | None) -> tuple[Connection, ...]:
        made = []
        for name, item in self._items(node, "source"):
            if name == PUSHED:
                hint = "that name is reserved for pushed rows"
                raise item.key_error(f"a source cannot be called {PUSHED}", hint=hint)
            table = self._relation(name, item, "source", "table")
            if not isinstance(table, Table):
                hint = "sources fill tables; views are computed from them"
                raise self._at(item, "table").error(
                    f"source {name}: {table.name} is a view", hint=hint
                )
            options = self._options(item)
            if missing(options) is None:
                make = partial(make_source, name, options, table, self._env, base=self._folder)
                self._checked(item, make).close()
            made.append(Connection(name, table.name, str(options["type"]), options))
        return tuple(made)

    def sinks(self, node: Node | None) -> tuple[Connection, ...]:
        made = []
        for name, item in self._items(node, "sink"):
            view = self._relation(name, item, "sink", "view")
            if not isinstance(view, MaterializedView):
                kind = "table" if isinstance(view, Table) else "plain view, which stores nothing"
                hint = f"write CREATE MATERIALIZED VIEW {view.name}"
                if isinstance(view, Table):
                    hint = f"CREATE MATERIALIZED VIEW ... AS SELECT * FROM {view.name}"
                raise self._at(item, "view").error(
                    f"sink {name}: {view.name} is a {kind}", hint=hint
                )
            options = self._options(item)
            if missing(options) is None:
                make = partial(make_sink, name, options, view.name, self._env, base=self._folder)
                self._checked(item, make).close()
                self._check_key(name, item, view, options)
            made.append(Connection(name, view.name, str(options["type"]), options))
        return tuple(made)

    def _check_key(
        self, name: str, item: Node, view: MaterializedView, options: Mapping[str, object]
    ) -> None:
        """Check that the view has the columns of a sink's key, if the text alone tells."""
        columns = column_names(view.name, self._relations.get)
        if columns is None:
            return
        key = options.get("key", ())
        known = {fold(column) for column in columns}
        for column in [key] if isinstance(key, str) else key if isinstance(key, list) else ():
            if fold(str(column)) not in known:
                hint = did_you_mean(str(column), columns) or "columns are: " + ", ".join(columns)
                raise self._at(item, "key").error(
                    f"sink {name}: {view.name} has no column {column}", hint=hint
                )

    def _items(self, node: Node | None, kind: str) -> list[tuple[str, Node]]:
        if node is None:
            return []
        items = node.mapping(f"{kind}s").items()
        for name, item in items:
            # The name becomes part of an object's path, which must stay below the store's prefix.
            if not NAME.fullmatch(name):
                message = f"{name!r} cannot be the name of a {kind}"
                raise item.key_error(message, hint=NAME_HINT)
            item.mapping(f"{kind} {name}")
        return list(items)

    def _relation(self, name: str, item: Node, kind: str, key: str) -> Statement:
        node = self._at(item, key)
        if node is item:
            raise item.key_error(f"{kind} {name} has no {key}", hint=f"add {key}: NAME")
        value = self._references.scalar(node)
        found = self._relations.get(fold(str(value)))
        if found is None:
            wanted = Table if kind == "source" else MaterializedView
            names = [s.name for s in self._relations.values() if isinstance(s, wanted)]
            hint = did_you_mean(str(value), names) or f"{key}s are: {', '.join(names) or 'none'}"
            raise node.error(f"{kind} {name}: there is no {key} {value}", hint=hint)
        return found

    def _options(self, item: Node) -> dict[str, object]:
        resolved = self._references.resolve(item)
        options = dict(resolved) if isinstance(resolved, Mapping) else {}
        if missing(options) is not None:
            # The type must be known in any case.
            check_complete({"type": options.get("type")})
            if "type" not in options:
                check_complete(options)
        return options

    def _at(self, item: Node, key: str) -> Node:
        """Return the value of a key, or the item itself if it has no such key."""
        return item.mapping("").get(key, item)

    def _checked(self, item: Node, make: Callable[[], T]) -> T:
        """Call `make`; report a connector's error at the position of the option it names."""
        try:
            return make()
        except StepwellError as error:
            found = re.search(r"\boption (\w+)|no (type)\b", error.message)
            key = (found[1] or found[2]) if found else ""
            node = self._at(item, key)
            if node is item and key:
                self._misspelt(item, key, error.message)
            message = self._references.redact(error.message)
            hint = self._references.redact(error.hint) if error.hint else None
            unknown = "has no option" in message
            shown = node.key_error if unknown or node is item else node.error
            # Not chained: a traceback would show the redacted values.
            raise shown(message, hint=hint) from None

    def _misspelt(self, item: Node, missing: str, message: str) -> None:
        """Report a missing option as a spelling mistake if a similar key is given."""
        given = item.mapping("")
        for close in difflib.get_close_matches(missing, given, n=1):
            what = message.partition(":")[0]
            hint = f"did you mean {missing}?"
            raise given[close].key_error(f"{what} has no option {close}", hint=hint)
