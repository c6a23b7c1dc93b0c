"""The Kafka sink, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource

from stepwell.connectors.kafka import Cluster
from stepwell.connectors.kafka_sink import KafkaSink
from stepwell.connectors.kafka_transactions import Transactions
from stepwell.connectors.registry import make_sink
from stepwell.engine.outbox import Outbox
from stepwell.env import SystemEnv
from stepwell.errors import ConfigError, ConflictError, CorruptError, InvalidError, UnavailableError
from stepwell.manifest.progress import SinkAt
from stepwell.model import Transaction
from stepwell.store.memory import MemoryStore
from tests.connectors.kafka_broker import Broker, broker
from tests.connectors.kafka_topics import Topics
from tests.connectors.sinks import LINEAGE, Place, alone, change, in_turn, mark, put


@pytest.fixture(scope="module")
def topics(kafka: str) -> Topics:
    return Topics(kafka)


@pytest.fixture(scope="module")
def mortal() -> Iterator[Broker]:
    """A broker that may be killed."""
    with broker(private=True) as made:
        yield made


def sink(topics: Topics, topic: str, name: str = "out", **options: object) -> KafkaSink:
    given = {"view": "v", "type": "kafka", "brokers": topics.brokers, "topic": topic, **options}
    made = make_sink(name, given, "v", SystemEnv(), base=Path("."))
    assert isinstance(made, KafkaSink)
    return made


def values(topics: Topics, topic: str) -> list[Any]:
    found = topics.read(topic)
    return [(message.key(), json.loads(message.value() or b"null")) for message in found]


def unused(topics: Topics) -> str:
    """The name of a topic that does not exist."""
    return f"{topics.create()}-out"


def test_changes_and_their_order(topics: Topics) -> None:
    """J7: every change with its weight and transaction; retractions first."""
    topic = unused(topics)
    made = sink(topics, topic)
    put(made, 1, change(("b", "2.00", 2, 1), ("a", "1.00", 1, 2)))
    put(made, 2, change(("b", "3.00", 3, 1), ("b", "2.00", 2, -1)))
    made.close()
    fields = ["customer", "total", "n", "_w", "_transaction"]
    rows = [("b", 2.0, 2, 1, 1), ("a", 1.0, 1, 2, 1), ("b", 2.0, 2, -1, 2), ("b", 3.0, 3, 1, 2)]
    expected = [(None, dict(zip(fields, row, strict=True))) for row in rows]
    assert values(topics, topic) == expected


def test_rows_by_key_and_tombstones(topics: Topics) -> None:
    """J7: a compacted topic holds the view; the same key always goes to the same partition."""
    topic = unused(topics)
    made = sink(topics, topic, key=["customer"], partitions=4)
    for number in range(1, 9):
        put(made, number, in_turn(number))
    made.close()
    config = topics.admin.describe_configs([ConfigResource("topic", topic)])
    (found,) = (future.result() for future in config.values())
    assert found["cleanup.policy"].value == "compact"
    messages = topics.read(topic)
    assert len({message.partition() for message in messages}) > 1
    for key in {message.key() for message in messages}:
        assert len({m.partition() for m in messages if m.key() == key}) == 1
    gone = [message.key() for message in messages if message.value() is None]
    assert gone == [b'{"customer":"c2"}']


def test_debezium_events(topics: Topics) -> None:
    """J7: with a key, a row that replaces another one is an update; without, a copy is an event."""
    keyed, bag = unused(topics), unused(topics)
    for topic, options in ((keyed, {"mode": "changes", "key": "customer"}), (bag, {})):
        made = sink(topics, topic, format="debezium", **options)
        put(made, 1, change(("a", "1.00", 1, 1), ("b", "2.00", 2, 1)))
        put(made, 2, change(("a", "1.00", 1, -1), ("a", "3.00", 3, 1), ("b", "2.00", 2, -1)))
        made.close()
    rows = ((1, "a", 1.0), (2, "b", 2.0), (3, "a", 3.0))
    row = {n: {"customer": customer, "total": total, "n": n} for n, customer, total in rows}
    found = [value for _, value in values(topics, keyed)]
    told = [(v["op"], v["before"], v["after"], v["source"]["txId"]) for v in found]
    assert told == [
        ("c", None, row[1], 1),
        ("c", None, row[2], 1),
        ("d", row[2], None, 2),
        ("u", row[1], row[3], 2),
    ]
    assert [v["op"] for _, v in values(topics, bag)] == ["c", "c", "d", "d", "c"]
    made = sink(topics, unused(topics), format="debezium", mode="changes", key="customer")
    for wrong in (change(("a", "1.00", 1, 1), ("a", "2.00", 1, 1)), change(("a", "1.00", 1, -2))):
        with pytest.raises(InvalidError, match="several rows with the same customer"):
            put(made, 1, wrong)
    made.close()


def test_a_topic_of_somebody_else_is_refused(topics: Topics) -> None:
    """J7: its records are not the view's."""
    topic = topics.create(2)
    topics.send(topic, "x", partition=1)
    made = sink(topics, topic)
    with pytest.raises(InvalidError, match="holds records that Stepwell did not write"):
        put(made, 1, alone(1))
    assert made.last() is None
    made.close()


