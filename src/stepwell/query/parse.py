"""From the text of a query to algebra.

sqlglot reads and qualifies the text; it is used for structure only. What Spark would make of the
text is asked of Spark elsewhere, and compared: a query that the two read differently is recomputed.
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

from stepwell.query import functions
from stepwell.query.algebra import Names, Node
from stepwell.query.reasons import Code, Unsupported
from stepwell.query.scope import DIALECT
from stepwell.query.select import Catalog, Converter, Defined, Stored
from stepwell.query.source import Source

_NAMED = "named"
"""What is noted of a join: that it is by USING or NATURAL; of a query in FROM or WITH: the names it
gives to its columns; of a COALESCE, that it is the user's; of a field, that it is of a time window.
"""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A query as algebra: a node with the result's columns in order, and the names it needs."""

    node: Node
    forms: tuple[str, ...]
    """The query as it was understood, for comparing it with what Spark understands: the user wrote
    one of these."""
    names: Names
    grouped: tuple[tuple[Node, Node, tuple[tuple[str, str], ...]], ...] = ()
    """Nodes with subqueries that were grouped by what is compared: right only if a row meets no
    more than one group."""


def parse_query(text: str, catalog: Catalog) -> Parsed:
    """Convert a query; `Unsupported` where it cannot be kept incrementally."""
    tree = read(text, catalog)
    names = Names(text + " ".join(str(entry) for entry in catalog.values()))
    converter = Converter(catalog, names)
    relation = converter.query(tree)
    node = converter.exact(relation)
    return Parsed(node, forms_of(tree), names, tuple(converter.grouped))


def read(text: str, catalog: Catalog) -> exp.Query:
    """The qualified tree of a query."""
    schema = {name: dict.fromkeys(entry.columns, "unknown") for name, entry in catalog.items()}
    try:
        tree = parse_one(readable(text), dialect=_Read)
        if isinstance(tree, exp.Values):
            tree = parse_one(f"SELECT * FROM {text}", dialect=_Read)
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
    """`window.start`, of a query grouped by `window(...)`, becomes what it is: a field of that.

    Spark knows the column by its name, which no table has.
    """
    calls = functions.time_windows(tree)
    grouped = [call for call in calls if isinstance(call.parent, exp.Group)]
    if grouped and _calls_something_window(tree, catalog):
        raise Unsupported(
            Code.UNSUPPORTED_OPERATOR, "a table or column called window beside window(...)"
        )
    for call in calls:
        group = call.parent
        if isinstance(group, exp.Select) and call.arg_key == "expressions":
            # So Spark calls it, and queries around this one.
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
    """Whether `window.start` may be something else than the field of a time window."""
    read = {table.name.lower() for table in tree.find_all(exp.Table)}
    columns = [
        c for known, entry in catalog.items() if known.lower() in read for c in entry.columns
    ]
    aliases = [alias.name for alias in tree.find_all(exp.TableAlias)]
    aliases += [alias.alias for alias in tree.find_all(exp.Alias)]
    deep = any(c.args.get("db") and c.table.lower() == "window" for c in tree.find_all(exp.Column))
    return deep or "window" in {name.lower() for name in (*columns, *aliases)}


def _note(tree: exp.Expr) -> None:
    """Keep what qualifying takes away, and refuse what it may take for something else.

    Of USING and NATURAL sqlglot makes conditions and COALESCE; beside a RIGHT or FULL join it takes
    the wrong side to compare with. Names for the columns of a query are pushed into it, where an
    ORDER BY and the like would find them.
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
                    Code.UNSUPPORTED_OPERATOR, "a join by name beside a RIGHT, FULL or NATURAL join"
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
    """Of columns joined by name, take the one that Spark takes; for FULL joins, the first not NULL.

    They are equal where both are there, but may be of different types.
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
    """The same in HAVING, where qualifying leaves columns joined by name as they are."""
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
    """What qualifying has made of columns that are joined by name, in this SELECT itself."""
    names = _joined_names(select.args.get("joins") or ())
    return [
        part
        for part in select.find_all(exp.Coalesce)
        if _NAMED not in part.meta
        and part.find_ancestor(exp.Select) is select
        and _one_name([part.this, *part.expressions]) in names
    ]


def _joined_names(joins: Sequence[exp.Join]) -> set[str]:
    """The columns that joins by name compare; qualified, those are conditions."""
    conditions = [join.args["on"] for join in joins if _NAMED in join.meta and join.args.get("on")]
    return {column.name for on in conditions for column in on.find_all(exp.Column)}


def _one_name(columns: Sequence[exp.Expr]) -> str | None:
    names = {column.name if isinstance(column, exp.Column) else None for column in columns}
    return names.pop() if len(names) == 1 else None


def forms_of(tree: exp.Query) -> tuple[str, ...]:
    """A qualified tree as texts, of one of which Spark makes the plan that it makes of the user's.

    They differ in `SELECT a AS a`, which is another plan than `SELECT a` beneath a window.
    """
    return tuple(dict.fromkeys((_written(tree), _written(tree, twice=True))))


def _written(tree: exp.Query, *, twice: bool = False) -> str:
    """Names are said once where they are said twice, unless they are to be, and not at all where
    nobody said one; joins by name and names of columns are again what they were, QUALIFY stays.
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
    """The SELECTs whose rows a query gives."""
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
    """sqlglot's Spark, which can write QUALIFY as Spark can."""

    Generator = _Generator


class _Parser(SparkParser):
    FUNCTIONS: ClassVar = {k: v for k, v in SparkParser.FUNCTIONS.items() if k != "LOG"}


class _Read(Spark):
    """sqlglot's Spark, which does not take `log(x)` for `ln(x)`: Spark makes another plan of it."""

    Parser = _Parser


def readable(text: str) -> str:
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
    if any(call.name.lower() == "session_window" for call in tree.find_all(exp.Anonymous)):
        raise Unsupported(Code.UNSUPPORTED_OPERATOR, "session_window(...)")
    if functions.reads_clock(tree):
        raise Unsupported(Code.TIME_DEPENDENT, "the query reads the clock")
    for star in tree.find_all(exp.Star):
        if not _is_plain_star(star):
            raise Unsupported(Code.UNSUPPORTED_OPERATOR, "* inside an expression")


def _is_plain_star(star: exp.Star) -> bool:
    """Whether a star is an item of a SELECT list, or all that a plain COUNT is given.

    Spark expands any other one, such as that of `hash(*)`, to columns; qualifying leaves it alone.
    """
    qualified = isinstance(star.parent, exp.Column)
    item: exp.Expr = star.parent if isinstance(star.parent, exp.Column) else star
    if isinstance(item.parent, exp.Select):
        return item.arg_key == "expressions"
    call = item.parent
    return not qualified and isinstance(call, exp.Count) and not call.expressions


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
