"""How long does it take to commit 100 changed rows to a large Delta or Iceberg table?

    .venv/bin/python benchmarks/lakehouse.py [--quick] [--rows N] [--rounds N] [--json]

Tables of 10 million rows (500,000 with --quick) are filled through the sinks, in transactions of
half a million rows. Then each round changes 100 rows through each sink, in turns and in random
order: rows whose keys are anywhere in the table ("spread"), the newest rows ("newest"), and, in a
log of changes, rows that are only appended. CPU is that of this process, all threads included; on a
busy machine it is the steadier figure. Files are local, and synced. Works in `.bench/`, and removes
it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from _measure import Table, print_tables, workspace
from stepwell.connectors.registry import make_sink
from stepwell.engine.ports import Delivered, Sink
from stepwell.env import SystemEnv
from stepwell.model import Position, Transaction, checksum

LINEAGE = "01J00000000000000000000001"
LOAD_ROWS = 500_000
CHANGED = 100
COLUMNS = ("table", "change", "rounds", "p50 ms", "max ms", "CPU ms", "MB written", "ratio")


class Filled:
    """A sink, and what it holds: row `id` with the version that was written last."""

    def __init__(self, folder: Path, kind: str, mode: str) -> None:
        self.name = f"{kind} {mode}"
        self.folder = folder / f"{kind}-{mode}"
        self.folder.mkdir()
        options: dict[str, object] = {"view": "v", "type": kind, "mode": mode}
        if mode == "table":
            options["key"] = ["id"]
        if kind == "delta":
            options["path"] = "table"
        else:
            catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "warehouse"}
            options |= {"identifier": "bench.v", "catalog": catalog}
        self.sink: Sink = make_sink("out", options, "v", SystemEnv(), base=self.folder)
        self.held: Delivered | None = self.sink.last()
        self.versions: dict[int, int] = {}

    def write(self, rows: pa.Table) -> None:
        number = 1 if self.held is None else self.held.transaction + 1
        entry = checksum([str(number).encode()])
        mark = Delivered(LINEAGE, LINEAGE, Transaction(number), Position(number), entry)
        self.sink.write(self.held, mark, rows)
        self.held = mark

    def change(self, ids: list[int]) -> None:
        before = [self.versions.get(id, 0) for id in ids]
        for id in ids:
            self.versions[id] = self.versions.get(id, 0) + 1
        after = [self.versions[id] for id in ids]
        rows = [view(ids, before, -1), view(ids, after, 1)]
        self.write(pa.concat_tables(rows))

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def view(ids: list[int], versions: list[int], weight: int) -> pa.Table:
    amounts = [
        f"{id % 90_000}.{version % 100:02d}" for id, version in zip(ids, versions, strict=True)
    ]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": pa.array([f"customer {id * 7919 % 1_000_003}" for id in ids]),
            "amount": pa.array(amounts).cast(pa.decimal128(12, 2)),
            "_w": pa.array([weight] * len(ids), pa.int64()),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="half a million rows, 5 rounds")
    parser.add_argument("--rows", type=int, help="rows of each table")
    parser.add_argument("--rounds", type=int, help="commits of each kind")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = arguments.rows or (LOAD_ROWS if arguments.quick else 10_000_000)
    rounds = arguments.rounds or (5 if arguments.quick else 10)
    with workspace() as folder:
        print_tables(measure(folder, rows, rounds), as_json=arguments.json)


def measure(folder: Path, rows: int, rounds: int) -> list[Table]:
    sinks = [Filled(folder, k, m) for m in ("table", "changes") for k in ("delta", "iceberg")]
    load = Table(f"Filled with {rows:,} rows", ("table", "s", "MB"))
    for filled in sinks:
        began = time.perf_counter()
        for start in range(0, rows, LOAD_ROWS):
            ids = list(range(start, min(rows, start + LOAD_ROWS)))
            filled.write(view(ids, [0] * len(ids), 1))
        load.add(filled.name, time.perf_counter() - began, filled.size() / 1e6)
    draw = random.Random(7)
    made = Table(f"{CHANGED} changed rows in a table of {rows:,}", COLUMNS)
    keys: dict[str, Callable[[], list[int]]] = {
        "spread": lambda: draw.sample(range(rows), CHANGED),
        "newest": lambda: list(range(rows - CHANGED, rows)),
    }
    for word, ids_of in keys.items():
        tables = sinks if word == "newest" else sinks[:2]
        taken: dict[str, list[tuple[float, float, float]]] = {f.name: [] for f in tables}
        for _ in range(rounds):
            ids = ids_of()
            for filled in draw.sample(tables, len(tables)):
                size = filled.size()
                began, cpu = time.perf_counter(), time.process_time()
                filled.change(ids)
                seconds = time.perf_counter() - began
                spent = time.process_time() - cpu
                taken[filled.name].append((seconds, spent, filled.size() - size))
        for name, found in taken.items():
            wall, cpus, sizes = zip(*found, strict=True)
            kind, mode = name.split()
            other = statistics.median(item[1] for item in taken[f"delta {mode}"])
            made.add(
                *(name, "appended" if mode == "changes" else word, rounds),
                *(statistics.median(wall) * 1000, max(wall) * 1000),
                *(statistics.median(cpus) * 1000, statistics.median(sizes) / 1e6),
                statistics.median(cpus) / other if kind == "iceberg" else 1.0,
            )
    return [load, made]


if __name__ == "__main__":
    main()
