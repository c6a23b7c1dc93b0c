"""Wrong projects, each in one way, and what is said about it (D10).

A text is one more line at the end of stepwell.yml, line 7. A pair is a text in one of the two files, and its replacement.
"""
# ruff: noqa: E501 - messages are as printed, however long.

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.deploy.document import BYTES_MAX, ProjectError
from stepwell.deploy.project import load_project
from stepwell.env import SystemEnv
from stepwell.errors import ConfigError, InvalidError
from tests.deploy.conftest import SQL, YML, Write

WRONG: list[tuple[str | tuple[str, str], str, str | None]] = [
    (
        "transactions: {max_rows: 1}",
        "stepwell.yml:7:1: stepwell.yml has no key transactions",
        "did you mean transaction?",
    ),
    (
        "protect: orders",
        "stepwell.yml:7:10: protect must be a list of names, found 'orders'",
        "protect: [orders, revenue]",
    ),
    (
        "protect: [ordrs]",
        "stepwell.yml:7:11: protect: there is no table, view, source or sink ordrs",
        "did you mean orders?",
    ),
    (
        "spark: {driver_memory: lots}",
        "stepwell.yml:7:24: spark.driver_memory must be a size such as 800m or 4g, found 'lots'",
        None,
    ),
    (
        "spark: {driver_memory: 100m}",
        "stepwell.yml:7:24: spark.driver_memory must be at least 512m, which Spark needs itself, found '100m'",
        None,
    ),
    (
        "spark: {conf: {spark.driver.memory: 4g}}",
        "stepwell.yml:7:16: spark.driver.memory cannot be set in conf",
        "set spark.driver_memory instead",
    ),
    (
        "variables: {region: [eu]}",
        "stepwell.yml:7:21: variable region must be a single value, found a list",
        None,
    ),
    (
        "transaction: {max_row: 1}",
        "stepwell.yml:7:15: transaction has no key max_row",
        "did you mean max_rows?",
    ),
    (
        "transaction: {max_rows: many}",
        "stepwell.yml:7:25: transaction.max_rows must be a whole number of at least 1, found 'many'",
        None,
    ),
    (
        "transaction: {max_rows: 0}",
        "stepwell.yml:7:25: transaction.max_rows must be a whole number of at least 1, found 0",
        None,
    ),
    (
        "transaction: {max_latency: 1}",
        "stepwell.yml:7:28: transaction.max_latency must be a duration such as 500ms, 60s, 5m, 2h or 7d, found 1",
        "write 1s, if seconds are meant",
    ),
    (
        "transaction: {max_latency: 1 week}",
        "stepwell.yml:7:28: transaction.max_latency must be a duration such as 500ms, 60s, 5m, 2h or 7d, found '1 week'",
        None,
    ),
    (
        "transaction: {max_bytes: 64M}",
        "stepwell.yml:7:26: transaction.max_bytes must be a size such as 64MB or 1GiB, found '64M'",
        None,
    ),
    (
        "transaction: {bulk_bytes: never}",
        "stepwell.yml:7:27: transaction.bulk_bytes must be a size such as 64MB or 1GiB, or off, found 'never'",
        None,
    ),
    (
        "transaction: {on_error: stop}",
        "stepwell.yml:7:25: transaction.on_error must be dead_letter or fail, found 'stop'",
        None,
    ),
    (
        "checkpoint: {every: 0s}",
        "stepwell.yml:7:21: checkpoint.every must be at least 1s, found '0s'",
        None,
    ),
    (
        "checkpoint: {keep: yes}",
        "stepwell.yml:7:20: checkpoint.keep must be a whole number of at least 1, found 'yes'",
        None,
    ),
    ("journal: ./x", "stepwell.yml:7:10: journal must be a mapping, found './x'", "journal: {}"),
    (
        "journal: {store: ftp://x/y}",
        "stepwell.yml:7:18: unknown kind of store ftp://",
        "a store is a directory, file:///directory, s3://bucket/prefix, gs://... or az://...",
    ),
    (
        "journal: {keep: -1d}",
        "stepwell.yml:7:17: journal.keep must be a duration such as 500ms, 60s, 5m, 2h or 7d, found '-1d'",
        None,
    ),
    (
        "executor: reference",
        "stepwell.yml:7:1: executor is not a setting: Spark computes every pipeline",
        "remove it",
    ),
    (
        "targets: {test: {executor: spark}}",
        "stepwell.yml:7:18: executor is not a setting: Spark computes every pipeline",
        "remove it",
    ),
    (
        "spark: {conf: {sql.x: 1}}",
        "stepwell.yml:7:16: sql.x is not a Spark setting",
        "did you mean spark.sql.x?",
    ),
    (
        "spark: {conf: {spark.x: [1]}}",
        "stepwell.yml:7:25: spark.x must be a text, a number, true or false",
        None,
    ),
    ("spark: {master: 7}", "stepwell.yml:7:17: spark.master must be a text, found 7", None),
    (
        "name: again",
        "stepwell.yml:7:1: name is set twice, first in line 1",
        "remove one of them",
    ),
    (
        "targets: {prod: {nam: x}}",
        "stepwell.yml:7:18: target prod has no key nam",
        "keys are: store, journal, transaction, push, checkpoint, gc, cache, spark, "
        "sources, sinks, tests, protect, variables",
    ),
    (
        "targets: {prod: {spark: {mster: x}}}",
        "stepwell.yml:7:26: spark has no key mster",
        "did you mean master?",
    ),
    (
        "variables: {a: [1]}",
        "stepwell.yml:7:16: variable a must be a single value, found a list",
        None,
    ),
    (
        'journal: {store: "${env:NOWHERE_AT_ALL}"}',
        "stepwell.yml:7:18: the environment variable NOWHERE_AT_ALL is not set",
        "export NOWHERE_AT_ALL=...",
    ),
    (
        'journal: {store: "${file:nothing.txt}"}',
        "stepwell.yml:7:18: ${file:nothing.txt} cannot be read: No such file or directory",
        None,
    ),
    (
        'journal: {store: "${var:bukket}"}\nvariables: {bucket: x}',
        "stepwell.yml:7:18: there is no variable bukket",
        "did you mean bucket?",
    ),
    (
        'journal: {store: "${secret:x}"}',
        "stepwell.yml:7:18: ${secret:x}: unknown kind of reference secret",
        "write ${env:NAME}, ${file:path} or ${var:name}",
    ),
    (
        'journal: {store: "${env:X"}',
        "stepwell.yml:7:18: this ${ is never closed",
        "write ${env:NAME}, ${file:path} or ${var:name}; $${ is a plain ${",
    ),
    (
        "a: &x 1\nb: *x",
        "stepwell.yml:8:4: this is not YAML: aliases are not supported",
        "write the value out in both places",
    ),
    (
        "checkpoint: !!python/object:os.system {}",
        "stepwell.yml:7:13: the tag tag:yaml.org,2002:python/object:os.system is not supported",
        "remove it",
    ),
    (
        "\tcheckpoint: 1",
        "stepwell.yml:7:1: this is not YAML: found character '\\t' that cannot start any token",
        "indent with spaces, not with tabs",
    ),
    (
        "---\nname: x",
        "stepwell.yml:7:1: this is not YAML: but found another document",
        "a project is one document: remove the line ---",
    ),
    (
        "x: [1,",
        "stepwell.yml:8:1: this is not YAML: expected the node content, but found '<stream end>'",
        None,
    ),
    (
        "spark: a: b",
        "stepwell.yml:7:9: this is not YAML: mapping values are not allowed here",
        "put a text that contains a colon in quotes",
    ),
    ("- x", "stepwell.yml:7:1: this is not YAML: expected <block end>, but found '-'", None),
    (
        ("table: orders", "table: order"),
        "stepwell.yml:4:24: source order_files: there is no table order",
        "did you mean orders?",
    ),
    (
        ("table: orders", "table: big"),
        "stepwell.yml:4:24: source order_files: big is a view",
        "sources fill tables; views are computed from them",
    ),
    (
        ("view: revenue", "view: revenu"),
        "stepwell.yml:6:23: sink revenue_out: there is no view revenu",
        "did you mean revenue?",
    ),
    (
        ("view: revenue", "view: big"),
        "stepwell.yml:6:23: sink revenue_out: big is a plain view, which stores nothing",
        "write CREATE MATERIALIZED VIEW big",
    ),
    (
        ("view: revenue", "view: orders"),
        "stepwell.yml:6:23: sink revenue_out: orders is a table",
        "CREATE MATERIALIZED VIEW ... AS SELECT * FROM orders",
    ),
    (
        ("type: files, path: data", "type: file, path: data"),
        "stepwell.yml:4:38: source order_files: there is no type file",
        "did you mean files?",
    ),
    (
        ("path: data/*.json, ", "pth: data/*.json, "),
        "stepwell.yml:4:45: source order_files has no option pth",
        "did you mean path?",
    ),
    (
        ("format: json}\nsinks", "format: jsn}\nsinks"),
        "stepwell.yml:4:72: source order_files: option format must be json or csv or parquet, found 'jsn'",
        "did you mean json?",
    ),
    (
        ("format: json}\nsinks", "format: json, settle: soon}\nsinks"),
        "stepwell.yml:4:86: source order_files: option settle must be a duration such as 500ms, 60s, 5m, 2h or 7d, found 'soon'",
        None,
    ),
    (
        ("  order_files", "  ../order_files"),
        "stepwell.yml:4:3: '../order_files' cannot be the name of a source",
        "letters, digits, _ and -, beginning with a letter, at most 63",
    ),
    (
        ("  order_files", "  push"),
        "stepwell.yml:4:3: a source cannot be called push",
        "that name is reserved for pushed rows",
    ),
    (
        ("  revenue_out: {view: revenue, ", "  revenue_out: {"),
        "stepwell.yml:6:3: sink revenue_out has no view",
        "add view: NAME",
    ),
    (
        ("type: files, path: out", "type: postgres, path: out"),
        "stepwell.yml:6:3: sink revenue_out: option dsn must be a text, found nothing",
        None,
    ),
    (("name: orders\n", ""), "stepwell.yml has no name", "add a line: name: orders"),
    (
        ("name: orders", "name: ../x"),
        "stepwell.yml:1:7: name must be a name, found '../x'",
        "letters, digits, _ and -, beginning with a letter, at most 63",
    ),
    (
        ("store: ./state\n", ""),
        "stepwell.yml has no store",
        "add a line: store: ./state (or s3://bucket/prefix)",
    ),
    (
        ("store: ./state", "store: s4://x/y"),
        "stepwell.yml:2:8: unknown kind of store s4://",
        "did you mean s3://? a store is a directory, file:///directory, s3://bucket/prefix, gs://... or az://...",
    ),
    (
        ("store: ./state", "store: [a]"),
        "stepwell.yml:2:8: store must be an address, found a list",
        "store: ./state",
    ),
    (
        ("store: ./state", "store: {patience: 1m}"),
        "stepwell.yml:2:1: store must be an address, found none",
        "store: ./state, or store: {address: ./state, patience: 5m}",
    ),
    (
        ("store: ./state", "store: {address: ./state, patience: 60}"),
        "stepwell.yml:2:37: store.patience must be a duration such as 500ms, 60s, 5m, 2h or 7d, found 60",
        "write 60s, if seconds are meant",
    ),
    (
        ("store: ./state", "store: {address: ./state, patients: 60s}"),
        "stepwell.yml:2:27: store has no key patients",
        "did you mean patience?",
    ),
    (
        ("FROM orders GROUP", "FROM order GROUP"),
        "pipeline.sql:4:46: revenue reads order, which is not a table or view",
        "did you mean orders?",
    ),
    (
        ("FROM orders GROUP", "FROM `orders$errors` GROUP"),
        "pipeline.sql:4:46: revenue reads orders$errors, which is not a table or view",
        "dead letters can be queried, but not by a view: stepwell query",
    ),
    (
        ("FROM orders WHERE", "FROM text.`data/a.txt` WHERE"),
        "pipeline.sql:2:39: text.data/a.txt names a schema",
        "a view reads tables and views; add files through a source",
    ),
    (
        ("SUM(amount)", "SUM(amont)"),
        "pipeline.sql:4:24: revenue reads an unknown column amont",
        "did you mean amount?",
    ),
    (
        ("FROM orders WHERE", "FROM revenue WHERE"),
        "pipeline.sql:2:48: big reads an unknown column amount",
        "check the columns of what it reads",
    ),
    (
        ("FROM orders WHERE amount > 100", "FROM big"),
        "pipeline.sql:2:34: big reads itself: big -> big",
        "a view can only read tables, and views that do not read it",
    ),
    (
        ("FROM orders WHERE", "FROM db.orders WHERE"),
        "pipeline.sql:2:37: db.orders names a schema",
        "write orders: a pipeline has one namespace",
    ),
    (
        ("CREATE VIEW big", "CREATE VIEW Orders"),
        "pipeline.sql:2:13: Orders is declared twice, first in line 1",
        "tables and views share one namespace, and names are case-insensitive",
    ),
    (
        ("CREATE TABLE orders", "CREATE TABEL orders"),
        "pipeline.sql:1:8: expected TABLE, VIEW or MATERIALIZED VIEW, found TABEL",
        "did you mean TABLE?",
    ),
    (("SUM(amount)", "SUM(amount"), "pipeline.sql:4:23: this parenthesis is never closed", "add )"),
]


