"""Changes of a view as Kafka messages.

    changes   json      a row with `_w` and `_transaction`
              debezium  an event with `before`, `after` and `op`; with a key, a row that replaces
                        another one is one event
    upsert    json      a row, under its key; a null value (a tombstone) deletes it

The key of a message is an object with the key columns. Within a transaction retractions come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.connectors.delivery import Numbered, latest_by_key
from stepwell.connectors.kafka_transactions import Message
from stepwell.errors import InvalidError
from stepwell.lsm.change import WEIGHT
from stepwell.lsm.json_rows import json_lines

TRANSACTION = "_transaction"

Encode = Callable[[pa.Table], Sequence[bytes]]
"""Encodes each row."""


class MessageWriter(Protocol):
    def messages(self, changes: Numbered) -> list[Message]:
        """The messages for consecutive transactions, in order."""


def encode_json(rows: pa.Table) -> list[bytes]:
    return [line[:-1].encode() for line in json_lines(rows)] if rows.num_columns else []


class UpsertWriter:
    """The rows of the view by key, and tombstones."""

    def __init__(
        self, sink: str, view: str, key: tuple[str, ...], value: Encode, key_encode: Encode
    ) -> None:
        self._sink = sink
        self._view = view
        self._key = key
        self._value = value
        self._key_encode = key_encode

    def messages(self, changes: Numbered) -> list[Message]:
        puts, gone = latest_by_key(self._sink, self._view, self._key, changes)
        keys = self._key_encode(gone.select(list(self._key)))
        made: list[Message] = [(key, None) for key in keys]
        keys = self._key_encode(puts.select(list(self._key)))
        return made + list(zip(keys, self._value(puts), strict=True))


class ChangeWriter:
    """The changes, each with its weight and transaction."""

    def __init__(
        self, sink: str, view: str, key: tuple[str, ...], value: Encode, key_encode: Encode
    ) -> None:
        self._sink = sink
        self._view = view
        self._key = key
        self._value = value
        self._key_encode = key_encode

    def messages(self, changes: Numbered) -> list[Message]:
        made: list[Message] = []
        for mark, change in changes:
            rows = retractions_first(change)
            number = pa.repeat(pa.scalar(mark.transaction, pa.int64()), rows.num_rows)
            values = self._value(rows.append_column(TRANSACTION, number))
            keys: Sequence[bytes | None] = [None] * rows.num_rows
            if self._key:
                keys = self._key_encode(key_columns(self._sink, self._view, self._key, rows))
            made += zip(keys, values, strict=True)
        return made


class DebeziumWriter:
    """Debezium events, which a `changes: debezium` source reads."""

    def __init__(self, sink: str, view: str, key: tuple[str, ...]) -> None:
        self._sink = sink
        self._view = view
        self._key = key

    def messages(self, changes: Numbered) -> list[Message]:
        made: list[Message] = []
        for mark, change in changes:
            table = encode_text(self._view)
            source = f'{{"connector":"stepwell","table":{table},"txId":{mark.transaction}}}'
            made += (
                (key, _event(before, after, source)) for key, before, after in self._pairs(change)
            )
        return made

    def _pairs(self, change: pa.Table) -> Iterator[tuple[bytes | None, bytes | None, bytes | None]]:
        """The key of each event, the row before and the row after."""
        change = retractions_first(change)
        weights = change.column(WEIGHT).to_pylist()
        rows = encode_json(change.drop_columns([WEIGHT]))
        keys: Sequence[bytes | None] = [None] * len(rows)
        if self._key:
            keys = encode_json(key_columns(self._sink, self._view, self._key, change))
        gone: dict[bytes, bytes] = {}
        if self._key:
            for key, row, weight in zip(keys, rows, weights, strict=True):
                if weight < 0 and key is not None:
                    if key in gone or weight != -1:
                        raise self._ambiguous()
                    gone[key] = row
        come: set[bytes] = set()
        replaced = {
            key for key, weight in zip(keys, weights, strict=True) if weight > 0 and key in gone
        }
        for key, row, weight in zip(keys, rows, weights, strict=True):
            if key is None:
                yield from [(None, row, None) if weight < 0 else (None, None, row)] * abs(weight)
            elif weight < 0:
                if key not in replaced:
                    yield key, row, None
            elif key in come or weight != 1:
                raise self._ambiguous()
            else:
                come.add(key)
                yield key, gone.get(key), row

    def _ambiguous(self) -> InvalidError:
        return InvalidError(
            f"sink {self._sink}: the view {self._view} has several rows with the same "
            f"{', '.join(self._key)}",
            hint="name columns that identify its rows as the sink's key, or leave key out",
        )


def encode_text(text: str) -> str:
    (line,) = json_lines(pa.table({"t": [text]}))
    return line[len('{"t":') : -2]


def _event(before: bytes | None, after: bytes | None, source: str) -> bytes:
    op = b"c" if before is None else b"d" if after is None else b"u"
    parts = (before or b"null", after or b"null", source.encode(), op)
    return b'{"before":%s,"after":%s,"source":%s,"op":"%s"}' % parts


def retractions_first(change: pa.Table) -> pa.Table:
    weights = change.column(WEIGHT)
    gone = pc.less(weights, 0)
    return pa.concat_tables([change.filter(gone), change.filter(pc.invert(gone))])


def key_columns(sink: str, view: str, key: tuple[str, ...], rows: pa.Table) -> pa.Table:
    missing = [name for name in key if name not in rows.column_names]
    if missing:
        raise InvalidError(
            f"sink {sink}: the view {view} has no column {missing[0]}",
            hint="its columns are: " + ", ".join(n for n in rows.column_names if n != WEIGHT),
        )
    return rows.select(list(key))
