"""From the text of a query to algebra.

sqlglot parses and qualifies the text; only the structure is used. Spark's own reading of the text
is obtained elsewhere and compared: a query that the two read differently is recomputed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from sqlglot import exp, parse_one
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.generators.spark import SparkGenerator
from sqlglot.optimizer.qualify import qualify
from sqlglot.parsers.spark import SparkParser

from stepwell.plan import functions
from stepwell.plan.nodes import Names, Node
from stepwell.plan.reasons import Code, Unsupported
from stepwell.plan.shared import Shared
from stepwell.sql.catalog import Catalog, Defined
from stepwell.sql.correlation import GroupedJoin
from stepwell.sql.scope import DIALECT
from stepwell.sql.select import Converter
from stepwell.sql.sharing import shared_queries
from stepwell.text import Source, quote_name

_NAMED = "named"
"""Metadata key for facts that qualifying loses. On a join: it is by USING or NATURAL. On a query in
FROM or WITH: its column names. On a COALESCE: the user wrote it. On a field: it belongs to a time
window.
"""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A query as algebra: a node with the result's columns in order, and its name generator."""

    node: Node
    forms: tuple[str, ...]
    """The query as understood, in several spellings, to compare with Spark's reading: the user
    wrote one of them."""
    names: Names
    grouped: tuple[GroupedJoin, ...] = ()
    """To be checked once the types are known (`Lowering.check`)."""
    shared: tuple[Shared, ...] = ()
    """The queries that several parts of this one read, as scans of their names; each after those
    that it reads."""


def parse_query(text: str, catalog: Catalog, *, share: bool = False) -> Parsed:
    """Convert a query; raises `Unsupported` if it cannot be maintained incrementally.

    With `share`, queries of its WITH that are worth it are converted once. Otherwise each reference
    is replaced by the query, so the node reads nothing but the catalog's relations.
    """
    tree = read(text, catalog)
    names = Names(text + " ".join(str(entry) for entry in catalog.values()))
    to_share = frozenset[int]()
    if share:
        views = {n: entry.query for n, entry in catalog.items() if isinstance(entry, Defined)}
        to_share = shared_queries(tree, views)
    converter = Converter(catalog, names, to_share)
    relation = converter.query(tree)
    node = converter.exact(relation)
    return Parsed(node, forms_of(tree), names, tuple(converter.grouped), converter.shared)


def read(text: str, catalog: Catalog) -> exp.Query:
    """The qualified tree of a query."""
    schema = {name: dict.fromkeys(entry.columns, "unknown") for name, entry in catalog.items()}
    try:
        tree = parse_one(readable(text), dialect=_Read)
        if isinstance(tree, exp.Values):
            tree = parse_one(f"SELECT * FROM {text}", dialect=_Read)
        elif isinstance(tree, exp.Alias) and tree.this.name.upper() == "TABLE":
            # sqlglot reads TABLE t as a column with an alias.
            tree = parse_one(f"SELECT * FROM {text.strip()[5:]}", dialect=_Read)
        _refuse(tree)
        _name_time_windows(tree, catalog)
        _note(tree)
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
    _as_spark_joins(qualified)
    return qualified


def _name_time_windows(tree: exp.Expr, catalog: Catalog) -> None:
    """Replace `window.start`, in a query grouped by `window(...)`, with a field of that call.

    Spark resolves the column by its name, which no table has.
    """
    calls = functions.time_windows(tree)
    grouped = [call for call in calls if isinstance(call.parent, exp.Group)]
    if grouped and _calls_something_window(tree, catalog):
        raise Unsupported(
            Code.UNSUPPORTED_OPERATOR, "a table or column called window next to window(...)"
        )
    for call in calls:
        group = call.parent
        if isinstance(group, exp.Select) and call.arg_key == "expressions":
            # Spark names the column so, and outer queries use that name.
            call.replace(exp.alias_(call.copy(), "window"))
        if not isinstance(group, exp.Group) or not isinstance(group.parent, exp.Select):
            continue
        if sum(other.parent is group for other in grouped) > 1:
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "two time windows in one GROUP BY")
        for column in list(group.parent.find_all(exp.Column)):
            if column.find_ancestor(exp.Select) is not group.parent:
                continue
            if column.table.lower() == "window":
                field = exp.Dot(this=call.copy(), expression=column.this.copy())
                field.meta[_NAMED] = True
                column.replace(field)
            elif not column.table and column.name.lower() == "window":
                item = column.parent is group.parent and column.arg_key == "expressions"
                column.replace(exp.alias_(call.copy(), "window") if item else call.copy())


