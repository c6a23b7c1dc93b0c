"""How fast are views brought up to date against recomputing them, in DuckDB and in Spark?

    .venv/bin/python benchmarks/rivals.py [--only changes] [--scale 1] [--changes 1,100,0.1%]
                                          [--plot FILE] [--quick] [--json]

    changes    the 22 views of TPC-H; orders with their lines come, and as many go: 1, 100, 0.01 %,
               0.1 %, 1 % and 10 % of them. Stepwell and DuckDB in turns, and Spark
    pipeline   one row at a time through a pipeline with a journal, opened again; also --pipeline
    sdp        `spark-pipelines run` with the same views, the whole command; only if asked for

Every system runs in a process of its own on the same two cores and is given the same files and
the same changes. DuckDB has native tables. It applies the change and recomputes each view that
reads a changed table into a table (line 1); with the difference to the result before, which a sink
needs, it is line 2. Spark runs each view's SELECT over the Parquet files, as `views.py` does. Row
counts and sums of all columns are compared, before the first change and after each kind of change;
if they differ, the run ends with an error. Ratios are the rival's time by ours.

At scale 1 this takes some 12 GB, at scale 10 all of 24, most of it for changes of 10 %, which
`--changes` can leave out. The data is made once and kept in `.bench-data/`. DuckDB comes with the
extra `bench`; `sdp` needs `pip install 'pyspark[pipelines]'`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

import _changes
import _rivals
import _tpch
from _measure import Table, Times, say, section_parser, show_sections, workspace
from _plot import break_even
from _rivals import QUERIES, STATEMENTS, TOUCHED, Applied, Memory, Opened, Process

DATA = Path(__file__).resolve().parent.parent / ".bench-data"
CHANGES = "1,100,0.01%,0.1%,1%,10%"
DETAILED = "0.1%"
"""The change whose views are shown one by one."""
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Options:
    scale: float
    quick: bool
    changes: Sequence[str]
    plot: Path | None

    def rounds(self, share: float) -> int:
        if share >= 0.1:
            return 1 if self.quick or self.scale > 1 else 3
        return 2 if self.quick else 7


def main() -> None:
    parser = section_parser(__doc__ or "", SECTIONS)
    parser.add_argument(
        "--pipeline", dest="only", action="store_const", const="pipeline", help="--only pipeline"
    )
    parser.add_argument("--scale", type=float, help="TPC-H scale factor (1, or 0.1 if quick)")
    parser.add_argument(
        "--changes",
        type=_sizes,
        default=_sizes(CHANGES),
        help=f"how many orders: {CHANGES.replace('%', '%%')}",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="the break-even curve as SVG")
    arguments = parser.parse_args()
    scale = arguments.scale or (0.1 if arguments.quick else 1.0)
    options = Options(scale, arguments.quick, arguments.changes, arguments.plot)
    with workspace() as directory:
        show_sections(arguments, DEFAULT, lambda name: SECTIONS[name](directory / name, options))


def _sizes(text: str) -> Sequence[str]:
    sizes = [size.strip() for size in text.split(",")]
    for size in sizes:
        try:
            valid = orders_of(size, 1_000_000) > 0
        except ValueError:
            valid = False
        if not valid:
            raise argparse.ArgumentTypeError(f"expected a number of orders or percents: {size}")
    return sizes


def orders_of(size: str, order_count: int) -> int:
    """The number of orders that a change has: `100`, or `0.1%` of all, at least one."""
    if size.endswith("%"):
        share = float(size.removesuffix("%")) / 100
        return max(1, round(share * order_count)) if share > 0 else 0
    return int(size)


class Orders:
    """Draws changes and writes each where the systems read it."""

    def __init__(self, folder: Path, scale: float, largest: float = 0.0) -> None:
        """`largest` is the largest share of the orders that a change will have."""
        self.files = _tpch.generate(DATA, scale)
        # Prime, since the keys of orders have a pattern. Half of what is loaded may go at once.
        one_in = 1 if scale <= 1 else 47 if largest <= 0.01 else 5
        tables = (
            _tpch.load(DATA, scale) if one_in == 1 else _tpch.load_some_orders(DATA, scale, one_in)
        )
        self._changes = _tpch.Changes(tables)
        self._folder = folder
        self._number = 0

    def in_and_out(self, count: int) -> Path:
        """So many orders come, and as many go, with their lines."""
        # First those that go, so that no order comes and goes at once.
        gone = self._changes.delete_orders(count / self._changes.count("orders"))
        new = self._changes.new_orders(count / self._changes.count("orders"))
        return self._written(_changes.together(new, gone))

    def updated(self, table: str) -> Path:
        """One row gets other values."""
        return self._written(self._changes.updates(table, 1))

    def _written(self, change: Mapping[str, _changes.Change]) -> Path:
        self._number += 1
        return _rivals.write_change(self._folder / f"change-{self._number}", change)


# --- changes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """One size of a change, by all systems."""

    size: str
    orders: int
    share: float
    ours: Sequence[Applied]
    duckdb: Sequence[Applied]
    spark: Mapping[str, float]

    def ratios(self, rival: str) -> dict[str, float]:
        """The rival's time by ours, by view."""
        return {view: self.theirs(rival, view) / self.our_seconds(view) for view in TOUCHED}

    def our_seconds(self, view: str) -> float:
        return statistics.median(applied.views[view] for applied in self.ours)

    def theirs(self, rival: str, view: str) -> float:
        match rival:
            case "DuckDB":
                return statistics.median(applied.views[view] for applied in self.duckdb)
            case "DuckDB, difference":
                return statistics.median(a.with_difference[view] for a in self.duckdb)
            case _:
                return self.spark[view]


