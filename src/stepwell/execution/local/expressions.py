"""The expression evaluator: computes expressions on Arrow columns exactly as Spark does.

A change is a few rows, and most view expressions are simple: sums and products of integers and
decimals, comparisons, CASE. Spark takes longer to plan such a query than the rows take to compute.
So expressions that are fully supported are computed here. All others raise `NotSupported`, and go
to Spark. Nothing is approximated:

    floating point    only division by integers, as for an average
    overflow, errors  `Declined`: Spark reports them in its own words
    decimals          without rounding, except quotients of a few rows, rounded as in Spark
    constants         `DATE '1998-12-01' - INTERVAL '90' DAY`: evaluated by Spark, once

Types are Spark's, as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp
from sqlglot.errors import SqlglotError

from stepwell.execution.backend import Declined, Fallback, NotSupported
from stepwell.execution.local.quotients import SURE_DIGITS, divided, rounded
from stepwell.lsm.arrow_types import arrow_type
from stepwell.plan.expressions import Expr
from stepwell.plan.identity import by_identity
from stepwell.plan.numbers import (
    DIGITS_MAX,
    INTEGER_BITS,
    Width,
    bounded,
    common_width,
    decimal_text,
    decimal_width,
    product_width,
    quotient_width,
    sum_width,
    width_of,
)
from stepwell.plan.types import parse_type

_FIXED_MAX = 10_000
Data: TypeAlias = Any
"""An Arrow column, or a scalar that stands for all rows."""

_DOUBLE = "double"
_ORDERED = {"boolean", "string", "binary", "date", "timestamp", "timestamp_ntz"}
COMPARE: dict[type[exp.Expr], Callable[..., Any]] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
}
_CHECKED: dict[type[exp.Expr], Callable[..., Any]] = {
    exp.Add: pc.add_checked,
    exp.Sub: pc.subtract_checked,
    exp.Mul: pc.multiply_checked,
}
_CONSTANT = (
    exp.Literal,
    exp.Cast,
    exp.DataType,
    exp.DataTypeParam,
    exp.Interval,
    exp.Var,
    exp.Add,
    exp.Sub,
    exp.Neg,
    exp.Paren,
)


_TESTS = (*COMPARE, exp.NullSafeEQ, exp.Between, exp.In, exp.Like, exp.Is, exp.Not)


@dataclass(frozen=True, slots=True)
class Value:
    """A column, or one value for all rows."""

    data: Data
    type: str

    def column(self, rows: int) -> pa.ChunkedArray | pa.Array:
        return pa.repeat(self.data, rows) if isinstance(self.data, pa.Scalar) else self.data

    def cast(self, type_: str) -> Value:
        return Value(_arrow_cast(self.data, type_), type_)


Columns = Mapping[str, Value]
Constants = Callable[[str], Value | None]
"""Evaluates an SQL text without columns; None if its type is not supported here."""


@contextmanager
def certain() -> Iterator[None]:
    """Turn errors of the block into `CannotRunError`: Spark tells whether it is an error."""
    try:
        yield
    except (pa.ArrowNotImplementedError, SqlglotError, RecursionError) as error:
        raise NotSupported(str(error).splitlines()[0]) from error
    except (pa.ArrowException, ArithmeticError) as error:
        raise Declined(Fallback.ARITHMETIC) from error


class ExpressionEvaluator:
    """Computes expressions over named columns."""

    def __init__(self, constants: Constants, *, decimals: bool = True) -> None:
        self._constants = constants
        self._decimals = decimals
        """Whether decimal results have Spark's default precision."""
        self._fixed: dict[int, tuple[exp.Expr, Value]] = {}
        """The values of literals and constants, by the id of their tree, which is held as well."""

    def value(self, expr: Expr, columns: Columns) -> Value:
        """The value of an expression. Raises `NotSupported`."""
        if expr.column is not None and expr.column in columns:
            return columns[expr.column]
        with certain():
            return self._of(expr.tree, columns)

    def type_of(self, node: exp.Expr, columns: Columns) -> str:
        """The type of an expression. Raises `NotSupported`."""
        with certain():
            return self._of(node, columns).type

    def constant(self, node: exp.Expr) -> Value:
        """The value of an expression without columns, a scalar. Raises `NotSupported`."""
        with certain():
            return self._of(node, {})

    def mask_of(
        self, condition: exp.Expr, columns: Columns, rows: int
    ) -> pa.ChunkedArray | pa.Array:
        """Like `mask`, for a tree whose columns have the names in its text."""
        with certain():
            found = _boolean(self._of(condition, columns)).column(rows)
            return pc.fill_null(found, False)

    def mask(self, condition: Expr, columns: Columns, rows: int) -> pa.ChunkedArray | pa.Array:
        """The rows where a condition holds. Raises `NotSupported`."""
        return pc.fill_null(_boolean(self.value(condition, columns)).column(rows), False)

    def _of(self, node: exp.Expr, columns: Columns) -> Value:
        match node:
            case exp.Paren():
                return self._of(node.this, columns)
            case exp.Column():
                return _column(node, columns)
            case exp.Literal():
                known = self._fixed.get(id(node))
                return known[1] if known is not None else self._remember(node, _literal(node))
            case exp.Boolean():
                return Value(pa.scalar(bool(node.this)), "boolean")
            case exp.Neg():
                return self._negative(node, columns)
            case exp.Add() | exp.Sub() | exp.Mul():
                if id(node) in self._fixed or is_constant(node):
                    return self._constant(node)
                a, b = self._of(node.left, columns), self._of(node.right, columns)
                whole = a.type in INTEGER_BITS and b.type in INTEGER_BITS
                if not whole and not self._decimals:
                    raise NotSupported("a Spark setting changes the precision of decimals")
                return _arithmetic(node, a, b)
            case exp.Div():
                return self._quotient(node, columns)
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                _check_precedence(node.left, node.right)
                a, b = _alike(self._of(node.left, columns), self._of(node.right, columns))
                return Value(COMPARE[type(node)](a.data, b.data), "boolean")
            case exp.NullSafeEQ():
                _check_precedence(node.left, node.right)
                a, b = _alike(self._of(node.left, columns), self._of(node.right, columns))
                same = pc.fill_null(pc.equal(a.data, b.data), False)
                none = pc.and_(pc.is_null(a.data), pc.is_null(b.data))
                return Value(pc.or_(same, none), "boolean")
            case exp.Between():
                return self._between(node, columns)
            case exp.And() | exp.Or():
                both = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
                a, b = self._of(node.left, columns), self._of(node.right, columns)
                return Value(both(_boolean(a).data, _boolean(b).data), "boolean")
            case exp.Not():
                return Value(pc.invert(_boolean(self._of(node.this, columns)).data), "boolean")
            case exp.Is() if isinstance(node.expression, exp.Null) and not _negated(node):
                return Value(pc.is_null(self._of(node.this, columns).data), "boolean")
            case exp.In():
                return self._in(node, columns)
            case exp.Case():
                return self._case(node, columns)
            case exp.Coalesce():
                return self._chosen(*_present(node), columns)
            case exp.If():
                return self._chosen(
                    [(node.this, node.args["true"])], node.args.get("false"), columns
                )
            case exp.Cast():  # And TRY_CAST, which differs only where it fails.
                return self._cast(node, columns)
            case exp.Like():
                found = self._like(node, columns)
                return Value(pc.invert(found.data), "boolean") if _negated(node) else found
            case exp.Extract() | exp.Year():
                return self._year(node, columns)
            case exp.Substring():
                return self._substring(node, columns)
            case _:
                raise NotSupported(_missing(node))

    def _remember(self, node: exp.Expr, value: Value) -> Value:
        if len(self._fixed) >= _FIXED_MAX:
            self._fixed.clear()
        self._fixed[id(node)] = node, value
        return value

    def _constant(self, node: exp.Expr) -> Value:
        known = self._fixed.get(id(node))
        if known is not None:
            return known[1]
        if not all(isinstance(part, _CONSTANT) for part in node.walk()):
            raise NotSupported(_missing(node))
        value = self._constants(node.sql(dialect="spark"))
        if value is None:
            raise NotSupported(node.sql())
        return self._remember(node, value)

    def _negative(self, node: exp.Neg, columns: Columns) -> Value:
        value = self._of(node.this, columns)
        if isinstance(node.this, exp.Literal) and node.this.name in ("2147483648", str(2**63)):
            raise NotSupported("the least integer is written as a literal")
        if value.type in INTEGER_BITS:
            return Value(pc.negate_checked(value.data), value.type)
        _decimal(value.type)
        return Value(pc.negate(value.data), value.type)

    def _between(self, node: exp.Between, columns: Columns) -> Value:
        _check_precedence(node.this, node.args["low"], node.args["high"])
        value = self._of(node.this, columns)
        low, a = _alike(value, self._of(node.args["low"], columns))
        high, b = _alike(value, self._of(node.args["high"], columns))
        return Value(
            pc.and_kleene(pc.greater_equal(low.data, a.data), pc.less_equal(high.data, b.data)),
            "boolean",
        )

    def _in(self, node: exp.In, columns: Columns) -> Value:
        given = node.expressions
        if not given or any(node.args.get(k) for k in ("query", "unnest", "field")):
            raise NotSupported("IN of this form has no local kernel")
        _check_precedence(node.this)
        values = [self._of(item, columns) for item in (node.this, *given)]
        # Spark casts all to one type, which must not lose a digit.
        type_ = common_type([value.type for value in values])
        if type_ == _DOUBLE:
            raise NotSupported("floating point is compared by Spark")
        value, *others = (value.cast(type_) for value in values)
        found: Data | None = None
        for other in others:
            same = pc.equal(value.data, other.data)
            found = same if found is None else pc.or_kleene(found, same)
        return Value(found, "boolean")

    def _case(self, node: exp.Case, columns: Columns) -> Value:
        return self._chosen(branches_of(node), node.args.get("default"), columns)

    def _chosen(
        self,
        branches: Iterable[tuple[exp.Expr, exp.Expr]],
        default: exp.Expr | None,
        columns: Columns,
    ) -> Value:
        """Evaluate CASE."""
        tests = [
            pc.fill_null(_boolean(self._of(test, columns)).data, False) for test, _ in branches
        ]
        texts = [then for _, then in branches] + ([] if default is None else [default])
        known, left = [], pa.scalar(True)
        for text, test in zip(texts, [*tests, pa.scalar(True)], strict=False):
            known.append(self._branch(text, pc.and_(left, test), columns))
            left = pc.and_not(left, test)
        type_ = common_type([value.type for value in known if value is not None])
        null = pa.scalar(None, arrow_of(type_))
        values = [null if value is None else value.cast(type_).data for value in known]
        chosen = values[-1] if default is not None else null
        for test, value in reversed(list(zip(tests, values, strict=False))):
            chosen = pc.if_else(test, value, chosen)
        return Value(chosen, type_)

    def _branch(self, text: exp.Expr, used: Data, columns: Columns) -> Value | None:
        """A branch of CASE; None is NULL. If it fails, it is computed for the rows that use it."""
        if isinstance(text, exp.Null):
            return None
        try:
            with certain():
                return self._of(text, columns)
        except Declined:
            data = [v.data for v in columns.values() if not isinstance(v.data, pa.Scalar)]
            if not data or used == pa.scalar(True):
                raise
        used = Value(used, "boolean").column(len(data[0]))
        mask = np.array(used.to_pylist(), np.bool_)
        made = {n: _filtered(v, mask) for n, v in columns.items()}
        found = self._of(text, made)
        if isinstance(found.data, pa.Scalar):
            return found
        places = pa.array(np.cumsum(mask) - 1, mask=~mask)
        return Value(found.data.take(places), found.type)

    def _like(self, node: exp.Like, columns: Columns) -> Value:
        """Patterns in which only % is special."""
        _check_precedence(node.this)
        value, pattern = self._of(node.this, columns), node.expression
        if value.type != "string" or not isinstance(pattern, exp.Literal) or not pattern.is_string:
            raise NotSupported("LIKE with _ or a computed pattern has no local kernel")
        _literal(pattern)
        if "_" in pattern.name:
            raise NotSupported("LIKE with _ or a computed pattern has no local kernel")
        first, *rest = pattern.name.split("%")
        if not rest:
            return Value(pc.equal(value.data, first), "boolean")
        if rest == [""]:
            return Value(pc.starts_with(value.data, pattern=first), "boolean")
        parts = ".*".join(map(re.escape, (first, *rest)))
        return Value(pc.match_substring_regex(value.data, f"(?s)^{parts}$"), "boolean")

    def _year(self, node: exp.Extract | exp.Year, columns: Columns) -> Value:
        if isinstance(node, exp.Extract) and node.name.upper() != "YEAR":
            raise NotSupported("EXTRACT has a local kernel for YEAR only")
        value = self._of(node.expression if isinstance(node, exp.Extract) else node.this, columns)
        if value.type != "date":
            raise NotSupported(f"YEAR of {value.type.upper()} has no local kernel")
        return Value(pc.year(value.data).cast(pa.int32()), "int")

    def _substring(self, node: exp.Substring, columns: Columns) -> Value:
        value = self._of(node.this, columns)
        given = [node.args.get(key) for key in ("start", "length")]
        counts = [int(n.name) for n in given if isinstance(n, exp.Literal) and n.name.isdigit()]
        if value.type != "string" or len(counts) < 2 or counts[0] < 1 or max(counts) > 10**6:
            raise NotSupported("SUBSTRING with computed positions has no local kernel")
        first = counts[0] - 1
        return Value(pc.utf8_slice_codeunits(value.data, first, first + counts[1]), "string")

    def _quotient(self, node: exp.Div, columns: Columns) -> Value:
        a, b = self._of(node.left, columns), self._of(node.right, columns)
        if a.type in (_DOUBLE, *INTEGER_BITS) and b.type in INTEGER_BITS:
            over = a.data if a.type == _DOUBLE else _small(a.data).cast(pa.float64())
            under = _small(b.data).cast(pa.float64())
            if not isinstance(under, pa.Scalar):
                zero = pc.equal(under, 0)
                if pc.any(pc.and_(zero, pc.is_valid(over))).as_py():
                    raise Declined(Fallback.ARITHMETIC)
                under = pc.if_else(zero, pa.scalar(None, under.type), under)  # NULL / 0 is NULL.
            return Value(pc.divide_checked(over, under), _DOUBLE)
        a, b = _as_decimal(a, node.left), _as_decimal(b, node.right)
        if not self._decimals:
            raise NotSupported("a Spark setting changes the precision of decimals")
        width = quotient_width(_decimal(a.type), _decimal(b.type))
        return Value(divided(a.data, b.data, *width), decimal_text(width))

    def _cast(self, node: exp.Cast, columns: Columns) -> Value:
        if id(node) in self._fixed or is_constant(node):
            return self._constant(node)
        value = self._of(node.this, columns)
        kind = target_of(node)
        if kind == value.type:
            return value
        if kind in INTEGER_BITS and value.type in INTEGER_BITS:
            return value.cast(kind)
        decimal, wanted = decimal_width(value.type), decimal_width(kind)
        if kind in INTEGER_BITS and decimal and not decimal[1]:
            return value.cast(kind)
        if wanted and (decimal or value.type in INTEGER_BITS):
            if wanted[1] >= (decimal[1] if decimal else 0):
                return value.cast(kind)
            return Value(rounded(value.data, *wanted), kind)
        if kind == _DOUBLE and decimal and not decimal[1]:
            return Value(_small(value.data.cast(pa.int64())).cast(pa.float64()), kind)
        if kind == _DOUBLE and value.type in INTEGER_BITS:
            return Value(_small(value.data).cast(pa.float64()), kind)
        raise NotSupported(f"CAST of {value.type.upper()} to {kind.upper()} has no local kernel")


