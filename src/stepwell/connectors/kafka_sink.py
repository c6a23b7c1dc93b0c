"""Kafka: a sink that writes the changes of a view to a topic, or its rows by key.

Rows and mark are one Kafka transaction. The mark is a record in a compacted topic next to the
topic of the rows (`<topic>.stepwell`), which has one partition; its last committed record counts.

Kafka cannot compare and replace. Instead, all writers of a topic share one transactional id, and a
write first claims it: that fences every earlier writer, and ends the transaction it left open. Then
the mark is read and compared (J16), and no writer can change it before the commit without fencing
this one in turn. So the comparison and the commit are one step. For the same reason, a writer that
has committed a mark and was not fenced since need not read it again.

A crash before the commit leaves records that no `read_committed` reader ever sees. If the answer to
a commit is lost, `last` waits until the broker has decided it, or claims the id, which decides it.
"""

from __future__ import annotations

import json

import pyarrow as pa

from stepwell.connectors.delivery import Numbered, check_changes, check_held
from stepwell.connectors.kafka import Address, Cluster, ExpiredError, Span, Topic
from stepwell.connectors.kafka_messages import MessageWriter
from stepwell.connectors.kafka_transactions import Transactions
from stepwell.engine.ports import Delivered
from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError
from stepwell.manifest.progress import MARK
from stepwell.store.sealed import Fields

PROGRESS = ".stepwell"
"""Suffix that turns the name of a topic into that of its progress topic."""
_WINDOW = 16
"""Offsets of the progress topic to read first, from its end; a transaction takes two."""
_SETTLES_S = 0.5
"""How long a commit may take to become visible before its writer is fenced."""
_PAUSE_S = 0.01


