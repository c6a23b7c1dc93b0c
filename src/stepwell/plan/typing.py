"""The column types of a plan, node by node.

Most operators pass on the types of their inputs. Spark is asked for those of computed columns only,
and once for each: about the expressions of one operator over an empty table, however large the plan
below it is. Analysing every operator together with all that it reads takes time quadratic in the
length of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stepwell.plan.nodes import (
    Aggregate,
    Consolidate,
    Distinct,
    Filter,
    Generate,
    Inner,
    Item,
    Join,
    Negate,
    Node,
    Project,
    Scan,
    SetOp,
    TopN,
    Union,
    Window,
    children,
    with_children,
)

INPUT = "$input"
"""Names the empty tables over which an operator is asked about; numbered from 0."""

Ask = Callable[[Node, Sequence[tuple[str, ...]]], tuple[str, ...]]
"""Returns the types of all columns of an operator over `INPUT` tables, whose types are given."""


class Typing:
    """Types of the nodes of one view; nodes are immutable, so each is typed once."""

    def __init__(self, relation: Callable[[str], tuple[str, ...]], ask: Ask) -> None:
        self._relation = relation
        """Returns the column types of a relation."""
        self._ask = ask
        self._known: dict[int, tuple[Node, dict[str, str]]] = {}
        self._answers: dict[object, tuple[str, ...]] = {}

    def of(self, node: Node) -> tuple[str, ...]:
        """The types of a node's columns, in order."""
        types = self._types(node)
        return tuple(types[name] for name in node.columns)

    def _types(self, node: Node) -> dict[str, str]:
        # The node is held as well, so no other one can get its id.
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = node, self._derived(node)
        return known[1]

    def _derived(self, node: Node) -> dict[str, str]:
        match node:
            case Scan():
                return dict(zip(node.columns, self._relation(node.relation), strict=False))
            case Filter() | Distinct() | TopN() | Negate() | Consolidate():
                return self._types(node.input)
            case Inner() | Join():
                # A semi or anti join shows less than this.
                found: dict[str, str] = {}
                for child in children(node):
                    found.update(self._types(child))
                return found
            case Project():
                below = self._types(node.input)
                passed = {n: below[e.column] for n, e in node.items if e.column is not None}
                made = tuple(item for item in node.items if item[1].column is None)
                return {**passed, **self._computed(node, made, below)}
            case Aggregate():
                below = self._types(node.input)
                calls = self._computed(node, node.calls, below)
                return {**{key: below[key] for key in node.keys}, **calls}
            case Window():
                below = self._types(node.input)
                return {**below, **self._computed(node, node.calls, below)}
            case Generate():
                below = self._types(node.input)
                used = tuple(sorted(node.generator.columns)) or tuple(below)[:1]
                alone = replace(node, input=Scan(f"{INPUT}0", used))
                types = self._ask(alone, (tuple(below[c] for c in used),))[len(used) :]
                return {**below, **dict(zip(node.made, types, strict=True))}
            case Union() | SetOp():
                return dict(zip(node.columns, self._alike(node), strict=True))
            case _:
                return dict(zip(node.columns, self._ask(node, ()), strict=True))

    def _computed(
        self,
        node: Project | Aggregate | Window,
        items: tuple[Item, ...],
        below: dict[str, str],
    ) -> dict[str, str]:
        """The types of columns that one operator computes over columns of these types."""
        if not items:
            return {}
        # A table has a column, even if none is read.
        used = _used(items) or tuple(below)[:1]
        types = tuple(below[name] for name in used)
        key = (type(node), tuple(expr.sql for _, expr in items), used, types)
        answer = self._answers.get(key)
        if answer is None:
            source = Scan(f"{INPUT}0", used)
            alone: Node = Project(source, items)
            if isinstance(node, Aggregate):
                alone = Aggregate(source, (), items)
            elif isinstance(node, Window):
                alone = Window(source, (), items)
            answer = self._answers[key] = self._ask(alone, (types,))[-len(items) :]
        return dict(zip((name for name, _ in items), answer, strict=True))

    def _alike(self, node: Union | SetOp) -> tuple[str, ...]:
        """The types of a set operation, to which Spark converts those of its inputs."""
        types = tuple(self.of(child) for child in children(node))
        if len(set(types)) == 1 and not any("collate" in kind for kind in types[0]):
            return types[0]
        scans = [Scan(f"{INPUT}{i}", c.columns) for i, c in enumerate(children(node))]
        key = (type(node), types)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self._ask(with_children(node, tuple(scans)), types)
        return answer


def _used(items: Sequence[Item]) -> tuple[str, ...]:
    """The columns that expressions read, in a fixed order."""
    return tuple(sorted(frozenset[str]().union(*(expr.columns for _, expr in items))))
