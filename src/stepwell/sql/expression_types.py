"""Types of expressions, and the mistakes in them: one method per group of operators.

`Typing.infer` returns the type of an expression, None if it is unknown, and reports what Spark
certainly refuses. Names and subqueries are the concern of its subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from sqlglot import exp

from stepwell.errors import SqlError
from stepwell.plan.coercion import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    VOID,
    Known,
    arithmetic,
    averaged,
    common_type,
    contains_map,
    kind,
    known,
    never_alike,
    refuses_arithmetic,
    refuses_cast,
    summed,
)
from stepwell.plan.functions import is_generator, name_of
from stepwell.plan.numbers import DIGITS_MAX
from stepwell.plan.types import Field, SparkType, parse_type
from stepwell.sql.scope import DIALECT, shorten

if TYPE_CHECKING:
    from stepwell.sql.type_mistakes import Scope

_SIGNS: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_NESTED = frozenset({"array", "map", "struct"})
_NO_NUMBER = _NESTED | {"boolean", "binary", "time"}
_NO_DATE = _NESTED | {"boolean", "binary", "number", "months", "seconds"}
_NO_BITS = _NESTED | {"boolean", "time"}
_PLAIN = frozenset({"boolean", "number", "string", "binary", "time", "months", "seconds"})
_TEXT_MAY = frozenset({"AND", "OR", "NOT", "IS TRUE"})
"""Where Spark reads a text as a condition."""
_UNITS = {
    unit.upper(): parse_type(f"interval {unit}")
    for unit in ("year", "month", "day", "hour", "minute", "second")
}
_DATE_PARTS = (exp.Year, exp.Month, exp.Quarter, exp.DayOfMonth, exp.DayOfWeek, exp.DayOfYear)
_RANKS = (exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile)
_REFUSED: tuple[tuple[tuple[type[exp.Expr], ...], frozenset[str], str], ...] = (
    (
        (
            exp.Sum,
            exp.Avg,
            exp.Stddev,
            exp.StddevPop,
            exp.StddevSamp,
            exp.Variance,
            exp.VariancePop,
        ),
        _NO_NUMBER,
        "a number",
    ),
    ((exp.Round, exp.Floor, exp.Ceil, exp.Sqrt, exp.Exp, exp.Ln, exp.Abs), _NO_NUMBER, "a number"),
    ((exp.Upper, exp.Lower, exp.Trim), _NESTED, "a text"),
    (_DATE_PARTS, _NO_DATE, "a date"),
    (
        (exp.LogicalAnd, exp.LogicalOr, exp.CountIf),
        _NESTED | {"number", "time", "binary", "months", "seconds"},
        "a condition",
    ),
    (
        (exp.Explode, exp.ExplodeOuter, exp.Posexplode, exp.PosexplodeOuter),
        _PLAIN | {"struct"},
        "an array or a map",
    ),
    ((exp.Inline,), _PLAIN | {"struct", "map"}, "an array of structs"),
    ((exp.ArraySize,), _PLAIN | {"struct"}, "an array or a map"),
)
"""Functions, the kinds of their first argument that Spark refuses, and what they take."""


def type_text(type: Known) -> str:
    """A type as messages show it.

    >>> type_text(parse_type("array<decimal(12,2)>"))
    'ARRAY<DECIMAL(12,2)>'
    """
    text = "unknown" if type is None else str(type)
    return text if type is not None and any(part.fields for part in type.walk()) else text.upper()


class Typing:
    """Infers the types of the expressions of a query."""

    errors: list[SqlError]

    # To be defined by a subclass

    def wrong(self, node: exp.Expr, message: str, hint: str) -> None:
        raise NotImplementedError

    def column(self, node: exp.Column, scope: Scope) -> Known:
        raise NotImplementedError

    def subquery(self, node: exp.Expr, scope: Scope) -> Sequence[Known] | None:
        raise NotImplementedError

    # Expressions

    def infer(self, node: exp.Expr, scope: Scope) -> Known:
        """The type of an expression; reports the mistakes in it."""
        if isinstance(node, exp.Lambda | exp.Kwarg):
            return None  # Its parameters are names of its own.
        for kinds, rule in self._RULES:
            if isinstance(node, kinds):
                return rule(self, node, scope)
        if isinstance(node, exp.Query):
            self.subquery(node, scope)
            return None
        self._parts(node, scope)
        return None

    def condition(self, node: exp.Expr, scope: Scope, where: str) -> None:
        """Check an expression that has to be a BOOLEAN."""
        type = self.infer(node, scope)
        if where in ("HAVING", "QUALIFY") and not refuses_cast(type, BOOLEAN):
            return  # Spark converts these to BOOLEAN, and no other condition.
        text = kind(type) == "string" and (where in _TEXT_MAY or isinstance(node, exp.Literal))
        if kind(type) not in (None, "boolean") and not text:
            self.wrong(
                node,
                f"{where} needs a condition, but {_shown(node)} is {type_text(type)}",
                f"compare it with something, as in {_shown(node)} = ..."
                if kind(type) == "number"
                else "write a condition, such as a comparison",
            )

    def ordered(self, node: exp.Expr, scope: Scope, where: str) -> None:
        """Check an expression that rows are sorted by."""
        inner = node.this if isinstance(node, exp.Ordered) else node
        self._no_map(inner, self.infer(inner, scope), f"{where} sorts by {_shown(inner)}")

    def common(self, types: Iterable[Known]) -> Known:
        found: Known = VOID
        for type in types:
            found = common_type(found, type)
        return found

    def part(self, node: exp.Expr, base: Known, name: exp.Expr) -> Known:
        """The type of a field of a value."""
        if base is None:
            return None
        if base.name == "struct":
            types = [f.type for f in base.fields if f.name.lower() == name.name.lower()]
            if not types:
                fields = ", ".join(f.name for f in base.fields)
                self.wrong(node, f"{_shown(node)}: there is no such field", f"it has: {fields}")
            return known(types[0]) if len(types) == 1 else None
        if kind(base) in _PLAIN:
            self.wrong(
                node,
                f"{_shown(node)} reads a field of a value that is {type_text(base)}",
                "only a STRUCT has fields",
            )
        return None

    def makes_columns(self, item: exp.Expr) -> bool:
        """Whether an item of a SELECT list may give several columns."""
        call = item.unalias()
        return is_generator(call) or isinstance(call, exp.Anonymous | exp.UDTF)

    def _no_map(self, node: exp.Expr, type: Known, what: str) -> None:
        if contains_map(type):
            self.wrong(
                node,
                f"{what}, but a value of type {type_text(type)} cannot be compared",
                "use map_entries(...), whose result can be compared, or its single values",
            )

    def _parts(self, node: exp.Expr, scope: Scope) -> None:
        for child in node.iter_expressions():
            self.infer(child, scope)

    def _alike(self, nodes: Sequence[exp.Expr], scope: Scope, what: str) -> Known:
        """The common type of several values, of which one is chosen."""
        types = [self.infer(node, scope) for node in nodes]
        typed = [pair for pair in zip(nodes, types, strict=True) if kind(pair[1]) is not None]
        for (a, one), (b, other) in pairwise(typed):
            if never_alike(one, other):
                self.wrong(
                    b,
                    f"{what} chooses between {_shown(a)}, which is {type_text(one)}, and "
                    f"{_shown(b)}, which is {type_text(other)}",
                    "give all of them one type, if need be with CAST",
                )
                return None
        return self.common(types)

    # Rules

    def _name(self, node: exp.Column, scope: Scope) -> Known:
        return self.column(node, scope)

    def _literal(self, node: exp.Literal, scope: Scope) -> Known:
        if node.is_string:
            return STRING
        text = str(node.this).lower()
        if text.isdigit():
            for type, bits in ((INT, 31), (BIGINT, 63)):
                if int(text) < 2**bits:
                    return type
            return parse_type(f"decimal({len(text)},0)") if len(text) <= DIGITS_MAX else None
        whole, point, rest = text.partition(".")
        if point and (whole + rest).isdigit():
            digits = max(len((whole + rest).lstrip("0")), len(rest), 1)
            return parse_type(f"decimal({digits},{len(rest)})") if digits <= DIGITS_MAX else None
        return DOUBLE if "e" in text else None

    def _constant(self, node: exp.Expr, scope: Scope) -> Known:
        return BOOLEAN if isinstance(node, exp.Boolean) else VOID

    def _inner(self, node: exp.Expr, scope: Scope) -> Known:
        """A node that does not change the type of its operand."""
        for key, value in node.args.items():
            if key != "this":
                for other in value if isinstance(value, list) else [value]:
                    if isinstance(other, exp.Expr):
                        self.infer(other, scope)
        return self.infer(node.this, scope)

    def _alias(self, node: exp.Alias, scope: Scope) -> Known:
        if isinstance(node.args.get("alias"), exp.Placeholder):
            return None  # A path into a VARIANT, v:a.
        return self.infer(node.this, scope)

    def _cast(self, node: exp.Cast, scope: Scope) -> Known:
        value = self.infer(node.this, scope)
        try:
            to = known(parse_type(node.to.sql(dialect=DIALECT)))
        except SqlError:
            return None
        if not node.args.get("safe") and refuses_cast(value, to):
            self.wrong(
                node,
                f"CAST({_shown(node.this)} AS {type_text(to)}): {_shown(node.this)} is "
                f"{type_text(value)}, which Spark does not convert",
                "see what can be converted under ANSI in Spark's SQL reference",
            )
        return to

    def _comparison(self, node: exp.Binary, scope: Scope) -> Known:
        self._compare(node, node.left, node.right, scope)
        return BOOLEAN

    def _compare(self, node: exp.Expr, left: exp.Expr, right: exp.Expr, scope: Scope) -> None:
        a, b = self.infer(left, scope), self.infer(right, scope)
        self._compared(node, left, a, right, b)

    def _compared(
        self, node: exp.Expr, left: exp.Expr, a: Known, right: exp.Expr, b: Known
    ) -> None:
        if never_alike(a, b):
            self.wrong(
                node,
                f"{_shown(left)} is {type_text(a)} and {_shown(right)} is {type_text(b)}: "
                "they cannot be compared",
                "convert one of them with CAST, or compare another column",
            )
        elif kind(a) == kind(b):
            self._no_map(node, a, f"{_shown(left)} is compared with {_shown(right)}")

    def _junction(self, node: exp.Expr, scope: Scope) -> Known:
        for operand in node.iter_expressions():
            self.condition(operand, scope, node.key.upper())
        return BOOLEAN

    def _arithmetic(self, node: exp.Binary, scope: Scope) -> Known:
        a, b = self.infer(node.left, scope), self.infer(node.right, scope)
        sign = _SIGNS[type(node)]
        if refuses_arithmetic(sign, a, b):
            parts = [(node.left, a), (node.right, b)]
            named = " and ".join(f"{_shown(item)} is {type_text(t)}" for item, t in parts if t)
            self.wrong(
                node,
                f"{_shown(node)} cannot be computed: {named}",
                "convert with CAST, or compute with another column",
            )
            return None
        if sign == "div":
            return BIGINT if a and b else None
        literal = _is_literal(node.left) or _is_literal(node.right)
        if literal and "decimal" in (a and a.name, b and b.name):
            return None  # The literal has as many digits as it is written with.
        return arithmetic(sign, a, b)

    def _negative(self, node: exp.Neg, scope: Scope) -> Known:
        type = self.infer(node.this, scope)
        self._takes(node, "-", node.this, type, _NO_NUMBER, "a number")
        return type if kind(type) == "number" else None

    def _bits(self, node: exp.Expr, scope: Scope) -> Known:
        types = []
        for operand in node.iter_expressions():
            type = self.infer(operand, scope)
            types.append(type)
            self._takes(node, "a bit operator", operand, type, _NO_BITS, "an integer")
        return None

    def _interval(self, node: exp.Interval, scope: Scope) -> Known:
        self._parts(node, scope)
        unit = node.args.get("unit")
        return _UNITS.get(unit.name.upper()) if isinstance(unit, exp.Var) else None

    def _is(self, node: exp.Is, scope: Scope) -> Known:
        if isinstance(node.expression, exp.Boolean):
            self.condition(node.this, scope, "IS TRUE")
        else:
            self._parts(node, scope)
        return BOOLEAN

    def _in(self, node: exp.In, scope: Scope) -> Known:
        query = node.args.get("query")
        if query is None:
            value = self.infer(node.this, scope)
            for item in node.expressions:
                self._compared(node, node.this, value, item, self.infer(item, scope))
            return BOOLEAN
        value = node.this.unnest()
        values = value.expressions if isinstance(value, exp.Tuple) else [value]
        types = [self.infer(item, scope) for item in values]
        found = self.subquery(query, scope)
        if isinstance(value, exp.Struct):
            return BOOLEAN  # Spark may compare its fields one by one.
        if found is not None and len(found) != len(values):
            self.wrong(
                node,
                f"IN compares {len(values)} with {len(found)} columns",
                "give the subquery as many columns as there are values before IN",
            )
        for item, type, other in zip(values, types, found or (), strict=False):
            if never_alike(type, other):
                self.wrong(
                    item,
                    f"{_shown(item)} is {type_text(type)}, and the subquery of IN gives "
                    f"{type_text(other)}: they cannot be compared",
                    "convert one of them with CAST, or select another column",
                )
        return BOOLEAN

    def _between(self, node: exp.Between, scope: Scope) -> Known:
        value = self.infer(node.this, scope)
        for bound in (node.args["low"], node.args["high"]):
            self._compared(node, node.this, value, bound, self.infer(bound, scope))
        return BOOLEAN

    def _like(self, node: exp.Expr, scope: Scope) -> Known:
        for operand in node.iter_expressions():
            type = self.infer(operand, scope)
            self._takes(node, node.key.upper(), operand, type, _NESTED, "a text")
        return BOOLEAN

    def _case(self, node: exp.Case, scope: Scope) -> Known:
        value = None if node.this is None else self.infer(node.this, scope)
        for branch in node.args["ifs"]:
            if node.this is None:
                self.condition(branch.this, scope, "WHEN")
            else:
                self._compared(
                    branch, node.this, value, branch.this, self.infer(branch.this, scope)
                )
        results = [branch.args["true"] for branch in node.args["ifs"]]
        default = node.args.get("default")
        return self._alike([*results, *([default] if default else [])], scope, "CASE")

    def _if(self, node: exp.If, scope: Scope) -> Known:
        self.condition(node.this, scope, "IF")
        branches = [node.args.get(key) for key in ("true", "false")]
        return self._alike([branch for branch in branches if branch is not None], scope, "IF")

    def _coalesce(self, node: exp.Func, scope: Scope) -> Known:
        what = (name_of(node) or node.key).upper()
        return self._alike([node.this, *node.expressions], scope, what)

    def _nvl2(self, node: exp.Nvl2, scope: Scope) -> Known:
        self.infer(node.this, scope)
        return self._alike([node.args["true"], node.args["false"]], scope, "NVL2")

    def _nullif(self, node: exp.Nullif, scope: Scope) -> Known:
        self._compare(node, node.this, node.expression, scope)
        return None

    def _array(self, node: exp.Array, scope: Scope) -> Known:
        inner = self._alike(node.expressions, scope, "ARRAY")
        return None if inner is None or inner == VOID else SparkType("array", elements=(inner,))

    def _struct(self, node: exp.Struct, scope: Scope) -> Known:
        fields = []
        for item in node.expressions:
            named = isinstance(item, exp.PropertyEQ | exp.Alias)
            value = item.expression if isinstance(item, exp.PropertyEQ) else item
            type = self.infer(value, scope)
            if named and type is not None and item.name:
                fields.append(Field(item.name, type))
        whole = len(fields) == len(node.expressions) > 0
        return SparkType("struct", fields=tuple(fields)) if whole else None

    def _dot(self, node: exp.Dot, scope: Scope) -> Known:
        base = self.infer(node.this, scope)
        name = node.expression
        return self.part(node, base, name) if isinstance(name, exp.Identifier) else None

    def _element(self, node: exp.Bracket, scope: Scope) -> Known:
        base = self.infer(node.this, scope)
        for item in node.expressions:
            self.infer(item, scope)
        self._takes(node, "[]", node.this, base, _PLAIN, "an array, a map or a struct")
        return known(base.elements[-1]) if base is not None and base.elements else None

    def _scalar_subquery(self, node: exp.Subquery, scope: Scope) -> Known:
        found = self.subquery(node, scope)
        if found is not None and len(found) > 1:
            self.wrong(
                node,
                f"a subquery that stands for a value has {len(found)} columns",
                "select one column",
            )
            return None
        return found[0] if found else None

    def _exists(self, node: exp.Exists, scope: Scope) -> Known:
        if isinstance(node.this, exp.Query):
            self.subquery(node.this, scope)
        else:
            self._parts(node, scope)
        return BOOLEAN

    def _filter(self, node: exp.Filter, scope: Scope) -> Known:
        self.condition(node.expression.this, scope, "FILTER")
        return self.infer(node.this, scope)

    def _window(self, node: exp.Window, scope: Scope) -> Known:
        for part in node.args.get("partition_by") or ():
            self.infer(part, scope)
        order = node.args.get("order")
        for part in order.expressions if order is not None else ():
            self.ordered(part, scope, "ORDER BY")
        return self.infer(node.this, scope)

    def _call(self, node: exp.Func, scope: Scope) -> Known:
        """A call whose first argument has a type that is checked, and that decides the result."""
        argument = node.this
        if isinstance(argument, exp.Distinct) and len(argument.expressions) == 1:
            argument = argument.expressions[0]
        if isinstance(node, _DATE_PARTS) and isinstance(argument, exp.TsOrDsToDate):
            argument = argument.this
        if not isinstance(argument, exp.Expr):
            return None
        type = self.infer(argument, scope)
        for key, value in node.args.items():
            for other in value if isinstance(value, list) else [value]:
                if key != "this" and isinstance(other, exp.Expr):
                    self.infer(other, scope)
        for calls, refused, takes in _REFUSED:
            if isinstance(node, calls):
                name = f"{name_of(node) or node.key}()"
                if not self._takes(node, name, argument, type, refused, takes):
                    return None
        if isinstance(node, exp.Min | exp.Max):
            self._no_map(node, type, f"{node.key}() compares {_shown(argument)}")
        result = _RESULTS.get(node.__class__)
        return None if result is None else result(type)

    def _takes(
        self,
        node: exp.Expr,
        name: str,
        operand: exp.Expr,
        type: Known,
        refused: frozenset[str],
        takes: str,
    ) -> bool:
        # A TIMESTAMP counts as a number where a date does not.
        if kind(type) not in refused or (takes == "a number" and type != DATE and _is_time(type)):
            return True
        self.wrong(
            node,
            f"{name} takes {takes}, but {_shown(operand)} is {type_text(type)}",
            "convert it with CAST, or use another column",
        )
        return False

    def _rank(self, node: exp.Func, scope: Scope) -> Known:
        self._parts(node, scope)
        return INT

    def _date_value(self, node: exp.Func, scope: Scope) -> Known:
        self._parts(node, scope)
        return DATE

    def _time_value(self, node: exp.Func, scope: Scope) -> Known:
        self._parts(node, scope)
        return TIMESTAMP

    def _counted(self, node: exp.Func, scope: Scope) -> Known:
        self._parts(node, scope)
        return BIGINT

    _RULES: ClassVar[Sequence[tuple[tuple[type[exp.Expr], ...], Callable[..., Known]]]] = (
        ((exp.Column,), _name),
        ((exp.Literal,), _literal),
        ((exp.Boolean, exp.Null), _constant),
        ((exp.Paren, exp.IgnoreNulls, exp.RespectNulls), _inner),
        ((exp.Alias,), _alias),
        ((exp.Cast,), _cast),
        (_COMPARISONS, _comparison),
        ((exp.And, exp.Or, exp.Not), _junction),
        (tuple(_SIGNS), _arithmetic),
        ((exp.Neg,), _negative),
        ((exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot), _bits),
        ((exp.Interval,), _interval),
        ((exp.Is,), _is),
        ((exp.In,), _in),
        ((exp.Between,), _between),
        ((exp.Like, exp.ILike, exp.RegexpLike), _like),
        ((exp.Case,), _case),
        ((exp.If,), _if),
        ((exp.Coalesce, exp.Greatest, exp.Least), _coalesce),
        ((exp.Nvl2,), _nvl2),
        ((exp.Nullif,), _nullif),
        ((exp.Array,), _array),
        ((exp.Struct,), _struct),
        ((exp.Dot,), _dot),
        ((exp.Bracket,), _element),
        ((exp.Exists,), _exists),
        ((exp.Subquery,), _scalar_subquery),
        ((exp.Filter,), _filter),
        ((exp.Window,), _window),
        (_RANKS, _rank),
        ((exp.Count,), _counted),
        ((exp.CurrentDate,), _date_value),
        ((exp.CurrentTimestamp,), _time_value),
        (
            (
                *(call for calls, _, _ in _REFUSED for call in calls),
                *(exp.Min, exp.Max, exp.Length, exp.First, exp.Last, exp.AnyValue, exp.ArrayAgg),
            ),
            _call,
        ),
    )


def _is_literal(node: exp.Expr) -> bool:
    inner = node.unnest()
    return isinstance(inner.this if isinstance(inner, exp.Neg) else inner, exp.Literal)


def _is_time(type: Known) -> bool:
    return kind(type) == "time"


def _same(type: Known) -> Known:
    return type


_RESULTS: dict[type[exp.Expr], Callable[[Known], Known]] = {
    **dict.fromkeys((exp.Min, exp.Max, exp.First, exp.Last, exp.AnyValue), _same),
    exp.Sum: summed,
    exp.Avg: averaged,
    exp.Abs: lambda type: type if kind(type) == "number" else None,
    exp.ArrayAgg: lambda type: type and SparkType("array", elements=(type,)),
    **dict.fromkeys((exp.Upper, exp.Lower, exp.Trim), lambda _: STRING),
    **dict.fromkeys((exp.Length, exp.ArraySize, *_DATE_PARTS), lambda _: INT),
    **dict.fromkeys((exp.LogicalAnd, exp.LogicalOr), lambda _: BOOLEAN),
    exp.CountIf: lambda _: BIGINT,
    **dict.fromkeys((exp.Sqrt, exp.Exp, exp.Ln), lambda _: DOUBLE),
}


def _shown(node: exp.Expr) -> str:
    return shorten(node.sql(dialect=DIALECT, comments=False), 40)
