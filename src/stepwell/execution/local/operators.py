"""Run plans on the rows of a change in this process: filters, projections, unions.

After join folding (`joins`) most plans are a chain of these operators over tables in memory. Each
row is processed independently, so only expressions are needed (`expressions`). MIN, MAX, COUNT
DISTINCT and TopN run here as well, if all their rows are in memory. Anything that is not supported
raises `NotSupported`, and the whole plan goes to Spark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from stepwell.execution.backend import Declined, Fallback, NotSupported
from stepwell.execution.local.expressions import ExpressionEvaluator, Value, certain
from stepwell.execution.local.lookup import LookUps
from stepwell.execution.local.quotients import SURE_DIGITS
from stepwell.execution.local.top_n import first_rows
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.consolidate import consolidated, grouped
from stepwell.lsm.run_file import WEIGHT
from stepwell.lsm.values import comparable
from stepwell.plan.expressions import Expr
from stepwell.plan.nodes import (
    Accumulate,
    Aggregate,
    Consolidate,
    Diff,
    Distinct,
    Filter,
    Generate,
    Inner,
    Join,
    Leaf,
    Merge,
    Negate,
    Node,
    Project,
    Restrict,
    Scan,
    SetOp,
    TopN,
    Union,
    Values,
    When,
    Window,
    label,
)
from stepwell.plan.numbers import INTEGER_VALUES, decimal_width
from stepwell.plan.sums import Accumulator

_INT_MAX = 2**63 - 1
_ONE = pa.scalar(1, pa.int64())


@dataclass(frozen=True, slots=True)
class Rows:
    columns: dict[str, Value]
    """The columns that are needed."""
    weight: pa.ChunkedArray

    @property
    def count(self) -> int:
        return len(self.weight)

    def where(self, mask: pa.ChunkedArray | pa.Array) -> Rows:
        """The rows where a mask without NULL is true."""
        if pc.all(mask).as_py():
            return self
        kept = {
            name: value
            if isinstance(value.data, pa.Scalar)
            else Value(value.data.filter(mask), value.type)
            for name, value in self.columns.items()
        }
        return Rows(kept, self.weight.filter(mask))


Read = Callable[[Leaf | Scan], tuple[pa.Table, tuple[str, ...]] | None]
"""Returns the rows of a leaf with weights, and its column types; None if they are not in memory."""


def from_lookups(lookups: LookUps) -> Read:
    """Read rows that were looked up, or are in memory anyway."""

    def read(leaf: Leaf | Scan) -> tuple[pa.Table, tuple[str, ...]] | None:
        if isinstance(leaf, Scan) or leaf.when is When.BOTH:
            return None
        both = lookups.tables(leaf)
        if both is None:
            return None
        tables = [table for table in both if table is not None]
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        return table, lookups.types(leaf)

    return read


class PlanEvaluator:
    """Runs plans over rows in memory."""

    def __init__(
        self, read: Read, expressions: ExpressionEvaluator, rows_max: float = math.inf
    ) -> None:
        """A leaf with more than `rows_max` rows is declined."""
        self._read = read
        self._expressions = expressions
        self._rows_max = rows_max

    def rows(self, node: Node, needed: frozenset[str]) -> Rows:
        """The rows of a plan, with the needed columns only. Raises `NotSupported`."""
        match node:
            case Leaf() | Scan():
                return self._leaf(node, needed)
            case Filter():
                condition = node.condition
                rows = self.rows(node.input, needed | condition.columns)
                return rows.where(self._expressions.mask(condition, rows.columns, rows.count))
            case Project():
                items = [(name, expr) for name, expr in node.items if name in needed]
                below = frozenset[str]().union(*(expr.columns for _, expr in items))
                rows = self.rows(node.input, below)
                made = {name: self._expressions.value(e, rows.columns) for name, e in items}
                return Rows(made, rows.weight)
            case Union():
                return self._union(node, needed)
            case Negate():
                rows = self.rows(node.input, needed)
                return Rows(rows.columns, pc.negate(rows.weight))
            case Aggregate():
                return self._aggregate(node)
            case TopN():
                return self._first(node)
            case _:
                raise NotSupported(missing(node))

    def _bag(self, node: Node, columns: Sequence[str]) -> tuple[pa.Table, tuple[str, ...]]:
        """The consolidated rows of a plan, with these columns, and their types."""
        rows = self.rows(node, frozenset(columns))
        values = [rows.columns[name] for name in columns]
        types = tuple(value.type for value in values)
        _check_comparable(types)
        found = consolidated(_table(rows, values, types))
        if found.num_rows and pc.min(found.column(WEIGHT)).as_py() < 0:
            raise Declined(Fallback.ROWS_ELSEWHERE)
        return found, types

    def _first(self, node: TopN) -> Rows:
        bag, types = self._bag(node.input, node.columns)
        found = first_rows(bag, node, node.columns)
        named = zip(node.columns, found.columns, types, strict=False)
        return Rows({n: Value(data, t) for n, data, t in named}, found.column(WEIGHT))

    def _aggregate(self, node: Aggregate) -> Rows:
        """Aggregates that depend only on the set of values, not on their multiplicities."""
        calls = [(name, *compared_call(expr)) for name, expr in node.calls]
        used = list(dict.fromkeys([*node.keys, *(column for _, _, column in calls)]))
        bag, types = self._bag(node.input, used)
        asked = []
        made: list[tuple[str, str, str]] = []
        for name, function, column in calls:
            place = used.index(column)
            asked.append((f"c{place}", function))
            type_ = "bigint" if function == "count_distinct" else types[place]
            made.append((name, f"c{place}_{function}", type_))
        keys = [f"c{i}" for i in range(len(node.keys))]
        groups = grouped(bag, keys).aggregate(list(dict.fromkeys(asked)))
        columns = {k: Value(groups.column(f"c{i}"), types[i]) for i, k in enumerate(node.keys)}
        columns |= {name: Value(groups.column(found), type_) for name, found, type_ in made}
        return Rows(columns, pa.chunked_array([pa.repeat(_ONE, groups.num_rows)]))

    def holds(self, conditions: Sequence[Expr], columns: dict[str, Value], rows: int) -> np.ndarray:
        """Mask of the rows for which all conditions hold. Raises `NotSupported`."""
        kept = np.ones(rows, dtype=bool)
        for condition in conditions:
            mask = self._expressions.mask(condition, columns, rows)
            kept &= np.asarray(mask, dtype=bool)
        return kept

    @certain()
    def changes(
        self, node: Node, types: tuple[str, ...] | None = None
    ) -> tuple[pa.Table, tuple[str, ...]]:
        """A consolidated change set and its column types, by default inferred."""
        source = node.input if isinstance(node, Consolidate) else node
        rows = self.rows(source, frozenset(node.columns))
        values = [rows.columns[name] for name in node.columns]
        kinds = types or tuple(value.type for value in values)
        _check_comparable(kinds)
        return consolidated(_table(rows, values, kinds)), kinds

    @certain()
    def shown(self, node: Node, types: Sequence[str]) -> pa.Table:
        """The result of a plan whose columns have these types. Raises `NotSupported`."""
        rows = self.rows(node, frozenset(node.columns))
        return consolidated(_table(rows, [rows.columns[name] for name in node.columns], types))

    @certain()
    def added(self, node: Node) -> tuple[pa.Table, tuple[str, ...]]:
        """The change of sums: keys, number of rows, accumulators. Raises `NotSupported`."""
        if not isinstance(node, Accumulate):
            raise NotSupported(missing(node))
        accumulators = [accumulator for _, accumulator in node.sums]
        used = [e.columns for a in accumulators for e in (a.argument, a.present) if e is not None]
        rows = self.rows(node.input, frozenset(node.keys).union(*used))
        keys = [rows.columns[name] for name in node.keys]
        types = (*(key.type for key in keys), "bigint", *(a.type for a in accumulators))
        _check_comparable(types)
        weight = rows.weight
        often = pc.min_max(pc.abs(weight)).as_py()
        signed = rows.count == 0 or often == {"min": 1, "max": 1}
        columns = [key.column(rows.count) for key in keys]
        sums = [weight, *(self._signed(a, rows, signed) for a in accumulators)]
        for column in sums:
            _check_sum(column)
        names = [f"c{i}" for i in range(len(types))]
        table = pa.table([*columns, *sums], names=names)
        groups, summed = names[: len(keys)], names[len(keys) :]
        made = grouped(table, groups).aggregate([(name, "sum") for name in summed])
        made = made.select([*groups, *(f"{name}_sum" for name in summed)])
        ones = pa.repeat(pa.scalar(1, pa.int64()), made.num_rows)
        made = made.append_column(WEIGHT, ones).rename_columns([*names, WEIGHT])
        schema = arrow_schema(types)
        filled = [pc.fill_null(made.column(n), 0) if n in summed else made.column(n) for n in names]
        return pa.table([*filled, made.column(WEIGHT)], names=[*names, WEIGHT]).cast(schema), types

    def _leaf(self, node: Leaf | Scan, needed: frozenset[str]) -> Rows:
        found = self._read(node)
        if found is None:
            raise Declined(Fallback.ROWS_ELSEWHERE)
        table, types = found
        if table.num_rows > self._rows_max:
            raise Declined(Fallback.TOO_MANY_ROWS)
        kinds = zip(node.columns, table.columns, types, strict=False)
        columns = {name: Value(data, type_) for name, data, type_ in kinds if name in needed}
        return Rows(columns, table.column(WEIGHT))

    def _union(self, node: Union, needed: frozenset[str]) -> Rows:
        places = [place for place, name in enumerate(node.columns) if name in needed]
        # Most terms of a small change are empty, and left out. If none certainly has rows, all are
        # computed: so `support`, which runs plans over no rows, sees every operator.
        counts = [self._row_count(child) for child in node.inputs]
        inputs: Sequence[Node] = node.inputs
        if any(counts):
            both = zip(node.inputs, counts, strict=True)
            inputs = [child for child, count in both if count != 0]
        parts: list[Rows] = []
        for child in inputs:
            wanted = frozenset(child.columns[place] for place in places)
            parts.append(self.rows(child, wanted))
        columns: dict[str, Value] = {}
        for place in places:
            values = [
                part.columns[child.columns[place]]
                for part, child in zip(parts, inputs, strict=True)
            ]
            if len({value.type for value in values}) != 1:
                raise NotSupported("the branches of a UNION differ in type")
            arrays = [v.column(part.count) for v, part in zip(values, parts, strict=True)]
            columns[node.columns[place]] = Value(_concatenated(arrays), values[0].type)
        return Rows(columns, _concatenated([part.weight for part in parts]))

    def _row_count(self, node: Node) -> int | None:
        """The number of rows of the leaf below a branch; None if there is no single one here."""
        while isinstance(node, Filter | Project | Negate):
            node = node.input
        found = self._read(node) if isinstance(node, Leaf) else None
        return None if found is None else int(found[0].num_rows)

    def _signed(self, accumulator: Accumulator, rows: Rows, signed: bool) -> pa.ChunkedArray:
        """The contribution of each row; NULL contributes nothing."""
        weight = rows.weight
        if accumulator.argument is None:
            made = weight
        else:
            value = self._expressions.value(accumulator.argument, rows.columns)
            data = _summand(value, accumulator.type).column(rows.count)
            if signed:
                made = pc.if_else(pc.less(weight, 0), pc.negate(data), data)
            else:
                made = _times(data, weight)
        if accumulator.present is not None:
            mask = self._expressions.mask(accumulator.present, rows.columns, rows.count)
            made = pc.if_else(mask, made, pa.scalar(None, made.type))
        return made


_MISSING: dict[type[Node], str] = {
    Window: "window functions have no local kernel",
    Generate: "explode and other generators have no local kernel",
    Distinct: "DISTINCT has no local kernel",
    SetOp: "EXCEPT and INTERSECT have no local kernel",
    Join: "this join has no local kernel",
    Inner: "a join of columns that differ in type has no local kernel",
    Merge: "sums of floating point are added by Spark",
    Values: "VALUES has no local kernel",
    Restrict: "the changed keys are computed by Spark",
    Diff: "before and after are compared by Spark",
}


def missing(node: Node) -> str:
    """Says that an operator does not run here."""
    return _MISSING.get(type(node), f"{label(node)} has no local kernel")


def _check_comparable(types: Sequence[str]) -> None:
    for type_ in types:
        if not comparable(type_):
            raise NotSupported(f"{type_.upper()} is compared by Spark")


def compared_call(call: Expr) -> tuple[str, str]:
    """An aggregate that only compares values: Arrow's name for it, and its column."""
    match call.tree:
        case exp.Max(this=argument, args=args) if not args.get("expressions"):
            function = "max"
        case exp.Min(this=argument, args=args) if not args.get("expressions"):
            function = "min"
        case exp.Count(this=exp.Distinct(expressions=[argument])):
            function = "count_distinct"
        case _:
            raise NotSupported(f"{call.sql} has no local kernel")
    column = call.part(argument).column
    if column is None:
        raise NotSupported(f"{call.sql} aggregates an expression")
    return function, column


