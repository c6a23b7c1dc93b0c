"""Expressions computed here, on columns of Arrow: exactly as Spark does, or not at all.

A change is a few rows, and most of what views do with them is plain: whole numbers and decimals
that are added and multiplied, comparisons, CASE. Spark takes longer to plan such a query than the
rows take to compute. So what is understood in full is computed here; `Unknown` is raised for
everything else, and Spark is asked. Nothing is approximated:

    floating point    only divided by whole numbers, as for an average
    overflow, errors  Unknown: Spark says it in its own words
    decimals          without rounding, but for quotients of a few rows, rounded as Spark's are
    constants         `DATE '1998-12-01' - INTERVAL '90' DAY`: Spark is asked once

Types are Spark's, as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp
from sqlglot.errors import SqlglotError

from stepwell.query.algebra import Expr
from stepwell.query.conditions import parse_scalar

DIVIDED_ROWS_MAX = 2_000
"""Quotients are made one by one."""
Data: TypeAlias = Any
"""Arrow's: a column, or a scalar that stands for all rows."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
SURE_DIGITS = 34
"""Results with more digits Spark may round on the way, whatever their type has room for."""
_DOUBLE = "double"
_WIDEST = 38
_WHOLE = {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_ORDERED = {"boolean", "string", "date", "timestamp", "timestamp_ntz"}
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


_EXACT = Context(prec=200, rounding=ROUND_HALF_UP)
_SPARK = [Context(prec=digits, rounding=ROUND_HALF_UP) for digits in (SURE_DIGITS, _WIDEST)]


_TESTS = (*COMPARE, exp.NullSafeEQ, exp.Between, exp.In, exp.Like, exp.Is, exp.Not)


class Unknown(Exception):  # noqa: N818 - nothing has gone wrong
    """Spark must be asked."""


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
"""The value of a text without columns; None: it is of a type we do not compute with."""


@contextmanager
def certain() -> Iterator[None]:
    """What goes wrong in it is Unknown: Spark tells whether it is an error, and which."""
    try:
        yield
    except (pa.ArrowException, ArithmeticError, SqlglotError, RecursionError) as error:
        raise Unknown(str(error)) from error


class Computing:
    """Computes expressions over columns by their names."""

    def __init__(self, constants: Constants, *, decimals: bool = True) -> None:
        self._constants = constants
        self._decimals = decimals
        """Whether results of decimals have as many digits as they have by default."""

    def value(self, expr: Expr, columns: Columns) -> Value:
        """Raises Unknown."""
        if expr.column is not None and expr.column in columns:
            return columns[expr.column]
        with certain():
            return self._of(parse_scalar(expr.sql), columns)

    def type_of(self, node: exp.Expr, columns: Columns) -> str:
        """The type of an expression. Raises Unknown."""
        with certain():
            return self._of(node, columns).type

    def mask_of(
        self, condition: exp.Expr, columns: Columns, rows: int
    ) -> pa.ChunkedArray | pa.Array:
        """The same of a tree whose columns are named by what it says. Raises Unknown."""
        with certain():
            found = _boolean(self._of(condition, columns)).column(rows)
            return pc.fill_null(found, False)

    def mask(self, condition: Expr, columns: Columns, rows: int) -> pa.ChunkedArray | pa.Array:
        """Where a condition holds. Raises Unknown."""
        return pc.fill_null(_boolean(self.value(condition, columns)).column(rows), False)

    def _of(self, node: exp.Expr, columns: Columns) -> Value:
        match node:
            case exp.Paren():
                return self._of(node.this, columns)
            case exp.Column():
                return _column(node, columns)
            case exp.Literal():
                return _literal(node)
            case exp.Boolean():
                return Value(pa.scalar(bool(node.this)), "boolean")
            case exp.Neg():
                return self._negative(node, columns)
            case exp.Add() | exp.Sub() | exp.Mul():
                if node.find(exp.Column) is None:
                    return self._constant(node)
                a, b = self._of(node.left, columns), self._of(node.right, columns)
                whole = a.type in _WHOLE and b.type in _WHOLE
                if not whole and not self._decimals:
                    raise Unknown("decimals")
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
                raise Unknown(type(node).__name__)

    def _constant(self, node: exp.Expr) -> Value:
        if not all(isinstance(part, _CONSTANT) for part in node.walk()):
            raise Unknown(node.sql())
        value = self._constants(node.sql(dialect="spark"))
        if value is None:
            raise Unknown(node.sql())
        return value

    def _negative(self, node: exp.Neg, columns: Columns) -> Value:
        value = self._of(node.this, columns)
        if isinstance(node.this, exp.Literal) and node.this.name in ("2147483648", str(2**63)):
            raise Unknown("the least number there is")
        if value.type in _WHOLE:
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
            raise Unknown("IN")
        _check_precedence(node.this)
        values = [self._of(item, columns) for item in (node.this, *given)]
        # All have one type in Spark, and none may lose a digit by that.
        type_ = _common([value.type for value in values])
        if type_ == _DOUBLE:
            raise Unknown("floating point is compared")
        value, *others = (value.cast(type_) for value in values)
        found: Data | None = None
        for other in others:
            same = pc.equal(value.data, other.data)
            found = same if found is None else pc.or_kleene(found, same)
        return Value(found, "boolean")

    def _case(self, node: exp.Case, columns: Columns) -> Value:
        branches = []
        for branch in node.args.get("ifs", []):
            test = branch.this
            if node.this is not None:
                test = exp.EQ(this=node.this.copy(), expression=test.copy())
            branches.append((test, branch.args["true"]))
        return self._chosen(branches, node.args.get("default"), columns)

    def _chosen(
        self,
        branches: Iterable[tuple[exp.Expr, exp.Expr]],
        default: exp.Expr | None,
        columns: Columns,
    ) -> Value:
        """CASE. A branch that nobody takes is computed as well: it can only make it Unknown."""
        tests = [_boolean(self._of(test, columns)).data for test, _ in branches]
        texts = [then for _, then in branches] + ([] if default is None else [default])
        known = [None if isinstance(t, exp.Null) else self._of(t, columns) for t in texts]
        type_ = _common([value.type for value in known if value is not None])
        values = [
            pa.scalar(None, arrow_of(type_)) if value is None else value.cast(type_).data
            for value in known
        ]
        chosen = values[-1] if default is not None else pa.scalar(None, arrow_of(type_))
        for test, value in reversed(list(zip(tests, values, strict=False))):
            chosen = pc.if_else(pc.fill_null(test, False), value, chosen)
        return Value(chosen, type_)

    def _like(self, node: exp.Like, columns: Columns) -> Value:
        """Patterns in which only % is special."""
        _check_precedence(node.this)
        value, pattern = self._of(node.this, columns), node.expression
        if value.type != "string" or not isinstance(pattern, exp.Literal) or not pattern.is_string:
            raise Unknown("LIKE")
        _literal(pattern)
        if "_" in pattern.name:
            raise Unknown("LIKE")
        first, *rest = pattern.name.split("%")
        if not rest:
            return Value(pc.equal(value.data, first), "boolean")
        if rest == [""]:
            return Value(pc.starts_with(value.data, pattern=first), "boolean")
        parts = ".*".join(map(re.escape, (first, *rest)))
        return Value(pc.match_substring_regex(value.data, f"(?s)^{parts}$"), "boolean")

    def _year(self, node: exp.Extract | exp.Year, columns: Columns) -> Value:
        if isinstance(node, exp.Extract) and node.name.upper() != "YEAR":
            raise Unknown("EXTRACT")
        value = self._of(node.expression if isinstance(node, exp.Extract) else node.this, columns)
        if value.type != "date":
            raise Unknown(value.type)
        return Value(pc.year(value.data).cast(pa.int32()), "int")

    def _substring(self, node: exp.Substring, columns: Columns) -> Value:
        value = self._of(node.this, columns)
        given = [node.args.get(key) for key in ("start", "length")]
        counts = [int(n.name) for n in given if isinstance(n, exp.Literal) and n.name.isdigit()]
        if value.type != "string" or len(counts) < 2 or counts[0] < 1 or max(counts) > 10**6:
            raise Unknown("SUBSTRING")
        first = counts[0] - 1
        return Value(pc.utf8_slice_codeunits(value.data, first, first + counts[1]), "string")

    def _quotient(self, node: exp.Div, columns: Columns) -> Value:
        a, b = self._of(node.left, columns), self._of(node.right, columns)
        if a.type in (_DOUBLE, *_WHOLE) and b.type in _WHOLE:
            over = a.data if a.type == _DOUBLE else _small(a.data).cast(pa.float64())
            under = _small(b.data).cast(pa.float64())
            if not isinstance(under, pa.Scalar) and pc.any(pc.equal(under, 0)).as_py():
                raise Unknown("division by zero")
            return Value(pc.divide_checked(over, under), _DOUBLE)
        a, b = _as_decimal(a, node.left), _as_decimal(b, node.right)
        if not self._decimals:
            raise Unknown("decimals")
        (p1, s1), (p2, s2) = _decimal(a.type), _decimal(b.type)
        scale = max(6, s1 + p2 + 1)
        precision = p1 - s1 + s2 + scale
        if precision > _WIDEST:
            scale = max(_WIDEST - (precision - scale), min(scale, 6))
            precision = _WIDEST
        return Value(_divided(a.data, b.data, precision, scale), f"decimal({precision},{scale})")

    def _cast(self, node: exp.Cast, columns: Columns) -> Value:
        if node.find(exp.Column) is None:
            return self._constant(node)
        value = self._of(node.this, columns)
        kind = node.to.sql(dialect="spark").lower().replace(" ", "")
        if kind == value.type:
            return value
        if kind in _WHOLE and value.type in _WHOLE:
            return value.cast(kind)
        decimal = _DECIMAL.fullmatch(value.type)
        if kind in _WHOLE and decimal and decimal[2] == "0":
            return value.cast(kind)
        if _DECIMAL.fullmatch(kind) and (decimal or value.type in _WHOLE):
            scale = _decimal(kind)[1]
            if scale >= (_decimal(value.type)[1] if decimal else 0):
                return value.cast(kind)
            return Value(_rounded(value.data, *_decimal(kind)), kind)
        if kind == _DOUBLE and decimal and decimal[2] == "0":
            return Value(_small(value.data.cast(pa.int64())).cast(pa.float64()), kind)
        if kind == _DOUBLE and value.type in _WHOLE:
            return Value(_small(value.data).cast(pa.float64()), kind)
        raise Unknown(f"{value.type} as {kind}")


def _check_precedence(*operands: exp.Expr) -> None:
    """Which of two comparisons is made first, Spark and sqlglot see differently."""
    if any(isinstance(operand, _TESTS) for operand in operands):
        raise Unknown("a comparison of comparisons")


def _negated(node: exp.Expr) -> bool:
    return bool(node.args.get("negate"))


def _column(node: exp.Column, columns: Columns) -> Value:
    if node.table or node.name not in columns:
        raise Unknown(node.sql())
    return columns[node.name]


def _literal(node: exp.Literal) -> Value:
    if node.is_string:
        if not node.name.isprintable() or "\\" in node.name:
            raise Unknown("what a backslash means is a setting")
        return Value(pa.scalar(node.name), "string")
    text = node.name
    if text.isdigit():
        for type_ in ("int", "bigint"):
            if int(text) < 2 ** (_WHOLE[type_].bit_width - 1):
                return Value(pa.scalar(int(text), _WHOLE[type_]), type_)
    elif re.fullmatch(r"\d*\.\d*", text) and len(text) > 1:
        number = Decimal(text)
        exponent = number.as_tuple().exponent
        scale = -exponent if isinstance(exponent, int) else 0
        digits = max(len(number.as_tuple().digits), scale, 1)
        if digits <= _WIDEST:
            return Value(
                pa.scalar(number, pa.decimal128(digits, scale)), f"decimal({digits},{scale})"
            )
    raise Unknown(text)


def _boolean(value: Value) -> Value:
    if value.type != "boolean":
        raise Unknown(value.type)
    return value


def _decimal(type_: str) -> tuple[int, int]:
    found = _DECIMAL.fullmatch(type_)
    if found is None:
        raise Unknown(type_)
    return int(found[1]), int(found[2])


def _as_decimal(value: Value, node: exp.Expr) -> Value:
    """A number beside a decimal. Of one that is written out, the digits count that it has."""
    if value.type in _WHOLE:
        node = node.unnest()
        if isinstance(node, exp.Neg) and isinstance(node.this.unnest(), exp.Literal):
            raise Unknown("a negative number beside a decimal")
        written = isinstance(node, exp.Literal)
        digits = len(str(int(node.name))) if written else _DIGITS[value.type]
        return value.cast(f"decimal({digits},0)")
    _decimal(value.type)
    return value


def _wider(a: str, b: str) -> str:
    return a if _WHOLE[a].bit_width >= _WHOLE[b].bit_width else b


def _arithmetic(node: exp.Binary, a: Value, b: Value) -> Value:
    if a.type in _WHOLE and b.type in _WHOLE:
        type_ = _wider(a.type, b.type)
        made = _CHECKED[type(node)](a.cast(type_).data, b.cast(type_).data)
        return Value(made, type_)
    a, b = _as_decimal(a, node.left), _as_decimal(b, node.right)
    (p1, s1), (p2, s2) = _decimal(a.type), _decimal(b.type)
    if isinstance(node, exp.Mul):
        precision, scale = p1 + p2 + 1, s1 + s2
    else:
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale + 1
    if precision > _WIDEST and scale > max(_WIDEST - (precision - scale), min(scale, 6)):
        raise Unknown("a digit would be rounded away")
    wide = precision > _WIDEST
    x, y = (v.data.cast(pa.decimal256(*_decimal(v.type))) if wide else v.data for v in (a, b))
    made = _CHECKED[type(node)](x, y)
    # What does not fit is an error here as it is in Spark, which has the words for it.
    type_ = f"decimal({min(precision, _WIDEST)},{scale})"
    if precision > SURE_DIGITS:
        made.cast(pa.decimal256(SURE_DIGITS, scale))
    return Value(made, type_).cast(type_)


def _small(data: Data) -> Data:
    """Whole numbers that floating point holds exactly."""
    least_and_most = pc.min_max(data if not isinstance(data, pa.Scalar) else pa.array([data]))
    if any(abs(v or 0) > 2**53 for v in least_and_most.as_py().values()):
        raise Unknown("a large number as floating point")
    return data


def _each(data: Data) -> list[Decimal | None]:
    if isinstance(data, pa.Scalar):
        raise Unknown("a constant that is divided")
    if len(data) > DIVIDED_ROWS_MAX:
        raise Unknown("many quotients")
    return data.to_pylist()  # type: ignore[no-any-return]


def _divided(a: Data, b: Data, precision: int, scale: int) -> pa.Array:
    """Quotients, rounded half up at so many digits. Raises Unknown where that is not certain."""
    count = max((len(d) for d in (a, b) if not isinstance(d, pa.Scalar)), default=0)
    if not count and isinstance(a, pa.Scalar) and isinstance(b, pa.Scalar):
        raise Unknown("a constant that is divided")
    over = [a.as_py()] * count if isinstance(a, pa.Scalar) else _each(a)
    under = [b.as_py()] * count if isinstance(b, pa.Scalar) else _each(b)
    made: list[Decimal | None] = []
    for x, y in zip(over, under, strict=True):
        if x is None or y is None:
            made.append(None)
        elif not y:
            raise Unknown("division by zero")
        else:
            found = _half_up(_EXACT.divide(x, y), scale)
            if any(found != _half_up(context.divide(x, y), scale) for context in _SPARK):
                raise Unknown("a quotient that is rounded twice")
            made.append(found)
    return pa.array(made, pa.decimal128(precision, scale))


def _rounded(data: Data, precision: int, scale: int) -> pa.Array:
    values = [None if v is None else _half_up(v, scale) for v in _each(data)]
    return pa.array(values, pa.decimal128(precision, scale))


def _half_up(value: Decimal, scale: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP, context=_EXACT)


def _alike(a: Value, b: Value) -> tuple[Value, Value]:
    """Two values that can be compared."""
    if a.type == b.type and (a.type in _ORDERED or a.type in _WHOLE or _DECIMAL.fullmatch(a.type)):
        return a, b
    type_ = _common([a.type, b.type])
    if type_ == _DOUBLE:
        raise Unknown("floating point is compared")
    return a.cast(type_), b.cast(type_)


def _common(types: Sequence[str]) -> str:
    """The type that values of these types have together."""
    if not types:
        raise Unknown("NULL")
    first = types[0]
    if all(type_ == first for type_ in types):
        if first in _ORDERED or first in _WHOLE or first == _DOUBLE or _DECIMAL.fullmatch(first):
            return first
        raise Unknown(first)
    if all(type_ in _WHOLE for type_ in types):
        for type_ in types:
            first = _wider(first, type_)
        return first
    pairs = [(_DIGITS[t], 0) if t in _WHOLE else _decimal(t) for t in types]
    scale = max(s for _, s in pairs)
    precision = max(p - s for p, s in pairs) + scale
    if precision > _WIDEST:
        raise Unknown("a digit would be rounded away")
    return f"decimal({precision},{scale})"


def arrow_of(type_: str) -> pa.DataType:
    if type_ in _WHOLE:
        return _WHOLE[type_]
    if _DECIMAL.fullmatch(type_):
        return pa.decimal128(*_decimal(type_))
    kinds = {
        "boolean": pa.bool_(),
        _DOUBLE: pa.float64(),
        "string": pa.string(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    if type_ not in kinds:
        raise Unknown(type_)
    return kinds[type_]


def _arrow_cast(data: Data, type_: str) -> Data:
    target = arrow_of(type_)
    if data.type == target:
        return data
    if pa.types.is_integer(data.type) and pa.types.is_decimal(target):
        # Arrow wants room for every number of that width, also where there is none so large.
        digits = next(_DIGITS[kind] for kind, type_ in _WHOLE.items() if type_ == data.type)
        data = data.cast(pa.decimal128(digits, 0))
    return data.cast(target)
