"""The declarations in a SQL file: tables, views and materialized views.

Statements end at `;`; the last one may also end at the end of the file. The part before a view's
query is parsed here word by word, so that nothing is accepted that Stepwell would then ignore. The
query itself is only delimited: it is kept exactly as written, without the comments around it. Two
statements are equal if they declare the same thing, regardless of their position in a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from stepwell.errors import SqlError
from stepwell.plan.types import can_be_key, read_type, why_not_stored
from stepwell.sql.clock import reads_as_time, time_names
from stepwell.text import Name, Source, Span, Token, Tokens, did_you_mean, is_text

RESERVED = "$"
"""Marks the names of relations that Stepwell adds to a user's, such as `orders$errors`."""


class Policy(Enum):
    """How a materialized view is refreshed; AUTO chooses the cheaper way."""

    AUTO = "AUTO"
    INCREMENTAL = "INCREMENTAL"
    FULL = "FULL"


@dataclass(frozen=True, slots=True)
class Renamed:
    """RENAMED FROM: the former name of a column, and the position of the clause."""

    name: str
    name_span: Span
    span: Span
    """The whole clause."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `type` is canonical text (`types.py`), `default` an SQL expression.

    The former name is ignored in comparisons.
    """

    name: str
    type: str
    nullable: bool = True
    default: str | None = None
    comment: str | None = None
    renamed: Renamed | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    name: str
    """As spelled, without backticks."""
    comment: str | None = None
    span: Span = field(compare=False)
    """The whole statement, without its `;`."""
    name_span: Span = field(compare=False)
    source: Source = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(_Declared):
    """A table. `key` is empty if the table is a bag; its columns are spelled as in `columns`."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defined(_Declared):
    query: str
    query_span: Span = field(compare=False)
    columns: tuple[str, ...] | None = None
    """The column names given in the statement, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View(_Defined):
    """A named query; nothing is stored for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializedView(_Defined):
    """A query whose result is stored and maintained. It is not a `View`."""

    policy: Policy = Policy.AUTO


Statement = Table | View | MaterializedView


def parse_statements(source: Source) -> tuple[Statement, ...]:
    """Parse all statements of a file, in order. Raises `SqlError` at the first mistake."""
    tokens = Tokens(source)
    statements: dict[str, Statement] = {}
    while True:
        if tokens.skip(";"):
            continue
        if tokens.peek().kind == "end":
            return tuple(statements.values())
        statement = _statement(tokens)
        first = statements.setdefault(fold(statement.name), statement)
        if first is not statement:
            line, _ = source.place(first.name_span.start)
            message = f"{statement.name} is declared twice, first in line {line}"
            hint = "tables and views share one namespace, and names are case-insensitive"
            raise source.error_at(statement.name_span, message, hint=hint)


def fold(name: str) -> str:
    """The form in which names are compared: Spark ignores case."""
    return name.lower()


def _statement(tokens: Tokens) -> Statement:
    start = tokens.peek().start
    if not tokens.skip("CREATE"):
        raise _misplaced(tokens, "expected CREATE", _STATEMENT_HINTS, "CREATE")
    change = tokens.peek(1) if tokens.at("OR") else None
    if change and not tokens.skip("OR", "REPLACE") and not tokens.skip("OR", "REFRESH"):
        tokens.take()
        raise tokens.unexpected("expected REPLACE or REFRESH")
    if tokens.skip("TABLE"):
        if change:
            hint = f"leave OR {change.text.upper()} out: deploying changes a table in place"
            raise tokens.source.error_at(change.span, "a table is never replaced", hint=hint)
        return _table(tokens, start)
    if tokens.skip("VIEW"):
        if change and is_text(change, "REFRESH"):
            hint = "write OR REPLACE, or CREATE OR REFRESH MATERIALIZED VIEW"
            raise tokens.source.error_at(change.span, "a plain view has no refresh", hint=hint)
        return _view(tokens, start, materialized=False)
    if tokens.skip("MATERIALIZED"):
        tokens.expect("VIEW")
        return _view(tokens, start, materialized=True)
    expected = "expected TABLE, VIEW or MATERIALIZED VIEW"
    raise _misplaced(tokens, expected, _CREATE_HINTS, "TABLE", "VIEW", "MATERIALIZED")


def _table(tokens: Tokens, start: int) -> Table:
    name = _relation(tokens, "table")
    if not tokens.skip("("):
        raise _misplaced(tokens, 'expected "(" and the columns', _CLAUSE_HINTS)
    columns, key = _columns(tokens)
    comment = tokens.string("a comment") if tokens.skip("COMMENT") else None
    if not tokens.at(";") and tokens.peek().kind != "end":
        raise _misplaced(tokens, 'expected ";"', _CLAUSE_HINTS, "COMMENT")
    return Table(
        name=name.value,
        columns=columns,
        key=key,
        comment=comment,
        span=Span(start, tokens.last_end),
        name_span=name.span,
        source=tokens.source,
    )


def _columns(tokens: Tokens) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Parse the list in parentheses: columns, and the key at any position."""
    columns: dict[str, Column] = {}
    key: list[Name] = []
    key_place: Token | None = None
    while True:
        place = tokens.peek()
        if tokens.at(")"):
            hint = "remove the comma before it" if columns else "a table has at least one column"
            raise tokens.unexpected("expected a column", hint=hint)
        primary = _key_ahead(tokens)
        if primary:
            names = _key(tokens)
        else:
            column, primary = _column(tokens)
            names = [Name(column.name, place.span)]
            if fold(column.name) in columns:
                raise _repeated(tokens, names[0])
            columns[fold(column.name)] = column
        if primary and key_place:
            line, _ = tokens.source.place(key_place.start)
            message = f"the table has a primary key already, in line {line}"
            hint = "name all columns of the key in one place: PRIMARY KEY (a, b)"
            raise tokens.source.error_at(primary.span, message, hint=hint)
        if primary:
            key, key_place = names, primary
        if tokens.skip(")"):
            _check_renames(tokens.source, columns)
            return _with_key(tokens.source, columns, key)
        if not tokens.skip(","):
            raise _misplaced(tokens, 'expected "," or ")"', _COLUMN_HINTS, *_COLUMN_WORDS)


