"""What do checkpoints, clones, verification and collection cost? Against plain reads and writes.

    .venv/bin/python benchmarks/checkpoints.py [--quick] [--only clone] [--json]

Prints tables, as Markdown; RESULTS.md has those of one machine. Works in `.bench/` next to
this directory, on the disk of the repository, and removes it. Nothing is asserted: the figures are
for people to judge. 1 MB is 1,000,000 bytes. `checkpoint` starts Spark.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from _measure import Table, in_turns, section_parser, show_sections, workspace
from stepwell.engine.open import open_writer
from stepwell.env import MonotonicIds, SystemEnv
from stepwell.journal import paths
from stepwell.journal.entry import Draft, Input, Kind
from stepwell.manifest.clone import clone
from stepwell.manifest.destroy import destroy_pipeline
from stepwell.manifest.gc import Collector
from stepwell.manifest.gc import Settings as CollectSettings
from stepwell.manifest.manifest import Run
from stepwell.manifest.run_object import write_run
from stepwell.manifest.verify import verify
from stepwell.model import Checksum, Transaction, checksum
from stepwell.store.local import LocalStore
from stepwell.testing import FaultyStore

ENV = SystemEnv()
MB = 1_000_000


def main() -> None:
    arguments = section_parser(__doc__ or "", SECTIONS).parse_args()
    with workspace() as directory:
        show_sections(
            arguments, SECTIONS, lambda name: SECTIONS[name](directory / name, arguments.quick)
        )


# --- clone: does it grow with the state? ----------------------------------------------------------

SIZES = {"10 MB": 10 * MB, "1 GB": 1000 * MB, "10 GB": 10_000 * MB}
FILES = 40
"""Five relations of eight runs each: what compaction leaves, whatever the size."""
TAIL = 10


def cloning(directory: Path, quick: bool) -> list[Table]:
    parents = {name: _parent(directory / name, size, FILES) for name, size in SIZES.items()}
    name = f"10 GB in {10 * FILES} files"
    parents[name] = _parent(directory / name, SIZES["10 GB"], 10 * FILES)
    written: dict[str, int] = {}

    def act(name: str) -> Callable[[int], None]:
        def run(number: int) -> None:
            place = LocalStore(str(directory / f"clone of {name}" / str(number)), ENV)
            clone(parents[name], place, ENV)

        return run

    for name, parent in parents.items():
        before = _bytes(parent)
        place = LocalStore(str(directory / f"first of {name}"), ENV)
        clone(parent, place, ENV)
        written[name] = _bytes(parent) - before + _bytes(place)
        destroy_pipeline(place, None, ENV)
    rounds = 5 if quick else 40
    times = in_turns({name: act(name) for name in parents}, rounds)
    # Each clone leaves a pin, so the parent's manifest grows: with as many for all of them.
    table = Table(
        "Clone: time and bytes written",
        ("state", "files", "p50 ms", "max ms", "by 10 MB", "bytes written", "by 10 MB, bytes"),
        f"{TAIL} journal entries come along; {rounds} rounds in turns, in the same process.",
    )
    first = next(iter(parents))
    for name in parents:
        table.add(
            name,
            10 * FILES if "files" in name else FILES,
            times[name].median * 1000,
            max(times[name].seconds) * 1000,
            times[name].median / times[first].median,
            written[name],
            written[name] / written[first],
        )
    return [table, _whole_command(directory, parents, quick)]


def _whole_command(directory: Path, parents: dict[str, LocalStore], quick: bool) -> Table:
    """With the start of the process, which is most of it."""

    def run(*arguments: str) -> None:
        command = [sys.executable, "-m", "stepwell", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def act(name: str) -> Callable[[int], None]:
        place = directory / f"command on {name}"
        return lambda number: run("clone", parents[name].uri, str(place / str(number)))

    actions = {f"stepwell clone, {name}": act(name) for name in SIZES}
    actions["python -c 'import stepwell.cli.clone'"] = lambda number: _import()
    rounds = 3 if quick else 10
    table = Table("The whole command", ("what", "p50 s"), f"{rounds} rounds in turns.")
    for name, times in in_turns(actions, rounds, warm_up=1).items():
        table.add(name, times.median)
    return table


def _import() -> None:
    subprocess.run([sys.executable, "-c", "import stepwell.cli.clone"], check=True)


def _parent(place: Path, size: int, files: int) -> LocalStore:
    """A pipeline with so much state: the runs are only named, so their bytes may be anything."""
    store = LocalStore(str(place), ENV)
    ids = MonotonicIds(ENV)
    runs = []
    for number in range(files):
        relation = f"relation{number % 5}"
        path = paths.run(relation, ids.new_id())
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        with open(place / path, "wb") as file:
            file.truncate(size // files)
        digits = Checksum(checksum([path.encode()]))
        runs.append(Run(relation, path, size // files, 1_000_000, digits, [number], [number + 1]))
    shutil.move(str(place / "runs"), str(place.with_name(place.name + " runs")))
    writer = open_writer(store, ENV)
    shutil.move(str(place.with_name(place.name + " runs")), str(place / "runs"))
    floor = ids.new_id()
    writer.commit(lambda manifest: replace(manifest, runs=tuple(runs), floor=floor), "runs")
    data = b"x" * 1000
    for number in range(1, TAIL + 1):
        pushed = Input("push", "orders", 10, checksum([data]), data=data)
        writer.append(Draft(Kind.STEP, Transaction(number), 1, True, ENV.now(), (pushed,)))
    return store


def _bytes(store: LocalStore) -> int:
    return sum(item.size for item in store.list())


# --- checkpoint: against writing the same bytes ---------------------------------------------------

SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer BIGINT, amount DOUBLE, note STRING);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, COUNT(*) AS n, SUM(amount) AS total FROM orders GROUP BY customer;
"""


