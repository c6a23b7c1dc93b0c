"""What the compiler makes of a view: the relations to keep for it, and how each is kept.

A view is a list of blocks, each the keeper of one stored relation, in the order in which a change
passes through them, and an output: a node over the last of them which costs nothing to keep.

    Sums     groups with accumulators; a change is added to them (rule 3)
    Groups   groups computed by Spark, those that changed anew from their rows (rule 2)
    Rows     rows whose change follows from the change of what they are made of (rules 1 and 2)
    Top      the first rows in an order
    Full     computed anew from the text of the view (rule 5)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stepwell.errors import ensure
from stepwell.query.algebra import Filter, Item, Node, Project, Scan, TopN, Window, walk
from stepwell.query.conditions import parse_scalar
from stepwell.query.functions import IN_ANY_ORDER, is_aggregate, name_of
from stepwell.query.reasons import Reason
from stepwell.query.sums import Accumulator


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a stored relation; its name there is its position."""

    type: str


@dataclass(frozen=True, slots=True)
class Sums:
    relation: str
    fields: tuple[Field, ...]
    """The keys, how many rows the group has, then the accumulators."""
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
    """Where the last rows of a window without PARTITION BY are stored, and what follows them."""

    relation: str
    """A `Top` over the rows of the window."""
    number: str
    """The column of the window that numbers its rows."""
    column: str
    """By which rows are sorted first: those that come after all others are greater in it."""
    descending: bool
    """Or less."""


@dataclass(frozen=True, slots=True)
class Rows:
    relation: str
    fields: tuple[Field, ...]
    input: Node
    again: tuple[str, ...] | None = None
    """Columns by which changed rows are computed anew and compared with those stored, because
    computing the old ones again could come out differently (floating point). Without columns all
    rows are."""
    ending: Ending | None = None
    """Of a window without PARTITION BY: rows at the end of its order are added to it."""
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
    """Over a single stored relation."""
    rule: str = "2 first rows"
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Full:
    relation: str
    fields: tuple[Field, ...]
    text: str
    reads: frozenset[str]
    reason: Reason
    rule: str = "5 computed anew"
    key: tuple[int, ...] = ()


Block: TypeAlias = Sums | Groups | Rows | Top | Full


@dataclass(frozen=True, slots=True)
class Program:
    """All that keeps one view."""

    view: str
    columns: tuple[str, ...]
    """The names users see."""
    types: tuple[str, ...]
    blocks: tuple[Block, ...]
    output: Node
    """Over stored relations; its columns are the view's, in order."""

    @property
    def shown(self) -> Block:
        """The block of whose relation the view is made."""
        under = self.output
        while isinstance(under, Filter | Project):
            under = under.input
        ensure(isinstance(under, Scan), "a view is made of one stored relation")
        relation = under.relation if isinstance(under, Scan) else ""
        return next(block for block in self.blocks if block.relation == relation)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return tuple(block.reason for block in self.blocks if isinstance(block, Full))


def may_depend_on_order(block: Block) -> bool:
    """Whether Spark may give other values for the same rows in another order.

    Told by the names of functions, so it may say yes where their types would say no.
    """
    match block:
        case Full():
            return True
        case Groups(calls=calls):
            for _, call in calls:
                functions = filter(is_aggregate, parse_scalar(call.sql).walk())
                if not {name_of(function) for function in functions} <= IN_ANY_ORDER:
                    return True
    return any(isinstance(node, Window) for node in walk(block.input))
