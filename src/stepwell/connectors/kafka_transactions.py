"""Kafka transactions: a producer that excludes all earlier ones with the same transactional id.

`claim` raises the id's epoch at the broker and ends what an earlier producer left open. From then
on every call of that producer fails (`ConflictError`), whenever it wakes up. So what the owner of
the latest claim has read since then cannot be changed by another producer before it commits.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from stepwell.connectors.kafka import Cluster
from stepwell.errors import ConflictError, InvalidError, StepwellError, UnavailableError

Message = tuple[bytes | None, bytes | None]
"""Key and value."""

_FENCED = (
    *(KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH),
    *(KafkaError.INVALID_TXN_STATE, KafkaError.INVALID_PRODUCER_ID_MAPPING),
)
_REFUSED = (
    *(KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE),
    *(KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG),
)
_ABORT_S = 5.0


class Transactions:
    """A transactional producer. An error closes it, and the next `claim` makes another."""

    def __init__(self, cluster: Cluster, id: str) -> None:
        self._cluster = cluster
        self._id = id
        self._producer: Producer | None = None
        self._open = False
        self._rejected: KafkaError | None = None

    @property
    def claimed(self) -> bool:
        return self._producer is not None

    def claim(self) -> None:
        """Exclude all other producers with this id, and end their transactions."""
        self.close()
        timeout_s = self._cluster.address.timeout_s
        producer = Producer(
            self._cluster.config(
                **{
                    "transactional.id": self._id,
                    "partitioner": "murmur2_random",
                    **self._cluster.address.settings,
                }
            )
        )
        self._producer = producer
        self._call(lambda: producer.init_transactions(timeout_s))

    def begin(self) -> None:
        producer = self._claimed()
        self._rejected = None
        self._call(producer.begin_transaction)
        self._open = True

    def send(self, topic: str, messages: Iterable[Message]) -> None:
        """Add messages to the transaction; they may not be sent before `commit`."""
        self._call(lambda: self._produce(topic, messages))

    def commit(self) -> None:
        """Commit. If the answer is lost, `UnavailableError`: it may be committed or not."""
        producer, timeout_s = self._claimed(), self._cluster.address.timeout_s
        self._call(lambda: producer.commit_transaction(timeout_s))
        self._open = False

    def close(self) -> None:
        """Abort what is open, as far as the broker answers. The next claim aborts it otherwise."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        with suppress(KafkaException, BufferError, RuntimeError):
            if self._open:
                producer.purge()
                producer.abort_transaction(_ABORT_S)
        self._open = False

    def _claimed(self) -> Producer:
        if self._producer is None:
            raise UnavailableError(f"{self._cluster.what} has lost its producer")
        return self._producer

    def _produce(self, topic: str, messages: Iterable[Message]) -> None:
        producer = self._claimed()
        for key, value in messages:
            while True:
                try:
                    producer.produce(topic, value=value, key=key, on_delivery=self._delivered)
                    break
                except BufferError:  # The queue is full.
                    producer.poll(0.1)
        producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._rejected is None:
            self._rejected = error

    def _call(self, call: Any) -> None:
        try:
            call()
        except KafkaException as error:
            failed = self._error(error.args[0])
            self.close()
            raise failed from error

    def _error(self, error: KafkaError) -> StepwellError:
        what = self._cluster.what
        rejected = self._rejected or error
        for found in (error, rejected):
            if found.code() in _FENCED:
                return ConflictError(f"{what} was fenced: another writer has taken over")
            if found.code() in _REFUSED:
                return InvalidError(
                    f"{what}: a record is refused: {found.str()}",
                    hint="raise max.message.bytes of the topic, and message.max.bytes in config",
                )
        return self._cluster.failed(rejected)
