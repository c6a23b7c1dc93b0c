"""Queries that several parts of a view read, each planned once.

The parser leaves a scan of a name, such as `$shared1`, wherever a view reads such a query. Lowering
stores the rows of the query once, in blocks of the view, and every scan reads those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stepwell.plan.expressions import column, substitute
from stepwell.plan.nodes import Filter, Names, Node, Project, Scan, children, with_children
from stepwell.plan.prune import Single, prune
from stepwell.plan.shape import narrow

PREFIX = "$shared"


@dataclass(frozen=True, slots=True)
class Shared:
    """A query that several parts of a view read."""

    name: str
    node: Node


@dataclass(frozen=True, slots=True)
class Needed:
    """A shared query with those of its columns that are read."""

    name: str
    node: Node
    places: tuple[int, ...]
    """The positions of these columns among those of the shared query."""


def pruned_together(
    node: Node, shared: Sequence[Shared], single: Single
) -> tuple[Node, tuple[Needed, ...]]:
    """Prune a query and the shared queries behind it; each keeps what any of its readers needs.

    `shared` lists each query after those that it reads; so does the result.
    """
    needed: dict[str, set[int]] = {}
    node = prune(node, single=single)
    _collect(node, needed)
    made: list[Needed] = []
    for query in reversed(shared):
        if query.name not in needed:
            continue
        places = tuple(sorted(needed[query.name]))
        columns = tuple(query.node.columns[place] for place in places)
        kept = narrow(prune(query.node, columns, single=single), columns)
        _collect(kept, needed)
        made.append(Needed(query.name, kept, places))
    return node, tuple(reversed(made))


def _collect(node: Node, needed: dict[str, set[int]]) -> None:
    """Add the positions of the columns that a plan reads, by shared query."""
    if isinstance(node, Scan):
        if node.relation.startswith(PREFIX):
            needed.setdefault(node.relation, set()).update(range(len(node.columns)))
    elif isinstance(node, Project) and isinstance(node.input, Scan):
        if node.input.relation.startswith(PREFIX):
            used = frozenset[str]().union(*(expr.columns for _, expr in node.items))
            places = {i for i, name in enumerate(node.input.columns) if name in used}
            needed.setdefault(node.input.relation, set()).update(places or {0})
    else:
        for child in children(node):
            _collect(child, needed)


def replaced(node: Node, replace: Callable[[Scan], Node]) -> Node:
    """The plan with each scan of a shared query replaced."""
    if isinstance(node, Scan):
        return replace(node) if node.relation.startswith(PREFIX) else node
    return with_children(node, tuple(replaced(child, replace) for child in children(node)))


def spelled_out(node: Node, shared: Mapping[str, Node]) -> Node:
    """The plan with the shared queries themselves, for the types of its columns."""

    def spelled(scan: Scan) -> Node:
        inside = shared[scan.relation]
        pairs = zip(scan.columns, inside.columns, strict=True)
        return Project(spelled_out(inside, shared), tuple((a, column(b)) for a, b in pairs))

    return replaced(node, spelled)


def renamed(node: Node, columns: tuple[str, ...], names: Names) -> Node:
    """The output of a view with the given column names, and fresh names below."""
    match node:
        case Scan():
            return Scan(node.relation, columns)
        case Filter():
            inside = dict(zip(node.columns, columns, strict=True))
            return Filter(renamed(node.input, columns, names), substitute(node.condition, inside))
        case Project():
            fresh = names.several(len(node.input.columns))
            inside = dict(zip(node.input.columns, fresh, strict=True))
            items = tuple(
                (new, substitute(expr, inside))
                for new, (_, expr) in zip(columns, node.items, strict=True)
            )
            return Project(renamed(node.input, fresh, names), items)
        case _:
            raise TypeError(f"{type(node).__name__} is not part of an output")