def _calls_something_window(tree: exp.Expr, catalog: Catalog) -> bool:
    """Whether `window.start` may be anything but a field of a time window."""
    read = {table.name.lower() for table in tree.find_all(exp.Table)}
    columns = [
        c for known, entry in catalog.items() if known.lower() in read for c in entry.columns
    ]
    aliases = [alias.name for alias in tree.find_all(exp.TableAlias)]
    aliases += [alias.alias for alias in tree.find_all(exp.Alias)]
    deep = any(c.args.get("db") and c.table.lower() == "window" for c in tree.find_all(exp.Column))
    return deep or "window" in {name.lower() for name in (*columns, *aliases)}


def _note(tree: exp.Expr) -> None:
    """Record what qualifying loses, and reject what it may misread.

    sqlglot turns USING and NATURAL into conditions and COALESCE; next to a RIGHT or FULL join it
    compares with the wrong side. It pushes column names of a query into that query, where ORDER BY
    and similar clauses would resolve to them.
    """
    for select in tree.find_all(exp.Select):
        joins = select.args.get("joins") or []
        one_sided = all(join.side in ("", "LEFT") for join in joins)
        for number, join in enumerate(joins):
            natural = join.method == "NATURAL"
            if not natural and not join.args.get("using"):
                continue
            if len(joins) > 1 and (not one_sided or (natural and number)):
                raise Unsupported(
                    Code.UNSUPPORTED_OPERATOR,
                    "a join by name next to a RIGHT, FULL or NATURAL join",
                )
            join.meta[_NAMED] = {key: join.args.get(key) for key in ("using", "method")}
    for named in tree.find_all(exp.CTE, exp.Subquery):
        alias = named.args.get("alias")
        listed = alias.args.get("columns") if alias is not None else None
        if listed and isinstance(named.this, exp.Query):
            if named.this.find(exp.Order, exp.Sort, exp.Cluster, exp.Having, exp.Qualify):
                raise Unsupported(
                    Code.UNSUPPORTED_OPERATOR,
                    "names for the columns of a query with ORDER BY, HAVING or QUALIFY",
                )
            named.meta[_NAMED] = list(listed)
    for part in tree.find_all(exp.Coalesce):
        part.meta[_NAMED] = True


def _as_spark_joins(tree: exp.Query) -> None:
    """For columns joined by name, use the one that Spark uses; in a FULL join, the first non-NULL.

    The columns are equal where both are present, but their types may differ.
    """
    for select in list(tree.find_all(exp.Select)):
        sides = {join.side for join in select.args.get("joins") or () if _NAMED in join.meta}
        if sides and "FULL" not in sides:
            for part in _made_of_joins(select):
                columns = [part.this, *part.expressions]
                part.replace(columns[-1 if "RIGHT" in sides else 0])
        if sides:
            _name_in_having(select, sides)


def _name_in_having(select: exp.Select, sides: set[str]) -> None:
    """Do the same in HAVING, where qualifying leaves columns joined by name unchanged."""
    having = select.args.get("having")
    conditions = [join.args.get("on") for join in select.args["joins"] if _NAMED in join.meta]
    pairs = {
        equal.this.name: equal.expression if "RIGHT" in sides else equal.this
        for on in conditions
        if on is not None
        for equal in on.find_all(exp.EQ)
        if isinstance(equal.this, exp.Column) and isinstance(equal.expression, exp.Column)
    }
    for column in list(having.find_all(exp.Column)) if having is not None else []:
        if column.table or column.name not in pairs:
            continue
        if column.find_ancestor(exp.Select) is not select:
            continue
        if "FULL" in sides or column.name in select.named_selects:
            raise Unsupported(Code.PARSE_MISMATCH, f"{column.name}, joined by name, in HAVING")
        column.replace(pairs[column.name].copy())


def _made_of_joins(select: exp.Select) -> list[exp.Coalesce]:
    """The COALESCE calls that qualifying made for columns joined by name, in this SELECT only."""
    names = _joined_names(select.args.get("joins") or ())
    return [
        part
        for part in select.find_all(exp.Coalesce)
        if _NAMED not in part.meta
        and part.find_ancestor(exp.Select) is select
        and _one_name([part.this, *part.expressions]) in names
    ]


def _joined_names(joins: Sequence[exp.Join]) -> set[str]:
    """The columns that joins by name compare; after qualifying, they are in conditions."""
    conditions = [join.args["on"] for join in joins if _NAMED in join.meta and join.args.get("on")]
    return {column.name for on in conditions for column in on.find_all(exp.Column)}


def _one_name(columns: Sequence[exp.Expr]) -> str | None:
    names = {column.name if isinstance(column, exp.Column) else None for column in columns}
    return names.pop() if len(names) == 1 else None


