"""Decide what the local backend computes when a view is deployed: run its maintenance over no rows.

The plans of a block are the ones of a real transaction (`plan/maintain`), and they run through the
same code, over empty tables of the right types: what it refuses there, it refuses for any rows, and
what it runs there, it runs for any rows. Sizes only change the order in which a join folds its
inputs. Whether it can depends on each input alone, and conditions that no look-up uses become
filters in any order. Stored relations are files that hold no rows: a plan that does not look into
them by an index needs them whole, and that is recorded as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
from sqlglot import exp

from stepwell.execution.backend import (
    CannotRunError,
    Declined,
    Fallback,
    No,
    NotSupported,
    Support,
    Yes,
)
from stepwell.execution.local.accumulate import mergeable
from stepwell.execution.local.backend import LocalBackend
from stepwell.execution.local.lookup import LookUps
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.run_file import RunFiles
from stepwell.plan.column_names import ColumnNames, Tracing, renamed
from stepwell.plan.cost import Costs, rows_of, rows_to_recompute
from stepwell.plan.explain import Backends, Chosen, Decided, Explained, LookUp, explain
from stepwell.plan.identity import by_identity
from stepwell.plan.join_order import Estimates
from stepwell.plan.maintain import Maintenance
from stepwell.plan.nodes import Names, Node, Scan, operators, walk
from stepwell.plan.program import Block, Full, Program, Rows, Sums, Top

VERSION = 3
"""Increment when the local backend computes more or less than before. Decisions that are stored
with another version are made again when a pipeline is opened."""
Types = Callable[[str], tuple[str, ...]]
"""Returns the column types of a stored relation."""
_STORED_ROWS = 1_000_000
_ALONE_MAX = 8
"""A block with more inputs is decided on for a change of all of them only: a decision for each of
them would take time quadratic in their number."""
_RECOMPUTED = No("the view is recomputed")


@dataclass(frozen=True, slots=True)
class Decision:
    """How the change of a block is computed when some of its inputs change."""

    support: Support
    lookups: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    """The relations that rows are looked up in, with the positions of the columns."""
    whole: frozenset[str] = frozenset()
    """The relations that are read without a look-up. If they are not in memory, Spark does it."""


@dataclass(slots=True)
class Decisions:
    """The decisions for all blocks of a pipeline.

    They are made when a program is deployed and stored with it (`plan/described`). A process that
    opens the pipeline uses the stored ones, unless another `VERSION` of the local backend made
    them. For each block there is one for a change of each input alone, and one for a change of all.
    A combination of inputs is computed locally if each of them alone is, and all of them together.
    """

    backend: LocalBackend
    types: Types
    unique: Callable[[], Mapping[str, tuple[int, ...]]]
    names: ColumnNames
    _stored: Mapping[str, Decided] = field(default_factory=dict)
    _programs: dict[str, Program] = field(default_factory=dict)
    """The program of each relation that a block maintains."""
    _decided: dict[str, Decided] = field(default_factory=dict)
    """By view."""

    def add(self, program: Program) -> None:
        """Add a program. It is decided on when a decision is first needed."""
        self._programs |= {block.relation: program for block in program.blocks}

    def use(self, stored: Mapping[str, Decided]) -> None:
        """Use decisions that are stored with the program, by lower-case name of the view."""
        self._stored = stored
        self._decided.clear()

    def decided(self, program: Program) -> Decided:
        """The decisions for a view: the stored ones, or made now."""
        known = self._decided.get(program.view)
        if known is None:
            known = self._stored.get(program.view.lower())
            if known is None or not _fits(known, program):
                blocks = {block.relation: self._backends(block) for block in program.blocks}
                known = Decided(_chosen(self._show(program)), blocks)
            self._decided[program.view] = known
        return known

    def support(self, block: Block, changed: Iterable[str]) -> Support:
        """Whether the local backend computes a change of these relations."""
        if isinstance(block, Full):
            return _RECOMPUTED
        decided = self.decided(self._programs[block.relation]).blocks[block.relation]
        made = {frozenset(chosen.changed): _support(chosen) for chosen in decided.chosen}
        reads = _reads(block)
        inputs = reads.intersection(changed)
        if inputs in made:
            return made[inputs]
        parts = [*(frozenset({name}) for name in sorted(inputs)), reads]
        known = [made[part] for part in parts if part in made]
        refused = (support for support in known if isinstance(support, No))
        return next(refused, Yes())

    def shown(self, program: Program) -> Support:
        """Whether the local backend computes the output of a view from its stored relation."""
        return _support(self.decided(program).shown)

    def explain(self, program: Program) -> Explained:
        """How a view is maintained, and by which backends."""
        return explain(program, self.names, self.decided(program))

    def _backends(self, block: Block) -> Backends:
        """Decide for a change of each input of a block, and of all of them."""
        if isinstance(block, Full):
            return Backends((Chosen((), _RECOMPUTED.reason),))
        made = {changed: self.for_change(block, changed) for changed in _changes(block)}
        lookups = sorted({lookup for decision in made.values() for lookup in decision.lookups})
        return Backends(
            tuple(_chosen(decision.support, changed) for changed, decision in made.items()),
            tuple(LookUp(relation, self._columns(relation, at)) for relation, at in lookups),
            tuple(sorted({name for decision in made.values() for name in decision.whole})),
            self._recompute_rows(block, made.values()),
        )

    def _recompute_rows(self, block: Block, made: Iterable[Decision]) -> int:
        """The number of rows up to which Spark recomputes a block instead of planning a change."""
        if isinstance(block, Full | Top) or all(isinstance(d.support, Yes) for d in made):
            return 0
        reads = _reads(block)
        rows = dict.fromkeys((*reads, block.relation), _STORED_ROWS)
        estimates = Estimates(rows, dict.fromkeys(reads, 1), self.unique())
        maintenance = Maintenance(Names(prefix="_m"), reads, estimates)
        change, recomputed = maintenance.plan(block), maintenance.recomputed(block)
        if change is None or recomputed is None:
            return 0
        sizes = [operators(stage.node) for stage in maintenance.stages]
        return rows_to_recompute(sum(sizes) + operators(change), operators(recomputed))

    def recomputes(
        self, block: Block, changed: Iterable[str], rows: Mapping[str, int]
    ) -> Costs | None:
        """Both estimates, if a block is recomputed because planning its change costs more."""
        if isinstance(block, Full | Top) or isinstance(self.support(block, changed), Yes):
            return None
        backends = self.decided(self._programs[block.relation]).blocks[block.relation]
        read = rows_of(block, rows)
        if read > backends.recompute_rows or not backends.recompute_rows:
            return None
        return Costs(incremental=backends.recompute_rows, recompute=read)

    def _columns(self, relation: str, places: Sequence[int]) -> tuple[str, ...]:
        names = self.names.texts(relation, len(self.types(relation)))
        return tuple(names[place] for place in places)

    def for_change(self, block: Block, changed: frozenset[str]) -> Decision:
        """Decide with all relations in memory, and with all of them in files; both must run."""
        looked = _Lookups()
        support, _ = self._run(block, changed, looked, held=True)
        filed, whole = self._run(block, changed, looked, held=False)
        if isinstance(filed, No):
            support = filed
        if isinstance(block, Sums) and block.keys and isinstance(support, Yes):
            looked.made.add((block.relation, block.key))
        return Decision(support, frozenset(looked.made), whole)

    def _run(
        self, block: Block, changed: frozenset[str], looked: _Lookups, *, held: bool
    ) -> tuple[Support, frozenset[str]]:
        """Whether all plans of a block run, and the stored relations that they read whole."""
        inputs = _reads(block) | {block.relation}
        if isinstance(block, Rows) and block.ending is not None:
            inputs |= {block.ending.relation}
        relations = {name: self._relation(name, held=held) for name in inputs}
        deltas = {name: _nothing(self.types(name)) for name in changed}
        estimates = Estimates(
            dict.fromkeys(inputs, _STORED_ROWS), dict.fromkeys(changed, 1), self.unique()
        )
        maintenance = Maintenance(Names(prefix="_m"), changed, estimates)
        whole: set[str] = set()
        run: dict[str, Node] = {}
        for number, plan in enumerate(_plans(block, maintenance)):
            fresh = [s for s in maintenance.stages if s.relation not in deltas]
            for name, node in [*((s.relation, s.node) for s in fresh), ("", plan)]:
                lookups = LookUps(relations, looked, deltas)  # type: ignore[arg-type]
                run[name] = node
                try:
                    reduced = self.backend.reduced(node, lookups)
                    deltas[name] = self.backend.run(reduced, lookups)
                except Declined as declined:
                    whole |= lookups.whole & inputs if not number else set()
                    if declined.fallback is Fallback.ROWS_ELSEWHERE and not held:
                        return Yes(), frozenset(whole)
                    return No(str(declined)), frozenset(whole)
                except NotSupported as error:
                    return No(self._renamed(str(error), run)), frozenset(whole)
                if not number:
                    whole |= lookups.whole & inputs
        return Yes(), frozenset(whole)

    def _renamed(self, reason: str, run: Mapping[str, Node]) -> str:
        """A reason in the user's column names; `run` are the stages so far and the last plan."""
        if re.search(r"\b_\w", reason) is None:
            return reason
        stages: dict[str, Sequence[exp.Expr]] = {}
        for name, node in run.items():
            tracing = Tracing(self.names, node, stages=stages)
            reason = renamed(reason, node, tracing)
            stages[name] = [tracing.of(node)[column] for column in node.columns]
        return reason

    def _relation(self, name: str, *, held: bool) -> Relation:
        types = self.types(name)
        run = RunFiles((), 0, identity=name)
        parts = [] if held else [Part(types, _STORED_ROWS, run=run)]
        return Relation(name, types, (), parts)

    def _show(self, program: Program) -> Support:
        if isinstance(program.shown, Full):
            return _RECOMPUTED
        try:
            types = self.types(program.shown.relation)
            self.backend.show(_nothing(types), program.output, program.types)
        except CannotRunError as error:
            tracing = Tracing(self.names, program.output, view=program)
            return No(renamed(str(error), program.output, tracing))
        return Yes()


