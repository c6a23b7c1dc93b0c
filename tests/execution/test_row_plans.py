"""Plans that run row by row compute what the same plans compute over columns.

No Spark: random views are compiled as `explain` compiles them for a project that was never run.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tests.workloads  # noqa: F401 - finds the folder of the benchmarks
from stepwell.deploy.graph import column_names
from stepwell.env import SystemEnv
from stepwell.errors import BugError
from stepwell.execution.backend import CannotRunError, Yes
from stepwell.execution.limits import QueryLimits
from stepwell.execution.local import accumulate
from stepwell.execution.local.expressions import ExpressionEvaluator
from stepwell.execution.local.lookup import LookUps
from stepwell.execution.local.offline import Prediction
from stepwell.execution.local.row_backend import RowBackend, merged, part_of
from stepwell.execution.local.support import _plans
from stepwell.lsm import hashing
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.cache import Cache
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.index import Indexes
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.profiler import Profiler
from stepwell.lsm.relations import Relations
from stepwell.lsm.row_values import to_list
from stepwell.lsm.run_file import WEIGHT, RunFiles
from stepwell.plan.expressions import column, parse
from stepwell.plan.join_order import Estimates
from stepwell.plan.maintain import Maintenance
from stepwell.plan.nodes import Accumulate, Inner, Keys, Leaf, Names, Node, When, relations
from stepwell.plan.program import Block, Full
from stepwell.plan.sums import Accumulator
from stepwell.sql.statements import fold, parse_statements
from stepwell.text import Source
from tests.execution.test_support import value
from tests.random_views.cases import case_of
from tests.workloads import tpch_explain

SEEDS = 25
SEEDS_SLOW = 600
ROWS = 8


def test_random_plans_are_the_same_by_row_and_by_column(tmp_path: Path) -> None:
    """S3, S4: a wrong row would be stored, and every later change built on it."""
    counts = Counter[str]()
    for seed in range(SEEDS):
        counts += compared(case_of(seed).sql, seed, tmp_path)
    assert counts["same"] > 60
    assert counts["same"] > 3 * counts["by column"]


def test_plans_of_tpch_are_the_same_by_row_and_by_column(tmp_path: Path) -> None:
    """S4: joins of eight tables, over rows that match often."""
    counts = Counter[str]()
    for seed in range(2):
        counts += compared(tpch_explain.sql(), seed, tmp_path)
    assert counts["same"] > 80


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS, SEEDS_SLOW, 10))
def test_plans_of_thousands_of_views_are_the_same_by_row(first: int, tmp_path: Path) -> None:
    """S3, S4: what is rare among hundreds is not among thousands."""
    for seed in range(first, first + 10):
        compared(case_of(seed).sql, seed, tmp_path)


@pytest.mark.parametrize("bits", [0, 1])
def test_hash_collisions_do_not_bring_rows_with_other_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    """S3: an index by hash returns all rows with the same hash, here all or half of them."""
    monkeypatch.setattr(
        "stepwell.lsm.index.hash_values", lambda values: hashing.hash_values(values) & bits
    )
    counts = Counter[str]()
    for seed in range(6):
        counts += compared(case_of(seed).sql, seed, tmp_path, runs=True)
    assert counts["same"] > 10


def test_a_plan_that_meets_too_many_rows_is_left_to_columns(tmp_path: Path) -> None:
    """S4: wherever the limit lies, a plan gives the same rows or none, never some."""
    for most in (0, 1, 2, 5, 9):
        for seed in range(4):
            compared(case_of(seed).sql, seed, tmp_path, QueryLimits(handled_rows_max=most))


@pytest.mark.parametrize("most", [1, 2])
def test_a_change_of_more_rows_than_the_limit_is_left_to_columns(most: int) -> None:
    """S4"""
    types = ("bigint",)
    rows = pa.table({"c0": [5, 6], WEIGHT: [1, -1]}, schema=arrow_schema(types))
    backend = RowBackend(
        ExpressionEvaluator(lambda _: None),
        Relations(None),  # type: ignore[arg-type]
        Indexes(None),  # type: ignore[arg-type]
        QueryLimits(row_changes_max=most),
    )
    found = backend.change(Leaf("t", ("a",), When.DELTA), {"t": Part(types, 2, rows)})
    assert (found is not None) == (most == 2)
    if found is not None:
        assert found.table == rows


def test_a_join_is_profiled_apart_from_its_look_ups() -> None:
    """Time that a join spends on look-ups is saved in another place than the time of the join."""
    types = ("bigint", "bigint")
    schema = arrow_schema(types)
    stored = pa.table({"c0": [1, 1, 2], "c1": [10, 11, 20], WEIGHT: [1, 1, 1]}, schema=schema)
    moved = pa.table({"c0": [7], "c1": [1], WEIGHT: [1]}, schema=schema)
    known = Relations(None)  # type: ignore[arg-type]
    known.add(Relation("s", types, (), [Part(types, 3, stored)]))
    ticks = itertools.count()
    profiler = Profiler(lambda: float(next(ticks)))
    backend = RowBackend(
        ExpressionEvaluator(lambda _: None),
        known,
        Indexes(None),  # type: ignore[arg-type]
        QueryLimits(),
        profiler,
    )
    leaves = Leaf("t", ("id", "a"), When.DELTA), Leaf("s", ("b", "c"), When.OLD)
    plan = Inner(leaves, (parse("a = b", ("a", "b")),))
    for view, (fetched, shared) in enumerate([(2, 0), (0, 2)]):
        profiler.view()
        readings = next(ticks)
        found = backend.change(plan, {"t": Part(types, 1, moved)})
        assert found is not None
        assert found.rows == 2
        assert next(ticks) - readings == 5, f"view {view}: two phases are entered and left"
        made = profiler.view()
        assert (made.rows_fetched, made.rows_shared) == (fetched, shared)
        assert made.phases.keys() == {"planning", "joins", "look-ups"}


def compared(
    sql: str,
    seed: int,
    folder: Path,
    limits: QueryLimits | None = None,
    *,
    runs: bool | None = None,
) -> Counter[str]:
    """How often random changes had the same result both ways, or were left to columns."""
    draw = random.Random(seed)
    statements = parse_statements(Source("random.sql", sql))
    by_name = {fold(statement.name): statement for statement in statements}
    prediction = Prediction(lambda name: column_names(name, by_name.get))
    prediction.all(statements)
    counts = Counter[str]()
    for block in (block for program in prediction.programs for block in program.blocks):
        if isinstance(block, Full):
            continue
        reads = sorted(relations(block.input))
        for size in (1, draw.randint(1, len(reads))):
            changed = frozenset(draw.sample(reads, size))
            if isinstance(prediction.decisions.support(block, changed), Yes):
                stored = draw.random() < 0.5 if runs is None else runs
                where = folder / str(len(list(folder.iterdir()))) if stored else None
                case = Case(prediction, block, changed, draw, limits or QueryLimits(), where)
                counts += case.compared()
    return counts


class Case:
    """A block with random relations and a random change of some."""

    def __init__(
        self,
        prediction: Prediction,
        block: Block,
        changed: frozenset[str],
        draw: random.Random,
        limits: QueryLimits,
        folder: Path | None,
    ) -> None:
        self.decisions = prediction.decisions
        self.relations = Relations(None)  # type: ignore[arg-type]
        self.deltas: dict[str, Part] = {}
        inputs = sorted({*relations(block.input), block.relation})  # type: ignore[union-attr]
        for name in inputs:
            types = self.decisions.types(name)
            rows = [row_of(types, draw) for _ in range(draw.randrange(ROWS))]
            if name in changed:
                gone = draw.sample(rows, draw.randint(0, min(2, len(rows))))
                come = [row_of(types, draw) for _ in range(draw.randint(0, 2))]
                moved = [(*row, -1) for row in gone] + [(*row, 1) for row in come]
                self.deltas[name] = part(types, moved or [(*row_of(types, draw), 1)])
            parts = parts_of(types, [(*row, 1) for row in rows], folder, name)
            self.relations.add(Relation(name, types, (), parts))
        self.indexes = Indexes(Cache(folder / "cache", SystemEnv()) if folder else None)  # type: ignore[arg-type]
        sizes = {name: draw.choice([0, 1, 1000, 10**7]) for name in inputs}
        moved_rows = {name: draw.choice([1, 100, 10**6]) for name in changed}
        self.maintenance = Maintenance(
            Names(prefix="_m"), changed, Estimates(sizes, moved_rows, self.decisions.unique())
        )
        self.by_row = RowBackend(
            self.decisions.backend.expressions, self.relations, self.indexes, limits
        )
        self.block = block

    def compared(self) -> Counter[str]:
        counts = Counter[str]()
        for plan in _plans(self.block, self.maintenance):
            fresh = [s for s in self.maintenance.stages if s.relation not in self.deltas]
            for name, node in [*((s.relation, s.node) for s in fresh), ("", plan)]:
                theirs = self._by_column(node)
                ours = self._by_row(node)
                if theirs is None:
                    # Declined because of the numbers: the rows must not be computed otherwise.
                    return counts
                if ours is None:
                    counts["by column"] += 1
                elif isinstance(node, Keys):
                    # Either may have keys of rows that do not differ.
                    theirs = ours
                else:
                    assert ours.types == theirs.types
                    assert bag(ours) == bag(theirs), f"{self.block.relation}: {node}"
                    counts["same"] += 1
                self.deltas[name] = theirs
        return counts

    def _by_column(self, node: Node) -> Part | None:
        lookups = LookUps(self.relations, self.indexes, self.deltas)
        backend = self.decisions.backend
        try:
            return backend.run(backend.reduced(node, lookups), lookups)
        except CannotRunError:
            return None

    def _by_row(self, node: Node) -> Part | None:
        try:
            return self.by_row.change(node, self.deltas)
        except CannotRunError:
            return None


Row = tuple[Any, ...]


def row_of(types: Sequence[str], draw: random.Random) -> Row:
    return tuple(value(field.type, draw) for field in arrow_schema(tuple(types)))[:-1]


def part(types: tuple[str, ...], rows: Sequence[Row]) -> Part:
    schema = arrow_schema(types)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return Part(types, len(rows), pa.Table.from_arrays(arrays, schema=schema))


def parts_of(
    types: tuple[str, ...], rows: Sequence[Row], folder: Path | None, name: str
) -> list[Part]:
    """In memory, or half of them in a run."""
    if folder is None:
        return [part(types, rows)] if rows else []
    half = rows[: len(rows) // 2]
    folder.mkdir(exist_ok=True)
    file = folder / f"{name.replace('/', '_')}.parquet"
    pq.write_table(part(types, half).table, file)
    return [
        Part(types, len(half), run=RunFiles((file,), len(half))),
        part(types, rows[len(rows) // 2 :]),
    ]


def bag(rows: Part) -> Counter[str]:
    assert rows.table is not None
    counted = Counter[str]()
    for *row, weight in zip(*(c.to_pylist() for c in rows.table.columns), strict=True):
        counted[repr(row)] += weight
    return Counter({row: weight for row, weight in counted.items() if weight})


# Sums


@pytest.mark.parametrize("keys", [0, 1, 2])
def test_sums_are_merged_as_columns_are(keys: int) -> None:
    """S4: groups that appear, change, stay and go; stored rows that cancel out; large totals."""
    draw = random.Random(keys)
    types = (*("int", "string")[:keys], "bigint", "decimal(38,2)")
    for _ in range(300):
        old = stored_sums(keys, draw)
        added = {
            (*key, draw.randint(-1, 2), draw.choice([0, 1, -5, 10**20]), 1)
            for key in {row[:keys] for row in old} | {key_of(keys, draw) for _ in range(2)}
        }
        added_rows = sorted(added, key=repr)
        if keys == 0 and not old:
            continue
        outcomes: list[object] = []
        for run in (merged, by_column):
            try:
                outcomes.append(run(old, added_rows, keys, types))
            except BugError:
                outcomes.append("negative")
        ours, theirs = outcomes
        if isinstance(ours, list):
            ours = bag(part_of(ours, types))
        assert ours == theirs, (old, added_rows)


def key_of(keys: int, draw: random.Random) -> Row:
    return (draw.choice([0, 1, None]), draw.choice(["a", None]))[:keys]


def stored_sums(keys: int, draw: random.Random) -> list[Row]:
    rows: list[Row] = []
    for key in {key_of(keys, draw) for _ in range(3)}:
        row = (*key, draw.randint(1, 3), draw.choice([0, 7, 10**20]))
        if draw.random() < 0.3:
            rows += [(*key, 9, 5, 1), (*key, 9, 5, -1)]
        rows.append((*row, 1))
    return rows


def by_column(
    old: list[Row], added: list[Row], keys: int, types: tuple[str, ...]
) -> Counter[str] | None:
    schema = arrow_schema(types)
    tables = [part_of(rows, types).table for rows in (old, added)]
    assert all(table is not None and table.schema == schema for table in tables)
    found = accumulate.merged(*tables, keys)  # type: ignore[arg-type]
    return None if found is None else bag(Part(types, found.num_rows, consolidated(found)))


@pytest.mark.parametrize("type_", ["bigint", "decimal(38,0)"])
@pytest.mark.parametrize("weight", [1, -1, 2, 0])
def test_a_sum_that_may_be_too_large_is_for_spark(type_: str, weight: int) -> None:
    """S3: also where a row is there more than once."""
    for number, fits in ((5, True), (2**62 if type_ == "bigint" else 9 * 10**37, False)):
        rows = part_of([(number, weight), (number, weight)], (type_,))
        leaf = Leaf("t", ("v",), When.DELTA)
        plan = Accumulate(leaf, (), "n", (("s", Accumulator(column("v"), None, type_)),))
        backend = RowBackend(
            ExpressionEvaluator(lambda _: None),
            Relations(None),  # type: ignore[arg-type]
            Indexes(None),  # type: ignore[arg-type]
            QueryLimits(),
        )
        deltas: Mapping[str, Part] = {"t": rows}
        if fits or not weight:
            found = backend.change(plan, deltas)
            assert found is not None
            assert found.table is not None
            made = [to_list(c.chunk(0))[0] for c in found.table.columns]
            assert made == [2 * weight, 2 * weight * number, 1]
        else:
            with pytest.raises(CannotRunError):
                backend.change(plan, deltas)


def test_a_sum_is_stored_only_where_its_digits_fit() -> None:
    """S3: a type that was inferred with too many digits is not cut off."""
    assert part_of([(99, 1)], ("decimal(10,2)",), ("decimal(2,2)",)).table is not None
    with pytest.raises(CannotRunError):
        part_of([(100, 1)], ("decimal(10,2)",), ("decimal(2,2)",))
    assert Decimal("0.99") == part_of([(99, 1)], ("decimal(2,2)",)).table.column(0)[0].as_py()  # type: ignore[union-attr]
