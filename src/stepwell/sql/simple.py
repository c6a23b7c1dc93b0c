"""Queries simple enough to be unambiguous: one relation, filtered, ordered, limited.

    SELECT items FROM relation [WHERE condition] [ORDER BY ...] [LIMIT n] [OFFSET n]

    items       *, columns, or COUNT(*), COUNT(c), MIN(c), MAX(c); AS gives a name
    condition   comparisons, [NOT] IN, BETWEEN, LIKE, IS [NOT] NULL; AND, OR, NOT, parentheses
    operands    columns; strings, integers, decimals, DATE and TIMESTAMP with a plain string

Everything else is `NotSimple`, which is not an error: Spark runs the query. So is everything that
Spark may read differently: words that are also keywords, aliases without AS, chained comparisons.
Nothing is looked up here; the evaluation checks whether columns exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot import exp

from stepwell.errors import NotApplicable, SqlError
from stepwell.text import Name, Source, Token, Tokens, string_value, unquote_name

NUMBER_MAX = 2**31 - 1
"""The largest LIMIT or OFFSET."""
DEPTH_MAX = 50
CALLS = ("COUNT", "MIN", "MAX")


class NotSimple(NotApplicable):
    """The query must go to Spark."""


@dataclass(frozen=True, slots=True)
class Item:
    """A column of the result."""

    column: str | None
    """As written; None for COUNT(*)."""
    call: str | None = None
    """One of `CALLS`."""
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    by: str | int
    """A name, or the position of a result column, starting at 1."""
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class SimpleQuery:
    relation: Name
    items: tuple[Item, ...]
    """Empty for `*`: every column."""
    where: exp.Expr | None
    """Over columns with lower-case names."""
    order: tuple[Order, ...]
    limit: int | None
    offset: int

    @property
    def aggregates(self) -> bool:
        return any(item.call is not None for item in self.items)


def parse_simple(sql: str) -> SimpleQuery:
    """Parse a simple query. Raises `NotSimple` for a text that may mean anything else to Spark."""
    if not sql.isprintable() and any(c not in "\n\t" and not c.isprintable() for c in sql):
        raise NotSimple("a character that may be white space, or not")
    try:
        return _Parser(sql).query()
    except SqlError as error:
        raise NotSimple(error.message) from error


class _Parser:
    def __init__(self, sql: str) -> None:
        self._source = Source("query", sql)
        self._tokens = Tokens(self._source)
        self._qualifiers: set[str] = set()

    def query(self) -> SimpleQuery:
        tokens = self._tokens
        self._expect("SELECT")
        written = self._items()
        self._expect("FROM")
        relation = self._name()
        qualifiers = {relation.value.lower()}
        if tokens.skip("AS"):
            qualifiers = {self._name().value.lower()}
        items = tuple(self._unqualified(item, parts, qualifiers) for item, parts in written)
        self._qualifiers = qualifiers
        where = self._either(0) if tokens.skip("WHERE") else None
        order: list[Order] = []
        if tokens.skip("ORDER", "BY"):
            order.append(self._ordered())
            while tokens.skip(","):
                order.append(self._ordered())
        limit = self._count() if tokens.skip("LIMIT") else None
        offset = self._count() if tokens.skip("OFFSET") else 0
        while tokens.skip(";"):
            pass
        if tokens.peek().kind != "end":
            raise NotSimple(f"{tokens.peek()}")
        made = SimpleQuery(relation, items, where, tuple(order), limit, offset)
        if made.aggregates and (order or any(item.call is None for item in items)):
            raise NotSimple("an aggregate with an order, or next to a column")
        return made

    def _items(self) -> list[tuple[Item, str | None]]:
        """The items, each with the qualifier before its dot."""
        if self._tokens.skip("*"):
            return []
        found = [self._item()]
        while self._tokens.skip(","):
            found.append(self._item())
        return found

    def _item(self) -> tuple[Item, str | None]:
        tokens = self._tokens
        call: str | None = None
        column: str | None = None
        qualifier: str | None = None
        word = tokens.peek()
        if word.kind == "word" and word.text.upper() in CALLS and tokens.at("(", ahead=1):
            if tokens.peek(1).start != word.end:
                raise NotSimple("a call with a space")
            call = word.text.upper()
            tokens.take()
            tokens.take()
            if not (call == "COUNT" and tokens.skip("*")):
                qualifier, column = self._column()
            self._expect(")")
        else:
            qualifier, column = self._column()
        alias = self._name().value if tokens.skip("AS") else None
        return Item(column, call, alias), qualifier

    def _unqualified(self, item: Item, qualifier: str | None, known: set[str]) -> Item:
        if qualifier is not None and qualifier.lower() not in known:
            raise NotSimple(qualifier)
        return item

    def _ordered(self) -> Order:
        tokens = self._tokens
        by: str | int
        if tokens.peek().text.isdigit() and tokens.peek().kind == "word":
            by = self._count()
        else:
            by = self._name().value
        descending = tokens.skip("DESC")
        if not descending:
            tokens.skip("ASC")
        nulls_first = not descending
        if tokens.skip("NULLS", "FIRST"):
            nulls_first = True
        elif tokens.skip("NULLS", "LAST"):
            nulls_first = False
        return Order(by, descending, nulls_first)

    def _count(self) -> int:
        token = self._tokens.take()
        if token.kind != "word" or not re.fullmatch(r"\d{1,10}", token.text, re.ASCII):
            raise NotSimple(f"{token}")
        self._check_apart(token)
        if int(token.text) > NUMBER_MAX:
            raise NotSimple("a large number")
        return int(token.text)

    # Conditions. As in Spark's grammar, NOT binds more tightly than AND, and AND than OR.

    def _either(self, depth: int) -> exp.Expr:
        if depth > DEPTH_MAX:
            raise NotSimple("nested deeply")
        found = self._both(depth)
        while self._tokens.skip("OR"):
            found = exp.Or(this=found, expression=self._both(depth))
        return found

    def _both(self, depth: int) -> exp.Expr:
        found = self._negated(depth)
        while self._tokens.skip("AND"):
            found = exp.And(this=found, expression=self._negated(depth))
        return found

    def _negated(self, depth: int) -> exp.Expr:
        if depth > DEPTH_MAX:
            raise NotSimple("nested deeply")
        if self._tokens.skip("NOT"):
            return exp.Not(this=self._negated(depth + 1))
        if self._tokens.skip("("):
            found = self._either(depth + 1)
            self._expect(")")
            self._check_over()
            return exp.Paren(this=found)
        return self._test()

    def _test(self) -> exp.Expr:
        tokens = self._tokens
        if tokens.at("TRUE") or tokens.at("FALSE"):
            found: exp.Expr = exp.Boolean(this=tokens.take().text.upper() == "TRUE")
            self._check_over()
            return found
        left = self._operand()
        comparison = self._comparison()
        if comparison is not None:
            found = comparison(this=left, expression=self._operand())
        elif tokens.skip("IS"):
            negated = tokens.skip("NOT")
            self._expect("NULL")
            found = _not(exp.Is(this=left, expression=exp.Null()), negated)
        else:
            negated = tokens.skip("NOT")
            found = _not(self._predicate(left), negated)
        self._check_over()
        return found

    def _predicate(self, left: exp.Expr) -> exp.Expr:
        tokens = self._tokens
        if tokens.skip("IN"):
            self._expect("(")
            values = [self._operand()]
            while tokens.skip(","):
                values.append(self._operand())
            self._expect(")")
            return exp.In(this=left, expressions=values)
        if tokens.skip("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            return exp.Between(this=left, low=low, high=self._operand())
        if tokens.skip("LIKE"):
            return exp.Like(this=left, expression=self._string())
        if isinstance(left, exp.Column) and self._is_over():
            return left
        raise NotSimple(f"{tokens.peek()}")

    def _comparison(self) -> type[exp.Binary] | None:
        token = self._tokens.peek()
        found = _COMPARISON.match(self._source.text, token.start)
        if found is None or token.kind != "symbol":
            return None
        self._skip_to(found.end())
        return _COMPARISONS[found[0]]

    def _operand(self) -> exp.Expr:
        tokens = self._tokens
        token = tokens.peek()
        negative = tokens.skip("-")
        number = _NUMBER.match(self._source.text, tokens.peek().start)
        if number is not None and tokens.peek().kind in ("word", "symbol"):
            self._skip_to(number.end())
            literal = exp.Literal.number(number[0])
            return exp.Neg(this=literal) if negative else literal
        if negative:
            raise NotSimple("a sign")
        if token.kind == "string":
            return self._string()
        if token.kind == "word" and tokens.peek(1).kind == "string":
            kind = token.text.upper()
            if kind not in ("DATE", "TIMESTAMP"):
                raise NotSimple(kind)
            tokens.take()
            return exp.Cast(this=self._string(), to=exp.DataType.build(kind))
        qualifier, column = self._column()
        if qualifier is not None and qualifier.lower() not in self._qualifiers:
            raise NotSimple(qualifier)
        return exp.column(exp.to_identifier(column.lower(), quoted=True))

    def _string(self) -> exp.Literal:
        token = self._tokens.take()
        if token.kind != "string" or not token.text.startswith("'") or "\\" in token.text:
            raise NotSimple(f"{token}")
        if self._tokens.peek().kind == "string":
            raise NotSimple("texts one after another")
        return exp.Literal.string(string_value(token.text))

    # Names

    def _column(self) -> tuple[str | None, str]:
        first = self._part()
        if not self._tokens.skip("."):
            return None, first.value
        second = self._part()
        if self._tokens.at(".") or self._tokens.at("["):
            raise NotSimple("a field")
        return first.value, second.value

    def _name(self) -> Name:
        found = self._part()
        if self._tokens.at("."):
            raise NotSimple("a name of several parts")
        return found

    def _part(self) -> Name:
        token = self._tokens.take()
        self._check_apart(token)
        if token.kind == "name":
            return Name(unquote_name(token.text), token.span)
        if token.kind != "word" or not _WORD.fullmatch(token.text) or token.text.upper() in WORDS:
            raise NotSimple(f"{token}")
        return Name(token.text, token.span)

    def _check_apart(self, token: Token) -> None:
        """Reject adjoining text, which may belong to it: `a$b`, `1e5`, `x:y`, `a[0]`, `f(x)`."""
        behind = self._source.text[token.end : token.end + 1]
        if (behind and behind not in " \n\t,.;()=<>!-") or self._tokens.at("("):
            raise NotSimple(f"{token}{behind}")

    def _expect(self, text: str) -> None:
        if not self._tokens.skip(text):
            raise NotSimple(f"{self._tokens.peek()}")

    def _skip_to(self, end: int) -> None:
        while self._tokens.peek().start < end:
            self._tokens.take()
        if self._tokens.last_end != end:
            raise NotSimple("a number and more")

    def _is_over(self) -> bool:
        tokens = self._tokens
        ends = ("AND", "OR", ")", "ORDER", "LIMIT", "OFFSET", ";")
        return tokens.peek().kind == "end" or any(tokens.at(text) for text in ends)

    def _check_over(self) -> None:
        """Check that the condition ends here; Spark may bind anything that follows more tightly."""
        if not self._is_over():
            raise NotSimple(f"{self._tokens.peek()}")


def _not(found: exp.Expr, negated: bool) -> exp.Expr:
    if not negated:
        return found
    if isinstance(found, exp.Column):
        raise NotSimple("NOT behind a column")
    return exp.Not(this=found)


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?![\w.])", re.ASCII)
_COMPARISON = re.compile(r"(?:<=>|<=|>=|<>|!=|==|=|<|>)(?![<>=!])")
_COMPARISONS: dict[str, type[exp.Binary]] = {
    "=": exp.EQ,
    "==": exp.EQ,
    "<>": exp.NEQ,
    "!=": exp.NEQ,
    "<": exp.LT,
    "<=": exp.LTE,
    ">": exp.GT,
    ">=": exp.GTE,
    "<=>": exp.NullSafeEQ,
}
_KEYWORDS = """
    ALL AND ANTI ANY AS ASC AUTHORIZATION BETWEEN BY CALL CASE CAST CLUSTER COLLATE
    COLLATION CREATE CROSS CUBE CURRENT_CATALOG CURRENT_DATABASE CURRENT_DATE CURRENT_PATH
    CURRENT_SCHEMA CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER DEFAULT DELETE DESC DISTINCT
    DISTRIBUTE DIV DROP ELSE END ESCAPE EXCEPT EXECUTE EXISTS EXTRACT FALSE FETCH FOR FROM
    FULL GRANT GROUP GROUPING HAVING IDENTIFIER ILIKE IN INNER INSERT INTERSECT INTERVAL INTO IS
    JOIN LATERAL LEFT LIKE LIMIT LOCALTIME LOCALTIMESTAMP MERGE MINUS NAMED_STRUCT NATURAL
    NOT NULL NULLS OFFSET ON OR ORDER OUTER OVER OVERLAPS OVERLAY PIVOT PRIMARY QUALIFY
    RECURSIVE REFERENCES REGEXP RIGHT RLIKE ROLLUP SELECT SEMI SESSION_USER SET SETS SOME SORT
    STRUCT SUBSTR SUBSTRING TABLE TABLESAMPLE THEN TO TRANSFORM TRIM TRUE TRY_CAST UNION
    UNKNOWN UNPIVOT UPDATE USER USING VALUES WHEN WHERE WINDOW WITH WITHIN WITHOUT
"""
WORDS = frozenset(re.findall(r"\w+", _KEYWORDS))
"""Words that Spark may read as something other than a name, so they need backticks here."""
