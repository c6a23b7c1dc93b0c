"""Index look-ups of the stored rows that a change joins with (see `plan/semi_join`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.execution.backend import Fallback
from stepwell.execution.local.conditions import fulfilling
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.column_memo import ColumnMemo
from stepwell.lsm.index import Indexes
from stepwell.lsm.lookup import LookedUpRows, SharedRows, distinct
from stepwell.lsm.part import Part, Relation, Sought
from stepwell.lsm.relations import Relations
from stepwell.lsm.values import comparable
from stepwell.plan.expressions import Expr
from stepwell.plan.nodes import Leaf, When
from stepwell.plan.semi_join import Values

FOUND = "$found"
FOUND_ROWS_MAX = 1_000_000
"""Larger results are left to Spark, which reads the rows in place."""
INDEX_ROWS_MAX = 200_000_000
"""Relations with more rows on this machine are left to Spark."""
VALUES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """Rows under a temporary name: as stored, and their change."""

    types: tuple[str, ...]
    old: Part | None
    delta: Part | None


class LookUps:
    """The look-ups of one query. Spark sees the results under temporary names."""

    def __init__(
        self,
        relations: Relations,
        indexes: Indexes,
        deltas: Mapping[str, Part],
        most: int | None = None,
        shared: SharedRows | None = None,
    ) -> None:
        self._most = most or FOUND_ROWS_MAX
        self._shared = shared or SharedRows()
        self._relations = relations
        self._indexes = indexes
        self._deltas = deltas
        self.found: dict[str, Found] = {}
        self._tables: dict[tuple[str, When], tuple[pa.Table | None, pa.Table | None]] = {}
        self.rows_read = 0
        self.declined: Fallback | None = None
        """Why rows that the plan needs could not be used in this process, if so."""
        self.whole: set[str] = set()
        """The relations that this concerns, because they are read without a look-up."""

    @property
    def memo(self) -> ColumnMemo:
        """What was computed from columns in this transaction."""
        return self._shared.memo

    def find(
        self,
        leaf: Leaf,
        candidates: Mapping[int, Values],
        needed: frozenset[int] | None,
        conditions: Sequence[Expr],
    ) -> str | None:
        if leaf.relation not in self._relations:
            return None
        relation = self._relations[leaf.relation]
        if not relation.parts:
            return None
        whole = self.rows(relation, candidates, needed)
        changed = self._deltas.get(leaf.relation) if leaf.when is not When.OLD else None
        if whole is None or (changed is not None and changed.table is None):
            return None
        # Restrict the change in the same way as the stored rows, or a retraction would refer to a
        # row that seems never to have existed.
        delta = None
        if changed is not None:
            delta = self._changed(changed, self._sought(relation, candidates))
        for condition in conditions:
            whole = fulfilling(whole, leaf.columns, relation.types, condition)
            if delta is not None:
                delta = fulfilling(delta, leaf.columns, relation.types, condition)
        return self.put(leaf, whole, delta)

    def _changed(self, part: Part, sought: Sought) -> pa.Table:
        """The rows of a change that have such values."""
        # The part is held as well, so no other one can get its id.
        return self.memo.of(
            ("changed", id(part), *sought),
            list(sought.values()),
            lambda: (part, part.rows_at(part.find(sought))),
        )[1]

    def add(self, table: pa.Table, types: tuple[str, ...]) -> str:
        """Register rows as a change set."""
        return self._named(Found(types, None, self._part(table, types)))

    def put(self, leaf: Leaf, old: pa.Table | None, delta: pa.Table | None) -> str:
        """Register other rows in place of a leaf's."""
        types = self.types(leaf)
        parts = [None if t is None else self._part(t, types) for t in (old, delta)]
        return self._named(Found(types, parts[0], parts[1]))

    def pair(self, old: pa.Table, delta: pa.Table, types: tuple[str, ...]) -> str:
        """Register old rows together with their change."""
        return self._named(Found(types, self._part(old, types), self._part(delta, types)))

    def _part(self, table: pa.Table, types: tuple[str, ...]) -> Part:
        return Part(types, table.num_rows, table)

    def _named(self, found: Found) -> str:
        name = f"{FOUND}{len(self.found) + 1}"
        self.found[name] = found
        return name

    def types(self, leaf: Leaf) -> tuple[str, ...]:
        """The types of a leaf's columns."""
        if leaf.relation in self.found:
            return self.found[leaf.relation].types
        if leaf.relation in self._relations:
            return self._relations[leaf.relation].types
        return self._deltas[leaf.relation].types

    def parts(self, leaf: Leaf) -> tuple[list[Part], Part | None]:
        """The stored rows that a leaf reads, and their change."""
        olds: list[Part]
        if leaf.relation in self.found:
            found = self.found[leaf.relation]
            olds, delta = [found.old] if found.old else [], found.delta
        else:
            there = leaf.relation in self._relations
            olds = list(self._relations[leaf.relation].parts) if there else []
            delta = self._deltas.get(leaf.relation)
        return (
            [] if leaf.when is When.DELTA else olds,
            None if leaf.when is When.OLD else delta,
        )

    def tables(self, leaf: Leaf) -> tuple[pa.Table | None, pa.Table | None] | None:
        """The stored rows of a leaf, and their change; None if they cannot be used here."""
        known = self._tables.get((leaf.relation, leaf.when))
        if known is None:
            known = self._read(leaf)
            if known is not None:
                self._tables[leaf.relation, leaf.when] = known
        return known

    def _read(self, leaf: Leaf) -> tuple[pa.Table | None, pa.Table | None] | None:
        why = self._why_not(leaf)
        if why is not None:
            self.decline(why, leaf)
            return None
        olds, delta = self.parts(leaf)
        schema = arrow_schema(self.types(leaf))
        old = None
        if leaf.when is not When.DELTA:
            tables = [p.table for p in olds] or [schema.empty_table()]
            old = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        if leaf.when is When.OLD:
            return old, None
        return old, schema.empty_table() if delta is None else delta.table

    def _why_not(self, leaf: Leaf) -> Fallback | None:
        """Why the rows of a leaf cannot be used here, if so."""
        olds, delta = self.parts(leaf)
        if any(p.table is None for p in olds) or (delta is not None and delta.table is None):
            return Fallback.ROWS_ELSEWHERE
        return Fallback.TOO_MANY_ROWS if sum(p.rows for p in olds) > self._most else None

    def decline(self, fallback: Fallback, leaf: Leaf | None = None) -> None:
        """Note that rows are not here, or too many. Other parts of the plan may still be folded."""
        self.declined = self.declined or fallback
        if leaf is not None:
            self.whole.add(leaf.relation)

    def rows(
        self,
        relation: Relation,
        candidates: Mapping[int, Values | None],
        needed: frozenset[int] | None = None,
    ) -> pa.Table | None:
        """The stored rows that have such values; None if they cannot be looked up here."""
        sought = self._sought(relation, candidates)
        if candidates and not sought:
            return None
        columns = None if needed is None else needed.union(sought)
        result = self._look_up(relation, sought, columns)
        return None if result is None else result.table(columns)

    def _look_up(
        self, relation: Relation, sought: Sought, needed: frozenset[int] | None
    ) -> LookedUpRows | None:
        if sum(part.rows for part in relation.parts if _is_here(part)) > INDEX_ROWS_MAX:
            return None
        result = self._shared.look_up(self._indexes, relation, sought, self._most, needed)
        if result is not None:
            self.rows_read += result.rows
        return result

    def _sought(
        self, relation: Relation, candidates: Mapping[int, Values | None]
    ) -> dict[int, pa.Array]:
        """The values that can be looked up, of those that are candidates."""
        schema = arrow_schema(relation.types)
        sought = {}
        for place, values in candidates.items():
            kind = schema.field(place).type
            if not comparable(relation.types[place]) or not isinstance(values, pa.Array):
                continue
            if values.type == kind or _whole(values.type, kind):
                sought[place] = values if values.type == kind else _cast(values, kind)
        return sought

    def values(self, leaf: Leaf, column: int) -> Values | None:
        if not comparable(self.types(leaf)[column]) or self._why_not(leaf) is not None:
            return None
        tables = self.tables(leaf)
        if tables is None or sum(t.num_rows for t in tables if t is not None) > VALUES_MAX:
            return None
        columns = [t.column(column) for t in tables if t is not None]
        return self.union([self.memo.of("distinct", [c], partial(distinct, c)) for c in columns])

    def alike(self, columns: Sequence[tuple[Leaf, int]]) -> bool:
        kinds = {arrow_schema(self.types(leaf)).field(place).type for leaf, place in columns}
        return len(kinds) == 1 or all(map(pa.types.is_integer, kinds))

    def common(self, a: Values, b: Values) -> Values:
        if not isinstance(a, pa.Array) or not isinstance(b, pa.Array) or a.type != b.type:
            return b if isinstance(b, pa.Array) else a
        return self.memo.of("common", [a, b], lambda: a.filter(pc.is_in(a, value_set=b)))

    def union(self, values: list[Values]) -> Values:
        arrays = [v for v in values if isinstance(v, pa.Array)]
        if len(arrays) == 1:
            return arrays[0]
        if len({a.type for a in arrays}) > 1:
            return None
        return distinct(pa.chunked_array(arrays))


def _is_here(part: Part) -> bool:
    return part.table is not None or part.run is None or part.run.here


def _whole(given: pa.DataType, stored: pa.DataType) -> bool:
    """Whether both are integers, which Spark compares by value whatever their width."""
    return bool(pa.types.is_integer(given) and pa.types.is_integer(stored))


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Integers cast to another width; those that do not fit cannot occur in the column."""
    bits = type_.bit_width - 1
    low, high = -(2**bits), 2**bits - 1
    wide = values.cast(pa.int64())
    inside = pc.and_(pc.greater_equal(wide, low), pc.less_equal(wide, high))
    return wide.filter(pc.or_kleene(inside, pc.is_null(wide))).cast(type_)
