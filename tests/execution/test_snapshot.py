"""Simple queries answered from stored runs must be Spark's answers, to the last bit and name."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from stepwell.deploy.explain import OFFLINE, explained
from stepwell.deploy.pipeline import ProjectPipeline, explain
from stepwell.deploy.project import Project, load_project
from stepwell.deploy.snapshot import Snapshot, SparkNeededError, take_snapshot
from stepwell.engine.answer import Answer
from stepwell.env import SystemEnv
from stepwell.errors import SqlError
from stepwell.execution.local import snapshot
from stepwell.execution.local.output import Rows
from stepwell.manifest.manifest import Manifests
from stepwell.sql.simple import NotSimple, parse_simple
from stepwell.sql.statements import MaterializedView
from tests.execution.deploying import query_runs

pytestmark = pytest.mark.spark

YML = "name: shop\nstore: ./state\n"
SQL = """
CREATE TABLE t (
  id BIGINT NOT NULL PRIMARY KEY, i INT, k SMALLINT, amount DECIMAL(12,2), name STRING,
  code VARCHAR(8), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, ok BOOLEAN
);
CREATE TABLE bag (x INT, f DOUBLE, Word STRING);
CREATE TABLE lists (id INT, tags ARRAY<STRING>);
CREATE TABLE never (a INT);
CREATE TABLE odd (`a b` INT, `x.y` STRING, `date` DATE, `Über` INT, count INT);
CREATE MATERIALIZED VIEW large AS SELECT id, name, amount * 2 AS twice, day FROM t WHERE i > 0;
CREATE MATERIALIZED VIEW by_name AS
  SELECT name, SUM(amount) AS total, COUNT(*) AS n, AVG(i) AS mean, MAX(day) AS last_day
  FROM t GROUP BY name;
CREATE MATERIALIZED VIEW every AS SELECT COUNT(*) AS n, SUM(i) AS total FROM t;
CREATE MATERIALIZED VIEW words AS SELECT DISTINCT Word FROM bag;
CREATE MATERIALIZED VIEW both AS SELECT t.id, bag.Word FROM t JOIN bag ON t.i = bag.x;
CREATE MATERIALIZED VIEW nothing AS SELECT a FROM never WHERE a > 1;
CREATE VIEW plain AS SELECT id FROM t;
"""
TEXTS = ["", "ada", "Ada", "bob", "zoë", "\uff5a", "😀", "it's", "50%", "a_b", "aXb", "10"]
UTC = datetime.UTC


def _row(number: int) -> dict[str, Any]:
    """Values that meet each other, and NULLs."""

    def some(step: int, values: list[Any]) -> Any:
        return values[(number * step + number // 3) % len(values)]

    days = [datetime.date(2024, 2, 29), datetime.date(2024, 3, 1), datetime.date(1999, 12, 31)]
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)
    moments = [moment, moment.replace(microsecond=0), moment.replace(year=2020)]
    return {
        "id": number,
        "i": some(7, [None, -3, 0, 1, 2, 2**31 - 1, -(2**31)]),
        "k": some(3, [None, 0, 5, -5]),
        "amount": some(5, [None, Decimal("0.00"), Decimal("-1.10"), Decimal("9999999999.99")]),
        "name": some(11, [None, *TEXTS]),
        "code": some(13, [None, "a", "b%", "ä"]),
        "day": some(2, [None, *days]),
        "at": some(3, [None, *moments]),
        "local": some(5, [None, *(m.replace(tzinfo=None) for m in moments)]),
        "ok": some(2, [None, True, False]),
    }


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Project:
    """Rows in several runs: some came twice, some went, some changed."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "stepwell.yml").write_text(YML, encoding="utf-8")
    (folder / "pipeline.sql").write_text(SQL, encoding="utf-8")
    made = load_project(folder, SystemEnv())
    floats = [None, 0.0, -0.0, 1.5, float("inf"), float("nan"), -2.25, 1e300]
    with ProjectPipeline(made, SystemEnv(), spark=spark) as pipeline:
        pipeline.push("t", [_row(n) for n in range(300)])
        pipeline.push("lists", [{"id": 1, "tags": ["a", None]}, {"id": 2, "tags": None}])
        pipeline.push(
            "bag", [{"x": n % 4, "f": floats[n % 6 % 5], "Word": TEXTS[n % 5]} for n in range(30)]
        )
        day = datetime.date(2024, 2, 29)
        pipeline.push("odd", [{"a b": 1, "x.y": "z", "date": day, "Über": 2, "count": 3}])
        pipeline.checkpoint("one")
        pipeline.push("t", [{**_row(n), "name": "bob", "i": n} for n in range(5, 12)])
        pipeline.push("t", delete=[{"id": n} for n in range(30, 35)])
        pipeline.push("bag", [{"x": 9, "f": None, "Word": None}] * 3)
    stored = Manifests(made.open_store(SystemEnv()), SystemEnv()).latest()
    assert stored is not None
    several = Counter(run.relation for run in stored.manifest.runs)
    assert several["t"] > 1, "rows that are gone stand in a run of their own"
    return made


