"""The types of sources and sinks, and how to create one from its options.

Creating one checks its options and opens nothing, so a project can be validated offline. If a type
needs a package that is not installed, the error gives the command that installs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stepwell.connectors.datagen import DatagenSettings, DatagenSource
from stepwell.connectors.delivery import TableMode
from stepwell.connectors.files import FilesSource, UnknownColumns
from stepwell.connectors.files_sink import FilesSink
from stepwell.connectors.formats import ChangeFormat
from stepwell.connectors.options import Options
from stepwell.connectors.writing import FileFormat
from stepwell.engine.ports import Sink, Source
from stepwell.env import Env
from stepwell.errors import ConfigError
from stepwell.sql.statements import Table
from stepwell.text import did_you_mean

if TYPE_CHECKING:
    from stepwell.connectors.iceberg import IcebergAddress

T = TypeVar("T")
MakeSource = Callable[[str, Table, Env, Options], Source]
MakeSink = Callable[[str, str, Env, Options], Sink]


def make_source(
    name: str, options: Mapping[str, object], table: Table, env: Env, *, base: Path
) -> Source:
    """Create a source from its options in stepwell.yml. `base` is the project's folder."""
    what = f"source {name}"
    read = Options(what, options, base)
    read.text("table")
    make = _chosen(what, read.text("type"), SOURCES)
    source = make(name, table, env, read)
    read.end()
    return source


def make_sink(name: str, options: Mapping[str, object], view: str, env: Env, *, base: Path) -> Sink:
    """Create a sink from its options in stepwell.yml."""
    what = f"sink {name}"
    read = Options(what, options, base)
    read.text("view")
    make = _chosen(what, read.text("type"), SINKS)
    # A deploy decides how the sink follows a view whose columns change: see `evolving`.
    read.flag("evolve", False)
    sink = make(name, view, env, read)
    read.end()
    return sink


def _chosen(what: str, type: str, known: Mapping[str, T]) -> T:
    if type not in known:
        raise ConfigError(
            f"{what}: there is no type {type}",
            hint=did_you_mean(type, known) or "types are: " + ", ".join(known),
        )
    return known[type]


def _files_source(name: str, table: Table, env: Env, options: Options) -> Source:
    delimiter = options.character("delimiter", ",")
    return FilesSource(
        name,
        table,
        env,
        path=options.place("path"),
        format=options.choice("format", FileFormat),
        changes=options.choice("changes", ChangeFormat, ChangeFormat.ROWS),
        delimiter=delimiter,
        unknown=options.choice("unknown", UnknownColumns, UnknownColumns.BAD),
        settle_s=options.seconds("settle", "1s"),
        follow_links=options.flag("follow_links", False),
    )


def _datagen_source(name: str, table: Table, env: Env, options: Options) -> Source:
    settings = DatagenSettings(
        seed=options.count("seed", 0),
        rate=options.number("rate", 100),
        rows=options.count("rows", 0),
        keys=options.count("keys", 0),
        deletes=options.number("deletes", 0),
    )
    if settings.deletes >= 1:
        raise options.wrong("deletes", "less than 1", settings.deletes)
    return DatagenSource(name, table, env, settings)


def _delta_source(name: str, table: Table, env: Env, options: Options) -> Source:
    from stepwell.connectors.delta_table import DeltaLakeTable
    from stepwell.connectors.lake_source import LakeSource

    storage = {str(key): str(value) for key, value in options.table("storage").items()}
    path = options.address("path")
    interval_s = options.seconds("interval", "1s")
    return LakeSource(name, table, env, DeltaLakeTable(name, env, path, storage), interval_s)


def _iceberg_source(name: str, table: Table, env: Env, options: Options) -> Source:
    from stepwell.connectors.iceberg_table import IcebergLakeTable
    from stepwell.connectors.lake_source import LakeSource

    address, branch = _iceberg_address(options), options.text("branch", "main")
    interval_s = options.seconds("interval", "1s")
    return LakeSource(name, table, env, IcebergLakeTable(name, address, branch), interval_s)


