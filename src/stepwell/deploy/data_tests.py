"""The `tests:` of stepwell.yml: each becomes a materialized view of violations.

    customer_known: {view: revenue, not_null: customer}
    one_per_customer: {view: revenue, unique: [customer], on_violation: fail}
    channels: {table: orders, accepted_values: {channel: [web, shop]}}
    no_negative: {query: SELECT * FROM revenue WHERE total < 0}

The view is called `<test>_violations`. It is deployed, maintained, queried and connected to sinks
like any other view, and it holds whole rows of the tested relation. A test itself therefore needs
only a name and a policy.

With `on_violation: dead_letter`, violating rows are kept out of the tested view. The view's query
is renamed to `<view>_unchecked`, the violations are selected from that, and the view itself selects
the remaining rows. Rows are thus diverted by SQL alone: exactly, and the same in every replay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from stepwell.deploy.document import Node, check_keys
from stepwell.deploy.graph import column_names
from stepwell.engine.data_tests import DataTest, OnViolation
from stepwell.sql.statements import (
    MaterializedView,
    Statement,
    Table,
    View,
    fold,
    parse_statements,
)
from stepwell.store import records
from stepwell.store.records import Record
from stepwell.text import Source, did_you_mean, quote_name, quote_text

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}", re.ASCII)
NAME_HINT = "letters, digits and _, beginning with a letter, at most 63"
KINDS = ("not_null", "unique", "accepted_values", "query")
_KEYS = dict.fromkeys(("view", "table", *KINDS, "on_violation"))
_TEXTS = re.compile(r"string|char|varchar", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DeclaredTest:
    """A data test of a project."""

    name: str
    relation: str | None
    """The tested table or view; None if the test is a query."""
    rule: str
    """The rule in readable form, such as `unique(customer)`."""
    on_violation: OnViolation

    @property
    def violations(self) -> str:
        """Name of the materialized view that holds the violations."""
        return f"{self.name}_violations"

    def for_engine(self) -> DataTest:
        return DataTest(self.name, self.violations, self.on_violation)


DECLARED_TEST = Record(
    DeclaredTest,
    name=records.text,
    relation=records.nullable(records.text),
    rule=records.text,
    on_violation=records.choice(get_args(OnViolation)),
)


@dataclass(frozen=True, slots=True)
class Tested:
    """The statements of a project together with those that its tests add."""

    statements: tuple[Statement, ...]
    tests: tuple[DeclaredTest, ...]


def with_tests(node: Node | None, statements: Sequence[Statement]) -> Tested:
    """Read the `tests:` of a project. The first mistake raises an error that shows its position."""
    if node is None:
        return Tested(tuple(statements), ())
    relations = {fold(statement.name): statement for statement in statements}
    read = [_Reader(name, item, relations) for name, item in node.mapping("tests").items()]
    rules = {reader.name: reader.rule() for reader in read}
    diverted: dict[str, list[_Rule]] = {}
    for reader in read:
        if reader.policy == "dead_letter":
            rule = rules[reader.name]
            diverted.setdefault(fold(reader.diverts().name), []).append(rule)
    made = []
    for statement in statements:
        parts = diverted.get(fold(statement.name))
        made += [statement] if parts is None else _divert(statement, parts, relations)
    for reader in read:
        rule = rules[reader.name]
        test = reader.declared(rule)
        below = relations[fold(test.relation)] if test.relation is not None else None
        source = _unchecked(below.name) if reader.policy == "dead_letter" and below else None
        made.append(_violations(test, rule, below, source, relations))
    _check_names(read, made, relations)
    return Tested(tuple(made), tuple(reader.declared(rules[reader.name]) for reader in read))


@dataclass(frozen=True, slots=True)
class _Rule:
    """The rule for a violation: a condition over `u`, a repeated key, or a query."""

    shown: str
    condition: str | None = None
    key: tuple[str, ...] = ()
    query: str | None = None


class _Reader:
    """Reads one test."""

    def __init__(self, name: str, item: Node, relations: Mapping[str, Statement]) -> None:
        self.name = name
        self.item = item
        self._relations = relations
        if not NAME.fullmatch(name):
            raise item.key_error(f"{name!r} cannot be the name of a data test", hint=NAME_HINT)
        self._entries = item.mapping(f"test {name}")
        check_keys(f"test {name}", self._entries, _KEYS)
        self.policy = self._policy()
        self._relation = self._tested()

    def declared(self, rule: _Rule) -> DeclaredTest:
        tested = None if self._relation is None else self._relation.name
        return DeclaredTest(self.name, tested, rule.shown, self.policy)

    def rule(self) -> _Rule:
        kinds = [kind for kind in KINDS if kind in self._entries]
        if len(kinds) != 1:
            found = f"found {' and '.join(kinds)}" if kinds else "found none"
            raise self.item.key_error(
                f"test {self.name} must have one of {', '.join(KINDS)}, {found}",
                hint=f"{self.name}: {{view: NAME, not_null: COLUMN}}",
            )
        kind, node = kinds[0], self._entries[kinds[0]]
        if kind == "query":
            return self._query(node)
        if self._relation is None:
            raise self.item.key_error(
                f"test {self.name} names neither a view nor a table", hint="add view: NAME"
            )
        if kind == "accepted_values":
            return self._accepted(node)
        columns = self._columns(node, kind)
        shown = f"{kind}({', '.join(columns)})"
        if kind == "unique":
            return _Rule(shown, key=columns)
        return _Rule(shown, " OR ".join(f"u.{quote_name(column)} IS NULL" for column in columns))

    def diverts(self) -> View | MaterializedView:
        """Return the view whose violating rows become dead letters."""
        node = self._entries["on_violation"]
        if self._relation is None or "query" in self._entries:
            raise node.error(
                f"test {self.name}: the rows of a query are not those of one view",
                hint="dead_letter is for not_null, unique and accepted_values; use warn or fail",
            )
        if isinstance(self._relation, Table):
            raise node.error(
                f"test {self.name}: {self._relation.name} is a table, and stores every row it is "
                f"given",
                hint=(
                    "declare its columns NOT NULL, or test a view over it; warn and fail work "
                    "with tables, too"
                ),
            )
        return self._relation

    def _policy(self) -> OnViolation:
        node = self._entries.get("on_violation")
        if node is None:
            return "warn"
        for policy in get_args(OnViolation):
            if node.content == policy:
                chosen: OnViolation = policy
                return chosen
        choices = get_args(OnViolation)
        raise node.error(
            f"on_violation must be {' or '.join(choices)}, found {node.shown}",
            hint=did_you_mean(str(node.content), choices),
        )

    def _tested(self) -> Statement | None:
        given = [key for key in ("view", "table") if key in self._entries]
        if len(given) == 2:
            raise self._entries["table"].key_error(
                f"test {self.name} names a view and a table", hint="keep one of them"
            )
        if not given:
            return None
        kind, node = given[0], self._entries[given[0]]
        found = self._relations.get(fold(str(node.content)))
        is_kind = isinstance(found, Table) == (kind == "table")
        if found is None or not is_kind:
            names = [
                s.name
                for s in self._relations.values()
                if isinstance(s, Table) == (kind == "table")
            ]
            other = None if found is None else f"write {'view' if kind == 'table' else 'table'}:"
            hint = other or did_you_mean(str(node.content), names)
            listed = f"{kind}s are: {', '.join(names) or 'none'}"
            message = f"test {self.name}: there is no {kind} {node.content}"
            raise node.error(message, hint=hint or listed)
        return found

    def _query(self, node: Node) -> _Rule:
        if not isinstance(node.content, str) or not node.content.strip():
            raise node.error(f"test {self.name}: query must be a SELECT, found {node.shown}")
        return _Rule("query", query=self._plain(node).strip().rstrip(";"))

    def _columns(self, node: Node, kind: str) -> tuple[str, ...]:
        items = node.content if isinstance(node.content, tuple) else (node,)
        if not items:
            raise node.error(f"test {self.name}: {kind} must name a column", hint=f"{kind}: [id]")
        return tuple(self._column(item, item.content) for item in items)

    def _column(self, node: Node, name: object) -> str:
        if not isinstance(name, str) or not name:
            raise node.error(f"test {self.name}: expected a column name, found {node.shown}")
        tested = self._relation
        known = None if tested is None else column_names(tested.name, self._relations.get)
        for column in known or ():
            if fold(column) == fold(name):
                return column
        if known is not None and tested is not None:
            hint = did_you_mean(name, known) or "columns are: " + ", ".join(known)
            raise node.error(f"test {self.name}: {tested.name} has no column {name}", hint=hint)
        return name

    def _accepted(self, node: Node) -> _Rule:
        entries = node.mapping("accepted_values")
        if not entries:
            hint = "accepted_values: {channel: [web, shop]}"
            raise node.error(f"test {self.name}: accepted_values names no column", hint=hint)
        conditions, shown = [], []
        for name, values in entries.items():
            column = quote_name(self._column(values, name))
            literals = ", ".join(self._literals(name, values))
            conditions.append(f"(u.{column} IS NOT NULL AND u.{column} NOT IN ({literals}))")
            shown.append(f"{name}: {literals}")
        return _Rule(f"accepted_values({'; '.join(shown)})", " OR ".join(conditions))

    def _literals(self, column: str, node: Node) -> Iterator[str]:
        items = node.content if isinstance(node.content, tuple) else ()
        kinds = {str if isinstance(item.content, str) else type(item.content) for item in items}
        kinds = {float if kind is int else kind for kind in kinds}
        if len(kinds) != 1 or not kinds <= {str, float, bool}:
            raise node.error(
                f"test {self.name}: the values of {column} must be a list of texts, of numbers, or "
                f"of true and false",
                hint=f"accepted_values: {{{column}: [web, shop]}}",
            )
        declared = self._relation
        if kinds == {float} and isinstance(declared, Table):
            of = next((c.type for c in declared.columns if fold(c.name) == fold(column)), "")
            if _TEXTS.match(of):
                raise items[0].error(
                    f"test {self.name}: {column} is {of}, and cannot be compared with numbers",
                    hint="put the values in quotes",
                )
        for item in items:
            value = item.content
            if isinstance(value, bool):
                yield "true" if value else "false"
            else:
                yield quote_text(self._plain(item)) if isinstance(value, str) else repr(value)

    def _plain(self, node: Node) -> str:
        """Return a text without references: their values would be stored with the view."""
        text = str(node.content)
        if "${" in text:
            raise node.error(
                f"test {self.name} contains a reference, which is not resolved in tests",
                hint="write the value out",
            )
        return text


def _unchecked(view: str) -> str:
    return f"{view}_unchecked"


def _divert(
    statement: Statement, rules: Sequence[_Rule], relations: Mapping[str, Statement]
) -> list[Statement]:
    """Split a view in two: its query under another name, and the rows that pass the tests."""
    start, end = statement.span.start, statement.span.end
    before = statement.source.text[start : statement.name_span.start]
    after = statement.source.text[statement.name_span.end : end]
    inner = _unchecked(statement.name)
    # Keep the line numbers of its file, so that messages name the right line.
    above = "\n" * statement.source.text.count("\n", 0, start)
    text = f"{above}{before}{quote_name(inner)}{after}"
    kept = [f"NOT ({rule.condition})" for rule in rules if rule.condition is not None]
    keys = [rule.key for rule in rules if rule.key]
    joins = [_duplicates("ANTI", inner, key, f"d{number}") for number, key in enumerate(keys)]
    where = f"\nWHERE {' AND '.join(kept)}" if kept else ""
    materialized = "MATERIALIZED " if isinstance(statement, MaterializedView) else ""
    outer = (
        f"CREATE {materialized}VIEW {quote_name(statement.name)} AS\n"
        f"SELECT {_select(statement.name, relations)} FROM {quote_name(inner)} AS u"
        f"{''.join(joins)}{where}"
    )
    name = f"{statement.source.name}, view {statement.name} without violations"
    return [*parse_statements(Source(statement.source.name, text)), *_parsed(name, outer)]


def _violations(
    test: DeclaredTest,
    rule: _Rule,
    tested: Statement | None,
    source: str | None,
    relations: Mapping[str, Statement],
) -> Statement:
    query = rule.query
    if query is None and tested is not None:
        name = source or tested.name
        query = f"SELECT {_select(tested.name, relations)} FROM {quote_name(name)} AS u"
        query += f"\nWHERE {rule.condition}" if rule.condition is not None else ""
        query += _duplicates("SEMI", name, rule.key, "d") if rule.key else ""
    text = f"CREATE MATERIALIZED VIEW {quote_name(test.violations)} AS\n{query}"
    return _parsed(f"stepwell.yml, test {test.name}", text)[0]


def _duplicates(kind: str, relation: str, key: tuple[str, ...], alias: str) -> str:
    """Join the rows with a repeated key. As in SQL, a key with a NULL is not a duplicate."""
    columns = ", ".join(quote_name(column) for column in key)
    equal = " AND ".join(f"u.{quote_name(column)} = {alias}.{quote_name(column)}" for column in key)
    return (
        f"\nLEFT {kind} JOIN (SELECT {columns} FROM {quote_name(relation)} GROUP BY {columns} "
        f"HAVING COUNT(*) > 1) AS {alias} ON {equal}"
    )


def _select(relation: str, relations: Mapping[str, Statement]) -> str:
    """Select all columns, by name if the text alone tells their names."""
    known = column_names(relation, relations.get)
    return "u.*" if known is None else ", ".join(f"u.{quote_name(column)}" for column in known)


def _parsed(name: str, text: str) -> list[Statement]:
    return list(parse_statements(Source(name, text)))


def _check_names(
    read: Sequence[_Reader], made: Sequence[Statement], relations: Mapping[str, Statement]
) -> None:
    """Reject a test whose views would have the name of another relation."""
    counted: dict[str, int] = {}
    for statement in made:
        counted[fold(statement.name)] = counted.get(fold(statement.name), 0) + 1
    for reader in read:
        names = [f"{reader.name}_violations"]
        if reader.policy == "dead_letter":
            names.append(_unchecked(reader.diverts().name))
        for name in names:
            if counted[fold(name)] > 1:
                kind = "the project declares" if fold(name) in relations else "another test creates"
                raise reader.item.key_error(
                    f"test {reader.name} creates a view {name}, which {kind} as well",
                    hint="give the test or the view another name",
                )