def _fits(decided: Decided, program: Program) -> bool:
    """Whether decisions are for the blocks of a program."""
    inputs: dict[str, list[frozenset[str]]] = {
        block.relation: [frozenset()] if isinstance(block, Full) else _changes(block)
        for block in program.blocks
    }
    return inputs == {
        relation: [frozenset(chosen.changed) for chosen in backends.chosen]
        for relation, backends in decided.blocks.items()
    }


def _changes(block: Block) -> list[frozenset[str]]:
    """The changes of a block's inputs for which a decision is made."""
    reads = _reads(block)
    alone = sorted(reads) if len(reads) <= _ALONE_MAX else []
    return list(dict.fromkeys([*(frozenset({name}) for name in alone), reads]))


def _support(chosen: Chosen) -> Support:
    return Yes() if chosen.reason is None else No(chosen.reason)


def _chosen(support: Support, changed: Iterable[str] = ()) -> Chosen:
    """A decision as `explain` shows it."""
    return Chosen(tuple(sorted(changed)), support.reason if isinstance(support, No) else None)


def _plans(block: Block, maintenance: Maintenance) -> Iterator[Node]:
    """The plans that maintain a block, as `blocks` runs them; the usual one first.

    `maintenance` has the stages of the plan that was returned last.
    """
    if isinstance(block, Sums) and mergeable(tuple(f.type for f in block.fields), len(block.keys)):
        plans = [partial(maintenance.summed, block)]
    elif isinstance(block, Top):
        # The other one is for changes that may retract one of the first rows.
        plans = [partial(maintenance.candidates, block), partial(maintenance.plan, block)]
    else:
        plans = [partial(maintenance.plan, block)]
    for plan in plans:
        found = plan()
        if found is not None:
            yield found


@by_identity
def _reads(block: Block) -> frozenset[str]:
    if isinstance(block, Full):
        return frozenset()
    return frozenset(n.relation for n in walk(block.input) if isinstance(n, Scan))


def _nothing(types: tuple[str, ...]) -> Part:
    return Part(types, 0, arrow_schema(types).empty_table())


class _Lookups:
    """Stands for `lsm.index.Indexes` over files without rows; records what is looked up."""

    def __init__(self) -> None:
        self.made: set[tuple[str, tuple[int, ...]]] = set()

    def of(self, run: RunFiles, schema: pa.Schema) -> _Index:
        return _Index(run.identity or "", self.made)


class _Index:
    def __init__(self, relation: str, made: set[tuple[str, tuple[int, ...]]]) -> None:
        self._relation = relation
        self._made = made
        self._columns: list[int] = []

    def count(self, column: int, values: pa.Array) -> int:
        self._columns.append(column)
        return 0

    def find(self, column: int, values: pa.Array, most: int) -> np.ndarray:
        self._made.add((self._relation, tuple(sorted(self._columns))))
        return np.empty(0, dtype=np.int64)
