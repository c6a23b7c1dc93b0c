"""Parts of files: the portion of a file that a step takes, and how to read it again.

A part is a range of bytes (of rows, in Parquet) with a checksum of its content. The file's size and
time are recorded for people only; the checksum decides. A file that was only touched, copied back,
or extended after the part therefore still gives the same rows. A file that was changed, truncated
or deleted raises a `ReplayMismatchError` that names it (J8).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import xxhash

from stepwell.connectors.csv_lines import decode_csv, read_header
from stepwell.connectors.folding import operations_schema
from stepwell.connectors.formats import Batch, ChangeFormat
from stepwell.connectors.json_lines import decode_json, joined
from stepwell.connectors.lines import (
    TOO_LONG,
    Stream,
    cut_records,
    records_of,
    skip_line,
    take_cut,
)
from stepwell.connectors.shape import Shape
from stepwell.connectors.values import Unfit
from stepwell.errors import NotApplicable, ReplayMismatchError, UnavailableError
from stepwell.lsm.dead_letter import BadRow, own_text
from stepwell.model import checksum
from stepwell.store import records
from stepwell.store.sealed import Json

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_MARK = b"\xef\xbb\xbf"
_BLOCK = 1 << 20
_SMALL = 1 << 16
"""Maximum bytes of a file that is read at once and decoded together with others."""
_TOGETHER = 1 << 23
"""Bytes to decode at once."""


@dataclass(frozen=True, slots=True)
class FileListed:
    """A file as it is now."""

    name: str
    path: Path
    size: int
    mtime_ns: int
    identity: tuple[int, int, int]
    """Device, inode, and status change time, which cannot be set back."""

    @classmethod
    def at(cls, name: str, path: Path) -> FileListed:
        return cls.of(name, path, path.stat())

    @classmethod
    def of(cls, name: str, path: Path, status: os.stat_result) -> FileListed:
        identity = (status.st_dev, status.st_ino, status.st_ctime_ns)
        return cls(name, path, status.st_size, status.st_mtime_ns, identity)

    def grew_from(self, earlier: FileListed) -> bool:
        """Whether it appears to be the same file, only longer."""
        return self.identity[:2] == earlier.identity[:2] and self.size > earlier.size


@dataclass(frozen=True, slots=True)
class Part:
    """The part taken of a file. `line` is the number of its first line, or row."""

    name: str
    size: int
    mtime_ns: int
    start: int
    end: int
    line: int
    checksum: str
    wrong: str | None = None
    """The reason why the part is not a record, if it is not."""
    rest: bool | None = None
    """Whether it is the rest of an overlong record, which yields nothing more."""

    def to_json(self) -> Json:
        """A list in field order, for compactness: a journal entry may hold thousands."""
        values = list(astuple(self))
        while values[-1] is None:
            values.pop()
        return values

    @classmethod
    def from_json(cls, fields: Json) -> Part:
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class Place:
    """The start of a part: the offset of a byte or a row, and the line number."""

    at: int = 0
    line: int = 0
    inside: bool = False
    """Whether it is inside an overlong record, whose rest is to be skipped."""


PLACE = records.Record(
    Place, at=records.number, line=records.number, inside=records.omitted(records.flag)
)


@dataclass(frozen=True, slots=True)
class Undecoded:
    """All records of a small file, to be decoded together with those of other small files."""

    part: Part
    header: tuple[str, ...]
    data: bytes
    rows: int
    """Upper bound on the number of records."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part with its rows, and the start of the next one; None at the end of the file."""

    part: Part
    batch: Batch | Undecoded
    next: Place | None
    size: int
    """Number of bytes read for it."""
    prefix: str = ""
    """A checksum of the file up to the end of this part, covering all parts taken so far."""


class NotReadyError(NotApplicable):
    """The file ends in the middle of a record, and may still be being written."""