@by_identity
def is_constant(node: exp.Expr) -> bool:
    """Whether an expression reads no column."""
    return node.find(exp.Column) is None


@by_identity
def target_of(node: exp.Cast) -> str:
    """The type that a value is cast to."""
    return node.to.sql(dialect="spark").lower().replace(" ", "")


@by_identity
def branches_of(node: exp.Case) -> list[tuple[exp.Expr, exp.Expr]]:
    """The conditions and the values of CASE."""
    branches = []
    for branch in node.args.get("ifs", []):
        test = branch.this
        if node.this is not None:
            test = exp.EQ(this=node.this.copy(), expression=test.copy())
        branches.append((test, branch.args["true"]))
    return branches


@by_identity
def _present(node: exp.Coalesce) -> tuple[list[tuple[exp.Expr, exp.Expr]], exp.Expr]:
    """COALESCE as the branches of a CASE and its default."""
    *parts, last = (node.this, *node.expressions)
    tests = [exp.Not(this=exp.Is(this=part.copy(), expression=exp.Null())) for part in parts]
    return list(zip(tests, parts, strict=True)), last


def _missing(node: exp.Expr) -> str:
    """Says that an operator or a function is not computed here."""
    if isinstance(node, exp.Func):
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        return f"{name.lower()}() has no local kernel"
    return f"{type(node).__name__.upper()} has no local kernel"


