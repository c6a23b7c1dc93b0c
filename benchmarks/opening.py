"""How long does opening take, compared with Spark computing the same SELECTs once?

    .venv/bin/python benchmarks/opening.py [--scale 0.1] [--rounds 2] [--views q01,q03] [--json]

All 22 views of TPC-H over tables from Parquet files, in one Spark session on two threads. In turns:
Spark computes each view's own SELECT once and fetches the result, then the views are opened: their
tables are loaded, their queries compiled, and all that is stored for them is computed. The first
round warms both up and does not count. CPU time is that of this process and of Java; on a shared
machine its ratio means more than that of the clock.

Loading the tables is told apart from computing the views: Spark has nothing like it. Phases are
measured without those inside them, in seconds of the threads that run them. A view's queries run in
several threads at once, so these seconds may add up to more than the clock shows.
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

import _changes
import _rivals
import _tpch
from _measure import Table, machine, print_tables, say
from rivals import DATA
from stepwell.execution.spark import building
from stepwell.execution.spark.compiler import Compiler
from stepwell.execution.spark.evaluate import Evaluator
from stepwell.execution.spark.frames import Frames
from stepwell.execution.spark.runs import LocalRuns
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.execution.spark.views import Views
from stepwell.lsm.index import RunIndex

LOADING = "tables"
PHASES = ("compile", "plan", "collect", "write", "read back", "index", "local", "other")


@dataclass(slots=True)
class Phases:
    """Seconds by view and phase, each without the phases inside it."""

    seconds: Counter[tuple[str, str]] = field(default_factory=Counter)
    queries: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _here: threading.local = field(default_factory=threading.local)

    def wrap(self, owner: object, name: str, phase: str, view: Callable[..., str] | None) -> None:
        """Time a method from now on. `view` tells from its arguments for which view it works."""
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def timed(*given: Any, **named: Any) -> Any:
            with self._within(phase, None if view is None else view(*given)):
                return plain(*given, **named)

        setattr(owner, name, timed)

    @contextmanager
    def _within(self, phase: str, view: str | None) -> Iterator[None]:
        stack = self._here.__dict__.setdefault("stack", [])
        outer = stack[-1] if stack else None
        whose = view or (outer[0] if outer else "")
        frame = [whose, 0.0]
        stack.append(frame)
        begin = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - begin
            stack.pop()
            if outer is not None:
                outer[1] += took
            with self._lock:
                self.seconds[whose, phase] += took - frame[1]
                self.queries[whose] += phase in ("collect", "write")


def _instrumented() -> Phases:
    phases = Phases()
    phases.wrap(Views, "_load", "other", lambda *_: LOADING)
    phases.wrap(building, "_computed", "other", lambda task, _: task.view)
    phases.wrap(Compiler, "analyse", "compile", lambda _, view, *__: view.name)
    phases.wrap(Compiler, "compile", "compile", lambda _, view, *__: view.name)
    phases.wrap(Evaluator, "reduced", "plan", None)
    phases.wrap(Evaluator, "_fetched", "collect", None)
    phases.wrap(LocalRuns, "write_frame", "write", None)
    phases.wrap(Frames, "as_run", "read back", None)
    phases.wrap(RunIndex, "_built", "index", None)
    phases.wrap(Evaluator, "run_locally", "local", None)
    return phases


@dataclass(frozen=True, slots=True)
class Cost:
    wall: float
    cpu: float


def _cost(action: Callable[[], object]) -> Cost:
    begin, cpu = time.perf_counter(), _rivals.cpu_seconds()
    action()
    return Cost(time.perf_counter() - begin, _rivals.cpu_seconds() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.1, help="TPC-H scale factor")
    parser.add_argument("--rounds", type=int, default=2, help="after one to warm up")
    parser.add_argument("--views", default="", help="only these, as in q01,q03")
    parser.add_argument("--json", action="store_true", help="the tables as JSON")
    arguments = parser.parse_args()
    say(machine())
    names = arguments.views.split(",") if arguments.views else sorted(_rivals.STATEMENTS)
    spark = open_session(SessionSettings("local[2]", driver_memory=_rivals.DRIVER_MEMORY))
    print_tables(_measured(spark, arguments.scale, arguments.rounds, names), as_json=arguments.json)
    if not arguments.json:
        print(machine())


def _measured(spark: SparkSession, scale: float, rounds: int, names: Sequence[str]) -> list[Table]:
    files = _tpch.generate(DATA, scale)
    asked = [_rivals.STATEMENTS[name] for name in names]
    read = sorted(t for t in files if any(re.search(rf"\b{t}\b", text) for text in asked))
    text = "\n".join([(_tpch.SQL / "schema.sql").read_text("utf-8"), *asked])
    phases, queries = _instrumented(), {n: _changes.query_of(_rivals.STATEMENTS[n]) for n in names}
    for table in read:
        spark.read.parquet(str(files[table])).createOrReplaceTempView(table)

    def opened() -> Views:
        return Views.open(spark, text, tables={t: spark.table(t) for t in read})

    theirs: dict[str, list[Cost]] = {name: [] for name in names}
    ours: list[Cost] = []
    for number in range(rounds + 1):
        if number == 1:
            phases.seconds.clear()
            phases.queries.clear()
        for name, query in queries.items():
            cost = _cost(lambda query=query: spark.sql(query).toArrow())
            if number:
                theirs[name].append(cost)
        say(f"  round {number}: Spark has computed {len(names)} SELECTs")
        cost = _cost(opened)
        say(f"  round {number}: opened in {cost.wall:.1f} s, {cost.cpu:.1f} s of CPU")
        if number:
            ours.append(cost)
    return [_by_phase(phases, theirs, rounds, scale), _against(phases, theirs, ours, rounds, scale)]


def _by_phase(phases: Phases, theirs: dict[str, list[Cost]], rounds: int, scale: float) -> Table:
    table = Table(
        f"Opening at scale {scale:g}: seconds by view and phase",
        ("view", *PHASES, "sum", "queries", "SELECT s", "SELECT CPU s"),
        "Compile: analysis and plans. Plan: look-ups that reduce a plan. Collect: queries whose "
        "result comes to this process. Write: queries whose result Spark writes as a run.",
    )
    known = {view for view, _ in phases.seconds} - {LOADING}
    for view in [LOADING, *sorted(known)]:
        seconds = [phases.seconds[view, phase] / rounds for phase in PHASES]
        of_spark: list[float | None] = [None, None]
        if view in theirs:
            costs = theirs[view]
            of_spark = [statistics.median(c.wall for c in costs), _median_cpu(costs)]
        table.add(view, *seconds, sum(seconds), phases.queries[view] // rounds, *of_spark)
    return table


def _median_cpu(costs: Sequence[Cost]) -> float:
    return statistics.median(c.cpu for c in costs)


def _against(
    phases: Phases, theirs: dict[str, list[Cost]], ours: list[Cost], rounds: int, scale: float
) -> Table:
    table = Table(
        f"Opening at scale {scale:g}, against {len(theirs)} SELECTs in Spark",
        ("", "s", "CPU s", "times Spark's s", "times Spark's CPU s"),
    )
    wall = sum(statistics.median(c.wall for c in costs) for costs in theirs.values())
    cpu = sum(map(_median_cpu, theirs.values()))
    table.add("SELECTs in Spark", wall, cpu, 1.0, 1.0)
    own, own_cpu = statistics.median(c.wall for c in ours), _median_cpu(ours)
    table.add("opening", own, own_cpu, own / wall, own_cpu / cpu)
    loading = sum(s for (view, _), s in phases.seconds.items() if view == LOADING) / rounds
    table.add("of it the views", own - loading, None, (own - loading) / wall, None)
    return table


if __name__ == "__main__":
    main()
