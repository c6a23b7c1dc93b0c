"""`stepwell demo --crash`: kill a pipeline half-way, let it recover, and check the result.

The demo runs a project with many small files on Spark. When half of the transactions are in the
journal, it kills the process with SIGKILL. A second run replays the journal and continues. Then
three results must be equal: the view, its query recomputed over the table, and a few lines of
Python over the files. The sink must hold every transaction once, in order. A crash of the demo
itself leaves the temporary directory behind.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from stepwell.demo.race import Finding
from stepwell.env import Env
from stepwell.errors import UnavailableError
from stepwell.journal.log import Log
from stepwell.model import Position
from stepwell.store.locate import open_store

FILES = 24
ROWS = 250
"""Rows in each file. Every fifth replaces a row of an earlier file."""
PATIENCE_S = 120.0
_LOOK_S = 0.02
CUSTOMERS = ("ada", "barbara", "edith", "grace", "hedy", "katherine")

QUERY = "SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer"
SQL = f"""
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(12,2));
CREATE MATERIALIZED VIEW revenue AS {QUERY};
"""
PROJECT = """
name: demo
store: ./state
transaction: {{max_rows: {rows}}}
sources:
  files: {{table: orders, type: files, path: data/*.json, format: json}}
sinks:
  out: {{view: revenue, type: files, path: out, format: json}}
"""

Group = tuple[str, Decimal, int]


@dataclass(frozen=True, slots=True)
class Story:
    """Events of the demo and the final results."""

    killed_at: int
    """Number of journal entries when the process was killed."""
    resumed: str
    """Message of the second run once it had opened the pipeline."""
    transaction: int
    view: tuple[Group, ...]
    recomputed: tuple[Group, ...]
    by_hand: tuple[Group, ...]
    sink: tuple[Group, ...]
    delivered: tuple[int, ...]
    """Transactions in the sink, in the order of their folders."""


def act(directory: Path, env: Env) -> Story:
    """Write the project, run it, kill it, run it again, and read the results."""
    rows = write(directory)
    killed_at = _run_and_kill(directory, env)
    resumed = _run(directory)
    import stepwell

    with stepwell.open(str(directory)) as pipeline:
        transaction = int(pipeline.transaction_number)
        view = _groups(pipeline.query("SELECT * FROM revenue").to_pylist())
        recomputed = _groups(pipeline.query(QUERY).to_pylist())
    results = view, recomputed, by_hand(rows)
    return Story(killed_at, resumed, transaction, *results, *_delivered(directory / "out"))


def write(directory: Path) -> list[dict[str, object]]:
    """Write the project and its files; return the rows of all files in order."""
    (directory / "data").mkdir(parents=True)
    (directory / "pipeline.sql").write_text(SQL, encoding="utf-8")
    text = PROJECT.format(rows=ROWS)
    (directory / "stepwell.yml").write_text(text, encoding="utf-8")
    every: list[dict[str, object]] = []
    for file in range(FILES):
        # The numbers are arbitrary but must be the same each time.
        rows: list[dict[str, object]] = [
            {
                "id": number * 7919 % (file * ROWS) if number % 5 == 0 and file else number,
                "customer": CUSTOMERS[number * 31 % len(CUSTOMERS)],
                "amount": f"{number * 37 % 10_000}.{number % 100:02}",
            }
            for number in range(file * ROWS, (file + 1) * ROWS)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / "data" / f"{file:04}.json").write_text(lines, encoding="utf-8")
        every += rows
    return every


def by_hand(rows: list[dict[str, object]]) -> tuple[Group, ...]:
    """Compute the expected view: the last row of each key, summed up."""
    amounts: dict[str, list[Decimal]] = {}
    for row in {row["id"]: row for row in rows}.values():
        amounts.setdefault(str(row["customer"]), []).append(Decimal(str(row["amount"])))
    return tuple(sorted((name, sum(each, Decimal()), len(each)) for name, each in amounts.items()))


def _command(directory: Path) -> list[str]:
    return [sys.executable, "-m", "stepwell", "-C", str(directory), "run", "--once"]


def _run_and_kill(directory: Path, env: Env) -> int:
    with (directory / "first.log").open("w") as said:
        process = subprocess.Popen(_command(directory), stdout=said, stderr=said)
        try:
            log = Log(open_store(str(directory / "state"), env))
            began = env.uptime()
            while True:
                entries = int(log.survey(Position(0))) if (directory / "state").exists() else 0
                if entries > FILES // 2:
                    return entries
                if process.poll() is not None or env.uptime() - began > PATIENCE_S:
                    raise UnavailableError(
                        "the run that was to be killed did not get halfway: "
                        + (directory / "first.log").read_text().strip()
                    )
                env.sleep(_LOOK_S)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


_OPENED = "opened at"


def _run(directory: Path) -> str:
    ended = subprocess.run(_command(directory), capture_output=True, text=True)
    if ended.returncode != 0:
        raise UnavailableError(f"the second run failed: {ended.stderr.strip()}")
    lines = ended.stderr.splitlines()
    return next((line[line.index(_OPENED) :] for line in lines if _OPENED in line), "")


def _groups(rows: list[dict[str, object]]) -> tuple[Group, ...]:
    made = [(str(r["customer"]), Decimal(str(r["total"])), int(str(r["n"]))) for r in rows]
    return tuple(sorted(made))


def _delivered(folder: Path) -> tuple[tuple[Group, ...], tuple[int, ...]]:
    """Add up the sink's files; return the rows and the transactions."""
    held: Counter[Group] = Counter()
    numbers = []
    for part in sorted(folder.glob("*/part.json")):
        numbers.append(int(part.parent.name))
        for line in part.read_text(encoding="utf-8").splitlines():
            row = json.loads(line, parse_float=Decimal)
            held[row["customer"], Decimal(row["total"]), row["n"]] += row["_w"]
    return tuple(sorted(held.elements())), tuple(numbers)


def judge(story: Story) -> list[Finding]:
    """Check the guarantees."""
    wanted = list(range(1, story.transaction + 1))
    return [
        Finding(story.killed_at > 0, "the process was killed in the middle, with SIGKILL"),
        Finding("replayed" in story.resumed, f"the next run {story.resumed}"),
        Finding(story.view == story.recomputed, "the view equals its query recomputed by Spark"),
        Finding(
            story.view == story.by_hand,
            "and the result that a few lines of Python compute from the files",
        ),
        Finding(
            list(story.delivered) == wanted,
            f"the sink holds transactions 1 to {story.transaction}, each once and in order",
        ),
        Finding(story.sink == story.view, "and its changes add up to the view"),
    ]
