"""Kafka: a source that takes the records of topics.

A position is `{topics: {name: [id, [next, ...]]}}`, with one number for each partition: the offset
to read next. Records are taken in rounds. A round ends at the offsets at which the partitions ended
when it began, and is read in the order of topic, partition and offset; while one is being read,
`next` is `[next, end]`. So where steps end does not change the order, and no partition starves.

Records are journaled by offsets and a checksum, and must stay in the topic until a checkpoint has
passed them; with `journal: rows` they need not. The reference also holds the Avro schemas that
decoded the step, so that replay decodes with the same ones. The id of a topic tells one that was
deleted and created again from the one that was read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from stepwell.connectors.folding import fold_numbered
from stepwell.connectors.kafka import (
    Address,
    Cluster,
    ExpiredError,
    Fetched,
    Partition,
    Record,
    Span,
    Topic,
)
from stepwell.connectors.kafka_records import Found, Layout, RecordDecoder
from stepwell.connectors.shape import shape_of
from stepwell.engine.ports import Intake, Limits
from stepwell.env import Env
from stepwell.errors import CorruptError, ReplayMismatchError, UnavailableError
from stepwell.lsm.dead_letter import BadRow
from stepwell.model import checksum
from stepwell.sql.statements import Table
from stepwell.store.sealed import Json

if TYPE_CHECKING:
    from stepwell.connectors.avro_records import AvroLayout, AvroSchemas, StepSchemas

_REFRESH_S = 1.0
"""How often topics are looked up while there is nothing to read."""
_NAMED_MAX = 5
"""Maximum number of partitions in a message."""


class Start(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"


class Journaled(Enum):
    OFFSETS = "offsets"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Topics:
    """Which topics a source reads: given names, and those that match a pattern."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    address: Address
    topics: Topics
    layout: Layout
    start: Start = Start.EARLIEST
    start_ms: int = 0
    """With `Start.TIMESTAMP`: milliseconds since 1970."""
    journal: Journaled = Journaled.OFFSETS
    ignore_unknown: bool = False


@dataclass(slots=True)
class _At:
    """The position in one topic: the next offset of each partition, and the end of the round."""

    id: str
    next: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)


