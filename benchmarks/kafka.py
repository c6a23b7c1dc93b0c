"""Kafka to a view to Kafka: how fast is a change of a topic visible in another one?

    python benchmarks/kafka.py [--quick] [--only 1000|100000] [--json]

A pipeline (`SELECT customer, COUNT(*), SUM(amount) ... GROUP BY customer`, 1,000 customers) reads a
topic of JSON and writes rows by key to another topic. It runs by `stepwell run`, and the same by
Spark Structured Streaming (update mode, default state store), each a process of its own, in turns,
from and to the same broker. A burst of rows is one Kafka transaction, so that producing it takes no
time from those that read it. The clock runs from its commit until a `read_committed` consumer has
seen the counts of all its rows.

latency   bursts of as many rows as a transaction may have, one after the other
rows/s    a burst of several times as many rows, which are taken in several transactions
CPU       of the process and its children, per row of all bursts

Stepwell delivers exactly once. Spark's Kafka sink is at-least-once, and does less: it begins no
transaction. Spark's connector must have exactly Spark's version; where Maven Central does not offer
it, Stepwell runs alone, and the table says so. The broker is that of the tests. Works in `.bench/`,
and removes it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyspark
from confluent_kafka import Consumer, Producer, TopicPartition

from _measure import Table, Times, ratio, say, section_parser, show_sections, workspace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.connectors.kafka_broker import UnreachableError, broker, fetch  # noqa: E402
from tests.connectors.kafka_topics import Topics  # noqa: E402

CUSTOMERS = 1_000
SECTIONS = ("1000", "100000")
SQL = """CREATE TABLE events (id BIGINT, customer STRING, amount BIGINT);
CREATE MATERIALIZED VIEW totals AS
  SELECT customer, COUNT(*) AS n, SUM(amount) AS total FROM events GROUP BY customer;
"""
PATIENCE_S = 300.0
BASELINE = "Structured Streaming"
Side = Callable[[Path, Topics, str, str, int], AbstractContextManager[subprocess.Popen[bytes]]]
"""Starts a process in a folder: the cluster, the two topics, and the rows of a transaction."""


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    """Of a burst, and at most of a transaction."""
    warm_up: int
    rounds: int
    backlog: int
    """Transactions in the burst that measures rows/s."""


def sizes(name: str, quick: bool) -> Size:
    if name == "1000":
        return Size(1_000, 5, 20 if quick else 100, 20 if quick else 50)
    return Size(100_000, 1, 3 if quick else 10, 3 if quick else 5)


@dataclass(slots=True)
class Found:
    """What one side took, over all its turns."""

    seconds: list[float] = field(default_factory=list)
    backlog_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    rows: int = 0


def main() -> None:
    parser = section_parser(__doc__ or "", SECTIONS)
    parser.add_argument("--spark", nargs=6, metavar="ARGUMENT", help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, help="processes of each side")
    arguments = parser.parse_args()
    if arguments.spark:
        run_spark(*arguments.spark)
        return
    turns = arguments.turns or (1 if arguments.quick else 2)
    jars = connector()
    with workspace() as folder, broker(private=True) as made:
        topics = Topics(made.address)
        show_sections(
            arguments,
            SECTIONS,
            lambda name: measure(folder, topics, sizes(name, arguments.quick), turns, jars),
        )


def connector() -> Path | None:
    """The folder with the jars of Spark's Kafka connector; None if they cannot be fetched."""
    try:
        return fetch("org.apache.spark", "spark-sql-kafka-0-10_2.13", pyspark.__version__)
    except UnreachableError as error:
        say(f"without Structured Streaming: {error}")
        return None


def measure(folder: Path, topics: Topics, size: Size, turns: int, jars: Path | None) -> list[Table]:
    sides: dict[str, Side] = {"Stepwell": stepwell}
    if jars is not None:
        sides[BASELINE] = partial(spark, jars)
    found = {name: Found() for name in sides}
    for turn in range(turns):
        for name, start in sides.items():
            say(f"{name}, {size.rows:,} rows a transaction ...")
            place = folder / f"{size.rows}-{turn}-{name.split()[0]}"
            place.mkdir()
            source, sink = topics.create(), topics.create()
            with start(place, topics, source, sink, size.rows) as process:
                take_turn(process, topics.brokers, source, sink, size, found[name])
    title = f"{size.rows:,} rows a transaction, {turns * size.rounds} bursts of each"
    if jars is None:
        title += f"; Spark's connector {pyspark.__version__} cannot be fetched"
    made = Table(
        title, ("", "p50 ms", "p99 ms", "rows/s", "CPU us/row", "p50 ratio", "rows/s ratio")
    )
    times = {name: Times(tuple(item.seconds)) for name, item in found.items()}
    speed = {n: turns * size.rows * size.backlog / sum(found[n].backlog_s) for n in sides}
    for name in sides:
        item, ratios = found[name], ("", "")
        if BASELINE in sides:
            p50 = str(ratio(times[BASELINE], times[name]))
            ratios = (p50, f"{speed[name] / speed[BASELINE]:.2f}")
        made.add(
            *(name, times[name].median * 1000, times[name].percentile(99) * 1000, speed[name]),
            *(item.cpu_s / item.rows * 1e6, *ratios),
        )
    return [made]


