"""What a project says, as values: settings, targets, references, statements in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.deploy.graph import in_order
from stepwell.deploy.project import Project, load_project
from stepwell.deploy.references import Secret
from stepwell.env import SystemEnv
from stepwell.errors import InvalidError
from stepwell.sql.statements import parse_statements
from stepwell.store.patient import PatientStore
from stepwell.store.retry import LOOK_S
from stepwell.testing import EXECUTOR_VARIABLE
from stepwell.text import Source
from tests.deploy.conftest import SQL, YML, Write
from tests.sql_files import all_cases

EVERYTHING = (
    YML
    + """\
journal: {store: ./journal, keep: 2h}
transaction: {max_rows: 500, max_bytes: 64MiB, bulk_bytes: off, bulk_rows: 7,
  max_latency: 1.5s, on_error: fail}
push: {keep: 3d}
checkpoint: {every: 5m, keep: 3}
spark: {master: "local[2]", conf: {spark.executor.memory: 1g, spark.ui.enabled: false}}
variables: {rows: 7, bucket: acme}
targets:
  prod:
    store: "s3://${var:bucket}/orders"
    spark: {master: "spark://host:7077"}
    transaction: {max_rows: "${var:rows}"}
    variables: {bucket: acme-prod}
    sinks:
      revenue_out: {path: elsewhere}
"""
)


def test_every_key_becomes_a_setting(write: Write) -> None:
    """A key that is read and not used is a promise nobody keeps."""
    folder = write(EVERYTHING)
    project = load_project(folder, SystemEnv())
    assert (project.name, project.store) == ("orders", str(folder / "state"))
    assert project.sections.journal.store == "./journal"
    assert project.sections.journal.keep_s == 7200
    assert project.sections.checkpoint.keep == 3
    settings = project.sections.settings()
    assert settings.limits.rows_max == 500
    assert settings.limits.bytes_max == 64 * 2**20
    assert settings.bulk_bytes is None
    assert project.sections.transaction.bulk_rows == 7
    assert settings.latency_s_max == 1.5
    assert settings.on_error == "fail"
    assert settings.checkpoint_every_s == 300
    assert settings.push_keep_s == 3 * 86400
    assert project.sections.spark.master == "local[2]"
    assert project.sections.spark.conf["spark.ui.enabled"] is False
    (source,), (sink,) = project.sources, project.sinks
    assert (source.name, source.relation, source.type) == ("order_files", "orders", "files")
    assert (sink.name, sink.relation, sink.type) == ("revenue_out", "revenue", "files")


def test_a_small_project_has_defaults(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EXECUTOR_VARIABLE)
    project = load_project(write("name: a\nstore: s3://b/c\n"), SystemEnv())
    assert (project.sources, project.sinks) == ((), ())
    assert project.sections.executor == "spark"
    assert project.sections.spark.master == "local[*]"
    assert project.sections.settings().checkpoint_every_s == 60


def test_a_target_changes_what_it_names_and_nothing_else(write: Write) -> None:
    project = load_project(write(EVERYTHING), SystemEnv(), target="prod")
    assert project.store == "s3://acme-prod/orders"
    assert project.sections.spark.master == "spark://host:7077"
    assert project.sections.spark.conf["spark.executor.memory"] == "1g"
    assert project.sections.transaction.rows_max == 7
    assert project.sections.transaction.latency_s_max == 1.5
    assert project.sinks[0].options["path"] == "elsewhere"
    assert project.sinks[0].options["format"] == "json"


@pytest.mark.parametrize(
    ("plain", "target", "address", "patience_s"),
    [
        ("store: ./state", None, "state", 300),
        ("store: {address: ./state}", None, "state", 300),
        ("store: {address: ./state, patience: 90s}", None, "state", 90),
        ("store: ./state", "{store: {patience: 10m}}", "state", 600),
        ("store: {address: ./state, patience: 90s}", "{store: ./other}", "other", 90),
        ("store: {address: ./state, patience: 90s}", "{store: {patience: 0s}}", "state", 0),
    ],
)
def test_the_patience_with_a_store_is_the_projects_or_the_targets(
    write: Write, plain: str, target: str | None, address: str, patience_s: float
) -> None:
    """R1: it holds for both stores of a writer; a reader waits for less."""
    yml = YML.replace("store: ./state", plain) + "journal: {store: ./journal}\n"
    folder = write(yml + (f"targets:\n  prod: {target}\n" if target else ""))
    project = load_project(folder, SystemEnv(), target="prod" if target else None)
    assert project.store == str(folder / address)
    assert project.sections.settings().journal.retry.patience_s == patience_s

    def patience(which: Project) -> list[float]:
        stores = [which.open_store(SystemEnv()), which.open_journal_store(SystemEnv())]
        return [
            store.patience.retry.patience_s for store in stores if isinstance(store, PatientStore)
        ]

    assert patience(project) == [LOOK_S, LOOK_S]
    assert patience(project.patient()) == [patience_s, patience_s]


def test_a_store_that_is_given_wins(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative one starts where the user is, not where the project is."""
    monkeypatch.chdir(tmp_path)
    project = load_project(write(EVERYTHING), SystemEnv(), target="prod", store="other")
    assert project.store == str(tmp_path / "other")


