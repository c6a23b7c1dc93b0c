"""Reads the cases of tests/sql_cases/*.sql: the input of tables, and the expected rows of a view.

    -- trap 13: deleting one of three equal rows leaves two
    CREATE TABLE t (a INT);
    CREATE MATERIALIZED VIEW v AS SELECT a FROM t;
    -- put t
    (1), (1), (1)
    -- apply
    -- delete t
    (1)
    -- apply
    -- expect v
    (1), (1)

A line `-- trap N[, N]: sentence` starts a case; tests/execution/test_sql_files.py says what the
numbers stand for. Then come the statements, then steps:

    -- put t, -- delete t        rows for the next batch; a delete from a keyed table gives its key
    -- apply                     hands the batch over, be it empty
    -- expect v                  all rows of a view, in any order; `nothing` stands for no row
    -- expect changes v          the changes that the last batch made to v, weight last
    -- expect rejected t         rows of the last batch that t refused
    -- expect error: a [| b]     right after `-- apply` or the statements: it fails, and says so
    -- expect incremental [v]    nothing of the view (by default the last one) is recomputed
    -- expect recompute R [v]    it is, for the reason R
    -- session SQL               runs in the Spark session, before the statements or between steps

A row is a tuple of Spark SQL expressions: NULL, DATE'2024-02-29', double('NaN'), array(1, NULL).
Those of a put or delete are cast to the types of the table. A comment starts with a capital letter;
anything else behind `--` is an error, lest a misspelt expectation expect nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import sqlglot
from sqlglot import exp

FOLDER = Path(__file__).resolve().parent / "sql_cases"

Tuples: TypeAlias = "tuple[tuple[str, ...], ...]"
"""Rows of Spark SQL expressions."""


@dataclass(frozen=True, slots=True)
class Put:
    table: str
    rows: Tuples


@dataclass(frozen=True, slots=True)
class Delete:
    table: str
    rows: Tuples


@dataclass(frozen=True, slots=True)
class Apply:
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Expect:
    view: str
    rows: Tuples


@dataclass(frozen=True, slots=True)
class ExpectChanges:
    view: str
    rows: Tuples


@dataclass(frozen=True, slots=True)
class ExpectRejected:
    table: str
    rows: Tuples


@dataclass(frozen=True, slots=True)
class ExpectRule:
    view: str
    reason: str | None
    """Why it is recomputed; None if it is not."""


@dataclass(frozen=True, slots=True)
class Session:
    sql: str


Step: TypeAlias = (
    Put | Delete | Apply | Expect | ExpectChanges | ExpectRejected | ExpectRule | Session
)


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    types: dict[str, str]
    """Every column with its type, in order."""
    key: tuple[str, ...]


@dataclass(slots=True)
class Case:
    place: str
    """File and line."""
    traps: tuple[int, ...]
    sentence: str
    before: list[Session] = field(default_factory=list)
    sql: str = ""
    open_error: str | None = None
    tables: dict[str, Table] = field(default_factory=dict)
    views: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    """The views that are materialized."""
    steps: list[Step] = field(default_factory=list)

    @property
    def id(self) -> str:
        file = self.place.partition(":")[0].removesuffix(".sql")
        return f"{file}-{re.sub('[^a-z0-9]+', '_', self.sentence.lower()).strip('_')}"


class FormatError(ValueError):
    """A case file that cannot be read, with file and line."""


def all_cases(folder: Path = FOLDER) -> list[Case]:
    files = sorted(folder.glob("*.sql"))
    return [case for file in files for case in cases_in(file.read_text("utf-8"), file.name)]


def cases_in(text: str, file: str) -> list[Case]:
    cases: list[Case] = []
    for number, directive, body in blocks(text, file):
        place = f"{file}:{number}"
        trap = re.fullmatch(r"trap (\d+(?:, \d+)*): (.+)", directive)
        if trap:
            traps = tuple(int(n) for n in trap[1].split(", "))
            cases.append(Case(place, traps, trap[2]))
        elif not cases:
            raise FormatError(f"{place}: {directive!r} stands before the first case")
        elif not directive.startswith("session "):
            take_step(cases[-1], directive, body, place)
            continue
        elif cases[-1].sql:
            cases[-1].steps.append(Session(directive.removeprefix("session ")))
        else:
            cases[-1].before.append(Session(directive.removeprefix("session ")))
        if body.strip():
            take_statements(cases[-1], body, place)
    for case in cases:
        check(case)
    return cases


def blocks(text: str, file: str) -> Iterator[tuple[int, str, str]]:
    """Each directive with its line number and the lines below it."""
    number, directive, body = 0, "", ""
    for at, line in enumerate(text.splitlines(), start=1):
        comment = re.match(r"--\s*(.*)", line)
        if comment is None:
            body += line + "\n"
        elif re.match(r"[a-z]", comment[1]):
            if directive:
                yield number, directive, body
            elif body.strip():
                raise FormatError(f"{file}:{at}: text before the first case")
            number, directive, body = at, comment[1].strip(), ""
        elif comment[1] and not comment[1][0].isupper():
            raise FormatError(f"{file}:{at}: neither a directive nor a sentence: {line}")
    if directive:
        yield number, directive, body


VIEW = re.compile(r"CREATE (MATERIALIZED )?VIEW (\w+|`[^`]+`) ")


def take_statements(into: Case, body: str, place: str) -> None:
    into.sql += body
    # Views are not parsed: what is a view is for the engine to find out.
    for statement in re.split(r";\s*(?:\n|$)", body.strip()):
        view = VIEW.match(statement)
        if view:
            into.views.append(view[2].strip("`"))
            into.stored += into.views[-1:] if view[1] else []
        elif statement.startswith("CREATE TABLE "):
            table = table_of(sqlglot.parse_one(statement, dialect="spark").this)
            into.tables[table.name] = table
        elif statement:
            raise FormatError(f"{place}: creates neither a table nor a view: {statement}")


def table_of(schema: exp.Schema) -> Table:
    types, key = {}, []
    for part in schema.expressions:
        if isinstance(part, exp.ColumnDef):
            types[part.name] = part.args["kind"].sql(dialect="spark")
            if any(isinstance(c.kind, exp.PrimaryKeyColumnConstraint) for c in part.constraints):
                key.append(part.name)
        else:
            primary = part.find(exp.PrimaryKey)
            key += [column.name for column in primary.expressions]
    return Table(schema.this.name, types, tuple(key))


def take_step(into: Case, directive: str, body: str, place: str) -> None:
    step: Step | None = None
    match directive.split():
        case ["put", table]:
            step = Put(table, rows_in(body, place))
        case ["delete", table]:
            step = Delete(table, rows_in(body, place))
        case ["expect", "changes", view]:
            step = ExpectChanges(view, rows_in(body, place))
        case ["expect", "rejected", table]:
            step = ExpectRejected(table, rows_in(body, place))
        case ["expect", "incremental", *view] if len(view) <= 1:
            step = ExpectRule((view or into.views[-1:])[0], None)
        case ["expect", "recompute", reason, *view] if len(view) <= 1:
            step = ExpectRule((view or into.views[-1:])[0], reason)
        case ["expect", "error:", *_]:
            expect_error(into, directive.removeprefix("expect error:").strip(), place)
        case ["expect", view]:
            step = Expect(view, rows_in(body, place))
        case ["apply"]:
            step = Apply()
        case _:
            raise FormatError(f"{place}: unknown directive: {directive}")
    if step is not None:
        into.steps.append(step)
    if body.strip() and not hasattr(step, "rows"):
        raise FormatError(f"{place}: {directive!r} takes no rows: {body.strip()}")


def expect_error(case: Case, text: str, place: str) -> None:
    if not case.steps:
        case.open_error = text
    elif case.steps[-1] == Apply():
        case.steps[-1] = Apply(text)
    else:
        raise FormatError(f"{place}: an error comes right after what raises it")


def check(case: Case) -> None:
    """Names exist, and rows have as many values as their table has columns."""
    if not case.views:
        raise FormatError(f"{case.place}: a case without a view")
    expects = case.open_error is not None
    for step in case.steps:
        match step:
            case Put() | Delete():
                if step.table not in case.tables:
                    raise FormatError(f"{case.place}: no table {step.table}")
                for row in step.rows:
                    if len(row) != len(columns_for(case, step)):
                        raise FormatError(f"{case.place}: {step.table} has no such row: {row}")
            case ExpectRejected():
                if step.table not in case.tables:
                    raise FormatError(f"{case.place}: no table {step.table}")
            case Expect() | ExpectChanges() | ExpectRule():
                expects = True
                if step.view not in case.views:
                    raise FormatError(f"{case.place}: no view {step.view}")
            case Apply():
                expects = expects or step.error is not None
    if not expects:
        raise FormatError(f"{case.place}: expects nothing")


def columns_for(case: Case, step: Put | Delete) -> dict[str, str]:
    """The columns a put or delete gives, with their types."""
    table = case.tables[step.table]
    if isinstance(step, Delete) and table.key:
        return {name: table.types[name] for name in table.key}
    return table.types


def rows_in(text: str, place: str) -> Tuples:
    text = text.strip()
    if text == "nothing":
        return ()
    rows = []
    for part in split(text):
        if not (part.startswith("(") and part.endswith(")")):
            raise FormatError(f"{place}: not a row: {part or '(empty)'}")
        rows.append(tuple(split(part[1:-1])))
    return tuple(rows)


def split(text: str) -> list[str]:
    """At the commas outside of quotes and parentheses."""
    parts, depth = [""], 0
    for piece in re.findall(r"'(?:[^'\\]|\\.|'')*'|[(),\[\]]|[^'(),\[\]]+|.", text, re.DOTALL):
        depth += (piece in "([") - (piece in ")]")
        if piece == "," and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def query_for(case: Case) -> str:
    """One query with one row and a column per step: its rows as an array, or a struct, of structs.

    Rows that go in share the types of their table. Rows that are expected have no types but their
    own, so that none of them is rounded to fit.
    """
    columns = []
    for number, step in enumerate(case.steps):
        match step:
            case Put() | Delete() if step.rows:
                types = columns_for(case, step)
                rows = [struct(zip(types, row, types.values(), strict=True)) for row in step.rows]
                columns.append(f"array({', '.join(rows)}) AS s{number}")
            case Expect() | ExpectChanges() | ExpectRejected() if step.rows:
                rows = [
                    f"'r{i}', {struct((f'c{j}', value, None) for j, value in enumerate(row))}"
                    for i, row in enumerate(step.rows)
                ]
                columns.append(f"named_struct({', '.join(rows)}) AS s{number}")
    return f"SELECT {', '.join(columns) or 'NULL'}"


def struct(fields: Iterable[tuple[str, str, str | None]]) -> str:
    parts = (
        f"'{name}', " + (f"CAST({value} AS {type})" if type else value)
        for name, value, type in fields
    )
    return f"named_struct({', '.join(parts)})"