RIVALS = ("DuckDB", "DuckDB, difference", "Spark")


def changes(folder: Path, options: Options) -> list[Table]:
    _rivals.import_duckdb()
    files = _tpch.generate(DATA, options.scale)
    count = pq.read_metadata(files["orders"]).num_rows
    sizes = {size: orders_of(size, count) for size in options.changes}
    opened: dict[str, Opened] = {}
    used: dict[str, Memory] = {}
    with Process(_rivals.Spark, files) as spark:
        opened["Spark"] = spark.call("open")
        say(f"  Spark: all views once in {opened['Spark'].seconds:.1f} s")
        recomputed = spark.call("recompute", 1 if options.quick or options.scale > 1 else 3)
        answers = spark.call("answers")
        used["Spark"] = spark.call("memory")
    with ExitStack() as stack:
        systems = {
            "Stepwell": stack.enter_context(Process(_rivals.Stepwell, files)),
            "DuckDB": stack.enter_context(Process(_rivals.DuckDB, files, folder / "duckdb")),
        }
        for name, system in systems.items():
            opened[name] = system.call("open")
            say(f"  {name}: opened in {opened[name].seconds:.1f} s")
            _rivals.check_same({"Spark": answers, name: system.call("answers")}, list(QUERIES))
        orders = Orders(folder, options.scale, max(sizes.values()) / count)
        measured = []
        for size, of_these in sizes.items():
            share = of_these / count
            rounds = options.rounds(share)
            warm_up = 0 if share >= 0.1 and options.scale > 1 else 1 if measured else WARM_UP
            done = _in_turns(systems, lambda n=of_these: orders.in_and_out(n), rounds, warm_up)
            now = {name: system.call("answers") for name, system in systems.items()}
            _rivals.check_same(now, TOUCHED)
            measured.append(
                Measured(size, of_these, share, done["Stepwell"], done["DuckDB"], recomputed)
            )
            say(f"  {size}: {', '.join(_means(measured[-1]))} times")
        used |= {name: system.call("memory") for name, system in systems.items()}
    tables = [_by_change(options, measured)]
    tables += [_by_view(options, one) for one in measured if one.size == DETAILED]
    tables.append(_costs(options, opened, used))
    if options.plot is not None:
        options.plot.write_text(_plotted(options, measured), encoding="utf-8")
    return tables


def _in_turns(
    systems: Mapping[str, Process], draw: Callable[[], Path], rounds: int, warm_up: int
) -> dict[str, list[Applied]]:
    """Give each change to all systems, one after another, in a random order."""
    order = list(systems)
    shuffler = random.Random(1)
    done: dict[str, list[Applied]] = {name: [] for name in systems}
    for number in range(warm_up + rounds):
        change = draw()
        shuffler.shuffle(order)
        for name in order:
            applied = systems[name].call("apply", change)
            if number >= warm_up:
                done[name].append(applied)
        shutil.rmtree(change)
    return done


