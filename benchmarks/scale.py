"""How fast is large input loaded, compared with Spark doing the same?

    .venv/bin/python benchmarks/scale.py [--only load] [--scale 1] [--quick] [--json]

    load       TPC-H lineitem from files into a table with its key: Parquet sorted by key and in
               random order, JSON lines, CSV; at small scales also without bulk reads
    counts     of a load and of small changes: Spark jobs, requests and bytes of the driver, and
               rows that it is given; of two sizes, the second four times the first

Ours is a whole run: opening, reading, the commit in the journal, and the flush to a store on the
same disk. Spark reads the same files, sorts them by key and writes Parquet with the same
compression. Everything runs in one session on all cores. Prints tables, as Markdown. The data is
generated once and stored in `.bench-data/` next to this directory. Nothing is asserted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import _tpch
from _counts import count_requests
from _measure import Table, in_turns, ratio, section_parser, show_sections, workspace
from stepwell.connectors.registry import make_source
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.settings import Settings
from stepwell.env import SystemEnv
from stepwell.execution.spark.executor import spark_executor
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.sql import statements
from stepwell.store.local import LocalStore
from stepwell.text import Source

DATA = Path(__file__).resolve().parent.parent / ".bench-data"
FILES = 8
KEY = _tpch.KEYS["lineitem"]


@dataclass(frozen=True, slots=True)
class Options:
    scale: float
    quick: bool


def main() -> None:
    parser = section_parser(__doc__ or "", SECTIONS)
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H scale factor")
    arguments = parser.parse_args()
    options = Options(arguments.scale, arguments.quick)
    spark = open_session(SessionSettings(name="stepwell-benchmark", driver_memory="2g"))
    show_sections(arguments, SECTIONS, lambda name: SECTIONS[name](spark, options))


def load(spark: SparkSession, options: Options) -> list[Table]:
    """Load lineitem from each format, in turns with Spark."""
    source = _tpch.generate(DATA, options.scale)["lineitem"]
    rows = pq.read_metadata(source).num_rows
    table = Table(
        f"Load of {rows:,} rows of lineitem",
        ("files", "MB", "ours, s", "in steps, s", "Spark, s", "rate against Spark"),
    )
    with workspace() as folder:
        for name, write in WRITERS.items():
            files = folder / name
            files.mkdir()
            write(source, files)
            sides: dict[str, Callable[[int], None]] = {
                "bulk": lambda round, files=files: _ours(spark, files, folder, 1),
                "spark": lambda round, files=files: _sparks(spark, files, folder),
            }
            if options.scale <= 0.2:
                sides["steps"] = lambda round, files=files: _ours(spark, files, folder, None)
            times = in_turns(sides, 1 if options.quick else 3, warm_up=1)
            size = sum(file.stat().st_size for file in files.iterdir()) / 1e6
            steps = f"{times['steps'].mean:.1f}" if "steps" in times else "-"
            found = ratio(times["spark"], times["bulk"])
            table.add(
                name,
                f"{size:.0f}",
                f"{times['bulk'].mean:.1f}",
                steps,
                f"{times['spark'].mean:.1f}",
                str(found),
            )
            shutil.rmtree(files)
    return [table]


def counts(spark: SparkSession, options: Options) -> list[Table]:
    """Count jobs, requests and rows of the driver at two sizes."""
    rows = int(200_000 * options.scale)
    return [count_requests(spark, (rows, 4 * rows))]


def _ours(spark: SparkSession, files: Path, folder: Path, bulk_bytes: int | None) -> None:
    env, state = SystemEnv(), folder / "state"
    schema = statements.parse_statements(
        Source("schema.sql", (_tpch.SQL / "schema.sql").read_text())
    )
    declared = [s for s in schema if isinstance(s, statements.Table) and s.name == "lineitem"]
    format = next(files.iterdir()).suffix[1:]
    options = {"table": "lineitem", "type": "files", "path": f"*.{format}", "format": format}
    with Pipeline(
        LocalStore(str(state), env),
        env,
        executor=spark_executor("", declared=declared, spark=spark),
        sources=[make_source("lineitem", options, declared[0], env, base=files)],
        settings=Settings(bulk_bytes=bulk_bytes),
    ) as pipeline:
        pipeline.run(once=True)
    shutil.rmtree(state)


def _sparks(spark: SparkSession, files: Path, folder: Path) -> None:
    frame = _read(spark, files)
    out = folder / "out"
    frame.sort(*KEY).write.option("compression", "zstd").parquet(str(out))
    shutil.rmtree(out)


def _read(spark: SparkSession, files: Path) -> DataFrame:
    format = next(files.iterdir()).suffix[1:]
    generated = _tpch.generate(DATA, 0.02)["lineitem"]
    schema = spark.read.parquet(str(generated)).schema
    reader = spark.read.schema(schema)
    if format == "csv":
        return reader.option("header", True).csv(str(files))
    return reader.json(str(files)) if format == "json" else reader.parquet(str(files))


# --- the files ------------------------------------------------------------------------------------


def _pieces(rows: pa.Table) -> Sequence[pa.Table]:
    each = -(-rows.num_rows // FILES)
    return [rows.slice(start, each) for start in range(0, rows.num_rows, each)]


def _parquet(source: Path, folder: Path, *, shuffled: bool) -> None:
    rows = pq.read_table(source)
    if shuffled:
        rows = rows.take(np.random.default_rng(7).permutation(rows.num_rows))
    for number, piece in enumerate(_pieces(rows)):
        pq.write_table(piece, folder / f"{number}.parquet", row_group_size=250_000)


def _csv(source: Path, folder: Path) -> None:
    for number, piece in enumerate(_pieces(pq.read_table(source))):
        arrow_csv.write_csv(piece, folder / f"{number}.csv")


def _json(source: Path, folder: Path) -> None:
    for number, piece in enumerate(_pieces(pq.read_table(source))):
        frame = piece.cast(
            pa.schema(
                pa.field(f.name, pa.string() if pa.types.is_date(f.type) else f.type)
                for f in piece.schema
            )
        ).to_pandas()
        for column, kind in zip(frame.columns, piece.schema.types, strict=True):
            if pa.types.is_decimal(kind):
                frame[column] = frame[column].astype(float)
        frame.to_json(folder / f"{number}.json", orient="records", lines=True)


WRITERS: Mapping[str, Callable[[Path, Path], None]] = {
    "parquet": partial(_parquet, shuffled=False),
    "parquet-shuffled": partial(_parquet, shuffled=True),
    "json": _json,
    "csv": _csv,
}
SECTIONS: Mapping[str, Callable[[SparkSession, Options], list[Table]]] = {
    "load": load,
    "counts": counts,
}

if __name__ == "__main__":
    main()