@pytest.fixture(scope="module")
def by_spark(project: Project, spark: SparkSession) -> Snapshot:
    snapshot = take_snapshot(project, SystemEnv(), spark=spark)
    snapshot._load("a comparison")  # Else it would answer simple queries without Spark.
    return snapshot


def same(ours: Answer, theirs: Answer, sql: str) -> None:
    """Equal schemas, equal rows, and in the order that was asked for; ties are in any order."""
    assert ours.transaction == theirs.transaction
    assert ours.rows.schema.equals(theirs.rows.schema), (
        f"{sql}\n{ours.rows.schema}\n{theirs.rows.schema}"
    )
    query = parse_simple(sql)
    mine, other = _tuples(ours.rows), _tuples(theirs.rows)
    if query.limit is None and not query.offset:
        assert Counter(mine) == Counter(other), sql
    assert len(mine) == len(other), sql
    names = [name.lower() for name in ours.rows.column_names]
    for order in query.order:
        by = order.by - 1 if isinstance(order.by, int) else names.index(order.by.lower())
        assert [row[by] for row in mine] == [row[by] for row in other], sql
        break  # The first one: of the others, only where it ties.


def _tuples(rows: pa.Table) -> list[tuple[str, ...]]:
    """By their text: 0.0 is not -0.0, and NaN is NaN."""
    return [tuple(map(repr, row.values())) for row in _unnamed(rows).to_pylist()]


def _unnamed(rows: pa.Table) -> pa.Table:
    """Two columns of an answer may have one name."""
    return rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])


SIMPLE = [
    "SELECT * FROM t",
    "select * from T where i > 0 order by id desc limit 3;",
    "SELECT ID, name AS n FROM t WHERE name LIKE 'a%' ORDER BY n NULLS LAST, id DESC",
    "SELECT t.id FROM t AS t WHERE t.ok",
    "SELECT id FROM t WHERE NOT ok AND i IN (1, 2, -3) OR day IS NULL",
    "SELECT id FROM t WHERE name NOT LIKE '%b%' AND NOT (i BETWEEN -3 AND 1)",
    "SELECT id FROM t WHERE i NOT BETWEEN 0 AND 2 AND name NOT IN ('ada', 'bob')",
    "SELECT id FROM t WHERE day = '2024-02-29' OR at >= '2024-01-01'",
    "SELECT id FROM t WHERE day < '2024-02-29' OR at = '2020-02-29 23:59:59.5'",
    "SELECT id FROM t WHERE day BETWEEN DATE '2000-01-01' AND '2024-02-29'",
    "SELECT id, at FROM t WHERE at < TIMESTAMP '2024-02-29 23:59:59.999999' ORDER BY at, id",
    "SELECT id, local FROM t ORDER BY local DESC NULLS FIRST, id LIMIT 7 OFFSET 2",
    "SELECT id FROM t WHERE amount > 1 AND amount <= 9999999999.99 AND k <> 5.0",
    "SELECT id FROM t WHERE name <=> 'ada' OR i == 2 OR name = 'it''s'",
    "SELECT id FROM t WHERE k < i AND i <> k",
    "SELECT id FROM t WHERE TRUE",
    "SELECT id FROM t WHERE FALSE",
    "SELECT COUNT(*) FROM t",
    "SELECT count(*), COUNT(name), Min(day), MAX(NAME) AS most, min(amount), max(ok) FROM t",
    "SELECT MIN(at), MAX(local), MIN(k), max(code) FROM t WHERE id > 1000",
    "SELECT COUNT(*) AS n FROM t WHERE name = 'bob' LIMIT 1",
    "SELECT COUNT(*) FROM t LIMIT 0",
    "SELECT COUNT(*) FROM t OFFSET 1",
    "SELECT Word, word, f FROM bag WHERE x >= 2 ORDER BY 1",
    "SELECT x, f FROM bag ORDER BY f DESC",
    "SELECT x FROM bag LIMIT 4",
    "SELECT COUNT(*), COUNT(f) FROM bag",
    "SELECT id FROM lists",
    "SELECT MIN(NAME), count(t.Id), max(`Day`) FROM t",
    "SELECT MIN(`a b`), COUNT(`x.y`), MAX(odd.`x.y`), max(`Über`), max(count), min(date) FROM odd",
    "SELECT `x.y`, `A B`, `über`, COUNT, Date FROM odd WHERE `x.y` = 'z' AND date = '2024-02-29'",
    "SELECT * FROM odd ORDER BY `x.y`, `a b` DESC",
    "SELECT `a b` AS `c d`, count AS `e``f` FROM odd ORDER BY `c d`",
    "SELECT * FROM never",
    "SELECT MAX(a), COUNT(a) FROM never",
    "SELECT * FROM large ORDER BY id",
    "SELECT name, twice FROM large WHERE twice > 0 AND day >= '2024-01-01'",
    "SELECT * FROM by_name ORDER BY name",
    "SELECT total, n FROM by_name WHERE n > 1 ORDER BY n DESC LIMIT 2",
    "SELECT COUNT(*), MAX(total) FROM by_name",
    "SELECT * FROM every",
    "SELECT * FROM words ORDER BY word DESC",
    "SELECT * FROM both ORDER BY id, word",
    "SELECT * FROM nothing",
    "SELECT * FROM `t$errors`",
    "SELECT reason, position FROM `t$errors` WHERE text LIKE '%x%'",
]


