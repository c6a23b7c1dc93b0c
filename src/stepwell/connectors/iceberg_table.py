"""Iceberg tables as sources see them: the snapshots of a branch, and the files of each.

A version is the id of a snapshot. What it changes is the difference between its data files and
those of the snapshot before it; manifests that both have are not read. A compaction (`replace`)
changes no rows. If the branch was rolled back or replaced, the next version is its head, and the
difference leads there from the snapshot that was read last, as long as that has not expired.

Columns are found in files by field id, so a renamed column is the same column. Delete files
(merge-on-read) are refused by name, and so are data files that are not Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import pyarrow as pa

from stepwell.connectors.iceberg import IcebergAddress, IcebergCatalog
from stepwell.connectors.iceberg_files import data_files
from stepwell.connectors.lake import WAY_OUT_UNREAD, LakeChange, LakeColumn, LakeFile
from stepwell.errors import ConfigError, InvalidError, ReplayMismatchError, UnavailableError
from stepwell.sql.statements import fold
from stepwell.store.sealed import Json

try:
    from pyiceberg.manifest import DataFile, FileFormat
    from pyiceberg.table import Table
    from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
    from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import DateType
except ImportError as error:
    raise ConfigError(
        "an Iceberg table needs pyiceberg, which is not installed",
        hint="pip install 'stepwell[iceberg]'",
    ) from error

_FIELD_ID = b"PARQUET:field_id"
_DAY_ZERO = date(1970, 1, 1)


class IcebergLakeTable:
    """A branch of an Iceberg table in any catalog."""

    def __init__(self, source: str, address: IcebergAddress, branch: str = MAIN_BRANCH) -> None:
        self._what = f"source {source}"
        self._at = address.identifier
        self._branch = branch
        self._catalog = IcebergCatalog(self._what, address)
        self._table: Table | None = None
        self._history: list[int] = []
        """The snapshots of the branch, from the oldest on."""

    def identity(self) -> str:
        with self._catalog.errors():
            self._table = table = self._catalog.table()
            if table is None:
                raise UnavailableError(
                    f"{self._what}: there is no table {self._at}",
                    hint="create it, or correct the options; it is looked for again",
                )
            metadata = table.metadata
            ref = metadata.refs.get(self._branch)
            is_branch = ref is not None and ref.snapshot_ref_type is SnapshotRefType.BRANCH
            if not is_branch and (ref is not None or self._branch != MAIN_BRANCH):
                raise UnavailableError(
                    f"{self._what}: the table {self._at} has no branch {self._branch}",
                    hint="create it, or correct the option branch; it is looked for again",
                )
            head = metadata.snapshot_by_name(self._branch)
            self._history = [s.snapshot_id for s in ancestors_of(head, metadata)][::-1]
            return str(metadata.table_uuid)

    def latest(self) -> Json:
        return self._history[-1] if self._history else None

    def next_version(self, at: Json) -> Json:
        if at in self._history:
            place = self._history.index(at) + 1
            return self._history[place] if place < len(self._history) else None
        self._snapshot(at)
        if not self._history:
            raise ReplayMismatchError(
                f"{self._what}: the table {self._at} has no snapshot any more, but snapshot {at} "
                "was read",
                hint=WAY_OUT_UNREAD,
            )
        return self._history[-1]

    def behind(self, at: Json) -> int:
        if at in self._history:
            return len(self._history) - 1 - self._history.index(at)
        return len(self._history) if at is None else 1

    def change(self, before: Json, version: Json) -> LakeChange:
        with self._catalog.errors():
            after = self._snapshot(version)
            if before is None:
                return LakeChange(None, version, tuple(self._files(after, None, False)))
            earlier = self._snapshot(before)
            summary = after.summary
            replaces = summary is not None and summary.operation is Operation.REPLACE
            if replaces and after.parent_snapshot_id == before:
                return LakeChange(before, version, ())
            gone = {file.path: file for file in self._files(earlier, after, True)}
            come = {file.path: file for file in self._files(after, earlier, False)}
            files = [file for path, file in gone.items() if path not in come]
            files += [file for path, file in come.items() if path not in gone]
            return LakeChange(before, version, tuple(files))

    def columns(self, names: Sequence[str]) -> tuple[LakeColumn, ...]:
        given = {fold(field.name): field for field in self._loaded().schema().fields}
        made = []
        for name in names:
            field = given.get(fold(name))
            if field is None:
                raise InvalidError(
                    f"{self._what}: the table {self._at} has no column {name}",
                    hint="its columns are: " + ", ".join(field.name for field in given.values()),
                )
            if field.initial_default is not None:
                raise self._unsupported(f"the initial default of column {field.name}")
            made.append(LakeColumn(field.name, field.field_id))
        return tuple(made)

    def open(self, path: str) -> Any:
        return self._loaded().io.new_input(path).open()

    def field_ids(self, file: pa.Schema) -> dict[int, str] | None:
        found = {_id_of(field): field.name for field in file}
        if set(found) != {None}:
            for field in file:
                self._check_nested(field)
            return {id: name for id, name in found.items() if id is not None}
        mapping = self._loaded().metadata.name_mapping()
        if mapping is None:
            raise self._unsupported("a data file without field ids, and no name mapping,")
        return {
            field.field_id: name
            for field in mapping.root
            for name in field.names
            if field.field_id is not None and name in file.names
        }

    def close(self) -> None:
        self._table = None
        self._catalog.close()

    # Snapshots

    def _loaded(self) -> Table:
        if self._table is None:
            self.identity()
        if self._table is None:
            raise UnavailableError(f"{self._what}: the table {self._at} is not open")
        return self._table

    def _snapshot(self, id: Json) -> Snapshot:
        snapshot = self._loaded().metadata.snapshot_by_id(id)
        if snapshot is None:
            raise ReplayMismatchError(
                f"{self._what}: snapshot {id} of the table {self._at} has expired, and what came "
                "after it was not read as a whole yet",
                hint=WAY_OUT_UNREAD,
            )
        return snapshot

    def _files(self, snapshot: Snapshot, other: Snapshot | None, retracts: bool) -> list[LakeFile]:
        """The files of a snapshot, without those in manifests that another one has, too."""
        io = self._loaded().io
        shared = set()
        if other is not None:
            shared = {manifest.manifest_path for manifest in other.manifests(io)}
        # The newest manifest comes first.
        manifests = [m for m in snapshot.manifests(io)[::-1] if m.manifest_path not in shared]
        return [self._file(file, retracts) for file in data_files(manifests, io, self._what)]

    def _file(self, file: DataFile, retracts: bool) -> LakeFile:
        if file.file_format is not FileFormat.PARQUET:
            raise self._unsupported(f"the {file.file_format.value} file {file.file_path}")
        return LakeFile(
            file.file_path,
            retracts,
            tuple(self._values(file).items()),
            rows=file.record_count,
            size=file.file_size_in_bytes,
        )

    def _values(self, file: DataFile) -> Mapping[str, str | None]:
        """The values of columns that files of migrated tables do not hold."""
        made: dict[str, str | None] = {}
        schema = self._loaded().schema()
        spec = self._loaded().metadata.specs()[file.spec_id]
        for place, field in enumerate(spec.fields):
            source = schema._lazy_id_to_field.get(field.source_id)
            if source is None or not isinstance(field.transform, IdentityTransform):
                continue
            value = file.partition[place]
            if value is not None and isinstance(source.field_type, DateType):
                value = _DAY_ZERO + timedelta(days=value)
            text = str(value).lower() if isinstance(value, bool) else str(value)
            made[source.name] = None if value is None else text
        return made

    def _check_nested(self, field: pa.Field) -> None:
        """Nested fields are read by name, so they must have the names that the table has now."""
        kind = field.type
        children = [kind.field(i) for i in range(kind.num_fields)] if _is_nested(kind) else []
        known = self._loaded().schema()._lazy_id_to_field
        for child in children:
            id = _id_of(child)
            now = None if id is None else known.get(id)
            if pa.types.is_struct(kind) and (now is None or now.name != child.name):
                raise self._unsupported(f"the change of the nested field {field.name}.{child.name}")
            self._check_nested(child)

    def _unsupported(self, feature: str) -> InvalidError:
        return InvalidError(
            f"{self._what}: {feature} of the table {self._at} is not supported",
            hint="rewrite the table without it: CREATE TABLE ... AS SELECT",
        )


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def _id_of(field: pa.Field) -> int | None:
    id = (field.metadata or {}).get(_FIELD_ID)
    return None if id is None else int(id)