class KafkaSource:
    """A source that reads topics of a Kafka cluster."""

    def __init__(self, name: str, table: Table, env: Env, settings: KafkaSettings) -> None:
        self.name = name
        self.table = table.name
        self._env = env
        self._settings = settings
        self._shape = shape_of(table, ignore_unknown=settings.ignore_unknown)
        self._decoder = RecordDecoder(f"source {name}", self._shape, settings.layout)
        avro = settings.layout.avro
        self._schemas = None if avro is None else _avro_schemas(f"source {name}", avro)
        self._cluster = Cluster(f"source {name}", settings.address)
        self._skip = False
        self._early = False
        """Whether the round ends early, because its offsets cannot be read any more."""
        self._topics: dict[str, Topic] = {}
        self._looked: float | None = None
        self._last_ends: dict[Partition, int] = {}
        self._lag: dict[Partition, int] = {}
        """Records that the last poll saw and did not return."""

    def skip_expired(self) -> None:
        """From now on, record offsets that expired unread as dead letters, and continue."""
        self._skip = True

    def poll(self, after: Json, limits: Limits) -> Intake | None:
        at = _read_position(after)
        lost: list[BadRow] = []
        ends = self._ends(at)
        if self._early or not self._spans(at):
            lost = self._begin_round(at, ends, begun=after is not None)
            self._early = False
        spans, rows = [], limits.rows_max
        for span in self._spans(at):
            if rows <= 0:
                break
            spans.append(replace(span, end=min(span.end, span.start + rows)))
            rows -= spans[-1].end - span.start
        try:
            fetched = self._read(at, spans, limits.bytes_max)
        except ExpiredError:
            self._early = True
            return self.poll(after, limits)  # A new round finds out what is gone.
        for item in fetched:
            at[item.span.topic].next[item.span.partition] = item.next
        self._measure(at, ends)
        position = _write_position(at)
        if not fetched and not lost and position == after:
            return None
        schemas = None if self._schemas is None else self._schemas.step()
        return self._made(at, fetched, lost, position, schemas)

    def read(self, reference: Json) -> Intake:
        taken = [_Taken.from_json(fields) for fields in reference["read"]]
        lost = [BadRow(where, reason, "") for where, reason in reference["lost"]]
        topics = self._cluster.topics(sorted({item.span.topic for item in taken}))
        for item in taken:
            self._check_id(item, topics.get(item.span.topic))
        begins = self._cluster.begins([item.span.key for item in taken])
        for item in taken:
            if begins[item.span.key] > item.span.start:
                raise _expired([(item.span, begins[item.span.key])])
        spans = [item.span for item in taken]
        try:
            fetched = self._cluster.read(spans, headers=self._wants_headers)
        except ExpiredError:
            raise _expired([(span, span.end) for span in spans]) from None
        for item, found in zip(taken, fetched, strict=True):
            if (len(found.records), _sum(found.records)) != (item.records, item.checksum):
                raise ReplayMismatchError(
                    f"{_named(item.span)} were {item.records} records with checksum "
                    f"{item.checksum}, now {len(found.records)} with {_sum(found.records)}",
                    hint="a topic that is compacted or whose records expire soon needs "
                    "journal: rows; restore the pipeline from a checkpoint",
                )
        at = {item.span.topic: _At(item.id) for item in taken}
        schemas = None
        if "avro" in reference:
            # The format may have changed since.
            known = self._schemas or _avro_schemas(f"source {self.name}")
            schemas = known.replayed(reference["avro"])
        return self._made(at, fetched, lost, None, schemas)

    def waiting(self) -> str | None:
        lag = self.lag()
        if not lag:
            return None
        named = sorted(lag.items(), key=lambda item: (-item[1], item[0]))
        told = ", ".join(f"{name} {records:,}" for name, records in named[:_NAMED_MAX])
        more = f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
        return f"{sum(lag.values()):,} offsets behind: {told}{more}"

    def lag(self) -> Mapping[str, int]:
        """How many offsets each partition is behind, by name; those that are not are left out."""
        lag = self._lag
        return {f"{topic} [{partition}]": n for (topic, partition), n in lag.items() if n}

    def close(self) -> None:
        self._cluster.close()

    @property
    def _wants_headers(self) -> bool:
        return "_headers" in self._settings.layout.metadata

    # Rounds

    def _ends(self, at: Mapping[str, _At]) -> dict[Partition, int]:
        """Where the partitions end now, after looking for new topics and partitions."""
        now = self._env.uptime()
        fresh = self._looked is not None and now - self._looked < _REFRESH_S
        if fresh and self._topics and not self._early and self._spans(at):
            return self._last_ends  # The round continues.
        if not fresh or not self._topics:
            self._look_up()
            self._looked = now
        known = [(name, n) for name, topic in self._topics.items() for n in range(topic.partitions)]
        self._last_ends = self._cluster.ends(known)
        return self._last_ends

    def _look_up(self) -> None:
        topics = self._settings.topics
        names = list(topics.names)
        if topics.pattern is not None:
            names = sorted({*names, *self._cluster.names(topics.pattern)})
        self._topics = self._cluster.topics(names)
        missing = [name for name in topics.names if name not in self._topics]
        if missing:
            raise UnavailableError(
                f"source {self.name}: there is no topic {missing[0]}",
                hint="create it, or correct the option topic; it is looked for again",
            )

    def _begin_round(
        self, at: dict[str, _At], ends: Mapping[Partition, int], *, begun: bool
    ) -> list[BadRow]:
        """Set the ends of the round; returns what was lost before, if that may be skipped."""
        lost: list[BadRow] = []
        fresh: list[Partition] = []
        for name, topic in sorted(self._topics.items()):
            here = at.get(name)
            if here is not None and here.id != topic.id:
                lost.append(self._recreated(name, here))
                here = None
            if here is None:
                here = at[name] = _At(topic.id)
            new = range(len(here.next), topic.partitions)
            fresh += [(name, number) for number in new]
            here.next += [0] * len(new)
        begins = self._cluster.begins(
            [key for key, end in ends.items() if key in fresh or at[key[0]].next[key[1]] < end]
        )
        # What a topic or a partition holds that appeared later is new, whatever `start` says.
        starts = begins if begun else self._starts(fresh, begins)
        for name, number in fresh:
            at[name].next[number] = max(starts[name, number], begins[name, number])
        self._check_ends(at, ends)
        expired = [
            (Span(*key, at[key[0]].next[key[1]], ends[key]), begin)
            for key, begin in begins.items()
            if begin > at[key[0]].next[key[1]]
        ]
        if expired and not self._skip:
            raise _expired(expired, unread=True)
        for span, begin in expired:
            at[span.topic].next[span.partition] = begin
            where = _named(replace(span, end=begin))
            lost.append(BadRow(where, "expired before they were read", ""))
        for name, here in at.items():
            here.end = [ends.get((name, n), next) for n, next in enumerate(here.next)]
        return lost

    def _starts(
        self, fresh: Sequence[Partition], begins: Mapping[Partition, int]
    ) -> Mapping[Partition, int]:
        """Where a source starts that has read nothing yet."""
        settings = self._settings
        if settings.start is Start.LATEST:
            return self._cluster.ends(fresh)
        if settings.start is Start.TIMESTAMP:
            return self._cluster.since(fresh, settings.start_ms)
        return begins

    def _recreated(self, name: str, here: _At) -> BadRow:
        self._cluster.forget()
        read = ", ".join(f"[{number}] up to {next}" for number, next in enumerate(here.next))
        if not self._skip:
            raise ReplayMismatchError(
                f"the topic {name} was deleted and created again: the one that was read had "
                f"offsets of {read}",
                hint="to read the new one from its beginning: stepwell run --skip-expired",
            )
        return BadRow(name, f"deleted and created again after {read} had been read", "")

    def _check_ends(self, at: Mapping[str, _At], ends: Mapping[Partition, int]) -> None:
        for (name, number), end in ends.items():
            next = at[name].next[number]
            if end < next:
                raise ReplayMismatchError(
                    f"{name} [{number}] ends at offset {end}, but was read up to {next}: its "
                    "broker has lost records",
                    hint="restore the topic, or restore the pipeline from a checkpoint",
                )

    def _read(self, at: Mapping[str, _At], spans: Sequence[Span], bytes_max: int) -> list[Fetched]:
        if not spans:
            return []
        fetched = self._cluster.read(spans, bytes_max, headers=self._wants_headers)
        if not self._cluster.asked:
            return fetched  # All of it was read ahead, and checked then.
        names = sorted({item.span.topic for item in fetched})
        now = self._cluster.topics(names)
        for name in names:
            if name not in now or now[name].id != at[name].id:
                self._looked, self._early = None, True
                self._cluster.forget()
                raise UnavailableError(
                    f"source {self.name}: the topic {name} was deleted while it was read",
                    hint="it is looked up again in a moment",
                )
        return fetched

    def _spans(self, at: Mapping[str, _At]) -> list[Span]:
        """What is left of the round, in order."""
        return [
            Span(name, number, next, end)
            for name, here in sorted(at.items())
            if name in self._topics
            for number, (next, end) in enumerate(zip(here.next, here.end, strict=True))
            if next < end
        ]

    def _measure(self, at: Mapping[str, _At], ends: Mapping[Partition, int]) -> None:
        self._lag = {
            key: max(0, end - at[key[0]].next[key[1]])
            for key, end in ends.items()
            if key[0] in at and key[1] < len(at[key[0]].next)
        }

    def _check_id(self, item: _Taken, now: Topic | None) -> None:
        if now is None or now.id != item.id:
            what = "is gone" if now is None else "was deleted and created again"
            raise ReplayMismatchError(
                f"the topic {item.span.topic} {what}: {_named(item.span)} were read from it",
                hint="restore the pipeline from a checkpoint: stepwell checkpoint list",
            )

    # Rows

    def _made(
        self,
        at: Mapping[str, _At],
        fetched: Sequence[Fetched],
        lost: Sequence[BadRow],
        position: Json,
        schemas: StepSchemas | None,
    ) -> Intake:
        binary = schemas is not None
        found = [
            Found(item.span.topic, item.span.partition, record, binary)
            for item in fetched
            for record in item.records
        ]
        batch = self._decoder.decode(found, schemas)
        change, numbers = fold_numbered(self._shape, batch.operations)
        reference: Json = None
        if self._settings.journal is Journaled.OFFSETS:
            taken = [
                _Taken(
                    at[item.span.topic].id, _read_span(item), len(item.records), _sum(item.records)
                )
                for item in fetched
                if item.records
            ]
            reference = {
                "read": [item.to_json() for item in taken],
                "lost": [[bad.where, bad.reason] for bad in lost],
            }
            if schemas is not None:
                reference["avro"] = schemas.to_json()
        deleted = {number: found[number] for number in numbers.to_pylist()}
        told = partial(_told, numbers, deleted)
        rows = batch.rows + len(lost)
        bad = (*lost, *batch.bad)
        return Intake(self.name, self.table, change, rows, position, reference, bad, told)


