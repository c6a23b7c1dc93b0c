"""The local backend for changes of few rows: plans compiled to Python (`row_plans`), kept.

    change   the change set of a plan
    sums     the change set of stored sums: the change added to them, as in `accumulate`
    show     the change set of a view

Each returns None where the work is left to columns: a plan or an expression that has no row kernel,
or too many rows. A plan that met too many rows is not tried again for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from stepwell.errors import BugError
from stepwell.execution.backend import Declined, Fallback, NotSupported
from stepwell.execution.limits import QueryLimits
from stepwell.execution.local.expressions import ExpressionEvaluator
from stepwell.execution.local.row_plans import Choice, RowCompiler, changed_relations
from stepwell.execution.local.row_steps import Reading, Step
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.index import Indexes
from stepwell.lsm.part import Part
from stepwell.lsm.profiler import Profiler
from stepwell.lsm.relations import Relations
from stepwell.lsm.row_lookup import Row, RowReader, TooManyRowsError
from stepwell.lsm.row_values import to_array
from stepwell.plan.nodes import Accumulate, Node, relations
from stepwell.plan.numbers import decimal_width
from stepwell.plan.program import Sums
from stepwell.plan.render import NEGATIVE

_PLANS_MAX = 10_000
_PAUSE = 16
"""How many times a plan is left to columns after it met too many rows."""
_DECIMAL_MAX = 10**37
_INT_MAX = 2**63 - 1


@dataclass(slots=True)
class _Compiled:
    node: Node
    """Held, so that no other node gets its id."""
    step: Step | None
    """None if there is no row kernel."""
    changed: frozenset[str]
    column: Choice | None = None
    """For sums, what the stored ones are looked up by."""
    pause: int = 0


class RowBackend:
    """Runs plans over few rows. `begin` starts a transaction."""

    def __init__(
        self,
        expressions: ExpressionEvaluator,
        relations: Relations,
        indexes: Indexes,
        limits: QueryLimits,
        profiler: Profiler | None = None,
    ) -> None:
        self._profiler = profiler or Profiler()
        self._expressions = expressions
        self._relations = relations
        self._indexes = indexes
        self._limits = limits
        self._compiled: OrderedDict[int, _Compiled] = OrderedDict()
        self.begin()

    def begin(self) -> None:
        """Forget the rows of the transaction before."""
        self.reader = RowReader(self._indexes, self._limits.handled_rows_max, self._profiler)

    def change(
        self, node: Node, deltas: Mapping[str, Part], types: tuple[str, ...] | None = None
    ) -> Part | None:
        """The change set that a plan computes. Raises `Declined`."""

        def compile(compiler: RowCompiler) -> Step:
            return compiler.added(node) if isinstance(node, Accumulate) else compiler.rows(node)

        compiled = self._plan(node, deltas, compile)
        rows = self._run(compiled, deltas)
        if rows is None or compiled.step is None:
            return None
        if not rows and isinstance(node, Accumulate) and not node.keys:
            return None  # A sum of no rows is a row.
        return part_of(rows, compiled.step.types, types)

    def sums(self, block: Sums, node: Accumulate, deltas: Mapping[str, Part]) -> Part | None:
        """The change of a block's stored sums when these are added. Raises `Declined`."""
        compiled = self._plan(node, deltas, lambda compiler: compiler.added(node))
        added = self._run(compiled, deltas)
        if added is None:
            return None
        relation = self._relations[block.relation]
        if not added:
            return Part(relation.types, 0, arrow_schema(relation.types).empty_table())
        keys, places = len(block.keys), range(len(relation.types))
        wanted = {row[:keys] for row in added}
        try:
            if not keys or not relation.parts:
                old = self.reader.whole(relation, places)
            else:
                if compiled.column is None:
                    compiled.column = Choice({str(i): i for i in range(keys)})
                values = {str(i): {key[i] for key in wanted} for i in range(keys)}
                by = compiled.column.of(self.reader, relation, values)
                old = self.reader.look_up(relation, int(by), values[by], places)
                old = [row for row in old if row[:keys] in wanted]
        except TooManyRowsError:
            compiled.pause = _PAUSE
            return None
        if not keys and not old:
            return None
        before = self._profiler.enter("merging")
        try:
            rows = merged(old, added, keys, relation.types)
            return None if rows is None else part_of(rows, relation.types)
        finally:
            self._profiler.enter(before)

    def show(self, moved: Part, output: Node, types: tuple[str, ...]) -> Part | None:
        """The change set of a view whose relation changes so. Raises `Declined`."""
        [relation] = relations(output)
        deltas = {relation: moved}
        compiled = self._plan(output, deltas, lambda compiler: compiler.rows(output, shown=True))
        rows = self._run(compiled, deltas, shown=relation)
        if rows is None or compiled.step is None:
            return None
        return part_of(rows, compiled.step.types, types)

    def _plan(
        self, node: Node, deltas: Mapping[str, Part], compile: Callable[[RowCompiler], Step]
    ) -> _Compiled:
        found = self._compiled.get(id(node))
        if found is not None:
            self._compiled.move_to_end(id(node))
            return found

        def types(name: str) -> tuple[str, ...]:
            return self._relations[name].types if name in self._relations else deltas[name].types

        compiler = RowCompiler(
            self._expressions,
            self._relations.get,
            types,
        )
        step: Step | None
        try:
            step = compile(compiler)
        except NotSupported:
            step = None
        found = self._compiled[id(node)] = _Compiled(node, step, changed_relations(node))
        if len(self._compiled) > _PLANS_MAX:
            self._compiled.popitem(last=False)
        return found

    def _run(
        self, compiled: _Compiled, deltas: Mapping[str, Part], shown: str | None = None
    ) -> list[Row] | None:
        if compiled.step is None:
            return None
        if compiled.pause:
            compiled.pause -= 1
            return None
        names = compiled.changed if shown is None else (shown,)
        changes = sum(deltas[name].rows for name in names if name in deltas)
        if changes > self._limits.row_changes_max:
            return None
        reading = Reading(self.reader, deltas, self._limits.handled_rows_max)
        try:
            return compiled.step.run(reading, {})
        except TooManyRowsError:
            compiled.pause = _PAUSE
            return None


