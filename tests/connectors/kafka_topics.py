"""Topics under test: creating and filling them, and what they hold, as a reader sees it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

Sent = tuple[object, object]
"""The key and the value of a record; texts, bytes or None."""


class Topics:
    """A cluster, as a test uses it."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers
        self._given = {"bootstrap.servers": brokers, "log_level": 0}
        self.admin = AdminClient(self._given)

    def create(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """Create a topic, with a name of its own unless one is given."""
        name = name or f"t-{os.urandom(6).hex()}"
        # Tests set times as they like.
        config = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1), **config}
        topic = NewTopic(name, partitions, 1, config=config)
        self.admin.create_topics([topic])[name].result(30)
        return name

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(30)

    def expire(self, name: str, before: int, partition: int = 0) -> None:
        """Remove the records before an offset, as retention does."""
        at = TopicPartition(name, partition, before)
        self.admin.delete_records([at])[at].result(30)

    def send(self, name: str, *values: Any, partition: int = 0, **more: Any) -> None:
        """Send values, or pairs of key and value, to a partition."""
        producer = Producer({**self._given, "linger.ms": 0})
        _produce(producer, name, values, partition, **more)
        assert producer.flush(30) == 0

    def send_in_transactions(
        self, name: str, transactions: Iterable[tuple[bool, Sequence[Any]]], partition: int = 0
    ) -> None:
        """Send transactions, each of which is committed or aborted."""
        producer = Producer({**self._given, "transactional.id": f"test-{name}", "linger.ms": 0})
        producer.init_transactions(30)
        for commits, values in transactions:
            producer.begin_transaction()
            _produce(producer, name, values, partition)
            producer.flush(30)
            if commits:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
        self.settle(name)

    def settle(self, name: str, patience_s: float = 30.0) -> None:
        """Wait until no transaction is open: the answer to a commit comes before it is visible."""
        until = time.monotonic() + patience_s
        partitions = self.admin.list_topics(name, 30).topics[name].partitions
        asked = {TopicPartition(name, number): OffsetSpec.latest() for number in partitions}

        def ends(level: IsolationLevel) -> list[int]:
            found = self.admin.list_offsets(asked, isolation_level=level)
            return [future.result(30).offset for future in found.values()]

        high = ends(IsolationLevel.READ_UNCOMMITTED)
        while time.monotonic() < until:
            if all(map(int.__ge__, ends(IsolationLevel.READ_COMMITTED), high)):
                break
            time.sleep(0.01)

    def read(self, name: str, *, committed: bool = True) -> list[Any]:
        """All messages of a topic, partition by partition."""
        if committed:
            self.settle(name, patience_s=1.0)  # A writer that died may have left one open.
        consumer = Consumer(
            {
                **self._given,
                "group.id": "test",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "fetch.wait.max.ms": 10,
            }
        )
        try:
            partitions = consumer.list_topics(name, 30).topics[name].partitions
            consumer.assign([TopicPartition(name, number, 0) for number in partitions])
            left, found = len(partitions), []
            while left:
                for message in consumer.consume(1000, 1):
                    error = message.error()
                    if error is None:
                        found.append(message)
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        left -= 1
            return sorted(found, key=lambda message: (message.partition(), message.offset()))
        finally:
            consumer.close()


def _produce(
    producer: Producer, name: str, values: Iterable[Any], partition: int, **more: Any
) -> None:
    for value in values:
        key, value = value if isinstance(value, tuple) else (None, value)
        while True:
            try:
                producer.produce(name, value=value, key=key, partition=partition, **more)
                break
            except BufferError:
                producer.poll(0.1)