@pytest.mark.parametrize(("change", "message", "hint"), WRONG, ids=lambda value: str(value)[:50])
def test_a_mistake_is_shown_where_it_stands(
    write: Write, change: str | tuple[str, str], message: str, hint: str | None
) -> None:
    """D10: the user must not have to search for it."""
    if isinstance(change, str):
        yml, sql = f"{YML}{change}\n", SQL
    else:
        assert (YML + SQL).count(change[0]) == 1 or change[1] == ""
        yml, sql = YML.replace(*change), SQL.replace(*change)
    with pytest.raises(InvalidError) as caught:
        load_project(write(yml, sql), SystemEnv(), environ={})
    first, *shown = caught.value.message.splitlines()
    assert (first, caught.value.hint) == (message, hint)
    if ":" in message.partition(" ")[0]:
        text, carets = shown if len(shown) == 2 else ("", shown[-1])
        assert set(carets) <= {" ", "^"}
        assert "^" in carets


def test_a_circle_of_views_is_named(write: Write) -> None:
    """D10: in a circle no view can be the first to be made."""
    sql = SQL.replace("FROM orders WHERE amount > 100", "FROM revenue").replace(
        "AS total FROM orders", "AS total FROM big"
    )
    with pytest.raises(InvalidError) as caught:
        load_project(write(sql=sql), SystemEnv())
    assert "reads itself: big -> revenue -> big" in caught.value.message