class KafkaSink:
    """A topic of a Kafka cluster."""

    coalesces = True

    def __init__(
        self,
        name: str,
        view: str,
        env: Env,
        *,
        address: Address,
        topic: str,
        writer: MessageWriter,
        compacted: bool = False,
        partitions: int = 0,
    ) -> None:
        """`partitions` of the topic, if it is created; 0: as many as the broker likes."""
        self.name = name
        self.view = view
        self._env = env
        self._topic = topic
        self._progress = topic + PROGRESS
        self._writer = writer
        self._compacted = compacted
        self._partitions = partitions
        self._cluster = Cluster(f"sink {name}", address)
        self._transactions = Transactions(self._cluster, f"stepwell.{topic}")
        self._known: tuple[str, int, dict[str, object] | None] = ("", 0, None)
        """The id of the progress topic, an offset, and the last record before it."""
        self._committed: tuple[dict[str, Topic], Delivered] | None = None
        """The mark of the last commit, and the topics then."""

    def last(self) -> Delivered | None:
        return self._held(self._topics())

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        self.write_together(previous, [(mark, change)])

    def write_together(self, previous: Delivered | None, changes: Numbered) -> None:
        mark = check_changes(self.name, previous, changes)
        messages = self._writer.messages(changes)
        topics = self._topics()
        committed, self._committed = self._committed, None
        if not self._transactions.claimed or previous is None or committed != (topics, previous):
            check_held(self.name, self._held(topics), previous, mark)
        if previous is None:
            topics = self._create(topics)
        if not self._transactions.claimed:
            self._transactions.claim()
            # What was read before the claim may have been changed since.
            check_held(self.name, self._held(topics), previous, mark)
        if previous is None:
            self._check_empty(topics[self._topic])
        self._transactions.begin()
        self._transactions.send(self._topic, messages)
        record = {"sink": self.name, "topic_id": topics[self._topic].id, **MARK.write(mark)}
        value = json.dumps(record, separators=(",", ":")).encode()
        self._transactions.send(self._progress, [(self._topic.encode(), value)])
        self._transactions.commit()
        self._committed = topics, mark

    def close(self) -> None:
        self._transactions.close()
        self._cluster.close()

    # Progress

    def _topics(self) -> dict[str, Topic]:
        return self._cluster.topics([self._topic, self._progress])

    def _held(self, topics: dict[str, Topic]) -> Delivered | None:
        if self._progress not in topics or self._topic not in topics:
            return None
        found = self._last_record(topics[self._progress].id)
        if found is None or found.pop("topic_id") != topics[self._topic].id:
            return None  # It is about a topic that was deleted.
        sink = found.pop("sink")
        if sink != self.name:
            raise InvalidError(
                f"sink {self.name}: the topic {self._topic} belongs to sink {sink}",
                hint=f"two sinks cannot share a topic; if {sink} no longer exists, delete it",
            )
        return MARK.read(Fields(found, f"the last record of {self._progress}"))

    def _last_record(self, id: str) -> dict[str, object] | None:
        """The last committed record of the progress topic."""
        end = self._decided_end()
        known_id, known_end, known = self._known
        begin = known_end if id == known_id and known_end <= end else 0
        if begin == 0:
            begin, known = self._cluster.begins([(self._progress, 0)])[self._progress, 0], None
        window, high = _WINDOW, end
        found = known
        while high > begin:
            low = max(begin, high - window)
            try:
                (fetched,) = self._cluster.read([Span(self._progress, 0, low, high)])
            except ExpiredError:  # Its first segment was removed just now.
                return self._last_record(id)
            records = [record for record in fetched.records if record.value is not None]
            if records:
                found = self._decode(records[-1].value or b"")
                break
            high, window = low, window * 8
        self._known = (id, end, found)
        return None if found is None else dict(found)

    def _decode(self, value: bytes) -> dict[str, object]:
        try:
            found = json.loads(value)
            if isinstance(found, dict) and {"sink", "topic_id"} <= set(found):
                return found
        except ValueError:
            pass
        raise CorruptError(
            f"the topic {self._progress}",
            "its last record is not one of Stepwell's",
            hint="only Stepwell may write to it",
        )

    def _decided_end(self) -> int:
        """The end of the progress topic, once no transaction in it is open."""
        at = (self._progress, 0)
        until = self._env.uptime() + _SETTLES_S
        while True:
            high = self._cluster.ends([at], committed=False)[at]
            end = self._cluster.ends([at])[at]
            if end >= high:
                return end
            if self._env.uptime() >= until:
                # A writer has died, or stalls: only a claim decides its transaction.
                self._transactions.claim()
                until = self._env.uptime() + _SETTLES_S
            self._env.sleep(_PAUSE_S)

    # Topics

    def _create(self, topics: dict[str, Topic]) -> dict[str, Topic]:
        """Create the topics that do not exist, and return both."""
        made: dict[str, tuple[int, dict[str, str]]] = {}
        if self._topic not in topics:
            policy = {"cleanup.policy": "compact"} if self._compacted else {}
            made[self._topic] = (self._partitions or -1, policy)
        if self._progress not in topics:
            made[self._progress] = (1, {"cleanup.policy": "compact"})
        if not made:
            return topics
        self._cluster.create(made)
        until = self._env.uptime() + self._cluster.address.timeout_s
        while len(topics) < 2 and self._env.uptime() < until:
            self._env.sleep(_PAUSE_S)
            topics = self._topics()
        if len(topics) < 2:
            raise self._cluster.failed()
        return topics

    def _check_empty(self, topic: Topic) -> None:
        """Check that the topic holds no records, because Stepwell has written none."""
        keys = [(self._topic, number) for number in range(topic.partitions)]
        begins, ends = self._cluster.begins(keys), self._cluster.ends(keys)
        spans = [Span(*key, begins[key], ends[key]) for key in keys]
        if any(item.records for item in self._cluster.read(spans, 1)):
            raise InvalidError(
                f"sink {self.name}: the topic {self._topic} holds records that Stepwell did not "
                "write",
                hint="choose another topic, or delete this one",
            )
