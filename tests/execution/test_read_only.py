"""Queries and views reach the pipeline's relations only, and change nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf

from stepwell.errors import ConfigError, InvalidError, SqlError, StepwellError
from stepwell.execution.spark.read_only import read_only
from stepwell.execution.spark.session import SessionSettings, adopt
from stepwell.execution.spark.views import Change, Views
from stepwell.sql.known_functions import HARMLESS, REACHING, TABLE_FUNCTIONS
from tests.ordinary_queries import ORDINARY, SQL

ENV = "reflect('java.lang.System', 'getenv', 'PATH')"
EXIT = "reflect('java.lang.Runtime', 'getRuntime')"
DTD_FILE = '<!DOCTYPE a SYSTEM "file://{folder}/canary"><a>&sings;</a>'
DTD_ADDRESS = '<!DOCTYPE a SYSTEM "http://127.0.0.1:{port}/x.dtd"><a>&sings;</a>'
ENTITY_FILE = '<!DOCTYPE a [<!ENTITY e SYSTEM "file://{folder}/canary">]><a>&e;</a>'
ENTITY_ADDRESS = '<!DOCTYPE a [<!ENTITY e SYSTEM "http://127.0.0.1:{port}/x">]><a>&e;</a>'
XPATHS = ("boolean", "double", "float", "int", "long", "number", "short", "string")

# Each with what its refusal names. {folder} has a file in it that must stay as it is, and on {port}
# listens a server that must not be asked.
HOSTILE = [
    # Commands, and changes below FROM and WITH
    ("FROM t INSERT OVERWRITE DIRECTORY '{folder}' USING csv SELECT id", "INSERT OVERWRITE DIR"),
    ("FROM t INSERT OVERWRITE LOCAL DIRECTORY '{folder}' USING csv SELECT id", "INSERT OVERWRITE"),
    ("INSERT OVERWRITE DIRECTORY '{folder}' USING json SELECT * FROM t", "INSERT OVERWRITE DIR"),
    ("FROM t INSERT INTO totals SELECT name, id", "INSERT"),
    ("FROM t INSERT INTO totals SELECT name, id INSERT INTO t SELECT *", "INSERT"),
    ("WITH a AS (SELECT * FROM t) INSERT INTO t SELECT * FROM a", "INSERT"),
    (
        "WITH a AS (SELECT id FROM t) FROM a INSERT OVERWRITE DIRECTORY '{folder}' "
        "USING csv SELECT id",
        "INSERT OVERWRITE DIRECTORY",
    ),
    ("FROM (SELECT id FROM t) INSERT OVERWRITE TABLE x SELECT id", "INSERT"),
    ("WITH a AS (SELECT 1 AS id) DELETE FROM t WHERE id IN (SELECT id FROM a)", "DELETE FROM"),
    ("WITH a AS (SELECT 1 AS id) UPDATE t SET name = 'x'", "UPDATE TABLE"),
    (
        "WITH a AS (SELECT 1 AS id) MERGE INTO t USING a ON t.id = a.id WHEN MATCHED THEN DELETE",
        "MERGE INTO",
    ),
    ("DELETE FROM t", "DELETE FROM"),
    ("TRUNCATE TABLE t", "TRUNCATE TABLE"),
    ("DROP VIEW t", "DROP VIEW"),
    ("DROP TABLE IF EXISTS t", "DROP TABLE"),
    ("CREATE TABLE x USING csv LOCATION '{folder}/new' AS SELECT * FROM t", "CREATE TABLE"),
    ("CREATE TEMPORARY VIEW x USING csv OPTIONS (path '{folder}/canary')", "CREATE TEMP VIEW"),
    ("CREATE OR REPLACE TEMP VIEW t AS SELECT 1", "CREATE VIEW"),
    ("CREATE TEMPORARY FUNCTION f AS 'java.lang.Object'", "CREATE FUNCTION"),
    ("CREATE TEMPORARY FUNCTION f() RETURNS INT RETURN 1", "CREATE"),
    ("CREATE DATABASE d LOCATION '{folder}/d'", "CREATE NAMESPACE"),
    ("ALTER VIEW t RENAME TO u", "RENAME TABLE"),
    ("LOAD DATA LOCAL INPATH '{folder}/canary' INTO TABLE t", "LOAD DATA"),
    ("ADD JAR '{folder}/canary'", "ADD JARS"),
    ("ADD FILE '{folder}/canary'", "ADD FILES"),
    ("LIST FILES", "LIST FILES"),
    ("CACHE TABLE x AS SELECT 1", "CACHE TABLE"),
    ("UNCACHE TABLE t", "UNCACHE TABLE"),
    ("REFRESH '{folder}'", "REFRESH RESOURCE"),
    ("ANALYZE TABLE t COMPUTE STATISTICS", "ANALYZE TABLE"),
    ("SET spark.sql.ansi.enabled = false", "SET"),
    ("RESET", "RESET"),
    ("SET VARIABLE x = 1", "SET VARIABLE"),
    ("DECLARE VARIABLE x INT DEFAULT 1", "DECLARE"),
    ("USE default", "SET CATALOG AND NAMESPACE"),
    ("EXPLAIN SELECT * FROM t", "EXPLAIN"),
    ("EXPLAIN ANALYZE SELECT * FROM t", "Syntax error at or near 'SELECT'"),
    ("EXECUTE IMMEDIATE 'DROP VIEW t'", "EXECUTE IMMEDIATE"),
    ("BEGIN DROP VIEW t; SELECT 1; END", "BEGIN ... END"),
    ("SELECT 1; DROP VIEW t", "Syntax error at or near 'DROP'"),
    ("CALL system.f()", "CALL"),
    # Programs
    ("SELECT TRANSFORM(id) USING 'touch {folder}/new' FROM t", "TRANSFORM ... USING"),
    ("FROM t SELECT TRANSFORM(id) USING 'touch {folder}/new' AS (x INT)", "TRANSFORM"),
    ("FROM t MAP id USING 'touch {folder}/new' AS x", "TRANSFORM ... USING"),
    ("FROM t REDUCE id USING 'touch {folder}/new' AS x", "TRANSFORM ... USING"),
    ("SELECT * FROM (SELECT TRANSFORM(id) USING 'touch {folder}/new' FROM t)", "TRANSFORM"),
    (
        "WITH a AS (SELECT TRANSFORM(id) USING 'touch {folder}/new' AS (x INT) FROM t) "
        "SELECT (SELECT max(x) FROM a) FROM t",
        "TRANSFORM ... USING",
    ),
    # Files and other catalogs
    ("SELECT * FROM text.`{folder}/canary`", "text."),
    ("TABLE text.`{folder}/canary`", "text."),
    ("SELECT * FROM `csv`.`{folder}/canary`", "csv."),
    ("SELECT * FROM binaryFile.`{folder}`", "binaryFile."),
    ("SELECT * FROM parquet.`{folder}/canary` VERSION AS OF 1", "AS OF"),
    ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM text.`{folder}/canary`)", "text."),
    ("SELECT id IN (SELECT value FROM text.`{folder}/canary`) FROM t", "text."),
    ("SELECT (SELECT first(value) FROM text.`{folder}/canary`)", "text."),
    ("WITH a AS (SELECT * FROM text.`{folder}/canary`) SELECT 1", "text."),
    ("SELECT * FROM t, LATERAL (SELECT * FROM text.`{folder}/canary`)", "text."),
    ("FROM t |> UNION ALL (SELECT 1, value, now(), null FROM text.`{folder}/canary`)", "text."),
    ("SELECT id FROM t ORDER BY (SELECT max(value) FROM text.`{folder}/canary`)", "text."),
    ("SELECT * FROM IDENTIFIER('text.`{folder}/canary`')", "text."),
    ("SELECT * FROM IDENTIFIER('te' || 'xt.`{folder}/canary`')", "text."),
    (f"SELECT * FROM IDENTIFIER({ENV})", "IDENTIFIER"),
    ("SELECT * FROM IDENTIFIER(lower('T'))", "IDENTIFIER"),
    ("SELECT * FROM read_files('{folder}/canary')", "read_files"),
    ("SELECT * FROM python_worker_logs()", "python_worker_logs"),
    ("SELECT * FROM spark_catalog.default.t", "spark_catalog.default.t"),
    ("SELECT * FROM global_temp.t", "global_temp.t"),
    ("SELECT * FROM system.information_schema.tables", "system.information_schema.tables"),
    ("SELECT * FROM t WITH ('path' = '{folder}')", "t is read with options"),
    ("SELECT * FROM STREAM(t)", "STREAM"),
    ("SELECT * FROM of_the_caller", "there is no table or view of_the_caller"),
    ("WITH a AS (WITH of_the_caller AS (SELECT 1) SELECT 1) SELECT * FROM of_the_caller", "caller"),
    ("SELECT * FROM `$stepwell$fresh`", "there is no table or view $stepwell$fresh"),
    # Java, and what reads files by an argument
    (f"SELECT {ENV}", "reflect"),
    (f"SELECT {EXIT}", "reflect"),
    ("SELECT java_method('java.lang.System', 'exit', 1)", "java_method"),
    ("SELECT try_reflect('java.lang.System', 'getenv', 'PATH')", "try_reflect"),
    (f"SELECT `{ENV.replace('(', '`(', 1)}", "reflect"),
    (f"SELECT system.builtin.{ENV}", "reflect"),
    (f"SELECT builtin.{ENV}", "reflect"),
    ("SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', 'PATH')", "reflect"),
    ("SELECT IDENTIFIER('re' || 'FLECT')('java.lang.System', 'getenv', 'PATH')", "FLECT"),
    (f"SELECT id FROM t ORDER BY {ENV}", "reflect"),
    (f"SELECT count(*) FROM t GROUP BY {ENV}", "reflect"),
    (f"SELECT name FROM t GROUP BY name HAVING max({ENV}) > 'a'", "reflect"),
    (f"SELECT id FROM t WHERE name = {ENV}", "reflect"),
    (f"SELECT a.id FROM t a JOIN t b ON a.name = {ENV}", "reflect"),
    (f"SELECT sum(id) OVER (PARTITION BY {ENV}) FROM t", "reflect"),
    (f"SELECT sum(id) OVER w FROM t WINDOW w AS (ORDER BY {ENV})", "reflect"),
    (f"SELECT transform(tags, x -> {ENV}) FROM t", "reflect"),
    (f"SELECT count(*) FILTER (WHERE {ENV} = 'a') FROM t", "reflect"),
    (f"SELECT * FROM VALUES ({ENV})", "reflect"),
    (f"SELECT * FROM range(length({ENV}))", "reflect"),
    (f"SELECT * FROM t LIMIT length({ENV})", "reflect"),
    (f"SELECT * FROM t LATERAL VIEW explode(array({ENV})) e AS x", "reflect"),
    ("SELECT * FROM t LATERAL VIEW reflect('java.lang.System', 'exit') e AS x", "reflect"),
    (f"SELECT * FROM t, LATERAL (SELECT {ENV})", "reflect"),
    (f"SELECT * FROM t PIVOT (max({ENV}) FOR name IN ('a'))", "reflect"),
    (f"SELECT from_json('{{}}', {ENV})", "reflect"),
    (
        f"SELECT named_struct('a', CASE WHEN true THEN [{ENV}][0] END)".replace(
            "[", "array(", 1
        ).replace("][0]", ")", 1),
        "reflect",
    ),
    ("FROM t |> EXTEND reflect('java.lang.System', 'getenv', 'PATH') AS x", "reflect"),
    ("SELECT from_protobuf(unhex(''), 'm', '{folder}/canary')", "from_protobuf"),
    ("SELECT to_protobuf(struct(1), 'm', '{folder}/canary')", "to_protobuf"),
    ("SELECT from_avro(unhex(''), '', map('avroSchemaUrl', '{folder}/canary'))", "from_avro"),
    ("SELECT from_xml('<a/>', 'x INT', map('rowValidationXSDPath', '{folder}/canary'))", "XSD"),
    ("SELECT from_xml(name, 'x INT', map('rowValid' || 'ationXSDPath', '/')) FROM t", "XSD"),
    ("SELECT schema_of_xml('<a/>', map('ROWVALIDATIONXSDPATH', '{folder}/canary'))", "XSD"),
    (
        "SELECT from_xml('<a>1</a>', schema_of_xml('<a>1</a>', "
        "map('rowValidationXSDPath', '{folder}/canary')))",
        "rowValidationXSDPath",
    ),
    (
        "SELECT from_json('1', schema_of_xml('<a>1</a>', "
        "map('rowValid' || 'ationXSDPath', '{folder}/canary')))",
        "rowValidationXSDPath",
    ),
    (
        "SELECT from_xml('<a>1</a>', IDENTIFIER('schema_of_xml')('<a>1</a>', "
        "map('rowValidationXSDPath', '{folder}/canary')))",
        "XSD",
    ),
    # XML that names a file or an address, which Java fetches
    (f"SELECT xpath('{DTD_FILE}', 'a/text()')", "the function xpath can read a file"),
    (f"SELECT xpath('{DTD_ADDRESS}', 'a/text()')", "the function xpath can read a file"),
    *((f"SELECT xpath_{kind}('{DTD_FILE}', 'a')", f"xpath_{kind} can read") for kind in XPATHS),
    *((f"SELECT xpath_{kind}('{DTD_ADDRESS}', 'a')", f"xpath_{kind} can") for kind in XPATHS),
    (f"SELECT XPath_String('{ENTITY_FILE}', 'a')", "XPath_String can read a file"),
    (f"SELECT system.builtin.xpath_string('{ENTITY_ADDRESS}', 'a')", "xpath_string can read"),
    (f"SELECT IDENTIFIER('xpath_' || 'string')('{DTD_ADDRESS}', 'a')", "xpath_string can read"),
    (f"SELECT from_json('1', xpath_string('{DTD_ADDRESS}', 'a'))", "xpath_string can read"),
    ("SELECT xpath_string(name, 'a') FROM t", "xpath_string can read"),
    ("SELECT id FROM t WHERE xpath_boolean(concat('<a>', name, '</a>'), 'a')", "xpath_boolean"),
    (f"SELECT transform(array('{DTD_FILE}'), x -> xpath_string(x, 'a'))", "xpath_string"),
    ("SELECT spark_catalog.default.f(1)", "spark_catalog.default.f"),
    ("SELECT of_the_session", "of_the_session"),
    ("SELECT session.of_the_session + 1", "of_the_session"),
    ("SELECT :parameter", "unbound parameter: parameter"),
    ("SELECT ?", "unbound parameter: _7"),
]


@pytest.fixture(scope="module")
def views(spark: SparkSession) -> Iterator[Views]:
    """A pipeline in a session of a caller who has functions, views and variables of his own."""
    caller = spark.newSession()
    caller.udf.register("twice", lambda x: x * 2, "int")
    caller.udtf.register("pairs", udtf(_Pairs, returnType="a INT, b INT"))
    caller.range(3).createOrReplaceTempView("of_the_caller")
    caller.sql("DECLARE VARIABLE of_the_session STRING DEFAULT 'secret'")
    made = Views.open(caller, SQL)
    made.apply({"t": Change(put=pa.table({"id": [1, 2], "name": ["a", "b"]}))})
    before = made.read("t")
    yield made
    assert made.read("t") == before, "no query has changed a row"


class _Pairs:
    def eval(self, n: int) -> Iterator[tuple[int, int]]:
        yield from ((i, i + 1) for i in range(n))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "canary").write_text('<!ENTITY sings "sings">')
    return folder


class Server:
    """Hangs up on every caller, so that a query that calls fails at once, and counts them."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.port = str(listening.getsockname()[1])
        self.callers = 0

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._listening.accept()[0].close()
                self.callers += 1


