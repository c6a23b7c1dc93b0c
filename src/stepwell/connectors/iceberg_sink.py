"""Iceberg: a sink that keeps a table equal to a view, or a log of its changes.

A transaction is one snapshot. The mark is in the snapshot's summary and, because snapshots expire,
in the table's properties; the catalog commits both with the rows, and column changes of the view as
well. The commit requires that the snapshot it is based on is still the current one, and the mark of
that one was compared with the expected mark, so a late writer changes nothing. A change set that
alters no row is a snapshot too, or its number would be missing.

    stepwell.lineage, stepwell.sink           the owner: properties of the table, set when created
    stepwell.transaction, .position, .entry, .timeline      the mark

The mark is that of the newest snapshot in the history of `main` that has one: others may compact
the table, and a rollback takes the mark back with the rows. The property only counts where that
history has expired: CREATE OR REPLACE keeps the properties of a table, but none of its rows.

A crash leaves files that no snapshot names; `remove_orphan_files` of an engine removes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from stepwell.connectors.delivery import (
    Numbered,
    TableMode,
    change_log,
    check_changes,
    check_held,
    latest_by_key,
)
from stepwell.connectors.durable import check_trusted
from stepwell.connectors.iceberg import IcebergAddress, IcebergCatalog, arrow_schema
from stepwell.connectors.iceberg_files import KeyedFiles, data_files
from stepwell.connectors.lake_sink import LINEAGE, SINK, TRANSACTION, SinkTable
from stepwell.engine.evolution import columns_before
from stepwell.engine.ports import Delivered
from stepwell.errors import ConfigError, ConflictError, InvalidError, UnavailableError
from stepwell.lsm.change import WEIGHT
from stepwell.model import Checksum, Position, Transaction

try:
    from pyiceberg import exceptions
    from pyiceberg.io.pyarrow import _dataframe_to_data_files, _pyarrow_to_schema_without_ids
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table import Transaction as TableTransaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot, ancestors_of
    from pyiceberg.table.update import AssertTableUUID
    from pyiceberg.table.update.snapshot import _SnapshotProducer
    from pyiceberg.types import IcebergType
except ImportError as error:
    raise ConfigError(
        "an Iceberg sink needs pyiceberg, which is not installed",
        hint="pip install 'stepwell[iceberg]'",
    ) from error

_TRANSACTION = "stepwell.transaction"
_POSITION = "stepwell.position"
_ENTRY = "stepwell.entry"
_TIMELINE = "stepwell.timeline"
_MARK = (_TRANSACTION, _POSITION, _ENTRY, _TIMELINE)
_PROPERTIES = {
    "format-version": "2",
    "write.target-file-size-bytes": str(64 * 1024 * 1024),
    # Without these, a commit takes longer the more there were before it.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class IcebergSink:
    """An Iceberg table in any catalog."""

    coalesces = True

    def __init__(
        self,
        name: str,
        view: str,
        *,
        address: IcebergAddress,
        mode: TableMode,
        key: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.view = view
        self._what = f"sink {name}"
        self._at = address.identifier
        self._mode = mode
        self._key = key
        self._catalog = IcebergCatalog(self._what, address)
        self._table: Table | None = None
        self._target = SinkTable(name, view, self._at, "table", _is_same, converts=False)
        if mode is TableMode.CHANGES and key:
            raise ConfigError(f"{self._what}: a log of changes has no key")
        if mode is TableMode.TABLE and not key:
            raise ConfigError(
                f"{self._what}: mode: table needs a key",
                hint="name the columns that identify the view's rows: key: [id]",
            )

    def last(self) -> Delivered | None:
        self._check_trusted()
        with self._catalog.errors():
            self._table = table = self._catalog.table()
            return None if table is None else self._held(table)

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        self.write_together(previous, [(mark, change)])

    def write_together(self, previous: Delivered | None, changes: Numbered) -> None:
        mark = check_changes(self.name, previous, changes)
        change = changes[0][1]
        self._check_trusted()
        with self._catalog.errors():
            table = self._table or self._catalog.table()
            # Load the table next time, unless the commit is known to have succeeded.
            self._table = None
            if table is None:
                check_held(self.name, None, previous, mark)
                table = self._create(mark.lineage, change)
            self._target.check_owner(table.properties, mark.lineage)
            check_held(self.name, self._held(table), previous, mark)
            transaction = _Transaction(table)
            before = columns_before(change)
            if before is not None:
                self._evolve(transaction, before, change)
            stored = arrow_schema(transaction.table_metadata.schema())
            found = [name for name in stored.names if name not in self._own]
            self._target.check_columns(found, change, is_log=self._mode is TableMode.CHANGES)
            fitted = [(number, self._target.fitted(stored, rows)) for number, rows in changes]
            producer = self._produce(transaction, mark, fitted)
            producer.commit()
            transaction.set_properties(_properties(mark))
            self._commit(table, transaction, producer, previous, mark)
            self._table = table

    def close(self) -> None:
        self._table = None
        self._catalog.close()

    # The commit

    def _commit(
        self,
        table: Table,
        transaction: TableTransaction,
        producer: _SnapshotProducer[Any],
        previous: Delivered | None,
        mark: Delivered,
    ) -> None:
        """Commit once. `commit_transaction` would try again on top of another writer's snapshot."""
        requirements = (
            *transaction._requirements,
            AssertTableUUID(uuid=table.metadata.table_uuid),
        )
        try:
            table._do_commit(transaction._updates, requirements)
        except exceptions.CommitFailedException as error:
            # It has certainly not taken place, so nothing refers to its files.
            with suppress(Exception):
                producer._clean_all_uncommitted()
                for file in producer._added_data_files:
                    table.io.delete(file.file_path)
            now = self._catalog.table()
            check_held(self.name, None if now is None else self._held(now), previous, mark)
            raise UnavailableError(
                f"{self._what}: another writer changed {self._at} meanwhile: {error}",
                hint="it is written again; leave the table to Stepwell if this repeats itself",
            ) from error

    def _produce(
        self, transaction: TableTransaction, mark: Delivered, changes: Numbered
    ) -> _SnapshotProducer[Any]:
        """The snapshot of a transaction, with its data files written."""
        update = transaction.update_snapshot(snapshot_properties=_summary(mark, self.name))
        metadata, io = transaction.table_metadata, transaction._table.io
        if self._mode is TableMode.CHANGES:
            rows = _as_stored(arrow_schema(metadata.schema()), change_log(changes, TRANSACTION))
            return _with_files(update.merge_append(), self._written(transaction, [rows]))
        put, lost = latest_by_key(self.name, self.view, self._key, changes)
        snapshot = metadata.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(io)
        files = KeyedFiles(metadata, io, self._key, data_files(manifests, io, self._what))
        keys = pa.concat_tables([put.select(self._key), lost.select(self._key)])
        gone: list[DataFile] = []
        written: list[DataFile] = []
        rest = [_as_stored(arrow_schema(metadata.schema()), put)]
        try:
            for rewritten in files.without(keys):
                gone.append(rewritten.file)
                if rewritten.is_small:
                    rest.append(rewritten.rows)
                else:
                    written += self._written(transaction, [rewritten.rows])
        except pa.ArrowNotImplementedError as error:
            raise InvalidError(
                f"{self._what}: columns of the key {', '.join(self._key)} cannot be compared",
                hint="name a key without nested columns, or use mode: changes",
            ) from error
        written += self._written(transaction, [pa.concat_tables(rest)])
        if not gone:
            return _with_files(update.merge_append(), written)
        producer = _with_files(update.overwrite(), written)
        for file in gone:
            producer.delete_data_file(file)
        return producer

    def _written(
        self, transaction: TableTransaction, tables: Iterable[pa.Table]
    ) -> Iterable[DataFile]:
        io = transaction._table.io
        for rows in tables:
            if rows.num_rows:
                yield from _dataframe_to_data_files(transaction.table_metadata, rows, io)

    # The table

    def _create(self, lineage: str, change: pa.Table) -> Table:
        fields = [change.schema.field(i) for i in range(change.num_columns - 1)]
        fields += [pa.field(name, pa.int64()) for name in self._own]
        catalog = self._catalog.get()
        namespace = self._at.rpartition(".")[0]
        catalog.create_namespace_if_not_exists(namespace)
        try:
            return catalog.create_table(
                self._at,
                pa.schema([pa.field(field.name, field.type) for field in fields]),
                properties={**_PROPERTIES, LINEAGE: lineage, SINK: self.name},
            )
        except exceptions.TableAlreadyExistsError as error:
            raise ConflictError(f"{self._what}: another process created {self._at}") from error

    def _held(self, table: Table) -> Delivered | None:
        lineage = self._target.owner(table.properties)
        metadata = table.metadata
        history = list(ancestors_of(metadata.current_snapshot(), metadata))
        for snapshot in history:
            found = self._summary(snapshot, lineage)
            if found is not None:
                return self._mark(lineage, found)
        mark = {name: metadata.properties.get(name) for name in _MARK}
        for snapshot in metadata.snapshots:
            found = self._summary(snapshot, lineage)
            if found is not None and mark.items() <= found.items():
                return None  # It has not expired, but the table was replaced.
        return self._mark(lineage, metadata.properties) if history else None

    def _summary(self, snapshot: Snapshot, lineage: str) -> Mapping[str, str] | None:
        """The summary of a snapshot of this sink; None if it is another's."""
        found = {} if snapshot.summary is None else snapshot.summary.additional_properties
        ours = found.get(LINEAGE) == lineage and found.get(SINK) == self.name
        return found if ours else None

    def _mark(self, lineage: str, found: Mapping[str, str]) -> Delivered | None:
        if _TRANSACTION not in found:
            return None
        try:
            return Delivered(
                lineage,
                found[_TIMELINE],
                Transaction(int(found[_TRANSACTION])),
                Position(int(found[_POSITION])),
                Checksum(found[_ENTRY]),
            )
        except (KeyError, ValueError) as error:
            raise InvalidError(
                f"{self._what}: the mark of the table {self._at} cannot be read: {error!r}",
                hint=self._target.other_table,
            ) from error

    @property
    def _own(self) -> tuple[str, ...]:
        """The columns that are not the view's."""
        return (WEIGHT, TRANSACTION) if self._mode is TableMode.CHANGES else ()

    # Columns

    def _evolve(
        self, transaction: TableTransaction, before: tuple[str, ...], change: pa.Table
    ) -> None:
        """Give the table the view's new columns, in the commit of the rows."""
        stored = arrow_schema(transaction.table_metadata.schema())
        fields = [self._target.widest(stored, field) for field in list(change.schema)[:-1]]
        lost = [name for name in before if name not in change.column_names]
        try:
            with transaction.update_schema() as update:
                for field in fields:
                    if field.name not in stored.names:
                        update.add_column((field.name,), _iceberg_type(field))
                    elif field.type != stored.field(field.name).type:
                        update.update_column((field.name,), field_type=_iceberg_type(field))
                for name in lost if self._mode is TableMode.TABLE else ():
                    if name in stored.names:
                        update.delete_column((name,))
        except (exceptions.ValidationError, ValueError) as error:
            raise InvalidError(
                f"{self._what}: the table {self._at} cannot follow the view {self.view}: {error}",
                hint=self._target.other_table,
            ) from error

    def _check_trusted(self) -> None:
        local = self._catalog.address.local
        if local is not None:
            check_trusted(self.name, Path(local))


