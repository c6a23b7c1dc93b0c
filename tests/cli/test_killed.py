"""`stepwell run`, killed with SIGKILL again and again while files arrive and rows are pushed.

Six sinks of three kinds hang on it. Afterwards no row is lost and none is there twice, every sink
holds each transaction once and in order, and the views are what the input comes to. Some rounds end
while the pipeline is being opened, the others while it works.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from stepwell.connectors.python_rows import pushed_rows
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.endpoint.client import Client, connect
from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError, UnknownOutcomeError
from stepwell.execution.spark.session import open_session
from tests.cli.forked import Forked, forks
from tests.cli.projects import Process, load, put_file, stepwell, write_project
from tests.connectors import database
from tests.execution.conftest import SETTINGS

SQL = """\
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount BIGINT);
CREATE TABLE events (id BIGINT, kind STRING);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW tally AS SELECT kind, COUNT(*) AS n FROM events GROUP BY kind;
"""
YML = """\
name: killed
store: ./state
{settings}
transaction: {{max_rows: 50, max_latency: 0s}}
checkpoint: {{every: 1s}}
sources:
  order_files: {{table: orders, type: files, path: "data/orders-*.json", format: json,
    changes: insert_delete, settle: 0s}}
  event_files: {{table: events, type: files, path: "data/events-*.json", format: json, settle: 0s}}
sinks:
  files: {{view: revenue, type: files, path: out/files, format: json}}
  delta_log: {{view: revenue, type: delta, path: out/delta_log, mode: changes}}
  delta: {{view: revenue, type: delta, path: out/delta, key: [customer]}}
  postgres_log: {{view: revenue, type: postgres, dsn: "{dsn}", schema: "{schema}", table: log}}
  postgres: {{view: revenue, type: postgres, dsn: "{dsn}", schema: "{schema}", key: [customer]}}
  tally: {{view: tally, type: files, path: out/tally, format: json}}
