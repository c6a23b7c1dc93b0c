"""The inputs of joins: rows in memory, and the filters and projections over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from stepwell.execution.backend import Declined, NotSupported
from stepwell.execution.local.expressions import Value
from stepwell.execution.local.operators import PlanEvaluator
from stepwell.plan.expressions import column
from stepwell.plan.nodes import (
    Accumulate,
    Aggregate,
    Consolidate,
    Filter,
    Inner,
    Join,
    Keys,
    Leaf,
    Negate,
    Node,
    Project,
    Restrict,
    Side,
    Union,
    children,
)

Columns = frozenset[str] | None
"""The columns of a node that are read; None means all."""
WEIGHTS = ("w0", "w1")
"""The columns that hold the weights of rows before and after the transaction."""


class Chain:
    """Filters and projections, outermost first, over a leaf."""

    def __init__(self, ops: Sequence[Filter | Project], leaf: Leaf) -> None:
        self.ops = ops
        self.leaf = leaf
        self._places: dict[str, int | None] = {}

    @classmethod
    def of(cls, node: Node) -> Chain | None:
        ops: list[Filter | Project] = []
        while isinstance(node, Filter | Project):
            ops.append(node)
            node = node.input
        return cls(ops, node) if isinstance(node, Leaf) else None

    @property
    def columns(self) -> tuple[str, ...]:
        projected = next((op for op in self.ops if isinstance(op, Project)), None)
        return self.leaf.columns if projected is None else projected.columns

    def place(self, name: str) -> int | None:
        """The leaf's column that a column of the chain is a plain copy of, if any."""
        if name not in self._places:
            self._places[name] = self._place(name)
        return self._places[name]

    def _place(self, name: str) -> int | None:
        wanted: str | None = name
        for op in self.ops:
            if isinstance(op, Project):
                found = next((e for n, e in op.items if n == wanted), None)
                wanted = None if found is None else found.column
            if wanted is None:
                return None
        return self.leaf.columns.index(wanted) if wanted in self.leaf.columns else None

    @property
    def used(self) -> list[int]:
        """The leaf's columns that the operators above use."""
        needed: set[str] = set(self.leaf.columns)
        for op in reversed(self.ops):
            if isinstance(op, Project):
                needed = set[str]().union(*(e.columns for _, e in op.items))
                break
        for op in self.ops:
            if isinstance(op, Filter):
                needed |= op.condition.columns
        return [i for i, c in enumerate(self.leaf.columns) if c in needed]

    def over(self, node: Node) -> Node:
        """The same operators over another node."""
        for op in reversed(self.ops):
            node = replace(op, input=node)
        return node

    def beside(self, node: Node) -> Node:
        """The same operators over a node with more columns, which are kept."""
        mine = [self.leaf.columns[i] for i in self.used]
        for op in reversed(self.ops):
            if isinstance(op, Filter):
                node = Filter(node, op.condition)
                continue
            others = tuple((c, column(c)) for c in node.columns if c not in mine)
            node = Project(node, (*op.items, *others))
            mine = [n for n, _ in op.items]
        return node


@dataclass(frozen=True, slots=True)
class JoinInput:
    """Rows with their weights before and after, and the operators over them that are left."""

    chain: Chain
    rows: pa.Table
    types: tuple[str, ...]
    """Of the chain's leaf."""
    unread: Mapping[str, tuple[str, pa.DataType]] = field(default_factory=dict)
    """Further columns, with their types, that nothing reads."""

    def settled(self, read: Columns, evaluator: PlanEvaluator) -> JoinInput:
        """The same rows without operators, if these only filter rows and choose columns.

        A filter that cannot be evaluated now, maybe because of rows that match nothing, is left.
        """
        if not self.chain.ops:
            return self
        conditions, columns = [], dict[str, Value]()
        for number, op in enumerate(self.chain.ops):
            if isinstance(op, Filter):
                conditions.append(op.condition)
                below = Chain(self.chain.ops[number + 1 :], self.chain.leaf)
                for name in op.condition.columns:
                    place = below.place(name)
                    if place is None:
                        return self
                    columns[name] = Value(self.rows.column(place), self.types[place])
        places = {name: self.chain.place(name) for name in self.chain.columns}
        known = {name: place for name, place in places.items() if place is not None}
        if len(known) < len(places):
            return self
        try:
            kept = evaluator.holds(conditions, columns, self.rows.num_rows)
        except (NotSupported, Declined):
            return self
        names = [name for name in known if read is None or name in read]
        made = [*(self.rows.column(known[name]) for name in names), *map(self.rows.column, WEIGHTS)]
        rows = pa.table(made, names=[*(f"c{i}" for i in range(len(names))), *WEIGHTS])
        return JoinInput(
            Chain((), replace(self.chain.leaf, columns=tuple(names))),
            rows if kept.all() else rows.filter(pa.array(kept)),
            tuple(self.types[known[name]] for name in names),
            {
                name: (self.types[place], self.rows.column(place).type)
                for name, place in known.items()
                if name not in names
            },
        )


def taken(column: pa.ChunkedArray, at: np.ndarray) -> pa.ChunkedArray:
    """The values at these positions."""
    if len(at) == len(column) and (not len(at) or bool((at == np.arange(len(at))).all())):
        return column
    return column.take(pa.array(at))


def columns_below(node: Node, read: Columns) -> list[Columns]:
    """The columns that a node reads of each of its inputs, if these columns are read of it."""
    match node:
        case Project():
            items = (e.columns for name, e in node.items if read is None or name in read)
            return [frozenset[str]().union(*items)]
        case Filter():
            return [None if read is None else read | node.condition.columns]
        case Negate() | Consolidate():
            return [read]
        case Keys():
            return [frozenset(column for _, column in node.items)]
        case Union() if read is not None:
            places = [place for place, name in enumerate(node.columns) if name in read]
            return [frozenset(child.columns[p] for p in places) for child in node.inputs]
        case Inner() if read is not None:
            used = read.union(*(condition.columns for condition in node.on))
            return [used] * len(node.inputs)
        case Restrict() if read is not None:
            return [read.union(column for column, _ in node.on), None]
        case Join() if read is not None and node.side is not Side.FULL:
            also = (condition.columns for condition in node.also)
            return [read.union((a for a, _ in node.equal), *also), None]
        case Accumulate():
            both = [(a.argument, a.present) for _, a in node.sums]
            summed = (e.columns for one in both for e in one if e is not None)
            return [frozenset(node.keys).union(*summed)]
        case Aggregate():
            return [frozenset(node.keys).union(*(call.columns for _, call in node.calls))]
        case _:
            return [None] * len(children(node))
