"""Scalar Spark SQL on rows of Python values: compiles an expression to a function of a row.

A row maps column names to values (see `spark_values`). The syntax tree becomes a tree of closures.
Errors that Spark raises at run time under ANSI rules are `UserCodeError`. Anything whose result is
not certain is an `InvalidError`, at compile time or when a value of an unexpected type turns up:
the evaluator never guesses.

Only values are known, not the declared types of columns. Hence these limits: an int is a BIGINT, so
INT overflow is not detected; a quotient of decimals may have another scale (`spark_numbers`);
branches of CASE, COALESCE and the like get a common type only where literals and casts show it;
text next to a number is not cast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import TypeAlias

from sqlglot import exp

from stepwell.errors import UserCodeError, ensure
from stepwell.execution.reference.scalar_functions import FUNCTIONS, STRICT, days_later, like
from stepwell.execution.reference.scalar_types import common, declared
from stepwell.execution.reference.spark_numbers import divide
from stepwell.execution.reference.spark_values import (
    INT_MAX,
    TimeWindow,
    Value,
    cast,
    clean,
    compare,
    kind,
    order,
    unknown,
)
from stepwell.plan.expressions import Expr

Row: TypeAlias = Mapping[str, Value]
Code: TypeAlias = Callable[[Row], Value]
Form: TypeAlias = Callable[[exp.Expr], Code]

# Arguments by which sqlglot records default behaviour of Spark.
_HARMLESS = {"big_int", "ignore_nulls", "nulls_excluded", "safe", "typed"}


@lru_cache(maxsize=4096)
def scalar(expr: Expr) -> Code:
    """The expression as a function of a row; its results are clean.

    >>> from stepwell.plan.expressions import parse
    >>> scalar(parse("_c1 + 1 > 2"))({"_c1": 2})
    True
    """
    return code(expr.tree)


@lru_cache(maxsize=4096)
def condition(expr: Expr) -> Callable[[Row], bool]:
    """Whether the expression is TRUE; NULL is not."""
    return holds(expr.tree)


def code(node: exp.Expr) -> Code:
    """Compile a syntax tree to a function with clean results."""
    run = _code(node)
    return lambda row: clean(run(row))


def holds(node: exp.Expr) -> Callable[[Row], bool]:
    run = _code(node)
    return lambda row: _truth(run(row)) is True


def constant(node: exp.Expr) -> Value:
    """The value of an expression without columns."""
    return code(node)({})


def name_of(node: exp.Expr) -> str:
    """The name of a node's operation.

    sqlglot has a class for some functions and only a name for others. Without underscores both are
    spelled the same.
    """
    name = str(node.this) if isinstance(node, exp.Anonymous) else node.key
    return name.lower().replace("_", "")


def operands(node: exp.Expr) -> list[exp.Expr]:
    """The operands of a node, in order. Rejects modifiers, which must not be ignored."""
    found: list[exp.Expr] = []
    names = ["expressions"] if isinstance(node, exp.Anonymous) else list(node.arg_types)
    for name in names:
        value = node.args.get(name)
        if isinstance(value, exp.Expr):
            found.append(value)
        elif isinstance(value, list):
            found += value
        elif value and name not in _HARMLESS:
            raise unknown(f"{name} in {written(node)}")
    return found


def written(node: exp.Expr) -> str:
    return node.sql("spark")


def _code(node: exp.Expr) -> Code:
    name = name_of(node)
    if name in _FORMS and not isinstance(node, exp.Anonymous):
        return _FORMS[name](node)
    function = STRICT.get(name) or FUNCTIONS.get(name)
    if function is None:
        raise unknown(f"{name} in {written(node)}")
    arguments = [_code(operand) for operand in operands(node)]
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise unknown(f"{written(node)} with {len(arguments)} arguments") from None
    if name in STRICT:
        return _strict(function, arguments)
    return lambda row: function(*[argument(row) for argument in arguments])


def _strict(function: Callable[..., Value], arguments: Sequence[Code]) -> Code:
    """Return NULL if any argument is NULL."""

    def run(row: Row) -> Value:
        values = [argument(row) for argument in arguments]
        return None if any(value is None for value in values) else function(*values)

    return run


def _pair(node: exp.Expr) -> tuple[exp.Expr, exp.Expr]:
    first, second = operands(node)
    return first, second


def _truth(value: Value) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise unknown(f"a {kind(value)} as a condition")


# Forms: anything that is not a plain function of evaluated arguments


def _column(node: exp.Expr) -> Code:
    if node.args.get("table"):
        # Our columns have no table: this is a field of a time window, or not supported.
        if node.args.get("db") or node.name.lower() not in TimeWindow._fields:
            raise unknown(f"the qualified name {written(node)}")
        return _field_of(_column(exp.column(node.args["table"].copy())), node)
    name = node.name

    def run(row: Row) -> Value:
        ensure(name in row, f"the column {name} is one of {sorted(row)}")
        return row[name]

    return run


def _field(node: exp.Expr) -> Code:
    return _field_of(_code(node.this), node.expression)


def _field_of(struct: Code, field: exp.Expr) -> Code:
    """The start or end of a time window; other structs have no field names here."""
    name = field.name.lower()

    def run(row: Row) -> Value:
        value = struct(row)
        if value is None:
            return None
        if not isinstance(value, TimeWindow) or name not in value._fields:
            raise unknown(f"the field {name} of {value!r}")
        return getattr(value, name)

    return run


def _fixed(value_of: Callable[[exp.Expr], Value]) -> Form:
    """A value that does not depend on the row."""

    def form(node: exp.Expr) -> Code:
        value = value_of(node)
        return lambda row: value

    return form


def _literal(node: exp.Expr) -> Value:
    text = str(node.this)
    if node.is_string:
        return text
    if "e" in text.lower():
        return float(text)
    if "." in text or int(text) >= INT_MAX["BIGINT"]:
        return Decimal(text)
    return int(text)


def _inside(node: exp.Expr) -> Code:
    return _code(node.this)


def _and(node: exp.Expr) -> Code:
    return _connected(*map(_code, _pair(node)), decisive=False)


def _or(node: exp.Expr) -> Code:
    return _connected(*map(_code, _pair(node)), decisive=True)


def _between(node: exp.Expr) -> Code:
    value, low, high = map(_code, operands(node))
    above, below = _strict(STRICT["gte"], [value, low]), _strict(STRICT["lte"], [value, high])
    return _connected(above, below, decisive=False)


def _connected(left: Code, right: Code, *, decisive: bool) -> Code:
    """AND and OR: a decisive operand decides, else NULL wins. The second may not be evaluated."""

    def run(row: Row) -> bool | None:
        first = _truth(left(row))
        if first is decisive:
            return decisive
        second = _truth(right(row))
        if second is decisive:
            return decisive
        return None if first is None or second is None else not decisive

    return run


def _in(node: exp.Expr) -> Code:
    """IN over a list: NULL if nothing matches and the list contains NULL."""
    if node.args.get("query") or node.args.get("field") or node.args.get("unnest"):
        raise unknown(f"IN other than over a list: {written(node)}")
    needle, *members = map(_code, operands(node))

    def run(row: Row) -> bool | None:
        value = needle(row)
        if value is None:
            return None
        found = [member(row) for member in members]
        if any(item is not None and compare(value, item) == 0 for item in found):
            return True
        return None if None in found else False

    return run


def _is(node: exp.Expr) -> Code:
    subject, wanted = _pair(node)
    value = _code(subject)
    if isinstance(wanted, exp.Null):
        return lambda row: value(row) is None
    if isinstance(wanted, exp.Boolean):
        expected = bool(wanted.this)
        return lambda row: _truth(value(row)) is expected
    raise unknown(written(node))


def _like(node: exp.Expr, escape: str = "\\") -> Code:
    text, pattern = node.this, node.args["expression"]
    if not isinstance(node, exp.Like) or isinstance(pattern, exp.Any | exp.All):
        raise unknown(written(node))
    negated = bool(node.args.get("negate"))
    return _strict(
        lambda value, shape: like(value, shape, escape) is not negated,
        [_code(text), _code(pattern)],
    )


def _escape(node: exp.Expr) -> Code:
    matched, escape = _pair(node)
    return _like(matched, constant(escape))


def _if(node: exp.Expr) -> Code:
    return _first_taken([(_code(node.this), node.args["true"])], node.args.get("false"))


def _case(node: exp.Expr) -> Code:
    subject = _code(node.this) if node.this else None
    branches = []
    for branch in node.args["ifs"]:
        test = _code(branch.this)
        # `CASE x WHEN y` tests x = y.
        asked = test if subject is None else _strict(STRICT["eq"], [subject, test])
        branches.append((asked, branch.args["true"]))
    return _first_taken(branches, node.args.get("default"))


def _first_taken(branches: Sequence[tuple[Code, exp.Expr]], default: exp.Expr | None) -> Code:
    """Evaluate only the branch that is taken."""
    last = default or exp.Null()
    convert = common([*(result for _, result in branches), last])
    choices = [(test, _code(result)) for test, result in branches]
    otherwise = _code(last)

    def run(row: Row) -> Value:
        taken = (result for test, result in choices if _truth(test(row)) is True)
        return convert(next(taken, otherwise)(row))

    return run


def _coalesce(node: exp.Expr) -> Code:
    choices = operands(node)
    convert = common(choices)
    arguments = [_code(choice) for choice in choices]

    def run(row: Row) -> Value:
        values = (argument(row) for argument in arguments)
        return convert(next((value for value in values if value is not None), None))

    return run


def _gathered(make: Callable[[list[Value]], Value]) -> Form:
    """A value made of operands of a common type."""

    def form(node: exp.Expr) -> Code:
        convert = common(operands(node))
        arguments = [_code(operand) for operand in operands(node)]
        return lambda row: make([convert(argument(row)) for argument in arguments])

    return form


def _present(values: list[Value]) -> list[Value]:
    return [value for value in values if value is not None]


def _div(node: exp.Expr) -> Code:
    left, right = _pair(node)
    widths = [shown.width if shown else None for shown in (declared(left), declared(right))]
    return _strict(lambda a, b: divide(a, b, *widths), [_code(left), _code(right)])


def _cast(node: exp.Expr) -> Code:
    """CAST, which sqlglot calls TryCast too; only TRY_CAST is `safe`."""
    target = node.args["to"]
    if target.args.get("nested") or any(node.args.get(n) for n in ("format", "action", "default")):
        raise unknown(written(node))
    name = str(target.this.value)
    sizes = [int(size.name) for size in target.expressions]
    operand = _code(node.this)
    forgiving = isinstance(node, exp.TryCast) and bool(node.args.get("safe"))

    def run(row: Row) -> Value:
        value = operand(row)
        try:
            return cast(value, name, *sizes)
        except UserCodeError:
            if forgiving:
                return None
            raise

    return run


def _struct(node: exp.Expr) -> Code:
    fields = [
        _code(field.args["expression"] if isinstance(field, exp.PropertyEQ) else field)
        for field in node.expressions
    ]
    return lambda row: tuple(field(row) for field in fields)


def _date_add(node: exp.Expr) -> Code:
    if node.args.get("unit") is None or node.args["unit"].name.upper() != "DAY":
        raise unknown(written(node))
    return _strict(days_later, [_code(node.this), _code(node.args["expression"])])


_FORMS: dict[str, Form] = {
    "and": _and,
    "array": _gathered(tuple),
    "between": _between,
    "boolean": _fixed(lambda node: bool(node.this)),
    "case": _case,
    "cast": _cast,
    "coalesce": _coalesce,
    "column": _column,
    "div": _div,
    "dot": _field,
    "escape": _escape,
    "greatest": _gathered(lambda values: max(_present(values), key=order, default=None)),
    "hexstring": _fixed(lambda node: bytes.fromhex(node.name)),
    "if": _if,
    "in": _in,
    "is": _is,
    "least": _gathered(lambda values: min(_present(values), key=order, default=None)),
    "like": _like,
    "literal": _fixed(_literal),
    "null": _fixed(lambda node: None),
    "or": _or,
    "paren": _inside,
    "struct": _struct,
    "trycast": _cast,
    "tsordsadd": _date_add,
}
