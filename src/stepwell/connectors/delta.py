"""Delta Lake: a sink that keeps a table equal to a view, or a log of its changes.

Rows and mark are one commit of the table's log. The mark is a set of application transactions, the
only part of a table's state that an application can set together with rows.

    stepwell/<lineage>/<sink>               the transaction
    stepwell/<lineage>/<sink>/position      the position of its journal entry
    stepwell/<lineage>/<sink>/entry/0, 1    the checksum of that entry, 64 bits each
    stepwell/<lineage>/<sink>/timeline/0, 1

The mark is read from the version that the commit is based on, and the log refuses the commit if one
with the same application transactions came in between, so a late writer changes nothing. A change
set that alters no row is committed too, or its number would be missing. The table's own properties
name its owner. Several transactions can form one commit, under the mark of the last; in a log of
changes each row keeps its own transaction number.

A crash leaves orphaned data files, which `VACUUM` removes. On a local disk, Delta itself syncs
nothing. The sink syncs the files of a commit before `write` returns and before `last` reports it,
but a power cut in the middle of a commit may leave the log ahead of its data. Object stores have no
such window.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from stepwell.connectors.delivery import (
    Numbered,
    TableMode,
    all_rows,
    change_log,
    check_changes,
    check_held,
    latest_by_key,
)
from stepwell.connectors.durable import check_trusted, sync_file, sync_folder
from stepwell.connectors.lake_sink import LINEAGE, SINK, TRANSACTION, SinkTable
from stepwell.engine.evolution import columns_before
from stepwell.engine.ports import Delivered
from stepwell.env import ulid_number, ulid_text
from stepwell.errors import ConfigError, InvalidError, StepwellError, UnavailableError
from stepwell.lsm.change import WEIGHT
from stepwell.model import Checksum, Position, Transaction
from stepwell.text import quote_name

try:
    import deltalake
    from deltalake import exceptions
except ImportError as error:
    raise ConfigError(
        "a Delta sink needs deltalake, which is not installed",
        hint="pip install 'stepwell[delta]'",
    ) from error

COUNT = "_count"
"""The multiplicity of a row, in a table without a key."""


class DeltaSink:
    """A Delta table on a disk or in an object store."""

    def __init__(
        self,
        name: str,
        view: str,
        *,
        path: str,
        mode: TableMode = TableMode.TABLE,
        key: tuple[str, ...] = (),
        storage: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.view = view
        self._path = path
        self._mode = mode
        self._key = key
        self._storage = dict(storage or {})
        self._table: deltalake.DeltaTable | None = None
        self._target = SinkTable(name, view, f"at {path}", "path", _is_same, converts=True)
        if key and mode is TableMode.CHANGES:
            raise ConfigError(f"sink {name}: a log of changes has no key")

    def last(self) -> Delivered | None:
        self._check_trusted()
        with self._errors():
            table = self._open()
            held = None if table is None else self._held(table)
            if table is not None:
                # Its writer may have died before it synced the version reported here.
                self._sync(table.version())
            self._table = table
            return held

    coalesces = True

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        self.write_together(previous, [(mark, change)])

    def write_together(self, previous: Delivered | None, changes: Numbered) -> None:
        mark = check_changes(self.name, previous, changes)
        change = changes[0][1]
        self._check_trusted()
        with self._errors():
            table = self._table or self._open()
            # Reload the table next time, unless the commit is known to have succeeded.
            self._table = None
            if table is None:
                check_held(self.name, None, previous, mark)
                table = self._create(mark.lineage, change)
                self._sync(0)
            else:
                table.update_incremental()
            self._target.check_owner(table.metadata().configuration, mark.lineage)
            check_held(self.name, self._held(table), previous, mark)
            before = columns_before(change)
            if before is not None:
                self._evolve(table, previous, before, change)
            stored = _arrow_schema(table)
            found = [name for name in stored.names if name not in self._own]
            self._target.check_columns(found, change, is_log=self._mode is TableMode.CHANGES)
            fitted = [(number, self._target.fitted(stored, rows)) for number, rows in changes]
            self._commit(table, mark, fitted)
            self._sync(table.version())
            self._table = table

    def _marking(self, mark: Delivered | None) -> deltalake.CommitProperties:
        if mark is None:
            return deltalake.CommitProperties()
        application = self._application(mark.lineage)
        return deltalake.CommitProperties(
            custom_metadata={"stepwell.transaction": str(mark.transaction)},
            app_transactions=[
                deltalake.Transaction(application + part, number)
                for part, number in _numbers(mark).items()
            ],
        )

    def _commit(self, table: deltalake.DeltaTable, mark: Delivered, changes: Numbered) -> None:
        commit = self._marking(mark)
        before = table.version()
        if self._mode is TableMode.CHANGES:
            rows = _as_stored(table, change_log(changes, TRANSACTION))
            if rows.num_rows:
                deltalake.write_deltalake(table, rows, mode="append", commit_properties=commit)
        elif self._key:
            self._merge_by_key(table, changes, commit)
        else:
            self._merge_counts(table, all_rows(changes), commit)
        if table.version() == before:
            # A merge that alters no row commits nothing, but the mark must still move.
            table.create_write_transaction([], "append", table.schema(), commit_properties=commit)
            table.update_incremental()

    def close(self) -> None:
        self._table = None

    def _open(self) -> deltalake.DeltaTable | None:
        try:
            return deltalake.DeltaTable(self._path, storage_options=self._storage or None)
        except exceptions.TableNotFoundError:
            return None

    def _create(self, lineage: str, change: pa.Table) -> deltalake.DeltaTable:
        fields = [change.schema.field(i) for i in range(change.num_columns - 1)]
        fields += [pa.field(name, pa.int64()) for name in self._own]
        return deltalake.DeltaTable.create(
            self._path,
            pa.schema([field.with_nullable(True) for field in fields]),
            configuration={LINEAGE: lineage, SINK: self.name},
            raise_if_key_not_exists=False,
            storage_options=self._storage or None,
        )

    def _held(self, table: deltalake.DeltaTable) -> Delivered | None:
        lineage = self._target.owner(table.metadata().configuration)
        application = self._application(lineage)
        if table.transaction_version(application) is None:
            return None
        found = [table.transaction_version(application + part) for part in _PARTS]
        numbers = [number for number in found if number is not None]
        if len(numbers) < len(_PARTS):
            raise InvalidError(
                f"sink {self.name}: the table at {self._path} was created by an earlier version",
                hint=self._target.other_table,
            )
        return _mark(lineage, numbers)

    @property
    def _own(self) -> tuple[str, ...]:
        """The columns that are not the view's; all of them are numeric."""
        if self._mode is TableMode.CHANGES:
            return (WEIGHT, TRANSACTION)
        return () if self._key else (COUNT,)

    def _evolve(
        self,
        table: deltalake.DeltaTable,
        previous: Delivered | None,
        before: tuple[str, ...],
        change: pa.Table,
    ) -> None:
        """Give the table the view's new columns, in a commit of its own.

        The commit repeats the mark that the table holds, so it fails if another writer was faster.
        After a crash behind this commit, the next attempt finds the columns already in place and
        continues. Added columns only change the log; for any other change the rows are rewritten, a
        batch at a time.
        """
        stored = _arrow_schema(table)
        fields = [self._target.widest(stored, field) for field in list(change.schema)[:-1]]
        kept = stored.names
        if self._mode is TableMode.TABLE:
            lost = {name for name in before if name not in change.column_names}
            kept = [name for name in kept if name not in lost]
        names = {field.name for field in fields}
        fields += [stored.field(name) for name in kept if name not in names]
        gained = [field for field in fields if field.name not in stored.names]
        same = all(stored.field(f.name).equals(f) for f in fields if f.name in stored.names)
        if same and len(kept) == len(stored.names):
            if not gained:
                return
            made = deltalake.Schema.from_arrow(pa.schema(gained)).fields
            table.alter.add_columns(made, commit_properties=self._marking(previous))
        else:
            schema = pa.schema(fields)
            # Opened here, because the library cannot be called from where it reads the batches.
            data = table.to_pyarrow_dataset()
            rows = pa.RecordBatchReader.from_batches(schema, _converted(data, schema))
            deltalake.write_deltalake(
                table,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                commit_properties=self._marking(previous),
            )
        table.update_incremental()
        self._sync(table.version())

    def _application(self, lineage: str) -> str:
        return f"stepwell/{lineage}/{self.name}"

    def _merge_by_key(
        self, table: deltalake.DeltaTable, changes: Numbered, commit: deltalake.CommitProperties
    ) -> None:
        put, gone = latest_by_key(self.name, self.view, self._key, changes)
        names = put.column_names
        flags = [pa.repeat(pa.scalar(f, pa.bool_()), n) for f, n in _sizes(put, gone)]
        rows = pa.concat_tables([put, gone]).append_column("put", pa.chunked_array(flags))
        if not rows.num_rows:
            return
        values = {_quote(name): f"s.c{i}" for i, name in enumerate(names)}
        merge = self._merge(table, rows, {names.index(name): name for name in self._key}, commit)
        merge = merge.when_matched_delete("NOT s.put").when_matched_update(values)
        merge.when_not_matched_insert(values, predicate="s.put").execute()

    def _merge_counts(
        self, table: deltalake.DeltaTable, change: pa.Table, commit: deltalake.CommitProperties
    ) -> None:
        names = change.column_names[:-1]
        if any(pa.types.is_nested(field.type) for field in change.schema):
            raise InvalidError(
                f"sink {self.name}: the view {self.view} has columns that Delta cannot compare",
                hint="give the sink a key, or use mode: changes",
            )
        places = [f"c{i}" for i in range(len(names))]
        rows = change.rename_columns([*places, "put"]).group_by(places).aggregate([("put", "sum")])
        rows = rows.select([*places, "put_sum"])
        rows = rows.filter(pc.not_equal(rows.column("put_sum"), 0))
        if not rows.num_rows:
            return
        values = {_quote(name): f"s.c{i}" for i, name in enumerate(names)}
        count, total = _quote(COUNT), f"t.{_quote(COUNT)} + s.put"
        merge = self._merge(table, rows, dict(enumerate(names)), commit)
        merge = merge.when_matched_delete(f"{total} <= 0").when_matched_update({count: total})
        merge.when_not_matched_insert({**values, count: "s.put"}, predicate="s.put > 0").execute()

    def _merge(
        self,
        table: deltalake.DeltaTable,
        rows: pa.Table,
        key: Mapping[int, str],
        commit: deltalake.CommitProperties,
    ) -> deltalake.table.TableMerger:
        """Merge into the table `t` the rows `s`, whose columns are c0, c1, ... and put."""
        rows = rows.rename_columns([*(f"c{i}" for i in range(rows.num_columns - 1)), "put"])
        same = [f"(t.{_quote(name)} IS NOT DISTINCT FROM s.c{i})" for i, name in key.items()]
        return table.merge(
            rows,
            predicate=" AND ".join(same),
            source_alias="s",
            target_alias="t",
            commit_properties=commit,
        )

    def _disk(self) -> Path | None:
        """The path of the table, if it is on a local disk."""
        path = self._path.removeprefix("file://")
        return None if "://" in path else Path(path)

    def _check_trusted(self) -> None:
        root = self._disk()
        if root is not None:
            check_trusted(self.name, root)

    def _sync(self, version: int) -> None:
        """Sync a commit to the disk, if the table is on one."""
        root = self._disk()
        if root is None:
            return
        log = root / "_delta_log" / f"{version:020d}.json"
        if not log.exists():
            return
        folders = {root.parent, root, log.parent}
        for line in log.read_text(encoding="utf-8").splitlines():
            added = json.loads(line).get("add")
            if added:
                path = root / urllib.parse.unquote(added["path"])
                with suppress(FileNotFoundError):  # The table has been compacted since.
                    sync_file(path)
                    folders.add(path.parent)
        sync_file(log)
        for folder in sorted(folders):
            sync_folder(folder)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except StepwellError:
            raise
        except (exceptions.SchemaMismatchError, exceptions.DeltaProtocolError) as error:
            raise InvalidError(
                f"sink {self.name}: the table at {self._path} does not match the view {self.view}: "
                f"{error}",
                hint="choose another path for the changed view",
            ) from error
        except (exceptions.DeltaError, OSError) as error:
            self._table = None
            raise UnavailableError(
                f"sink {self.name} cannot use {self._path}: {error}",
                hint="check the path and its credentials",
            ) from error
        except Exception as error:
            self._table = None
            if not isinstance(error, ValueError) and "cast error" not in str(error).lower():
                raise
            # The library has no exception class of its own for values that cannot be stored.
            raise InvalidError(
                f"sink {self.name}: the table at {self._path} cannot hold rows of the view "
                f"{self.view}: {error}",
                hint="compare the types of its columns with those of the view; or "
                f"{self._target.other_table}",
            ) from error


