"""Expressions as Python code over one row, for changes of few rows.

`ExpressionEvaluator` decides what is supported and what type a result has: an expression is
translated only if it accepts it, and to code that computes the same value of the same type. So what
is exact there is exact here. NULL is None; a comparison is True, False or None, and AND, OR and NOT
follow SQL's three values. The code reads a row `r`, whose values have the form of `row_values`.

An operation that may fail (overflow, a division by zero) calls `declined`, as the evaluator does.
To the right of AND, and in a condition of CASE, it is evaluated even where SQL might not evaluate
it, because the evaluator would: Spark decides whether it is an error. A value of CASE is evaluated
only for the rows that use it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import lru_cache
from types import CodeType, MappingProxyType
from typing import Any, NoReturn

import pyarrow as pa
from sqlglot import exp

from stepwell.execution.backend import Declined, Fallback, NotSupported
from stepwell.execution.local.expressions import (
    ExpressionEvaluator,
    Value,
    arrow_of,
    branches_of,
    certain,
    common_type,
    is_constant,
    target_of,
)
from stepwell.execution.local.quotients import SURE_DIGITS, quotient
from stepwell.lsm.row_values import to_list
from stepwell.plan.expressions import Expr
from stepwell.plan.numbers import (
    INTEGER_BITS,
    bounded,
    decimal_text,
    decimal_width,
    product_width,
    quotient_width,
    sum_width,
    width_of,
)

_DOUBLE = "double"
_FLOAT_MAX = 2**53
"""The largest integer up to which every integer is a double."""
_WIDE = Context(prec=200)
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_COMPARE: dict[type[exp.Expr], str] = {
    exp.EQ: "==",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_SIGNS: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}


@dataclass(frozen=True, slots=True)
class Code:
    """A Python expression over a row `r`."""

    text: str
    type: str
    fallible: bool = False
    """Whether it may decline."""
    repeatable: bool = False
    """Whether writing it twice costs no more than a variable."""
    present: bool = False
    """Whether it is never NULL."""
    literal: str | None = None
    """The digits of a whole number that the user wrote."""


def declined() -> NoReturn:
    raise Declined(Fallback.ARITHMETIC)


def _and(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def _or(a: bool | None, b: bool | None) -> bool | None:
    return True if a is True or b is True else None if a is None or b is None else False


def _matching(first: str, *rest: str) -> Callable[[str], bool]:
    """Whether a text has these parts in this order, the first at its start, the last at its end.

    A regular expression would try every place of each part, which takes hours for a long text.
    """
    *middle, last = rest

    def matches(text: str) -> bool:
        at, end = len(first), len(text) - len(last)
        if at > end or not (text.startswith(first) and text.endswith(last)):
            return False
        for part in middle:
            at = text.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True

    return matches


def _year(days: int) -> int:
    try:
        return datetime.date.fromordinal(_EPOCH + days).year
    except (ValueError, OverflowError):
        declined()


def _rounded(value: int, unit: int) -> int:
    """A number without its last digits, rounded half away from zero."""
    found = (2 * abs(value) + unit) // (2 * unit)
    return -found if value < 0 else found


def _over(a: Any, b: Any) -> float | None:
    """A quotient as a double. Declines for too large a number even where the other is NULL."""
    if b is not None and abs(b) > _FLOAT_MAX:
        declined()
    if isinstance(a, int) and abs(a) > _FLOAT_MAX:
        declined()
    if a is None or b is None:
        return None
    return float(a) / float(b) if b else declined()


def _double(value: int) -> float:
    return float(value) if abs(value) <= _FLOAT_MAX else declined()


def _quotient(a: int, b: int, scales: tuple[int, int, int], limit: int) -> int:
    """A quotient of decimals with the first two scales, at the third."""
    mine, theirs, scale = scales
    found = quotient(Decimal(a).scaleb(-mine, _WIDE), Decimal(b).scaleb(-theirs, _WIDE), scale)
    made = int(found.scaleb(scale, _WIDE))
    return made if abs(made) < limit else declined()


_FUNCTIONS = {
    made.__name__: made
    for made in (declined, _and, _or, _year, _rounded, _over, _double, _quotient)
}


@lru_cache(maxsize=10_000)
def compiled(source: str) -> CodeType:
    """The code of a source text, which plans of the same shape share.

    Raises `NotSupported` for an expression that is nested deeper than Python allows.
    """
    try:
        return compile(source, "<rows>", "exec")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise NotSupported(f"Python cannot compile it: {error}") from error


def function_of(
    text: str, parameters: str, names: Mapping[str, object] = MappingProxyType({})
) -> Callable[..., Any]:
    """A Python function that returns the value of an expression."""
    scope = dict(names)
    exec(compiled(f"def run({parameters}):\n    return {text}"), scope)
    return scope["run"]  # type: ignore[return-value]


class RowExpressions:
    """Translates expressions over columns at known positions of a row."""

    def __init__(
        self, evaluator: ExpressionEvaluator, columns: Sequence[str], types: Sequence[str]
    ) -> None:
        self._evaluator = evaluator
        self._places = {name: i for i, name in enumerate(columns)}
        self._types = dict(zip(columns, types, strict=True))
        self.names: dict[str, Any] = dict(_FUNCTIONS)
        """What the code refers to."""
        self._temporary = 0

    def value(self, expr: Expr) -> Code:
        """The value of an expression. Raises `NotSupported`."""
        column = expr.column
        if column is not None and column in self._places:
            return self._column(column)
        self._check(expr)
        with certain():
            made = self._of(expr.tree)
        return self._checked(expr, made)

    def condition(self, expr: Expr) -> str:
        """Code that is true exactly where a condition holds. Raises `NotSupported`."""
        self._check(expr)
        with certain():
            return self._truth(expr.tree)

    def function(self, text: str) -> Callable[[Any], Any]:
        """A function of `rows`."""
        return function_of(text, "rows", self.names)

    def _check(self, expr: Expr) -> None:
        """Raise `NotSupported` unless the evaluator computes this."""
        if not expr.columns <= self._types.keys():
            raise NotSupported(f"{expr.sql} reads other columns")
        self._evaluator.type_of(expr.tree, self._empty(expr))

    def _checked(self, expr: Expr, made: Code) -> Code:
        wanted = self._evaluator.type_of(expr.tree, self._empty(expr))
        if made.type != wanted:
            raise NotSupported(f"{expr.sql} is {wanted}, not {made.type}")
        return made

    def _empty(self, expr: Expr) -> Mapping[str, Value]:
        return {
            c: Value(pa.chunked_array([], arrow_of(self._types[c])), self._types[c])
            for c in expr.columns
        }

    def _column(self, name: str) -> Code:
        if name not in self._places:
            raise NotSupported(name)
        return Code(f"r[{self._places[name]}]", self._types[name], repeatable=True)

    def _variable(self) -> str:
        self._temporary += 1
        return f"t{self._temporary}"

    def _named(self, value: object) -> str:
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    # NULL

    def _strict(self, made: Callable[..., str], *arguments: Code) -> str:
        """Code that is NULL where an argument is."""
        tests, texts = [], []
        for argument in arguments:
            text = argument.text
            if not argument.repeatable:
                text = self._variable()
                tests.append(f"({text} := {argument.text}) is None")
            elif not argument.present:
                tests.append(f"{text} is None")
            texts.append(text)
        body = made(*texts)
        if not tests:
            return f"({body})"
        # `|` evaluates both sides.
        eager = any(argument.fallible for argument in arguments)
        both = " | ".join(f"({t})" for t in tests) if eager else " or ".join(tests)
        return f"(None if {both} else {body})"

    def _truth(self, node: exp.Expr) -> str:
        """Code that is true exactly where a condition is TRUE."""
        if isinstance(node, exp.Paren):
            return self._truth(node.this)
        if isinstance(node, exp.And | exp.Or):
            parts = list(node.flatten())
            if not any(self._boolean(part).fallible for part in parts):
                word = " and " if isinstance(node, exp.And) else " or "
                return f"({word.join(map(self._truth, parts))})"
        return self._boolean(node).text

    def _boolean(self, node: exp.Expr) -> Code:
        made = self._of(node)
        if made.type != "boolean":
            raise NotSupported(f"{made.type.upper()} is not a condition")
        return made

    # Operators

    def _of(self, node: exp.Expr) -> Code:
        match node:
            case exp.Paren():
                return self._of(node.this)
            case exp.Column():
                return self._column(node.name)
            case exp.Literal() | exp.Boolean():
                return self._constant(node)
            case exp.Add() | exp.Sub() | exp.Mul():
                return self._constant(node) if is_constant(node) else self._arithmetic(node)
            case exp.Neg():
                return self._negative(node)
            case exp.Div():
                return self._quotient(node)
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                a, b = self._alike(self._of(node.left), self._of(node.right))
                sign = _COMPARE[type(node)]
                return self._test(self._strict(lambda x, y: f"{x} {sign} {y}", a, b), a, b)
            case exp.NullSafeEQ():
                a, b = self._alike(self._of(node.left), self._of(node.right))
                return self._test(f"({a.text} == {b.text})", a, b)
            case exp.Between():
                return self._between(node)
            case exp.And() | exp.Or():
                a, b = self._boolean(node.left), self._boolean(node.right)
                name = "_and" if isinstance(node, exp.And) else "_or"
                return self._test(f"{name}({a.text}, {b.text})", a, b)
            case exp.Not():
                a = self._boolean(node.this)
                return self._test(self._strict(lambda x: f"not {x}", a), a)
            case exp.Is():
                a = self._of(node.this)
                text = "False" if a.present else f"({a.text} is None)"
                return replace(self._test(text, a), present=True)
            case exp.In():
                return self._in(node)
            case exp.Case():
                return self._chosen(branches_of(node), node.args.get("default"))
            case exp.If():
                return self._chosen([(node.this, node.args["true"])], node.args.get("false"))
            case exp.Cast():
                return self._constant(node) if is_constant(node) else self._cast(node)
            case exp.Like():
                return self._like(node)
            case exp.Extract() | exp.Year():
                inside = node.expression if isinstance(node, exp.Extract) else node.this
                a = self._of(inside)
                return Code(self._strict(lambda x: f"_year({x})", a), "int", fallible=True)
            case exp.Substring():
                a = self._of(node.this)
                first, length = int(node.args["start"].name) - 1, int(node.args["length"].name)
                text = self._strict(lambda x: f"{x}[{first}:{first + length}]", a)
                return Code(text, "string", a.fallible)
            case _:
                raise NotSupported(f"{type(node).__name__} is computed by columns")

    def _test(self, text: str, *arguments: Code) -> Code:
        return Code(text, "boolean", any(a.fallible for a in arguments))

    def _constant(self, node: exp.Expr) -> Code:
        found = self._evaluator.constant(node)
        [value] = to_list(pa.array([found.data.as_py()], found.data.type))
        digits = node.name if isinstance(node, exp.Literal) and not node.is_string else ""
        literal = digits if digits.isdigit() else None
        present = value is not None
        text = repr(value)
        if isinstance(value, int) and value < 0:
            text = f"({text})"
        return Code(text, found.type, repeatable=True, present=present, literal=literal)

    def _bounded(self, text: str, low: int, high: int) -> str:
        """Code that declines unless a number is from `low` to `high`."""
        name = self._variable()
        return f"({name} if {low} <= ({name} := {text}) <= {high} else declined())"

    def _whole(self, text: str, type_: str) -> str:
        most = 2 ** (INTEGER_BITS[type_] - 1)
        return self._bounded(text, -most, most - 1)

    def _negative(self, node: exp.Neg) -> Code:
        a = self._of(node.this)
        if a.type in INTEGER_BITS:
            text = self._strict(lambda x: self._whole(f"-{x}", a.type), a)
            return Code(text, a.type, fallible=True)
        return Code(self._strict(lambda x: f"-{x}", a), a.type, a.fallible)

    def _arithmetic(self, node: exp.Binary) -> Code:
        a, b = self._of(node.left), self._of(node.right)
        sign = _SIGNS[type(node)]
        if a.type in INTEGER_BITS and b.type in INTEGER_BITS:
            type_ = common_type([a.type, b.type])
            text = self._strict(lambda x, y: self._whole(f"{x} {sign} {y}", type_), a, b)
            return Code(text, type_, fallible=True)
        a, b = self._decimal(a, node.left), self._decimal(b, node.right)
        mine, theirs = _width(a.type), _width(b.type)
        product = isinstance(node, exp.Mul)
        width = product_width(mine, theirs) if product else sum_width(mine, theirs)
        fallible = a.fallible or b.fallible or width[0] > SURE_DIGITS
        if not product:
            a, b = self._scaled(a, width[1]), self._scaled(b, width[1])
        limit = 10 ** min(SURE_DIGITS, width[0]) - 1

        def made(x: str, y: str) -> str:
            text = f"{x} {sign} {y}"
            return self._bounded(text, -limit, limit) if width[0] > SURE_DIGITS else text

        return Code(self._strict(made, a, b), decimal_text(bounded(width)), fallible)

    def _scaled(self, code: Code, scale: int) -> Code:
        """A number with more digits after the point."""
        more = scale - _width(code.type)[1]
        if not more:
            return code
        text = self._strict(lambda x: f"{x} * {10**more}", code)
        return replace(code, text=text, repeatable=False, literal=None)

    def _decimal(self, code: Code, node: exp.Expr) -> Code:
        """A number next to a decimal, whose type says how many digits it has."""
        if code.type not in INTEGER_BITS:
            return code
        digits = node.unnest().name if isinstance(node.unnest(), exp.Literal) else None
        width = (len(str(int(digits))), 0) if digits else _width(code.type)
        return replace(code, type=decimal_text(width))

    def _quotient(self, node: exp.Div) -> Code:
        a, b = self._of(node.left), self._of(node.right)
        if a.type in (_DOUBLE, *INTEGER_BITS) and b.type in INTEGER_BITS:
            return Code(f"_over({a.text}, {b.text})", _DOUBLE, fallible=True)
        a, b = self._decimal(a, node.left), self._decimal(b, node.right)
        mine, theirs = _width(a.type), _width(b.type)
        width = quotient_width(mine, theirs)
        scales = (mine[1], theirs[1], width[1])
        text = self._strict(lambda x, y: f"_quotient({x}, {y}, {scales}, {10 ** width[0]})", a, b)
        return Code(text, decimal_text(width), fallible=True)

    def _alike(self, *codes: Code) -> tuple[Code, ...]:
        """Values in forms that can be compared."""
        if len({code.type for code in codes}) == 1:
            return codes
        type_ = common_type([code.type for code in codes])
        if type_ == _DOUBLE:
            raise NotSupported("floating point is compared by Spark")
        return tuple(self._as(code, type_) for code in codes)

    def _as(self, code: Code, type_: str) -> Code:
        """A value in a wider type."""
        width = decimal_width(type_)
        if width is None or code.type == type_:
            return replace(code, type=type_)
        return replace(self._scaled(code, width[1]), type=type_)

    def _between(self, node: exp.Between) -> Code:
        value = self._of(node.this)
        low, a = self._alike(value, self._of(node.args["low"]))
        high, b = self._alike(value, self._of(node.args["high"]))
        simple = all(c.present and c.repeatable for c in (a, b)) and value.repeatable
        if simple and low == high:
            text = self._strict(lambda x: f"{a.text} <= {x} <= {b.text}", low)
        else:
            above = self._strict(lambda x, y: f"{x} >= {y}", low, a)
            text = f"_and({above}, {self._strict(lambda x, y: f'{x} <= {y}', high, b)})"
        return self._test(text, value, a, b)

    def _in(self, node: exp.In) -> Code:
        first, *given = self._alike(*(self._of(item) for item in (node.this, *node.expressions)))
        if not all(code.present and code.repeatable for code in given):
            raise NotSupported("IN over columns is computed by columns")
        values = frozenset(eval(code.text) for code in given)
        name = self._named(values)
        return self._test(self._strict(lambda x: f"{x} in {name}", first), first)

    def _chosen(
        self, branches: Sequence[tuple[exp.Expr, exp.Expr]], default: exp.Expr | None
    ) -> Code:
        nodes = [then for _, then in branches] + ([] if default is None else [default])
        known = [None if isinstance(n, exp.Null) else self._of(n) for n in nodes]
        type_ = common_type([code.type for code in known if code is not None])
        values = [None if code is None else self._as(code, type_) for code in known]
        texts = ["None" if code is None else code.text for code in values]
        tests = [self._boolean(test) for test, _ in branches]
        if default is None:
            texts.append("None")
        if any(test.fallible for test in tests):
            # The evaluator computes all conditions, but only the value that is used.
            names = [self._variable() for _ in tests]
            both = zip(names, tests, strict=True)
            computed = f"({', '.join(f'({name} := {test.text})' for name, test in both)},) and "
        else:
            names = [self._truth(test) for test, _ in branches]
            computed = ""
        *thens, last = texts
        made = "".join(f"{t} if {n} else " for t, n in zip(thens, names, strict=True))
        fallible = any(c.fallible for c in (*tests, *values) if c is not None)
        return Code(f"({computed}({made}{last}))", type_, fallible)

    def _like(self, node: exp.Like) -> Code:
        value, pattern = self._of(node.this), node.expression.name
        first, *rest = pattern.split("%")
        if not rest:
            text = self._strict(lambda x: f"{x} == {first!r}", value)
        elif rest == [""]:
            text = self._strict(lambda x: f"{x}.startswith({first!r})", value)
        else:
            name = self._named(_matching(first, *rest))
            text = self._strict(lambda x: f"{name}({x})", value)
        made = self._test(text, value)
        if node.args.get("negate"):
            made = self._test(self._strict(lambda x: f"not {x}", made), made)
        return made

    def _cast(self, node: exp.Cast) -> Code:
        a, kind = self._of(node.this), target_of(node)
        if kind == a.type:
            return a
        decimal, wanted = decimal_width(a.type), decimal_width(kind)
        if kind == _DOUBLE:
            return Code(self._strict(lambda x: f"_double({x})", a), kind, fallible=True)
        if kind in INTEGER_BITS:
            return Code(self._strict(lambda x: self._whole(x, kind), a), kind, fallible=True)
        if wanted is None:
            raise NotSupported(f"CAST to {kind.upper()} is computed by columns")
        scale, limit = decimal[1] if decimal else 0, 10 ** wanted[0] - 1
        more = wanted[1] - scale

        def made(x: str) -> str:
            text = f"{x} * {10**more}" if more > 0 else f"_rounded({x}, {10**-more})"
            return self._bounded(text if more else x, -limit, limit)

        return Code(self._strict(made, a), kind, fallible=True)


def _width(type_: str) -> tuple[int, int]:
    found = width_of(type_)
    if found is None:
        raise NotSupported(f"{type_.upper()} has no row kernel")
    return found