"""
SPARK = f"spark: {{master: 'local[2]', conf: {json.dumps(SETTINGS.conf)}}}"


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with database.server() as dsn:
        yield dsn


@pytest.fixture
def schema(postgres: str, tmp_path: Path) -> str:
    name = f"s{abs(hash(tmp_path))}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{name}"')  # type: ignore[arg-type]
    return name


@pytest.mark.parametrize("rounds", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_again_and_again_every_sink_ends_up_as_if_nothing_had_happened(
    tmp_path: Path, postgres: str, schema: str, rounds: int
) -> None:
    """J6, J7, scenarios 75 and 84: with files, Delta and PostgreSQL sinks at once."""
    folder = project(tmp_path, "", postgres, schema)
    dice = random.Random(rounds)
    with World(folder) as world, forks() as forked:
        for round in range(rounds):
            world.give(files=5)
            kill_sometime(forked.start(folder, tmp_path / f"run-{round}.log", "run"), dice)
        assert world.errors == []
        process = forked.start(folder, tmp_path / "last.log", "run")
        world.finish()
        process.kill()
    check(folder, world, postgres, schema)


@pytest.mark.spark
@pytest.mark.parametrize("rounds", [3, pytest.param(15, marks=pytest.mark.slow)])
def test_killed_on_spark_every_sink_ends_up_as_if_nothing_had_happened(
    tmp_path: Path, postgres: str, schema: str, rounds: int
) -> None:
    """J6, J7, scenarios 75 and 84: the same with Spark at work."""
    folder = project(tmp_path, SPARK, postgres, schema)
    dice = random.Random(rounds)
    with World(folder, pause_s=0.2) as world:
        for _ in range(rounds):
            world.give(files=5)
            process = Process(folder, "run")
            try:
                process.until("running")
                SystemEnv().sleep(dice.uniform(0, 4))
            finally:
                process.kill()
        process = Process(folder, "run")
        try:
            # Everything may have been taken in before: then it would be told to end too early.
            process.until("running")
            world.finish()
            process.send(signal.SIGTERM)
            assert process.end() == 130, process.text
        finally:
            process.kill()
    # As the other tests of this process do, which share one Spark.
    check(folder, world, postgres, schema, open_session(SETTINGS))


def project(tmp_path: Path, settings: str, dsn: str, schema: str) -> Path:
    yml = YML.format(settings=settings, dsn=dsn, schema=schema)
    return write_project(tmp_path / "killed", yml, SQL)


def kill_sometime(process: Forked, dice: random.Random) -> None:
    """While it opens, a little after it has begun to work, or when it is about to flush."""
    moment = dice.random()
    if moment < 0.3:
        SystemEnv().sleep(dice.uniform(0, 0.6))
    else:
        process.until("running")
        SystemEnv().sleep(dice.uniform(0, 0.4) if moment < 0.9 else dice.uniform(0.9, 1.3))
    assert process.alive, process.text
    process.kill()


# The world around the pipeline


@dataclass
class World:
    """Puts files into place and pushes rows, whatever happens; knows what it must come to."""

    folder: Path
    pause_s: float = 0.1
    orders: dict[int, tuple[str, int]] = field(default_factory=dict)
    missed: int = 0
    """Deletes of keys that were not there."""
    events: Counter[str] = field(default_factory=Counter)
    pushed: dict[int, tuple[str, int]] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._env = SystemEnv()
        self._enough = threading.Event()
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        self._files = threading.Semaphore(0)
        project = load(self.folder)
        self._tables = {name: project.table(name) for name in ("orders", "events")}
        self._uri = project.open_store(self._env).uri
        jobs = (self._put_files, self._push_orders, self._push_events)
        self._threads = [threading.Thread(target=self._guarded, args=(job,)) for job in jobs]

    def __enter__(self) -> World:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._given_up.set()
        for thread in self._threads:
            thread.join()

    def give(self, files: int) -> None:
        """Allow `files` more files, one after another: a killed process reads few."""
        self._files.release(files)

    def finish(self) -> None:
        """Begin nothing new, and wait until what was begun is acknowledged."""
        self._enough.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a push is never acknowledged"
        assert self.errors == []

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.errors.append(error)

    def _put_files(self) -> None:
        """Operations on few keys, so that many are put and deleted in one file or transaction."""
        dice, number = random.Random(1), 0
        while not self._enough.is_set():
            if not self._files.acquire(timeout=0.05):
                continue
            lines: list[dict[str, object]] = []
            for _ in range(8):
                id, customer, amount = dice.randrange(40), dice.choice("abcd"), dice.randrange(90)
                if dice.random() < 0.6:
                    lines.append({"insert": {"id": id, "customer": customer, "amount": amount}})
                    self.orders[id] = customer, amount
                else:
                    lines.append({"delete": {"id": id}})
                    self.missed += self.orders.pop(id, None) is None
            put_file(self.folder, f"orders-{number:05}.json", lines)
            kinds = [dice.choice("xyz") for _ in range(2)]
            with self._lock:
                self.events.update(kinds)
            rows: list[dict[str, object]] = [{"id": number, "kind": kind} for kind in kinds]
            put_file(self.folder, f"events-{number:05}.json", rows)
            number += 1
            self._env.sleep(self.pause_s)

    def _push_orders(self) -> None:
        """Pushed again and again until it is acknowledged: a key makes that harmless."""
        number = 1000
        while not self._enough.is_set():
            number += 1
            id, row = 1000 + number % 30, ("p", number)
            push = pushed_rows(
                self._tables["orders"], [{"id": id, "customer": row[0], "amount": row[1]}]
            )
            if self._until_done(lambda client: client.push("orders", push.change.put) > 0):
                self.pushed[id] = row
            self._env.sleep(self.pause_s)

    def _push_events(self) -> None:
        """Without a key a row that may be in must be looked for before it is pushed again."""
        number = 1_000_000
        while not self._enough.is_set():
            number += 1
            rows = pushed_rows(self._tables["events"], [{"id": number, "kind": "p"}]).change.put
            doubt = [False]

            def push(client: Client) -> bool:
                if doubt[0] and client.query(f"SELECT * FROM events WHERE id = {number}").num_rows:
                    return True
                doubt[0] = True
                return client.push("events", rows) > 0

            if self._until_done(push):
                with self._lock:
                    self.events["p"] += 1
            self._env.sleep(self.pause_s)

    def _until_done(self, call: Callable[[Client], bool]) -> bool:
        while not self._given_up.is_set():
            try:
                client = connect(self._uri)
                if client is not None:
                    with client:
                        return call(client)
            except (UnavailableError, UnknownOutcomeError, ConnectionError):
                pass
            self._env.sleep(0.02)
        return False


# What must be true in the end


def check(
    folder: Path, world: World, dsn: str, schema: str, spark: SparkSession | None = None
) -> None:
    if spark is None:
        ended = stepwell(folder, "run", "--once")
        assert ended.returncode == 0, ended.stderr
    orders = {**world.orders, **world.pushed}
    with ProjectPipeline(load(folder), SystemEnv(), spark=spark) as pipeline:
        if spark is not None:
            # The same, without a Spark of its own.
            pipeline.run(once=True)
        assert pipeline.deliver()
        status = pipeline.status()
        found = {row["id"]: (row["customer"], row["amount"]) for row in rows(pipeline, "orders")}
        assert found == orders
        assert Counter(row["kind"] for row in rows(pipeline, "events")) == world.events
        letters = rows(pipeline, "orders$errors")
        assert len(letters) == world.missed == status.dead_letters.get("orders", 0)
        revenue = Counter(
            (r["customer"], int(r["total"]), r["n"]) for r in rows(pipeline, "revenue")
        )
        tally = {row["kind"]: row["n"] for row in rows(pipeline, "tally")}
    totals: Counter[str] = Counter()
    for customer, amount in orders.values():
        totals[customer] += amount
    counts = Counter(customer for customer, _ in orders.values())
    assert revenue == Counter((name, totals[name], count) for name, count in counts.items())
    assert tally == dict(world.events)

    logs = {
        "files": files_log(folder / "out" / "files"),
        "delta": delta_log(folder / "out" / "delta_log"),
        "postgres": postgres_log(dsn, schema),
    }
    for kind, log in logs.items():
        numbers = [number for number, *_ in log]
        assert numbers == sorted(numbers), f"{kind}: transactions are out of order"
        assert set(Counter(log).values()) == {1}, f"{kind}: a change is there twice"
        assert Counter(log) == Counter(logs["files"]), f"{kind}: another log than that of the files"
        assert added_up(log) == revenue
    assert max(number for number, *_ in logs["files"]) <= status.transaction
    delta = DeltaTable(str(folder / "out" / "delta")).to_pyarrow_table().to_pylist()
    assert Counter((r["customer"], int(r["total"]), r["n"]) for r in delta) == revenue
    with psycopg.connect(dsn) as connection:
        query = f'SELECT customer, total, n FROM "{schema}".revenue'
        held = connection.execute(query).fetchall()  # type: ignore[arg-type]
        assert Counter((c, int(t), n) for c, t, n in held) == revenue


Log = list[tuple[object, ...]]


def rows(pipeline: ProjectPipeline, relation: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pipeline.table(relation).to_pylist()
    return found


def added_up(log: Log) -> Counter[tuple[object, ...]]:
    view: Counter[tuple[object, ...]] = Counter()
    for _, *row, weight in log:
        view[tuple(row)] += int(str(weight))
        assert view[tuple(row)] >= 0, "a row goes that has not come"
    return +view


def files_log(path: Path) -> Log:
    """In the order in which the folders appeared."""
    log: Log = []
    folders = [entry for entry in path.iterdir() if entry.name.isdigit()]
    for entry in sorted(folders, key=lambda entry: (os.stat(entry).st_ctime_ns, entry.name)):
        for line in (entry / "part.json").read_text().splitlines():
            row = json.loads(line)
            weight = row["_w"]
            log.append((int(entry.name), row["customer"], int(row["total"]), row["n"], weight))
    return log


def delta_log(path: Path) -> Log:
    """In the order of the table's commits, each of which names its last transaction."""
    log: Log = []
    for commit in sorted((path / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        added: list[dict[str, Any]] = []
        for action in actions:
            if "add" in action:
                added += pq.read_table(path / unquote(action["add"]["path"])).to_pylist()
        # The other parts of the mark have longer names.
        marks = [action["txn"] for action in actions if "txn" in action]
        numbers = [mark["version"] for mark in marks if mark["appId"].count("/") == 2]
        assert numbers == [max(row["_transaction"] for row in added)] if added else not numbers
        log += [
            (row["_transaction"], row["customer"], int(row["total"]), row["n"], row["_w"])
            for row in sorted(added, key=lambda row: row["_transaction"])
        ]
    return log


def postgres_log(dsn: str, schema: str) -> Log:
    """In the order of the database's own transactions."""
    order = "xmin::text::bigint, _transaction"
    query = f'SELECT _transaction, customer, total, n, _w FROM "{schema}".log ORDER BY {order}'
    with psycopg.connect(dsn) as connection:
        found = connection.execute(query).fetchall()  # type: ignore[arg-type]
    return [(number, c, int(total), n, weight) for number, c, total, n, weight in found]
