"""What runs on Spark's workers: they read and write rows in the pipeline's store by themselves.

A worker has Python, this package and a network; it does not see the driver's files. So it opens the
store by its address, with the same client as the driver, and passes rows on to Spark as Arrow.
Each function here returns one for `DataFrame.mapInArrow`.

A task that fails or is done twice leaves objects that nobody names. They are spilled ones, which
collection removes when they are old.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stepwell.engine.reshape import Places, reshaped
from stepwell.env import SystemEnv
from stepwell.errors import ConfigError, ConflictError, StepwellError, TruncatedError
from stepwell.journal import paths
from stepwell.model import checksum
from stepwell.spark.runs import PARQUET, ROW_GROUP_ROWS, WEIGHT
from stepwell.store.address import Address, open_address
from stepwell.store.base import Store

Batches = Iterable[pa.RecordBatch]
MapArrow = Callable[[Batches], Iterator[pa.RecordBatch]]

WRITTEN = "path string, size bigint, rows bigint, checksum string, low bigint, high bigint"
"""What a worker tells of an object it wrote; low and high are the bounds of its weights, if any."""
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
    """Some row groups of an object: those of one of so many equal shares."""

    address: int
    """Which of the addresses its store has."""
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
    """Gives the rows of the pieces whose numbers come in; `places` as in `RunFiles`."""

    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                piece = pieces[number]
                for rows in _rows(addresses[piece.address], piece):
                    table = reshaped(pa.Table.from_batches([rows]), places)
                    yield from table.cast(schema).to_batches()

    return read


def writing(address: Address, schema: pa.Schema, rows_max: int) -> MapArrow:
    """Writes the rows that come in to new objects, and tells of them."""

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        env = SystemEnv()
        store = open_address(address, env)
        for file in _files(batches, schema, rows_max):
            path, body = paths.spill(env.new_id()), file.end()
            store.put_new(path, body)
            yield _told(path, body, file)

    return write


def copying(address: Address, copies: Sequence[tuple[str, str, str]]) -> MapArrow:
    """Copies objects whose numbers come in: from, to, and the checksum they have."""

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
        # An attempt before this one may have got so far.
        there = store.get(target)
        if there is None or checksum([there.data]) != sum:
            raise


def missing(address: Address, path: str) -> StepwellError:
    """An object that the driver has written is not there."""
    if address.is_directory:
        return ConfigError(
            f"a worker of Spark's ({SystemEnv().host}) does not see {address.uri}/{path}, which "
            "the driver wrote",
            hint="a store in a directory must be shared with all workers, under the same path; "
            "else put it into a bucket: store: s3://...",
        )
    return TruncatedError(f"{address.uri}/{path}", "missing")


def _rows(address: Address, piece: Piece) -> Iterator[pa.RecordBatch]:
    store = open_address(address, SystemEnv())
    file = io.BufferedReader(_Ranges(address, store, piece), 1024 * 1024)
    parquet = pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=True)
    groups = parquet.num_row_groups
    mine = [g for g in range(groups) if g * piece.shares // max(1, groups) == piece.share]
    yield from parquet.iter_batches(_BATCH_ROWS, row_groups=mine)


class _Ranges(io.RawIOBase):
    """An object as a file, of which only what is read is fetched."""

    def __init__(self, address: Address, store: Store, piece: Piece) -> None:
        self._address = address
        self._store = store
        self._piece = piece
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._piece.size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = min(len(buffer), self._piece.size - self._at)
        if length <= 0:
            return 0
        found = self._store.get_range(self._piece.path, self._at, length)
        if not found:
            raise missing(self._address, self._piece.path)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


class _File:
    """A file that grows by row groups; all of it is held, compressed."""

    def __init__(self, schema: pa.Schema) -> None:
        self._out = pa.BufferOutputStream()
        self._schema = schema
        self._writer = pq.ParquetWriter(self._out, schema, **PARQUET)
        self._group: list[pa.RecordBatch] = []
        self.rows = 0
        self.bounds: list[int] = []
        """Of its weights, if they are the last column."""

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
    """Rows as files of so many rows each; one is held at a time."""
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