def test_references_are_resolved_and_never_shown(write: Write) -> None:
    """Secrets stay references, in whatever is printed of a project."""
    yml = YML.replace(
        "type: files, path: out, format: json",
        'type: postgres, dsn: "password=${env:PASSWORD} user=${file:user.txt} dbname=$${x}"',
    )
    folder = write(yml, user__txt="ada\n")
    project = load_project(folder, SystemEnv(), environ={"PASSWORD": "hunter2"})
    dsn = project.sinks[0].options["dsn"]
    assert dsn == "password=hunter2 user=ada dbname=${x}"
    assert isinstance(dsn, Secret)
    assert repr(dsn) == "password=${env:PASSWORD} user=${file:user.txt} dbname=$${x}"
    for shown in (repr(project), str(project), repr(project.sinks)):
        assert "hunter2" not in shown


@pytest.mark.parametrize(
    "sink",
    [
        'type: files, path: out, format: "${env:PASSWORD}"',
        'type: "${env:PASSWORD}", path: out, format: json',
        'type: files, path: "s3://${env:PASSWORD}/", format: json',
        'type: files, path: out, format: json, more: "${env:PASSWORD}"',
        'type: postgres, dsn: "${env:PASSWORD}"',
    ],
)
def test_a_wrong_option_does_not_tell_the_secret_it_was_given(write: Write, sink: str) -> None:
    """A message ends in logs and tickets."""
    yml = YML.replace("type: files, path: out, format: json", sink)
    with pytest.raises(InvalidError) as caught:
        load_project(write(yml), SystemEnv(), environ={"PASSWORD": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_statements_are_put_into_the_order_they_need(write: Write) -> None:
    """Files are read by name, which says nothing about who reads whom."""
    folder = write(
        sql="CREATE MATERIALIZED VIEW revenue AS SELECT customer FROM big;"
        "CREATE VIEW big AS WITH t AS (SELECT * FROM orders) SELECT customer FROM t;",
        tables__sql="CREATE TABLE orders (id BIGINT, customer STRING)",
    )
    project = load_project(folder, SystemEnv())
    assert [statement.name for statement in project.statements] == ["orders", "big", "revenue"]
    assert project.sql.index("TABLE orders") < project.sql.index("VIEW big")
    assert project.sql.index("VIEW big") < project.sql.index("VIEW revenue")


def test_one_file_in_order_is_given_to_spark_as_it_is(write: Write) -> None:
    """So that the lines in Spark's messages are those of the file."""
    project = load_project(write(), SystemEnv())
    assert (project.sql, project.sql_name) == (SQL, "pipeline.sql")


FINE = [
    "SELECT o.customer, x.n FROM orders o JOIN (SELECT id, 1 AS n FROM orders) x USING (id)",
    "SELECT customer, c.item FROM orders LATERAL VIEW explode(split(customer, ',')) c AS item",
    "SELECT transform(array(1), y -> y + 1) AS a FROM orders",
    "SELECT s.inner FROM (SELECT named_struct('inner', 1) AS s FROM orders)",
    "SELECT a AS b, b + 1 AS c FROM (SELECT amount AS a FROM orders)",
    "SELECT * FROM VALUES (1, 2) AS t(p, q) JOIN orders ON p = id",
    "SELECT ORDERS.ID, Orders.`customer` FROM orders",
    "WITH RECURSIVE t(n) AS (SELECT 1) SELECT n FROM t, orders",
    "SELECT window.start FROM orders GROUP BY window(TIMESTAMP'2026-01-01', '1 hour')",
    "SELECT explode(array(1)) FROM orders",
    "SELECT ROW_NUMBER() OVER w AS r FROM orders WINDOW w AS (ORDER BY id)",
    "FROM orders SELECT customer",
    "SELECT user AS a, current_time AS b, localtimestamp AS c, current_catalog AS d FROM orders",
    "SELECT timestampdiff(HOUR, now(), now()) AS x, extract(YEAR FROM now()) AS y FROM orders",
    "SELECT s.g.h FROM (SELECT named_struct('g', named_struct('h', 1)) AS s FROM orders)",
    "SELECT f FROM (SELECT s.* FROM (SELECT named_struct('f', 1) AS s FROM orders))",
    "SELECT q FROM (SELECT inline(array(named_struct('q', 1))) FROM orders)",
    "SELECT f FROM (SELECT from_json(customer, 'f INT').* FROM orders)",
    "SELECT c0 FROM (SELECT json_tuple(customer, 'a') FROM orders)",
    "SELECT _metadata.file_name, `count(1)` FROM (SELECT count(1) FROM orders)",
    "SELECT mask(customer, lowerChar => 'q') AS c FROM orders",
    "SELECT customer AS c, COUNT(*) AS n FROM orders GROUP BY c HAVING n > 1",
    "SELECT something Spark |> only FROM orders",
]


@pytest.mark.parametrize("query", FINE)
def test_what_spark_may_understand_is_left_to_spark(write: Write, query: str) -> None:
    """A check that cries wolf keeps a good view out."""
    sql = f"{SQL}CREATE MATERIALIZED VIEW fine AS {query};"
    assert load_project(write(sql=sql), SystemEnv()).views["fine"].query == query


def test_every_query_that_is_tested_against_spark_is_let_through() -> None:
    """Hundreds of queries that Spark takes: the check on names must not refuse one of them."""
    cases = [case for case in all_cases() if case.open_error is None]
    assert len(cases) > 100
    for case in cases:
        statements = parse_statements(Source(case.place, case.sql))
        assert {item.name for item in in_order(statements).statements} == {
            item.name for item in statements
        }
