"""What do views of many CTEs over small tables cost: to compile, to build, and for each change?

    .venv/bin/python benchmarks/bodies.py [--only plans] [--quick] [--json]

    plans      1, 5, 12 and 50 kB without Spark: relations, operators, SQL, CPU time of each step
    changes    compiling and building bodies on Spark, and small changes against recomputing them

`changes` runs 5 and 12 kB, with --quick only 5 kB, over 50 rows a table, and a 32-way self-join. A
change replaces three rows of one table; then Spark recomputes the view from its text. Times of
`changes` are by the clock, both sides in one run: on a busy machine only their ratio means much.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import _bodies
from _measure import Table, say, section_parser, show_sections, workspace
from stepwell.execution.local.backend import LocalBackend
from stepwell.execution.local.expressions import ExpressionEvaluator
from stepwell.execution.local.support import Decisions
from stepwell.execution.spark.session import SessionSettings, open_session
from stepwell.execution.spark.views import Change, Views
from stepwell.plan.column_names import ColumnNames
from stepwell.plan.join_order import Estimates
from stepwell.plan.maintain import Maintenance
from stepwell.plan.nodes import Names, Node, Scan, operators, walk
from stepwell.plan.program import Block, Full, Program
from stepwell.plan.render import render
from stepwell.sql.catalog import catalog_of
from stepwell.sql.parse import parse_query

ROWS = 50
WAYS = 32


def main() -> None:
    parser = section_parser(__doc__ or "", SECTIONS)
    arguments = parser.parse_args()
    show_sections(arguments, SECTIONS, lambda name: SECTIONS[name](arguments.quick))


def plans(quick: bool) -> list[Table]:
    table = Table(
        "Bodies without Spark: what is planned, and CPU seconds of each step",
        (
            "characters",
            "relations",
            "operators",
            "operators of a change",
            "SQL of a change, kB",
            "parse",
            "lower",
            "maintain",
            "decide and explain",
        ),
    )
    bodies = [_bodies.body(size) for size in (1_000, 5_000, 12_000, 50_000)]
    for text in [*bodies, _bodies.self_join(WAYS)]:
        table.add(*_planned(text))
    return [table]


def _planned(text: str) -> tuple[object, ...]:
    clock = [time.process_time()]
    parse_query(text, catalog_of(_bodies.columns(), {}), share=True)
    clock.append(time.process_time())
    types = _bodies.Types()
    blocks, output = types.lowered(text)
    clock.append(time.process_time())
    nodes = [node for block in blocks for node in _change_of(block)]
    clock.append(time.process_time())
    names = ColumnNames()
    for name, columns in _bodies.columns().items():
        names.add_table(name, columns)
    shown = tuple(f"x{i}" for i in range(len(output.columns)))
    program = Program("v", shown, types.of(output), blocks, output)
    names.add_program(program)
    decisions = Decisions(
        LocalBackend(ExpressionEvaluator(lambda sql: None)),
        lambda relation: types.known[relation],
        lambda: dict.fromkeys(_bodies.TABLES, (0,)),
        names,
    )
    decisions.add(program)
    str(decisions.explain(program))
    clock.append(time.process_time())
    parsing, lowering, maintaining, deciding = (
        after - before for before, after in itertools.pairwise(clock)
    )
    return (
        len(text),
        len(blocks),
        sum(operators(block.input) for block in blocks if not isinstance(block, Full)),
        sum(map(operators, nodes)),
        sum(len(render(node, lambda relation, when: "t").sql) for node in nodes) // 1000,
        parsing,
        lowering - parsing,
        maintaining,
        deciding,
    )


def _change_of(block: Block) -> list[Node]:
    """The queries of a block if all of its inputs change."""
    if isinstance(block, Full):
        return []
    reads = frozenset(node.relation for node in walk(block.input) if isinstance(node, Scan))
    maintenance = Maintenance(Names(prefix="_m"), reads, Estimates())
    change = maintenance.plan(block)
    return [*(stage.node for stage in maintenance.stages), *([change] if change else [])]


def changes(quick: bool) -> list[Table]:
    spark = open_session(SessionSettings(driver_memory="3g"))
    table = Table(
        f"Bodies over {ROWS} rows a table: seconds by the clock",
        (
            "body",
            "relations",
            "compile and build",
            "queries",
            "change of",
            "change",
            "queries of it",
            "recompute",
        ),
    )
    bodies = {f"{size} kB": _bodies.body(1000 * size) for size in ((5,) if quick else (5, 12))}
    bodies[f"{WAYS}-way self-join"] = _bodies.self_join(WAYS)
    with workspace() as folder:
        for number, (name, text) in enumerate(bodies.items()):
            _changed(spark, table, name, text, Path(folder) / str(number), 2 if quick else 4)
    return [table]


def _changed(
    spark: SparkSession, table: Table, name: str, text: str, folder: Path, rounds: int
) -> None:
    say(f"  {name}")
    sql = f"{_bodies.SCHEMA}\nCREATE MATERIALIZED VIEW v AS {text};"
    begin = time.perf_counter()
    views = Views.open(spark, sql, tables=_bodies.rows(ROWS), folder=folder)
    opened = time.perf_counter() - begin
    queries = views._evaluator.queries
    [program] = views.programs
    read = {n.relation for b in program.blocks if not isinstance(b, Full) for n in walk(b.input)
            if isinstance(n, Scan)}  # fmt: skip
    views.recompute("v")
    for changed in (name for name in _bodies.TABLES if name in read):
        ours, theirs, asked = list[float](), list[float](), list[int]()
        for number in range(rounds):
            rows = _bodies.MADE[changed](range(3 + number, 6 + number), ROWS, 100 + number)
            begin = time.perf_counter()
            asked.append(views.apply({changed: Change(put=rows)}).queries)
            ours.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            views.recompute("v")
            theirs.append(time.perf_counter() - begin)
        # The first change of a table makes the plans.
        table.add(
            name,
            len(program.blocks),
            opened,
            queries,
            changed,
            statistics.median(ours[1:] or ours),
            max(asked),
            statistics.median(theirs[1:] or theirs),
        )


SECTIONS: dict[str, Callable[[bool], list[Table]]] = {"plans": plans, "changes": changes}

if __name__ == "__main__":
    main()
