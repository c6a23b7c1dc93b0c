"""The Kafka source, against a real broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.connectors.formats import ChangeFormat
from stepwell.connectors.kafka import Record
from stepwell.connectors.kafka_records import Found, Layout, RecordDecoder
from stepwell.connectors.kafka_source import KafkaSource
from stepwell.connectors.registry import make_source
from stepwell.connectors.shape import shape_of
from stepwell.engine.ports import Intake, Limits
from stepwell.errors import ConfigError, ReplayMismatchError, UnavailableError
from stepwell.testing import ManualEnv
from tests.connectors.kafka_topics import Topics
from tests.connectors.tables import rows, table

WORDS = table("CREATE TABLE words (id BIGINT PRIMARY KEY, word STRING)")
BAG = table("CREATE TABLE bag (id BIGINT, word STRING)")
ALL = Limits()
Env = ManualEnv


@pytest.fixture(scope="module")
def topics(kafka: str) -> Topics:
    return Topics(kafka)


def source(
    topics: Topics, topic: object, of: object = WORDS, env: Env | None = None, **options: object
) -> KafkaSource:
    given = {"table": "t", "type": "kafka", "brokers": topics.brokers, "topic": topic, **options}
    made = make_source("s", given, of, env or ManualEnv(), base=Path("."))  # type: ignore[arg-type]
    assert isinstance(made, KafkaSource)
    return made


def take(made: KafkaSource, after: object = None, limits: Limits = ALL) -> Intake:
    step = made.poll(after, limits)
    assert step is not None
    return step


def ids(step: Intake) -> list[object]:
    return [row[0] for row in rows(step.change.put)]


def lines(*numbers: int) -> list[str]:
    return [f'{{"id":{number},"word":"w{number}"}}' for number in numbers]


def letters(step: Intake) -> list[tuple[str, str]]:
    return [(bad.where, bad.reason) for bad in step.bad]


def test_a_tombstone_deletes_the_row_of_its_key(topics: Topics) -> None:
    """J8: in the order of the partition; keys as objects, and as the bare value."""
    name = topics.create()
    topics.send(name, ('{"id":1}', lines(1)[0]), ("2", lines(2)[0]), ("3", lines(3)[0]))
    topics.send(name, ("1", None), ('{"id":2,"more":0}', None), ("2", lines(2)[0]), ("9", None))
    step = take(source(topics, name, key="id"))
    assert sorted(map(str, ids(step))) == ["2", "3"]
    assert rows(step.change.delete) == [(9,)]
    assert rows(step.change.discard) == [(1,)]
    assert (step.rows, step.bad) == (7, ())
    assert step.deleted is not None
    assert step.deleted([0]) == [(f"{name} [0], offset 6", "9")]


def test_a_tombstone_without_a_known_key_is_a_dead_letter(topics: Topics) -> None:
    """Scenario 95: it cannot be applied, and must not be dropped silently."""
    name = topics.create()
    topics.send(name, (None, None), ('"x"', None), ("[1]", None), (b"\xff", None), ("1", None))
    step = take(source(topics, name, key="id"))
    where = [f"{name} [0], offset {offset}" for offset in range(4)]
    assert [place for place, _ in letters(step)] == where
    assert letters(step)[0][1] == "a tombstone without a key"
    assert rows(step.change.delete) == [(1,)]
    (*_, last) = letters(take(source(topics, name)))
    assert last == (f"{name} [0], offset 4", "a tombstone, and the source has no option key")
    step = take(source(topics, name, changes="debezium"))
    assert (step.rows, step.bad, step.change.put) == (5, (), None)


def test_text_keys(topics: Topics) -> None:
    """J8: the key of a text column is the text itself, or a JSON string, or an object."""
    keyed = table("CREATE TABLE t (word STRING PRIMARY KEY)")
    name = topics.create()
    topics.send(name, ("a", None), ('"b"', None), ('{"word":"c"}', None), ("12", None), ("", None))
    step = take(source(topics, name, keyed, key="word"))
    assert rows(step.change.delete) == [("a",), ("b",), ("c",), ("12",), ("",)]


DECLARED = """CREATE TABLE t (
    _topic STRING NOT NULL, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, _key {0},
    _headers ARRAY<STRUCT<key: STRING, value: BINARY>>, word STRING,
    PRIMARY KEY (_topic, _partition, _offset))"""
METADATA = ["_topic", "_partition", "_offset", "_timestamp", "_key", "_headers"]


def test_columns_of_metadata(topics: Topics) -> None:
    """J8: where a record comes from, its time, key and headers, in the columns that ask for it."""
    name = topics.create(2)
    headers = [("a", b"\x00"), ("a", None)]
    topics.send(name, ("k", '{"word":"x"}'), partition=1, timestamp=1_500, headers=headers)
    topics.send(name, (b"\xff", '{"word":\n"y"}'), '{"oops":1}', timestamp=2**62)
    made = source(topics, name, table(DECLARED.format("BINARY")), metadata=METADATA)
    step = take(made)
    noon = datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    told = [{"key": "a", "value": b"\x00"}, {"key": "a", "value": None}]
    assert rows(step.change.put) == [
        (name, 0, 0, None, b"\xff", None, "y"),
        (name, 1, 0, noon, b"k", told, "x"),
    ]
    assert letters(step) == [(f"{name} [0], offset 1", "t has no column oops")]
    assert made.read(step.reference).change.put.equals(step.change.put)
    (row, _) = rows(
        take(source(topics, name, table(DECLARED.format("STRING")), metadata=METADATA)).change.put
    )
    assert row[4] == "\ufffd"
    strict = table("CREATE TABLE t (word STRING, _key STRING NOT NULL)")
    topics.send(name, '{"word":"z"}')
    step = take(source(topics, name, strict, metadata="_key"))
    assert len(rows(step.change.put)) == 2
    assert letters(step)[1] == (f"{name} [0], offset 2", "the column _key is NULL")


def test_a_round_ends_where_the_partitions_ended_when_it_began(topics: Topics) -> None:
    """J8: a busy partition does not starve the others, wherever steps end."""
    name = topics.create(2)
    topics.send(name, *lines(1, 2, 3))
    topics.send(name, *lines(11, 12), partition=1)
    one = source(topics, name)
    first = take(one, limits=Limits(rows_max=2))
    topics.send(name, *lines(4, 5, 6))
    found, after = ids(first), first.position
    for _ in range(3):
        step = take(source(topics, name), json.loads(json.dumps(after)), Limits(rows_max=2))
        found += ids(step)
        after = step.position
    assert found == [1, 2, 3, 11, 12, 4, 5]
    assert ids(take(one, after)) == [6]


@pytest.mark.parametrize("start", ["latest", "1970-01-01T00:00:05Z"])
def test_a_source_starts_where_it_is_told(topics: Topics, start: str) -> None:
    """J8: only what was there before is left out; partitions that come later are read whole."""
    name, env = topics.create(), ManualEnv()
    topics.send(name, *lines(1, 2), timestamp=4_999)
    if start == "latest":
        made = source(topics, name, env=env, start=start)
        step = take(made)
        assert (step.rows, made.poll(step.position, ALL)) == (0, None)
        topics.send(name, *lines(3), timestamp=5_000)
    else:
        topics.send(name, *lines(3), timestamp=5_000)
        made = source(topics, name, env=env, start=start)
        step = take(made)
        assert ids(step) == [3]
    admin = AdminClient({"bootstrap.servers": topics.brokers})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(30)
    topics.send(name, *lines(4), partition=1, timestamp=6)
    env.sleep(2)
    found = ids(take(made, step.position))
    assert found == ([3, 4] if start == "latest" else [4])


def test_topics_by_pattern(topics: Topics) -> None:
    """J8: in the order of their names; a topic that appears later is read from its beginning."""
    base, env = topics.create(), ManualEnv()
    topics.create(name=f"{base}-b")
    topics.send(f"{base}-b", *lines(2))
    topics.send(base, *lines(9))
    made = source(topics, f"{base}-*", env=env, start="earliest")
    step = take(made)
    assert ids(step) == [2]
    topics.create(name=f"{base}-a")
    topics.send(f"{base}-a", *lines(1))
    topics.send(f"{base}-b", *lines(3))
    env.sleep(2)
    assert ids(take(made, step.position)) == [1, 3]
    topics.delete(f"{base}-a")
    env.sleep(2)
    assert made.poll(take(made, step.position).position, ALL) is None
    many = take(source(topics, [base, f"{base}-b"]))
    assert ids(many) == [9, 2, 3]


def test_records_that_expired_unread_are_named(topics: Topics) -> None:
    """J8: skipping them silently would lose rows."""
    name = topics.create()
    topics.send(name, *lines(*range(10)))
    first = take(source(topics, name), limits=Limits(rows_max=4))
    topics.expire(name, 7)
    made = source(topics, name)
    with pytest.raises(ReplayMismatchError, match=rf"offsets 4 to 6 of {name} \[0\] have expired"):
        made.poll({"topics": {name: [first.position["topics"][name][0], [4]]}}, ALL)
    with pytest.raises(ReplayMismatchError, match="stepwell run --skip-expired"):
        made.poll(first.position, ALL)  # In the middle of a round.
    made.skip_expired()
    step = take(made, first.position)
    assert ids(step) == [7, 8, 9]
    where = f"offsets 4 to 6 of {name} [0]"
    assert letters(step) == [(where, "expired before they were read")]
    assert step.rows == 4
    again = source(topics, name).read(json.loads(json.dumps(step.reference)))
    assert (letters(again), ids(again), again.rows) == (letters(step), ids(step), 4)


def test_records_that_expired_before_replay_are_named(topics: Topics) -> None:
    """J8: the message names topic, partition and offsets, and the way out."""
    name = topics.create(2)
    topics.send(name, *lines(1, 2, 3), partition=1)
    step = take(source(topics, name))
    assert ids(source(topics, name).read(step.reference)) == [1, 2, 3]
    topics.expire(name, 2, partition=1)
    with pytest.raises(ReplayMismatchError) as caught:
        source(topics, name).read(step.reference)
    told = f"offsets 0 to 1 of {name} [1] have expired: the partition now begins at 2"
    assert caught.value.message == told
    assert "stepwell checkpoint list" in str(caught.value.hint)


def test_other_records_than_were_read_are_a_mismatch(topics: Topics) -> None:
    """J8: as after a compaction; the checksum decides."""
    name = topics.create()
    topics.send(name, *lines(1, 2))
    step = take(source(topics, name))
    for place, value in ((5, 3), (6, "0" * 32)):
        reference = json.loads(json.dumps(step.reference))
        reference["read"][0][place] = value
        with pytest.raises(ReplayMismatchError, match=rf"offsets 0 to 1 of {name} \[0\] were"):
            source(topics, name).read(reference)


def test_a_topic_that_was_created_again_is_named(topics: Topics) -> None:
    """J8: the same name and offsets, but other records."""
    name, env = topics.create(), ManualEnv()
    topics.send(name, *lines(1, 2))
    made = source(topics, name, env=env)
    step = take(made)
    topics.delete(name)
    topics.create(name=name)
    topics.send(name, *lines(11, 12, 13))
    env.sleep(2)
    with pytest.raises(ReplayMismatchError, match=f"the topic {name} was deleted and created"):
        made.poll(step.position, ALL)
    with pytest.raises(ReplayMismatchError, match=f"the topic {name} was deleted and created"):
        source(topics, name).read(step.reference)
    made.skip_expired()
    step = take(made, step.position)
    assert ids(step) == [11, 12, 13]
    assert letters(step) == [(name, "deleted and created again after [0] up to 2 had been read")]
    topics.delete(name)
    with pytest.raises(ReplayMismatchError, match=f"the topic {name} is gone"):
        made.read(step.reference)


def test_an_open_transaction_is_waited_for(topics: Topics) -> None:
    """J8: what is behind it in the partition comes after it, even if it was committed before."""
    name = topics.create()
    given = {"bootstrap.servers": topics.brokers, "transactional.id": name, "linger.ms": 0}
    producer = Producer(given)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, lines(1)[0], partition=0)
    producer.flush(30)
    topics.send(name, *lines(2))
    made = source(topics, name)
    assert take(made).rows == 0
    producer.commit_transaction(30)
    topics.settle(name)
    assert ids(take(made)) == [1, 2]


def test_a_source_says_how_far_it_lags(topics: Topics) -> None:
    """J8: by partition, the largest first."""
    name = topics.create(3)
    topics.send(name, *lines(1, 2, 3))
    topics.send(name, *lines(*range(20)), partition=2)
    made = source(topics, name)
    assert made.waiting() is None
    step = take(made, limits=Limits(rows_max=1))
    assert made.waiting() == f"22 offsets behind: {name} [2] 20, {name} [0] 2"
    assert dict(made.lag()) == {f"{name} [0]": 2, f"{name} [2]": 20}
    take(made, step.position)
    assert made.waiting() is None


def test_rows_can_be_journaled_themselves(topics: Topics) -> None:
    """J8: for a topic whose records expire soon; there is nothing to read again."""
    name = topics.create()
    topics.send(name, *lines(1), "oops")
    step = take(source(topics, name, journal="rows"))
    assert (step.reference, step.rows, len(step.bad)) == (None, 2, 1)


def test_csv(topics: Topics) -> None:
    """J8: a record is one line of CSV, whatever it holds."""
    name = topics.create()
    topics.send(name, "i;1;a", 'i;2;"b;\n""c"""', "d;3;", "", "i;4", "i;5;a\ni;6;b")
    topics.send(name, 'i;7;"', "x;8;")
    step = take(source(topics, name, format="csv", changes="insert_delete", delimiter=";"))
    assert rows(step.change.put) == [(1, "a"), (2, 'b;\n"c"')]
    assert rows(step.change.delete) == [(3,)]
    assert sorted(int(place.rpartition(" ")[2]) for place, _ in letters(step)) == [3, 4, 5, 6, 7]
    assert step.rows == 8