def _by_change(options: Options, measured: Sequence[Measured]) -> Table:
    table = Table(
        f"TPC-H at scale {options.scale:g}: a rival's time by ours, geometric mean over "
        f"{len(TOUCHED)} views",
        (
            "orders in and out",
            "share",
            *RIVALS,
            "least, DuckDB",
            "our s",
            "DuckDB s",
            "our CPU s",
            "DuckDB CPU s",
        ),
        f"The {len(TOUCHED)} views are those that read orders or lines, whether or not a row of "
        "the change passes their filters. Seconds are those of the whole change: tables, views "
        "and difference; ours has all 22 views. Least: the view with the lowest ratio to DuckDB's "
        f"recompute. {_rivals.THREADS} threads; DuckDB may use {_rivals.DUCKDB_MEMORY}.",
    )
    for one in measured:
        least, view = min((r, view) for view, r in one.ratios("DuckDB").items())
        table.add(
            one.orders,
            f"{100 * one.share:.3g} %",
            *(_mean(one.ratios(rival)) for rival in RIVALS),
            f"{least:.2f} {view}",
            statistics.median(a.seconds for a in one.ours),
            statistics.median(a.seconds for a in one.duckdb),
            statistics.fmean(a.cpu for a in one.ours),
            statistics.fmean(a.cpu for a in one.duckdb),
        )
    return table


def _by_view(options: Options, one: Measured) -> Table:
    table = Table(
        f"TPC-H at scale {options.scale:g}, {one.size} of the orders in and out: milliseconds",
        ("view", "ours", *RIVALS, *(f"by {rival}" for rival in RIVALS)),
        "By a rival: its time by ours.",
    )
    for view in TOUCHED:
        theirs = [one.theirs(rival, view) for rival in RIVALS]
        ours = one.our_seconds(view)
        table.add(view, 1000 * ours, *(1000 * t for t in theirs), *(t / ours for t in theirs))
    return table


def _costs(options: Options, opened: Mapping[str, Opened], used: Mapping[str, Memory]) -> Table:
    table = Table(
        f"TPC-H at scale {options.scale:g}: opening, and memory until the end",
        ("", "s", "by Spark", "CPU s", "peak GB", "Java's peak GB", "held GB"),
        "Opening is, for Stepwell, loading the tables and computing all 22 views; for DuckDB the "
        "same; for Spark, computing their SELECTs once. Starting Spark is not included. Held is "
        "what a process has at the end, without Java and without mapped files.",
    )
    for name in ("Stepwell", "DuckDB", "Spark"):
        seconds, memory = opened[name].seconds, used[name]
        by_spark = seconds / opened["Spark"].seconds
        cpu, peaks = opened[name].cpu, (memory.peak, memory.peak_java or None)
        table.add(name, seconds, by_spark, cpu, *peaks, memory.held)
    return table


def _plotted(options: Options, measured: Sequence[Measured]) -> str:
    ordered = sorted(measured, key=lambda one: one.share)
    lines = {rival: [(one.share, _mean(one.ratios(rival))) for one in ordered] for rival in RIVALS}
    return break_even(
        f"TPC-H at scale {options.scale:g}: time to recompute by time to maintain",
        "orders that come, and as many that go",
        "times faster, geometric mean",
        lines,
    )


def _mean(ratios: Mapping[str, float]) -> float:
    return statistics.geometric_mean(ratios.values())


def _means(one: Measured) -> list[str]:
    return [f"{rival} {_mean(one.ratios(rival)):.2f}" for rival in RIVALS]


# --- a pipeline with a journal --------------------------------------------------------------------


