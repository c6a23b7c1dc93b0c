"""How long does it take to look at a project of many views, and to change one of them?

    .venv/bin/python benchmarks/deploy.py [--only change] [--quick] [--json]

    commands   `--help`, `validate` and `plan` as a person types them; no Spark is started
    change     deploying a change to one view on Spark, against all of them; which are compiled

Prints tables, as Markdown; RESULTS.md has those of one machine. Nothing is asserted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _measure import Table, Times, say, section_parser, show_sections, timed, workspace
from stepwell.deploy.apply import deploy
from stepwell.deploy.open import open_pipeline
from stepwell.deploy.project import load_project
from stepwell.env import SystemEnv
from stepwell.execution.spark.compiler import Compiler
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.plan.program import Program
from stepwell.sql.statements import MaterializedView

YML = """\
name: many
store: ./state
sinks:
  out: {view: view_0, type: files, path: out, format: json}
"""
TABLES = 10
ROWS = 1_000


def main() -> None:
    arguments = section_parser(__doc__ or "", SECTIONS).parse_args()
    with workspace() as directory:
        show_sections(
            arguments,
            SECTIONS,
            lambda name: SECTIONS[name](directory / name, 20 if arguments.quick else 200),
        )


def write_project(folder: Path, views: int, changed: frozenset[int] = frozenset()) -> None:
    """Joins with groups, filters, windows and views on views, over ten tables; one has a sink."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stepwell.yml").write_text(YML, encoding="utf-8")
    text = [
        f"CREATE TABLE t{i} (id BIGINT PRIMARY KEY, k BIGINT, amount BIGINT, note STRING);"
        for i in range(TABLES)
    ]
    text += [
        f"CREATE MATERIALIZED VIEW view_{i} AS {query(i, i in changed)};" for i in range(views)
    ]
    (folder / "pipeline.sql").write_text("\n".join(text) + "\n", encoding="utf-8")


def query(number: int, changed: bool) -> str:
    more = 1 if changed else 0
    table, other = f"t{number % TABLES}", f"t{(number + 1) % TABLES}"
    match number % 4:
        case 0:
            return (
                f"SELECT a.k, SUM(b.amount) + {more} AS total, COUNT(*) AS n FROM {table} a "
                f"JOIN {other} b ON a.id = b.id WHERE a.amount > {number} GROUP BY a.k"
            )
        case 1:
            return (
                f"SELECT id, upper(note) AS note, amount + {more} AS amount "
                f"FROM {table} WHERE k % 7 = 1"
            )
        case 2:
            return (
                f"SELECT id, k, {more} + RANK() OVER (PARTITION BY k ORDER BY amount DESC) "
                f"AS place FROM {table}"
            )
        case _:
            return (
                f"SELECT b.note, COUNT(*) + {more} AS n "
                f"FROM view_{number - 2} a JOIN {table} b ON a.id = b.id GROUP BY b.note"
            )


def commands(folder: Path, views: int) -> list[Table]:
    """As processes, from a shell's point of view."""
    write_project(folder, views)
    rounds = 5
    table = Table(f"A project of {views} views", ("command", "p50 s", "worst s"))
    run = [sys.executable, "-m", "stepwell", "-C", str(folder)]
    for command in ("--help", "validate", "plan"):
        line = [*run[:3], command] if command == "--help" else [*run, command]

        def act(line: list[str] = line) -> None:
            subprocess.run(line, check=True, capture_output=True)

        act()
        times = Times(tuple(timed(act) for _ in range(rounds)))
        table.add(f"stepwell {command}", times.median, times.percentile(100))
    return [table]


@contextmanager
def watched() -> Iterator[list[str]]:
    """The names of views as they are compiled."""
    compiled: list[str] = []
    compile_view = Compiler.compile

    def compile_it(self: Compiler, view: MaterializedView, *rest: Any) -> Program:
        compiled.append(view.name)
        return compile_view(self, view, *rest)

    Compiler.compile = compile_it  # type: ignore[method-assign]
    try:
        yield compiled
    finally:
        Compiler.compile = compile_view  # type: ignore[method-assign]


def change(folder: Path, views: int) -> list[Table]:
    """With rows in the tables, and a Spark that is warm."""
    env = SystemEnv()
    spark = open_session(SessionSettings())
    table = Table(
        f"Deploying to a pipeline of {views} views over {TABLES} tables of {ROWS:,} rows",
        ("what", "views compiled", "s", "against all"),
    )

    def once(name: str, changed: frozenset[int]) -> tuple[str, int, float]:
        write_project(folder, views, changed)
        project = load_project(folder, env)
        with watched() as compiled:
            took = timed(lambda: deploy(project, env, approve=lambda plan: True, spark=spark))
        say(f"  {name}: {took:.1f} s")
        return name, len(compiled), took

    found = [once("the first deploy, without rows", frozenset())]
    with open_pipeline(folder, spark=spark) as pipeline:
        rows = [
            {"id": i, "k": i % 100, "amount": i % 1000, "note": f"n{i % 50}"} for i in range(ROWS)
        ]
        with pipeline.transaction() as transaction:
            for number in range(TABLES):
                transaction.push(f"t{number}", rows)
        pipeline.checkpoint()
    found.append(once("one view", frozenset({views - 2})))
    found.append(once("that view back", frozenset()))
    found.append(once("one view that a sink follows", frozenset({0})))
    found.append(once("one view that another reads", frozenset({0, views - 3})))
    found.append(once("every view", frozenset(range(views)) - {0, views - 3}))
    with watched() as compiled:
        took = timed(lambda: open_pipeline(folder, spark=spark).close())
    found.append(("for comparison: opening it to run", len(compiled), took))
    every = next(took for name, _, took in found if name == "every view")
    for name, count, took in found:
        table.add(name, count, took, f"{took / every:.3f}")
    return [table]


SECTIONS: Mapping[str, Callable[[Path, int], list[Table]]] = {
    "commands": commands,
    "change": change,
}

if __name__ == "__main__":
    main()
