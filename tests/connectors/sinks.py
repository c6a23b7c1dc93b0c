"""Sinks under test: how to make one, and what it holds, as a reader sees it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
import pyarrow.parquet as pq
from deltalake import DeltaTable
from psycopg import sql
from pyiceberg.catalog import load_catalog

from stepwell.connectors.registry import make_sink
from stepwell.engine.evolution import EvolvingDifference
from stepwell.engine.ports import BulkWrites, Coalesces, Delivered, Sink
from stepwell.env import SystemEnv
from stepwell.lsm.table_diff import Difference, weighted
from stepwell.model import Position, Transaction, checksum
from tests.connectors.large import large

LINEAGE = "01J00000000000000000000001"
OTHER = "01J00000000000000000000002"

Row = tuple[str | None, str, int]
"""A customer, a total and a number."""


def mark(transaction: int, lineage: str = LINEAGE, history: str = "this") -> Delivered:
    """The mark of a transaction, as a history of a pipeline gave it out."""
    entry = checksum([f"{history} {transaction}".encode()])
    return Delivered(lineage, lineage, Transaction(transaction), Position(transaction + 7), entry)


def put(sink: Sink, transaction: int, rows: pa.Table, lineage: str = LINEAGE) -> None:
    """Write a transaction as the engine does that has just asked the sink what it holds."""
    sink.write(sink.last(), mark(transaction, lineage), rows)


def put_together(sink: Sink, numbers: Sequence[int], rows: Callable[[int], pa.Table]) -> None:
    """Write several transactions in one commit, or one alone, as the engine does."""
    changes = [(mark(number), rows(number)) for number in numbers]
    if len(changes) == 1:
        sink.write(sink.last(), *changes[0])
    else:
        assert isinstance(sink, Coalesces)
        assert sink.coalesces
        sink.write_together(sink.last(), changes)


def change(*rows: tuple[str | None, str, int, int]) -> pa.Table:
    """Rows with a weight: ("ada", "12.50", 3, +1)."""
    customers, totals, numbers, weights = zip(*rows, strict=True)
    return pa.table(
        {
            "customer": pa.array(customers, pa.string()),
            "total": pa.array(totals, pa.string()).cast(pa.decimal128(12, 2)),
            "n": pa.array(numbers, pa.int64()),
            "_w": pa.array(weights, pa.int64()),
        }
    )


def alone(transaction: int) -> pa.Table:
    """A change that has nothing to do with those before it."""
    return change((f"t{transaction}", f"{transaction}.50", transaction, 1))


def in_turn(transaction: int) -> pa.Table:
    """A change that builds on all before it: of five customers one gets another row, or none."""
    customer = None if transaction % 5 == 0 else f"c{transaction % 5}"
    before, rows = transaction - 5, []
    if before > 0 and before % 7:
        rows.append((customer, f"{before}.50", before, -1))
    if transaction % 7:
        rows.append((customer, f"{transaction}.50", transaction, 1))
    return change(*rows)


def evolving() -> pa.Table:
    """The change that follows `in_turn` 1 and 2 when the view loses n, gains z and widens total."""
    rows = change(("c1", "1.50", 1, 1))
    after = pa.schema(
        [("customer", pa.string()), ("total", pa.decimal128(14, 2)), ("z", pa.float64())]
    )
    come = pa.table([["c1", "c3"], [Decimal("1.50"), Decimal("3.50")], [7.0, 0.5]], schema=after)
    gone = pa.table([["c1"], [Decimal("1.50")], [None]], schema=after)
    difference = Difference(weighted(gone, -1), weighted(come, 1))
    (made,) = EvolvingDifference(difference, rows.drop_columns(["_w"]).schema, after).parts(100)
    return made


class InBulk:
    """A sink that is given each change as one that is too large for memory."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        assert isinstance(self._sink, BulkWrites)
        self._sink.write_bulk(previous, mark, large(change))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


