"""Expressions of plans: does what is computed here mean what Spark reads?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from sqlglot import exp, parse_one

from stepwell.errors import SqlError
from stepwell.plan.conditions import equal_columns, sides
from stepwell.plan.expressions import (
    Expr,
    SortKey,
    both,
    build,
    call,
    cast,
    column,
    equal,
    is_not_null,
    null,
    number,
    parse,
    partitioned,
    row_number,
    substitute,
)
from stepwell.plan.join_order import Estimates
from stepwell.plan.lower import Lowering
from stepwell.plan.maintain import Maintenance
from stepwell.plan.nodes import Names, Node, Project, Scan, walk
from stepwell.plan.program import Block, Full, Sums
from stepwell.plan.reasons import Unsupported
from stepwell.plan.shape import typed
from stepwell.sql.catalog import catalog_of
from stepwell.sql.parse import parse_query, read
from stepwell.sql.statements import Statement, Table, View, parse_statements
from stepwell.text import Source
from tests.random_views.cases import case_of
from tests.sql_files import all_cases

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SEEDS = 6


def scripts() -> Iterator[str]:
    """All statements that the tests and benchmarks of views are made of."""
    for name in ("tpch", "nexmark"):
        files = sorted((BENCHMARKS / name).glob("q*.sql"))
        yield "\n".join(f.read_text("utf-8") for f in (BENCHMARKS / name / "schema.sql", *files))
    yield from (case.sql for case in all_cases())
    yield from (case_of(seed).sql for seed in range(SEEDS))


def blocks_of(statements: tuple[Statement, ...]) -> Iterator[Block]:
    """What is kept for views over tables of numbers."""
    stored: dict[str, list[str]] = {}
    trees: dict[str, tuple[exp.Query, tuple[str, ...]]] = {}
    for statement in statements:
        if isinstance(statement, Table):
            stored[statement.name] = [c.name for c in statement.columns]
            continue
        try:
            tree = read(statement.query, catalog_of(stored, trees))
            names = statement.columns or tuple(tree.named_selects)
            if isinstance(statement, View):
                trees[statement.name.lower()] = (tree, names)
                continue
            stored[statement.name] = list(names)
            query = parse_query(statement.query, catalog_of(stored, trees))
            kinds = lambda node: ("int",) * len(node.columns)  # noqa: E731 - stands in for Spark
            lowering = Lowering("v", query.names, kinds, ansi=True, unique={})
            lowering.view(query.node)
        except Unsupported:
            continue
        yield from lowering.blocks


def plans(block: Block) -> Iterator[Node]:
    if isinstance(block, Full):
        return
    every = frozenset(node.relation for node in walk(block.input) if isinstance(node, Scan))
    maintenance = Maintenance(Names(prefix="_m"), every, Estimates())
    change = maintenance.plan(block)
    yield from (stage.node for stage in maintenance.stages)
    if change is not None:
        yield change


def expressions_in(value: object) -> Iterator[Expr]:
    if isinstance(value, Expr):
        yield value
    elif is_dataclass(value):
        for item in fields(value):
            yield from expressions_in(getattr(value, item.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from expressions_in(part)


def test_the_text_of_every_expression_reads_as_its_tree() -> None:
    """S3: the tree is computed with here, the text by Spark: where they differ, so do results."""
    seen: set[str] = set()
    for script in scripts():
        try:
            statements = parse_statements(Source("p.sql", script))
        except SqlError:
            continue  # A case about a mistake.
        for block in blocks_of(statements):
            for expr in expressions_in((block, *plans(block))):
                if expr.sql not in seen:
                    assert parse_one(expr.sql, dialect="spark") == expr.tree, expr
                    seen.add(expr.sql)
    assert len(seen) > 700


A, B = column("a"), column("b")


@pytest.mark.parametrize(
    ("made", "sql"),
    [
        (equal("a", "b"), "a = b"),
        (equal("a", "b", null_safe=True), "a <=> b"),
        (both(parse("a OR b", "ab"), A), "(a OR b) AND (a)"),
        (is_not_null(parse("a AND b", "ab")), "NOT (a AND b) IS NULL"),
        (cast(build("a + b", a=A, b=B), "decimal(20,2)"), "CAST(a + b AS DECIMAL(20, 2))"),
        (call("max_by", A, B), "MAX_BY(a, b)"),
        (build("a > n", a=A, n=number(2)), "a > 2"),
        (row_number([SortKey("a", True, False)], "b"), None),
        (partitioned(row_number([SortKey("a")]), "b"), None),
    ],
    ids=str,
)
def test_what_is_built_reads_as_it_was_meant(made: Expr, sql: str | None) -> None:
    """S3: parentheses that are left out change what a text means."""
    assert sql is None or made.sql == sql
    assert parse_one(made.sql, dialect="spark") == made.tree


def test_an_expression_has_the_columns_of_its_parts_and_no_others() -> None:
    """S4: a column too few is pruned away, one too many is read for nothing."""
    made = build("CASE WHEN a THEN 1 END", a=both(A, parse("c > 1", "c")), unused=B)
    assert made.columns == {"a", "c"}
    assert made.part(made.tree.args["ifs"][0].this).columns == {"a", "c"}
    with pytest.raises(KeyError):
        build("a + b", a=A)


def test_other_names_are_given_to_columns_and_not_to_fields() -> None:
    """S3: `w.start` is a field of w, and no column is called start."""
    made = substitute(parse("w.`start` + a", ("w", "a")), {"w": "x", "a": "start"})
    assert made.sql == "x.`start` + start"
    assert made.columns == {"x", "start"}


@pytest.mark.parametrize("type_", ["char(3)", "time(6)", "string collate utf8_lcase", "void"])
def test_null_of_a_type_that_sqlglot_calls_otherwise_keeps_its_type(type_: str) -> None:
    """S3: CHAR would become STRING and TIME a TIMESTAMP, and so would the stored column."""
    assert substitute(null(type_), {}).sql == f"CAST(NULL AS {type_})"


def test_equalities_are_told_by_what_they_mean() -> None:
    """S4: a user's null-safe join was a product: Spark writes it in another way than we do."""
    assert equal_columns(equal("a", "b", null_safe=True)) == ("a", "b", True)
    assert equal_columns(parse("a IS NOT DISTINCT FROM b", "ab")) == ("a", "b", True)
    assert equal_columns(parse("(a = b)", "ab")) == ("a", "b", False)
    assert equal_columns(parse("a = b + 1", "ab")) is None
    assert equal_columns(parse("a < b", "ab")) is None
    assert sides(parse("a IS NOT DISTINCT FROM b + 1", "ab")) is None