def checkpointing(directory: Path, quick: bool) -> list[Table]:
    import numpy as np
    import pyarrow as pa

    from stepwell.engine.pipeline import Pipeline
    from stepwell.engine.settings import Settings
    from stepwell.execution.spark.executor import spark_executor
    from stepwell.execution.spark.session import SessionSettings

    table = Table(
        "Full checkpoint against plain writes with fsync of the same bytes",
        ("rows since the last", "rounds", "MB written", "checkpoint ms", "plain ms", "times plain"),
        "Runs of what came in since the last checkpoint, the checkpoint's object, the manifest.",
    )
    draw = np.random.default_rng(1)
    session = SessionSettings(master="local[2]")
    for rows in (1000, 100_000) if quick else (1000, 100_000, 1_000_000):
        store = LocalStore(str(directory / str(rows)), ENV)
        settings = Settings(checkpoint_every_s=1e9, memory_bytes_max=2**40)
        made = spark_executor(SQL, name="benchmark", settings=session)
        rounds = 3 if quick else 7
        ours, plain, sizes = [], [], []
        with Pipeline(store, ENV, executor=made, settings=settings) as pipeline:
            for number in range(rounds + 1):
                ids = np.arange(number * rows, (number + 1) * rows)
                columns = {
                    "id": ids,
                    "customer": draw.integers(0, max(10, rows // 10), rows),
                    "amount": draw.random(rows),
                    "note": [f"order number {id} of a customer" for id in ids],
                }
                pipeline.push("orders", pa.table(columns))
                before = {item.path for item in store.list() if item.path[:7] != "journal"}
                begin = time.perf_counter()
                pipeline.checkpoint()
                spent = time.perf_counter() - begin
                new = [i for i in store.list() if i.path not in before and i.path[:7] != "journal"]
                bodies = [found.data for i in new if (found := store.get(i.path)) is not None]
                again = _plainly(directory / f"{rows} again" / str(number), bodies)
                if number:  # The first is to warm up.
                    ours.append(spent)
                    plain.append(again)
                    sizes.append(sum(map(len, bodies)))
        ms, plain_ms = statistics.median(ours) * 1000, statistics.median(plain) * 1000
        table.add(rows, rounds, statistics.median(sizes) / MB, ms, plain_ms, ms / plain_ms)
    return [table]


def _plainly(place: Path, bodies: Sequence[bytes]) -> float:
    """Seconds to write each body to a file of its own, durably, and the name with it."""
    place.mkdir(parents=True)
    begin = time.perf_counter()
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    for number, body in enumerate(bodies):
        file = os.open(place / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, body)
        os.fsync(file)
        os.close(file)
        os.fsync(directory)
    os.close(directory)
    return time.perf_counter() - begin


# --- verify: against plain reads ------------------------------------------------------------------


def verifying(directory: Path, quick: bool) -> list[Table]:
    table = Table(
        "Verify against plain reads of the same files",
        ("state MB", "files", "rounds", "shallow ms", "deep ms", "plain ms", "times plain"),
        "Plain: every file in pieces of 8 MiB, and nothing computed. All of it from the cache.",
    )
    for size in (100 * MB,) if quick else (100 * MB, 1000 * MB):
        place = directory / str(size)
        store = LocalStore(str(place), ENV)
        writer = open_writer(store, ENV)
        ids, runs = MonotonicIds(ENV), []
        for number in range(FILES):
            body = os.urandom(size // FILES)
            runs.append(write_run(store, ids, f"relation{number % 5}", body, 1))
        floor = ids.new_id()
        writer.commit(lambda m, r=tuple(runs), f=floor: replace(m, runs=r, floor=f), "runs")
        writer.close()
        files = [place / run.path for run in runs]

        def plainly(number: int, files: list[Path] = files) -> None:
            for name in files:
                with open(name, "rb", buffering=0) as file:
                    while file.read(8 * 2**20):
                        pass

        def deep(number: int, store: LocalStore = store, whole: bool = True) -> None:
            if verify(store, ENV, deep=whole).findings:
                raise AssertionError("the benchmark's pipeline is damaged")

        actions = {"plain": plainly, "deep": deep, "shallow": partial(deep, whole=False)}
        rounds = 3 if quick else 10
        times = in_turns(actions, rounds, warm_up=1)
        ms = {name: value.median * 1000 for name, value in times.items()}
        row = (size / MB, FILES, rounds, ms["shallow"], ms["deep"], ms["plain"])
        table.add(*row, ms["deep"] / ms["plain"])
    return [table]


# --- gc: many objects -----------------------------------------------------------------------------


def collecting(directory: Path, quick: bool) -> list[Table]:
    table = Table(
        "Collection of many objects, in a directory",
        ("objects", "go", "plan s", "requests", "collect s", "requests, all"),
        "Half of them are needed by nothing. A request is a call on the store; a listing is one.",
    )
    for count in (10_000,) if quick else (10_000, 100_000):
        place = directory / str(count)
        store = LocalStore(str(place), ENV)
        writer = open_writer(store, ENV)
        ids, runs = MonotonicIds(ENV), []
        folder = place / "runs" / "t"
        folder.mkdir(parents=True)
        for number in range(count):
            path = paths.run("t", ids.new_id())
            (place / path).write_bytes(b"x")
            if number % 2:
                runs.append(Run("t", path, 1, 1, checksum([b"x"])))
        floor = ids.new_id()
        writer.commit(lambda m, r=tuple(runs), f=floor: replace(m, runs=r, floor=f), "runs")
        counting = FaultyStore(store)
        collector = Collector(counting, ENV, settings=CollectSettings(grace_s=0.0))
        begin = time.perf_counter()
        plan = collector.plan()
        planned, asked = time.perf_counter() - begin, len(counting.calls)
        begin = time.perf_counter()
        collector.collect()
        spent = time.perf_counter() - begin
        total = len(counting.calls) - asked
        table.add(count, len(plan.garbage), planned, asked, spent, total)
    return [table]


SECTIONS: dict[str, Callable[[Path, bool], list[Table]]] = {
    "clone": cloning,
    "checkpoint": checkpointing,
    "verify": verifying,
    "gc": collecting,
}

if __name__ == "__main__":
    main()
