"""How fast are views maintained, compared with recomputing and with Structured Streaming?

    .venv/bin/python benchmarks/views.py [--only tpch] [--scale 1] [--quick] [--json]

    tpch       all 22 TPC-H views at once: 0.1 % new orders with their lines, 0.1 % deleted
    alone      the same, each view alone
    shares     0.1 % to 30 % of all orders at once: where recomputing becomes cheaper
    growth     the same number of changed orders, tables ten times larger; and new orders only
    groups     GROUP BY over a million groups, against Structured Streaming with both state stores

Everything runs in one Spark session on all cores, warmed up first. Recomputing means: the view's
own SELECT over plain Parquet files of the same size, its result fetched like ours. Prints tables,
as Markdown; RESULTS.md has those of one machine. The data is generated once and stored in
`.bench-data/` next to this directory. Nothing is asserted.
"""

from __future__ import annotations

import itertools
import math
import re
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import _changes
import _tpch
from _measure import Table, say, section_parser, show_sections, workspace
from stepwell.engine.background import BackgroundTasks
from stepwell.engine.events import Events
from stepwell.execution.limits import QueryLimits
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.execution.spark.views import Change, Executed, Views
from stepwell.plan.cost import CostModel

DATA = Path(__file__).resolve().parent.parent / ".bench-data"
TPCH = [f"q{number:02}" for number in range(1, 23)]
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Options:
    scale: float
    quick: bool
    views: Sequence[str] = ()
    largest: float = 10.0
    """Of the scales that are compared."""

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 7

    @property
    def batches(self) -> int:
        return 3 if self.quick else 20


def main() -> None:
    parser = section_parser(__doc__ or "", SECTIONS)
    parser.add_argument(
        "--scale",
        type=float,
        help="TPC-H scale factor (1, or 0.1 if quick); for growth the largest",
    )
    parser.add_argument("--views", default="", help="only these of TPC-H, as in q01,q03")
    arguments = parser.parse_args()
    scale = arguments.scale or (0.1 if arguments.quick else 1.0)
    views = arguments.views.split(",") if arguments.views else ()
    options = Options(scale, arguments.quick, views, arguments.scale or 10.0)
    spark = open_session(SessionSettings(driver_memory="4g"))
    show_sections(arguments, SECTIONS, lambda name: SECTIONS[name](spark, options))


# --- TPC-H ----------------------------------------------------------------------------------------


class Tpch:
    """The tables of one scale, and changes to them."""

    def __init__(self, spark: SparkSession, scale: float) -> None:
        self.spark = spark
        self.files = _tpch.generate(DATA, scale)
        # Prime, since the keys of orders have a pattern. All rows would need 2 GB per scale.
        self.one_in = 47 if scale > 1 else 1
        some = self.one_in > 1
        self._tables = (
            _tpch.load_some_orders(DATA, scale, self.one_in) if some else _tpch.load(DATA, scale)
        )
        self.read = set(self.files)
        """The tables that the views last opened read; the others stay empty."""
        self.order_count = pq.read_metadata(self.files["orders"]).num_rows
        self.statements = _changes.views(_tpch.SQL)
        self.schema = (_tpch.SQL / "schema.sql").read_text(encoding="utf-8")

    def open(self, names: Sequence[str], policy: str = "AUTO") -> Views:
        asked = [
            self.statements[name].replace(
                f"VIEW {name} AS", f"VIEW {name} REFRESH POLICY {policy} AS"
            )
            for name in names
        ]
        text = "\n".join([self.schema, *asked])
        self.again()
        self.read = {n for n in self.files if any(re.search(rf"\b{n}\b", v) for v in asked)}
        tables = {n: self.spark.read.parquet(str(self.files[n])) for n in sorted(self.read)}
        return Views.open(self.spark, text, tables=tables)

    def again(self) -> None:
        """Draw changes of the tables as they were first, which is how views are opened."""
        self.changes = _tpch.Changes(self._tables)

    def orders(self, share: float, *, deleted: bool = True) -> dict[str, Change]:
        share *= self.one_in
        # First those that go, so that no order comes and goes at once.
        gone = self.changes.delete_orders(share) if deleted else {}
        drawn = _changes.together(self.changes.new_orders(share), gone)
        return {t: Change(c.put, c.delete) for t, c in drawn.items() if t in self.read}

    def recompute(self, name: str, rounds: int = 3) -> float:
        """Seconds that Spark takes for a view's own SELECT, by median after one to warm up.

        At a large scale, where a round takes long and warming up is little of it, the first counts.
        """
        for table, file in self.files.items():
            self.spark.read.parquet(str(file)).createOrReplaceTempView(table)
        query = _changes.query_of(self.statements[name])
        seconds = [
            timed(lambda: self.spark.sql(query).toArrow())
            for _ in range(1 if self.one_in > 1 else rounds + 1)
        ]
        return statistics.median(seconds[1:] or seconds)