def test_debezium(topics: Topics) -> None:
    """J8: events and the tombstones behind them."""
    name = topics.create()
    row = {"id": 1, "word": "a"}
    events = [
        {"op": "c", "before": None, "after": row},
        {"op": "u", "before": row, "after": {**row, "word": "b"}},
        {"op": "d", "before": {"id": 2, "word": "x"}, "after": None},
    ]
    topics.send(name, *map(json.dumps, events), ("2", None))
    step = take(source(topics, name, changes="debezium"))
    assert rows(step.change.put) == [(1, "b")]
    assert rows(step.change.delete) == [(2,)]


def test_a_broker_that_is_down_is_unavailable() -> None:
    """J8: it is waited for; the other sources continue."""
    made = source(Topics("127.0.0.1:1"), "t", timeout="1s")
    with pytest.raises(UnavailableError, match=r"source s cannot reach 127\.0\.0\.1:1"):
        made.poll(None, ALL)


def test_a_topic_that_does_not_exist_is_waited_for(topics: Topics) -> None:
    """J8: it may be created later."""
    name = f"{topics.create()}-later"
    made = source(topics, name)
    with pytest.raises(UnavailableError, match=f"there is no topic {name}"):
        made.poll(None, ALL)
    topics.create(name=name)
    topics.send(name, *lines(1))
    assert ids(take(made)) == [1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topic": []}, "option topic must be a topic, a list of topics, or a pattern"),
        ({"topic": "a b"}, "option topic must be letters, digits"),
        ({"brokers": []}, "option brokers must be"),
        ({"start": "yesterday"}, "option start must be earliest, latest or a timestamp"),
        ({"key": "word"}, r"option key is \(word\), but the key of the table words is \(id\)"),
        ({"metadata": "_offset"}, "the table words has no column _offset"),
        ({"metadata": "word"}, "option metadata has no column word"),
        ({"config": {"group.id": "x"}}, "config cannot set group.id"),
        ({"config": {"no.such": "x"}}, "option config: No such configuration property"),
        ({"format": "csv", "changes": "debezium"}, "changes: debezium needs format: json"),
        ({"format": "avro"}, "format: avro needs a registry or a schema"),
        ({"format": "avro", "registry": "registry:8081"}, "option registry must be the address"),
        ({"format": "avro", "registry": "http://ada:x@r"}, "option registry must be the address"),
        ({"format": "avro", "schema": "missing.avsc"}, "option schema: cannot read missing.avsc"),
        ({"format": "avro", "schema": {"type": "recrd"}}, "option schema cannot be used"),
        ({"registry": "http://r"}, "has no option registry"),
        ({"format": "csv", "columns": ["id", "ID"]}, "names a column twice"),
        ({"format": "xml"}, "option format must be json or csv"),
        ({"delimiter": ";"}, "has no option delimiter"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], reason: str) -> None:
    """A mistake is found when the project is read, and nothing is connected."""
    given = {"table": "t", "type": "kafka", "brokers": "localhost:1", "topic": "t", **options}
    with pytest.raises(ConfigError, match=reason):
        make_source("s", given, WORDS, ManualEnv(), base=Path("."))


