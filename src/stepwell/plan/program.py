"""The compiled form of a view: the stored relations and the rule that maintains each of them.

A view is a list of blocks and an output. Each block maintains one stored relation; blocks are in
the order in which a change passes through them. The output is a node over the last of them that
costs nothing to maintain.

    Sums     groups with accumulators, to which a change is added (rule 3)
    Groups   groups computed by Spark; changed groups are recomputed from their rows (rule 2)
    Rows     rows whose change follows from the change of their inputs (rules 1 and 2)
    Top      the first rows in an order
    Full     recomputed from the text of the view (rule 5)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stepwell.errors import ensure
from stepwell.plan.functions import IN_ANY_ORDER, is_aggregate, name_of
from stepwell.plan.identity import by_identity
from stepwell.plan.nodes import Filter, Item, Node, Project, Scan, TopN, Window, walk
from stepwell.plan.reasons import Reason
from stepwell.plan.sums import Accumulator


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a stored relation; its position is its name."""

    type: str


@dataclass(frozen=True, slots=True)
class Sums:
    relation: str
    fields: tuple[Field, ...]
    """The keys, the row count of the group, then the accumulators."""
    input: Node
    keys: tuple[str, ...]
    accumulators: tuple[Accumulator, ...]
    rule: str = "3 sums"

    @property
    def key(self) -> tuple[int, ...]:
        return tuple(range(len(self.keys)))


@dataclass(frozen=True, slots=True)
class Groups:
    relation: str
    fields: tuple[Field, ...]
    """The keys, then the results."""
    input: Node
    keys: tuple[str, ...]
    calls: tuple[Item, ...]
    rule: str = "2 groups that changed"

    @property
    def key(self) -> tuple[int, ...]:
        return tuple(range(len(self.keys)))


@dataclass(frozen=True, slots=True)
class Ending:
    """The stored last rows of a window without PARTITION BY, and the rows that may follow them."""

    relation: str
    """A `Top` over the rows of the window."""
    number: str
    """The window's column that numbers its rows."""
    column: str
    """The first sort column: rows that come after all others are greater in it."""
    descending: bool
    """Whether they are smaller instead."""


@dataclass(frozen=True, slots=True)
class Rows:
    relation: str
    fields: tuple[Field, ...]
    input: Node
    again: tuple[str, ...] | None = None
    """Columns by which changed rows are recomputed and compared with the stored rows, because
    recomputing the old ones could give different values (floating point). If empty, all rows
    are."""
    ending: Ending | None = None
    """Set for a window without PARTITION BY: rows at the end of its order are appended."""
    rule: str = "1 changes pass through"

    @property
    def key(self) -> tuple[int, ...]:
        if self.again is None:
            return ()
        return tuple(self.input.columns.index(c) for c in self.again)


@dataclass(frozen=True, slots=True)
class Top:
    relation: str
    fields: tuple[Field, ...]
    input: TopN
    """Reads a single stored relation."""
    rule: str = "2 first rows"
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Full:
    relation: str
    fields: tuple[Field, ...]
    text: str
    reads: frozenset[str]
    reason: Reason
    rule: str = "5 recomputed"
    key: tuple[int, ...] = ()


Block: TypeAlias = Sums | Groups | Rows | Top | Full


@dataclass(frozen=True, slots=True)
class Program:
    """The maintenance of one view."""

    view: str
    columns: tuple[str, ...]
    """The column names that users see."""
    types: tuple[str, ...]
    blocks: tuple[Block, ...]
    output: Node
    """Reads stored relations; its columns are the view's, in order."""

    @property
    def shown(self) -> Block:
        """The block whose relation the output reads."""
        return _shown(self)


@by_identity
def _shown(program: Program) -> Block:
    under = program.output
    while isinstance(under, Filter | Project):
        under = under.input
    ensure(isinstance(under, Scan), "a view is made of one stored relation")
    relation = under.relation if isinstance(under, Scan) else ""
    return next(block for block in program.blocks if block.relation == relation)


@by_identity
def may_depend_on_order(block: Block) -> bool:
    """Whether Spark may compute other values from the same rows in another order.

    Decided by function names alone, so it may be true where argument types would rule it out.
    """
    match block:
        case Full():
            return True
        case Groups(calls=calls):
            for _, call in calls:
                functions = filter(is_aggregate, call.tree.walk())
                if not {name_of(function) for function in functions} <= IN_ANY_ORDER:
                    return True
    return any(isinstance(node, Window) for node in walk(block.input))