def merged(old: list[Row], added: list[Row], keys: int, types: tuple[str, ...]) -> list[Row] | None:
    """The change set of stored sums: old rows out, new rows in, where they differ.

    `old` are the rows of the groups in `added`, and may hold rows that cancel out. None if a group
    is more than one row, or a number may overflow.
    """
    stored: dict[Row, list[int]] = {}
    for row in old:
        weight = row[-1]
        if abs(weight) != 1:
            return None
        signed = [value * weight for value in row[keys:-1]]
        known = stored.get(row[:keys])
        if known is None:
            stored[row[:keys]] = [*signed, weight]
        else:
            signed.append(weight)
            for at, value in enumerate(signed):
                known[at] += value
    made: list[Row] = []
    none = [0] * (len(types) - keys + 1)
    limits = [_DECIMAL_MAX if decimal_width(type_) else _INT_MAX for type_ in types[keys:]]
    for row in added:
        key, change = row[:keys], row[keys:-1]
        before = stored.get(key, none)
        was = before[-1]
        after = [a + b for a, b in zip(before, change, strict=False)]
        if after[0] < 0:
            raise BugError(NEGATIVE)
        if was and not any(change):
            continue
        large = max(after) > _INT_MAX or min(after) < -_INT_MAX
        if large and any(abs(n) > limit for n, limit in zip(after, limits, strict=True)):
            return None
        if was:
            made.append((*key, *before[:-1], -1))
        if after[0] > 0 or not keys:
            made.append((*key, *after, 1))
    return made


def part_of(rows: list[Row], types: tuple[str, ...], wanted: tuple[str, ...] | None = None) -> Part:
    """Rows in memory as a part with columns of these types. Raises `CannotRunError`."""
    wanted = wanted or types
    schema = arrow_schema(wanted)
    if not rows:
        return Part(wanted, 0, schema.empty_table())
    columns = list(zip(*rows, strict=True))
    for column, inferred, type_ in zip(columns, types, wanted, strict=False):
        if inferred != type_:
            _check_stored(column, inferred, type_)
    arrays = [to_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return Part(wanted, len(rows), pa.Table.from_arrays(arrays, schema=schema))


def _check_stored(column: tuple[object, ...], inferred: str, type_: str) -> None:
    """Check that values can be stored. We may have inferred too many digits for a decimal."""
    one, two = decimal_width(inferred), decimal_width(type_)
    if one is None or two is None or one[1] != two[1]:
        raise NotSupported(f"{inferred.upper()} is not stored as {type_.upper()}")
    if any(isinstance(n, int) and abs(n) >= 10 ** two[0] for n in column):
        raise Declined(Fallback.ARITHMETIC)
