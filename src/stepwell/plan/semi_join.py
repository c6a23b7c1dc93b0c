"""Semi-join reduction: replace large relations in a plan by the few rows that can match.

A change is small, and its matches in other relations are looked up by its values: a change of
orders matches the lines with its order keys, these match the parts with their part keys, and so on.
Before Spark runs a query, every leaf reachable from a change along equalities is replaced by a leaf
of the rows looked up there. The result is the same plan over little data.

    Restrict(Leaf r, keys)        rows of r whose columns are among the keys' values
    Inner(change, Leaf a, Leaf b) rows of a by the values of the change, of b by those of either

Surplus rows do no harm, since every condition is still in the plan: values may be a superset. A
leaf that no value reaches stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from stepwell.plan.conditions import equal_columns
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
    Keys,
    Leaf,
    Negate,
    Node,
    Project,
    Restrict,
    Side,
    Union,
    When,
    Window,
    children,
    with_children,
)

Values: TypeAlias = object
"""A set of values of one column, opaque to this module."""

Candidates: TypeAlias = "dict[str, Values]"
"""For some columns of a node, the values that can match."""


class RowLookUp(Protocol):
    """Looks up rows of relations by column values, and returns the values of small relations."""

    def find(
        self,
        leaf: Leaf,
        candidates: Mapping[int, Values],
        needed: frozenset[int] | None,
        conditions: Sequence[Expr],
    ) -> str | None:
        """A relation with at least the leaf's rows that have these values; None if not worth it.

        Columns that are not needed may be left empty; rows that fail a condition may be left out.
        """

    def values(self, leaf: Leaf, column: int) -> Values | None:
        """All values of a column of a small leaf; None if it is not small."""

    def alike(self, columns: Sequence[tuple[Leaf, int]]) -> bool:
        """Whether columns of leaves have one type, so that equal values are the same value."""

    def union(self, values: list[Values]) -> Values: ...

    def common(self, a: Values, b: Values) -> Values:
        """The intersection of two sets of values, or a superset of it."""


def reduced(node: Node, lookup: RowLookUp) -> Node:
    """The same plan, reading less."""
    return _Reduction(lookup).of(node)


class _Reduction:
    def __init__(self, lookup: RowLookUp) -> None:
        self._lookup = lookup
        self._known: dict[object, tuple[object, Node]] = {}
        """The results for the nodes of this plan, in which the same node may occur often."""

    def of(self, node: Node) -> Node:
        known = self._known.get(id(node))
        if known is None:
            # The node is held as well, so no other one can get its id.
            known = self._known[id(node)] = node, self._of(node)
        return known[1]

    def _of(self, node: Node) -> Node:
        match node:
            case Restrict():
                return self._restrict(node, {}, None)
            case Inner():
                return self._inner(node, {})
            case Join():
                return self._join(node, {})
            case _:
                return with_children(node, tuple(self.of(child) for child in children(node)))

    # Restricting rows

    def _to(
        self,
        node: Node,
        candidates: Candidates,
        needed: frozenset[str] | None = None,
        conditions: tuple[Expr, ...] = (),
    ) -> Node:
        """The node, restricted to rows with these values as far as possible.

        `needed` are the columns read above; None means all. `conditions` are the filters above.
        """
        if not candidates:
            return self.of(node)
        values = frozenset((column, id(values)) for column, values in candidates.items())
        key = id(node), values, needed, conditions
        known = self._known.get(key)
        if known is None:
            made = self._restricted(node, candidates, needed, conditions)
            known = self._known[key] = (node, candidates), made
        return known[1]

    def _restricted(
        self,
        node: Node,
        candidates: Candidates,
        needed: frozenset[str] | None,
        conditions: tuple[Expr, ...],
    ) -> Node:
        match node:
            case Leaf():
                return self._leaf(node, candidates, needed, conditions)
            case Filter():
                below = None if needed is None else needed | node.condition.columns
                known = (*conditions, node.condition)
                return replace(node, input=self._to(node.input, candidates, below, known))
            case Project():
                items = dict(node.items)
                inside = {items[c].column: v for c, v in candidates.items()}
                used = frozenset[str]().union(*(e.columns for e in items.values()))
                # A name has the same meaning throughout the plan, so conditions on it do too.
                return replace(node, input=self._to(node.input, _known(inside), used, conditions))
            case Generate():
                inside = {c: v for c, v in candidates.items() if c in node.input.columns}
                return replace(node, input=self._to(node.input, _known(inside)))
            case Negate() | Consolidate() | Distinct() | Diff():
                return replace(node, input=self._to(node.input, candidates))
            case Keys():
                columns = dict(node.items)
                return replace(
                    node, input=self._to(node.input, {columns[c]: v for c, v in candidates.items()})
                )
            case Union():
                return self._union(node, candidates)
            case Restrict():
                return self._restrict(node, candidates, needed, conditions)
            case Inner():
                return self._inner(node, candidates)
            case Join():
                return self._join(node, candidates)
            case Window():
                # A window function needs its whole partition.
                inside = {c: v for c, v in candidates.items() if c in node.partition}
                return replace(node, input=self._to(node.input, _known(inside)))
            case Aggregate() | Accumulate():
                inside = {c: v for c, v in candidates.items() if c in node.keys}
                return replace(node, input=self._to(node.input, _known(inside)))
            case _:
                return self.of(node)

    def _leaf(
        self,
        leaf: Leaf,
        candidates: Candidates,
        needed: frozenset[str] | None,
        conditions: tuple[Expr, ...],
    ) -> Leaf:
        if leaf.when is When.DELTA:
            return leaf
        places = {leaf.columns.index(c): v for c, v in candidates.items()}
        used = None
        if needed is not None:
            used = frozenset(i for i, c in enumerate(leaf.columns) if c in needed)
        mine = [c for c in conditions if c.columns <= set(leaf.columns)]
        found = self._lookup.find(leaf, places, used, mine)
        return leaf if found is None else replace(leaf, relation=found)

    def _union(self, node: Union, candidates: Candidates) -> Node:
        inputs = []
        for child in node.inputs:
            names = dict(zip(node.columns, child.columns, strict=True))
            inputs.append(self._to(child, {names[c]: v for c, v in candidates.items()}))
        return replace(node, inputs=tuple(inputs))

    def _restrict(
        self,
        node: Restrict,
        candidates: Candidates,
        needed: frozenset[str] | None,
        conditions: tuple[Expr, ...] = (),
    ) -> Node:
        keys = self.of(node.keys)
        more = dict(candidates)
        for c, k in node.on:
            values = self.values(keys, k)
            if values is not None:
                more.setdefault(c, values)
        below = None if needed is None else needed | {c for c, _ in node.on}
        return replace(node, input=self._to(node.input, more, below, conditions), keys=keys)

    def _inner(self, node: Inner, candidates: Candidates) -> Node:
        """Propagate values along equalities, from the inputs with known values to the others."""
        pairs = [pair for pair in map(equal_columns, node.on) if pair is not None]
        sources = {c: child for child in node.inputs for c in child.columns}
        same = _classes(
            [(a, b) for a, b, _ in pairs if self._alike((sources[a], a), (sources[b], b))]
        )
        known: Candidates = {}
        for name, values in candidates.items():
            self._learn(known, same.get(name, name), values)
        inputs: list[Node | None] = [None] * len(node.inputs)
        waiting = list(range(len(node.inputs)))
        while waiting:
            # The first input that some value reaches; at the start, the change itself.
            reached = (i for i in waiting if _among(node.inputs[i].columns, same, known))
            place = next(reached, waiting[0])
            waiting.remove(place)
            child = node.inputs[place]
            made = self._to(child, _among(child.columns, same, known))
            inputs[place] = made
            for name in child.columns:
                if name in same:
                    values = self.values(made, name)
                    if values is not None:
                        self._learn(known, same[name], values)
        return replace(node, inputs=tuple(i for i in inputs if i is not None))

    def _learn(self, known: Candidates, name: str, values: Values) -> None:
        before = known.get(name)
        known[name] = values if before is None else self._lookup.common(before, values)

    def _join(self, node: Join, candidates: Candidates) -> Node:
        if node.side is Side.FULL:
            # A row without a match has NULL in the other side's columns, and NULL may be looked up.
            return replace(node, left=self.of(node.left), right=self.of(node.right))
        mine = {c: v for c, v in candidates.items() if c in node.left.columns}
        made = self._to(node.left, mine)
        matching: Candidates = {}
        for a, b in node.equal:
            values = self.values(made, a)
            if values is not None:
                matching[b] = values
        return replace(node, left=made, right=self._to(node.right, matching))

    # Collecting values

    def values(self, node: Node, column: str) -> Values | None:
        """All values that a column can have, or a superset; None if unknown."""
        found = [self._lookup.values(leaf, place) for leaf, place in _origins(node, column)]
        known = [v for v in found if v is not None]
        return self._lookup.union(known) if known and len(known) == len(found) else None

    def _alike(self, *columns: tuple[Node, str]) -> bool:
        """Whether equality of these columns means that they hold the same values.

        `'1' = 1` and `'01' = 1`, but a value that equals one of these strings need not equal the
        other.
        """
        origins = [_origins(node, column) for node, column in columns]
        return all(origins) and self._lookup.alike([o for found in origins for o in found])


def _origins(node: Node, column: str) -> list[tuple[Leaf, int]]:
    """The leaf columns from which all values of a column come; empty if it is computed."""
    match node:
        case Leaf():
            return [(node, node.columns.index(column))]
        case Project():
            inside = dict(node.items)[column].column
            return [] if inside is None else _origins(node.input, inside)
        case Keys():
            return _origins(node.input, dict(node.items)[column])
        case Filter() | Restrict() | Negate() | Consolidate() | Distinct() | Diff():
            return _origins(node.input, column)
        case Window() | Generate() if column in node.input.columns:
            return _origins(node.input, column)
        case Aggregate() | Accumulate() if column in node.keys:
            return _origins(node.input, column)
        case Inner():
            child = next(i for i in node.inputs if column in i.columns)
            return _origins(child, column)
        case Join() if column in node.left.columns and node.side is not Side.FULL:
            return _origins(node.left, column)
        case Union():
            place = node.columns.index(column)
            found = [_origins(child, child.columns[place]) for child in node.inputs]
            return [origin for origins in found for origin in origins] if all(found) else []
        case _:
            return []


def _known(candidates: Mapping[str | None, Values]) -> Candidates:
    return {c: v for c, v in candidates.items() if c is not None}


def _classes(links: list[tuple[str, str]]) -> dict[str, str]:
    """Map each column that equals others to one representative of its equivalence class."""
    names: dict[str, str] = {}
    for a, b in links:
        one, two = names.setdefault(a, a), names.setdefault(b, b)
        for name, group in names.items():
            if group == two:
                names[name] = one
    return names


def _among(columns: tuple[str, ...], same: Mapping[str, str], known: Candidates) -> Candidates:
    """The known values of some columns."""
    return {c: known[same.get(c, c)] for c in columns if same.get(c, c) in known}
