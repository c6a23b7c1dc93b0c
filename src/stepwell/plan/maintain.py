"""Incremental maintenance: from a block and the changed relations to queries for its change set.

    d(filter, project, union, generate)  passes through
    d(A join B)                          dA join New(B) + Old(A) join dB, and so on for more inputs;
                                         each term starts at the change and follows equalities
    d(A left, semi, anti join B)         dA join New(B) + Old(A) | K join New(B) | K
                                         - Old(A) | K join Old(B) | K, K = the keys in dB
    d(window), d(full join)              Op(New | K) - Op(Old | K), K = the keys in the change; one
                                         pass over pairs of weights computes both
    sums                                 Merge(Old(self) | K, the change accumulated by key)
    groups                               Aggregate(New(input) | K) - Old(self) | K

`changed` names the relations with a nonempty change; terms that would be empty are never built. An
expression that is needed twice and is not cheap becomes a stage: a separate query whose result the
following queries read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from stepwell.errors import ensure
from stepwell.plan.conditions import equals
from stepwell.plan.expressions import build, column, equal
from stepwell.plan.fingerprint import fingerprint
from stepwell.plan.join_order import Estimates, all_in_order, in_order
from stepwell.plan.join_tree import TERMS_MAX, Halves, Star, halves_of, star_of
from stepwell.plan.keys import KeySet, keys_of
from stepwell.plan.nodes import (
    Accumulate,
    Aggregate,
    Consolidate,
    Diff,
    Filter,
    Generate,
    Inner,
    Join,
    Keys,
    Leaf,
    Merge,
    Names,
    Negate,
    Node,
    Project,
    Restrict,
    Scan,
    Side,
    TopN,
    Union,
    Values,
    When,
    Window,
    walk,
)
from stepwell.plan.program import Block, Full, Groups, Rows, Sums, Top
from stepwell.plan.running import appended
from stepwell.plan.shape import is_cheap, is_linear, is_paired, narrow, over
from stepwell.plan.stage import STAGE as STAGE
from stepwell.plan.stage import Stage

_CHEAP_PARTS_MAX = 2
"""With more parts, keys are computed once even if each part is cheap."""
_Planned = TypeVar("_Planned", bound=Block)
_Plan: TypeAlias = "Callable[[Maintenance, _Planned], Node | None]"


def _planned(plan: _Plan[_Planned]) -> _Plan[_Planned]:
    """Plan once, and return the same plan with its stages from then on."""

    def planned(self: Maintenance, block: _Planned) -> Node | None:
        known = self._planned.get(plan.__name__)
        if known is None:
            self._stages = []
            node = plan(self, block)
            known = self._planned[plan.__name__] = node, tuple(self._stages)
        self._stages = list(known[1])
        return known[0]

    return planned


class Maintenance:
    """Plans the maintenance of one block for one set of changed relations."""

    def __init__(self, names: Names, changed: frozenset[str], estimates: Estimates) -> None:
        self._names = names
        self._changed = changed
        self._estimates = estimates
        self._stages: list[Stage] = []
        self._stage_count = 0
        self._planned: dict[str, tuple[Node | None, tuple[Stage, ...]]] = {}

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The queries to run, in order, before the node planned last."""
        return tuple(self._stages)

    @_planned
    def plan(self, block: Block) -> Node | None:
        """The change set of the block's relation, columns by position; None if it cannot change."""
        match block:
            case Sums():
                return self._sums(block)
            case Groups():
                return self._groups(block)
            case Rows():
                return self._rows(block)
            case Top():
                return self._top(block)
            case Full():
                raise TypeError("a recomputed view has no plan")

    def whole(self, block: Block) -> Node:
        """All rows of a block's relation, computed from the relations as stored."""
        return self._all(block, When.OLD)

    def _all(self, block: Block, when: When) -> Node:
        match block:
            case Sums():
                summed = self._accumulated(block, self.at(block.input, when))
                if not block.keys:
                    return summed
                return Filter(summed, build("a > 0", a=column(summed.rows)))
            case Groups():
                return Aggregate(self.at(block.input, when), block.keys, block.calls)
            case Rows():
                return Consolidate(self.at(block.input, when))
            case Top():
                return self.at(block.input, when)
            case Full():
                raise TypeError("a recomputed view has no plan")

    def recomputed(self, block: Block) -> Node | None:
        """The change of a block's relation, by recomputing it and comparing with stored rows."""
        if isinstance(block, Full) or not self._changes(block.input):
            return None
        fresh = self._all(block, When.NEW)
        stored = Leaf(block.relation, self._names.several(len(block.fields)), When.OLD)
        return self._less(fresh, stored)

    def _accumulated(self, block: Sums, source: Node) -> Accumulate:
        rows = self._names.new()
        made = tuple((self._names.new(), accumulator) for accumulator in block.accumulators)
        return Accumulate(source, block.keys, rows, made)

    # Blocks

    @_planned
    def summed(self, block: Sums) -> Node | None:
        """The amounts that a change adds to the sums of each group."""
        return self._summed(block)

    def _summed(self, block: Sums) -> Node | None:
        change = self.delta(block.input)
        return None if change is None else self._accumulated(block, change)

    def _sums(self, block: Sums) -> Node | None:
        summed = self._summed(block)
        if summed is None:
            return None
        if block.keys:
            summed = self._held(summed)
        return self.merge(block, summed)

    def merge(self, block: Sums, summed: Node) -> Node:
        """The change of the stored sums when `summed` is added to them."""
        columns = self._names.several(len(block.fields))
        old: Node = Leaf(block.relation, columns, When.OLD)
        if block.keys:
            keys = self._keys(summed, summed.columns[: len(block.keys)])
            old = Restrict(old, keys.node, tuple(zip(columns, keys.node.columns, strict=False)))
        types = tuple(f.type for f in block.fields)
        return Merge(old, summed, len(block.keys), types)

    def _groups(self, block: Groups) -> Node | None:
        stored: Node = Leaf(block.relation, self._names.several(len(block.fields)), When.OLD)
        keys = None
        if block.keys:
            keys = self.touched(block.input, block.keys)
            if keys is None:
                return None
            pairs = zip(stored.columns, (k for _, k in keys.on), strict=False)
            stored = Restrict(stored, keys.node, tuple(pairs))
        elif not self._changes(block.input):
            return None
        fresh = Aggregate(self.at(block.input, When.NEW, keys), block.keys, block.calls)
        return self._less(fresh, stored)

    def _rows(self, block: Rows) -> Node | None:
        if block.again is None:
            change = self.delta(block.input)
            return None if change is None else Consolidate(change)
        if not block.again:
            return self.recomputed(block)
        keys = self.touched(block.input, block.again)
        if keys is None:
            return None
        stored = Leaf(block.relation, self._names.several(len(block.fields)), When.OLD)
        by_name = dict(zip(block.input.columns, stored.columns, strict=True))
        mine = keys.renamed(by_name)
        ensure(mine is not None, "rows that are compared by key hold the key")
        old = Restrict(stored, keys.node, mine.on if mine else ())
        return self._less(self.at(block.input, When.NEW, keys), old)

    @_planned
    def coming(self, block: Rows) -> Node | None:
        """The change of a window's input."""
        window = block.input
        change = self.delta(window.input) if isinstance(window, Window) else None
        return None if change is None else Consolidate(change)

    def at_the_end(self, block: Rows, added: Node) -> Node:
        """The window's rows for input rows that sort after all existing ones."""
        return appended(block, added, self._names)

    def _top(self, block: Top) -> Node | None:
        if not self._changes(block.input):
            return None
        stored = Leaf(block.relation, self._names.several(len(block.fields)), When.OLD)
        return self._less(self.at(block.input, When.NEW), stored)

    @_planned
    def candidates(self, block: Top) -> Node | None:
        """The change of the rows from which the first are taken."""
        change = self.delta(block.input.input)
        return None if change is None else Consolidate(change)

    def _less(self, new: Node, old: Node) -> Node:
        return Consolidate(Union((new, Negate(old)), old.columns))

    # Changes

    def _changes(self, node: Node) -> bool:
        return any(isinstance(n, Scan) and n.relation in self._changed for n in walk(node))

    def delta(self, node: Node) -> Node | None:
        """The change of a node; None if it cannot change."""
        if not self._changes(node):
            return None
        match node:
            case Scan():
                return Leaf(node.relation, node.columns, When.DELTA)
            case Filter() | Project() | Generate() | Negate():
                change = self.delta(node.input)
                ensure(change is not None, "a change comes from an input")
                return over(node, change) if change is not None else None
            case Union():
                parts = []
                for child in node.inputs:
                    change = self.delta(child)
                    if change is not None:
                        parts.append(narrow(change, child.columns))
                return Union(tuple(parts), node.columns)
            case Inner():
                return self._inner(node)
            case Window():
                keys = self.touched(node.input, node.partition)
                return Diff(over(node, self.at(node.input, When.BOTH, keys)))
            case Join():
                return self._join(node)
            case _:
                raise TypeError(f"{type(node).__name__} has no change of its own")

    def _inner(self, node: Inner) -> Node:
        if sum(map(self._changes, node.inputs)) > TERMS_MAX:
            halves = halves_of(node)
            if halves is not None:
                return self._in_halves(halves, node.columns)
        terms: list[Node] = []
        for i, source in enumerate(node.inputs):
            change = self.delta(source)
            if change is None:
                continue
            others = [
                self.at(other, When.NEW if j < i else When.OLD)
                for j, other in enumerate(node.inputs)
                if j != i
            ]
            joined = in_order(change, others, node.on, self._estimates)
            terms.append(narrow(joined, node.columns))
        return terms[0] if len(terms) == 1 else Union(tuple(terms), node.columns)

    def _in_halves(self, halves: Halves, columns: tuple[str, ...]) -> Node:
        terms: list[Node] = []
        pairs = (halves.left, halves.right, When.OLD), (halves.right, halves.left, When.NEW)
        for half, other, when in pairs:
            change = self.delta(half)
            if change is None:
                continue
            others = [self.at(child, when) for child in other.inputs]
            on = (*other.on, *halves.on)
            joined = in_order(self._held(change), others, on, self._estimates)
            terms.append(narrow(joined, columns))
        return terms[0] if len(terms) == 1 else Union(tuple(terms), columns)

    def _join(self, node: Join) -> Node:
        """The change of a join, linear in the left side unless it is a full join.

        Each left row has its own matches. A change on the left joins the new right side. Old left
        rows that match a change on the right are joined again, with the new and with the old right
        side.
        """
        if node.side is Side.FULL:
            return Diff(self._join_at(node, When.BOTH, *self._join_keys(node)))
        star = star_of(node)
        if star is not None:
            return self._star(star, node.columns)
        terms: list[Node] = []
        change = self.delta(node.left)
        if change is not None:
            change = narrow(change, node.left.columns)
            terms.append(self._with_right(node, change, When.NEW))
        if self._changes(node.right):
            left, keys = self._meeting(node)
            for when in (When.NEW, When.OLD):
                again = replace(node, left=left, right=self.at(node.right, when, keys))
                terms.append(again if when is When.NEW else Negate(again))
        return terms[0] if len(terms) == 1 else Union(tuple(terms), node.columns)

    def _with_right(self, node: Join, left: Node, when: When) -> Node:
        """A join whose right side is restricted to possible matches of the left rows."""
        keys = None
        if not is_linear(left) and not is_paired(left):
            left = self._held(left)
        if node.equal:
            sides = tuple(a for a, _ in node.equal), tuple(b for _, b in node.equal)
            mine = self._keys(left, sides[0], nulls=node.null_safe)
            keys = KeySet(mine.node, tuple(zip(sides[1], (k for _, k in mine.on), strict=True)))
        return replace(node, left=left, right=self.at(node.right, when, keys))

    def _star(self, star: Star, columns: tuple[str, ...]) -> Node:
        """The change of left joins with one base.

        A change of the base joins the new arms. For each group of arms joined by the same columns,
        the old rows of the base that match a change in it are joined again: with its new rows, less
        with its old ones. The groups before it are new in both, those after it are old.
        """
        terms: list[Node] = []
        change = self.delta(star.base)
        if change is not None:
            change = self._held(narrow(change, star.base.columns))
            terms.append(self._around(star, change, When.NEW, {}))
        groups = star.groups()
        done: set[tuple[str, ...]] = set()
        for by, arms in groups.items():
            parts = [self._touched(a.right, tuple(b for _, b in a.equal)) for a in arms]
            found = [keys for part in parts for keys in part]
            if not found:
                continue
            merged = self._merged(found, len(by))
            keys = KeySet(merged, tuple(zip(by, merged.columns, strict=True)))
            left = self.at(star.base, When.OLD, keys)
            if len(groups) > 1:
                left = self._held(left)
            old = {other: When.OLD for other in groups if other not in done}
            new = self._around(star, left, When.NEW, {**old, by: When.NEW}, keys)
            terms += [new, Negate(self._around(star, left, When.NEW, old, keys))]
            done.add(by)
        return terms[0] if len(terms) == 1 else Union(tuple(terms), columns)

    def _around(
        self,
        star: Star,
        base: Node,
        when: When,
        others: Mapping[tuple[str, ...], When],
        keys: KeySet | None = None,
    ) -> Node:
        """The star over rows of its base, which `keys` cover; `others` are states but `when`."""
        made = base
        for arm in star.arms:
            by, right = tuple(a for a, _ in arm.equal), tuple(b for _, b in arm.equal)
            if keys is not None and by == tuple(c for c, _ in keys.on):
                source, known = keys.node.columns, keys.node
            else:
                mine = self._keys(base, by, nulls=arm.null_safe)
                source, known = tuple(k for _, k in mine.on), mine.node
            only = KeySet(known, tuple(zip(right, source, strict=True)))
            made = replace(arm, left=made, right=self.at(arm.right, others.get(by, when), only))
        return made

    def _meeting(self, node: Join) -> tuple[Node, KeySet | None]:
        """The old left rows that can match a change on the right, and the keys of that change."""
        keys = self.touched(node.right, tuple(b for _, b in node.equal)) if node.equal else None
        if keys is None:
            return self.at(node.left, When.OLD), None
        left = zip((a for a, _ in node.equal), (k for _, k in keys.on), strict=True)
        return self.at(node.left, When.OLD, KeySet(keys.node, tuple(left))), keys

    # Keys

    def _keys(self, node: Node, columns: tuple[str, ...], *, nulls: bool = True) -> KeySet:
        return keys_of(node, columns, self._names, nulls=nulls)

    def touched(self, node: Node, columns: tuple[str, ...]) -> KeySet | None:
        """Keys that cover every row that differs before and after; None if no row does."""
        found = self._touched(node, columns)
        if not found:
            return None
        if len(found) == 1:
            keys = self._held(found[0].node)
        else:
            keys = self._merged(found, len(columns))
        return KeySet(keys, tuple(zip(columns, keys.columns, strict=True)))

    def _merged(self, found: Sequence[KeySet], width: int) -> Node:
        """The keys in any of these sets, by position."""
        parts = [narrow(f.node, tuple(k for _, k in f.on)) for f in found]
        distinct = {fingerprint(part): part for part in parts}
        names = self._names.several(width)
        union = Union(tuple(distinct.values()), names)
        made = Keys(union, tuple((self._names.new(), name) for name in names))
        return self._stage(made) if len(distinct) > _CHEAP_PARTS_MAX else self._held(made)

    def _touched(self, node: Node, columns: tuple[str, ...]) -> list[KeySet]:
        if not self._changes(node):
            return []
        match node:
            case Filter() if not is_linear(node):
                return self._touched(node.input, columns)
            case Project():
                items = dict(node.items)
                passed = [items[c].column for c in columns]
                known = [c for c in passed if c is not None]
                if len(known) == len(passed):
                    return self._touched(node.input, tuple(known))
            case Inner():
                return self._touched_inner(node, columns)
            case Window():
                if set(columns) <= set(node.partition):
                    return self._touched(node.input, columns)
            case Join():
                if node.side is not Side.FULL and set(columns) <= set(node.left.columns):
                    return self._touched_join(node, columns)
            case _:
                pass
        change = self.delta(node)
        return [] if change is None else [self._keys(change, columns)]

    def _touched_inner(self, node: Inner, columns: tuple[str, ...]) -> list[KeySet]:
        """Touched keys; a changed input that has the key columns, or equal ones, needs no join."""
        same = equals(node.on)
        found: list[KeySet] = []
        for i, source in enumerate(node.inputs):
            if not self._changes(source):
                continue
            here = []
            for c in columns:
                mine = [e for e in same.get(c, {c}) if e in source.columns]
                here += mine[:1]
            if len(here) == len(columns):
                found += self._touched(source, tuple(here))
                continue
            change = self.delta(source)
            if change is None:
                continue
            others = [
                self.at(other, When.NEW if j < i else When.OLD)
                for j, other in enumerate(node.inputs)
                if j != i
            ]
            found.append(self._keys(in_order(change, others, node.on, self._estimates), columns))
        return found

    def _touched_join(self, node: Join, columns: tuple[str, ...]) -> list[KeySet]:
        """Left keys of rows that changed on the left or that match a change on the right."""
        found = self._touched(node.left, columns)
        right = dict(node.equal)
        if all(c in right for c in columns):
            return found + self._touched(node.right, tuple(right[c] for c in columns))
        if self._changes(node.right):
            found.append(self._keys(self._meeting(node)[0], columns))
        return found

    def _join_keys(self, node: Join) -> tuple[KeySet | None, KeySet | None]:
        """The keys of a full join that changed on either side, for each side."""
        if not node.equal:
            return None, None
        left = tuple(a for a, _ in node.equal)
        right = tuple(b for _, b in node.equal)
        found = self._touched(node.left, left) + self._touched(node.right, right)
        keys = self._merged(found, len(left))
        # By position: one column may be compared with several columns of the other side.
        return (
            KeySet(keys, tuple(zip(left, keys.columns, strict=True))),
            KeySet(keys, tuple(zip(right, keys.columns, strict=True))),
        )

    # States

    def at(self, node: Node, when: When, keys: KeySet | None = None) -> Node:
        """The node's rows before, after, or as pairs; with keys, only the rows among them."""
        match node:
            case Scan():
                then = when if node.relation in self._changed else When.OLD
                return _restrict(Leaf(node.relation, node.columns, then), keys)
            case Values():
                return _restrict(node, keys)
            case Filter() | Negate():
                return over(node, self.at(node.input, when, keys))
            case Generate():
                return self._above(node, when, keys, {c: c for c in node.input.columns})
            case Project():
                passed = {n: e.column for n, e in node.items if e.column is not None}
                return self._above(node, when, keys, passed)
            case Union():
                return self._union_at(node, when, keys)
            case Inner():
                return self._inner_at(node, when, keys)
            case Window():
                return self._window_at(node, when, keys)
            case Join():
                return self._join_above(node, when, keys)
            case TopN():
                return _restrict(over(node, self.at(node.input, when)), keys)
            case _:
                raise TypeError(f"{type(node).__name__} is not part of a block")

    def _above(
        self,
        node: Project | Generate,
        when: When,
        keys: KeySet | None,
        passed: Mapping[str, str],
    ) -> Node:
        if keys is None:
            return over(node, self.at(node.input, when))
        made = over(node, self.at(node.input, when, keys.renamed(passed)))
        whole = keys.columns <= set(passed)
        return made if whole else _restrict(made, keys)

    def _union_at(self, node: Union, when: When, keys: KeySet | None) -> Node:
        parts = []
        for child in node.inputs:
            by_place = dict(zip(node.columns, child.columns, strict=True))
            mine = keys.renamed(by_place) if keys is not None else None
            parts.append(narrow(self.at(child, when, mine), child.columns))
        return Union(tuple(parts), node.columns)

    def _inner_at(self, node: Inner, when: When, keys: KeySet | None) -> Node:
        inputs = [self.at(child, when) for child in node.inputs]
        if keys is None:
            return narrow(all_in_order(inputs, node.on, self._estimates), node.columns)
        # Deduplicate the keys, also if only some of their columns are left: unlike a restriction, a
        # join repeats rows.
        items = tuple((self._names.new(), k) for _, k in keys.on)
        once = Keys(keys.node, items)
        pairs = [(c, k) for (c, _), (k, _) in zip(keys.on, items, strict=True)]
        on = (*node.on, *(equal(c, k, null_safe=True) for c, k in pairs))
        return narrow(in_order(once, inputs, on, self._estimates), node.columns)

    def _window_at(self, node: Window, when: When, keys: KeySet | None) -> Node:
        if keys is None:
            return over(node, self.at(node.input, when))
        inside = {c: c for c in node.input.columns}
        if keys.columns <= set(node.partition):
            return over(node, self.at(node.input, when, keys))
        mine = keys.renamed(inside)
        source = self.at(node.input, when, mine) if mine else self.at(node.input, when)
        whole = self._keys(source, node.partition)
        return _restrict(over(node, self.at(node.input, when, whole)), keys)

    def _join_above(self, node: Join, when: When, keys: KeySet | None) -> Node:
        if keys is None:
            return self._join_at(node, when)
        star = star_of(node)
        if star is not None and keys.columns <= set(star.base.columns):
            base = self.at(star.base, when, keys)
            return self._around(star, base, when, {}, keys)
        if node.side is not Side.FULL and keys.columns <= set(node.left.columns):
            if keys.columns <= {a for a, _ in node.equal}:
                pairs = tuple((b, k) for c, k in keys.on for a, b in node.equal if a == c)
                return self._join_at(node, when, keys, KeySet(keys.node, pairs))
            if node.equal:
                return self._with_right(node, self.at(node.left, when, keys), when)
        return _restrict(self._join_at(node, when), keys)

    def _join_at(
        self, node: Join, when: When, left: KeySet | None = None, right: KeySet | None = None
    ) -> Node:
        """The join with both sides restricted to the same values of its own key."""
        sides = self.at(node.left, when, left), self.at(node.right, when, right)
        return replace(node, left=sides[0], right=sides[1])

    def _held(self, node: Node) -> Node:
        """A node that is read twice."""
        return node if is_cheap(node) else self._stage(node)

    def _stage(self, node: Node) -> Node:
        self._stage_count += 1
        relation = f"{STAGE}{self._stage_count}"
        self._stages.append(Stage(relation, node))
        self._estimates.add_stage(relation)
        return Leaf(relation, node.columns, When.DELTA)


def _restrict(node: Node, keys: KeySet | None) -> Node:
    return node if keys is None else Restrict(node, keys.node, keys.on)