def _avro_schemas(what: str, layout: AvroLayout | None = None) -> AvroSchemas:
    # Imported late, because it needs an optional package.
    from stepwell.connectors.avro_records import AvroLayout, AvroSchemas

    return AvroSchemas(what, layout or AvroLayout())


@dataclass(frozen=True, slots=True)
class _Taken:
    """A span that was taken, as it is journaled."""

    id: str
    span: Span
    records: int
    checksum: str

    def to_json(self) -> Json:
        span = self.span
        numbers = [span.partition, span.start, span.end, self.records]
        return [span.topic, self.id, *numbers, self.checksum]

    @classmethod
    def from_json(cls, fields: Json) -> _Taken:
        topic, id, partition, start, end, records, digest = fields
        return cls(id, Span(topic, partition, start, end), records, digest)


def _read_span(item: Fetched) -> Span:
    """From the first record to the last one: offsets around them may expire."""
    return replace(item.span, start=item.records[0].offset, end=item.records[-1].offset + 1)


def _told(
    numbers: pa.ChunkedArray, deleted: Mapping[int, Found], places: Sequence[int]
) -> list[tuple[str, str | None]]:
    found = [deleted[numbers[place].as_py()] for place in places]
    return [(item.where, item.text) for item in found]


def _sum(records: Sequence[Record]) -> str:
    """A checksum of everything that rows are made of."""
    parts: list[bytes] = []
    for offset, timestamp, key, value, headers in records:
        sizes = (-1 if key is None else len(key), -1 if value is None else len(value))
        parts += [b"%d %d %d %d " % (offset, timestamp or 0, *sizes), key or b"", value or b""]
        if headers:
            parts.append(repr(headers).encode())
    return checksum([b"".join(parts)])


