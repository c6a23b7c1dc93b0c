"""Plans that only pass rows on, run here on the rows of a change: filters, projections, unions.

What `flatten` leaves of most plans is a chain of these over tables in this process. Each row goes
its way alone, so nothing is needed but its expressions (`exact`). The least, the greatest and the
first of some rows are found here as well, if all of them are here. What is not understood raises
Unknown, and the plan goes to Spark as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.query.algebra import (
    Accumulate,
    Aggregate,
    Consolidate,
    Expr,
    Filter,
    Leaf,
    Negate,
    Node,
    Project,
    Scan,
    TopN,
    Union,
    When,
)
from stepwell.query.sums import Accumulator
from stepwell.spark.exact import SURE_DIGITS, Computing, Unknown, Value, certain
from stepwell.spark.finder import LookUps
from stepwell.spark.index import comparable
from stepwell.spark.merge import consolidated
from stepwell.spark.ranking import first_rows
from stepwell.spark.relations import arrow_schema
from stepwell.spark.runs import WEIGHT

ROWS_MAX = 1_000_000
"""With more rows Spark, which has all cores, is done sooner."""
_INT_MAX = 2**63 - 1
_ONE = pa.scalar(1, pa.int64())
_CALL = re.compile(r"(?:(?P<function>max|min)\(|count\(distinct )(?P<column>\w+)\)", re.IGNORECASE)
"""Aggregates that are found by comparing values."""
_DECIMAL = re.compile(r"decimal\(\d+,(\d+)\)")


@dataclass(frozen=True, slots=True)
class Rows:
    columns: dict[str, Value]
    """Those that are needed."""
    weight: pa.ChunkedArray

    @property
    def count(self) -> int:
        return len(self.weight)

    def where(self, mask: pa.ChunkedArray | pa.Array) -> Rows:
        kept = {
            name: value
            if isinstance(value.data, pa.Scalar)
            else replace(value, data=value.data.filter(mask))
            for name, value in self.columns.items()
        }
        return Rows(kept, self.weight.filter(mask))


Read = Callable[[Leaf | Scan], tuple[pa.Table, tuple[str, ...]] | None]
"""The rows of a leaf with their weights, and the types of its columns; None: they are not here."""


def from_lookups(lookups: LookUps) -> Read:
    """What was looked up, and what is in memory anyway."""

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


class Linear:
    """Runs plans over rows in memory."""

    def __init__(self, read: Read, computing: Computing) -> None:
        self._read = read
        self._computing = computing

    def rows(self, node: Node, needed: frozenset[str]) -> Rows:
        """The rows of a plan, and of their columns those that are needed. Raises Unknown."""
        match node:
            case Leaf() | Scan():
                return self._leaf(node, needed)
            case Filter():
                condition = node.condition
                rows = self.rows(node.input, needed | condition.columns)
                return rows.where(self._computing.mask(condition, rows.columns, rows.count))
            case Project():
                items = [(name, expr) for name, expr in node.items if name in needed]
                below = frozenset[str]().union(*(expr.columns for _, expr in items))
                rows = self.rows(node.input, below)
                made = {name: self._computing.value(e, rows.columns) for name, e in items}
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
                raise Unknown(type(node).__name__)

    def _bag(self, node: Node, columns: Sequence[str]) -> tuple[pa.Table, tuple[str, ...]]:
        """These columns of a plan's rows, each row once, with how often; and their types."""
        rows = self.rows(node, frozenset(columns))
        values = [rows.columns[name] for name in columns]
        types = tuple(value.type for value in values)
        if not all(map(comparable, types)):
            raise Unknown("what cannot be compared")
        found = consolidated(_table(rows, values, types))
        if found.num_rows and pc.min(found.column(WEIGHT)).as_py() < 0:
            raise Unknown("a row that is not there")
        return found, types

    def _first(self, node: TopN) -> Rows:
        bag, types = self._bag(node.input, node.columns)
        found = first_rows(bag, node, node.columns)
        if found is None:
            raise Unknown("an order with NULLs")
        named = zip(node.columns, found.columns, types, strict=False)
        return Rows({n: Value(data, t) for n, data, t in named}, found.column(WEIGHT))

    def _aggregate(self, node: Aggregate) -> Rows:
        """Groups, of whose rows only the values count, not how often they are there."""
        calls = [(name, _CALL.fullmatch(expr.sql)) for name, expr in node.calls]
        known = [(name, call) for name, call in calls if call is not None]
        if not {call["column"] for _, call in known} <= set(node.input.columns):
            raise Unknown("a constant")
        if len(known) < len(calls):
            raise Unknown("an aggregate")
        used = list(dict.fromkeys([*node.keys, *(call["column"] for _, call in known)]))
        bag, types = self._bag(node.input, used)
        asked = []
        made: list[tuple[str, str, str]] = []
        for name, call in known:
            place = used.index(call["column"])
            function = (call["function"] or "count_distinct").lower()
            asked.append((f"c{place}", function))
            type_ = types[place] if call["function"] else "bigint"
            made.append((name, f"c{place}_{function}", type_))
        keys = [f"c{i}" for i in range(len(node.keys))]
        groups = bag.group_by(keys).aggregate(list(dict.fromkeys(asked)))
        columns = {k: Value(groups.column(f"c{i}"), types[i]) for i, k in enumerate(node.keys)}
        columns |= {name: Value(groups.column(found), type_) for name, found, type_ in made}
        return Rows(columns, pa.chunked_array([pa.repeat(_ONE, groups.num_rows)]))

    def holds(self, conditions: Sequence[Expr], columns: dict[str, Value], rows: int) -> np.ndarray:
        """For which rows all conditions hold. Raises Unknown."""
        kept = np.ones(rows, dtype=bool)
        for condition in conditions:
            mask = self._computing.mask(condition, columns, rows)
            kept &= np.asarray(mask, dtype=bool)
        return kept

    @certain()
    def changes(
        self, node: Node, types: tuple[str, ...] | None = None
    ) -> tuple[pa.Table, tuple[str, ...]]:
        """A change set, consolidated, and the types of its columns if they are not known. Raises
        Unknown."""
        if not isinstance(node, Consolidate):
            raise Unknown(type(node).__name__)
        rows = self.rows(node.input, frozenset(node.columns))
        values = [rows.columns[name] for name in node.columns]
        kinds = types or tuple(value.type for value in values)
        if not all(map(comparable, kinds)):
            raise Unknown("what cannot be compared")
        return consolidated(_table(rows, values, kinds)), kinds

    @certain()
    def shown(self, node: Node, types: Sequence[str]) -> pa.Table:
        """What a plan gives whose columns have these types. Raises Unknown."""
        rows = self.rows(node, frozenset(node.columns))
        return consolidated(_table(rows, [rows.columns[name] for name in node.columns], types))

    @certain()
    def added(
        self, node: Node, accumulators: Sequence[Accumulator]
    ) -> tuple[pa.Table, tuple[str, ...]]:
        """What a change adds to sums: keys, the number of rows, accumulators. Raises Unknown."""
        if not isinstance(node, Accumulate):
            raise Unknown(type(node).__name__)
        used = [e.columns for a in accumulators for e in (a.argument, a.present) if e is not None]
        rows = self.rows(node.input, frozenset(node.keys).union(*used))
        keys = [rows.columns[name] for name in node.keys]
        types = (*(key.type for key in keys), "bigint", *(a.type for a in accumulators))
        if not all(map(comparable, types)):
            raise Unknown("what cannot be compared")
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
        made = table.group_by(groups).aggregate([(name, "sum") for name in summed])
        made = made.select([*groups, *(f"{name}_sum" for name in summed)])
        ones = pa.repeat(pa.scalar(1, pa.int64()), made.num_rows)
        made = made.append_column(WEIGHT, ones).rename_columns([*names, WEIGHT])
        schema = arrow_schema(types)
        filled = [pc.fill_null(made.column(n), 0) if n in summed else made.column(n) for n in names]
        return pa.table([*filled, made.column(WEIGHT)], names=[*names, WEIGHT]).cast(schema), types

    def _leaf(self, node: Leaf | Scan, needed: frozenset[str]) -> Rows:
        found = self._read(node)
        if found is None:
            raise Unknown("rows that are not here")
        table, types = found
        if table.num_rows > ROWS_MAX:
            raise Unknown("many rows")
        kinds = zip(node.columns, table.columns, types, strict=False)
        columns = {name: Value(data, type_) for name, data, type_ in kinds if name in needed}
        return Rows(columns, table.column(WEIGHT))

    def _union(self, node: Union, needed: frozenset[str]) -> Rows:
        places = [place for place, name in enumerate(node.columns) if name in needed]
        parts: list[Rows] = []
        for child in node.inputs:
            wanted = frozenset(child.columns[place] for place in places)
            parts.append(self.rows(child, wanted))
        columns: dict[str, Value] = {}
        for place in places:
            values = [
                part.columns[child.columns[place]]
                for part, child in zip(parts, node.inputs, strict=True)
            ]
            if len({value.type for value in values}) != 1:
                raise Unknown("columns of several types")
            arrays = [v.column(part.count) for v, part in zip(values, parts, strict=True)]
            columns[node.columns[place]] = Value(_concatenated(arrays), values[0].type)
        return Rows(columns, _concatenated([part.weight for part in parts]))

    def _signed(self, accumulator: Accumulator, rows: Rows, signed: bool) -> pa.ChunkedArray:
        """What each row adds; NULL is nothing."""
        weight = rows.weight
        if accumulator.argument is None:
            made = weight
        else:
            value = self._computing.value(accumulator.argument, rows.columns)
            data = _summand(value, accumulator.type).column(rows.count)
            if signed:
                made = pc.if_else(pc.less(weight, 0), pc.negate(data), data)
            else:
                made = _times(data, weight)
        if accumulator.present is not None:
            mask = self._computing.mask(accumulator.present, rows.columns, rows.count)
            made = pc.if_else(mask, made, pa.scalar(None, made.type))
        return made


