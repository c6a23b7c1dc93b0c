"""How fast are views kept? Against recomputing them, and against Structured Streaming.

    .venv/bin/python benchmarks/views.py [--only tpch] [--scale 1] [--quick] [--json]

    tpch       all 22 TPC-H views kept at once: 0.1 % new orders with their lines, 0.1 % deleted
    alone      the same, each view by itself
    shares     0.1 %, 1 % and 10 % of all orders at once: where recomputing becomes cheaper
    growth     the same number of changed orders, tables ten times larger; and new orders only
    groups     GROUP BY over a million groups, against Structured Streaming with both state stores

Everything runs in one Spark session on all cores, warmed up first. Recomputing means: the view's
own SELECT over plain Parquet files of the same size, its result fetched like ours. Prints tables,
as Markdown; what they said on one machine stands in RESULTS.md. The data is made once and kept in
`.bench-data/` beside this directory. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import _changes
import _tpch
from _measure import Table, machine, print_tables, say
from stepwell.spark.session import SessionSettings, open_session
from stepwell.spark.views import Change, Outcome, Views

DATA = Path(__file__).resolve().parent.parent / ".bench-data"
TPCH = [f"q{number:02}" for number in range(1, 23)]
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Options:
    scale: float
    quick: bool

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 7


def main() -> None:
    arguments = parse()
    say(machine())
    options = Options(arguments.scale or (0.1 if arguments.quick else 1.0), arguments.quick)
    spark = open_session(SessionSettings(driver_memory="4g"))
    tables: list[Table] = []
    for name in [arguments.only] if arguments.only else list(SECTIONS):
        say(f"{name} ...")
        made = SECTIONS[name](spark, options)
        tables += made
        if not arguments.json:
            print_tables(made, as_json=False)
    if arguments.json:
        print_tables(tables, as_json=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How fast are views kept?")
    parser.add_argument("--only", choices=list(SECTIONS))
    parser.add_argument("--scale", type=float, help="TPC-H scale factor (1, or 0.1 if quick)")
    parser.add_argument("--quick", action="store_true", help="small data, few rounds")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


# --- TPC-H ----------------------------------------------------------------------------------------


class Tpch:
    """The tables of one scale, and changes to them."""

    def __init__(self, spark: SparkSession, scale: float) -> None:
        self.spark = spark
        self.files = _tpch.generate(DATA, scale)
        self.changes = _tpch.Changes(_tpch.load(DATA, scale))
        self.statements = _changes.views(_tpch.SQL)
        self.schema = (_tpch.SQL / "schema.sql").read_text(encoding="utf-8")

    def open(self, names: Sequence[str]) -> Views:
        text = "\n".join([self.schema, *(self.statements[name] for name in names)])
        tables = {n: self.spark.read.parquet(str(f)) for n, f in self.files.items()}
        return Views.open(self.spark, text, tables=tables)

    def orders(self, share: float, *, deleted: bool = True) -> dict[str, Change]:
        new = self.changes.new_orders(share)
        drawn = _changes.together(new, self.changes.delete_orders(share)) if deleted else new
        return {table: Change(change.put, change.delete) for table, change in drawn.items()}

    def recompute(self, name: str, rounds: int) -> float:
        """Seconds that Spark takes for a view's own SELECT."""
        for table, file in self.files.items():
            self.spark.read.parquet(str(file)).createOrReplaceTempView(table)
        query = _changes.query_of(self.statements[name])
        seconds = [timed(lambda: self.spark.sql(query).toArrow()) for _ in range(rounds + 1)]
        return statistics.median(seconds[1:])


def tpch(spark: SparkSession, options: Options) -> list[Table]:
    data = Tpch(spark, options.scale)
    opened = time.perf_counter()
    views = data.open(TPCH)
    opened = time.perf_counter() - opened
    outcomes, totals = _keep(views, data, options)
    table = Table(
        f"TPC-H at scale {options.scale:g}, 22 views kept at once, 0.1 % new and 0.1 % deleted",
        ("view", "kept s", "recomputed s", "times faster", "queries", "rows found"),
    )
    ratios = []
    for name in TPCH:
        ours = statistics.median(o.seconds_of[name] for o in outcomes)
        theirs = data.recompute(name, 3)
        ratios.append(theirs / ours)
        last = outcomes[-1]
        table.add(name, ours, theirs, theirs / ours, last.jobs_of[name], last.rows_of[name])
    whole = statistics.median(totals)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    table.note = (
        f"Geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f}, "
        f"least {min(ratios):.2f}. All in all {whole:.1f} s, opening {opened:.0f} s; "
        f"this process had at most {peak:.1f} GB beside Java's heap."
    )
    return [table]


def _keep(
    views: Views, data: Tpch, options: Options, share: float = 0.001
) -> tuple[list[Outcome], list[float]]:
    """Apply changes until it is warm, then those that count."""
    outcomes, seconds = [], []
    for number in range(WARM_UP + options.rounds):
        change = data.orders(share)
        begin = time.perf_counter()
        outcome = views.apply(change)
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - begin)
            outcomes.append(outcome)
        say(f"  transaction {number + 1}: {time.perf_counter() - begin:.2f} s")
    return outcomes, seconds


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


SECTIONS: Mapping[str, Callable[[SparkSession, Options], list[Table]]] = {
    "tpch": tpch,
}

if __name__ == "__main__":
    main()
