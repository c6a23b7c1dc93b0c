"""How the relation of one block changes in a transaction.

What needs no expression of the user's is done here: adding up sums, and telling whether a row goes
that was among the first. The rest are plans of `query/maintain`. The last block of a program gives
the change of its view in the same query, so that what the view cannot compute is an error before
anything is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions

from stepwell.engine.ports import WEIGHT as SHOWN_WEIGHT
from stepwell.query.algebra import Leaf, Node, When, walk
from stepwell.query.cost import Costs, costs
from stepwell.query.maintain import Maintenance
from stepwell.query.program import Block, Ending, Full, Groups, Program, Rows, Sums, Top
from stepwell.query.reasons import Code
from stepwell.query.render import presented
from stepwell.spark.canonical import canonical, canonical_items
from stepwell.spark.evaluate import (
    ADDED,
    COLLECT_ROWS_MAX,
    WRITTEN_ROWS,
    Evaluator,
    Reading,
    TooLargeError,
)
from stepwell.spark.finder import LookUps
from stepwell.spark.index import Indexes, comparable
from stepwell.spark.matching import among_rows
from stepwell.spark.merge import consolidated, mergeable, merged
from stepwell.spark.ranking import moved_among
from stepwell.spark.reading import mapped
from stepwell.spark.relations import Part, Relations, arrow_schema
from stepwell.spark.runs import WEIGHT, scalar

NODES_MAX = 3_000
"""Of a plan, before it is cut down to what can matter."""


@dataclass(slots=True)
class Anew:
    """Why parts of a view were computed anew in a transaction."""

    weighed: bool = True
    """Whether they may be, where that is cheaper."""
    cheaper: Costs | None = None
    """Both estimates of the first that was."""
    too_large: bool = False
    """Whether the plan of a change was more than Spark reads sooner than it computes it all."""

    @property
    def any(self) -> bool:
        return self.too_large or self.cheaper is not None


class Blocks:
    def __init__(
        self,
        evaluator: Evaluator,
        relations: Relations,
        indexes: Indexes,
        anew: Callable[[Full, Mapping[str, Part]], Part],
        behind: Callable[[str], frozenset[str]],
    ) -> None:
        self._evaluator = evaluator
        self._relations = relations
        self._indexes = indexes
        self._anew = anew
        """Computes a view from its text."""
        self._behind = behind
        """The stored relations behind a table or view."""

    def change(
        self,
        block: Block,
        deltas: Mapping[str, Part],
        program: Program | None,
        outputs: dict[str, pa.Table],
        said: Anew,
    ) -> Part | None:
        """The change of one block's relation; None if it cannot have changed.

        The last block of a program gives the change of the view too. A block that is computed anew
        says so in `said`.
        """
        if isinstance(block, Full):
            reads = {r for name in block.reads for r in self._behind(name)}
            always = block.reason.code is Code.TIME_DEPENDENT
            if not always and not reads & set(deltas):
                return None
            anew = self._anew(block, deltas)
            if program is not None:
                _give(self._rows(anew), program, outputs)
            return anew
        if said.weighed:
            moved = {name: part.rows for name, part in deltas.items()}
            estimate = costs(block, self._relations.rows(), moved)
            if estimate is not None and estimate.cheaper_anew:
                part = self._again(block, deltas, program, outputs)
                if part is not None:
                    said.cheaper = said.cheaper or estimate
                return part
        try:
            maintenance = self._evaluator.maintenance(deltas)
            return self._kept(block, maintenance, dict(deltas), program, outputs)
        except TooLargeError:
            said.too_large = True
            return self._again(block, deltas, program, outputs)

    def _again(
        self,
        block: Sums | Groups | Rows | Top,
        deltas: Mapping[str, Part],
        program: Program | None,
        outputs: dict[str, pa.Table],
    ) -> Part | None:
        """The change of a block's relation, by computing all of it and comparing."""
        change = self._evaluator.maintenance(deltas).anew(block)
        if change is None:
            return None
        with self._evaluator.whatever_size():
            return self._finish(block, change, program, dict(deltas), outputs)

    def _kept(
        self,
        block: Block,
        maintenance: Maintenance,
        known: dict[str, Part],
        program: Program | None,
        outputs: dict[str, pa.Table],
    ) -> Part | None:
        """The change of a block's relation, by what has changed below it."""
        if isinstance(block, Sums) and self._mergeable(block):
            summed = maintenance.summed(block)
            if summed is None:
                return None
            _check_size(summed)
            self._stage(maintenance, known)
            added = self._evaluator.added(summed, block.accumulators, known)
            result = self._merged(block, added)
            if result is not None:
                return self._show_change(block, result, program, known, outputs)
            known[ADDED] = added
            node = maintenance.merge(block, Leaf(ADDED, summed.columns, When.DELTA))
            return self._finish(block, node, program, known, outputs)
        if isinstance(block, Top) and self._rows_stay(block):
            candidates = maintenance.candidates(block)
            if candidates is None:
                return None
            _check_size(candidates)
            self._stage(maintenance, known)
            found = self._evaluator.part(ADDED, candidates, known)
            staying = self._staying(block, found)
            if staying is not None:
                come, first = staying
                ranked = moved_among(first, come, block.input, candidates.columns)
                if ranked is not None:
                    part = self._relations.in_memory(block.relation, ranked)
                    return self._show_change(block, part, program, known, outputs)
                known[ADDED] = Part(found.types, come.num_rows, come)
                leaf = Leaf(ADDED, candidates.columns, When.DELTA)
                node = maintenance.first_of(block, leaf)
                return self._finish(block, node, program, known, outputs)
        if isinstance(block, Rows) and block.ending is not None:
            coming = maintenance.coming(block)
            if coming is None:
                return None
            _check_size(coming)
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
        _check_size(change)
        self._stage(maintenance, known)
        return self._finish(block, change, program, known, outputs)

    def _follows(self, block: Rows, ending: Ending, found: Part) -> bool:
        """Whether all rows of a change come, after all rows that a window had."""
        lookups = LookUps(self._relations, self._indexes, {})
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
        """Run the stages that were planned since."""
        fresh = [stage for stage in maintenance.stages if stage.relation not in known]
        for stage in fresh:
            _check_size(stage.node)
        for stage in fresh:
            known[stage.relation] = self._evaluator.part(stage.relation, stage.node, known)

    def _finish(
        self,
        block: Block,
        change: Node,
        program: Program | None,
        known: Mapping[str, Part],
        outputs: dict[str, pa.Table],
    ) -> Part:
        node, lookups, reading = self._evaluator.reduced(change, known)
        types = tuple(f.type for f in block.fields)
        table = self._evaluator.computed(node, lookups, types)
        if table is not None:
            moved = self._relations.in_memory(block.relation, table)
            return self._show_change(block, moved, program, known, outputs)
        if program is None:
            return self._evaluator.part_of(block.relation, node, lookups, reading, known)
        return self._presented(block, (node, lookups, reading), program, known, outputs)

    def _rows_stay(self, block: Top) -> bool:
        """Whether it can be told here that no row goes which was among the first."""
        few = block.input.limit is not None and block.input.offset == 0
        return few and all(comparable(f.type) for f in block.fields)

    def _staying(self, block: Top, found: Part) -> tuple[pa.Table, pa.Table] | None:
        """The rows that come, and the first ones so far.

        None if one goes that was among the first, or nobody can tell.
        """
        lookups = LookUps(self._relations, self._indexes, {})
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
        """Sums that were added to here; None if that is left to Spark."""
        if added.table is None:
            return None
        relation = self._relations[block.relation]
        lookups = LookUps(self._relations, self._indexes, {ADDED: added})
        leaf = Leaf(ADDED, tuple(f"c{i}" for i in range(len(block.fields))), When.DELTA)
        wanted = {i: lookups.values(leaf, i) for i in range(len(block.keys))}
        old = lookups.rows(relation, wanted)
        self._evaluator.rows_read += lookups.rows_read
        table = None if old is None else merged(old, added.table, len(block.keys))
        return None if table is None else self._relations.in_memory(block.relation, table)

    def _show_change(
        self,
        block: Block,
        moved: Part,
        program: Program | None,
        known: Mapping[str, Part],
        outputs: dict[str, pa.Table],
    ) -> Part:
        """A change that is known already, and what it changes in the view."""
        if program is None or not moved.rows:
            return moved
        seen = self._evaluator.shown(moved, program.output, program.types)
        if seen is not None:
            _give(canonical(seen), program, outputs)
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
        outputs: dict[str, pa.Table],
    ) -> Part:
        """A change that Spark computes, and what it changes in the view."""
        change, lookups, reading = reduced
        table = self._evaluator.table(known, lookups)
        sql = presented(change, program.output, table, single=reading.small)
        self._evaluator.check_size(sql)
        width = len(change.columns)
        rows = self._evaluator.rows(change, known, lookups)
        found = None
        if rows <= COLLECT_ROWS_MAX:
            found = self._evaluator.execute(sql, COLLECT_ROWS_MAX, reading)
            rows = WRITTEN_ROWS
        if found is None:
            whole = self._evaluator.written(f"{block.relation}$shown", sql, rows, reading)
            frame = self._relations.frame_of(whole)
            stored = frame.select(*frame.columns[: width + 1])
            moved = self._relations.as_run(block.relation, stored, whole.rows)
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

    def _many(self, many: DataFrame, program: Program, rows: int) -> pa.Table:
        """What changes in a view, consolidated; so many rows that they are left on the disk."""
        names = [f"c{i}" for i in range(len(program.types))]
        many = many.toDF(*names, WEIGHT).selectExpr(*canonical_items(program.types), WEIGHT)
        if scalar(program.types):
            sums = many.groupBy(*names).agg(functions.sum(WEIGHT).alias(WEIGHT))
            many = sums.where(f"{WEIGHT} <> 0")
        run = self._relations.runs.write_frame("$shown", many, (), rows)
        return self._rows(Part(program.types, run.rows, run=run))

    def _rows(self, part: Part) -> pa.Table:
        """The rows of a change, mapped if they are on the disk alone."""
        if part.table is None and part.run is not None:
            return mapped(part.run, arrow_schema(part.types))
        return self._relations.arrow(part)


def all_after(old: pa.ChunkedArray, new: pa.ChunkedArray, *, descending: bool) -> bool:
    """Whether all new values come after all old ones; False where Arrow cannot tell.

    Dates and times are compared as the integers they are stored as: those of Python end with the
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


def _check_size(node: Node) -> None:
    if sum(1 for _ in islice(walk(node), NODES_MAX + 1)) > NODES_MAX:
        raise TooLargeError


def _give(view: pa.Table, program: Program, outputs: dict[str, pa.Table]) -> None:
    if view.num_rows:
        outputs[program.view] = view.rename_columns([*program.columns, SHOWN_WEIGHT])