def tpch(spark: SparkSession, options: Options) -> list[Table]:
    data = Tpch(spark, options.scale)
    names = options.views or TPCH
    begin = time.perf_counter()
    views = data.open(names)
    opened = time.perf_counter() - begin
    say(f"  opened in {opened:.0f} s")
    outcomes, totals = _keep(views, data, options)
    table = Table(
        f"TPC-H at scale {options.scale:g}, {len(names)} views at once, "
        "0.1 % new and 0.1 % deleted",
        ("view", "incremental s", "recomputed s", "times faster", "queries", "jobs", "rows found"),
    )
    ratios = []
    for name in names:
        ours = statistics.median(o.seconds_of[name] for o in outcomes)
        theirs = data.recompute(name)
        last = outcomes[-1]
        if last.queries_of[name] or last.rows_of[name]:
            ratios.append(theirs / ours)
        counts = (last.queries_of[name], last.jobs_of[name], last.rows_of[name])
        table.add(name, ours, theirs, theirs / ours, *counts)
    whole = statistics.median(totals)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    table.note = (
        f"Geometric mean of the {len(ratios)} views that read orders or lines: "
        f"{math.exp(statistics.fmean(map(math.log, ratios))):.2f}, "
        f"minimum {min(ratios):.2f}. In total {whole:.1f} s, opening {opened:.0f} s; "
        f"this process used at most {peak:.1f} GB, without Java's heap."
    )
    return [table]


def _keep(
    views: Views,
    data: Tpch,
    options: Options,
    share: float = 0.001,
    *,
    warm_up: int = WARM_UP,
) -> tuple[list[Executed], list[float]]:
    """Apply changes until it is warm, then those that count."""
    outcomes, seconds = [], []
    for number in range(warm_up + options.rounds):
        change = data.orders(share)
        begin = time.perf_counter()
        outcome = views.apply(change)
        if number >= warm_up:
            seconds.append(time.perf_counter() - begin)
            outcomes.append(outcome)
        say(f"  transaction {number + 1}: {time.perf_counter() - begin:.2f} s")
    return outcomes, seconds


# --- shares, growth -------------------------------------------------------------------------------


def alone(spark: SparkSession, options: Options) -> list[Table]:
    """Each view in a pipeline of its own, so that nothing is shared but Spark."""
    data = Tpch(spark, options.scale)
    table = Table(
        f"TPC-H at scale {options.scale:g}, each view alone, 0.1 % new and 0.1 % deleted",
        ("view", "transaction s", "of it the view s", "recomputed s", "times faster"),
    )
    for name in options.views or TPCH:
        outcomes, totals = _keep(data.open([name]), data, options)
        whole = statistics.median(totals)
        mine = statistics.median(o.seconds_of[name] for o in outcomes)
        theirs = data.recompute(name)
        table.add(name, whole, mine, theirs, theirs / whole)
    return [table]