def test_expressions_are_equal_if_they_are_written_the_same() -> None:
    """S4: a stage that occurs twice in a plan is computed once only if it is recognised."""
    assert build("a = b", a=A, b=B) == equal("a", "b")
    assert len({equal("a", "b"), parse("a = b", "ab"), equal("b", "a")}) == 2
    assert column("a") != parse("a", ())
    assert A != "a"


def test_expressions_have_the_types_that_the_compiler_was_told() -> None:
    """S3: whether an expression can be computed here depends on the types of what it reads."""
    query = (
        "SELECT k, sum(x) AS s, avg(x) AS m, count(*) AS n FROM "
        "(SELECT a + 1 AS k, b AS x FROM t WHERE b > 0) GROUP BY k"
    )
    parsed = parse_query(query, catalog_of({"t": ["a", "b"]}, {}))
    kinds = lambda node: ("int",) * len(node.columns)  # noqa: E731 - stands in for Spark
    lowering = Lowering("v", parsed.names, kinds, ansi=True, unique={})
    output = typed(lowering.view(parsed.node), dict(zip(parsed.node.columns, "klmn", strict=True)))
    assert isinstance(output, Project)
    assert [expr.type for _, expr in output.items] == list("klmn")
    (block,) = lowering.blocks
    assert isinstance(block, Sums)
    assert {a.argument.type for a in block.accumulators if a.argument is not None} == {"int"}
    made = {expr.sql: expr.type for expr in expressions_in(block.input)}
    assert made["_c2 > 0"] == "boolean"
    assert made["_c1 + 1"] == "int"


def test_what_replaces_a_subquery_is_one_operand_of_its_context() -> None:
    """S3: `p AND x NOT IN (q)` was read as `(p AND no rows) OR no match`, true whatever p is."""
    query = "SELECT a > 1 AND b NOT IN (SELECT c FROM s) AS lost FROM t"
    parsed = parse_query(query, catalog_of({"t": ["a", "b"], "s": ["c"]}, {}))
    made = [expr.tree for expr in expressions_in(parsed.node) if expr.tree.find(exp.Or)]
    assert [type(tree) for tree in made] == [exp.And]
    query = "SELECT TRUE = EXISTS (SELECT 1 FROM s WHERE c = a) AS found FROM t"
    parsed = parse_query(query, catalog_of({"t": ["a", "b"], "s": ["c"]}, {}))
    made = [expr.tree for expr in expressions_in(parsed.node) if expr.tree.find(exp.GT)]
    assert [type(tree) for tree in made] == [exp.EQ]