def _table(rows: Rows, values: Sequence[Value], types: Sequence[str]) -> pa.Table:
    typed = [_typed(v, t).column(rows.count) for v, t in zip(values, types, strict=True)]
    names = [*(f"c{i}" for i in range(len(typed))), WEIGHT]
    return pa.table([*typed, rows.weight], names=names)


def _typed(value: Value, type_: str) -> Value:
    """A value as a column of its type; of a decimal we may have thought more digits than it has."""
    if value.type == type_:
        return value
    if _scale(value.type) is None or _scale(value.type) != _scale(type_):
        raise Unknown(f"{value.type} as {type_}")
    return value.cast(type_)


def _scale(type_: str) -> int | None:
    found = _DECIMAL.fullmatch(type_)
    return int(found[1]) if found else None


def _summand(value: Value, type_: str) -> Value:
    """A value as its accumulator holds it."""
    whole = type_ == "bigint" and _scale(value.type) is None
    if not whole and (_scale(value.type) or 0) != _scale(type_):
        raise Unknown(f"{value.type} in {type_}")
    return value.cast(type_)


def _times(data: pa.ChunkedArray, weight: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_integer(data.type):
        return pc.multiply_checked(data, weight)
    wide = pa.decimal256(data.type.precision, data.type.scale)
    made = pc.multiply_checked(data.cast(wide), weight.cast(pa.decimal256(19, 0)))
    return made.cast(data.type)


def _check_sum(column: pa.ChunkedArray | pa.Array) -> None:
    """Arrow does not tell when a sum is too large, so none may come near."""
    if not len(column):
        return
    least, most = (pc.min_max(column).as_py()[key] or 0 for key in ("min", "max"))
    limit = (
        _INT_MAX if pa.types.is_integer(column.type) else 10 ** (SURE_DIGITS - column.type.scale)
    )
    if max(abs(least), abs(most)) * len(column) > limit:
        raise Unknown("a sum may be too large")


def _concatenated(arrays: Sequence[pa.ChunkedArray | pa.Array]) -> pa.ChunkedArray:
    chunks = [
        chunk
        for array in arrays
        for chunk in (array.chunks if isinstance(array, pa.ChunkedArray) else [array])
    ]
    return pa.chunked_array(chunks, type=arrays[0].type)
