"""Run plans row by row, in plain Python, for changes of few rows.

A plan is compiled once into steps with the positions of columns resolved, and kept with the plan.
A step returns rows as tuples, the weight last. Joins are index look-ups: the rows so far are joined
with the next input by looking up their values there, so an empty change ends a plan at once and
nothing is read that does not match. For a few rows that takes microseconds, where the same plan
over Arrow columns (`operators`, `joins`) takes milliseconds.

    known    the columns of a node whose values are known when it runs: `semi_join` in one pass
    needed   the columns that the node's consumer reads

What this runs, the operators over columns run as well, with the same result; expressions have the
rules of `row_expressions`. `NotSupported` and `TooManyRowsError` leave a plan to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepwell.execution.backend import Declined, Fallback, NotSupported
from stepwell.execution.local import row_joins
from stepwell.execution.local.expressions import ExpressionEvaluator
from stepwell.execution.local.operators import compared_call
from stepwell.execution.local.quotients import SURE_DIGITS
from stepwell.execution.local.row_expressions import RowExpressions, compiled
from stepwell.execution.local.row_steps import (
    Reading,
    Step,
    Values,
    arranged,
    consolidated,
    picking,
)
from stepwell.lsm.part import Relation
from stepwell.lsm.row_lookup import Row, RowReader
from stepwell.lsm.values import comparable
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
    Scan,
    Union,
    When,
    children,
)
from stepwell.plan.numbers import decimal_width
from stepwell.plan.sums import Accumulator

_INT_MAX = 2**63 - 1
_INDEX_FAN_OUT = 1000
"""If the best index finds more rows, another column is indexed as well."""


_NONE: frozenset[str] = frozenset()


class RowCompiler:
    """Compiles plans. The types of its relations must stay the same."""

    def __init__(
        self,
        expressions: ExpressionEvaluator,
        relations: Callable[[str], Relation | None],
        types: Callable[[str], tuple[str, ...]],
    ) -> None:
        self._evaluator = expressions
        self._relation = relations
        """The stored relation of a name, if there is one."""
        self._types = types
        """The types of a relation or a stage."""

    def rows(self, node: Node, *, shown: bool = False) -> Step:
        """The consolidated rows of a plan, with its columns in order. Raises `NotSupported`.

        Only rows that are shown, not stored, may hold floating point.
        """
        source = node.input if isinstance(node, Consolidate) else node
        step = arranged(self.step(source, frozenset(node.columns), _NONE), node.columns)
        for type_ in step.types:
            if not comparable(type_) and not (shown and type_ == "double"):
                raise NotSupported(f"{type_.upper()} is compared by Spark")
        run = step.run
        return Step(step.columns, step.types, lambda r, v: consolidated(run(r, v)))

    def added(self, node: Accumulate) -> Step:
        """The change of sums: keys, number of rows, accumulators, and a weight of one."""
        used = [e.columns for _, a in node.sums for e in (a.argument, a.present) if e is not None]
        step = self.step(node.input, frozenset(node.keys).union(*used), _NONE)
        code = self.expressions(step.columns, step.types)
        items = [f"r[{step.place(key)}]" for key in node.keys] + ["r[-1]"]
        items += [_contribution(code, accumulator) for _, accumulator in node.sums]
        contributions = code.function(f"[({', '.join(items)},) for r in rows]")
        keys, width = len(node.keys), len(items)
        limits = [_INT_MAX, *(_limit(a.type) for _, a in node.sums)]
        group, run = _grouping(keys, width), step.run

        def added(reading: Reading, values: Values) -> list[Row]:
            rows = run(reading, values)
            if not rows:
                return []
            made = contributions(rows)
            for numbers, limit in zip(list(zip(*made, strict=True))[keys:], limits, strict=True):
                # A sum that came near overflow would be reported by Spark.
                if max(max(numbers), -min(numbers)) * len(made) > limit:
                    raise Declined(Fallback.ARITHMETIC)
            return [(*row, 1) for row in group(made)]

        types = [step.type(key) for key in node.keys]
        return Step(node.columns, (*types, "bigint", *(a.type for _, a in node.sums)), added)

    # Nodes

    def expressions(self, columns: Sequence[str], types: Sequence[str]) -> RowExpressions:
        """Translates expressions over rows with these columns."""
        return RowExpressions(self._evaluator, columns, types)

    def step(self, node: Node, needed: frozenset[str], known: frozenset[str]) -> Step:
        """The rows of a node, with the needed columns at least. Raises `NotSupported`.

        Only rows with certain values in the known columns are asked for; others may come as well.
        """
        match node:
            case Leaf() | Scan():
                return self._leaf(node, needed, known)
            case Filter():
                condition = node.condition
                step = self.step(node.input, needed | condition.columns, known)
                code = self.expressions(step.columns, step.types)
                keep = code.function(f"[r for r in rows if {code.condition(condition)}]")
                return _then(step, keep)
            case Project():
                return self._project(node, needed, known)
            case Union():
                return self._union(node, needed, known)
            case Negate():
                step = self.step(node.input, needed, known)
                return _then(step, lambda rows: [(*r[:-1], -r[-1]) for r in rows])
            case Inner():
                return _profiled(row_joins.inner(self, node, needed, known))
            case Join():
                return _profiled(row_joins.outer(self, node, needed, known))
            case Restrict():
                return _profiled(row_joins.restrict(self, node, needed, known))
            case Keys():
                return self._keys(node, known)
            case Aggregate():
                return self._aggregate(node, known)
            case Consolidate():
                return self.step(node.input, needed, known)
            case _:
                raise NotSupported(f"{type(node).__name__} is computed by columns")

    def _leaf(self, node: Leaf | Scan, needed: frozenset[str], known: frozenset[str]) -> Step:
        all_types = self._types(node.relation)
        places = [i for i, c in enumerate(node.columns) if c in needed or c in known]
        columns = tuple(node.columns[i] for i in places)
        types = tuple(all_types[i] for i in places)
        if not all(map(comparable, types)):
            raise NotSupported("a column has no row kernel")
        name = node.relation
        when = node.when if isinstance(node, Leaf) else When.DELTA
        if when is When.BOTH:
            raise NotSupported("pairs are computed by columns")
        sought = {c: i for i, c in enumerate(node.columns) if c in known}
        column = Choice(sought)

        def run(reading: Reading, values: Values) -> list[Row]:
            rows: list[Row] = []
            by = None
            relation = None if when is When.DELTA else self._relation(name)
            if relation is not None and relation.parts:
                if sought:
                    by = column.of(reading.reader, relation, values)
                    rows = reading.reader.look_up(relation, sought[by], values[by], places)
                else:
                    rows = reading.reader.whole(relation, places)
            if when is not When.OLD:
                delta = reading.deltas.get(name)
                if delta is not None and delta.rows:
                    more = reading.reader.rows(delta, places)
                    if by is not None:
                        # Restricted like the stored rows, or a retraction would refer to a row
                        # that seems never to have existed.
                        at, among = columns.index(by), values[by]
                        more = [r for r in more if r[at] in among]
                    rows = rows + more
            reading.count(len(rows))
            return rows

        return Step(columns, types, run)

    def _project(self, node: Project, needed: frozenset[str], known: frozenset[str]) -> Step:
        items = [(name, expr) for name, expr in node.items if name in needed or name in known]
        inside = {name: expr.column for name, expr in items if name in known}
        passed = {name: column for name, column in inside.items() if column is not None}
        below = frozenset[str]().union(*(expr.columns for _, expr in items))
        step = self.step(node.input, below, frozenset(passed.values()))
        columns = tuple(name for name, _ in items)
        run = step.run
        if all(expr.column in step.columns for _, expr in items):
            places = [step.columns.index(e.column) for _, e in items if e.column is not None]
            types = tuple(step.types[place] for place in places)
            pick = picking(places, len(step.columns))
        else:
            code = self.expressions(step.columns, step.types)
            made = [code.value(expr) for _, expr in items]
            types = tuple(value.type for value in made)
            texts = [*(value.text for value in made), "r[-1]"]
            pick = code.function(f"[({', '.join(texts)},) for r in rows]")
        if not passed:
            return Step(columns, types, lambda r, v: pick(run(r, {})))

        def projected(reading: Reading, values: Values) -> list[Row]:
            return pick(run(reading, {passed[name]: values[name] for name in passed}))

        return Step(columns, types, projected)

    def _union(self, node: Union, needed: frozenset[str], known: frozenset[str]) -> Step:
        wanted = needed | known
        at = [i for i, c in enumerate(node.columns) if c in wanted]
        columns = tuple(node.columns[i] for i in at)
        steps: list[tuple[Step, dict[str, str]]] = []
        for child in node.inputs:
            names = tuple(child.columns[i] for i in at)
            inside = {c: n for c, n in zip(columns, names, strict=True) if c in known}
            step = self.step(child, frozenset(names), frozenset(inside.values()))
            steps.append((arranged(step, names), inside))
        types = steps[0][0].types
        if any(step.types != types for step, _ in steps):
            raise NotSupported("the branches of a UNION differ in type")

        def run(reading: Reading, values: Values) -> list[Row]:
            rows: list[Row] = []
            for step, inside in steps:
                rows = rows + step.run(reading, {n: values[c] for c, n in inside.items()})
            return rows

        return Step(columns, types, run)

    def _keys(self, node: Keys, known: frozenset[str]) -> Step:
        """The distinct keys, and perhaps keys of rows that cancel out."""
        inside = dict(node.items)
        below = tuple(column for _, column in node.items)
        step = self.step(node.input, frozenset(below), frozenset(inside[c] for c in known))
        step = arranged(step, below)

        def run(reading: Reading, values: Values) -> list[Row]:
            rows = step.run(reading, {inside[c]: values[c] for c in known})
            return [(*key, 1) for key in dict.fromkeys([r[:-1] for r in rows])]

        return Step(node.columns, step.types, run)

    def _aggregate(self, node: Aggregate, known: frozenset[str]) -> Step:
        """Aggregates that depend only on the set of values, not on their multiplicities."""
        if not node.keys:
            raise NotSupported("an aggregate of all rows is computed by columns")
        calls = [compared_call(expr) for _, expr in node.calls]
        used = tuple(dict.fromkeys([*node.keys, *(column for _, column in calls)]))
        step = self.step(node.input, frozenset(used), known & set(node.keys))
        step = arranged(step, used)
        made = [(_AGGREGATES[function], used.index(column)) for function, column in calls]
        types = [step.type(key) for key in node.keys]
        types += [
            "bigint" if function == "count_distinct" else step.type(column)
            for function, column in calls
        ]
        width, passed = len(node.keys), tuple(known & set(node.keys))

        def run(reading: Reading, values: Values) -> list[Row]:
            bag = consolidated(step.run(reading, {c: values[c] for c in passed}))
            groups: dict[Row, list[Row]] = {}
            for row in bag:
                if row[-1] < 0:
                    raise Declined(Fallback.ROWS_ELSEWHERE)
                groups.setdefault(row[:width], []).append(row)
            return [
                (*key, *(call([r[at] for r in rows if r[at] is not None]) for call, at in made), 1)
                for key, rows in groups.items()
            ]

        return Step(node.columns, tuple(types), run)


_AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    "max": lambda values: max(values, default=None),
    "min": lambda values: min(values, default=None),
    "count_distinct": lambda values: len(set(values)),
}


def _grouping(keys: int, width: int) -> Callable[[list[Row]], Iterable[Sequence[Any]]]:
    """A function that adds up the columns after the keys, by key."""
    add = "; ".join(f"g[{at}] += r[{at}]" for at in range(keys, width))
    source = f"""
