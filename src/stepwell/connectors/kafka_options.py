"""The options of Kafka sources and sinks, as values."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

from stepwell.connectors.files import UnknownColumns
from stepwell.connectors.formats import OPERATION, ChangeFormat
from stepwell.connectors.kafka import Address, check_settings
from stepwell.connectors.kafka_messages import (
    ChangeWriter,
    DebeziumWriter,
    Encode,
    MessageWriter,
    UpsertWriter,
    encode_json,
)
from stepwell.connectors.kafka_records import Layout
from stepwell.connectors.kafka_source import Journaled, KafkaSettings, Start, Topics
from stepwell.connectors.options import Options
from stepwell.connectors.values import Unfit, read_text
from stepwell.errors import ConfigError
from stepwell.plan.types import parse_type
from stepwell.sql.statements import Table, fold

if TYPE_CHECKING:
    from stepwell.connectors.avro_records import AvroLayout

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class SourceFormat(Enum):
    JSON = "json"
    CSV = "csv"
    AVRO = "avro"


def source_settings(table: Table, options: Options) -> KafkaSettings:
    """The options of a source; raises `ConfigError` for those that make no sense."""
    format = options.choice("format", SourceFormat, SourceFormat.JSON)
    changes = options.choice("changes", ChangeFormat, ChangeFormat.ROWS)
    if format is SourceFormat.CSV and changes is ChangeFormat.DEBEZIUM:
        raise ConfigError(f"{options.what}: changes: debezium needs format: json or avro")
    metadata = tuple(fold(name) for name in options.names("metadata"))
    start, start_ms = _start(options)
    return KafkaSettings(
        address(options),
        _topics(options),
        Layout(
            changes,
            options.names("key"),
            metadata,
            *_csv(table, format, changes, metadata, options),
            _avro(options) if format is SourceFormat.AVRO else None,
        ),
        start,
        start_ms,
        options.choice("journal", Journaled, Journaled.OFFSETS),
        options.choice("unknown", UnknownColumns, UnknownColumns.BAD) is UnknownColumns.IGNORE,
    )


class KafkaMode(Enum):
    CHANGES = "changes"
    UPSERT = "upsert"


class SinkFormat(Enum):
    JSON = "json"
    DEBEZIUM = "debezium"
    AVRO = "avro"


class KeyFormat(Enum):
    JSON = "json"
    AVRO = "avro"


def message_writer(
    sink: str, view: str, topic: str, mode: KafkaMode, key: tuple[str, ...], options: Options
) -> MessageWriter:
    """What the messages of a sink look like."""
    format = options.choice("format", SinkFormat, SinkFormat.JSON)
    if mode is KafkaMode.UPSERT and not key:
        raise ConfigError(
            f"{options.what}: mode: upsert needs a key",
            hint="name the columns that identify the view's rows: key: [id]",
        )
    if format is SinkFormat.DEBEZIUM:
        if mode is KafkaMode.UPSERT:
            raise ConfigError(
                f"{options.what}: format: debezium needs mode: changes",
                hint="with a key, an update is one event, too",
            )
        return DebeziumWriter(sink, view, key)
    make = UpsertWriter if mode is KafkaMode.UPSERT else ChangeWriter
    if format is SinkFormat.AVRO:
        return make(sink, view, key, *_encoders(sink, view, topic, options))
    return make(sink, view, key, encode_json, encode_json)


def _encoders(sink: str, view: str, topic: str, options: Options) -> tuple[Encode, Encode]:
    """The encoders of values and keys for `format: avro`."""
    layout = _avro(options)
    # Imported late, because it needs an optional package.
    from stepwell.connectors.avro_messages import AvroEncoder
    from stepwell.connectors.avro_registry import Registry

    registry = None if layout.registry is None else Registry(options.what, layout.registry)
    subject = options.text("subject", f"{topic}-value")
    value = AvroEncoder(sink, view, subject, registry, layout.schema)
    if not layout.keys:
        return value, encode_json
    return value, AvroEncoder(sink, f"{view}_key", f"{topic}-key", registry, None)


def _avro(options: Options) -> AvroLayout:
    # Imported late, because it needs an optional package.
    from stepwell.connectors.avro_records import AvroLayout, given_schema
    from stepwell.connectors.avro_registry import registry_address

    registry, schema = registry_address(options), given_schema(options)
    keys = options.choice("key_format", KeyFormat, KeyFormat.JSON) is KeyFormat.AVRO
    if registry is None and (keys or schema is None):
        raise ConfigError(
            f"{options.what}: {'key_format: avro needs a registry' if keys else _NO_SCHEMA}",
            hint="registry: http://..., or schema: orders.avsc for values without a schema id",
        )
    return AvroLayout(registry, schema, keys)


_NO_SCHEMA = "format: avro needs a registry or a schema"


def address(options: Options) -> Address:
    """How to reach the cluster."""
    brokers = ",".join(options.names("brokers"))
    if not brokers:
        raise options.wrong("brokers", "an address, host:port, or a list of them", None)
    settings = check_settings(options.what, options.table("config"))
    return Address(brokers, settings, max(1.0, options.seconds("timeout", "10s")))


def topic_name(options: Options, name: str) -> str:
    """Check the name of a topic."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise options.wrong("topic", "letters, digits, dots, _ and -", name)
    return name


def _topics(options: Options) -> Topics:
    given = options.names("topic")
    if not given:
        raise options.wrong("topic", "a topic, a list of topics, or a pattern", None)
    patterns = [fnmatch.translate(name) for name in given if glob.has_magic(name)]
    names = {topic_name(options, name) for name in given if not glob.has_magic(name)}
    return Topics(tuple(sorted(names)), re.compile("|".join(patterns)) if patterns else None)


def _start(options: Options) -> tuple[Start, int]:
    """`earliest`, `latest` or a timestamp."""
    given = options.text("start", "earliest")
    for start in (Start.EARLIEST, Start.LATEST):
        if given == start.value:
            return start, 0
    try:
        moment = read_text(given, parse_type("TIMESTAMP"))
    except Unfit:
        moment = None
    if not isinstance(moment, datetime):
        expected = "earliest, latest or a timestamp such as 2026-01-31T12:00:00Z"
        raise options.wrong("start", expected, given)
    return Start.TIMESTAMP, (moment - _EPOCH) // timedelta(milliseconds=1)


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def _csv(
    table: Table,
    format: SourceFormat,
    changes: ChangeFormat,
    metadata: Sequence[str],
    options: Options,
) -> tuple[str | None, tuple[str, ...]]:
    """The delimiter and the columns of CSV; None and nothing for other formats."""
    if format is not SourceFormat.CSV:
        return None, ()
    operation = (OPERATION,) if changes is ChangeFormat.INSERT_DELETE else ()
    usual = [column.name for column in table.columns if fold(column.name) not in metadata]
    columns = options.names("columns") or (*operation, *usual)
    if operation and OPERATION not in columns:
        raise ConfigError(f"{options.what}: with changes: insert_delete, columns must name _op")
    if len({fold(name) for name in columns}) < len(columns):
        raise ConfigError(f"{options.what}: option columns names a column twice")
    return options.character("delimiter", ","), tuple(columns)
