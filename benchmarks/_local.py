"""The TPC-H views maintained in this process: opened in seconds, and Spark is not even started.

A transaction of few rows needs no query, so what it costs can be measured without a session. Types
that Spark would tell when a view is deployed are inferred here, which is enough for these 22
queries; constants are computed by DuckDB. Anything that would need Spark raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from sqlglot import exp

import _rivals
import _tpch
from stepwell.env import SystemEnv
from stepwell.execution.backend import NotSupported
from stepwell.execution.limits import QueryLimits
from stepwell.execution.local import quotients
from stepwell.execution.local.expressions import ExpressionEvaluator, Value, arrow_of
from stepwell.execution.spark import evaluate, frames, views
from stepwell.execution.spark.views import Views
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.cache import Cache
from stepwell.lsm.part import Part, Relation
from stepwell.plan.lower import Lowering
from stepwell.plan.nodes import (
    Accumulate,
    Aggregate,
    Filter,
    Inner,
    Join,
    Node,
    Project,
    Scan,
    TopN,
    Union,
    children,
)
from stepwell.plan.numbers import average_width, decimal_text, decimal_width, total_width
from stepwell.plan.program import Program
from stepwell.plan.shape import typed
from stepwell.plan.types import stored_type
from stepwell.sql.catalog import catalog_of
from stepwell.sql.parse import parse_query
from stepwell.sql.statements import MaterializedView, Table, parse_statements
from stepwell.text import Source

MEMORY_ROWS_MAX = 100_000


class NoSpark:
    """Stands in for a session, and fails when it is asked for anything but a setting."""

    class _Conf:
        def get(self, key: str, default: str | None = None) -> str | None:
            return default

    conf = _Conf()

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"Spark is asked for {name}, but this benchmark runs without it")


def constants(_spark: object) -> Any:
    """Constants of the 22 queries: dates, and dates moved by an interval."""
    known: dict[str, Value | None] = {}

    def constant(sql: str) -> Value | None:
        if sql not in known:
            # Two decimals of two digits have a sum or difference of three.
            type_ = "date" if "DATE" in sql else "decimal(3,2)" if "." in sql else "int"
            [value] = duckdb.execute(f"SELECT CAST({sql} AS {type_})").fetchone() or [None]
            known[sql] = Value(pa.scalar(value, arrow_of(type_)), type_)
        return known[sql]

    return constant


class Types:
    """The types of plans, as Spark would tell them."""

    def __init__(self, relations: Mapping[str, Relation]) -> None:
        self._relations = relations
        self._computing = ExpressionEvaluator(constants(None))

    def of(self, node: Node) -> tuple[str, ...]:
        named = self._named(node)
        return tuple(named[name] for name in node.columns)

    def _named(self, node: Node) -> dict[str, str]:
        match node:
            case Scan():
                return dict(zip(node.columns, self._relations[node.relation].types, strict=False))
            case Project():
                below = self._named(node.input)
                return {name: self._expression(e.tree, below) for name, e in node.items}
            case Aggregate():
                below = self._named(node.input)
                made = {key: below[key] for key in node.keys}
                return made | {name: self._call(e.tree, below) for name, e in node.calls}
            case Union():
                types = self.of(node.inputs[0])
                return dict(zip(node.columns, types, strict=True))
            case Inner() | Filter() | TopN() | Join():
                found: dict[str, str] = {}
                for child in children(node):
                    found |= self._named(child)
                return found
            case _:
                return self._named(children(node)[0])

    def _expression(self, tree: exp.Expr, types: Mapping[str, str]) -> str:
        columns = {n: Value(pa.array([], arrow_of(t)), t) for n, t in types.items()}
        return self._computing.type_of(tree, columns)

    def _call(self, tree: exp.Expr, types: Mapping[str, str]) -> str:
        if isinstance(tree, exp.Filter):
            tree = tree.this
        if isinstance(tree, exp.Count):
            return "bigint"
        inside = self._expression(tree.this, types)
        width = decimal_width(inside)
        if isinstance(tree, exp.Sum):
            return decimal_text(total_width(width)) if width else "bigint"
        if isinstance(tree, exp.Avg):
            return decimal_text(average_width(width)) if width else "double"
        return inside


def bare(folder: Path, limits: QueryLimits | None = None) -> Views:
    """No tables and no views yet."""
    views.adopt = lambda spark, settings: spark  # type: ignore[assignment]
    frames.beside = lambda spark: spark  # type: ignore[assignment]
    evaluate.constants = constants
    quotients.DIVIDED_ROWS_MAX = 10**9
    evaluate.Evaluator.jobs = property(lambda self: 0)  # type: ignore[assignment]
    cache = Cache(folder / "cache", SystemEnv())
    return Views(NoSpark(), folder=folder / "runs", cache=cache, queries=limits)  # type: ignore[arg-type]


def open_views(files: Mapping[str, Path], folder: Path, limits: QueryLimits | None = None) -> Views:
    """All 22 views over these files, in this process."""
    made = bare(folder, limits)
    schema = (_tpch.SQL / "schema.sql").read_text("utf-8")
    text = "\n".join([schema, *_rivals.STATEMENTS.values()])
    statements = parse_statements(Source("tpch.sql", text))
    for table in statements:
        if isinstance(table, Table):
            _add_table(made, table, pq.read_table(files[table.name]))
    for view in statements:
        if isinstance(view, MaterializedView):
            _add_view(made, view)
    write_runs(made)
    return made


def _store(views: Views, relation: Relation, rows: pa.Table) -> None:
    if rows.num_rows > MEMORY_ROWS_MAX:
        run = views.runs.write(relation.name, [rows], relation.sort)
        relation.parts = [Part(relation.types, rows.num_rows, run=run)]
    elif rows.num_rows:
        relation.parts = [Part(relation.types, rows.num_rows, rows)]


def _add_table(views: Views, table: Table, rows: pa.Table) -> None:
    types = tuple(stored_type(column.type) for column in table.columns)
    names = [column.name.lower() for column in table.columns]
    relation = Relation(table.name, types, tuple(names.index(k.lower()) for k in table.key))
    views._tables[table.name.lower()] = table
    views._columns.add_table(table.name, [column.name for column in table.columns])
    views._relations.add(relation)
    arrays = [*rows.select(names).columns, pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)]
    schema = arrow_schema(types)
    stored = pa.table(arrays, names=schema.names).cast(schema)
    relation.parts = [Part(types, rows.num_rows, stored)]


def _add_view(views: Views, view: MaterializedView) -> None:
    stored = {t.name: [c.name for c in t.columns] for t in views._tables.values()}
    stored |= {p.view: list(p.columns) for p in views._programs.values()}
    parsed = parse_query(view.query, catalog_of(stored, {}), share=True)
    outputs = {p.view: p.output for p in views._programs.values()}
    declared: list[str] = []

    def types(node: Node) -> tuple[str, ...]:
        for block in lowering.blocks[len(declared) :]:
            kinds = tuple(f.type for f in block.fields)
            views._relations.add(Relation(block.relation, kinds, block.key))
            declared.append(block.relation)
        return Types(views._relations).of(node)  # type: ignore[arg-type]

    lowering = Lowering(
        view.name,
        parsed.names,
        types,
        ansi=True,
        unique=views._unique(),
        views=outputs,
        shared=parsed.shared,
    )
    for grouped in parsed.grouped:
        lowering.check(*grouped)
    output = lowering.view(parsed.node)
    found = types(output)
    shown = typed(output, dict(zip(output.columns, found, strict=True)))
    program = Program(
        view.name, tuple(f"x{i}" for i in range(len(found))), found, tuple(lowering.blocks), shown
    )
    for block in program.blocks:
        whole = views._evaluator.maintenance(block, {}).whole(block)  # type: ignore[arg-type]
        if isinstance(whole, Filter) and isinstance(whole.input, Accumulate):
            # The filter drops groups without rows, and no rows were retracted yet.
            whole = whole.input
        with views._evaluator.sharing():
            node, lookups, _ = views._evaluator.reduced(whole, {})
            kinds = views._relations[block.relation].types
            try:
                part = views._evaluator.local.run(node, lookups, kinds)
            except NotSupported:
                if view.name in _rivals.TOUCHED:
                    raise
                continue  # Changes of orders and lines do not reach it.
            part = views._relations.in_memory(block.relation, part.table)
        views._relations[block.relation].parts = [part] if part.rows else []
    views._programs[view.name.lower()] = program
    views._columns.add_program(program)
    views._decisions.add(program)
    views._views[view.name.lower()] = view
    views._order[view.name.lower()] = program


def write_runs(views: Views) -> None:
    """Write relations of many rows to runs, as a pipeline has them."""
    for relation in views._relations:
        if relation.parts:
            [part] = relation.parts
            if part.table is not None:
                _store(views, relation, part.table)
