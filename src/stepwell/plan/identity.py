"""Remember what follows from a plan, by its identity, and give equal nodes one identity.

Blocks and plans are immutable and live as long as their view, and comparing two of them costs more
than most of what is derived from one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from stepwell.plan.nodes import Node, children, with_children

_OBJECTS_MAX = 10_000

Given = TypeVar("Given")
Made = TypeVar("Made")


def by_identity(compute: Callable[[Given], Made]) -> Callable[[Given], Made]:
    """A function that computes its result once for each object."""
    # The object is held as well, so no other one can get its id.
    known: dict[int, tuple[Given, Made]] = {}

    @wraps(compute)
    def remembered(given: Given) -> Made:
        found = known.get(id(given))
        if found is None:
            if len(known) >= _OBJECTS_MAX:
                known.clear()
            found = known[id(given)] = given, compute(given)
        return found[1]

    return remembered


@by_identity
def with_equal_nodes_once(plan: Node) -> Node:
    """The same plan, in which equal nodes are one object, so that they are computed once."""
    equal: dict[Node, Node] = {}
    known: dict[int, Node] = {}

    def of(node: Node) -> Node:
        made = known.get(id(node))
        if made is None:
            made = with_children(node, tuple(map(of, children(node))))
            made = known[id(node)] = equal.setdefault(made, made)
        return made

    return of(plan)