@pytest.mark.parametrize("sql", SIMPLE)
def test_an_answer_without_spark_is_sparks(project: Project, by_spark: Snapshot, sql: str) -> None:
    same(query_runs(project, SystemEnv(), sql), by_spark.query(sql), sql)


COLUMNS = {
    "t": {
        "id": "number",
        "i": "number",
        "k": "number",
        "amount": "number",
        "name": "text",
        "code": "text",
        "day": "day",
        "at": "moment",
        "ok": "truth",
        "local": "local",
    },
    "bag": {"x": "number", "Word": "text", "f": "float"},
    "large": {"id": "number", "name": "text", "twice": "number", "day": "day"},
    "by_name": {
        "name": "text",
        "total": "number",
        "n": "number",
        "mean": "float",
        "last_day": "day",
    },
}
CONSTANTS = {
    "number": ["0", "1", "-3", "2.50", "2147483647", "-1.1", "9999999999.99", "12345678901"],
    "text": ["'ada'", "''", "'it''s'", "'zoë'", "'Z'"],
    "day": ["DATE '2024-02-29'", "'2024-03-01'", "'1999-12-31'"],
    "moment": ["TIMESTAMP '2024-02-29 23:59:59'", "'2024-02-29'", "'2020-02-29 23:59:59.999'"],
}
PATTERNS = ["'a%'", "'%b'", "'%d%'", "'%'", "''", "'ada'", "'%o%b%'", "'%😀%'", "'5%'"]


@st.composite
def conditions(draw: st.DrawFn, columns: dict[str, str], depth: int = 2) -> str:
    if depth and draw(st.booleans()):
        kind = draw(st.sampled_from(["AND", "OR", "NOT", "()"]))
        one = draw(conditions(columns, depth - 1))
        if kind == "NOT":
            return f"NOT {one}"
        if kind == "()":
            return f"({one})"
        return f"{one} {kind} {draw(conditions(columns, depth - 1))}"
    name = draw(st.sampled_from(sorted(columns)))
    kind = columns[name]
    negated = draw(st.sampled_from(["", "NOT "]))
    tests = [f"{name} IS {negated}NULL"]
    if kind == "truth":
        tests.append(name)
    if kind in CONSTANTS:
        constants = st.sampled_from(CONSTANTS[kind])
        sign = draw(st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">=", "<=>", "=="]))
        low, high = draw(constants), draw(constants)
        if not (sign == "<=>" and kind in ("day", "moment")):
            tests += [f"{name} {sign} {low}", f"{low} {sign} {name}"]
        tests.append(f"{name} {negated}BETWEEN {low} AND {high}")
        if kind in ("number", "text"):
            tests.append(f"{name} {negated}IN ({low}, {high})")
            other = draw(st.sampled_from(sorted(n for n, k in columns.items() if k == kind)))
            tests.append(f"{name}{sign}{other}")
    if kind == "text":
        tests.append(f"{name} {negated}LIKE {draw(st.sampled_from(PATTERNS))}")
    return draw(st.sampled_from(tests))