@dataclass(frozen=True)
class Place:
    """A sink of one type, in a place of its own."""

    kind: str
    options: dict[str, object]
    name: str = "out"
    keyed: bool = False
    """Whether it holds the view itself rather than its changes."""

    def make(self) -> Sink:
        """The sink. With the option `_bulk` every change is written as if it were large."""
        options = {"view": "revenue", **self.options}
        bulk = options.pop("_bulk", False)
        sink = make_sink(self.name, options, "revenue", SystemEnv(), base=Path("."))
        return InBulk(sink) if bulk else sink

    def content(self) -> Counter[tuple[object, ...]]:
        """What it holds: rows, or (transaction, row, weight) of a log of changes."""
        found = Counter(_READ[self.kind](self.options))
        if not self.options.get("coalesce"):
            return found
        view: Counter[tuple[object, ...]] = Counter()
        for (_, *row, weight), times in found.items():
            view[tuple(row)] += int(str(weight)) * times
        return Counter({row: weight for row, weight in view.items() if weight})

    def expected(self, changes: dict[int, pa.Table]) -> Counter[tuple[object, ...]]:
        """What it should hold after these transactions."""
        log = [
            (number, row["customer"], f"{row['total']:.2f}", row["n"], row["_w"])
            for number, table in changes.items()
            for row in table.to_pylist()
        ]
        if not self.keyed:
            return Counter(log)
        view: Counter[tuple[object, ...]] = Counter()
        for _, customer, total, n, weight in log:
            view[(customer, total, n)] += weight
        return Counter({row: weight for row, weight in view.items() if weight})


def _files(options: dict[str, object]) -> Iterable[tuple[object, ...]]:
    root, format = Path(str(options["path"])), options["format"]
    for folder in sorted(root.glob("[0-9]*")):
        paths = sorted(folder.glob(f"part*.{format}"))
        mark = json.loads((folder / "_transaction.json").read_text().splitlines()[-1])
        assert len(paths) == mark.get("parts", 1), "a folder is complete"
        assert len(list(folder.iterdir())) == len(paths) + 1, "and holds nothing else"
        for path in paths:
            if not path.stat().st_size:
                continue  # Transactions that came together and cancelled out.
            if format == "parquet":
                rows = pq.read_table(path)
            elif format == "csv":
                types = {"customer": pa.string()}
                convert = arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=True)
                rows = arrow_csv.read_csv(path, convert_options=convert)
            else:
                rows = arrow_json.read_json(path)
            for row in rows.to_pylist():
                total = f"{row['total']:.2f}"
                yield int(folder.name), row["customer"], total, row["n"], row["_w"]


def _delta(options: dict[str, object]) -> Iterable[tuple[object, ...]]:
    for row in DeltaTable(str(options["path"])).to_pyarrow_table().to_pylist():
        values = (row["customer"], f"{row['total']:.2f}", row["n"])
        if options["mode"] == "changes":
            yield row["_transaction"], *values, row["_w"]
        else:
            yield from [values] * row.get("_count", 1)


def read_iceberg(options: Mapping[str, object]) -> pa.Table:
    catalog = load_catalog("default", **options["catalog"])  # type: ignore[arg-type]
    with closing(catalog):
        return catalog.load_table(str(options["identifier"])).scan().to_arrow()


def _iceberg(options: dict[str, object]) -> Iterable[tuple[object, ...]]:
    for row in read_iceberg(options).to_pylist():
        values = (row["customer"], f"{row['total']:.2f}", row["n"])
        yield (row["_transaction"], *values, row["_w"]) if "_w" in row else values


def _postgres(options: dict[str, object]) -> Iterable[tuple[object, ...]]:
    columns = "customer, to_char(total, 'FM999990.00'), n"
    if options["mode"] == "changes":
        columns = f"_transaction, {columns}, _w"
    query = sql.SQL(f"SELECT {columns} FROM {{}}")  # type: ignore[arg-type]
    with psycopg.connect(str(options["dsn"])) as connection:
        yield from connection.execute(query.format(sql.Identifier(str(options["table"]))))


def _kafka(options: dict[str, object]) -> Iterable[tuple[object, ...]]:
    from tests.connectors.kafka_topics import Topics  # Needs an optional package.

    topics, rows = Topics(str(options["brokers"])), {}
    for message in topics.read(str(options["topic"])):
        row = json.loads(message.value() or "null", parse_float=str)
        if "key" not in options:
            yield row["_transaction"], row["customer"], row["total"], row["n"], row["_w"]
        elif row is None:
            rows.pop(message.key(), None)  # It may have come and gone in one commit.
        else:
            assert json.loads(message.key()) == {"customer": row["customer"]}
            rows[message.key()] = (row["customer"], row["total"], row["n"])
    yield from rows.values()


_READ = {
    "files": _files,
    "delta": _delta,
    "iceberg": _iceberg,
    "postgres": _postgres,
    "kafka": _kafka,
}