def test_a_delete_cannot_name_metadata() -> None:
    """The row that it should delete has the offset of another record."""
    of = table("CREATE TABLE t (id BIGINT, _offset BIGINT)")
    given = {"table": "t", "type": "kafka", "brokers": "b", "topic": "t", "metadata": "_offset"}
    make_source("s", given, of, ManualEnv(), base=Path("."))
    given["changes"] = "insert_delete"
    with pytest.raises(ConfigError, match="a delete cannot name _offset"):
        make_source("s", given, of, ManualEnv(), base=Path("."))


LAYOUTS = {
    "json": Layout(ChangeFormat.ROWS, key=("id",)),
    "insert_delete": Layout(ChangeFormat.INSERT_DELETE, key=("id",)),
    "debezium": Layout(ChangeFormat.DEBEZIUM),
    "csv": Layout(ChangeFormat.ROWS, ("id",), delimiter=",", columns=("id", "word")),
}
BYTES = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.text('{}[]":,id0123456789wordbeforeafter\n\r nul', max_size=30).map(str.encode),
    st.integers(0, 5).map(lambda n: b'{"id":%d,"word":"x"}' % n),
    st.integers(0, 5).map(lambda n: b'{"delete":{"id":%d}}' % n),
    st.integers(0, 5).map(lambda n: b'{"op":"d","before":{"id":%d}}' % n),
    st.integers(0, 5).map(lambda n: b'%d,"x"' % n),
)


@pytest.mark.parametrize("word", LAYOUTS)
@settings(max_examples=40)
@given(values=st.lists(st.tuples(BYTES, BYTES), max_size=12), repeated=st.booleans())
def test_any_bytes_become_rows_or_dead_letters(
    word: str, values: list[tuple[bytes | None, bytes | None]], repeated: bool
) -> None:
    """J15: decoding never raises, and does not depend on the records around a record."""
    decoder = RecordDecoder("source s", shape_of(WORDS), LAYOUTS[word])
    values = values * 3 if repeated else values
    found = [
        Found("t", 0, Record(at, None, key, value, None)) for at, (key, value) in enumerate(values)
    ]
    batch = decoder.decode(found)
    assert batch.rows == len(found)
    alone = [decoder.decode([item]) for item in found]
    operations = [row[:3] for each in alone for row in rows(each.operations)]
    assert [row[:3] for row in rows(batch.operations)] == operations
    assert sorted((bad.where, bad.text) for bad in batch.bad) == sorted(
        (bad.where, bad.text) for each in alone for bad in each.bad
    )
    numbers = [row[3] for row in rows(batch.operations)]
    assert numbers == sorted(numbers)  # type: ignore[type-var]
