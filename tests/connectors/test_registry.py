"""Sources and sinks are created from stepwell.yml, and mistakes are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.connectors.registry import SINKS, SOURCES, make_sink, make_source
from stepwell.errors import ConfigError
from stepwell.testing import ManualEnv
from tests.connectors.tables import NOTES, ORDERS, table

FILES = {"table": "orders", "type": "files", "path": "*.json", "format": "json"}
DOCS = Path(__file__).resolve().parents[2] / "docs" / "connectors"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"type": "file"}, "there is no type file\nhint: did you mean files?"),
        ({"type": "zzz"}, "there is no type zzz\nhint: types are: files, datagen"),
        ({"type": None}, "option type must be a text, found nothing"),
        ({"path": None}, "option path must be a text, found nothing"),
        ({"path": "s3://b/x"}, "option path must be a path on this machine, found 's3://b/x'"),
        ({"format": "jsn"}, "option format must be json or csv or parquet, found 'jsn'"),
        ({"formt": "json"}, "source s has no option formt\nhint: did you mean format?"),
        ({"q": 1}, "its options are: table, type, delimiter, path, format, changes"),
        ({"settle": "soon"}, "option settle must be a duration such as 500ms, 60s, 5m"),
        ({"settle": 1}, "found 1\nhint: write 1s, if seconds are meant"),
        ({"delimiter": ";;"}, "option delimiter must be one character, found ';;'"),
        ({"unknown": "keep"}, "option unknown must be bad or ignore, found 'keep'"),
        ({"format": "csv", "changes": "debezium"}, "Debezium's events are JSON, not csv"),
        ({"type": "datagen", "rate": -1}, "option rate must be a number of at least 0, found -1"),
    ],
)
def test_a_mistake_in_an_option_is_named(change: dict[str, object], reason: str) -> None:
    """The user must see which option is wrong, with a suggestion."""
    given = {k: v for k, v in {**FILES, **change}.items() if v is not None}
    if given.get("type") == "datagen":
        given = {k: v for k, v in given.items() if k not in ("path", "format")}
    with pytest.raises(ConfigError) as caught:
        make_source("s", given, table(ORDERS), ManualEnv(), base=Path("."))
    assert reason in str(caught.value)


def test_a_mistake_in_a_sink_is_named() -> None:
    """The same for sinks."""
    given = {"view": "v", "type": "files", "path": "out", "format": "json", "changes": "rows"}
    with pytest.raises(ConfigError, match="sink out has no option changes"):
        make_sink("out", given, "v", ManualEnv(), base=Path("."))


def test_a_column_no_file_can_fill_is_refused() -> None:
    """A type without a form in JSON is found at once, not at the first row."""
    declared = table("CREATE TABLE orders (v VARIANT)")
    with pytest.raises(ConfigError, match="no source can fill a column of type variant"):
        make_source("s", FILES, declared, ManualEnv(), base=Path("."))


def test_deletes_need_a_key() -> None:
    """Nobody could tell which row of a bag a made-up delete means."""
    given = {"table": "notes", "type": "datagen", "deletes": 0.1}
    with pytest.raises(ConfigError, match="deletes need a table with a primary key"):
        make_source("s", given, table(NOTES), ManualEnv(), base=Path("."))


@pytest.mark.parametrize(
    ("type", "library", "command"),
    [
        ("delta", "deltalake", "pip install 'stepwell[delta]'"),
        ("iceberg", "pyiceberg", "pip install 'stepwell[iceberg]'"),
        ("postgres", "psycopg", "pip install 'stepwell[postgres]'"),
        ("kafka", "confluent_kafka", "pip install 'stepwell[kafka]'"),
        ("kafka", "fastavro", "pip install 'stepwell[kafka]'"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_command(
    type: str, library: str, command: str
) -> None:
    """Heavy connectors are extras, and everything else works without them."""
    script = f"""
import sys
from pathlib import Path
sys.modules[{library!r}] = None
from stepwell.connectors.registry import make_sink
from stepwell.errors import ConfigError
from stepwell.testing import ManualEnv
try:
    options = dict(view="v", type={type!r}, path="x", dsn="dbname=x", identifier="a.b")
    options |= dict(brokers="b", topic="t", format="avro", registry="http://r")
    make_sink("out", options, "v", ManualEnv(), base=Path("."))
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert command in done.stdout, done.stderr


def test_connectors_need_neither_spark_nor_their_extras_to_be_imported() -> None:
    """What a pipeline does not use must not slow its start, nor be installed."""
    script = """
import sys
import stepwell.connectors.registry, stepwell.connectors.push
heavy = {"pyspark", "pandas", "deltalake", "psycopg", "confluent_kafka", "pyiceberg", "fastavro"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_type_and_option_is_documented() -> None:
    """What is not on its page does not exist for its readers."""
    for type in {*SOURCES, *SINKS}:
        assert (DOCS / f"{type}.md").exists()
    files, datagen = (DOCS / "files.md").read_text(), (DOCS / "datagen.md").read_text()
    delta, postgres = (DOCS / "delta.md").read_text(), (DOCS / "postgres.md").read_text()
    kafka = (DOCS / "kafka.md").read_text()
    for page, options in (
        (files, "path format changes delimiter unknown settle"),
        (datagen, "seed rate rows keys deletes"),
        (delta, "path mode key storage interval"),
        ((DOCS / "iceberg.md").read_text(), "identifier branch interval key mode evolve"),
        (postgres, "dsn table schema mode key timeout"),
        (kafka, "brokers topic format changes key start journal metadata columns unknown config"),
        (kafka, "timeout mode partitions evolve registry schema key_format subject"),
    ):
        for option in options.split():
            assert f"| `{option}`" in page