SHARES = (0.001, 0.01, 0.05, 0.1, 0.3)
SHARE_VIEWS = ["q01", "q03", "q05", "q10", "q18"]
NEVER = 10**12


def shares(spark: SparkSession, options: Options) -> list[Table]:
    """How much may change before recomputing is cheaper, and does AUTO choose well?

    The same change is prepared in each way and never kept, so all begin with the same tables.
    """
    data = Tpch(spark, options.scale)
    names = options.views or SHARE_VIEWS
    table = Table(
        f"TPC-H at scale {options.scale:g}: seconds by how many orders come and go at once",
        ("view", "share", "incremental", "recomputed", "AUTO", "chose", "SELECT", "SELECT by AUTO"),
        "Anew: computed from the stored tables and compared with what is stored, which is AUTO's "
        "other choice. SELECT: the query alone, over plain files.",
    )
    views = data.open(names)
    select = {name: data.recompute(name) for name in names}
    ways = {
        "incremental": CostModel(changed_rows_min=NEVER),
        "recomputed": CostModel(look_up=NEVER, changed_rows_min=0),
        "AUTO": CostModel(),
    }
    for share in SHARES:
        data.again()
        change = data.orders(share)
        found: dict[str, Executed] = {}
        for way, model in ways.items():
            views._evaluator.limits = QueryLimits(costs=model)
            for _ in range(2 if share < 0.05 else 1):
                views.execute(change)
            found[way] = views.execute(change)
            say(f"  {share:.1%} {way}: {sum(found[way].seconds_of.values()):.2f} s")
        for name in names:
            seconds = {way: outcome.seconds_of[name] for way, outcome in found.items()}
            chose = "recomputed" if name in found["AUTO"].cheaper else "incremental"
            auto = seconds["AUTO"]
            ours = (seconds["incremental"], seconds["recomputed"], auto)
            row = (*ours, chose, select[name], select[name] / auto)
            table.add(name, f"{share:.1%}", *row)
    return [table]


GROWTH_ORDERS = 1_500


def growth(spark: SparkSession, options: Options) -> list[Table]:
    """The same change to tables of different sizes."""
    every = (0.03, 0.1) if options.quick else (0.1, 1.0, 10.0)
    scales = [scale for scale in every if scale <= options.largest] or every[:1]
    names = list(options.views) or ["q01", "q03", "q05", "q10", "q12", "q18", "q21"]
    table = Table(
        f"{GROWTH_ORDERS:,} orders come and as many go, with their lines: seconds by scale",
        ("view", *(f"scale {scale:g}" for scale in scales), "times by step"),
    )
    new = Table(
        f"{GROWTH_ORDERS:,} new orders with their lines, nothing deleted: seconds by scale",
        ("view", *(f"scale {scale:g}" for scale in scales), "times by step"),
    )
    both: dict[str, list[float]] = {name: [] for name in names}
    added: dict[str, list[float]] = {name: [] for name in names}
    for scale in scales:
        data = Tpch(spark, scale)
        share = GROWTH_ORDERS / data.order_count
        views = data.open(names)
        outcomes, _ = _keep(views, data, options, share)
        for name in names:
            both[name].append(statistics.median(o.seconds_of[name] for o in outcomes))
        outcomes = [views.apply(data.orders(share, deleted=False)) for _ in range(options.rounds)]
        for name in names:
            added[name].append(statistics.median(o.seconds_of[name] for o in outcomes))
    for name in names:
        table.add(name, *both[name], _steps(both[name]))
        new.add(name, *added[name], _steps(added[name]))
    return [table, new]


def _steps(seconds: Sequence[float]) -> str:
    return ", ".join(f"{b / a:.2f}" for a, b in itertools.pairwise(seconds))


# --- groups ---------------------------------------------------------------------------------------

GROUPS = 1_000_000