@st.composite
def queries(draw: st.DrawFn) -> str:
    relation = draw(st.sampled_from(sorted(COLUMNS)))
    columns = COLUMNS[relation]
    where = f" WHERE {draw(conditions(columns))}" if draw(st.booleans()) else ""
    if draw(st.integers(0, 3)) == 0:
        calls = ["COUNT(*)", *(f"COUNT({name})" for name in columns)]
        calls += [
            f"{call}({name})"
            for call in ("min", "MAX")
            for name in columns
            if columns[name] != "float"
        ]
        items = draw(st.lists(st.sampled_from(calls), min_size=1, max_size=4))
        return f"SELECT {', '.join(items)} FROM {relation}{where}"
    names = draw(st.lists(st.sampled_from(sorted(columns)), min_size=1, max_size=4, unique=True))
    by = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    order = [
        name
        + draw(st.sampled_from(["", " ASC", " DESC"]))
        + draw(st.sampled_from(["", " NULLS FIRST", " NULLS LAST"]))
        for name in by
    ]
    ordered = f" ORDER BY {', '.join(order)}" if order else ""
    limit = f" LIMIT {draw(st.integers(0, 20))}" if draw(st.booleans()) else ""
    offset = f" OFFSET {draw(st.integers(0, 5))}" if draw(st.booleans()) else ""
    selected = draw(st.sampled_from([", ".join(names), "*"]))
    return f"SELECT {selected} FROM {relation}{where}{ordered}{limit}{offset}"


def compare_random(project: Project, by_spark: Snapshot, sql: str) -> None:
    same(query_runs(project, SystemEnv(), sql), by_spark.query(sql), sql)


@given(queries())
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_random_queries_are_answered_as_by_spark(
    project: Project, by_spark: Snapshot, sql: str
) -> None:
    compare_random(project, by_spark, sql)