class _Transaction(TableTransaction):
    """A transaction that applies its updates once, not at every look at the metadata.

    Each time copies the metadata of all snapshots, and a commit looks about twenty times.
    """

    _applied: tuple[Any, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._applied is None or self._applied[0] is not self._updates:
            self._applied = (self._updates, super().table_metadata)
        return self._applied[1]


def _summary(mark: Delivered, sink: str) -> dict[str, str]:
    return {LINEAGE: mark.lineage, SINK: sink, **_properties(mark)}


def _properties(mark: Delivered) -> dict[str, str]:
    values = (mark.transaction, mark.position, mark.entry, mark.timeline)
    return {name: str(value) for name, value in zip(_MARK, values, strict=True)}


def _with_files(
    producer: _SnapshotProducer[Any], files: Iterable[DataFile]
) -> _SnapshotProducer[Any]:
    for file in files:
        producer.append_data_file(file)
    return producer


def _as_stored(stored: pa.Schema, rows: pa.Table) -> pa.Table:
    """Rows with all columns of the table, in its order; columns that the view lost are NULL."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in stored
    ]
    return pa.Table.from_arrays(columns, schema=stored)


def _iceberg_type(field: pa.Field) -> IcebergType:
    schema = _pyarrow_to_schema_without_ids(pa.schema([field]), format_version=2)
    return schema.fields[0].field_type


def _is_same(stored: pa.Field, field: pa.Field) -> bool:
    """Whether Iceberg stores both types as one. Nested types are compared when rows are cast."""
    if pa.types.is_nested(stored.type) or pa.types.is_nested(field.type):
        return _sort(stored.type) == _sort(field.type)
    return bool(_iceberg_type(stored) == _iceberg_type(field))


def _sort(kind: pa.DataType) -> object:
    """What a nested type is; lists of any size are one."""
    return "list" if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind.id