def _kafka_source(name: str, table: Table, env: Env, options: Options) -> Source:
    # Imported late, because it needs optional packages.
    from stepwell.connectors.kafka_options import source_settings
    from stepwell.connectors.kafka_source import KafkaSource

    return KafkaSource(name, table, env, source_settings(table, options))


def _files_sink(name: str, view: str, env: Env, options: Options) -> Sink:
    path, format = options.place("path"), options.choice("format", FileFormat)
    coalesce, mode = options.flag("coalesce", False), options.mode("mode")
    return FilesSink(name, view, env, path=path, format=format, coalesce=coalesce, mode=mode)


def _delta_sink(name: str, view: str, env: Env, options: Options) -> Sink:
    # Imported late, because it needs optional packages.
    from stepwell.connectors.delta import DeltaSink

    storage = {str(key): str(value) for key, value in options.table("storage").items()}
    return DeltaSink(
        name,
        view,
        path=options.address("path"),
        mode=options.choice("mode", TableMode, TableMode.TABLE),
        key=options.names("key"),
        storage=storage,
    )


def _iceberg_sink(name: str, view: str, env: Env, options: Options) -> Sink:
    from stepwell.connectors.iceberg_sink import IcebergSink

    key = options.names("key")
    usual = TableMode.TABLE if key else TableMode.CHANGES
    address, mode = _iceberg_address(options), options.choice("mode", TableMode, usual)
    return IcebergSink(name, view, address=address, mode=mode, key=key)


def _iceberg_address(options: Options) -> IcebergAddress:
    from stepwell.connectors.iceberg import IcebergAddress

    identifier = options.text("identifier")
    if not all(identifier.split(".")) or "." not in identifier:
        raise options.wrong("identifier", "a namespace and a table: sales.orders", identifier)
    catalog = {str(name): str(value) for name, value in options.table("catalog").items()}
    for name, start in (("warehouse", ""), ("uri", "sqlite:///")):
        # Relative paths start at the project's folder, not where the process was started.
        given = catalog.get(name, start)
        rest = given.removeprefix(start)
        local = "://" not in rest and rest and "type" in catalog and catalog["type"] == "sql"
        if given.startswith(start) and local:
            catalog[name] = f"{start or 'file://'}{options.base / rest}"
    return IcebergAddress(identifier, catalog)


def _kafka_sink(name: str, view: str, env: Env, options: Options) -> Sink:
    from stepwell.connectors.kafka_options import KafkaMode, address, message_writer, topic_name
    from stepwell.connectors.kafka_sink import KafkaSink

    key = options.names("key")
    mode = options.choice("mode", KafkaMode, KafkaMode.UPSERT if key else KafkaMode.CHANGES)
    topic = topic_name(options, options.text("topic"))
    return KafkaSink(
        name,
        view,
        env,
        address=address(options),
        topic=topic,
        writer=message_writer(name, view, topic, mode, key, options),
        compacted=mode is KafkaMode.UPSERT,
        partitions=options.count("partitions", 0),
    )


def _postgres_sink(name: str, view: str, env: Env, options: Options) -> Sink:
    from stepwell.connectors.postgres import PostgresSink

    key = options.names("key")
    usual = TableMode.TABLE if key else TableMode.CHANGES
    return PostgresSink(
        name,
        view,
        dsn=options.text("dsn"),
        table=options.text("table", view),
        schema=options.text("schema", "public"),
        mode=options.choice("mode", TableMode, usual),
        key=key,
        timeout_s=max(1, round(options.seconds("timeout", "10s"))),
    )


SOURCES: Mapping[str, MakeSource] = {
    "files": _files_source,
    "datagen": _datagen_source,
    "delta": _delta_source,
    "iceberg": _iceberg_source,
    "kafka": _kafka_source,
}
SINKS: Mapping[str, MakeSink] = {
    "files": _files_sink,
    "delta": _delta_sink,
    "iceberg": _iceberg_sink,
    "kafka": _kafka_sink,
    "postgres": _postgres_sink,
}