def take_turn(
    process: subprocess.Popen[bytes], brokers: str, source: str, sink: str, size: Size, found: Found
) -> None:
    bursts = Bursts(process, brokers, source, sink)
    try:
        for _ in range(size.warm_up):
            bursts.send(size.rows)
        bursts.send(size.rows * size.backlog)
        began = cpu_s(process.pid)
        for _ in range(size.rounds):
            found.seconds.append(bursts.send(size.rows))
        found.backlog_s.append(bursts.send(size.rows * size.backlog))
        found.cpu_s += cpu_s(process.pid) - began
        found.rows += size.rows * (size.rounds + size.backlog)
    finally:
        bursts.close()


class Bursts:
    """Sends rows, and waits until the other topic has counted them."""

    def __init__(
        self, process: subprocess.Popen[bytes], brokers: str, source: str, sink: str
    ) -> None:
        self._process = process
        self._source = source
        given = {"bootstrap.servers": brokers, "log_level": 0}
        more = {"linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        self._producer = Producer({**given, **more, "transactional.id": source})
        self._producer.init_transactions(30)
        self._consumer = Consumer(
            {
                **given,
                "group.id": "bench",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 5,
            }
        )
        self._consumer.assign([TopicPartition(sink, 0, 0)])
        self._counts: dict[str, int] = {}
        self._total = 0
        self._sent = 0

    def send(self, rows: int) -> float:
        """Seconds from the commit of so many rows until their counts are visible."""
        producer = self._producer
        producer.begin_transaction()
        for id in range(self._sent, self._sent + rows):
            customer = id * 7919 % 1_000_003 % CUSTOMERS
            value = b'{"id":%d,"customer":"customer %d","amount":%d}' % (id, customer, id % 997)
            while True:
                try:
                    producer.produce(self._source, value)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)
        self._sent += rows
        began = time.perf_counter()
        producer.commit_transaction(30)
        while self._total < self._sent:
            for message in self._consumer.consume(1_000, 0.005):
                if message.error() is None and message.value() is not None:
                    row = json.loads(message.value())
                    self._total += row["n"] - self._counts.get(row["customer"], 0)
                    self._counts[row["customer"]] = row["n"]
            if self._process.poll() is not None:
                raise SystemExit("the process has ended")
            if time.perf_counter() - began > PATIENCE_S:
                raise SystemExit(f"{self._total:,} of {self._sent:,} rows after {PATIENCE_S} s")
        return time.perf_counter() - began

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def stepwell(
    place: Path, topics: Topics, source: str, sink: str, rows: int
) -> Iterator[subprocess.Popen[bytes]]:
    at = {"type": "kafka", "brokers": topics.brokers}
    project = {
        "name": "bench",
        "store": "./state",
        "transaction": {"max_rows": rows},
        "sources": {"events": {**at, "table": "events", "topic": source}},
        "sinks": {"totals": {**at, "view": "totals", "topic": sink, "key": ["customer"]}},
    }
    (place / "stepwell.yml").write_text(json.dumps(project))  # YAML is a superset of JSON.
    (place / "pipeline.sql").write_text(SQL)
    command = [sys.executable, "-m", "stepwell", "-C", str(place)]
    subprocess.run([*command, "deploy", "--yes"], check=True, capture_output=True)
    with running([*command, "run"], place) as process:
        yield process


@contextmanager
def spark(
    jars: Path, place: Path, topics: Topics, source: str, sink: str, rows: int
) -> Iterator[subprocess.Popen[bytes]]:
    given = [
        "--spark",
        topics.brokers,
        source,
        sink,
        str(rows),
        str(place / "checkpoint"),
        str(jars),
    ]
    with running([sys.executable, __file__, *given], place) as process:
        yield process


@contextmanager
def running(command: list[str], place: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    except SystemExit as error:
        raise SystemExit(f"{error}: {(place / 'log').read_text()[-3000:]}") from None
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_spark(brokers: str, source: str, sink: str, rows: str, checkpoint: str, jars: str) -> None:
    """The same view by Structured Streaming, until interrupted."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    settings = {
        "spark.jars": ",".join(map(str, new_jars(Path(jars)))),
        "spark.sql.shuffle.partitions": str(os.cpu_count()),
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    session = SparkSession.builder.master("local[*]").config(map=settings).getOrCreate()
    given = {
        "kafka.bootstrap.servers": brokers,
        "subscribe": source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": rows,
        "kafka.isolation.level": "read_committed",
    }
    event = f.from_json(f.col("value").cast("string"), "id BIGINT, customer STRING, amount BIGINT")
    events = session.readStream.format("kafka").options(**given).load().select(event.alias("e"))
    totals = events.groupBy("e.customer").agg(
        f.count("*").alias("n"), f.sum("e.amount").alias("total")
    )
    records = totals.select(
        f.to_json(f.struct("customer")).alias("key"), f.to_json(f.struct("*")).alias("value")
    )
    query = (
        records.writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": brokers, "topic": sink})
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(processingTime="0 seconds")
        .start()
    )
    with suppress(KeyboardInterrupt):
        query.awaitTermination()
    query.stop()
    session.stop()


def new_jars(folder: Path) -> list[Path]:
    """The jars that Spark does not have already, in whichever version."""

    def artifact(path: Path) -> str:
        return path.name.rpartition("-")[0]

    known = {artifact(path) for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    skipped = ("scala-", "hadoop-", "slf4j-")
    return [
        path
        for path in sorted(folder.glob("*.jar"))
        if artifact(path) not in known and not path.name.startswith(skipped)
    ]


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all its children, those that have ended included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number] = int(fields[1])
            ticks[number] = sum(map(int, fields[11:15]))
    total = 0
    for number in ticks:
        at = number
        while at not in (0, pid) and at in parents:
            at = parents[at]
        total += ticks[number] if at == pid else 0
    return total / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