class PartReader(Protocol):
    """Reads files of one format."""

    unit: str
    """The unit in which records are counted: lines, or rows."""

    def ends_whole(self, file: FileListed) -> bool:
        """Whether the file looks complete; if not, it is given time to become so."""

    def proves_whole(self, file: FileListed) -> bool:
        """Whether a file that `ends_whole` cannot be a prefix of a longer one."""

    def take(
        self, file: FileListed, place: Place, rows_max: int, bytes_max: int, *, settled: bool
    ) -> Piece:
        """The next part; raises `NotReadyError` if it is unreadable and the file is not settled."""

    def again(self, part: Part, path: Path) -> Batch | Undecoded:
        """Read a taken part again; raises `ReplayMismatchError` if its rows are gone."""

    def decode(self, found: Sequence[Batch | Undecoded]) -> list[tuple[int, Batch]]:
        """Decode parts in order; each batch comes with the number of its part.

        Several parts may be combined in one batch if none of them deletes a row.
        """

    def texts(self, part: Part, path: Path, numbers: Sequence[int]) -> list[str | None]:
        """The text of some lines, or rows, of a part; raises as `again` does."""

    def prefix(self, file: FileListed, end: int) -> str:
        """The checksum of the file's present content up to an offset, as in `Piece.prefix`.

        Raises `OSError` or `ArrowException` if the content cannot be read.
        """

    def close(self) -> None: ...


def no_rows(shape: Shape, bad: BadRow | None = None) -> Batch:
    empty = operations_schema(shape).empty_table()
    return Batch(empty, 0) if bad is None else Batch(empty, 1, (bad,))


def place_of(name: str, unit: str, number: int) -> str:
    """The position of a record in messages; for input without a name, just its number."""
    return f"{name}, {unit} {number}" if name else f"{unit} {number}"


def renumbered(bad: BadRow, name: str, unit: str, by: int) -> BadRow:
    """A rejected record of this input with `by` added to its number; one of another as it is.

    >>> renumbered(BadRow("a.csv, line 7", "", ""), "a.csv", "line", 30).where
    'a.csv, line 37'
    """
    prefix = place_of(name, unit, 0)[:-1]
    number = bad.where.removeprefix(prefix)
    if not bad.where.startswith(prefix) or not number.isdecimal():
        return bad
    return replace(bad, where=place_of(name, unit, int(number) + by))


def changed(part: Part, problem: str) -> ReplayMismatchError:
    unit = "rows" if part.name.endswith(".parquet") else "bytes"
    return ReplayMismatchError(
        f"{part.name} {problem}: {unit} {part.start} to {part.end} of it were read when it had "
        f"{part.size} bytes",
        hint="a file must not change once it was read: restore it",
    )


