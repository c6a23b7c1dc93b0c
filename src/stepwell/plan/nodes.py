"""The algebra: one set of nodes for the queries of views and for their maintenance.

A node is a frozen value with named columns. The compiler generates the names, unique within one
view (`Names`), so they never clash with a user's column names, nor the columns of one input with
those of another. Scalar expressions are trees over these names (`expressions.Expr`).

Every node denotes a *bag*: rows with multiplicities. In a maintenance program the same nodes also
denote *change sets*, whose multiplicities are weights and may be negative, or *pairs*, in which a
row carries two weights: its multiplicity before the transaction and its multiplicity after it. The
leaf decides which (`When`). `Filter`, `Project`, `Union`, `Inner` and `Generate` are linear in each
input and pass weights on; the others need a whole bag, and receive one version after the other.

    Scan(r)                      a relation in the definition of a view
    Leaf(r, OLD|NEW|DELTA|BOTH)  a relation in a maintenance program
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import is_
from typing import TypeAlias

from stepwell.plan.expressions import Expr, SortKey
from stepwell.plan.sums import Accumulator

Item: TypeAlias = "tuple[str, Expr]"
"""A column that a node computes: its name and its expression."""


class When(Enum):
    """The state of a relation that a leaf reads."""

    OLD = "old"
    NEW = "new"
    DELTA = "delta"
    BOTH = "both"
    """Pairs: every row with its weights before and after."""


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows of a relation. `columns` name the relation's columns in order."""

    relation: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A relation in a given state, as read by a maintenance program. `columns` as in `Scan`."""

    relation: str
    columns: tuple[str, ...]
    when: When


@dataclass(frozen=True, slots=True)
class Values:
    """Literal rows: `VALUES (1, 'a'), (2, 'b')`."""

    rows: tuple[tuple[Expr, ...], ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    input: Node
    condition: Expr

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, slots=True)
class Project:
    input: Node
    items: tuple[Item, ...]
    columns: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple([name for name, _ in self.items]))


@dataclass(frozen=True, slots=True)
class Inner:
    """An inner join of any number of inputs on a list of conjuncts, in any order.

    Inputs that no conjunct connects form a product.
    """

    inputs: tuple[Node, ...]
    on: tuple[Expr, ...] = ()
    small: tuple[bool | None, ...] = ()
    """In a maintenance program the order of inputs is the join order. For each input after the
    first: True if the inputs joined before it are the small side, False if the input is, None if
    unknown."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for node in self.inputs for name in node.columns)


class Side(Enum):
    LEFT = "left outer"
    FULL = "full outer"
    SEMI = "semi"
    ANTI = "anti"


@dataclass(frozen=True, slots=True)
class Join:
    """A join that is not linear: the output of a row depends on whether other rows match it."""

    side: Side
    left: Node
    right: Node
    equal: tuple[tuple[str, str], ...]
    """Pairs of columns (left, right) that must be equal: the key for maintenance."""
    null_safe: bool = False
    """Whether NULL equals NULL in `equal`."""
    also: tuple[Expr, ...] = ()
    """Further conditions for a match."""

    @property
    def columns(self) -> tuple[str, ...]:
        if self.side in (Side.SEMI, Side.ANTI):
            return self.left.columns
        return self.left.columns + self.right.columns


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One row per group; without keys exactly one row, even for empty input."""

    input: Node
    keys: tuple[str, ...]
    calls: tuple[Item, ...]
    """Each a single aggregate call over columns of the input: `sum(c3) FILTER (WHERE c4)`."""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.keys + tuple(name for name, _ in self.calls)


@dataclass(frozen=True, slots=True)
class Distinct:
    input: Node

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


class SetKind(Enum):
    EXCEPT = "except"
    EXCEPT_ALL = "except all"
    INTERSECT = "intersect"
    INTERSECT_ALL = "intersect all"


@dataclass(frozen=True, slots=True)
class SetOp:
    """A set operation by position: column i of the result combines column i of both sides."""

    kind: SetKind
    left: Node
    right: Node
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Union:
    """UNION ALL, by position."""

    inputs: tuple[Node, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Every input row, with one more column per call."""

    input: Node
    partition: tuple[str, ...]
    """The columns that occur in every call's PARTITION BY."""
    calls: tuple[Item, ...]
    """Each with its complete OVER clause."""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns + tuple(name for name, _ in self.calls)


