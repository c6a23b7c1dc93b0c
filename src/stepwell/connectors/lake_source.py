"""A source that reads a lakehouse table: first a snapshot, then the changes of each version.

A position is `{table, at, to, row, net}`: the table's id, the last version that was read as a
whole, and, inside a version, that version and how many of its rows were taken. The rows of a
version have one order (`lake_rows`), so a version larger than the limits of a transaction is cut
there; the cut does not change what comes after it. Small versions share a step.

A reference names data files, ranges of their rows and a checksum. Data files never change, so
replay needs them and nothing else: neither the table's log nor its catalog's history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from stepwell.connectors.folding import fold_numbered, operations_schema
from stepwell.connectors.formats import Batch, ChangeFormat, Records, batch_of
from stepwell.connectors.lake import (
    WAY_OUT,
    WAY_OUT_UNREAD,
    LakeChange,
    LakeColumn,
    LakeFile,
    LakeTable,
)
from stepwell.connectors.lake_rows import Chunk, RowReader
from stepwell.connectors.parquet_parts import record_at
from stepwell.connectors.shape import Shape, shape_of
from stepwell.engine.ports import Intake, Limits
from stepwell.env import Env
from stepwell.errors import (
    CorruptError,
    ReplayMismatchError,
    StepwellError,
    UnavailableError,
)
from stepwell.lsm.checksum import add_checksums, checksum_rows
from stepwell.lsm.dead_letter import TEXT_MAX, BadRow
from stepwell.lsm.json_rows import json_row
from stepwell.model import Checksum
from stepwell.sql.statements import Table
from stepwell.store.sealed import Json


@dataclass(frozen=True, slots=True)
class _Position:
    table: str
    at: Json = None
    to: Json = None
    """The version that is being read, if it was cut."""
    row: int = 0
    net: bool = False

    def to_json(self) -> Json:
        made = {"table": self.table, "at": self.at}
        if self.to is not None:
            made |= {"to": self.to, "row": self.row, "net": self.net}
        return made

    @classmethod
    def from_json(cls, position: Json) -> _Position:
        try:
            rest = {name: position[name] for name in ("to", "row", "net") if name in position}
            return cls(position["table"], position["at"], **rest)
        except (KeyError, TypeError) as error:
            raise CorruptError(
                "the position of a lakehouse source", f"cannot be read: {error!r}"
            ) from error


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows of one version, as they are journaled."""

    version: Json
    net: bool
    start: int
    """With `net`: how many rows of the net difference come before them."""
    rows: int
    ranges: tuple[tuple[LakeFile, int, int], ...]
    """The files, and without `net` the rows of each: the first one, and how many."""
    columns: tuple[LakeColumn, ...]
    checksum: Checksum

    def to_json(self) -> Json:
        files = [
            file.to_json() if self.net else [*file.to_json(), first, count]
            for file, first, count in self.ranges
        ]
        return {
            "version": self.version,
            "net": self.net,
            "rows": [self.start, self.rows],
            "files": files,
            "columns": [column.to_json() for column in self.columns],
            "checksum": self.checksum,
        }

    @classmethod
    def from_json(cls, fields: Json) -> _Span:
        ranges = []
        for item in fields["files"]:
            path, sign, values, is_feed, *rows = item
            first, count = rows or (0, 0)
            ranges.append((LakeFile.from_json([path, sign, values, is_feed]), first, count))
        start, rows = fields["rows"]
        columns = tuple(LakeColumn.from_json(column) for column in fields["columns"])
        return cls(
            fields["version"],
            fields["net"],
            start,
            rows,
            tuple(ranges),
            columns,
            Checksum(fields["checksum"]),
        )


@dataclass(slots=True)
class _Reading:
    """A version being read: what comes next, and from which row on."""

    change: LakeChange
    net: bool
    columns: tuple[LakeColumn, ...]
    row: int
    rest: Iterator[Chunk]
    ahead: list[Chunk] = field(default_factory=list)
    """The chunk that was read last and not taken as a whole."""