def _check_precedence(*operands: exp.Expr) -> None:
    """Reject nested comparisons: Spark and sqlglot differ in their precedence."""
    if any(isinstance(operand, _TESTS) for operand in operands):
        raise NotSupported("a comparison of comparisons has no local kernel")


def _negated(node: exp.Expr) -> bool:
    return bool(node.args.get("negate"))


def _column(node: exp.Column, columns: Columns) -> Value:
    if node.table or node.name not in columns:
        raise NotSupported(node.sql())
    return columns[node.name]


def _literal(node: exp.Literal) -> Value:
    if node.is_string:
        if not node.name.isprintable() or "\\" in node.name:
            raise NotSupported("the meaning of a backslash depends on a setting")
        return Value(pa.scalar(node.name), "string")
    text = node.name
    if text.isdigit():
        for type_ in ("int", "bigint"):
            if int(text) < 2 ** (INTEGER_BITS[type_] - 1):
                return Value(pa.scalar(int(text), arrow_of(type_)), type_)
    elif re.fullmatch(r"\d*\.\d*", text) and len(text) > 1:
        number = Decimal(text)
        exponent = number.as_tuple().exponent
        scale = -exponent if isinstance(exponent, int) else 0
        digits = max(len(number.as_tuple().digits), scale, 1)
        if digits <= DIGITS_MAX:
            return Value(
                pa.scalar(number, pa.decimal128(digits, scale)), f"decimal({digits},{scale})"
            )
    raise NotSupported(text)


