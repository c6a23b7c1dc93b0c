"""Look-ups by keys of every type, and the first transaction after opening again.

    python benchmarks/keys.py [--quick] [--only types|reopen] [--rows 20000000]
                              [--kinds STRING] [--json]

types    1,000 changed rows of 2,000,000 orders, grouped and joined by a key of each type, in turns:
         what a type costs against BIGINT; `--kinds` chooses types, BIGINT is always one of them
reopen   the first transaction of a pipeline that was opened again, with the cache that it left and
         without one, in turns
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from _measure import Table, Times, in_turns, ratio, section_parser, show_sections, timed, workspace
from stepwell.env import SystemEnv
from stepwell.execution.executor import Executor
from stepwell.execution.spark.executor import spark_executor
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.lsm.cache import Cache
from stepwell.lsm.change import Change
from stepwell.store.local import LocalStore

SQL = """
CREATE TABLE orders (id {kind} NOT NULL PRIMARY KEY, customer {kind}, amount BIGINT);
CREATE TABLE customers (id {kind} NOT NULL PRIMARY KEY, region INT);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW regions AS
  SELECT c.region, SUM(o.amount) AS total FROM orders o JOIN customers c ON o.customer = c.id
  GROUP BY c.region;
"""
KINDS = ("BIGINT", "STRING", "DECIMAL(20,0)", "BINARY", "TIMESTAMP")
ROWS, FEW_ROWS = 2_000_000, 200_000
CHANGED = 1_000
ROUNDS, FEW_ROUNDS = 15, 5


@dataclass(frozen=True, slots=True)
class Options:
    quick: bool
    rows: int
    kinds: Sequence[str]


def main() -> None:
    parser = section_parser(__doc__ or "", SECTIONS)
    parser.add_argument("--rows", type=int, help=f"orders ({ROWS:,}, or {FEW_ROWS:,} if quick)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="types of keys")
    arguments = parser.parse_args()
    kinds = [kind for kind in KINDS if kind == "BIGINT" or kind in arguments.kinds]
    rows = arguments.rows or (FEW_ROWS if arguments.quick else ROWS)
    options = Options(arguments.quick, rows, kinds)
    spark = open_session(SessionSettings())
    with workspace() as directory:
        show_sections(
            arguments,
            SECTIONS,
            lambda name: SECTIONS[name](spark, directory / name, options),
        )


class Keyed:
    """A pipeline's executor whose keys have one type."""

    def __init__(self, spark: SparkSession, folder: Path, kind: str, rows: int) -> None:
        self._kind = kind
        self._rows = rows
        self._random = random.Random(1)
        self._spark = spark
        self._store = LocalStore(str(folder / "store"), SystemEnv())
        self._cache = folder / "cache"
        self.executor = self.open(self._cache)
        customers = range(rows // 10)
        regions = pa.array([n % 25 for n in customers], pa.int32())
        self._apply({"customers": pa.table({"id": self._keys(customers), "region": regions})})
        for start in range(0, rows, 500_000):
            self._apply({"orders": self._orders(range(start, min(rows, start + 500_000)))})
        self.executor.compact()
        self.runs = self.executor.flush()
        self.executor.on_flushed(self.runs)

    def open(self, cache: Path) -> Executor:
        env = SystemEnv()
        sql = SQL.format(kind=self._kind)
        return spark_executor(sql, spark=self._spark, cache=lambda env: Cache(cache, env))(
            self._store, env
        )

    def change(self) -> None:
        """Update some orders, each to another customer."""
        self._apply({"orders": self._drawn()})

    def reopened(self, cache: Path) -> float:
        """How long the first transaction takes, in seconds; it is not kept."""
        executor = self.open(cache)
        executor.load(self.runs)
        change = {"orders": Change(self._drawn())}
        return timed(lambda: executor.execute(change, SystemEnv().now()))

    @property
    def cache(self) -> Path:
        return self._cache

    def _drawn(self) -> pa.Table:
        return self._orders(self._random.sample(range(self._rows), CHANGED))

    def _apply(self, rows: dict[str, pa.Table]) -> None:
        changes = {table: Change(put) for table, put in rows.items()}
        executed = self.executor.execute(changes, SystemEnv().now())
        self.executor.apply(executed)

    def _orders(self, ids: range | list[int]) -> pa.Table:
        draw = self._random
        customers = [draw.randrange(self._rows // 10) for _ in ids]
        amounts = pa.array([draw.randrange(1000) for _ in ids], pa.int64())
        return pa.table(
            {"id": self._keys(ids), "customer": self._keys(customers), "amount": amounts}
        )

    def _keys(self, numbers: range | list[int]) -> pa.Array:
        plain = pa.array(list(numbers), pa.int64())
        match self._kind:
            case "STRING":
                return pc.binary_join_element_wise("key-", plain.cast(pa.string()), "")
            case "BINARY":
                return plain.cast(pa.string()).cast(pa.binary())
            case "TIMESTAMP":
                return plain.cast(pa.timestamp("us", "UTC"))
            case "BIGINT":
                return plain
            case _:
                return plain.cast(pa.decimal128(20, 0))


def types(spark: SparkSession, folder: Path, options: Options) -> list[Table]:
    rows = options.rows
    made = {kind: Keyed(spark, folder / str(n), kind, rows) for n, kind in enumerate(options.kinds)}
    for keyed in made.values():
        keyed.change()
        keyed.change()
    actions: dict[str, Callable[[int], None]] = {
        kind: lambda _, keyed=keyed: keyed.change() for kind, keyed in made.items()
    }
    times = in_turns(actions, FEW_ROUNDS if options.quick else ROUNDS)
    table = Table(
        f"{CHANGED:,} changed rows of {rows:,}, grouped and joined by a key",
        ["key", "median ms", "against BIGINT"],
    )
    for kind in options.kinds:
        table.add(kind, 1000 * times[kind].median, ratio(times["BIGINT"], times[kind]))
    return [table]


def reopen(spark: SparkSession, folder: Path, options: Options) -> list[Table]:
    rows = options.rows
    keyed = Keyed(spark, folder / "one", "STRING", rows)
    keyed.change()
    warm, cold = [], []
    for number in range(3 if options.quick else 5):
        warm.append(keyed.reopened(keyed.cache))
        cold.append(keyed.reopened(folder / f"empty-{number}"))
    table = Table(
        f"the first transaction after opening again, {rows:,} rows with text keys",
        ["cache", "median ms", "against none"],
    )
    table.add(
        "as it was left",
        1000 * Times(tuple(warm)).median,
        ratio(Times(tuple(cold)), Times(tuple(warm))),
    )
    table.add("none", 1000 * Times(tuple(cold)).median, "1")
    return [table]


SECTIONS: dict[str, Callable[[SparkSession, Path, Options], list[Table]]] = {
    "types": types,
    "reopen": reopen,
}

if __name__ == "__main__":
    main()
