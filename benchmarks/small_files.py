"""How fast is a backlog of many small files ingested, and does it slow down?

    .venv/bin/python benchmarks/small_files.py [--quick] [--only reference] [--json]

Files of three rows each, under random names, and one view over them, ingested by `stepwell run
--once`: a whole process, Spark's start included. Then the same command again, with nothing new. CPU
is what the system counts for the command, mostly Python's. The entries are the first and the last
full one of the journal: an entry is to hold its own step and nothing more. Works in `.bench/`, and
removes it.
"""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from _measure import Table, section_parser, show_sections, timed, workspace
from stepwell.testing import reference_executor

YML = """\
name: small
store: ./state
sources:
  files: {table: orders, type: files, path: in/*.json, format: json}
"""
SQL = """\
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING, amount BIGINT);
CREATE MATERIALIZED VIEW totals AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
"""
FILES = {"reference": (2_000, 10_000), "spark": (10_000, 100_000)}
"""Quick, and in full: the reference recomputes every view with each step, and is for tests."""
COLUMNS = (
    *("files", "s", "CPU s", "files/s"),
    *("first entry KB", "last entry KB", "journal MB", "names MB", "again s"),
)
ROWS = 3


def main() -> None:
    arguments = section_parser(__doc__ or "", FILES).parse_args()
    with workspace() as folder:
        show_sections(
            arguments, FILES, lambda name: [measure(folder / name, name, arguments.quick)]
        )


def measure(folder: Path, executor: str, quick: bool) -> Table:
    count = FILES[executor][0 if quick else 1]
    write_project(folder, count)
    before = getrusage(RUSAGE_CHILDREN)
    first = timed(lambda: run(folder, executor))
    after = getrusage(RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    again = timed(lambda: run(folder, executor))
    entries = sorted((folder / "state" / "journal").glob("*.arrow"))
    sizes = [path.stat().st_size for path in entries]
    full = [size for size in sizes if size > max(sizes) / 2]
    names = sum(path.stat().st_size for path in folder.glob("state/runs/files%24taken/*"))
    table = Table(f"A backlog of small files, {executor}", COLUMNS)
    table.add(
        *(count, first, cpu, count / first),
        *(full[0] / 1000, full[-1] / 1000, sum(sizes) / 1e6, names / 1e6, again),
    )
    return table


def write_project(folder: Path, count: int) -> None:
    (folder / "in").mkdir(parents=True)
    (folder / "stepwell.yml").write_text(YML)
    (folder / "pipeline.sql").write_text(SQL)
    draw = random.Random(7)
    for number in range(count):
        ids = range(number * ROWS, (number + 1) * ROWS)
        rows = (f'{{"id":{id},"customer":"c{id % 50}","amount":{id % 7}}}\n' for id in ids)
        (folder / "in" / f"{draw.getrandbits(64):016x}.json").write_text("".join(rows))


def run(folder: Path, executor: str) -> None:
    command = [sys.executable, "-m", "stepwell", "run", "--once"]
    with reference_executor() if executor == "reference" else nullcontext():
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


if __name__ == "__main__":
    main()
