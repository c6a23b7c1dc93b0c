"""Predict how a view would be maintained, without Spark, as far as our own parser and types go.

This is for `explain` of a project that was never run. Spark has the last word when the view is
compiled: it may read the query differently, and it knows every type. Anything unknown here raises
`NotSupported`. Importing this module does not import pyspark.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
from sqlglot import exp, parse_one

from stepwell.execution.backend import CannotRunError, NotSupported
from stepwell.execution.local.backend import LocalBackend
from stepwell.execution.local.expressions import ExpressionEvaluator, Value, arrow_of, certain
from stepwell.execution.local.support import Decisions
from stepwell.plan.column_names import ColumnNames
from stepwell.plan.explain import Explained
from stepwell.plan.expressions import Expr, column
from stepwell.plan.lower import Lowering
from stepwell.plan.nodes import (
    Aggregate,
    Distinct,
    Filter,
    Inner,
    Join,
    Negate,
    Node,
    Project,
    Scan,
    SetOp,
    Side,
    TopN,
    Union,
)
from stepwell.plan.numbers import (
    INTEGER_BITS,
    Width,
    average_width,
    decimal_text,
    decimal_width,
    total_width,
)
from stepwell.plan.program import Field, Full, Groups, Program, Sums
from stepwell.plan.reasons import Code, Reason, Unsupported
from stepwell.plan.shape import typed
from stepwell.plan.types import stored_type
from stepwell.sql.catalog import catalog_of
from stepwell.sql.parse import parse_query, read
from stepwell.sql.statements import MaterializedView, Policy, Statement, Table, View

Columns = Callable[[str], tuple[str, ...] | None]
"""Returns the columns of a table or view by its name, as far as its text says."""


def explain_offline(
    statements: Sequence[Statement], columns: Columns
) -> dict[str, Explained | CannotRunError]:
    """Predict how each materialized view is maintained, by lower-case name; or why it is unknown.

    Each of the `statements` follows the statements it reads.
    """
    return Prediction(columns).all(statements)


class Prediction:
    """Compiles views without Spark, and decides which backend computes their changes."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._expressions = ExpressionEvaluator(_constant)
        self._names = ColumnNames()
        self.programs: list[Program] = []
        self.decisions = Decisions(
            LocalBackend(self._expressions), self._types_of, lambda: self._unique, self._names
        )
        self._types: dict[str, tuple[str, ...]] = {}
        self._stored: dict[str, tuple[str, ...]] = {}
        self._unique: dict[str, tuple[int, ...]] = {}
        self._trees: dict[str, tuple[exp.Query, tuple[str, ...]]] = {}
        self._outputs: dict[str, Node] = {}

    def all(self, statements: Sequence[Statement]) -> dict[str, Explained | CannotRunError]:
        found: dict[str, Explained | CannotRunError] = {}
        for statement in statements:
            match statement:
                case Table():
                    names = [column.name.lower() for column in statement.columns]
                    self._types[statement.name] = tuple(
                        stored_type(column.type) for column in statement.columns
                    )
                    self._stored[statement.name] = tuple(c.name for c in statement.columns)
                    self._names.add_table(statement.name, self._stored[statement.name])
                    self._unique[statement.name] = tuple(
                        names.index(key.lower()) for key in statement.key
                    )
                case View():
                    shown = self._columns(statement.name)
                    with suppress(Unsupported):
                        if shown is not None:
                            tree = read(statement.query, catalog_of(self._stored, self._trees))
                            self._trees[statement.name.lower()] = (tree, shown)
                case MaterializedView():
                    try:
                        program = self._view(statement)
                        self.programs.append(program)
                        self._names.add_program(program)
                        self.decisions.add(program)
                        found[statement.name.lower()] = self.decisions.explain(program)
                    except CannotRunError as why:
                        found[statement.name.lower()] = why
        return found

    def _view(self, view: MaterializedView) -> Program:
        try:
            if view.policy is Policy.FULL:
                raise Unsupported(Code.POLICY_FULL, "the view declares REFRESH POLICY FULL")
            return self._lowered(view)
        except Unsupported as unsupported:
            return self._full(view, unsupported.reason)

    def _lowered(self, view: MaterializedView) -> Program:
        catalog = catalog_of(self._stored, self._trees)
        shown = self._columns(view.name)
        if shown is None:
            raise NotSupported(f"the columns of {view.name}")
        parsed = parse_query(view.query, catalog, share=True)
        lowering: Lowering

        def types(node: Node) -> tuple[str, ...]:
            for block in lowering.blocks:
                self._types[block.relation] = tuple(field.type for field in block.fields)
            with certain():
                return self._of(node)

        lowering = Lowering(
            view.name,
            parsed.names,
            types,
            ansi=True,
            unique=self._unique,
            views=self._outputs,
            shared=parsed.shared,
        )
        for grouped in parsed.grouped:
            lowering.check(*grouped)
        output = lowering.view(parsed.node)
        found = types(output)
        for block in lowering.blocks:
            if isinstance(block, Sums | Groups):
                self._unique[block.relation] = block.key
        self._stored[view.name], self._types[view.name] = shown, found
        self._outputs[view.name] = output
        made = typed(output, dict(zip(output.columns, found, strict=True)))
        return Program(view.name, shown, found, tuple(lowering.blocks), made)

    def _full(self, view: MaterializedView, reason: Reason) -> Program:
        """A view that is recomputed. Views over it need its types, which only Spark knows."""
        shown = self._columns(view.name) or ()
        fields = tuple(Field("unknown") for _ in shown)
        full = Full(f"{view.name}$0", fields, view.query, frozenset(), reason)
        output = Scan(full.relation, tuple(f"o{i}" for i in range(len(shown))))
        self._stored[view.name] = shown
        return Program(view.name, shown, tuple("unknown" for _ in shown), (full,), output)

    # Types

    def _types_of(self, relation: str) -> tuple[str, ...]:
        return self._types[relation]

    def _of(self, node: Node) -> tuple[str, ...]:
        match node:
            case Scan():
                if node.relation not in self._types:
                    raise NotSupported(f"the types of {node.relation}")
                return self._types[node.relation]
            case Filter() | Distinct() | TopN() | Negate():
                return self._of(node.input)
            case Project():
                values = self._empty(node.input)
                return tuple(self._expressions.value(expr, values).type for _, expr in node.items)
            case Inner():
                return tuple(kind for child in node.inputs for kind in self._of(child))
            case Join():
                left = self._of(node.left)
                one = node.side in (Side.SEMI, Side.ANTI)
                return left if one else (*left, *self._of(node.right))
            case Union():
                return _alike([self._of(child) for child in node.inputs])
            case SetOp():
                return _alike([self._of(node.left), self._of(node.right)])
            case Aggregate():
                kinds = dict(zip(node.input.columns, self._of(node.input), strict=False))
                keys = tuple(kinds[key] for key in node.keys)
                return (*keys, *(self._call(expr, node.input) for _, expr in node.calls))
            case _:
                raise NotSupported(f"the types of a {type(node).__name__.lower()}")

    def _empty(self, node: Node) -> Mapping[str, Value]:
        """Empty columns of a node, for the types that are supported here."""
        made = {}
        for name, kind in zip(node.columns, self._of(node), strict=False):
            with suppress(CannotRunError):
                made[name] = Value(pa.chunked_array([], arrow_of(kind)), kind)
        return made

    def _call(self, expr: Expr, node: Node) -> str:
        call = expr.tree
        if isinstance(call, exp.Filter):
            call = call.this
        if isinstance(call, exp.Count):
            return "bigint"
        if not isinstance(call, exp.Sum | exp.Min | exp.Max | exp.Avg):
            raise NotSupported(f"the type of {expr.sql}")
        argument = call.this.expressions[0] if isinstance(call.this, exp.Distinct) else call.this
        kind = self._expressions.type_of(argument, self._empty(node))
        if isinstance(call, exp.Min | exp.Max):
            return kind
        return _summed(kind) if isinstance(call, exp.Sum) else _averaged(kind)