class TextParts:
    """JSON lines and CSV, compressed or not. Offsets refer to the uncompressed text."""

    unit = "line"

    def __init__(
        self, shape: Shape, changes: ChangeFormat, *, delimiter: str | None, prefixes: bool = True
    ) -> None:
        """Without `prefixes` no piece has one, so that nothing before it is read."""
        self._prefixes = prefixes
        self._shape = shape
        self._changes = changes
        self._delimiter = delimiter
        self._stream: tuple[object, Stream] | None = None
        """The last stream read, positioned where the next part most likely begins."""
        self._hashed: tuple[str, int, xxhash.xxh3_128] | None = None
        """A file, an offset in it, and the hash of the content taken up to there."""
        self._small: tuple[FileListed, bytes] | None = None
        """A small file that was read to check its end; it is taken next without another read."""

    def ends_whole(self, file: FileListed) -> bool:
        if file.path.suffix in COMPRESSIONS:
            return True  # Only reading it shows that; `take` does.
        with open(file.path, "rb") as opened:
            if file.size > _SMALL:
                opened.seek(max(0, file.size - _BLOCK))
            tail = opened.read(_BLOCK)
        self._small = (file, tail) if file.size <= _SMALL else None
        if tail.endswith(b"\n") or self._delimiter is not None:
            return tail.endswith(b"\n")
        try:  # No proper prefix of an object is itself an object.
            return isinstance(json.loads(tail[tail.rfind(b"\n") + 1 :]), dict)
        except (ValueError, RecursionError):
            return False

    def proves_whole(self, file: FileListed) -> bool:
        return file.path.suffix in COMPRESSIONS  # `take` reads the end of the compressed data.

    def begin(self, file: FileListed) -> Place:
        """The place of the first record; raises `Unfit` if the header cannot be read."""
        head, _ = self._head(file)
        return Place(len(head), 1 if self._delimiter is None else 2)

    def take(
        self, file: FileListed, place: Place, rows_max: int, bytes_max: int, *, settled: bool
    ) -> Piece:
        try:
            return self._take(file, place, rows_max, bytes_max, settled=settled)
        finally:
            self._small = None

    def _take(
        self, file: FileListed, place: Place, rows_max: int, bytes_max: int, *, settled: bool
    ) -> Piece:
        if place.inside:
            return self._skip(file, place, bytes_max, settled=settled)
        try:
            head, header = self._head(file)
        except Unfit as unfit:
            if not settled and unfit.cut_off:
                raise NotReadyError from unfit
            return self._given_up(file, place.at, place.line, f"not CSV: {unfit}")
        start = max(place.at, len(head))
        line = max(place.line, 1 if self._delimiter is None else 2)
        with self._reading(file, start) as stream:
            cut = cut_records(stream, rows_max, bytes_max, delimiter=self._delimiter)
            if stream.error is not None and not settled:
                raise NotReadyError from stream.error
            if stream.error is not None and cut.length == 0 and cut.wrong is None:
                return self._given_up(file, start, line, f"cannot be decompressed: {stream.error}")
            data = take_cut(stream, cut)
            over = not stream.look(1) and stream.error is None
        end, digest = start + len(data), checksum([head, data])
        part = Part(file.name, file.size, file.mtime_ns, start, end, line, digest, cut.wrong)
        batch: Batch | Undecoded
        if over and start == len(head) and _is_plain(part, data):
            batch = Undecoded(part, header, data, cut.lines)
        else:
            batch = self._decode(part, header, data)
        following = None if over else Place(end, line + cut.lines, cut.inside)
        if not self._prefixes:
            return Piece(part, batch, following, len(data))
        hashed = self._hash(file, start, head)
        hashed.update(data)
        return Piece(part, batch, following, len(data), self._note(file, end, hashed))

    def _skip(self, file: FileListed, place: Place, bytes_max: int, *, settled: bool) -> Piece:
        """Skip the rest of an overlong record, or some of it, one block at a time."""
        start, line = place.at, place.line
        hashed, digest, block = self._hash(file, start, None), xxhash.xxh3_128(), b""
        end = start
        with self._reading(file, start) as stream:
            for block in skip_line(stream, bytes_max):
                hashed.update(block)
                digest.update(block)
                end += len(block)
            if stream.error is not None and not settled:
                raise NotReadyError from stream.error
            if stream.error is not None and end == start:
                return self._given_up(file, start, line, f"cannot be decompressed: {stream.error}")
            over = not stream.look(1) and stream.error is None
        part = Part(
            *(file.name, file.size, file.mtime_ns, start, end, line),
            *(digest.hexdigest(), TOO_LONG, True),
        )
        ended = block.endswith(b"\n")
        following = None if over else Place(end, line + ended, inside=not ended)
        prefix = self._note(file, end, hashed)
        return Piece(part, no_rows(self._shape), following, end - start, prefix)

    def _hash(self, file: FileListed, start: int, head: bytes | None) -> xxhash.xxh3_128:
        """The hash of the content taken of a file before an offset."""
        if not self._prefixes:
            return xxhash.xxh3_128()
        if head is not None and start == len(head):
            return xxhash.xxh3_128(head)
        if self._hashed is not None and self._hashed[:2] == (file.name, start):
            made: xxhash.xxh3_128 = self._hashed[2].copy()
            return made
        return _hash_of(file.path, start)

    def _note(self, file: FileListed, end: int, hashed: xxhash.xxh3_128) -> str:
        self._hashed = (file.name, end, hashed)
        return str(hashed.hexdigest())

    def prefix(self, file: FileListed, end: int) -> str:
        made = _hash_of(file.path, end)
        self._hashed = (file.name, end, made)
        return made.hexdigest()

    def again(self, part: Part, path: Path) -> Batch | Undecoded:
        if part.start == part.end and part.wrong is not None:
            return self._decode(part, (), b"")
        try:
            now = FileListed.at(part.name, path)
            if part.rest:
                return self._skip_again(part, now)
            header, data, whole = self._data_again(part, now)
        except FileNotFoundError:
            raise changed(part, "is gone") from None
        except (Unfit, pa.ArrowInvalid) as error:
            raise changed(part, f"can no longer be read ({error})") from error
        except OSError as error:
            if error.errno is None:
                raise changed(part, f"can no longer be read ({error})") from error
            raise unavailable(part.name, error) from error
        if whole and _is_plain(part, data):
            return Undecoded(part, header, data, data.count(b"\n"))
        return self._decode(part, header, data)

    def texts(self, part: Part, path: Path, numbers: Sequence[int]) -> list[str | None]:
        _, data, _ = self._data_again(part, FileListed.at(part.name, path))
        records = {part.line + at: line for at, line in records_of(data, self._delimiter)}
        return [own_text(records[n]) if n in records else None for n in numbers]

    def _data_again(self, part: Part, now: FileListed) -> tuple[tuple[str, ...], bytes, bool]:
        """The header, the verified content of a part, and whether it is the first of its file."""
        if now.size <= _SMALL and now.path.suffix not in COMPRESSIONS:
            self._small = (now, now.path.read_bytes())
        try:
            head, header = self._head(now)
            with self._reading(now, part.start) as stream:
                data = stream.take(part.end - part.start)
        finally:
            self._small = None
        if len(data) < part.end - part.start:
            raise changed(part, f"was truncated after {part.start + len(data)} bytes")
        if checksum([head, data]) != part.checksum:
            raise changed(part, "was changed")
        return header, data, part.start == len(head)

    def decode(self, found: Sequence[Batch | Undecoded]) -> list[tuple[int, Batch]]:
        batches: list[tuple[int, Batch]] = []
        files: list[tuple[int, Undecoded]] = []
        size = 0
        for part, item in enumerate(found):
            if isinstance(item, Batch):
                batches += [*self._decode_together(files), (part, item)]
                files, size = [], 0
                continue
            if files and (item.header != files[0][1].header or size >= _TOGETHER):
                batches += self._decode_together(files)
                files, size = [], 0
            files.append((part, item))
            size += len(item.data)
        return batches + self._decode_together(files)

    def _decode_together(self, files: list[tuple[int, Undecoded]]) -> list[tuple[int, Batch]]:
        """Decode small files as if they were one, which is much faster.

        Each ends with a line end outside of quotes, so no record reaches into the next file. If a
        record is bad, bisection finds its file, so that the dead letter can name it. Files that may
        delete rows are decoded one by one, because the position of each delete must be known.
        """
        if len(files) < 2 or self._changes is not ChangeFormat.ROWS:
            return [(n, self._decode(file.part, file.header, file.data)) for n, file in files]
        with suppress(Exception):  # Libraries may raise anything on malformed bytes.
            data = b"".join(file.data for _, file in files)
            batch = self._decode_records("", 1, files[0][1].header, data)
            if not batch.bad:
                return [(files[0][0], batch)]
        half = len(files) // 2
        return self._decode_together(files[:half]) + self._decode_together(files[half:])

    def _skip_again(self, part: Part, file: FileListed) -> Batch:
        digest, left = xxhash.xxh3_128(), part.end - part.start
        with self._reading(file, part.start) as stream:
            while left > 0 and (block := stream.take(min(_BLOCK, left))):
                digest.update(block)
                left -= len(block)
        if left:
            raise changed(part, f"was truncated after {part.end - left} bytes")
        if digest.hexdigest() != part.checksum:
            raise changed(part, "was changed")
        return no_rows(self._shape)

    def close(self) -> None:
        if self._stream is not None:
            self._stream[1].close()
            self._stream = None

    def _given_up(self, file: FileListed, start: int, line: int, reason: str) -> Piece:
        part = Part(file.name, file.size, file.mtime_ns, start, start, line, "", reason)
        return Piece(part, self._decode(part, (), b""), None, 0)

    def _decode(self, part: Part, header: tuple[str, ...], data: bytes) -> Batch:
        if part.wrong is not None:
            bad = BadRow(place_of(part.name, self.unit, part.line), part.wrong, own_text(data))
            return no_rows(self._shape, bad)
        return self.decode_safely(part.name, part.line, header, data)

    def decode_safely(self, name: str, line: int, header: tuple[str, ...], data: bytes) -> Batch:
        """Decode complete records into rows; undecodable ones become dead letters. Never raises."""
        try:
            return self._decode_records(name, line, header, data)
        except Exception:  # noqa: BLE001 - libraries may raise anything on malformed bytes
            return joined(list(self._decode_each(name, line, header, data)), self._shape)

    def _decode_each(
        self, name: str, line: int, header: tuple[str, ...], data: bytes
    ) -> Iterator[Batch]:
        """Decode record by record after a failure; a record that fails again is bad."""
        yield no_rows(self._shape)
        for number, record in records_of(data, self._delimiter):
            try:
                yield self._decode_records(name, line + number, header, record)
            except Exception as error:  # noqa: BLE001 - see above
                reason = f"cannot be read: {type(error).__name__}: {error}"
                where = place_of(name, self.unit, line + number)
                yield no_rows(self._shape, BadRow(where, reason, own_text(record)))

    def _decode_records(self, name: str, line: int, header: tuple[str, ...], data: bytes) -> Batch:
        if not data.strip():
            return no_rows(self._shape)
        if self._delimiter is None:
            return decode_json(data, self._shape, self._changes, name=name, first_line=line)
        return decode_csv(
            data,
            header,
            self._shape,
            self._changes,
            delimiter=self._delimiter,
            name=name,
            first_line=line,
        )

    def _head(self, file: FileListed) -> tuple[bytes, tuple[str, ...]]:
        """The bytes before the first record (byte order mark, CSV header), and the columns."""
        small = self._small_file(file)
        opened = _opened(file.path) if small is None else small
        stream = Stream(opened, 0, None if file.path.suffix in COMPRESSIONS else file.size)
        try:
            mark = _MARK if stream.look(len(_MARK)).startswith(_MARK) else b""
            if self._delimiter is None:
                return mark, ()
            stream.take(len(mark))
            cut = cut_records(stream, 1, _BLOCK, delimiter=self._delimiter)
            if cut.wrong is not None:
                raise Unfit(f"the header cannot be read: {cut.wrong}")
            line = take_cut(stream, cut)
            if stream.error is not None and not line.endswith(b"\n"):
                raise Unfit(f"cannot be decompressed: {stream.error}", cut_off=True)
            return mark + line, read_header(line, self._delimiter)
        finally:
            stream.close()

    @contextmanager
    def _reading(self, file: FileListed, start: int) -> Iterator[Stream]:
        """Open the text at an offset. A compressed stream is kept open, because reaching the next
        offset again would mean decompressing everything before it.
        """
        if file.path.suffix not in COMPRESSIONS:
            small = self._small_file(file)
            with open(file.path, "rb") if small is None else small as opened:
                opened.seek(start)
                yield Stream(opened, start, max(file.size, start))
            return
        if self._stream is not None and self._stream[0] == (file, start):
            stream, self._stream = self._stream[1], None
        else:
            self.close()
            stream = Stream(_opened(file.path))
            while stream.at < start and stream.take(min(_BLOCK, start - stream.at)):
                pass
        try:
            yield stream
        except BaseException:
            stream.close()
            raise
        self._stream = ((file, stream.at), stream)

    def _small_file(self, file: FileListed) -> BinaryIO | None:
        """A small file that was just read."""
        if self._small is None or self._small[0] != file:
            return None
        return BytesIO(self._small[1])


def _is_plain(part: Part, data: bytes) -> bool:
    """Whether the data is complete records, to which another file's records can be appended."""
    return part.wrong is None and len(data) <= _SMALL and data.endswith(b"\n")


def _hash_of(path: Path, end: int) -> xxhash.xxh3_128:
    """The hash of a file's text up to an offset, or to its end if that comes first."""
    made = xxhash.xxh3_128()
    with _opened(path) as opened:
        left = end
        while left > 0 and (block := opened.read(min(_BLOCK, left))):
            made.update(block)
            left -= len(block)
    return made


def unavailable(name: str, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"{name} cannot be read: {error.strerror or error}", hint="check its permissions"
    )


def _opened(path: Path) -> BinaryIO:
    compression = COMPRESSIONS.get(path.suffix)
    if compression is None:
        return open(path, "rb")
    stream: BinaryIO = pa.CompressedInputStream(pa.OSFile(str(path)), compression)
    return stream