_PARTS = ("", "/position", "/entry/0", "/entry/1", "/timeline/0", "/timeline/1")


def _numbers(mark: Delivered) -> dict[str, int]:
    """A mark as the numbers of application transactions, signed 64-bit integers."""
    numbers = (int(mark.entry, 16), ulid_number(mark.timeline))
    words = [word for number in numbers for word in divmod(number, 1 << 64)]
    signed = [word - (1 << 64) if word >> 63 else word for word in words]
    return dict(zip(_PARTS, (mark.transaction, mark.position, *signed), strict=True))


def _mark(lineage: str, numbers: Sequence[int]) -> Delivered:
    transaction, position, *signed = numbers
    words = [word % (1 << 64) for word in signed]
    entry, timeline = (words[0] << 64) + words[1], (words[2] << 64) + words[3]
    return Delivered(
        lineage,
        ulid_text(timeline),
        Transaction(transaction),
        Position(position),
        Checksum(f"{entry:032x}"),
    )


def _arrow_schema(table: deltalake.DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _is_same(stored: pa.Field, field: pa.Field) -> bool:
    """Whether Delta stores both types as one. Delta itself compares nested types."""
    if pa.types.is_nested(stored.type) or pa.types.is_nested(field.type):
        return bool(stored.type.id == field.type.id)
    one, other = deltalake.Schema.from_arrow(pa.schema([stored, field.with_name("other")])).fields
    return bool(one.type == other.type)


def _as_stored(table: deltalake.DeltaTable, rows: pa.Table) -> pa.Table:
    """Rows with all columns of the table, in its order; columns that the view lost are NULL."""
    stored = _arrow_schema(table)
    for field in stored:
        if field.name not in rows.column_names:
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
    return rows.select(stored.names)


def _converted(data: dataset.Dataset, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a table converted to another schema, a batch at a time."""
    known = [name for name in schema.names if name in data.schema.names]
    for batch in data.to_batches(columns=known):
        columns = [
            batch.column(field.name).cast(field.type)
            if field.name in known
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _sizes(put: pa.Table, gone: pa.Table) -> list[tuple[bool, int]]:
    return [(True, put.num_rows), (False, gone.num_rows)]


def _quote(name: str) -> str:
    """Quote a name for the SQL of delta-rs, which differs from Spark's."""
    return quote_name(name, '"')