def _filtered(value: Value, mask: Any) -> Value:
    if isinstance(value.data, pa.Scalar):
        return value
    return Value(value.data.filter(pa.array(mask)), value.type)


def _boolean(value: Value) -> Value:
    if value.type != "boolean":
        raise NotSupported(f"{value.type.upper()} has no local kernel")
    return value


def _decimal(type_: str) -> Width:
    found = decimal_width(type_)
    if found is None:
        raise NotSupported(f"{type_.upper()} has no local kernel")
    return found


def _exact(type_: str) -> Width:
    """The decimal width Spark uses for a number of this type."""
    found = width_of(type_)
    if found is None:
        raise NotSupported(f"{type_.upper()} has no local kernel")
    return found


def _as_decimal(value: Value, node: exp.Expr) -> Value:
    """The decimal form of a number next to a decimal. A literal has the width of its own digits."""
    if value.type in INTEGER_BITS:
        node = node.unnest()
        if isinstance(node, exp.Neg) and isinstance(node.this.unnest(), exp.Literal):
            raise NotSupported("a negative literal next to a decimal")
        written = isinstance(node, exp.Literal)
        width = (len(str(int(node.name))), 0) if written else _exact(value.type)
        return value.cast(decimal_text(width))
    _decimal(value.type)
    return value