def _constant(sql: str) -> Value | None:
    """The value of a constant, or one of its type: no row is compared with it here."""
    tree = parse_one(sql, dialect="spark")
    if isinstance(tree, exp.Cast) and tree.is_type("date"):
        with suppress(ValueError):
            return Value(pa.scalar(datetime.date.fromisoformat(tree.this.name)), "date")
    if not isinstance(tree, exp.Add | exp.Sub | exp.Mul):
        return None
    if isinstance(tree.right, exp.Interval):
        unit = tree.right.text("unit").upper()
        left = _constant(tree.left.sql(dialect="spark"))
        return left if left is not None and unit in ("DAY", "WEEK", "MONTH", "YEAR") else None
    literals = [tree.left, tree.right]
    if not all(isinstance(literal, exp.Literal) for literal in literals):
        return None
    expressions = ExpressionEvaluator(lambda _: None)
    values = [expressions.value(Expr(literal), {}) for literal in literals]
    if values[0].type[:7] != values[1].type[:7]:  # Integers, or decimals of any width.
        return None
    over = type(tree)(this=column("a").tree.copy(), expression=column("b").tree.copy())
    with suppress(CannotRunError):
        return expressions.value(Expr(over, frozenset("ab")), dict(zip("ab", values, strict=True)))
    return None


def _alike(inputs: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    if len(set(inputs)) != 1:
        raise NotSupported("the types of a union")
    return inputs[0]


def _summed(kind: str) -> str:
    if kind in INTEGER_BITS:
        return "bigint"
    if kind in ("float", "double"):
        return "double"
    return decimal_text(total_width(_width(kind)))


def _averaged(kind: str) -> str:
    if kind in (*INTEGER_BITS, "float", "double"):
        return "double"
    return decimal_text(average_width(_width(kind)))


def _width(kind: str) -> Width:
    width = decimal_width(kind)
    if width is None:
        raise NotSupported(f"a sum of {kind}")
    return width
