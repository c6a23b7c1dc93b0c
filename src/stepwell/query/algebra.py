"""The algebra: what a view computes, and what keeps it up to date, in one vocabulary.

A node is a frozen value with named columns. Names are made by the compiler, unique within one view
(`Names`), so that nothing a user calls a column can meet one of ours, and columns of two inputs
never meet each other. Scalar expressions stay Spark SQL text over those names (`Expr`).

Every node denotes a *bag*: rows with a multiplicity. While a view is kept up to date the same nodes
denote *change sets*, whose multiplicities are weights and may be negative, or *pairs*, where a row
carries two weights: how often it was there before the transaction, and how often it is there after.
A leaf decides (`When`); `Filter`, `Project`, `Union`, `Inner` and `Generate` are linear in each
input and pass weights on; the others need a whole bag, and are given one version after the other.

    Scan(r)                      a relation in the definition of a view
    Leaf(r, OLD|NEW|DELTA|BOTH)  a relation in a maintenance program
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Expr:
    """Spark SQL over columns of the node's input; `columns` are those it mentions."""

    sql: str
    columns: frozenset[str] = frozenset()

    @property
    def column(self) -> str | None:
        """The column, if the expression is nothing but one."""
        return self.sql if self.sql in self.columns else None


def column(name: str) -> Expr:
    return Expr(name, frozenset({name}))


Item: TypeAlias = "tuple[str, Expr]"
"""A column that a node makes: its name, and what it is."""


class When(Enum):
    """Which state of a relation a leaf shows."""

    OLD = "old"
    NEW = "new"
    DELTA = "delta"
    BOTH = "both"
    """Pairs: every row with its weight before and after."""


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows of a relation. `columns` name the relation's columns, in its order."""

    relation: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A relation at a moment: what a maintenance program reads. `columns` as in `Scan`."""

    relation: str
    columns: tuple[str, ...]
    when: When


@dataclass(frozen=True, slots=True)
class Values:
    """Rows written out, as Spark SQL text: `VALUES (1, 'a'), (2, 'b')`."""

    sql: str
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

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.items)


@dataclass(frozen=True, slots=True)
class Inner:
    """Any number of inputs joined where every condition holds, in whatever order is best.

    `on` are conjuncts; without one that connects two inputs it is a product.
    """

    inputs: tuple[Node, ...]
    on: tuple[Expr, ...] = ()
    small: tuple[bool | None, ...] = ()
    """In a maintenance program the order of inputs is the order of joining; for each input after
    the first, whether what was joined before it is the small side (True), it is (False), or
    nobody knows."""

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
    """A join that is not linear: what one row gives depends on whether others match it."""

    side: Side
    left: Node
    right: Node
    equal: tuple[tuple[str, str], ...]
    """Pairs of columns (left, right) that must be equal: the key by which it is maintained."""
    null_safe: bool = False
    """Whether NULL equals NULL in `equal`."""
    also: tuple[Expr, ...] = ()
    """What else must hold for a match."""

    @property
    def columns(self) -> tuple[str, ...]:
        if self.side in (Side.SEMI, Side.ANTI):
            return self.left.columns
        return self.left.columns + self.right.columns


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One row per group; without keys exactly one row, also for no input."""

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
    """By position: column i of the result is made of column i of both sides."""

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
    """Columns that are in every call's PARTITION BY."""
    calls: tuple[Item, ...]
    """Each with its whole OVER clause."""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns + tuple(name for name, _ in self.calls)


@dataclass(frozen=True, slots=True)
class Generate:
    """Every input row once per row of a generator: LATERAL VIEW [OUTER] explode(...).

    `window(ts, ...)` is one too: it gives a row for each time window that the input row lies in.
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
    order: tuple[str, ...]
    """Each a column with its direction: `c1 DESC NULLS LAST`."""
    limit: int | None
    offset: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, slots=True)
class Keys:
    """The distinct values of some columns, under new names; weights are forgotten."""

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
    """Equal rows become one, weights are summed up, rows of weight zero go."""

    input: Node

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, slots=True)
class Accumulate:
    """A change set summed up by key: the keys, the sum of weights, the accumulators."""

    input: Node
    keys: tuple[str, ...]
    rows: str
    sums: tuple[Item, ...]
    """Each as SQL in which {w} stands for the weight."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.keys, self.rows, *(name for name, _ in self.sums))


@dataclass(frozen=True, slots=True)
class Merge:
    """What adding accumulated changes to stored accumulators changes: old rows out, new rows in.

    Both inputs have the same columns by position: keys, the number of rows, accumulators. A group
    with keys goes when it has no rows left; the one without keys stays.
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
    """Pairs to a change set: the weight after less the weight before."""

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
    """Makes column names that are unique within one view and clash with nothing in its text."""

    def __init__(self, text: str = "", prefix: str = "_c") -> None:
        while prefix in text.lower():
            prefix += "_"
        self._prefix = prefix
        self._count = 0

    def new(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"

    def made(self, name: str) -> bool:
        """Whether the name is one of ours."""
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
    """The same node over other inputs with the same columns."""
    if inputs == children(node):
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
    """The node and everything below it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def relations(node: Node) -> frozenset[str]:
    """The names of all relations a node reads."""
    return frozenset(n.relation for n in walk(node) if isinstance(n, Scan | Leaf))


def label(node: Node) -> str:
    """The name of a node's kind, as explain and messages say it."""
    return type(node).__name__


def fields_of(node: Node) -> tuple[str, ...]:
    return tuple(item.name for item in fields(node))
