"""Systems that bring the TPC-H views up to date, each in a process of its own.

Every one is given the same files and the same changes, runs on the same two cores, and waits while
another one works. `Stepwell` maintains the views, `DuckDB` recomputes them from native tables,
`Spark` recomputes them from Parquet. What they answer is compared by `check_same`, so that nobody
is measured at other work.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather

import _changes
import _tpch
from _changes import Change
from _measure import timed

THREADS = 2
DUCKDB_MEMORY = "8GB"
DRIVER_MEMORY = "4g"

STATEMENTS = _changes.views(_tpch.SQL)
QUERIES = {name: _changes.query_of(statement) for name, statement in STATEMENTS.items()}
TOUCHED = tuple(n for n, query in QUERIES.items() if re.search(r"\b(orders|lineitem)\b", query))
"""The views that read what the changes change."""


# --- the same change for all ----------------------------------------------------------------------


def write_change(folder: Path, change: Mapping[str, Change]) -> Path:
    """Store a change where other processes can read it."""
    folder.mkdir(parents=True)
    for table, part in change.items():
        for kind, rows in (("put", part.put), ("delete", part.delete)):
            if rows is not None:
                feather.write_feather(rows, folder / f"{table}.{kind}", compression="uncompressed")
    return folder


def read_change(folder: Path) -> dict[str, Change]:
    parts: dict[str, dict[str, pa.Table]] = {}
    for file in sorted(folder.iterdir()):
        table, _, kind = file.name.partition(".")
        parts.setdefault(table, {})[kind] = feather.read_table(file, memory_map=False)
    return {table: Change(part.get("put"), part.get("delete")) for table, part in parts.items()}


# --- the same answers from all --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A result in few numbers: its rows, and one number for each column."""

    rows: int
    columns: tuple[float, ...]


class DifferentAnswersError(Exception):
    """Two systems did not compute the same."""


def fingerprint(result: pa.Table) -> Fingerprint:
    """Numbers are added up, dates as days, texts as lengths; the order of rows does not count."""
    return Fingerprint(result.num_rows, tuple(_total(column) for column in result.columns))


def _total(column: pa.ChunkedArray) -> float:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = pc.utf8_length(column)
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return float(pc.sum(column.cast(pa.float64()), min_count=0).as_py())


def check_same(answers: Mapping[str, Mapping[str, Fingerprint]], views: Sequence[str]) -> None:
    """Raise if systems differ by more than the rounding of averages and quotients."""
    (one, ours), *others = answers.items()
    for other, theirs in others:
        for view in views:
            if not _same(ours[view], theirs[view]):
                raise DifferentAnswersError(
                    f"{view}: {one} and {other} do not agree\n"
                    f"{one}: {ours[view]}\n{other}: {theirs[view]}"
                )


def _same(one: Fingerprint, other: Fingerprint) -> bool:
    if (one.rows, len(one.columns)) != (other.rows, len(other.columns)):
        return False
    pairs = zip(one.columns, other.columns, strict=True)
    return all(abs(a - b) <= 1e-6 * (one.rows + abs(a)) for a, b in pairs)


# --- what a process costs -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Gigabytes of a process and of the Java that it started."""

    peak: float
    peak_java: float
    held: float
    """Now, without Java and without the pages of files that are mapped."""


def cpu_seconds() -> float:
    """CPU time of this process and all it started, Java included."""
    ticks = os.sysconf("SC_CLK_TCK")
    below = 0
    for pid in _descendants(os.getpid()):
        with suppress(OSError):
            fields = _stat(pid)
            # utime, stime, and the same of children that have ended.
            below += sum(int(field) for field in fields[11:15])
    ended = os.times()
    return time.process_time() + below / ticks + ended.children_user + ended.children_system


