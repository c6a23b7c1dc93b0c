"""Read and write run files in a store from processes that share no disk with the driver.

An executor has Python, this package and a network. It opens the store by its address, with the same
client as the driver, and passes rows on as Arrow batches. `reading`, `writing` and `copying` return
functions from an iterator of batches to another, as `DataFrame.mapInArrow` requires.

A task that fails or runs twice leaves orphan spill objects that no manifest references. Garbage
collection removes them once they are old.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stepwell.env import SystemEnv
from stepwell.errors import ConfigError, ConflictError, StepwellError, TruncatedError
from stepwell.journal import paths
from stepwell.lsm.reshape import Places, reshaped
from stepwell.lsm.run_file import PARQUET, ROW_GROUP_ROWS, WEIGHT
from stepwell.model import checksum
from stepwell.store.address import Address, open_address
from stepwell.store.base import Store

Batches = Iterable[pa.RecordBatch]
MapArrow = Callable[[Batches], Iterator[pa.RecordBatch]]

WRITTEN = "path string, size bigint, rows bigint, checksum string, low bigint, high bigint"
"""The columns a worker reports for an object it wrote; low and high bound its weights, if any."""
_WRITTEN = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("checksum", pa.string()),
        ("low", pa.int64()),
        ("high", pa.int64()),
    ]
)
_BATCH_ROWS = 32 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Some row groups of an object: share number `share` of `shares` equal ones."""

    address: int
    """Index of the store's address in the list of addresses."""
    path: str
    size: int
    share: int
    shares: int


def reading(
    addresses: Sequence[Address],
    pieces: Sequence[Piece],
    schema: pa.Schema,
    places: Places | None = None,
) -> MapArrow:
    """Reads the pieces whose numbers come in; `places` as in `RunFiles`."""

    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                piece = pieces[number]
                for rows in _rows(addresses[piece.address], piece):
                    table = reshaped(pa.Table.from_batches([rows]), places)
                    yield from table.cast(schema).to_batches()

    return read


def writing(address: Address, schema: pa.Schema, rows_max: int) -> MapArrow:
    """Writes the incoming rows to new objects, and returns a row about each."""

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        env = SystemEnv()
        store = open_address(address, env)
        for file in _files(batches, schema, rows_max):
            path, body = paths.spill(env.new_id()), file.end()
            store.put_new(path, body)
            yield _told(path, body, file)

    return write


def copying(address: Address, copies: Sequence[tuple[str, str, str]]) -> MapArrow:
    """Copies the objects whose numbers come in; `copies` holds source, target and checksum."""

    def copy(batches: Batches) -> Iterator[pa.RecordBatch]:
        store = open_address(address, SystemEnv())
        for batch in batches:
            for number in batch.column(0).to_pylist():
                _copy(address, store, *copies[number])
            yield batch

    return copy


def _copy(address: Address, store: Store, source: str, target: str, sum: str) -> None:
    found = store.get(source)
    if found is None:
        raise missing(address, source)
    if checksum([found.data]) != sum:
        raise ConfigError(f"{address.uri}/{source} was changed after it was written")
    try:
        store.put_new(target, found.data)
    except ConflictError:
        # An earlier attempt may have written it.
        there = store.get(target)
        if there is None or checksum([there.data]) != sum:
            raise


def missing(address: Address, path: str) -> StepwellError:
    """The error for a missing object that the driver has written."""
    if address.is_directory:
        return ConfigError(
            f"a Spark worker ({SystemEnv().host}) does not see {address.uri}/{path}, which "
            "the driver wrote",
            hint="a store in a directory must be shared with all workers, under the same path; "
            "otherwise put it into a bucket: store: s3://...",
        )
    return TruncatedError(f"{address.uri}/{path}", "missing")


def open_parquet(address: Address, path: str, size: int) -> pq.ParquetFile:
    """Open an object, of which only the ranges that are needed will be fetched."""
    store = open_address(address, SystemEnv())
    file = io.BufferedReader(_Ranges(address, store, path, size), 1024 * 1024)
    return pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=True)


def _rows(address: Address, piece: Piece) -> Iterator[pa.RecordBatch]:
    parquet = open_parquet(address, piece.path, piece.size)
    groups = parquet.num_row_groups
    mine = [g for g in range(groups) if g * piece.shares // max(1, groups) == piece.share]
    yield from parquet.iter_batches(_BATCH_ROWS, row_groups=mine)


class _Ranges(io.RawIOBase):
    """An object as a file that fetches only the ranges that are read."""

    def __init__(self, address: Address, store: Store, path: str, size: int) -> None:
        self._address = address
        self._store = store
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        found = self._store.get_range(self._path, self._at, length)
        if not found:
            raise missing(self._address, self._path)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


class _File:
    """A Parquet file that grows by row groups, held in memory in compressed form."""

    def __init__(self, schema: pa.Schema) -> None:
        self._out = pa.BufferOutputStream()
        self._schema = schema
        self._writer = pq.ParquetWriter(self._out, schema, **PARQUET)
        self._group: list[pa.RecordBatch] = []
        self.rows = 0
        self.bounds: list[int] = []
        """Bounds of the weights, if they are the last column."""

    def add(self, batch: pa.RecordBatch) -> None:
        self._group.append(batch)
        self.rows += batch.num_rows
        if self._schema.names[-1] == WEIGHT:
            self.bounds += pc.min_max(batch.column(batch.num_columns - 1)).as_py().values()
        if sum(b.num_rows for b in self._group) >= ROW_GROUP_ROWS:
            self._end_group()

    def _end_group(self) -> None:
        if self._group:
            self._writer.write_table(pa.Table.from_batches(self._group).cast(self._schema))
        self._group = []

    def end(self) -> bytes:
        self._end_group()
        self._writer.close()
        return self._out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _files(batches: Batches, schema: pa.Schema, rows_max: int) -> Iterator[_File]:
    """Pack rows into files of about `rows_max` rows each; one is in memory at a time."""
    file: _File | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        file = file or _File(schema)
        file.add(batch)
        if file.rows >= rows_max:
            yield file
            file = None
    if file is not None:
        yield file


def _told(path: str, body: bytes, file: _File) -> pa.RecordBatch:
    bounds = min(file.bounds, default=None), max(file.bounds, default=None)
    line = (path, len(body), file.rows, checksum([body]), *bounds)
    return pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip(line, _WRITTEN, strict=True)],
        schema=_WRITTEN,
    )
