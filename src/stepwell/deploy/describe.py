"""DESCRIBE, SHOW TABLES and SHOW VIEWS: answered from the statements, without reading a row.

DESCRIBE t     col_name, data_type, comment: a row for each column
SHOW TABLES    name, key
SHOW VIEWS     name, kind
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from stepwell.deploy.pipeline import letters_quoted
from stepwell.deploy.project import Project
from stepwell.errors import InvalidError
from stepwell.lsm.arrow_types import spark_type
from stepwell.lsm.dead_letter import ERRORS, LETTER, LETTER_TYPES
from stepwell.sql.statements import Column, MaterializedView, Table, fold
from stepwell.text import Source, Tokens, did_you_mean, quote_name

Ask = Callable[[str], pa.Table]
_DESCRIBED = ("col_name", "data_type", "comment")
_HINT = "SHOW TABLES, SHOW VIEWS or DESCRIBE NAME"


def described(project: Project, sql: str, ask: Ask) -> pa.Table | None:
    """Answer a DESCRIBE or SHOW statement; None if `sql` is another statement.

    `ask` runs a query. It is used for the columns of a view, whose types Spark has decided.
    """
    tokens = Tokens(Source("query", letters_quoted(sql)))
    if tokens.skip("SHOW"):
        return _shown(project, tokens)
    if tokens.skip("DESCRIBE") or tokens.skip("DESC"):
        return _relation(project, tokens, ask)
    return None


def _shown(project: Project, tokens: Tokens) -> pa.Table:
    if tokens.skip("TABLES"):
        _end(tokens)
        tables = project.tables.values()
        return _texts(
            ("name", "key"), [(table.name, ", ".join(table.key) or None) for table in tables]
        )
    if tokens.skip("MATERIALIZED", "VIEWS"):
        _end(tokens)
        stored = [v.name for v in project.views.values() if isinstance(v, MaterializedView)]
        return _texts(("name", "kind"), [(name, "materialized view") for name in stored])
    if tokens.skip("VIEWS"):
        _end(tokens)
        kinds = {True: "materialized view", False: "view"}
        views = project.views.values()
        return _texts(
            ("name", "kind"), [(v.name, kinds[isinstance(v, MaterializedView)]) for v in views]
        )
    raise tokens.unexpected("expected TABLES or VIEWS", hint=_HINT)


def _relation(project: Project, tokens: Tokens, ask: Ask) -> pa.Table:
    tokens.skip("TABLE")
    name = tokens.name("the name of a table or view", limited=False).value
    _end(tokens)
    tables = {fold(table.name): table for table in project.tables.values()}
    if fold(name) in tables:
        table = tables[fold(name)]
        return _texts(_DESCRIBED, [_column(table, column) for column in table.columns])
    if fold(name).endswith(ERRORS) and fold(name).removesuffix(ERRORS) in tables:
        letters = zip(LETTER, LETTER_TYPES, strict=True)
        return _texts(_DESCRIBED, [(column, kind, None) for column, kind in letters])
    for view in project.views.values():
        if fold(view.name) == fold(name):
            empty = ask(f"SELECT * FROM {quote_name(view.name)} WHERE FALSE")
            return _texts(_DESCRIBED, [(f.name, _type(project, f), None) for f in empty.schema])
    names = [statement.name for statement in project.statements]
    raise InvalidError(
        f"there is no table or view {name}",
        hint=did_you_mean(name, names) or "there are: " + ", ".join(names),
    )


def _type(project: Project, field: pa.Field) -> str | None:
    """Return the type of a view's column; None if the executor computes without types."""
    if pa.types.is_null(field.type) and project.sections.executor != "spark":
        return None
    return spark_type(field.type)


def _column(table: Table, column: Column) -> tuple[str, str, str | None]:
    details = [
        "primary key" if column.name in table.key else "",
        "not null" if not column.nullable and column.name not in table.key else "",
        column.comment or "",
    ]
    return column.name, column.type, "; ".join(filter(None, details)) or None


def _end(tokens: Tokens) -> None:
    tokens.skip(";")
    if tokens.peek().kind != "end":
        raise tokens.unexpected("expected the end", hint=_HINT)


def _texts(names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return pa.table([pa.array(column, pa.string()) for column in columns], names=list(names))