def test_two_sinks_cannot_share_a_topic(topics: Topics) -> None:
    """J7: each would take the other's progress for its own."""
    topic = unused(topics)
    one, two = sink(topics, topic, "one"), sink(topics, topic, "two")
    put(one, 1, alone(1))
    with pytest.raises(InvalidError, match="belongs to sink one"):
        put(two, 2, alone(2))
    one.close()
    two.close()


def test_a_topic_that_was_deleted_starts_over(topics: Topics) -> None:
    """J16: the mark of the deleted topic tells of nothing, and is not believed."""
    topic = unused(topics)
    before = sink(topics, topic)
    put(before, 1, alone(1))
    topics.delete(topic)
    with pytest.raises(ConflictError, match="holds nothing"):
        before.write(mark(1), mark(2), alone(2))
    topics.create(name=topic)
    assert before.last() is None
    after = sink(topics, topic, "another")
    after.write(None, mark(3), alone(3))
    assert after.last() == mark(3)
    assert [value["customer"] for _, value in values(topics, topic)] == ["t3"]
    before.close()
    after.close()


def test_a_fenced_writer_writes_nothing(topics: Topics) -> None:
    """Scenario 93, J16: it is in its transaction when its successor takes over."""
    topic = unused(topics)
    late, successor = sink(topics, topic), sink(topics, topic)
    put(late, 1, alone(1))
    commit = late._transactions.commit

    def too_late() -> None:
        late._transactions._producer.flush(30)  # type: ignore[union-attr]
        put(successor, 2, alone(2))
        commit()

    late._transactions.commit = too_late  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="fenced: another writer has taken over"):
        late.write(mark(1), mark(2), alone(99))
    assert [value["customer"] for _, value in values(topics, topic)] == ["t1", "t2"]
    assert len(topics.read(topic, committed=False)) == 3, "what it sent was aborted"
    late.close()
    successor.close()