class LakeSource:
    """A source that reads one table."""

    def __init__(
        self, name: str, declared: Table, env: Env, table: LakeTable, interval_s: float = 1.0
    ) -> None:
        self.name = name
        self._env = env
        self._interval_s = interval_s
        self.table = declared.name
        self._table = table
        self._shape = shape_of(declared)
        self._reader = RowReader(table, self._shape)
        self._reading: _Reading | None = None
        self._behind = 0
        self._looked: tuple[Json, float] | None = None
        """The position after which nothing was found, and when."""
        self._rest_s: float | None = None

    def poll(self, after: Json, limits: Limits) -> Intake | None:
        self._rest_s = self._until_next_look(after)
        if self._rest_s is not None:
            return None
        found = self._poll(after, limits)
        self._looked = (after, self._env.uptime()) if found is None else None
        return found

    def settles_in_s(self, since: float) -> float | None:
        """Seconds until the table is looked at again, unless it was after `since`.

        Otherwise two tables that are looked at in turns would wait for each other forever.
        """
        recent = self._looked is not None and self._looked[1] >= since
        return None if recent else self._rest_s

    def _until_next_look(self, after: Json) -> float | None:
        """Polls come ten times a second; a look at a catalog or a store is not free."""
        if self._looked is None or self._looked[0] != after:
            return None
        rest_s = self._looked[1] + self._interval_s - self._env.uptime()
        return rest_s if rest_s > 0 else None

    def _poll(self, after: Json, limits: Limits) -> Intake | None:
        identity = self._table.identity()
        at = _Position(identity) if after is None else _Position.from_json(after)
        if at.table != identity:
            raise ReplayMismatchError(
                f"source {self.name}: the table is another one: {at.table} was read, and "
                f"{identity} is there now",
                hint="restore that table; or give the source a new table, which starts with a "
                "snapshot of the one that is there now",
            )
        spans: list[_Span] = []
        chunks: list[tuple[Json, Chunk]] = []
        rows, size = limits.rows_max, limits.bytes_max
        while rows > 0 and (size > 0 or not chunks):
            reading = self._resume(at)
            if reading is None:
                break
            first = reading.row
            found: list[Chunk] = []
            done = self._take(reading, found, rows, size)
            count = reading.row - first
            rows, size = rows - count, size - sum(chunk.rows.nbytes for chunk in found)
            if count:
                spans.append(_span(reading, first, found))
                chunks += [(reading.change.version, chunk) for chunk in found]
            version = reading.change.version
            if done:
                at = _Position(identity, version)
            else:
                at = _Position(identity, at.at, version, reading.row, reading.net)
                self._reading = reading
        self._behind = self._table.behind(at.at)
        position = at.to_json()
        if position == after or (after is None and at.at is None and at.to is None):
            return None
        reference = {"table": identity, "spans": [span.to_json() for span in spans]}
        return self._made(chunks, position, reference)

    def read(self, reference: Json) -> Intake:
        chunks: list[tuple[Json, Chunk]] = []
        for fields in reference["spans"]:
            span = _Span.from_json(fields)
            with _named(self.name, span.version, WAY_OUT):
                found = list(self._again(span))
            digest = _sum(found)
            count = sum(chunk.rows.num_rows for chunk in found)
            if (count, digest) != (span.rows, span.checksum):
                raise ReplayMismatchError(
                    f"source {self.name}: version {span.version} had {span.rows} rows with "
                    f"checksum {span.checksum} here, now {count} with {digest}",
                    hint="a data file of the table was changed: restore it; or restore the "
                    "pipeline from a checkpoint",
                )
            chunks += [(span.version, chunk) for chunk in found]
        return self._made(chunks, None, reference)

    def waiting(self) -> str | None:
        behind = self._behind
        return f"{behind:,} version{'s' if behind > 1 else ''} behind" if behind else None

    def lag(self) -> Mapping[str, int]:
        return {"": self._behind} if self._behind else {}

    def close(self) -> None:
        self._reading = None
        self._table.close()

    # Versions

    def _resume(self, at: _Position) -> _Reading | None:
        """The version that follows, read up to the position."""
        reading = self._reading
        if reading is not None and at.to is not None:
            same = (reading.change.before, reading.change.version, reading.row)
            if same == (at.at, at.to, at.row):
                return reading
        self._reading = None
        to = at.to
        if to is None:
            to = self._table.latest() if at.at is None else self._table.next_version(at.at)
            if to is None:
                return None
        change = self._table.change(at.at, to)
        net = at.net
        if at.to is None:
            with _named(self.name, to, WAY_OUT_UNREAD):
                net = self._reader.can_net(change.files)
        names = [column.name for column in self._shape.columns]
        columns = self._table.columns(names)
        rest = self._rest(change, net, columns, at.row)
        return _Reading(change, net, columns, at.row, rest)

    def _rest(
        self, change: LakeChange, net: bool, columns: Sequence[LakeColumn], start: int
    ) -> Iterator[Chunk]:
        if not net:
            files = sorted(change.files, key=lambda file: not file.retracts)
            yield from self._reader.chunks(files, columns, start)
            return
        for chunk in self._reader.net(change.files, columns):
            count = chunk.rows.num_rows
            if start < count:
                yield chunk.slice(start, count - start)
            start = max(0, start - count)

    def _take(self, reading: _Reading, found: list[Chunk], rows_max: int, bytes_max: int) -> bool:
        """Take rows of a version up to the limits; whether it ends with them."""
        # A generator that has failed would end the version early.
        self._reading = None
        with _named(self.name, reading.change.version, WAY_OUT_UNREAD):
            while True:
                chunk = reading.ahead.pop() if reading.ahead else next(reading.rest, None)
                if chunk is None:
                    return True
                count = chunk.rows.num_rows
                fits = min(count, rows_max)
                if chunk.rows.nbytes > bytes_max:
                    fits = min(fits, count * max(0, bytes_max) // chunk.rows.nbytes)
                fits = max(fits, 0 if found or rows_max <= 0 else 1)
                if fits < count:
                    reading.ahead.append(chunk.slice(fits, count - fits))
                if not fits:
                    return False
                found.append(chunk.slice(0, fits))
                reading.row += fits
                rows_max, bytes_max = rows_max - fits, bytes_max - found[-1].rows.nbytes

    def _again(self, span: _Span) -> Iterator[Chunk]:
        """The rows that a reference names."""
        if span.net:
            left, start = span.rows, span.start
            for chunk in self._reader.net([file for file, _, _ in span.ranges], span.columns):
                part = chunk.slice(min(start, chunk.rows.num_rows), max(0, left))
                start = max(0, start - chunk.rows.num_rows)
                left -= part.rows.num_rows
                if part.rows.num_rows:
                    yield part
            return
        for file, first, count in span.ranges:
            for chunk in self._reader.chunks([file], span.columns, first):
                part = chunk.slice(0, count)
                count -= part.rows.num_rows
                if part.rows.num_rows:
                    yield part
                if not count:
                    break

    # Rows

    def _made(
        self, chunks: Sequence[tuple[Json, Chunk]], position: Json, reference: Json
    ) -> Intake:
        starts: list[int] = []
        batches: list[Batch] = []
        rows = 0
        for version, chunk in chunks:
            starts.append(rows)
            batches.append(_decoded(chunk, version, rows, self._shape))
            rows += chunk.rows.num_rows
        schema = operations_schema(self._shape)
        operations = (
            pa.concat_tables([batch.operations for batch in batches])
            if batches
            else schema.empty_table()
        )
        change, numbers = fold_numbered(self._shape, operations)
        bad = _bad_rows([chunk for _, chunk in chunks], batches)
        told = partial(_told, list(chunks), starts, numbers)
        return Intake(self.name, self.table, change, rows, position, reference, bad, told)


def _decoded(chunk: Chunk, version: Json, first: int, shape: Shape) -> Batch:
    """The operations of a chunk; each row is its own record, numbered from `first` on."""
    columns = chunk.columns
    records = Records(
        columns,
        text=False,
        record=lambda at: record_at(columns, at),
        where=lambda at: chunk.where(version, at),
        shown=lambda at: json_row(columns, at, TEXT_MAX),
        number=lambda at: first + at,
        number_puts=True,
    )
    batch = batch_of(records, shape, ChangeFormat.ROWS)
    if not chunk.file.retracts:
        return batch
    place = len(shape.columns)
    operations = batch.operations
    deletes = pa.repeat(pa.scalar(False), operations.num_rows)
    operations = operations.set_column(place, operations.schema.field(place), deletes)
    return Batch(operations, batch.rows, batch.bad)


def _bad_rows(chunks: Sequence[Chunk], batches: Sequence[Batch]) -> tuple[BadRow, ...]:
    """The bad rows that were inserted. One that is retracted has never been in the table."""
    gone = Counter(
        bad.text
        for chunk, batch in zip(chunks, batches, strict=True)
        if chunk.file.retracts
        for bad in batch.bad
    )
    made = []
    for chunk, batch in zip(chunks, batches, strict=True):
        for bad in () if chunk.file.retracts else batch.bad:
            if gone[bad.text]:
                gone[bad.text] -= 1  # It was only copied from one file to another.
            else:
                made.append(bad)
    return tuple(made)


def _told(
    chunks: Sequence[tuple[Json, Chunk]],
    starts: Sequence[int],
    numbers: pa.ChunkedArray,
    places: Sequence[int],
) -> list[tuple[str, str | None]]:
    made: list[tuple[str, str | None]] = []
    for place in places:
        number = numbers[place].as_py()
        index = bisect_right(starts, number) - 1
        version, chunk = chunks[index]
        at = number - starts[index]
        made.append((chunk.where(version, at), json_row(chunk.columns, at, TEXT_MAX)))
    return made


def _span(reading: _Reading, first: int, found: Sequence[Chunk]) -> _Span:
    ranges: list[tuple[LakeFile, int, int]] = []
    if reading.net:
        ranges = [(file, 0, 0) for file in reading.change.files]
    else:
        for chunk in found:
            start, count = chunk.start, chunk.rows.num_rows
            if ranges and ranges[-1][0] == chunk.file:
                _, start, before = ranges.pop()
                count += before
            ranges.append((chunk.file, start, count))
    return _Span(
        reading.change.version,
        reading.net,
        first,
        reading.row - first,
        tuple(ranges),
        reading.columns,
        _sum(found),
    )


def _sum(chunks: Sequence[Chunk]) -> Checksum:
    return add_checksums(
        checksum_rows(chunk.columns, "delete" if chunk.file.retracts else "put") for chunk in chunks
    )


@contextmanager
def _named(source: str, version: Json, way_out: str) -> Iterator[None]:
    """Name the version whose data files cannot be read."""
    try:
        yield
    except StepwellError:
        raise
    except FileNotFoundError as error:
        raise ReplayMismatchError(
            f"source {source}: a data file of version {version} is gone: {error}", hint=way_out
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise UnavailableError(
            f"source {source} cannot read a data file of version {version}: {error}",
            hint="check the table, and the credentials of its store",
        ) from error