@pytest.fixture
def server() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(listening)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield server
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def filled(text: str, folder: Path, server: Server) -> str:
    return text.replace("{folder}", str(folder)).replace("{port}", server.port)


def assert_untouched(folder: Path, server: Server) -> None:
    assert [p.name for p in folder.iterdir()] == ["canary"]
    assert (folder / "canary").read_text() == '<!ENTITY sings "sings">'
    assert server.callers == 0


@pytest.mark.parametrize(("text", "named"), HOSTILE)
def test_a_query_that_would_do_more_than_ask_is_refused(
    views: Views, folder: Path, server: Server, text: str, named: str
) -> None:
    """R2: one query wrote over a store, another ran a program, a third read the environment, a
    fourth made Java fetch an address.
    """
    with pytest.raises(InvalidError) as raised:
        views.query(filled(text, folder, server))
    assert named in raised.value.message
    assert os.environ["PATH"] not in str(raised.value)
    if "Spark cannot answer" not in raised.value.message:
        assert raised.value.hint, "what to do instead"
    assert_untouched(folder, server)


@pytest.mark.parametrize("text", ORDINARY)
def test_a_query_is_answered(views: Views, text: str) -> None:
    """R2: what only asks is not refused, however it is written."""
    views.query(text)


XML_READERS = [
    "from_xml({xml}, 'a STRING')",
    "from_xml({xml}, 'a STRING', map('mode', 'FAILFAST'))",
    "from_xml(concat('<p>', {xml}, '</p>'), 'a STRING, x STRING', map('rowTag', 'a'))",
    "from_xml({xml}, schema_of_xml('<p><a>1</a></p>'))",
    "to_json(from_xml({xml}, 'a VARIANT', map('singleVariantColumn', 'a')))",
    "schema_of_xml({xml})",
    "to_xml(named_struct('a', {xml}))",
]