def forms_of(tree: exp.Query) -> tuple[str, ...]:
    """Texts of a qualified tree, one of which gives the same Spark plan as the user's text.

    They differ in `SELECT a AS a`, whose plan differs from that of `SELECT a` below a window.
    """
    return tuple(dict.fromkeys((_written(tree), _written(tree, twice=True))))


def _written(tree: exp.Query, *, twice: bool = False) -> str:
    """Undo qualifying: drop generated aliases and, unless `twice`, aliases equal to their column;
    restore joins by name and column lists; keep QUALIFY.
    """
    copy = tree.copy()
    for named in list(copy.find_all(exp.CTE, exp.Subquery)):
        if _NAMED in named.meta:
            named.args["alias"].set("columns", named.meta[_NAMED])
            for select in _selects(named.this):
                for item in list(select.expressions):
                    item.replace(item.unalias())
    for field in list(copy.find_all(exp.Dot)):
        if _NAMED in field.meta:
            field.replace(exp.column(field.expression, "window", quoted=True))
    for select in list(copy.find_all(exp.Select)):
        for part in _made_of_joins(select):
            part.replace(exp.column(exp.to_identifier(part.this.name, quoted=True)))
        for join in select.args.get("joins") or ():
            if _NAMED in join.meta:
                join.set("on", None)
                for key, value in join.meta[_NAMED].items():
                    join.set(key, value)
        is_value = isinstance(select.parent, exp.Subquery) and not isinstance(
            select.parent.parent, exp.From | exp.Join
        )
        for item in list(select.expressions):
            if isinstance(item, exp.Alias) and (
                (is_value and re.fullmatch(r"_col_\d+", item.alias))
                or (
                    not twice and isinstance(item.this, exp.Column) and item.this.name == item.alias
                )
            ):
                item.replace(item.this)
    return copy.sql(dialect=_Written, comments=False)


def _selects(query: exp.Expr) -> Iterator[exp.Select]:
    """The SELECTs that produce a query's rows."""
    if isinstance(query, exp.SetOperation):
        yield from _selects(query.left)
        yield from _selects(query.right)
    elif isinstance(query, exp.Subquery):
        yield from _selects(query.this)
    elif isinstance(query, exp.Select):
        yield query


class _Generator(SparkGenerator):
    TRANSFORMS: ClassVar = {k: v for k, v in SparkGenerator.TRANSFORMS.items() if k != exp.Select}


class _Written(Spark):
    """sqlglot's Spark dialect, but writing QUALIFY, which Spark supports."""

    Generator = _Generator


_AS_WRITTEN = frozenset(
    {
        *("DATE_SUB", "INSTR", "LOG", "LOG10", "LOG2", "SPACE"),
        *("TO_CHAR", "TO_UNIX_TIMESTAMP", "UNIX_DATE"),
    }
)
"""Functions that sqlglot reads as others, such as `log(x)` as `ln(x)`, `date_sub(x, 1)` as
`date_add(x, 1 * -1)`: Spark's plans differ. They keep their names."""


class _Parser(SparkParser):
    FUNCTIONS: ClassVar = {
        name: build for name, build in SparkParser.FUNCTIONS.items() if name not in _AS_WRITTEN
    }


class _Read(Spark):
    """sqlglot's Spark dialect, but without reading functions as others."""

    Parser = _Parser


def readable(text: str) -> str:
    """Quote `window` in `GROUP BY window(...)`, which sqlglot would read as a WINDOW clause."""
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
    if any(call.name.lower() == "session_window" for call in tree.find_all(exp.Anonymous)):
        raise Unsupported(Code.UNSUPPORTED_OPERATOR, "session_window(...)")
    if functions.reads_clock(tree):
        raise Unsupported(Code.TIME_DEPENDENT, "the query reads the clock")
    for star in tree.find_all(exp.Star):
        if not _is_plain_star(star):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "* inside an expression")


def _is_plain_star(star: exp.Star) -> bool:
    """Whether a star is an item of a SELECT list, or the only argument of a plain COUNT.

    Spark expands any other star, such as that of `hash(*)`, to columns; qualifying does not.
    """
    qualified = isinstance(star.parent, exp.Column)
    item: exp.Expr = star.parent if isinstance(star.parent, exp.Column) else star
    if isinstance(item.parent, exp.Select):
        return item.arg_key == "expressions"
    call = item.parent
    return not qualified and isinstance(call, exp.Count) and not call.expressions


def _quoted(schema: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """Quote the names of a schema: sqlglot parses them as SQL, so unusual ones need backticks."""
    return {
        quote_name(table): {quote_name(name): kind for name, kind in columns.items()}
        for table, columns in schema.items()
    }


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).split("\n")[0].split())
    # sqlglot finds no name for the parentheses.
    return "USING or NATURAL inside a join in parentheses" if said == "Unknown table:" else said
