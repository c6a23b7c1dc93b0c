"""Compute stored relations from their inputs, several at a time.

One query at a time leaves cores idle: while it is planned, while its last task ends, while a result
is read back. So `QUERIES` blocks are computed at once, each by a thread with a session of its own,
because settings and temporary views belong to a session. Spark gives the cores to the query that
started first, and what that cannot use to the next one. So no more tasks run than with one query,
and memory stays bounded by their number.

A block starts when the relations that it reads are complete, and blocks start in the order of their
declaration as far as that allows. What is computed depends on the inputs alone. A view that is
recomputed from its text reads temporary views of the main session, so it waits for all blocks
before it, and all after it wait for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark import SparkContext

from stepwell.errors import ensure
from stepwell.execution.executor import Starting
from stepwell.execution.spark.evaluate import Evaluator
from stepwell.execution.spark.session import activated
from stepwell.lsm.part import Part
from stepwell.lsm.relations import Relations
from stepwell.plan.nodes import Scan, Values, walk
from stepwell.plan.program import Block, Full, Groups, Program, Sums
from stepwell.plan.reasons import about

QUERIES = 2
"""Queries that run at once. More would hold more memory, and two fill the gaps of each other."""
_GROUPS = itertools.count()


@dataclass(frozen=True, slots=True)
class Task:
    """One block to compute."""

    view: str
    block: Block

    reads: frozenset[str]
    """The relations that have to be complete before. For a view recomputed from its text it is
    empty: all blocks before it have to be."""


@dataclass(frozen=True, slots=True)
class _Running:
    task: Task
    evaluator: Evaluator


def tasks_of(programs: Sequence[Program]) -> list[Task]:
    return [
        Task(program.view, block, _reads(block)) for program in programs for block in program.blocks
    ]


def _reads(block: Block) -> frozenset[str]:
    nodes = () if isinstance(block, Full) else walk(block.input)
    return frozenset(node.relation for node in nodes if isinstance(node, Scan))


class Builder:
    """Computes blocks over the current rows of relations."""

    def __init__(
        self,
        relations: Relations,
        main: Evaluator,
        recompute: Callable[[Full], Part],
    ) -> None:
        """`main` computes what reads few rows, for which a second session would cost more than it
        saves; `recompute` computes views from their text."""
        self._relations = relations
        self._main = main
        self._recompute = recompute

    def build(self, tasks: Sequence[Task], starting: Starting) -> None:
        """Compute blocks, listed after those that they read, and replace what is stored for them.

        `starting` is called with the name of each view, in order, before it is computed. What it
        raises ends the build, as an error of a query does: that of the first block that failed.
        """
        views = iter(dict.fromkeys(task.view for task in tasks))
        told: set[str] = set()
        waiting = list(tasks)
        running: dict[Future[Part], _Running] = {}
        for task in tasks:
            self._relations[task.block.relation].parts = []
        # With a build end its sessions: their frames hold the files of runs.
        idle: list[Evaluator] = []
        with self._pool() as pool:
            while waiting or running:
                next_one = self._next(waiting, [one.task for one in running.values()])
                if next_one is None:
                    idle += self._finish(running)
                    continue
                while next_one.view not in told:
                    view = next(views)
                    starting(view)
                    told.add(view)
                waiting.remove(next_one)
                if self._is_small(next_one):
                    self._compute_here(next_one)
                else:
                    evaluator = idle.pop() if idle else self._main.in_own_session()
                    future = pool.submit(_compute_in_thread, next_one, evaluator)
                    running[future] = _Running(next_one, evaluator)

    def _next(self, waiting: Sequence[Task], running: Sequence[Task]) -> Task | None:
        """The next block that can start now."""
        incomplete = {task.block.relation for task in (*waiting, *running)}
        for number, task in enumerate(waiting):
            if isinstance(task.block, Full):
                return task if not number and not running else None
            if not task.reads & incomplete and (len(running) < QUERIES or self._is_small(task)):
                return task
        return None

    def _is_small(self, task: Task) -> bool:
        return sum(self._relations[r].rows for r in task.reads) <= self._main.limits.small_rows_max

    def _is_empty(self, task: Task) -> bool:
        """Whether a relation's inputs are empty, so that it has no rows."""
        block = task.block
        if isinstance(block, Full) or (isinstance(block, Sums | Groups) and not block.keys):
            return False
        given = any(isinstance(node, Values) for node in walk(block.input))
        return not given and not any(self._relations[name].parts for name in task.reads)

    def _compute_here(self, task: Task) -> None:
        if self._is_empty(task):
            # Almost always the case when a pipeline is opened: its rows are loaded later.
            return
        if isinstance(task.block, Full):
            with about(task.view):
                part = self._recompute(task.block)
        else:
            part = _computed(task, self._main)
        self._relations.append(task.block.relation, part)

    def _finish(self, running: dict[Future[Part], _Running]) -> list[Evaluator]:
        """Wait for a running block, store what ended, and return the evaluators that are idle."""
        ensure(bool(running), "a block waits for others only")
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        if any(future.exception() is not None for future in done):
            # One that started earlier may fail as well, and would have been the first.
            done, _ = wait(running)
        idle = []
        for future in [future for future in running if future in done]:
            ended = running.pop(future)
            self._main.queries += ended.evaluator.queries
            ended.evaluator.queries = 0
            self._relations.append(ended.task.block.relation, future.result())
            idle.append(ended.evaluator)
        return idle

    @contextmanager
    def _pool(self) -> Iterator[ThreadPoolExecutor]:
        """Threads whose queries are cancelled if the build is."""
        group = f"stepwell-build-{next(_GROUPS)}"
        context: SparkContext = self._main.spark.sparkContext

        def begin() -> None:
            # A group belongs to a thread: PySpark gives each one of Python its own in Java.
            context.setJobGroup(group, "building views")

        with ThreadPoolExecutor(QUERIES, "stepwell-build", initializer=begin) as pool:
            try:
                yield pool
            except BaseException:
                context.cancelJobGroup(group)
                raise


def _computed(task: Task, evaluator: Evaluator) -> Part:
    with about(task.view):
        whole = evaluator.maintenance(task.block, {}).whole(task.block)
        with evaluator.computing(task.block), evaluator.recomputing():
            return evaluator.part(task.block.relation, whole, {})


def _compute_in_thread(task: Task, evaluator: Evaluator) -> Part:
    with activated(evaluator.spark), evaluator.sharing():
        return _computed(task, evaluator)
