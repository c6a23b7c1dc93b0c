"""Kafka clusters: topics, offsets, and reading ranges of offsets.

A range is read as `read_committed`: records of aborted transactions, and control records, take up
offsets but are never returned. No consumer group is used; where to read is the caller's decision.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepwell.errors import ConfigError, StepwellError, UnavailableError

try:
    from confluent_kafka import (
        Consumer,
        IsolationLevel,
        KafkaError,
        KafkaException,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]
except ImportError as error:
    raise ConfigError(
        "Kafka needs confluent-kafka, which is not installed",
        hint="pip install 'stepwell[kafka]'",
    ) from error

Partition = tuple[str, int]
"""A topic, and the number of a partition."""

_OURS = (
    *("bootstrap.servers", "group.id", "enable.auto.commit", "auto.offset.reset"),
    *("isolation.level", "enable.partition.eof", "transactional.id", "enable.idempotence"),
    *("logger", "error_cb", "stats_cb", "on_delivery", "log_cb", "throttle_cb"),
)
_BATCH = 10_000
"""Messages to take from the client at once."""
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_OUT_OF_RANGE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
_LASTING = (
    *(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED),
    *(KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION),
    *(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError._UNSUPPORTED_FEATURE),
)


class ExpiredError(Exception):
    """The broker no longer has an offset that was asked for."""


class Record(NamedTuple):
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a partition: from `start` to just before `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def key(self) -> Partition:
        return self.topic, self.partition


@dataclass(slots=True)
class Fetched:
    """The records of a span, in order, and the offset up to which they were read."""

    span: Span
    records: list[Record] = field(default_factory=list)
    next: int = 0
    size: int = 0
    surplus: list[Record] = field(default_factory=list)
    """Records behind `next`, which were read with the others."""

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.next = record.offset + 1
        self.size += _size(record)


@dataclass(frozen=True, slots=True)
class Topic:
    id: str
    """Differs if a topic was deleted and created again under the same name."""
    partitions: int


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach a cluster."""

    brokers: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of librdkafka; they may hold secrets."""
    timeout_s: float = 10.0


def check_settings(what: str, settings: Mapping[str, object]) -> dict[str, str]:
    """The option `config`; raises `ConfigError` for what Stepwell sets itself, or is unknown."""
    made: dict[str, str] = {}
    for name, value in settings.items():
        if name in _OURS or not isinstance(value, (str, int, float, bool)):
            raise ConfigError(
                f"{what}: config cannot set {name}",
                hint="Stepwell sets it, or its value is not a scalar",
            )
        made[str(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        AdminClient({"bootstrap.servers": "localhost:1", **made, "log_level": 0})
    except KafkaException as error:
        raise ConfigError(f"{what}: option config: {error.args[0].str()}") from None
    return made


class Cluster:
    """A connection to a cluster, made when it is first needed. For one thread."""

    def __init__(self, what: str, address: Address) -> None:
        self.what = what
        self.address = address
        self._admin: AdminClient | None = None
        self._consumer: Consumer | None = None
        self._heard: str | None = None
        self._ahead: dict[Partition, tuple[int, list[Record]]] = {}
        """Records that were read behind the last spans, and the offset from which on."""
        self.asked = False
        """Whether the last `read` asked a broker."""

    def config(self, **more: object) -> dict[str, Any]:
        """The settings of a client."""
        given: dict[str, Any] = {"bootstrap.servers": self.address.brokers}
        given |= {"log_level": 0, "error_cb": self._hear, "socket.keepalive.enable": True}
        return {**given, **self.address.settings, **more}

    def close(self) -> None:
        consumer, self._consumer, self._admin = self._consumer, None, None
        self.forget()
        if consumer is not None:
            with suppress(KafkaException, RuntimeError):
                consumer.close()

    def failed(self, error: KafkaError | None = None) -> StepwellError:
        """The error for the caller; later calls connect again."""
        self.close()
        reason = self._heard if error is None else error.str()
        lasting = error is not None and error.code() in _LASTING
        told = f"{self.what} cannot reach {self.address.brokers}: {reason or 'no answer'}"
        if lasting:
            told = f"{self.what} is refused by {self.address.brokers}: {reason}"
        return UnavailableError(
            told, hint="check that the brokers run and that brokers and config are right"
        )

    # Topics

    def names(self, pattern: re.Pattern[str]) -> list[str]:
        """The topics that match a pattern, without internal ones."""
        try:
            found = self._administrator().list_topics(timeout=self.address.timeout_s).topics
        except KafkaException as error:
            raise self.failed(error.args[0]) from error
        return sorted(n for n in found if pattern.fullmatch(n) and not n.startswith("__"))

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """The topics that exist, by name."""
        made: dict[str, Topic] = {}
        if not names:
            return made
        call = self._administrator().describe_topics
        asked = call(TopicCollection(list(names)), request_timeout=self.address.timeout_s)
        for name, future in asked.items():
            try:
                told = future.result()
            except KafkaException as error:
                if error.args[0].code() in _UNKNOWN:
                    continue
                raise self.failed(error.args[0]) from error
            made[name] = Topic(str(told.topic_id), len(told.partitions))
        return made

    def create(self, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        """Create topics, each with a number of partitions and settings; they may exist already."""
        new = [NewTopic(name, n, -1, config=dict(given)) for name, (n, given) in topics.items()]
        asked = self._administrator().create_topics(
            new, request_timeout=self.address.timeout_s, operation_timeout=self.address.timeout_s
        )
        for future in asked.values():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self.failed(error.args[0]) from error

    def ends(
        self, partitions: Sequence[Partition], *, committed: bool = True
    ) -> dict[Partition, int]:
        """The offset after the last record; `committed`: that no open transaction is before."""
        return self._offsets(dict.fromkeys(partitions, _LATEST), committed=committed)

    def begins(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The first offset that the broker still has."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))

    def since(self, partitions: Sequence[Partition], timestamp_ms: int) -> dict[Partition, int]:
        """The first offset with that timestamp or a later one; the end if there is none."""
        found = self._offsets(dict.fromkeys(partitions, OffsetSpec.for_timestamp(timestamp_ms)))
        rest = self.ends([partition for partition in partitions if found[partition] < 0])
        return {**found, **rest}

    def _offsets(
        self, wanted: Mapping[Partition, OffsetSpec], *, committed: bool = True
    ) -> dict[Partition, int]:
        if not wanted:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = self._administrator().list_offsets(
            {TopicPartition(*partition): spec for partition, spec in wanted.items()},
            isolation_level=level,
            request_timeout=self.address.timeout_s,
        )
        made: dict[Partition, int] = {}
        for at, future in asked.items():
            try:
                made[at.topic, at.partition] = future.result().offset
            except KafkaException as error:
                raise self.failed(error.args[0]) from error
        return made

    # Records

    def read(
        self, spans: Sequence[Span], bytes_max: int | None = None, *, headers: bool = False
    ) -> list[Fetched]:
        """The records of spans of different partitions, in the given order.

        With `bytes_max`, the result ends with the first record that reaches it: later spans are
        left out, and the last one is cut. Raises `ExpiredError` if a broker has not got an offset.
        """
        made = {span.key: self._taken_ahead(span) for span in spans}
        open = {span.key for span in spans if made[span.key].next < span.end}
        if bytes_max is not None:
            _give_up(made, open, bytes_max)
        self.asked = bool(open)
        if open:
            self._fetch(made, open, bytes_max, headers)
        fetched = [made[span.key] for span in spans if span.key in made]
        if bytes_max is not None:
            fetched = _cut(fetched, bytes_max)
        self._ahead = {item.span.key: (item.next, item.surplus) for item in fetched if item.surplus}
        return fetched

    def forget(self) -> None:
        """Drop what was read ahead."""
        self._ahead = {}

    def _taken_ahead(self, span: Span) -> Fetched:
        """The records of a span that were read with those before it."""
        made = Fetched(span, next=span.start)
        start, records = self._ahead.get(span.key, (-1, []))
        if start != span.start:
            return made
        for at, record in enumerate(records):
            if record.offset >= span.end:
                made.surplus = records[at:]
                made.next = span.end
                break
            made.add(record)
        return made

    def _fetch(
        self,
        made: dict[Partition, Fetched],
        open: set[Partition],
        bytes_max: int | None,
        headers: bool,
    ) -> None:
        """Read what is left of the open spans."""
        consumer = self._reader()
        try:
            consumer.assign([TopicPartition(*key, made[key].next) for key in sorted(open)])
            quiet_s = 0.0
            while open:
                # `consume` alone would wait until it has as many messages as it may return.
                first = consumer.poll(0.1)
                quiet_s = 0.0 if first is not None else quiet_s + 0.1
                if quiet_s >= self.address.timeout_s:
                    raise self.failed()
                if first is None:
                    continue
                messages = [first, *consumer.consume(_BATCH, 0)]
                ended = self._sort(messages, made, open, headers)
                if bytes_max is not None:
                    ended += _give_up(made, open, bytes_max)
                if ended and open:
                    consumer.incremental_unassign([TopicPartition(*key) for key in ended])
            consumer.unassign()
        except KafkaException as error:
            raise self.failed(error.args[0]) from error
        except ExpiredError:
            consumer.unassign()
            raise

    def _sort(
        self,
        messages: Sequence[Any],
        made: Mapping[Partition, Fetched],
        open: set[Partition],
        headers: bool,
    ) -> list[Partition]:
        """Add messages to their spans; returns those that are complete now."""
        ended: list[Partition] = []
        for message in messages:
            error = message.error()
            key = message.topic(), message.partition()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if error.code() in _OUT_OF_RANGE:
                    raise ExpiredError
                if error.retriable() or not (error.fatal() or error.code() in _LASTING):
                    self._heard = error.str()
                    continue
                raise KafkaException(error)
            fetched, offset = made.get(key), message.offset()
            if fetched is None:
                continue
            if error is None:
                record = _record(message, offset, headers)
                if offset < fetched.span.end:
                    fetched.add(record)
                else:
                    fetched.surplus.append(record)
            if key not in open:
                continue
            # Nothing committed is left before the end of a span, once a later offset was seen, or
            # the end of the partition there. A new leader may at first take an earlier offset for
            # the end, until its followers have answered: the records behind it come later.
            if fetched.next >= fetched.span.end or offset >= fetched.span.end:
                fetched.next = fetched.span.end
                open.discard(key)
                ended.append(key)
            elif error is not None:
                self._heard = f"{key[0]} [{key[1]}] ends at {offset}, but had {fetched.span.end}"
        return ended

    def _administrator(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self.config())
        return self._admin

    def _reader(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                self.config(
                    **{
                        # Required by the library, and used for nothing.
                        "group.id": "stepwell",
                        "enable.auto.commit": False,
                        "auto.offset.reset": "error",
                        "isolation.level": "read_committed",
                        "enable.partition.eof": True,
                        "fetch.wait.max.ms": 10,
                        "queued.max.messages.kbytes": 32_768,
                    }
                )
            )
        return self._consumer

    def _hear(self, error: KafkaError) -> None:
        self._heard = error.str()


_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_OVERHEAD = 64
"""Bytes to count for a record besides its key and value."""


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + _OVERHEAD


def _record(message: Any, offset: int, headers: bool) -> Record:
    kind, timestamp = message.timestamp()
    given = message.headers() if headers else None
    return Record(
        offset,
        timestamp if kind else None,
        message.key(),
        message.value(),
        None if given is None else tuple(given),
    )


def _give_up(
    made: dict[Partition, Fetched], open: set[Partition], bytes_max: int
) -> list[Partition]:
    """Drop spans from the last one on while all of them are too large together."""
    size, dropped = sum(fetched.size for fetched in made.values()), []
    while size > bytes_max and open:
        last = next(reversed(made))
        if len(made) == 1:
            open.clear()  # It is cut.
            break
        size -= made.pop(last).size
        if last in open:
            open.discard(last)
            dropped.append(last)
    return dropped


def _cut(fetched: list[Fetched], bytes_max: int) -> list[Fetched]:
    """The fetched records up to the one that reaches the limit."""
    size, made = 0, []
    dropped: list[Record] = []
    for item in fetched:
        size += item.size
        made.append(item)
        if size < bytes_max:
            continue
        over = size - bytes_max
        while len(item.records) > 1:
            last = item.records[-1]
            over -= _size(last)
            if over < 0:
                break
            dropped.append(item.records.pop())
            item.next = last.offset
        item.surplus = [*reversed(dropped), *item.surplus]
        break
    return made