@dataclass(frozen=True, slots=True)
class Generate:
    """Every input row once per row of a generator: LATERAL VIEW [OUTER] explode(...).

    `window(ts, ...)` is a generator too: it yields a row for each time window containing `ts`.
    """

    input: Node
    generator: Expr
    outer: bool
    made: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns + self.made


@dataclass(frozen=True, slots=True)
class TopN:
    """The first rows in an order that the compiler has made total."""

    input: Node
    order: tuple[SortKey, ...]
    limit: int | None
    offset: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, slots=True)
class Keys:
    """The distinct values of some columns, under new names; weights are dropped."""

    input: Node
    items: tuple[tuple[str, str], ...]
    """(new name, column of the input)"""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.items)


@dataclass(frozen=True, slots=True)
class Restrict:
    """The rows whose `on` columns are among `keys`; NULL matches NULL."""

    input: Node
    keys: Node
    on: tuple[tuple[str, str], ...]
    """(column of the input, column of the keys)"""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, slots=True)
class Negate:
    input: Node

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, slots=True)
class Consolidate:
    """Merges equal rows, sums their weights, and drops rows of weight zero."""

    input: Node

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, slots=True)
class Accumulate:
    """A change set summed by key: the keys, the sum of weights, the accumulators."""

    input: Node
    keys: tuple[str, ...]
    rows: str
    sums: tuple[tuple[str, Accumulator], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.keys, self.rows, *(name for name, _ in self.sums))


@dataclass(frozen=True, slots=True)
class Merge:
    """The change set of adding accumulated changes to stored sums: old rows out, new rows in.

    Both inputs have the same columns by position: keys, row count, accumulators. A group with keys
    is deleted when its row count reaches zero; the group without keys stays.
    """

    old: Node
    change: Node
    keys: int
    types: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.old.columns


@dataclass(frozen=True, slots=True)
class Diff:
    """Converts pairs to a change set: the weight after minus the weight before."""

    input: Node

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


Node: TypeAlias = (
    Scan
    | Leaf
    | Values
    | Filter
    | Project
    | Inner
    | Join
    | Aggregate
    | Distinct
    | SetOp
    | Union
    | Window
    | Generate
    | TopN
    | Keys
    | Restrict
    | Negate
    | Consolidate
    | Accumulate
    | Merge
    | Diff
)


class Names:
    """Generates column names that are unique within one view and do not occur in its text."""

    def __init__(self, text: str = "", prefix: str = "_c") -> None:
        while prefix in text.lower():
            prefix += "_"
        self._prefix = prefix
        self._count = 0

    def new(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"

    def is_generated(self, name: str) -> bool:
        """Whether the name is a generated one."""
        return name.startswith(self._prefix)

    def several(self, count: int) -> tuple[str, ...]:
        return tuple(self.new() for _ in range(count))


def children(node: Node) -> tuple[Node, ...]:
    """The inputs of a node, in order."""
    match node:
        case Scan() | Leaf() | Values():
            return ()
        case Inner() | Union():
            return node.inputs
        case Join() | SetOp():
            return (node.left, node.right)
        case Restrict():
            return (node.input, node.keys)
        case Merge():
            return (node.old, node.change)
        case _:
            return (node.input,)


def with_children(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same node over other inputs that have the same columns."""
    if all(map(is_, inputs, children(node))):
        return node
    match node:
        case Inner() | Union():
            return replace(node, inputs=inputs)
        case Join() | SetOp():
            return replace(node, left=inputs[0], right=inputs[1])
        case Restrict():
            return replace(node, input=inputs[0], keys=inputs[1])
        case Merge():
            return replace(node, old=inputs[0], change=inputs[1])
        case Scan() | Leaf() | Values():
            return node
        case _:
            return replace(node, input=inputs[0])


def walk(node: Node) -> Iterator[Node]:
    """The node and all nodes below it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def operators(node: Node) -> int:
    """The number of nodes of a plan."""
    return sum(1 for _ in walk(node))


def relations(node: Node) -> frozenset[str]:
    """The names of all relations that a node reads."""
    return frozenset(n.relation for n in walk(node) if isinstance(n, Scan | Leaf))


def label(node: Node) -> str:
    """The node's kind, as named in explain output and in messages."""
    return type(node).__name__