def test_a_missing_project_says_how_to_make_one(tmp_path: Path) -> None:
    """The first thing everybody meets."""
    with pytest.raises(ConfigError, match=r"there is no stepwell.yml in") as caught:
        load_project(tmp_path, SystemEnv())
    assert "stepwell init" in str(caught.value.hint)
    (tmp_path / "stepwell.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"has stepwell\.yaml"):
        load_project(tmp_path, SystemEnv())
    with pytest.raises(ConfigError, match="no folder"):
        load_project(tmp_path / "nowhere", SystemEnv())


def test_a_project_without_statements_is_refused(write: Write) -> None:
    folder = write(sql="-- nothing yet\n")
    with pytest.raises(ConfigError, match="declares no table"):
        load_project(folder, SystemEnv())
    (folder / "pipeline.sql").unlink()
    with pytest.raises(ConfigError, match=r"holds no \*\.sql file"):
        load_project(folder, SystemEnv())


def test_relations_of_two_files_share_one_set_of_names(write: Write) -> None:
    folder = write(more__sql="CREATE TABLE Revenue (id INT);")
    with pytest.raises(InvalidError) as caught:
        load_project(folder, SystemEnv())
    assert caught.value.message.startswith(
        "pipeline.sql:3:26: revenue is declared twice, first in more.sql:1\n"
    )


def test_an_unknown_target_is_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="there is no target prd") as caught:
        load_project(write(YML + "targets: {prod: {}}\n"), SystemEnv(), target="prd")
    assert caught.value.hint == "did you mean prod?"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "a", "a: \x07", "? {a: 1}\n: 2", "[" * 300, "a: " + "x" * BYTES_MAX, "\ud800"],
    ids=lambda text: repr(text[:10]),
)
def test_a_file_that_is_not_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    """Whatever it is, it must not end in a traceback."""
    (tmp_path / "stepwell.yml").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError):
        load_project(tmp_path, SystemEnv())


def test_an_error_knows_its_place_for_editors(write: Write) -> None:
    with pytest.raises(ProjectError) as caught:
        load_project(write(YML + "spark: {master: 7}\n"), SystemEnv())
    error = caught.value
    assert (error.file, error.line, error.column) == ("stepwell.yml", 7, 17)