def memory() -> Memory:
    own = _status(os.getpid())
    peak_java = 0.0
    for pid in _descendants(os.getpid()):
        with suppress(OSError):
            found = _status(pid)
            if found["Name"] == "java":
                peak_java += _gigabytes(found["VmHWM"])
    return Memory(_gigabytes(own["VmHWM"]), peak_java, _gigabytes(own["RssAnon"]))


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _gigabytes(text: str) -> float:
    return int(text.removesuffix(" kB")) / 2**20


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may itself contain blanks: state, parent, and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parents[int(folder.name)] = int(_stat(int(folder.name))[1])
    found, level = list[int](), {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found += level
    return found


# --- processes ------------------------------------------------------------------------------------


class Process:
    """A system in another process. A call waits for its answer."""

    def __init__(self, make: Callable[..., object], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=False)
        self._process.start()
        theirs.close()
        self._answer()

    def call(self, method: str, *arguments: object) -> Any:
        self._pipe.send((method, arguments))
        return self._answer()

    def close(self) -> None:
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join()

    def _answer(self) -> Any:
        try:
            failed, answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(
                f"a process ended with code {self._process.exitcode}; was there enough memory?"
            ) from None
        if failed:
            self.close()
            raise RuntimeError(failed)
        return answer

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(pipe: Connection, make: Callable[..., object], arguments: Sequence[object]) -> None:
    # The same cores for all, and for the Java that they start.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    pa.set_cpu_count(THREADS)
    served: object = None
    request: tuple[str, Sequence[object]] | None = ("", ())
    while request is not None:
        method, given = request
        try:
            if method:
                answer = getattr(served, method)(*given)
            else:
                served, answer = make(*arguments), None
            pipe.send((None, answer))
        except Exception:  # noqa: BLE001 - the process that called raises it
            pipe.send((traceback.format_exc(), None))
        try:
            request = pipe.recv()
        except EOFError:
            return


@dataclass(frozen=True, slots=True)
class Opened:
    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Applied:
    """One change: seconds in all, CPU seconds, and the seconds of each view."""

    seconds: float
    cpu: float
    views: Mapping[str, float]
    with_difference: Mapping[str, float]
    """With the difference to the result before, where that is computed apart."""


# Stepwell and Spark are imported by those that use them: they are no part of DuckDB's memory.


def _session() -> Any:
    from stepwell.execution.spark.session import SessionSettings, open_session

    return open_session(SessionSettings(f"local[{THREADS}]", driver_memory=DRIVER_MEMORY))


class Stepwell:
    """The views as one pipeline, without a journal, as in `views.py`."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._spark = _session()

    def open(self) -> Opened:
        from stepwell.execution.spark.views import Views

        text = "\n".join([(_tpch.SQL / "schema.sql").read_text("utf-8"), *STATEMENTS.values()])
        begin, cpu = time.perf_counter(), cpu_seconds()
        tables = {name: self._spark.read.parquet(str(f)) for name, f in self._files.items()}
        self._views = Views.open(self._spark, text, tables=tables)
        return Opened(time.perf_counter() - begin, cpu_seconds() - cpu)

    def apply(self, folder: Path) -> Applied:
        from stepwell.lsm.change import Change

        change = {t: Change(c.put, c.delete) for t, c in read_change(folder).items()}
        cpu, begin = cpu_seconds(), time.perf_counter()
        executed = self._views.apply(change)
        seconds = time.perf_counter() - begin
        return Applied(seconds, cpu_seconds() - cpu, executed.seconds_of, executed.seconds_of)

    def answers(self) -> dict[str, Fingerprint]:
        return {name: fingerprint(self._views.read(name)) for name in QUERIES}

    def memory(self) -> Memory:
        return memory()


class Durable:
    """The views in a project with a local store, opened by `stepwell.open`."""

    def __init__(self, folder: Path, files: Mapping[str, Path]) -> None:
        self._folder = folder
        self._files = files
        self._spark = _session()

    def load(self) -> tuple[float, float]:
        """Seconds to load the tables, and to deploy the views over them."""
        from stepwell.deploy.apply import deploy
        from stepwell.deploy.project import load_project
        from stepwell.env import SystemEnv

        self._folder.mkdir(parents=True)
        sources = [
            f"  {table}: {{table: {table}, type: files, path: {file}, format: parquet}}"
            for table, file in self._files.items()
        ]
        lines = [
            "name: tpch",
            "store: ./state",
            "cache: {path: ./cache}",
            "transaction: {max_rows: 1000000, max_bytes: 1GiB}",
            "sources:",
            *sources,
        ]
        (self._folder / "stepwell.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        shutil.copy(_tpch.SQL / "schema.sql", self._folder)
        begin = time.perf_counter()
        self.open()
        self._pipeline.run(once=True)
        self._pipeline.close()
        loaded = time.perf_counter() - begin
        for name, statement in STATEMENTS.items():
            (self._folder / f"{name}.sql").write_text(statement, encoding="utf-8")
        env = SystemEnv()
        project = load_project(self._folder, env)
        deployed = timed(lambda: deploy(project, env, approve=lambda plan: True, spark=self._spark))
        return loaded, deployed

    def open(self) -> float:
        import stepwell

        begin = time.perf_counter()
        self._pipeline = stepwell.open(self._folder, spark=self._spark)
        return time.perf_counter() - begin

    def apply(self, folder: Path) -> tuple[float, float]:
        """Seconds and CPU seconds of one transaction: when it returns, it is durable."""
        parts = [
            (
                table,
                part.put,
                None if part.delete is None else part.delete.select(_tpch.KEYS[table]),
            )
            for table, part in read_change(folder).items()
        ]
        cpu, begin = cpu_seconds(), time.perf_counter()
        if len(parts) == 1:
            [(table, put, gone)] = parts
            self._pipeline.push(table, put, delete=gone)
        else:
            with self._pipeline.transaction() as transaction:
                for table, put, gone in parts:
                    transaction.push(table, put, delete=gone)
        return time.perf_counter() - begin, cpu_seconds() - cpu

    def close(self) -> None:
        self._pipeline.close()


class DuckDB:
    """Native tables in a file, results in temporary tables; the queries run as they stand."""

    def __init__(self, files: Mapping[str, Path], folder: Path) -> None:
        duckdb = import_duckdb()
        self._files = files
        folder.mkdir(parents=True)
        self._db = duckdb.connect(str(folder / "tpch.duckdb"))
        self._db.execute(f"SET threads = {THREADS}")
        self._db.execute(f"SET memory_limit = '{DUCKDB_MEMORY}'")
        self._db.execute(f"SET temp_directory = '{folder / 'spilled'}'")

    def open(self) -> Opened:
        """Load the tables and compute every view once."""
        begin, cpu = time.perf_counter(), cpu_seconds()
        for table, file in self._files.items():
            self._db.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet('{file}')")
        for view, query in QUERIES.items():
            self._db.execute(f"CREATE TEMP TABLE {view} AS {query}")
        return Opened(time.perf_counter() - begin, cpu_seconds() - cpu)

    def apply(self, folder: Path) -> Applied:
        change = read_change(folder)
        cpu, begin = cpu_seconds(), time.perf_counter()
        self._change_tables(change)
        views: dict[str, float] = {}
        with_difference: dict[str, float] = {}
        for view in TOUCHED:
            views[view] = timed(lambda view=view: self._recompute(view))
            with_difference[view] = views[view] + timed(lambda view=view: self._differ(view))
        seconds = time.perf_counter() - begin
        applied = Applied(seconds, cpu_seconds() - cpu, views, with_difference)
        # Not timed, as compaction in the background is not.
        self._db.execute("CHECKPOINT")
        return applied

    def _change_tables(self, change: Mapping[str, Change]) -> None:
        self._db.execute("BEGIN")
        for table, part in change.items():
            if part.delete is not None:
                keys = _tpch.KEYS[table]
                self._db.register("gone", part.delete.select(keys))
                same = " AND ".join(f"{table}.{key} = gone.{key}" for key in keys)
                self._db.execute(f"DELETE FROM {table} USING gone WHERE {same}")
            if part.put is not None:
                self._db.register("come", part.put)
                self._db.execute(f"INSERT INTO {table} SELECT * FROM come")
        self._db.execute("COMMIT")

    def _recompute(self, view: str) -> None:
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE new_{view} AS {QUERIES[view]}")

    def _differ(self, view: str) -> None:
        """What a sink needs: the rows that go, and the rows that come."""
        for one, other in ((view, f"new_{view}"), (f"new_{view}", view)):
            self._db.sql(f"SELECT * FROM {one} EXCEPT ALL SELECT * FROM {other}").to_arrow_table()
        self._db.execute(f"DROP TABLE {view}")
        self._db.execute(f"ALTER TABLE new_{view} RENAME TO {view}")

    def answers(self) -> dict[str, Fingerprint]:
        return {n: fingerprint(self._db.sql(f"FROM {n}").to_arrow_table()) for n in QUERIES}

    def memory(self) -> Memory:
        return memory()


def import_duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise SystemExit("duckdb is not installed\nhint: pip install 'stepwell[bench]'") from error
    return duckdb


class Spark:
    """Every view's own SELECT over the Parquet files, its result fetched."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._spark = _session()
        for table, file in files.items():
            self._spark.read.parquet(str(file)).createOrReplaceTempView(table)
        self._answers: dict[str, Fingerprint] = {}

    def open(self) -> Opened:
        """Compute every view once, as a process does that has just started."""
        begin, cpu = time.perf_counter(), cpu_seconds()
        results = {name: self._spark.sql(query).toArrow() for name, query in QUERIES.items()}
        opened = Opened(time.perf_counter() - begin, cpu_seconds() - cpu)
        self._answers = {name: fingerprint(result) for name, result in results.items()}
        return opened

    def recompute(self, rounds: int) -> dict[str, float]:
        return {
            view: statistics.median(
                timed(lambda view=view: self._spark.sql(QUERIES[view]).toArrow())
                for _ in range(rounds)
            )
            for view in TOUCHED
        }

    def answers(self) -> dict[str, Fingerprint]:
        return self._answers

    def memory(self) -> Memory:
        return memory()
