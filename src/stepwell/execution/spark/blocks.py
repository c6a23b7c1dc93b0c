"""Compute the change set of one block's relation in a transaction.

Work that involves no user expression is done in this process: adding to sums, and checking whether
a retracted row was among the first N. The rest are plans of `plan/maintain`. The last block of a
program also computes the change set of its view in the same query, so that an error in the view's
expressions is raised before anything is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions

from stepwell.execution.backend import Fallback, No, Support
from stepwell.execution.local.accumulate import mergeable, merged
from stepwell.execution.local.join_kernels import among_rows
from stepwell.execution.local.lookup import LookUps
from stepwell.execution.local.support import Decisions
from stepwell.execution.local.top_n import moved_among
from stepwell.execution.spark.evaluate import (
    ADDED,
    WRITTEN_ROWS,
    Evaluator,
    Reading,
    SparkBackend,
    TooLargeError,
)
from stepwell.execution.spark.frames import Frames
from stepwell.execution.spark.reading import mapped
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.canonical import canonical, canonical_items
from stepwell.lsm.change import WEIGHT as SHOWN_WEIGHT
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.large_change import AnyChange, LargeChange
from stepwell.lsm.part import Part
from stepwell.lsm.relations import Relations
from stepwell.lsm.run_file import WEIGHT, scalar
from stepwell.lsm.values import comparable
from stepwell.plan.cost import Costs, costs
from stepwell.plan.maintain import Maintenance
from stepwell.plan.nodes import Leaf, Node, When, relations
from stepwell.plan.program import Block, Ending, Full, Groups, Program, Rows, Sums, Top
from stepwell.plan.reasons import Code
from stepwell.plan.render import presented

_NOT_USED = No("the local backend is not used")


@dataclass(slots=True)
class Recompute:
    """Whether blocks of a view are recomputed in a transaction, and why they were."""

    weighed: bool = True
    """Whether blocks may be recomputed where that is cheaper."""
    cheaper: Costs | None = None
    """Both estimates of the first block that was recomputed because that was cheaper."""
    too_large: bool = False
    """Whether the plan of a change was so large that Spark recomputes faster than it plans."""

    @property
    def any(self) -> bool:
        return self.too_large or self.cheaper is not None


class Blocks:
    def __init__(
        self,
        evaluator: Evaluator,
        relations: Relations,
        frames: Frames,
        decisions: Decisions,
        recompute: Callable[[Full, Mapping[str, Part]], Part],
        behind: Callable[[str], frozenset[str]],
    ) -> None:
        self._evaluator = evaluator
        self._relations = relations
        self._frames = frames
        self._decisions = decisions
        self._recompute = recompute
        """Computes a view from its text."""
        self._behind = behind
        """Returns the stored relations behind a table or view."""

    def change(
        self,
        block: Block,
        deltas: Mapping[str, Part],
        program: Program | None,
        outputs: dict[str, AnyChange],
        recompute: Recompute,
    ) -> Part | None:
        """The change set of one block's relation; None if it cannot have changed.

        The last block of a program also adds the change set of the view to `outputs`. A block that
        is recomputed records that in `recompute`.
        """
        if isinstance(block, Full):
            reads = {r for name in block.reads for r in self._behind(name)}
            always = block.reason.code is Code.TIME_DEPENDENT
            if not always and not reads & set(deltas):
                return None
            change = self._recompute(block, deltas)
            if program is not None:
                _give(self._rows(change, program), program, outputs)
            return change
        if recompute.weighed:
            estimate = self._estimate(block, deltas)
            if estimate is not None and estimate.recompute_is_cheaper:
                part = self._recomputed(block, deltas, program, outputs)
                if part is not None:
                    recompute.cheaper = recompute.cheaper or estimate
                return part
        try:
            maintenance = self._evaluator.maintenance(block, deltas)
            with self._evaluator.computing(block, self._support(block, deltas)):
                return self._incremental(block, maintenance, dict(deltas), program, outputs)
        except TooLargeError:
            recompute.too_large = True
            return self._recomputed(block, deltas, program, outputs)

    def _estimate(self, block: Block, deltas: Mapping[str, Part]) -> Costs | None:
        """Both estimates of the costs of a block, if they are known."""
        moved = {name: part.rows for name, part in deltas.items()}
        estimate = costs(block, self._relations.rows, moved, self._evaluator.limits.costs)
        if estimate is None and self._evaluator.uses_local:
            estimate = self._decisions.recomputes(block, deltas, self._relations.rows)
        return estimate

    def look_ahead(
        self, programs: Sequence[tuple[Program, bool]], deltas: Mapping[str, Part]
    ) -> None:
        """Let executors look up what the blocks need, for all of them together.

        Each program comes with whether its blocks may be recomputed. Blocks that read the result of
        another block are left out: its change is not known yet.
        """
        if not self._evaluator.asks_executors:
            return
        plans: list[Node] = []
        computed: set[str] = set()
        for program, weighed in programs:
            for block in program.blocks:
                reads = block.reads if isinstance(block, Full) else relations(block.input)
                if isinstance(block, Full) or reads & computed:
                    computed.add(block.relation)
                elif reads & deltas.keys():
                    computed.add(block.relation)
                    estimate = self._estimate(block, deltas) if weighed else None
                    if estimate is None or not estimate.recompute_is_cheaper:
                        plans += self._first_plans(block, deltas)
        self._evaluator.look_ahead(plans, deltas)

    def _first_plans(self, block: Block, deltas: Mapping[str, Part]) -> list[Node]:
        """The plans that `_incremental` begins with."""
        maintenance = self._evaluator.maintenance(block, deltas)
        first: Node | None
        if isinstance(block, Sums) and self._mergeable(block):
            first = maintenance.summed(block)
        elif isinstance(block, Top) and self._rows_stay(block):
            first = maintenance.candidates(block)
        elif isinstance(block, Rows) and block.ending is not None:
            first = maintenance.coming(block)
        else:
            first = maintenance.plan(block)
        if first is None:
            return []
        with suppress(TooLargeError):
            for node in (first, *(stage.node for stage in maintenance.stages)):
                self._evaluator.check_nodes(node)
            return [*(stage.node for stage in maintenance.stages), first]
        return []

    def _support(self, block: Block, deltas: Mapping[str, Part]) -> Support:
        if not self._evaluator.uses_local:
            return _NOT_USED
        return self._decisions.support(block, deltas)

    def _recomputed(
        self,
        block: Sums | Groups | Rows | Top,
        deltas: Mapping[str, Part],
        program: Program | None,
        outputs: dict[str, AnyChange],
    ) -> Part | None:
        """The change set of a block's relation, by recomputing it and taking the difference."""
        change = self._evaluator.maintenance(block, deltas).recomputed(block)
        if change is None:
            return None
        with self._evaluator.recomputing():
            return self._finish(block, change, program, dict(deltas), outputs)

    def _incremental(
        self,
        block: Block,
        maintenance: Maintenance,
        known: dict[str, Part],
        program: Program | None,
        outputs: dict[str, AnyChange],
    ) -> Part | None:
        """The change set of a block's relation, computed incrementally."""
        if isinstance(block, Sums) and self._mergeable(block):
            summed = maintenance.summed(block)
            if summed is None:
                return None
            self._evaluator.check_nodes(summed)
            self._stage(maintenance, known)
            few = self._evaluator.sums_by_row(block, summed, known)
            if few is not None:
                return self._show_change(block, few, program, known, outputs)
            added = self._evaluator.added(summed, known)
            if not added.rows and block.keys:
                return None
            result = self._merged(block, added)
            if result is not None:
                return self._show_change(block, result, program, known, outputs)
            known[ADDED] = added
            node = maintenance.merge(block, Leaf(ADDED, summed.columns, When.DELTA))
            with self._evaluator.computing(block, No("these sums are added by Spark")):
                return self._finish(block, node, program, known, outputs)
        if isinstance(block, Top) and self._rows_stay(block):
            candidates = maintenance.candidates(block)
            if candidates is None:
                return None
            self._evaluator.check_nodes(candidates)
            self._stage(maintenance, known)
            found = self._evaluator.part(ADDED, candidates, known)
            inserts = self._only_inserts(block, found)
            if inserts is not None:
                come, first = inserts
                ranked = moved_among(first, come, block.input, candidates.columns)
                part = self._relations.in_memory(block.relation, ranked)
                return self._show_change(block, part, program, known, outputs)
        if isinstance(block, Rows) and block.ending is not None:
            coming = maintenance.coming(block)
            if coming is None:
                return None
            self._evaluator.check_nodes(coming)
            self._stage(maintenance, known)
            found = self._evaluator.part(ADDED, coming, known)
            if not found.rows:
                return None
            if self._follows(block, block.ending, found):
                leaf = Leaf(ADDED, coming.columns, When.DELTA)
                node = maintenance.at_the_end(block, leaf)
                return self._finish(block, node, program, {**known, ADDED: found}, outputs)
        change = maintenance.plan(block)
        if change is None:
            return None
        self._evaluator.check_nodes(change)
        self._stage(maintenance, known)
        return self._finish(block, change, program, known, outputs)

    def _follows(self, block: Rows, ending: Ending, found: Part) -> bool:
        """Whether a change only inserts rows that sort after all existing rows of a window."""
        lookups = self._evaluator.lookups({})
        last = lookups.rows(self._relations[ending.relation], {})
        if found.table is None or last is None:
            return False
        last = consolidated(last)
        if not last.num_rows or pc.min(found.table.column(WEIGHT)).as_py() < 0:
            return False
        place = f"c{block.input.columns.index(ending.column)}"
        new, old = found.table.column(place), last.column(place)
        return all_after(old, new, descending=ending.descending)

    def _stage(self, maintenance: Maintenance, known: dict[str, Part]) -> None:
        """Run the stages that were planned since the last call."""
        fresh = [stage for stage in maintenance.stages if stage.relation not in known]
        for stage in fresh:
            self._evaluator.check_nodes(stage.node)
        for stage in fresh:
            known[stage.relation] = self._evaluator.part(stage.relation, stage.node, known)

    def _finish(
        self,
        block: Block,
        change: Node,
        program: Program | None,
        known: Mapping[str, Part],
        outputs: dict[str, AnyChange],
    ) -> Part:
        types = tuple(f.type for f in block.fields)
        few = self._evaluator.run_by_row(change, known, types)
        if few is not None:
            moved = self._relations.in_memory(block.relation, few.table)
            return self._show_change(block, moved, program, known, outputs)
        node, lookups, reading = self._evaluator.reduced(change, known)
        found = self._evaluator.run_locally(node, lookups, types)
        if found is not None:
            moved = self._relations.in_memory(block.relation, found.table)
            return self._show_change(block, moved, program, known, outputs)
        if program is None:
            spark = SparkBackend(self._evaluator, block.relation, known, reading)
            return spark.run(node, lookups, types)
        return self._presented(block, (node, lookups, reading), program, known, outputs)

    def _rows_stay(self, block: Top) -> bool:
        """Whether this process can tell that no row among the first N is retracted."""
        few = block.input.limit is not None and not block.input.offset
        return few and all(comparable(f.type) for f in block.fields)

    def _only_inserts(self, block: Top, found: Part) -> tuple[pa.Table, pa.Table] | None:
        """The inserted rows, and the current first rows.

        None if one of the first rows is retracted, or that cannot be determined.
        """
        lookups = self._evaluator.lookups({})
        first = lookups.rows(self._relations[block.relation], {})
        if found.table is None or first is None:
            return None
        first = consolidated(first)
        gone = found.table.filter(pc.less(found.table.column(WEIGHT), 0))
        names = [name for name in gone.column_names if name != WEIGHT]
        if gone.num_rows and first.num_rows:
            gone = gone.cast(first.schema)
            mask = among_rows(gone.select(names).columns, first.select(names).columns)
            if mask is None or pc.any(mask).as_py():
                return None
        return found.table.filter(pc.greater(found.table.column(WEIGHT), 0)), first

    def _mergeable(self, block: Sums) -> bool:
        types = tuple(f.type for f in block.fields)
        return mergeable(types, len(block.keys))

    def _merged(self, block: Sums, added: Part) -> Part | None:
        """Add a change to stored sums in this process; None if Spark has to do it."""
        if added.table is None:
            return None
        relation = self._relations[block.relation]
        lookups = self._evaluator.lookups({ADDED: added})
        leaf = Leaf(ADDED, tuple(f"c{i}" for i in range(len(block.fields))), When.DELTA)
        wanted = {i: lookups.values(leaf, i) for i in range(len(block.keys))}
        old = lookups.rows(relation, wanted)
        self._evaluator.rows_read += lookups.rows_read
        if old is None:
            self._evaluator.fallbacks.append(Fallback.ROWS_ELSEWHERE)
            return None
        with self._evaluator.phase("merging"):
            table = merged(old, added.table, len(block.keys))
            if table is not None:
                return self._relations.in_memory(block.relation, table)
        self._evaluator.fallbacks.append(Fallback.ARITHMETIC)
        return None

    def _show_change(
        self,
        block: Block,
        moved: Part,
        program: Program | None,
        known: Mapping[str, Part],
        outputs: dict[str, AnyChange],
    ) -> Part:
        """Add the view's change set for a change that is known already."""
        if program is None or not moved.rows:
            return moved
        support = self._decisions.shown(program) if self._evaluator.uses_local else _NOT_USED
        seen = self._evaluator.shown(moved, program, support)
        if seen is not None:
            _give(canonical(seen.table), program, outputs)
            return moved
        columns = self._evaluator.names.several(len(block.fields))
        change = Leaf(block.relation, columns, When.DELTA)
        known = {**known, block.relation: moved}
        reduced = self._evaluator.reduced(change, known)
        return self._presented(block, reduced, program, known, outputs)

    def _presented(
        self,
        block: Block,
        reduced: tuple[Node, LookUps, Reading],
        program: Program,
        known: Mapping[str, Part],
        outputs: dict[str, AnyChange],
    ) -> Part:
        """Let Spark compute a change set, together with the view's change set."""
        change, lookups, reading = reduced
        table = self._evaluator.table(known, lookups)
        once = self._evaluator.once(known, lookups)
        small = self._evaluator.is_small(reading)
        sql = presented(change, program.output, table, single=small, once=once)
        self._evaluator.check_size(sql)
        width = len(change.columns)
        rows = self._evaluator.rows(change, known, lookups)
        found, most = None, self._evaluator.limits.collected_rows_max
        if rows <= most:
            found = self._evaluator.execute(sql, most, reading)
            rows = WRITTEN_ROWS
        if found is None:
            whole = self._evaluator.written(f"{block.relation}$shown", sql, rows, reading)
            frame = self._frames.frame_of(whole)
            stored = frame.select(*frame.columns[: width + 1])
            moved = self._frames.as_run(self._relations[block.relation], stored, whole.rows)
            many = frame.where("shown").select(*frame.columns[width + 2 :], WEIGHT)
            seen = self._many(many, program, whole.rows)
        else:
            moved = self._relations.in_memory(
                block.relation, found.select(found.column_names[: width + 1])
            )
            seen = found.filter(found.column("shown"))
            seen = consolidated(canonical(seen.select([*seen.column_names[width + 2 :], WEIGHT])))
        _give(seen, program, outputs)
        return moved

    def _many(self, many: DataFrame, program: Program, rows: int) -> AnyChange:
        """The consolidated change set of a view that is too large for memory, left on the disk."""
        names = [f"c{i}" for i in range(len(program.types))]
        many = many.toDF(*names, WEIGHT).selectExpr(*canonical_items(program.types), WEIGHT)
        if scalar(program.types):
            sums = many.groupBy(*names).agg(functions.sum(WEIGHT).alias(WEIGHT))
            many = sums.where(f"{WEIGHT} <> 0")
        run = self._frames.runs.write_frame("$shown", many, (), rows)
        return self._rows(Part(program.types, run.rows, run=run), program)

    def _rows(self, part: Part, program: Program) -> AnyChange:
        """The rows of a view's change set; if they are in files, they stay there.

        Fewer than `bulk_rows` are memory-mapped; executors write more to sinks.
        """
        if part.table is not None or part.run is None:
            return self._frames.arrow(part)
        least = self._evaluator.limits.bulk_rows
        if least is None or part.rows < least:
            return mapped(part.run, arrow_schema(part.types))
        return self._frames.large(part.run, _named(arrow_schema(part.types), program))


def all_after(old: pa.ChunkedArray, new: pa.ChunkedArray, *, descending: bool) -> bool:
    """Whether all new values come after all old ones; False if Arrow cannot compare them.

    Dates and times are compared as the integers they are stored as, because Python's end with the
    year 9999.
    """
    if new.null_count or old.null_count:
        return False
    try:
        new = new.cast(old.type)
        if pa.types.is_temporal(old.type):
            whole = pa.int32() if old.type.bit_width == 32 else pa.int64()
            new, old = new.cast(whole), old.cast(whole)
        low, high = (new, old) if descending else (old, new)
        return bool(pc.less(pc.max(low), pc.min(high)).as_py())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False


def _named(schema: pa.Schema, program: Program) -> pa.Schema:
    names = [*program.columns, SHOWN_WEIGHT]
    return pa.schema([field.with_name(n) for n, field in zip(names, schema, strict=True)])


def _give(view: AnyChange, program: Program, outputs: dict[str, AnyChange]) -> None:
    if not view.num_rows:
        return
    if not isinstance(view, LargeChange):
        view = view.rename_columns([*program.columns, SHOWN_WEIGHT])
    outputs[program.view] = view