@pytest.mark.slow
@given(queries())
@settings(max_examples=1500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_many_random_queries_are_answered_as_by_spark(
    project: Project, by_spark: Snapshot, sql: str
) -> None:
    compare_random(project, by_spark, sql)


def test_rows_after_the_last_flush_are_not_overlooked(tmp_path: Path, spark: SparkSession) -> None:
    """A table that nothing has changed since is still read at once; the answer says as of when."""
    (tmp_path / "stepwell.yml").write_text(YML, encoding="utf-8")
    (tmp_path / "pipeline.sql").write_text(
        "CREATE TABLE a (x INT); CREATE TABLE b (y INT);\n"
        "CREATE MATERIALIZED VIEW va AS SELECT x FROM a WHERE x > 0;\n"
        "CREATE MATERIALIZED VIEW vb AS SELECT y + 1 AS z FROM b;\n"
        "CREATE MATERIALIZED VIEW vc AS SELECT y FROM b WHERE current_date() > DATE '2000-01-01';",
        encoding="utf-8",
    )
    project, env = load_project(tmp_path, SystemEnv()), SystemEnv()
    pipeline = ProjectPipeline(project, env, spark=spark)
    pipeline.push("a", [{"x": 1}])
    pipeline.push("b", [{"y": 1}])
    pipeline.flush()
    pipeline.push("a", [{"x": 2}])  # In the journal only, as after a crash.
    for sql, rows in (("SELECT * FROM b", [{"y": 1}]), ("SELECT * FROM vb", [{"z": 2}])):
        found = query_runs(project, env, sql)
        assert (found.transaction, found.rows.to_pylist()) == (3, rows)
    for sql in ("SELECT * FROM a", "SELECT * FROM va", "SELECT COUNT(*) FROM `a$errors`"):
        with pytest.raises(SparkNeededError, match="have to be replayed"):
            query_runs(project, env, sql)
    with pytest.raises(SparkNeededError, match="have to be replayed"):
        query_runs(project, env, "SELECT * FROM vc")
    pipeline.close()
    assert query_runs(project, env, "SELECT x FROM va ORDER BY x").rows.to_pylist() == [
        {"x": 1},
        {"x": 2},
    ]
    assert query_runs(project, env, "SELECT * FROM vc").rows.num_rows == 1


COMMANDS = [
    ["query", "SELECT name, total FROM by_name WHERE n > 1 ORDER BY name LIMIT 4"],
    ["query", "SELECT COUNT(*) FROM t", "--json"],
    ["query", "DESCRIBE by_name"],
    ["query", "SHOW VIEWS"],
    ["explain", "by_name"],
    ["explain", "--json"],
    ["status"],
]


def test_a_stopped_pipeline_is_read_without_java(project: Project) -> None:
    """Spark took half a minute of two cores to show four rows."""
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from stepwell.cli.main import app\n"
        f"for command in {COMMANDS!r}:\n"
        f"    ended = CliRunner().invoke(app, ['-C', {str(project.folder)!r}, *command])\n"
        "    assert ended.exit_code == 0, (command, ended.stderr)\n"
        "    assert 'Spark' not in ended.stderr, ended.stderr\n"
        "heavy = {'pyspark', 'py4j'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    environ = {**os.environ, "JAVA_HOME": "/nowhere"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr


def test_what_only_spark_can_answer_says_why_it_is_started(project: Project) -> None:
    for sql in (
        "SELECT name, COUNT(*) FROM t GROUP BY name",
        "SELECT id FROM plain",
        "SELECT tags FROM lists",
        "SELECT MAX(f) FROM bag",
        "SELECT id FROM t WHERE name = 5",
        "SELECT x FROM bag WHERE f > 1",
        "SELECT id FROM t WHERE name LIKE 'a_b'",
        "SELECT id FROM t WHERE day = '2024-2-9'",
        "SELECT id FROM t WHERE nothing = 1",
        "SELECT id, name AS id FROM t ORDER BY id",
        "SELECT name AS id FROM t ORDER BY id",
        "SELECT id FROM t ORDER BY 2",
    ):
        with pytest.raises(SparkNeededError):
            query_runs(project, SystemEnv(), sql)


def test_a_relation_that_there_is_not_is_told_without_spark(
    project: Project, by_spark: Snapshot
) -> None:
    for sql in ("SELECT * FROM by_nam", "SELECT *\nFROM   zzz WHERE a = 1"):
        said = []
        for ask in (lambda s: query_runs(project, SystemEnv(), s), by_spark.query):
            with pytest.raises(SqlError) as raised:
                ask(sql)
            said.append(str(raised.value))
        assert said[0] == said[1]


def test_a_project_that_sets_what_queries_mean_is_left_to_spark(project: Project) -> None:
    spark = replace(project.sections.spark, conf={"spark.sql.ansi.enabled": "false"})
    found = take_snapshot(project, SystemEnv())
    # As if it had been deployed like this.
    found._project = replace(project, sections=replace(project.sections, spark=spark))
    with pytest.raises(SparkNeededError, match="has settings that change queries"):
        found._query_runs("SELECT * FROM t")


def test_many_rows_are_read_file_by_file(
    project: Project, by_spark: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows that are gone again only whole relations can be summed up, so Spark is asked."""
    monkeypatch.setattr(snapshot, "ROWS_MAX", 20)
    for sql in (
        "SELECT x FROM bag WHERE x = 9",
        "SELECT x, Word FROM bag ORDER BY x DESC, Word LIMIT 7",
        "SELECT COUNT(*), MIN(x), MAX(Word) FROM bag",
        "SELECT COUNT(*) FROM t",
    ):
        same(query_runs(project, SystemEnv(), sql), by_spark.query(sql), sql)
    with pytest.raises(SparkNeededError, match="some of them retracted"):
        query_runs(project, SystemEnv(), "SELECT id FROM t")
    with pytest.raises(SparkNeededError, match="many rows"):
        query_runs(project, SystemEnv(), "SELECT x FROM bag")


def test_rows_that_are_there_many_times_are_not_held_for_a_large_limit() -> None:
    """A billion copies of one row are eight gigabytes of places alone."""
    weights = pa.chunked_array([pa.array([10**9, 2**62, 2**62], pa.int64())])
    for limit in (2 * 10**9, 10**30):
        asked = SimpleNamespace(_query=SimpleNamespace(limit=limit, offset=0))
        with pytest.raises(NotSimple, match="many rows"):
            snapshot._Answering._expanded(asked, Rows({}, weights))


def test_explain_is_what_spark_made_of_the_views_and_mostly_known_before(
    project: Project, by_spark: Snapshot
) -> None:
    """As it was recorded, word for word; and worked out alike where nothing was recorded."""
    views = [v.name for v in project.views.values() if isinstance(v, MaterializedView)]
    env = SystemEnv()
    stored = Manifests(project.open_store(env), env).latest()
    assert stored is not None
    recorded = explained(project, stored.manifest, views)
    opened = [explain(by_spark._executor("a comparison"), view) for view in views]
    assert [text for text, _ in recorded] == [str(replace(item, rows=None)) for item in opened]
    assert all(item.rows is not None for item in opened), "an open pipeline knows its row counts"
    assert "scan t, " in str(opened[0])
    offline = explained(project, None, views)
    for (text, told), (other, _) in zip(recorded, offline, strict=True):
        assert other == f"{text}\n  {OFFLINE}", told["view"]