def group(rows):
    groups = {{}}
    for r in rows:
        g = groups.get(key := r[:{keys}])
        if g is None:
            groups[key] = list(r)
        else:
            {add}
    return groups.values()
"""
    scope: dict[str, Any] = {}
    exec(compiled(source), scope)
    return scope["group"]  # type: ignore[no-any-return]


class Choice:
    """Which of several columns to look rows up by: the one that finds the fewest.

    Counted at first, and again from time to time.
    """

    def __init__(self, sought: Mapping[str, int]) -> None:
        self._sought = sought
        self._best: tuple[str, int] | None = None
        """The column chosen, and how many times it will be used before choosing again."""

    def of(self, reader: RowReader, relation: Relation, values: Values) -> str:
        if len(self._sought) == 1:
            return next(iter(self._sought))
        if self._best is None or not self._best[1]:
            self._best = self._chosen(reader, relation, values), 64
        self._best = self._best[0], self._best[1] - 1
        return self._best[0]

    def _chosen(self, reader: RowReader, relation: Relation, values: Values) -> str:
        counts = {c: reader.count(relation, at, values[c]) for c, at in self._sought.items()}
        known = {c: count for c, count in counts.items() if count is not None}
        others = [c for c in counts if c not in known]
        others.sort(key=lambda c: not reader.is_cheap(relation, self._sought[c]))
        best = min(known, key=lambda c: known[c], default=None)
        for other in others:
            if best is not None and known[best] <= _INDEX_FAN_OUT:
                break
            reader.index(relation, self._sought[other])
            known[other] = reader.count(relation, self._sought[other], values[other]) or 0
            best = min(known, key=lambda c: known[c])
        return best if best is not None else next(iter(self._sought))


def changed_relations(node: Node) -> frozenset[str]:
    """The relations whose change a plan reads."""
    if isinstance(node, Leaf):
        return frozenset() if node.when is When.OLD else frozenset({node.relation})
    return frozenset[str]().union(*map(changed_relations, children(node)))


def _then(step: Step, keep: Callable[[Any], Any]) -> Step:
    run = step.run
    return Step(step.columns, step.types, lambda r, v: keep(run(r, v)))


def _profiled(join: Step) -> Step:
    """A join whose time is counted as such; the look-ups of its inputs are counted apart."""
    run = join.run

    def profiled(reading: Reading, values: Values) -> list[Row]:
        profiler = reading.reader.profiler
        before = profiler.enter("joins")
        try:
            return run(reading, values)
        finally:
            profiler.enter(before)

    return Step(join.columns, join.types, profiled)


def _contribution(code: RowExpressions, accumulator: Accumulator) -> str:
    """What a row adds to an accumulator; NULL adds nothing."""
    if accumulator.argument is None:
        text = "r[-1]"
    else:
        made = code.value(accumulator.argument)
        scale, wanted = _scale(made.type), _scale(accumulator.type)
        whole = accumulator.type == "bigint" and scale is None
        if not whole and (scale or 0) != wanted:
            raise NotSupported(f"a sum of {made.type.upper()} has no row kernel")
        if made.repeatable:
            text = f"(0 if {made.text} is None else {made.text} * r[-1])"
        else:
            text = f"(0 if (v := {made.text}) is None else v * r[-1])"
        if accumulator.present is not None and made.fallible:
            raise NotSupported("a conditional sum of this expression is computed by columns")
    if accumulator.present is not None:
        text = f"({text} if {code.condition(accumulator.present)} else 0)"
    return text


def _scale(type_: str) -> int | None:
    width = decimal_width(type_)
    return None if width is None else width[1]


def _limit(type_: str) -> int:
    """The largest sum that Spark certainly computes exactly."""
    return _INT_MAX if type_ == "bigint" else 10**SURE_DIGITS