def _wider(a: str, b: str) -> str:
    return a if INTEGER_BITS[a] >= INTEGER_BITS[b] else b


def _arithmetic(node: exp.Binary, a: Value, b: Value) -> Value:
    if a.type in INTEGER_BITS and b.type in INTEGER_BITS:
        type_ = _wider(a.type, b.type)
        made = _CHECKED[type(node)](a.cast(type_).data, b.cast(type_).data)
        return Value(made, type_)
    a, b = _as_decimal(a, node.left), _as_decimal(b, node.right)
    made_width = product_width if isinstance(node, exp.Mul) else sum_width
    width = made_width(_decimal(a.type), _decimal(b.type))
    precision, scale = width
    if scale > bounded(width)[1]:
        raise NotSupported("decimals of more than 38 digits are rounded by Spark")
    wide = precision > DIGITS_MAX
    x, y = (v.data.cast(pa.decimal256(*_decimal(v.type))) if wide else v.data for v in (a, b))
    made = _CHECKED[type(node)](x, y)
    # Overflow is an error here as in Spark, which then reports it in its own words.
    type_ = decimal_text(bounded(width))
    if precision > SURE_DIGITS:
        made.cast(pa.decimal256(SURE_DIGITS, scale))
    return Value(made, type_).cast(type_)