def pipeline(folder: Path, options: Options) -> list[Table]:
    orders = Orders(folder, options.scale)
    rounds = 5 if options.quick else 50
    project = folder / "project"
    with Process(_rivals.Durable, project, orders.files) as first:
        loaded, deployed = first.call("load")
    say(f"  loaded in {loaded:.1f} s, views deployed in {deployed:.1f} s")
    draws: dict[str, Callable[[], Path]] = {
        "one order updated": lambda: orders.updated("orders"),
        "one line updated": lambda: orders.updated("lineitem"),
        "one order in, one out, with lines": lambda: orders.in_and_out(1),
    }
    with Process(_rivals.Durable, project, orders.files) as again:
        opened = again.call("open")
        starting = [again.call("apply", draw())[0] for draw in draws.values()]
        say(f"  opened again in {opened:.2f} s, first transaction in {starting[0]:.3f} s")
        for _ in range(WARM_UP):
            for draw in draws.values():
                again.call("apply", draw())
        seconds: dict[str, list[float]] = {name: [] for name in draws}
        cpu: dict[str, list[float]] = {name: [] for name in draws}
        for _ in range(rounds):
            for name, draw in draws.items():
                took, used = again.call("apply", draw())
                seconds[name].append(took)
                cpu[name].append(used)
        again.call("close")
    table = Table(
        f"TPC-H at scale {options.scale:g}, 22 views: one transaction with its journal",
        ("change", "p50 ms", "p99 ms", "CPU ms", "first ms", "first by p50"),
        f"A project with a local store: tables loaded in {loaded:.1f} s, views deployed in "
        f"{deployed:.1f} s; opened again by another process in {opened:.2f} s, whose Spark had "
        "started. First: the first transactions after that, one of each kind.",
    )
    for (name, values), begun in zip(seconds.items(), starting, strict=True):
        times = Times(tuple(values))
        p99, mean = times.percentile(99), statistics.fmean(cpu[name])
        row = (times.median, p99, mean, begun)
        table.add(name, *(1000 * value for value in row), begun / times.median)
    return [table]


# --- spark-pipelines ------------------------------------------------------------------------------

SOURCES = """from pyspark import pipelines
from pyspark.sql import SparkSession

spark = SparkSession.active()


def declare(table, file):
    @pipelines.temporary_view(name=table)
    def rows():
        return spark.read.parquet(file)


for table, file in {files!r}.items():
    declare(table, file)
"""


def sdp(folder: Path, options: Options) -> list[Table]:
    """Every run has a new folder: under the default catalog a second one finds it occupied."""
    table = Table(
        f"TPC-H at scale {options.scale:g}: `spark-pipelines run`, 22 materialized views, all new",
        ("run", "s", "ended"),
        "The whole command, with the start of Spark. A second run in the same folder fails under "
        "the default catalog, so each has a folder of its own.",
    )
    if importlib.util.find_spec("grpc") is None:
        table.add("none", None, "not installed: pip install 'pyspark[pipelines]'")
        return [table]
    files = _tpch.generate(DATA, options.scale)
    for number in range(1 if options.quick else 3):
        begin = time.perf_counter()
        said = _run_sdp(folder / str(number), files)
        table.add(number + 1, time.perf_counter() - begin, said)
    return [table]


def _run_sdp(folder: Path, files: Mapping[str, Path]) -> str:
    """What the command came to: `completed`, or the last it said."""
    from stepwell.execution.java import find_java, launcher_home

    (folder / "views").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(
        f"name: tpch\nstorage: {(folder / 'storage').as_uri()}\n"
        "libraries:\n  - glob:\n      include: views/**\n",
        encoding="utf-8",
    )
    named = {table: str(file) for table, file in files.items()}
    (folder / "views" / "tables.py").write_text(SOURCES.format(files=named), encoding="utf-8")
    for name, statement in STATEMENTS.items():
        (folder / "views" / f"{name}.sql").write_text(statement, encoding="utf-8")
    command = Path(sys.executable).parent / "spark-pipelines"
    home = launcher_home(find_java(os.environ), os.environ)
    ran = subprocess.run(
        [str(command), "--master", f"local[{_rivals.THREADS}]", "run"],
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": home},
        capture_output=True,
        text=True,
    )
    lines = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
    return "completed" if ran.returncode == 0 else f"code {ran.returncode}: {lines[-1][:200]}"


SECTIONS: Mapping[str, Callable[[Path, Options], list[Table]]] = {
    "changes": changes,
    "pipeline": pipeline,
    "sdp": sdp,
}
DEFAULT = ("changes", "pipeline")

if __name__ == "__main__":
    main()
