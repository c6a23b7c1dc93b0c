"""From the text of a query to algebra.

sqlglot reads and qualifies the text; it is used for structure only. What Spark would make of the
text is asked of Spark elsewhere, and compared: a query that the two read differently is recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from stepwell.query import functions
from stepwell.query.algebra import Names, Node
from stepwell.query.reasons import Code, Unsupported
from stepwell.query.scope import DIALECT
from stepwell.query.select import Catalog, Converter, Defined, Stored
from stepwell.query.source import Source


@dataclass(frozen=True, slots=True)
class Parsed:
    """A query as algebra: a node with the result's columns in order, and the names it needs."""

    node: Node
    qualified: str
    """The query as it was understood, for comparing it with what Spark understands."""
    names: Names


def parse_query(text: str, catalog: Catalog) -> Parsed:
    """Convert a query; `Unsupported` where it cannot be kept incrementally."""
    tree = read(text, catalog)
    names = Names(text + " ".join(str(entry) for entry in catalog.values()))
    converter = Converter(catalog, names)
    relation = converter.query(tree)
    return Parsed(converter.exact(relation), tree.sql(dialect=DIALECT, comments=False), names)


def read(text: str, catalog: Catalog) -> exp.Query:
    """The qualified tree of a query."""
    schema = {name: dict.fromkeys(entry.columns, "unknown") for name, entry in catalog.items()}
    try:
        tree = parse_one(_readable(text), dialect=DIALECT)
        _refuse(tree)
        qualified = qualify(
            tree,
            schema=_quoted(schema),
            dialect=DIALECT,
            validate_qualify_columns=True,
            quote_identifiers=True,
        )
    except SqlglotError as error:
        raise Unsupported(Code.PARSE_MISMATCH, _one_line(error)) from error
    if not isinstance(qualified, exp.Query):
        raise Unsupported(Code.PARSE_MISMATCH, "this is not a query")
    return qualified


def _readable(text: str) -> str:
    """sqlglot takes `GROUP BY window(...)` for a WINDOW clause unless the name is quoted."""
    made: list[str] = []
    done = 0
    tokens = Source("query", text).tokens()
    for token, after in pairwise(tokens):
        if token.text.lower() == "window" and after.text == "(":
            made.append(f"{text[done : token.start]}`window`")
            done = token.end
    return "".join(made) + text[done:]


def _refuse(tree: exp.Expr) -> None:
    unstable = functions.unstable(tree)
    if unstable is not None:
        raise Unsupported(Code.NON_DETERMINISTIC, f"{unstable}()")
    if tree.find(exp.TableSample):
        raise Unsupported(Code.NON_DETERMINISTIC, "TABLESAMPLE")
    if functions.reads_clock(tree):
        raise Unsupported(Code.TIME_DEPENDENT, "the query reads the clock")


def _quoted(schema: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """sqlglot reads names in a schema as SQL, so that odd ones need their backticks."""

    def quote(name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    return {quote(t): {quote(c): kind for c, kind in cs.items()} for t, cs in schema.items()}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split("\n")[0].split())


def catalog_of(
    stored: Mapping[str, Sequence[str]], defined: Mapping[str, tuple[exp.Query, Sequence[str]]]
) -> Catalog:
    """A catalog of stored relations and of views that are only defined."""
    entries: dict[str, Stored | Defined] = {}
    for name, columns in stored.items():
        entries[name.lower()] = Stored(name, tuple(columns))
    for name, (query, columns) in defined.items():
        entries[name.lower()] = Defined(query, tuple(columns))
    return entries
