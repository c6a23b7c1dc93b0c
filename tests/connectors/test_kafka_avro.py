"""Avro in topics, against a real broker and a schema registry that is killed."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml

from stepwell.connectors.kafka_source import KafkaSource
from stepwell.connectors.registry import make_sink, make_source
from stepwell.engine.ports import Intake, Limits
from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError
from stepwell.testing import ManualEnv
from tests.connectors.avro_values import encoded, record
from tests.connectors.kafka_topics import Topics
from tests.connectors.killed import open_pipeline, victims
from tests.connectors.schema_registry import SchemaRegistry, framed, schema_registry
from tests.connectors.sinks import change, mark
from tests.connectors.tables import rows, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "connectors" / "kafka.md"
WORDS = table("CREATE TABLE words (id BIGINT PRIMARY KEY, word STRING)")
WRITTEN = record({"id": "long", "word": ["null", "string"]})
LATER = record({"id": "long", "word": ["null", "string"], "more": "int"}, more=0)
ALL = Limits()


@pytest.fixture(scope="module")
def topics(kafka: str) -> Topics:
    return Topics(kafka)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[SchemaRegistry]:
    with schema_registry(tmp_path) as made:
        yield made


def source(topics: Topics, topic: str, **options: object) -> KafkaSource:
    given = {"table": "t", "type": "kafka", "brokers": topics.brokers, "topic": topic}
    given |= {"format": "avro", **options}
    made = make_source("s", given, WORDS, ManualEnv(), base=Path("."))
    assert isinstance(made, KafkaSource)
    return made


def take(made: KafkaSource, after: object = None) -> Intake:
    step = made.poll(after, ALL)
    assert step is not None
    return step


def values(id: int, schema: object, *numbers: int, **more: object) -> list[bytes]:
    given = [{"id": number, "word": f"w{number}", **more} for number in numbers]
    return [framed(id, encoded(schema, row)) for row in given]


def test_a_step_is_replayed_with_its_schemas(topics: Topics, registry: SchemaRegistry) -> None:
    """J8, J15: the registry is gone, the subject has moved on, and garbage is still garbage."""
    name = topics.create()
    id = registry.add("words", WRITTEN)
    numbers = list(range(20))
    topics.send(name, *values(id, WRITTEN, *numbers), b"oops", framed(99, b""), framed(id, b"\2"))
    made = source(topics, name, registry=registry.url, unknown="ignore")
    step = take(made)
    assert [row[0] for row in rows(step.change.put)] == numbers
    assert [(bad.where[-2:], bad.text) for bad in step.bad] == [
        ("20", "b29wcw=="),
        ("21", "AAAAAGM="),
        ("22", "AAAAAAEC"),
    ]
    later = registry.add("words", LATER)
    topics.send(name, *values(later, LATER, 30, more=1))
    registry.kill()
    with pytest.raises(UnavailableError, match="source s cannot use the registry"):
        made.poll(step.position, ALL)
    registry.start()
    following = take(made, step.position)
    assert rows(following.change.put) == [(30, "w30")]
    registry.forget()
    registry.kill()
    for taken in (step, following):
        reference = json.loads(json.dumps(taken.reference))
        again = source(topics, name, registry=registry.url, unknown="ignore").read(reference)
        assert again.change.put == taken.change.put
        assert again.bad == taken.bad


def test_a_given_schema_is_journaled_too(topics: Topics, tmp_path: Path) -> None:
    """J8: the option may name another schema, or another format, when a step is replayed."""
    name = topics.create()
    (tmp_path / "words.avsc").write_text(json.dumps(WRITTEN, indent=4))
    topics.send(name, *(value[5:] for value in values(0, WRITTEN, 1, 2)))
    step = take(source(topics, name, schema=str(tmp_path / "words.avsc")))
    assert rows(step.change.put) == [(1, "w1"), (2, "w2")]
    other = record({"word": "string", "id": "long"})
    for options in ({"schema": other}, {"format": "json"}):
        again = source(topics, name, **options).read(step.reference)
        assert again.change.put == step.change.put
    assert rows(take(source(topics, name, schema=other)).change.put) == []


def test_keys_of_tombstones(topics: Topics, registry: SchemaRegistry) -> None:
    """J8: keys are JSON or text, or Avro with a schema of their own: a record or a bare value."""
    name = topics.create()
    id = registry.add("words", WRITTEN)
    bare, whole = registry.add("key", "long"), registry.add("keys", record({"id": "long"}, "key"))
    put = values(id, WRITTEN, 1, 2, 3)
    keys = [framed(bare, encoded("long", 7)), framed(whole, encoded("long", 8)), framed(77, b"")]
    topics.send(name, *put, *((key, None) for key in keys), ("9", None), (None, None))
    step = take(source(topics, name, registry=registry.url, key="id", key_format="avro"))
    assert rows(step.change.delete) == [(7,), (8,)]
    assert [bad.reason for bad in step.bad] == [
        "the registry has no schema 77",
        "not a zero byte and the id of a schema, as with a registry",
        "a tombstone without a key",
    ]
    step = take(source(topics, name, registry=registry.url, key="id"))
    assert rows(step.change.delete) == [(9,)]
    assert len(step.bad) == 4


@pytest.mark.parametrize("key_format", ["json", "avro"])
def test_what_the_sink_writes_the_source_reads(
    topics: Topics, registry: SchemaRegistry, key_format: str
) -> None:
    """J7, J8: rows and tombstones by key, with schemas that the sink registers."""
    topic = f"{topics.create()}-out"
    given = {"view": "v", "type": "kafka", "brokers": topics.brokers, "topic": topic}
    given |= {"format": "avro", "registry": registry.url, "key_format": key_format}
    made = make_sink("out", {**given, "key": "customer"}, "v", SystemEnv(), base=Path("."))
    registry.kill()
    first = change(("a", "1.00", 1, 1), ("b", "2.00", 2, 1))
    with pytest.raises(UnavailableError, match="sink out cannot use the registry"):
        made.write(None, mark(1), first)
    assert made.last() is None
    registry.start()
    made.write(None, mark(1), first)
    made.write(
        mark(1), mark(2), change(("a", "1.00", 1, -1), ("a", "3.00", 3, 1), ("b", "2.00", 2, -1))
    )
    made.close()
    totals = table("CREATE TABLE t (customer STRING PRIMARY KEY, total DECIMAL(12,2), n BIGINT)")
    given = {"table": "t", "type": "kafka", "brokers": topics.brokers, "topic": topic}
    given |= {"format": "avro", "registry": registry.url, "key_format": key_format}
    back = make_source("s", {**given, "key": "customer"}, totals, ManualEnv(), base=Path("."))
    step = back.poll(None, ALL)
    assert step is not None
    assert (step.rows, step.bad) == (4, ())
    assert rows(step.change.put) == [("a", Decimal("3.00"), 3)]
    assert set(registry.subjects()) == {
        f"{topic}-value",
        *([f"{topic}-key"] if key_format == "avro" else []),
    }


SQL = """CREATE TABLE words (id BIGINT PRIMARY KEY, word STRING);
    CREATE MATERIALIZED VIEW counts AS SELECT word, COUNT(*) AS n FROM words GROUP BY word"""


def test_a_killed_pipeline_is_replayed_without_its_registry(
    topics: Topics, registry: SchemaRegistry, tmp_path: Path
) -> None:
    """Scenario 84, J8: nothing is a dead letter because the registry has died with the process."""
    name = topics.create()
    at = {"type": "kafka", "brokers": topics.brokers, "format": "avro", "registry": registry.url}
    sources = {"in": {**at, "table": "words", "topic": name}}
    sinks = {"out": {**at, "view": "counts", "topic": f"{name}-out", "key": ["word"]}}
    given: dict[str, Any] = {
        "folder": str(tmp_path),
        "sql": SQL,
        "sources": sources,
        "sinks": sinks,
    }
    id = registry.add("words", WRITTEN)
    topics.send(name, *values(id, WRITTEN, *range(200)), b"oops")
    with victims() as process:
        process.kill("run", 3, 0, checkpoint_every_s=1000, **given)
    registry.kill()
    with open_pipeline(**given) as pipeline:
        assert pipeline.table("words").num_rows >= 50
    registry.start()
    with open_pipeline(**given) as pipeline:
        pipeline.run(once=True)
        assert pipeline.deliver()
        assert pipeline.table("words").num_rows == 200
        assert pipeline.table("words$errors").num_rows == 1
    found = {message.key(): message.value() for message in topics.read(f"{name}-out")}
    assert len(found) == 200


def test_the_avro_section_of_the_page_runs(
    topics: Topics, registry: SchemaRegistry, tmp_path: Path
) -> None:
    """What is copied from the page must work, and give what the page shows."""
    section = PAGE.read_text().partition("## Avro\n")[2]
    section = section.replace("kafka:9092", topics.brokers).replace(
        "http://registry:8081", registry.url
    )
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    assert set(blocks) == {"yaml", "sql", "python", "text"}
    for name in ("payments", "totals", "totals.stepwell"):
        if name in topics.admin.list_topics(timeout=30).topics:
            topics.delete(name)
    topics.create(name="payments")
    exec(compile(blocks["python"], "page", "exec"), {})
    project = yaml.safe_load(blocks["yaml"])
    with open_pipeline(
        str(tmp_path), blocks["sql"], project["sources"], project["sinks"]
    ) as pipeline:
        pipeline.run(once=True)
        assert pipeline.deliver()
    (schema,) = registry.subjects()["totals-value"]
    said = io.StringIO()
    with redirect_stdout(said):
        for message in topics.read("totals"):
            row = fastavro.schemaless_reader(io.BytesIO(message.value()[5:]), schema, None)
            print(message.key().decode(), row)
    assert sorted(said.getvalue().splitlines()) == sorted(blocks["text"].splitlines())