def test_a_writer_that_was_not_fenced_does_not_read_its_mark_again(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J16: it knows the mark; but not after a claim, or if the engine expects another one."""
    topic, reads = unused(topics), 0
    made, read = sink(topics, topic), Cluster.read

    def counted(cluster: Cluster, *given: Any, **more: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(cluster, *given, **more)

    monkeypatch.setattr(Cluster, "read", counted)
    put(made, 1, alone(1))
    before = reads
    for number in range(2, 6):
        made.write(mark(number - 1), mark(number), alone(number))
    assert reads == before
    with pytest.raises(ConflictError, match="holds"):
        made.write(mark(3), mark(6), alone(99))
    made._transactions.close()
    made.write(mark(5), mark(6), alone(6))
    assert reads > before
    assert [value["n"] for _, value in values(topics, topic)] == [1, 2, 3, 4, 5, 6]
    made.close()


def test_a_transaction_of_a_dead_writer_is_ended(topics: Topics) -> None:
    """Scenario 84: it would hide the mark, and what others write, until it times out."""
    topic = unused(topics)
    made = sink(topics, topic)
    put(made, 1, alone(1))
    dead = Producer({"bootstrap.servers": topics.brokers, "transactional.id": f"stepwell.{topic}"})
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(topic, b"half")
    dead.produce(f"{topic}.stepwell", b"half", partition=0)
    dead.flush(30)
    fresh = sink(topics, topic)
    assert fresh.last() == mark(1)
    put(fresh, 2, alone(2))
    assert [value["customer"] for _, value in values(topics, topic)] == ["t1", "t2"]
    made.close()
    fresh.close()


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_whose_answer_is_lost_is_asked_for(topics: Topics, landed: bool) -> None:
    """J7, scenario 84: the outbox asks the sink, and sends again what it does not hold."""
    place = Place("kafka", {"type": "kafka", "brokers": topics.brokers, "topic": unused(topics)})
    made, env = place.make(), SystemEnv()
    assert isinstance(made, KafkaSink)
    outbox = Outbox(made, LINEAGE, MemoryStore(env), env, at=SinkAt("out"))
    outbox.settle(Transaction(0))
    commit: Callable[[], None] = made._transactions.commit
    answers = iter([False, True])

    def losing() -> None:
        if next(answers, True):
            return commit()
        if landed:
            commit()
        made._transactions.close()
        raise UnavailableError("no answer")

    made._transactions.commit = losing  # type: ignore[method-assign]
    for number in (1, 2):
        outbox.offer(mark(number), in_turn(number))
    assert not outbox.deliver()
    outbox._until = 0.0
    assert outbox.deliver()
    assert made.last() == mark(2)
    assert place.content() == place.expected({1: in_turn(1), 2: in_turn(2)})
    made.close()


def test_records_the_broker_refuses_stop_the_sink(topics: Topics) -> None:
    """J7: trying again would not help, and nothing of the transaction is there."""
    topic = topics.create(**{"max.message.bytes": "200"})
    made = sink(topics, topic)
    put(made, 1, alone(1))
    with pytest.raises(InvalidError, match="a record is refused"):
        put(made, 2, change(("x" * 1000, "1.00", 1, 1), ("y", "1.00", 1, 1)))
    assert made.last() == mark(1)
    put(made, 2, alone(2))
    made.close()
    assert [value["customer"] for _, value in values(topics, topic)] == ["t1", "t2"]


def test_the_mark_is_found_behind_many_others(topics: Topics) -> None:
    """J7: the last record counts, behind aborted ones, however long the progress topic is."""
    topic = unused(topics)
    made = sink(topics, topic)
    put(made, 1, alone(1))
    progress = f"{topic}.stepwell"
    producer = Producer({"bootstrap.servers": topics.brokers, "transactional.id": "test"})
    producer.init_transactions(30)
    for _ in range(12):
        producer.begin_transaction()
        producer.produce(progress, b"aborted", topic.encode(), partition=0)
        producer.flush(30)
        producer.abort_transaction(30)
    assert made.last() == sink(topics, topic).last() == mark(1)
    topics.send(progress, (topic, "not a mark"))
    with pytest.raises(CorruptError, match="its last record is not one of Stepwell's"):
        made.last()
    made.close()


@pytest.mark.slow
def test_a_broker_that_is_killed_costs_attempts_and_no_rows(mortal: Broker) -> None:
    """J7, scenario 84: killed before a write, and between sending and the commit."""
    options = {"type": "kafka", "brokers": mortal.address, "topic": "t", "timeout": "30s"}
    place = Place("kafka", dict(options))
    made = place.make()
    assert isinstance(made, KafkaSink)
    put(made, 1, in_turn(1))
    send = Transactions.send
    kills = 0

    def killing(*given: Any) -> None:
        nonlocal kills
        send(made._transactions, *given)
        if kills == 0:
            kills += 1
            mortal.kill()
            mortal.start()

    made._transactions.send = killing  # type: ignore[method-assign]
    number = 2
    while number < 5:
        try:
            made.write(mark(number - 1), mark(number), in_turn(number))
            number += 1
        except (UnavailableError, ConflictError):
            held = made.last()
            assert held in (mark(number - 1), mark(number))
            number += held == mark(number)
    assert kills == 1
    assert place.content() == place.expected({n: in_turn(n) for n in range(1, 5)})
    made.close()


def test_a_broker_that_is_down_is_unavailable() -> None:
    """J7: a sink that is down is waited for."""
    made = sink(Topics("127.0.0.1:1"), "t", timeout="1s")
    for call in (made.last, lambda: put(made, 1, alone(1))):
        with pytest.raises(UnavailableError, match=r"sink out cannot reach 127\.0\.0\.1:1"):
            call()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "upsert"}, "mode: upsert needs a key"),
        ({"format": "debezium", "key": "id"}, "format: debezium needs mode: changes"),
        ({"topic": "a/b"}, "option topic must be letters"),
        ({"config": {"transactional.id": "x"}}, "config cannot set transactional.id"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], reason: str) -> None:
    """A mistake is found when the project is read, not when the first row comes."""
    given = {"view": "v", "type": "kafka", "brokers": "b", "topic": "t", **options}
    with pytest.raises(ConfigError, match=reason):
        make_sink("out", given, "v", SystemEnv(), base=Path("."))