def _read_position(position: Json) -> dict[str, _At]:
    made: dict[str, _At] = {}
    if position is None:
        return made
    try:
        for name, (id, partitions) in position["topics"].items():
            pairs = [item if isinstance(item, list) else (item, item) for item in partitions]
            made[name] = _At(id, [int(next) for next, _ in pairs], [int(end) for _, end in pairs])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"cannot be read: {error!r}"
        raise CorruptError("the position of a Kafka source", what) from error
    return made


def _write_position(at: Mapping[str, _At]) -> Json:
    return {
        "topics": {
            name: [
                here.id,
                [n if n == e else [n, e] for n, e in zip(here.next, here.end, strict=True)],
            ]
            for name, here in sorted(at.items())
        }
    }


def _named(span: Span) -> str:
    return f"offsets {span.start} to {span.end - 1} of {span.topic} [{span.partition}]"


def _expired(expired: Sequence[tuple[Span, int]], *, unread: bool = False) -> ReplayMismatchError:
    span, begin = expired[0]
    more = f", and those of {len(expired) - 1} more partitions" if len(expired) > 1 else ""
    gone = _named(replace(span, end=min(begin, span.end)))
    told = f"{gone}{more} have expired: the partition now begins at {begin}"
    if unread:
        return ReplayMismatchError(
            f"{told}. They were not read yet",
            hint="to go on without them, and record the loss as dead letters: "
            "stepwell run --skip-expired",
        )
    return ReplayMismatchError(
        told,
        hint="restore the pipeline from a checkpoint (stepwell checkpoint list), then go on with "
        "stepwell run --skip-expired; for the future, keep records longer or use journal: rows",
    )