@pytest.mark.parametrize("xml", [DTD_FILE, DTD_ADDRESS, ENTITY_FILE, ENTITY_ADDRESS])
@pytest.mark.parametrize("call", XML_READERS)
def test_a_function_that_may_parse_xml_fetches_nothing(
    views: Views, folder: Path, server: Server, call: str, xml: str
) -> None:
    """R2: the XML may be a pushed row. What may be called must not follow its DOCTYPE."""
    text = filled(f"SELECT {call.format(xml=repr(xml))} AS x", folder, server)
    with contextlib.suppress(StepwellError):
        said = str(views.query(text).to_pylist())
        assert "sings" not in said.replace("&sings;", "").replace("&amp;sings;", "")
    assert_untouched(folder, server)


KINDS = ("MATERIALIZED VIEW", "VIEW")
BODIES = [
    ("SELECT TRANSFORM(id) USING 'touch {folder}/new' AS (x INT) FROM t", "TRANSFORM ... USING"),
    ("FROM t INSERT OVERWRITE DIRECTORY '{folder}' USING csv SELECT id", "INSERT OVERWRITE"),
    ("WITH a AS (SELECT 1 AS id) INSERT INTO t SELECT * FROM a", "INSERT"),
    ("SELECT value FROM text.`{folder}/canary`", "text."),
    (f"SELECT {ENV} AS x FROM t", "the function reflect"),
    ("SELECT xpath_string(name, 'a') AS x FROM t", "the function xpath_string can read a file"),
    (f"SELECT xpath('{DTD_ADDRESS}', 'a') AS x FROM t", "the function xpath can read a file"),
    ("SELECT id FROM of_the_caller", "there is no table or view of_the_caller"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("text", "named"), BODIES)
def test_a_view_that_would_do_more_than_ask_is_refused_at_its_place(
    spark: SparkSession, folder: Path, server: Server, kind: str, text: str, named: str
) -> None:
    """R2: what a view does it would do with every transaction."""
    caller = spark.newSession()
    caller.range(3).createOrReplaceTempView("of_the_caller")
    body = filled(text, folder, server)
    with pytest.raises(SqlError) as raised:
        Views.open(caller, f"CREATE TABLE t (id INT, name STRING);\nCREATE {kind} v AS\n{body};")
    assert f"v: {named}" in raised.value.message
    assert raised.value.line == 3
    assert raised.value.hint
    assert_untouched(folder, server)


@pytest.mark.parametrize("text", ["SELECT '\ud800'", "SELECT * FROM `\udcff`", "\udcff"])
def test_a_query_that_is_not_unicode_is_the_querys_mistake(text: str) -> None:
    """R2: bytes of the command line that are not UTF-8 were told as a bug in Stepwell."""
    with pytest.raises(InvalidError, match="not valid Unicode: character"):
        read_only(cast(Any, None), text, [])


def test_a_refusal_points_at_what_is_refused(views: Views) -> None:
    """R2: in a long query one has to see which part is meant, whatever alphabet stands before."""
    with pytest.raises(SqlError) as raised:
        views.query("SELECT '😀é', id,\n  reflect('java.lang.System', 'gc') FROM t")
    assert (raised.value.line, raised.value.column) == (2, 3)
    with pytest.raises(SqlError) as raised:
        views.query("SELECT '😀é', reflect('java.lang.System', 'gc') FROM t")
    assert raised.value.column == 14
    with pytest.raises(InvalidError, match="the function reflect calls") as plain:
        views.query("SELECT now(), reflect('java.lang.System', 'gc')")
    assert not isinstance(plain.value, SqlError), "the text Spark saw is not the user's"


FAILING = [
    ("SELECT * FROM range(CAST('a' AS INT))", "'a'"),
    ("SELECT *\nFROM range(0, 10, 0)", "`range`"),
    ("SELECT id FROM t ORDER id", "Syntax error"),
    ("SELECT id,\n  nothing FROM t", "nothing"),
    ("SELECT from_json('x', 'a ,,')", "a ,,"),
    ("SELECT * FROM range(1 / 0)", "zero"),
]


@pytest.mark.parametrize(("text", "said"), FAILING)
def test_a_query_that_fails_while_it_is_analysed_is_the_querys_mistake(
    spark: SparkSession, views: Views, text: str, said: str
) -> None:
    """Constants are computed during the analysis, which may raise any exception of Java's: it was
    told as a bug in Stepwell.
    """
    with pytest.raises(SqlError) as raised:
        views.query(text)
    assert "Spark cannot answer this query: " in raised.value.message
    assert said.lower() in raised.value.message.lower()
    assert "java" not in raised.value.message.lower()
    with pytest.raises(SqlError) as raised:
        Views.open(spark, f"CREATE TABLE t (id INT);\nCREATE MATERIALIZED VIEW v AS {text};")
    assert said.lower() in raised.value.message.lower()


def test_nothing_is_put_into_a_query_from_outside(views: Views) -> None:
    """R2: Spark would replace these by a secret of the environment, before it reads the query."""
    text = "${env:PATH} ${system:user.home} ${spark.app.id} ${x}"
    assert views.query(f"SELECT '{text}' AS x").to_pylist() == [{"x": text}]


def test_variables_cannot_be_switched_on_again(spark: SparkSession) -> None:
    """R2: neither by a project nor by the session it is opened in."""
    setting = "spark.sql.variable.substitute"
    with pytest.raises(ConfigError, match="would put environment variables"):
        adopt(spark, SessionSettings(conf={setting: True}))
    caller = spark.newSession()
    caller.conf.set(setting, "true")
    views = Views.open(caller, "CREATE VIEW v AS SELECT '${env:PATH}' AS x")
    assert views.read("v").to_pylist() == [{"x": "${env:PATH}"}]


def test_every_spark_function_was_reviewed(spark: SparkSession) -> None:
    """R2: a function that a later Spark brings is in nobody's list, so this fails until it is."""
    jvm: Any = spark._jvm
    analysis = jvm.org.apache.spark.sql.catalyst.analysis

    def names(registry: str) -> set[str]:
        found = getattr(getattr(analysis, f"{registry}$"), "MODULE$").builtin().listFunction()
        return {found.apply(i).funcName() for i in range(found.size())}

    assert names("FunctionRegistry") - set(REACHING) == HARMLESS
    assert names("TableFunctionRegistry") - {"python_worker_logs"} == TABLE_FUNCTIONS