def _table(rows: Rows, values: Sequence[Value], types: Sequence[str]) -> pa.Table:
    typed = [_typed(v, t).column(rows.count) for v, t in zip(values, types, strict=True)]
    names = [*(f"c{i}" for i in range(len(typed))), WEIGHT]
    return pa.table([*typed, rows.weight], names=names)


def _typed(value: Value, type_: str) -> Value:
    """A value cast to its column's type. We may have inferred too many digits for a decimal."""
    if value.type == type_:
        return value
    if _scale(value.type) is None or _scale(value.type) != _scale(type_):
        raise NotSupported(f"{value.type.upper()} is not stored as {type_.upper()}")
    return value.cast(type_)


def _scale(type_: str) -> int | None:
    width = decimal_width(type_)
    return None if width is None else width[1]


def _summand(value: Value, type_: str) -> Value:
    """A value cast to the type of its accumulator."""
    whole = type_ == "bigint" and _scale(value.type) is None
    if not whole and (_scale(value.type) or 0) != _scale(type_):
        raise NotSupported(f"a sum of {value.type.upper()} has no local kernel")
    return value.cast(type_)


def _times(data: pa.ChunkedArray, weight: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_integer(data.type):
        return pc.multiply_checked(data, weight)
    wide = pa.decimal256(data.type.precision, data.type.scale)
    made = pc.multiply_checked(
        data.cast(wide), weight.cast(pa.decimal256(*INTEGER_VALUES["bigint"]))
    )
    return made.cast(data.type)


def _check_sum(column: pa.ChunkedArray | pa.Array) -> None:
    """Check that a sum cannot come near overflow, which Arrow does not report."""
    if not len(column):
        return
    least, most = (pc.min_max(column).as_py()[key] or 0 for key in ("min", "max"))
    limit = (
        _INT_MAX if pa.types.is_integer(column.type) else 10 ** (SURE_DIGITS - column.type.scale)
    )
    if max(abs(least), abs(most)) * len(column) > limit:
        raise Declined(Fallback.ARITHMETIC)


def _concatenated(arrays: Sequence[pa.ChunkedArray | pa.Array]) -> pa.ChunkedArray:
    chunks = [
        chunk
        for array in arrays
        for chunk in (array.chunks if isinstance(array, pa.ChunkedArray) else [array])
    ]
    return pa.chunked_array(chunks, type=arrays[0].type)