def _small(data: Data) -> Data:
    """Check that floating point represents these integers exactly."""
    least_and_most = pc.min_max(data if not isinstance(data, pa.Scalar) else pa.array([data]))
    if any(abs(v or 0) > 2**53 for v in least_and_most.as_py().values()):
        raise Declined(Fallback.ARITHMETIC)
    return data


def _alike(a: Value, b: Value) -> tuple[Value, Value]:
    """Cast two values to a type in which they can be compared."""
    if a.type == b.type and (a.type in _ORDERED or width_of(a.type)):
        return a, b
    type_ = common_type([a.type, b.type])
    if type_ == _DOUBLE:
        raise NotSupported("floating point is compared by Spark")
    return a.cast(type_), b.cast(type_)


def common_type(types: Sequence[str]) -> str:
    """The common type of values of these types."""
    if not types:
        raise NotSupported("only NULL is given")
    first = types[0]
    if all(type_ == first for type_ in types):
        if first in _ORDERED or first == _DOUBLE or width_of(first):
            return first
        raise NotSupported(f"{first.upper()} has no local kernel")
    if all(type_ in INTEGER_BITS for type_ in types):
        for type_ in types:
            first = _wider(first, type_)
        return first
    width = common_width(*map(_exact, types))
    if width[0] > DIGITS_MAX:
        raise NotSupported("decimals of more than 38 digits are rounded by Spark")
    return decimal_text(width)


@lru_cache(maxsize=10_000)
def arrow_of(type_: str) -> pa.DataType:
    """The Arrow type of a type supported here. Raises `NotSupported` for any other type."""
    if type_ not in _ORDERED and type_ != _DOUBLE and width_of(type_) is None:
        raise NotSupported(f"{type_.upper()} has no local kernel")
    return arrow_type(parse_type(type_))


def _arrow_cast(data: Data, type_: str) -> Data:
    target = arrow_of(type_)
    if data.type == target:
        return data
    if pa.types.is_integer(data.type) and pa.types.is_decimal(target):
        # Arrow requires room for every number of that width, even if no value is that large.
        data = data.cast(pa.decimal128(DIGITS_MAX, 0))
    return data.cast(target)