def _check_renames(source: Source, columns: dict[str, Column]) -> None:
    """Check that former names are unique and no longer used by a column of the table."""
    taken: dict[str, str] = {}
    for column in columns.values():
        old = column.renamed
        if old is None:
            continue
        span, was = old.name_span, fold(old.name)
        if was == fold(column.name):
            raise source.error_at(
                span, f"{column.name} is renamed from itself", hint="leave RENAMED FROM out"
            )
        if was in columns:
            raise source.error_at(
                span,
                f"{column.name} is renamed from {old.name}, which is a column of the table itself",
                hint=f"rename it in one deploy, and declare another {old.name} in the next",
            )
        if was in taken:
            raise source.error_at(
                span,
                f"{column.name} and {taken[was]} are both renamed from {old.name}",
                hint="leave RENAMED FROM out of the one that is new",
            )
        taken[was] = column.name


def _with_key(
    source: Source, columns: dict[str, Column], key: list[Name]
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """The columns, with key columns made NOT NULL, and the key as the columns spell it."""
    spelled: dict[str, str] = {}
    for name in key:
        column = columns.get(fold(name.value))
        if column is None:
            hint = did_you_mean(name.value, (column.name for column in columns.values()))
            raise source.error_at(name.span, f"the table has no column {name.value}", hint=hint)
        if fold(name.value) in spelled:
            raise source.error_at(name.span, f"the primary key names {name.value} twice")
        if not can_be_key(column.type):
            message = f"{column.name} cannot be in the primary key: its type is {column.type}"
            hint = "values of this type cannot be compared; choose other columns"
            raise source.error_at(name.span, message, hint=hint)
        spelled[fold(name.value)] = column.name
        columns[fold(name.value)] = replace(column, nullable=False)
    return tuple(columns.values()), tuple(spelled.values())


def _key_ahead(tokens: Tokens) -> Token | None:
    """The token PRIMARY if a key over columns comes next, rather than a column of that name."""
    named = tokens.at("CONSTRAINT") and tokens.peek(1).kind in ("word", "name")
    ahead = 2 if named and tokens.at("PRIMARY", "KEY", "(", ahead=2) else 0
    for words in (("UNIQUE", "("), ("CHECK", "("), ("FOREIGN", "KEY")):
        place = 2 if named and tokens.at(*words, ahead=2) else 0
        if tokens.at(*words, ahead=place):
            hint, span = _COLUMN_HINTS["CHECK"], tokens.peek(place).span
            raise tokens.source.error_at(span, f"{words[0]} cannot be declared", hint=hint)
    return tokens.peek(ahead) if tokens.at("PRIMARY", "KEY", ahead=ahead) else None


def _key(tokens: Tokens) -> list[Name]:
    if tokens.skip("CONSTRAINT"):
        tokens.name("a constraint name")
    tokens.expect("PRIMARY", "KEY", "(", hint="for example PRIMARY KEY (id)")
    names = [tokens.name("a column name")]
    while tokens.skip(","):
        names.append(tokens.name("a column name"))
    tokens.expect(")", hint="for example PRIMARY KEY (a, b)")
    return names


def _column(tokens: Tokens) -> tuple[Column, Token | None]:
    """A column, and the token PRIMARY if the column is the whole key."""
    name = _column_name(tokens)
    start = tokens.peek().start
    type = read_type(tokens)
    problem = why_not_stored(type)
    if problem:
        raise tokens.source.error_at(Span(start, tokens.last_end), problem)
    column = Column(name.value, str(type))
    primary: Token | None = None
    seen: set[str] = set()
    while not tokens.at(",") and not tokens.at(")"):
        option = tokens.peek()
        if option.text.upper() in seen:
            raise tokens.wrong(f"a second {option.text.upper()} for one column")
        seen.add(option.text.upper())
        if tokens.skip("NOT", "NULL"):
            column = replace(column, nullable=False)
        elif tokens.skip("DEFAULT"):
            column = replace(column, default=_default(tokens))
        elif tokens.skip("COMMENT"):
            column = replace(column, comment=tokens.string("a comment"))
        elif tokens.skip("RENAMED"):
            tokens.expect("FROM", hint="for example RENAMED FROM total")
            old = tokens.name("the name the column had before")
            clause = Span(option.start, tokens.last_end)
            column = replace(column, renamed=Renamed(old.value, old.span, clause))
        elif tokens.at("PRIMARY") or tokens.at("CONSTRAINT"):
            if tokens.skip("CONSTRAINT"):
                tokens.name("a constraint name")
            primary = tokens.peek()
            tokens.expect("PRIMARY", "KEY")
        else:
            raise _misplaced(tokens, 'expected "," or ")"', _COLUMN_HINTS, *_COLUMN_WORDS)
    return column, primary


def _default(tokens: Tokens) -> str:
    def is_over(before: Token | None) -> bool:
        if tokens.at("NOT", "NULL"):
            # After IS it belongs to the expression, elsewhere to the column.
            return before is None or not is_text(before, "IS")
        if tokens.at("COMMENT"):
            return tokens.peek(1).kind == "string"
        if tokens.at("RENAMED", "FROM"):
            return True
        return any(tokens.at(word) for word in (",", ")", "PRIMARY", "CONSTRAINT"))

    span = tokens.take_until(is_over)
    if span is None:
        raise tokens.unexpected("expected an expression", hint="for example DEFAULT 0")
    return tokens.source.part(span)


def _view(tokens: Tokens, start: int, *, materialized: bool) -> View | MaterializedView:
    name = _relation(tokens, "view")
    columns = _view_columns(tokens) if tokens.skip("(") else None
    comment: str | None = None
    policy: Policy | None = None
    while not tokens.skip("AS"):
        if comment is None and tokens.skip("COMMENT"):
            comment = tokens.string("a comment")
        elif tokens.at("REFRESH") and not materialized:
            hint = "write CREATE MATERIALIZED VIEW, or leave it out: a plain view stores nothing"
            raise tokens.wrong("a plain view has no refresh", hint=hint)
        elif policy is None and tokens.skip("REFRESH"):
            policy = _policy(tokens)
        else:
            expected = "expected AS and a query"
            raise _misplaced(tokens, expected, _CLAUSE_HINTS, "COMMENT", "REFRESH", "AS")
    query_span = tokens.take_until(lambda before: False)
    if query_span is None:
        raise tokens.unexpected("expected a query", hint="for example SELECT * FROM t")
    for token in time_names(tokens.source.part(query_span)):
        begin = query_span.start + token.start
        raise _reads_as_time(tokens.source, token.text, Span(begin, begin + len(token.text)))
    make = partial(MaterializedView, policy=policy or Policy.AUTO) if materialized else View
    return make(
        name=name.value,
        query=tokens.source.part(query_span),
        columns=columns,
        comment=comment,
        query_span=query_span,
        span=Span(start, tokens.last_end),
        name_span=name.span,
        source=tokens.source,
    )


def _view_columns(tokens: Tokens) -> tuple[str, ...]:
    """The column names of a view; their comments are for readers only."""
    names: dict[str, str] = {}
    while True:
        name = _column_name(tokens)
        if fold(name.value) in names:
            raise _repeated(tokens, name)
        names[fold(name.value)] = name.value
        if tokens.skip("COMMENT"):
            tokens.string("a comment")
        if tokens.skip(")"):
            return tuple(names.values())
        if not tokens.skip(","):
            hint = "the types of a view's columns come from its query"
            raise tokens.unexpected('expected "," or ")"', hint=hint)


def _policy(tokens: Tokens) -> Policy:
    tokens.expect("POLICY", hint="write REFRESH POLICY AUTO, INCREMENTAL or FULL")
    word = tokens.peek().text.upper()
    if word not in Policy.__members__:
        hint = did_you_mean(word, Policy.__members__)
        raise tokens.unexpected("expected AUTO, INCREMENTAL or FULL", hint=hint)
    tokens.take()
    return Policy[word]


def _relation(tokens: Tokens, kind: str) -> Name:
    tokens.skip("IF", "NOT", "EXISTS")
    if tokens.at("AS"):
        raise tokens.unexpected(f"expected a {kind} name")
    name = tokens.name(f"a {kind} name")
    if reads_as_time(name.value):
        raise _reads_as_time(tokens.source, name.value, name.span)
    if RESERVED in name.value:
        hint = f"choose a name without {RESERVED}: Stepwell reserves such names, as orders$errors"
        raise tokens.source.error_at(
            name.span, f"a {kind} name cannot contain {RESERVED}", hint=hint
        )
    return name


def _column_name(tokens: Tokens) -> Name:
    name = tokens.name("a column name")
    if reads_as_time(name.value):
        raise _reads_as_time(tokens.source, name.value, name.span)
    return name


def _reads_as_time(source: Source, name: str, span: Span) -> SqlError:
    message = f"{name} cannot be a name: a query reads it as the time"
    return source.error_at(span, message, hint="choose another name, such as as_of")


def _repeated(tokens: Tokens, name: Name) -> SqlError:
    hint = "column names are case-insensitive"
    return tokens.source.error_at(name.span, f"column {name.value} is declared twice", hint=hint)


def _misplaced(tokens: Tokens, expected: str, hints: dict[str, str], *words: str) -> SqlError:
    """An error at the next token, with a hint about the word found there."""
    token = tokens.peek()
    word = token.text.upper() if token.kind in ("word", "symbol") else ""
    return tokens.unexpected(expected, hint=hints.get(word) or did_you_mean(word, words))


def _hints(text: str) -> dict[str, str]:
    """Hints by word, from lines such as `WORD WORD: hint`."""
    hints: dict[str, str] = {}
    for line in text.strip().splitlines():
        words, _, hint = line.strip().partition(": ")
        hints |= dict.fromkeys(words.split(), hint)
    return hints


_STATEMENT_HINTS = _hints("""
    INSERT UPDATE DELETE MERGE LOAD TRUNCATE: tables are filled by sources or by stepwell push
    SELECT WITH VALUES FROM TABLE (: use CREATE VIEW or CREATE MATERIALIZED VIEW name AS query
    ALTER REPLACE COMMENT: change the statement that declares it, then run stepwell deploy
    DROP: remove the statement that declares it from the file, then run stepwell deploy
    SET: settings for Spark belong in stepwell.yml, under spark: conf
    USE: a pipeline has one namespace, without catalogs and schemas
    REFRESH: stepwell run keeps materialized views up to date
    EXPLAIN: run stepwell explain
    DESCRIBE SHOW: run stepwell status
""")
_CREATE_HINTS = _hints("""
    TEMPORARY TEMP GLOBAL LOCAL: leave it out: a view belongs to its pipeline and stores nothing
    SCHEMA DATABASE CATALOG: a pipeline has one namespace, without catalogs and schemas
    EXTERNAL STREAMING LIVE: write CREATE TABLE: tables are filled by sources or by stepwell push
    INDEX: no index is needed: what is stored is sorted by its key
""")
_CLAUSE_HINTS = _hints("""
    PARTITIONED CLUSTER CLUSTERED SORTED: leave it out: Stepwell lays out files by the key
    USING STORED ROW: leave it out: Stepwell chooses the format
    LOCATION: leave it out: stepwell.yml names the store
    TBLPROPERTIES OPTIONS WITH: leave it out: settings belong in stepwell.yml
    SCHEDULE: leave it out: stepwell run keeps materialized views up to date
    AS: a table is filled from outside; for a query use CREATE MATERIALIZED VIEW name AS query
    LIKE: write the columns out
""")
_COLUMN_WORDS = ("NOT", "NULL", "PRIMARY", "DEFAULT", "COMMENT", "RENAMED")
_COLUMN_HINTS = _hints("""
    NULL: leave it out: a column takes NULL unless it is NOT NULL
    NOT: only NOT NULL is allowed here; a primary key is always enforced
    GENERATED: compute it in a view instead
    COLLATE: only STRING, CHAR and VARCHAR have a collation
    UNIQUE CHECK REFERENCES: only PRIMARY KEY and NOT NULL are supported
""")