def groups(spark: SparkSession, options: Options) -> list[Table]:
    """`GROUP BY` over many groups: the one thing Structured Streaming can keep as well."""
    count = GROUPS // 10 if options.quick else GROUPS
    table = Table(
        f"sum and count over {count:,} groups, seconds per batch",
        ("rows in a batch", "", "incremental", "streaming", "streaming, RocksDB", "times faster"),
        "Streaming in update mode, into memory; the better of its two state stores is compared. "
        "Each figure is the median, and behind it the mean: all the time that the batches took, "
        "with what was done beside them, by their number.",
    )
    with workspace() as directory:
        for rows in (1_000, 100_000):
            batches = [_batch(count, rows, seed) for seed in range(WARM_UP + options.batches)]
            ours = _groups_kept(spark, count, batches)
            theirs = [
                _groups_streamed(spark, directory / f"{rows}-{store}", count, batches, store)
                for store in ("HDFSBacked", "RocksDB")
            ]
            for kind, name in enumerate(("median", "mean")):
                all_of = [t[kind] for t in theirs]
                table.add(rows, name, ours[kind], *all_of, min(all_of) / ours[kind])
    return [table]


def _batch(count: int, rows: int, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    return pa.table({"k": draw.integers(count, size=rows), "v": draw.integers(1000, size=rows)})


def _every(count: int) -> pa.Table:
    return pa.table({"k": np.arange(count), "v": np.arange(count) % 1000})


_GROUPED = "SELECT k, SUM(v) AS total, COUNT(*) AS n FROM t GROUP BY k"


def _groups_kept(
    spark: SparkSession, count: int, batches: Sequence[pa.Table]
) -> tuple[float, float]:
    """Runs are compacted in the background, as in a pipeline."""
    text = f"CREATE TABLE t (k BIGINT, v BIGINT);\nCREATE MATERIALIZED VIEW g AS {_GROUPED};"
    views = Views.open(spark, text, tables={"t": spark.createDataFrame(_every(count))})
    views.stored.compact_in_background(lambda relation, run: ())
    background = BackgroundTasks(Events())
    compactor: Any = SimpleNamespace(background_task=views.stored.compaction)
    seconds: list[float] = []
    for number, batch in enumerate(batches):
        if number == WARM_UP:
            background.finish()
            begin = time.perf_counter()
        seconds.append(timed(lambda b=batch: views.apply({"t": Change(put=b)})))
        background.advance(compactor)
    background.finish()
    counted = seconds[WARM_UP:]
    return statistics.median(counted), (time.perf_counter() - begin) / len(counted)


def _groups_streamed(
    spark: SparkSession, folder: Path, count: int, batches: Sequence[pa.Table], store: str
) -> tuple[float, float]:
    """The same batches as files of a stream; each is given once the one before it is done."""
    source, checkpoint = folder / "in", folder / "checkpoint"
    source.mkdir(parents=True)
    provider = f"org.apache.spark.sql.execution.streaming.state.{store}StateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    stream = spark.readStream.schema("k BIGINT, v BIGINT").parquet(str(source))
    stream.createOrReplaceTempView("t")
    took: list[float] = []
    query = (
        spark.sql(_GROUPED)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda frame, _: took.append(frame.toArrow().num_rows))
        .start()
    )
    seconds = []
    try:
        for number, rows in enumerate([_every(count), *batches]):
            part = source / f"{number:05}.parquet"
            pq.write_table(rows, (folder / part.name))
            begin = time.perf_counter()
            (folder / part.name).rename(part)
            query.processAllAvailable()
            seconds.append(time.perf_counter() - begin)
    finally:
        query.stop()
    counted = seconds[1 + WARM_UP :]
    return statistics.median(counted), statistics.fmean(counted)


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


SECTIONS: Mapping[str, Callable[[SparkSession, Options], list[Table]]] = {
    "tpch": tpch,
    "alone": alone,
    "shares": shares,
    "growth": growth,
    "groups": groups,
}

if __name__ == "__main__":
    main()
