"""Data files of an Iceberg table: which of them hold given keys, and writing them without these.

Rows are deleted by copying files (copy-on-write), because every engine can read the result. Bounds
in the manifests tell which files cannot hold a key; of the others the key columns are read. Small
files that earlier commits left are merged along, so their number stays bounded.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DateType, IntegerType, LongType, PrimitiveType, StringType

from stepwell.connectors.iceberg import arrow_schema
from stepwell.errors import InvalidError
from stepwell.lsm.equality import groups_of
from stepwell.lsm.values import one_form

SMALL_BYTES = 1024 * 1024
"""Files below this size are merged."""
SMALL_FILES_MAX = 16
"""How many small files there may be before they are merged."""
_BOUNDED = (IntegerType, LongType, DateType, StringType)


def data_files(manifests: Sequence[ManifestFile], io: FileIO, what: str) -> list[DataFile]:
    """The live data files of a snapshot; `InvalidError` if rows of them are deleted elsewhere."""
    found: list[DataFile] = []
    for manifest in manifests:
        if manifest.content is ManifestContent.DELETES:
            if not manifest.has_added_files() and not manifest.has_existing_files():
                continue
            raise InvalidError(
                f"{what}: the table has delete files (merge-on-read), which are not supported",
                hint="rewrite its data files, and set write.delete.mode, write.update.mode and "
                "write.merge.mode to copy-on-write",
            )
        found += MANIFESTS.files_of(manifest, io)
    return found


class ManifestCache:
    """The data files in manifests, which never change; those used last, up to a number of files.

    A file takes some kilobytes, because it has the bounds of all columns. Safe to use from several
    threads.
    """

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[DataFile, ...]] = OrderedDict()
        self.files = 0
        self.reads = 0

    def files_of(self, manifest: ManifestFile, io: FileIO) -> tuple[DataFile, ...]:
        path = manifest.manifest_path
        with self._lock:
            if path in self._known:
                self._known.move_to_end(path)
                return self._known[path]
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
        found = tuple(entry.data_file for entry in entries)
        with self._lock:
            self.reads += 1
            if path not in self._known:
                self._known[path] = found
                self.files += len(found)
            while self.files > self._files_max:
                _, gone = self._known.popitem(last=False)
                self.files -= len(gone)
        return found


MANIFESTS = ManifestCache(20_000)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A data file that goes, and those of its rows that stay."""

    file: DataFile
    rows: pa.Table

    @property
    def is_small(self) -> bool:
        return bool(self.file.file_size_in_bytes < SMALL_BYTES)


class KeyedFiles:
    """The data files of a table with a key."""

    def __init__(
        self, metadata: TableMetadata, io: FileIO, key: Sequence[str], files: Sequence[DataFile]
    ) -> None:
        self._metadata = metadata
        self._io = io
        self._key = list(key)
        self._files = files

    def without(self, keys: pa.Table) -> Iterator[Rewritten]:
        """All files that hold one of these keys, one at a time; and small ones to be merged."""
        schema = self._metadata.schema()
        seen = set()
        for file in self._holding(keys, schema):
            rows = self._read(file, schema)
            seen.add(file.file_path)
            yield Rewritten(file, rows.filter(pc.invert(matches(rows.select(self._key), keys))))
        small = [file for file in self._files if file.file_size_in_bytes < SMALL_BYTES]
        for file in small if len(small) >= SMALL_FILES_MAX else []:
            if file.file_path not in seen:
                yield Rewritten(file, self._read(file, schema))

    def _holding(self, keys: pa.Table, schema: Schema) -> Iterator[DataFile]:
        """The files that may hold one of these keys, after a look at their key columns."""
        if not keys.num_rows:
            return
        bounds = [_Bounds.of(schema, name, keys.column(name)) for name in self._key]
        only_keys = schema.select(*self._key)
        for file in self._files:
            if all(bound is None or bound.admits(file) for bound in bounds):
                found = self._read(file, only_keys).select(self._key)
                if pc.any(matches(found, keys)).as_py():
                    yield file

    def _read(self, file: DataFile, schema: Schema) -> pa.Table:
        scan = ArrowScan(self._metadata, self._io, schema, AlwaysTrue())
        return scan.to_table([FileScanTask(file)]).cast(arrow_schema(schema))


def matches(rows: pa.Table, keys: pa.Table) -> pa.Array:
    """Which rows equal one of the keys, as Spark compares: NULL equals NULL, and NaN NaN."""
    mask = np.ones(rows.num_rows, bool)
    for column, values in zip(rows.columns, keys.columns, strict=True):
        found = pc.is_in(one_form(column), value_set=one_form(values).combine_chunks())
        mask &= np.asarray(found)
    if rows.num_columns > 1 and mask.any():
        places = np.flatnonzero(mask)
        groups = np.asarray(
            groups_of(pa.concat_tables([keys, rows.take(places)]), range(rows.num_columns))
        )
        mask[places] = np.isin(groups[keys.num_rows :], groups[: keys.num_rows])
    return pa.array(mask)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The values of a key column that are looked for."""

    id: int
    type: PrimitiveType
    values: list[Any]
    has_null: bool

    @classmethod
    def of(cls, schema: Schema, name: str, values: pa.ChunkedArray) -> _Bounds | None:
        """None if bounds of files do not tell."""
        field = next(field for field in schema.fields if field.name == name)
        if not isinstance(field.field_type, _BOUNDED):
            return None
        if isinstance(field.field_type, DateType):
            values = values.cast(pa.int32())
        known = sorted(set(values.drop_null().to_pylist()))
        return cls(field.field_id, field.field_type, known, values.null_count > 0)

    def admits(self, file: DataFile) -> bool:
        """Whether a file may hold one of the values."""
        if self.has_null and (file.null_value_counts or {}).get(self.id, 1):
            return True
        low = (file.lower_bounds or {}).get(self.id)
        high = (file.upper_bounds or {}).get(self.id)
        if low is None or high is None:
            nulls = (file.null_value_counts or {}).get(self.id)
            return nulls is None or nulls < file.record_count
        at = bisect_left(self.values, from_bytes(self.type, low))
        return at < len(self.values) and bool(self.values[at] <= from_bytes(self.type, high))
