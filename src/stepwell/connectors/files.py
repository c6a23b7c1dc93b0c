"""Files: a source that takes new files as they appear.

Files are taken in the order of their names, each once, large ones in several steps. They are
journaled by reference (`file_parts.py`), so files must stay until a checkpoint has passed them. A
new name that sorts before taken ones is taken too. The sink is in `files_sink.py`.

A position is `{files, names, open}`: the number of files taken, the digest of their names, and the
file that was taken in part. The engine stores the names themselves (`engine/taken_names.py`).
Number and digest must agree with the engine's, or a file could be taken twice, or never.

A name stays taken when its file is deleted: a temporarily unmounted directory looks the same, and
files that reappear must not be taken twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.connectors.bulk_files import (
    PARTS_MAX,
    READ_BYTES_MAX,
    FilesDecode,
    Reading,
    Span,
    parts_in,
    shares_of,
    spans_again,
    spans_of,
    task_bytes,
)
from stepwell.connectors.file_parts import (
    PLACE,
    FileListed,
    NotReadyError,
    Part,
    Piece,
    Place,
    Undecoded,
    changed,
    unavailable,
)
from stepwell.connectors.folding import AT, fold_numbered
from stepwell.connectors.formats import Batch, ChangeFormat
from stepwell.connectors.json_lines import joined
from stepwell.connectors.listing import Listing
from stepwell.connectors.settling import TICK_S, Settling
from stepwell.connectors.shape import shape_of
from stepwell.connectors.values import Unfit
from stepwell.connectors.writing import FileFormat
from stepwell.engine.ports import BulkRead, Intake, Limits, Names
from stepwell.engine.taken_names import TakenNames, add_digests, digest_of
from stepwell.env import Env
from stepwell.errors import ConfigError, CorruptError, StepwellError, UnavailableError
from stepwell.lsm.bulk import Staged
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import BadRow
from stepwell.sql.statements import Table
from stepwell.store.sealed import Fields, Json

_LEADS_OUT = "leads out of the folder: set follow_links: true to follow such links"
_FILES_MAX = 2_000
"""Maximum files in one step, to keep its reference small: some 150 bytes per file."""
_PART = 1 << 40
"""Multiplier that combines part and record number: record n of part p has number p * _PART + n."""
_WATCHED_MAX = 100
"""Number of recently taken files to watch for bytes that arrive too late."""


class UnknownColumns(Enum):
    """How to treat a record with a column that the table does not have."""

    BAD = "bad"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class _Begun:
    """A partly read file."""

    file: FileListed
    """The file as it was before that part was read."""
    at: int
    since: float
    """The time since which the file has been known in this state."""
    certain: bool
    """Whether any change since its first part would show, because its time is older than a tick."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """A position: the number and name digest of the files taken, and the partly read one."""

    files: int = 0
    names: int = 0
    open: Json = None

    @classmethod
    def after(cls, position: Json) -> _Standing:
        if position is None:
            return cls()
        try:
            return cls(int(position["files"]), int(position["names"], 16), position["open"])
        except (KeyError, TypeError, ValueError) as error:
            what = f"cannot be read: {error!r}"
            raise CorruptError("the position of a files source", what) from error

    def to_json(self, took: Collection[str], opened: Json) -> Json:
        """The position after some more files."""
        names = add_digests(self.names, digest_of(took))
        return {"files": self.files + len(took), "names": f"{names:032x}", "open": opened}

    def compare(self, source: str, files: int, names: int | None = None) -> None:
        """Raise `CorruptError` unless the engine knows the same files."""
        if files != self.files or names not in (None, self.names):
            raise CorruptError(
                f"the names that source {source} has taken",
                f"are {files:,} with digest {names or 0:032x}, but its position says "
                f"{self.files:,} with {self.names:032x}",
                hint="nothing was read: stepwell verify shows the damage",
            )


class FilesSource:
    """New files that match a pattern such as `data/orders/*.json`."""

    def __init__(
        self,
        name: str,
        table: Table,
        env: Env,
        *,
        path: str,
        format: FileFormat,
        changes: ChangeFormat = ChangeFormat.ROWS,
        delimiter: str = ",",
        unknown: UnknownColumns = UnknownColumns.BAD,
        settle_s: float = 1.0,
        follow_links: bool = False,
    ) -> None:
        self.name = name
        self.table = table.name
        self._env = env
        self._settling = Settling(env, settle_s)
        self._listing = Listing(path, env, follow_links=follow_links)
        self._shape = shape_of(table, ignore_unknown=unknown is UnknownColumns.IGNORE)
        if changes is ChangeFormat.DEBEZIUM and format is not FileFormat.JSON:
            raise ConfigError(f"source {name}: Debezium's events are JSON, not {format.value}")
        self._reading = Reading(format, self._shape, changes, delimiter)
        self._reader = self._reading.reader(prefixes=True)
        self._given: Json = None
        """The last position returned."""
        self._watched: OrderedDict[str, int] = OrderedDict()
        """The sizes of the files taken last."""
        self._taking: dict[str, int] = {}
        """Files to watch as well, once the engine confirms that they were taken."""
        self._quiet: tuple[Json, int] | None = None
        """The position after which a folder held nothing more, and its modification time."""
        self._begun: _Begun | None = None
        """The partly read file, as it was then."""
        self._passed_over = False
        self._failed: UnavailableError | None = None
        """The reason why a file skipped at the last poll could not be read."""
        self._idle: list[str] = []
        """What is without rows: empty files, links to nothing."""
        self._left: tuple[Json, list[str]] = (None, [])
        """A position returned, and the new names remaining from the listing before it."""
        self._new: list[str] = []
        """The new names seen by the last poll."""
        self._reached = 0
        """How many of them the poll has reached."""
        self._lag = 0
        """How many of them it did not take."""
        self._ahead: list[str] | None = None
        """The new names in a listing that the current poll has already made."""
        self._few: frozenset[str] = frozenset()
        """Names of files that were too small for a bulk read."""

    def poll(self, after: Json, limits: Limits) -> Intake | BulkRead | None:
        """Take the first files; to continue, `poll_new` must know which files were taken."""
        return self.poll_new(after, limits, TakenNames(self.name))

    def poll_new(self, after: Json, limits: Limits, taken: Names) -> Intake | BulkRead | None:
        self._watch(after, taken)
        standing = _Standing.after(after)
        standing.compare(self.name, taken.count)
        grown, changed_ns = self._grown(), self._listing.changed_ns()
        if not grown and self._quiet == (after, changed_ns):
            return None
        opened = standing.open
        self._ahead = None
        if limits.bulk_bytes is not None and opened is None and not grown:
            read = self._bulk(after, standing, taken, limits.bulk_bytes)
            if read is not None:
                return read
        took: dict[str, None] = {}
        parts: list[Part] = []
        batches: list[Batch | Undecoded] = []
        rows, size = limits.rows_max, limits.bytes_max
        self._failed, self._idle = None, []
        for file, start in self._waiting(after, standing, taken, took):
            place: Place | None = start
            before, prefix = len(parts), ""
            try:
                while place is not None and rows > 0 and size > 0 and len(parts) < _FILES_MAX:
                    settled = self._settling.is_settled(file)
                    piece = self._take(file, place, rows, size, settled=settled)
                    parts.append(piece.part)
                    batches.append(piece.batch)
                    rows -= max(piece.batch.rows, 1)
                    size -= max(piece.size, 1)
                    place, prefix = piece.next, piece.prefix
                if len(parts) > before + (start == Place()):
                    self._check_same(file, parts, prefix)
            except NotReadyError:
                self._settling.look(file)
                if place == Place():
                    continue
            except FileNotFoundError:
                if place == Place():
                    continue
            except OSError as error:
                # A user can grant permission to read it. Until then, continue with the other files.
                self._failed = self._failed or unavailable(file.name, error)
                if place == Place():
                    continue
            if place is not None:
                # Partly read; continue with it before any other file.
                if parts and parts[-1].name == file.name:
                    part = parts[-1].to_json()
                    opened = {**PLACE.write(place), "prefix": prefix, "part": part}
                    self._note_begun(file, place.at)
                break
            opened = None
            took[file.name] = None
            self._settling.forget(file.name)
            self._taking[file.name] = file.size
            if rows <= 0 or size <= 0 or len(parts) >= _FILES_MAX:
                break
        self._lag = len(self._new) - sum(name in took for name in self._new[: self._reached])
        if not parts and not grown and self._failed is not None:
            self._quiet = None
            raise self._failed
        if not parts and not grown:
            # A skipped file may become ready without a change of the folder.
            certain = changed_ns is not None and not self._passed_over
            self._quiet = (after, changed_ns or 0) if certain else None
            return None
        names = tuple(took)
        self._given = position = standing.to_json(names, opened)
        self._left = (position, self._new[self._reached :])
        reference = {"parts": [part.to_json() for part in parts], "grown": grown}
        return replace(self._made(batches, grown, position, reference), names=names)

    def waiting(self) -> str | None:
        left, links = self._lag, self._listing.left_alone
        if links and left == len(self._idle):
            return f"{links[0]} {_LEADS_OUT}"
        why = [self._failed.message] if self._failed is not None else self._idle
        shown = f": {why[0]}" if self._failed is not None or 0 < left == len(why) else ""
        return f"{left:,} file{'s' if left > 1 else ''} waiting{shown}" if left else None

    def lag(self) -> Mapping[str, int]:
        """The number of files that wait."""
        return {"": self._lag}

    def settles_in_s(self, since: float) -> float | None:
        return self._settling.wait_s()

    def read(self, reference: Json) -> Intake:
        parts = [Part.from_json(part) for part in reference["parts"]]
        batches = [self._reader.again(part, self._listing.folder / part.name) for part in parts]
        return self._made(batches, reference["grown"], None, reference)

    def close(self) -> None:
        self._reader.close()

    def read_bulk(self, reference: Json, bytes_min: int) -> BulkRead | None:
        parts = [Part.from_json(part) for part in reference["parts"]]
        files = [self._listing.find(part.name) for part in parts]
        found = [file for file in files if file is not None]
        if self._reading.changes is not ChangeFormat.ROWS or len(found) < len(files):
            return None
        spans = spans_again(parts, found, self._reader.unit == "line")
        if not spans or sum(span.size for span in spans) < bytes_min:
            return None

        decode, late = FilesDecode(self._reading, shares_of(spans)), _late(reference["grown"])

        def intake(staged: Staged) -> Intake:
            bad = (*decode.located(staged)[1], *late)
            change, rows = Change(staged=staged.rows), staged.read + len(late)
            return Intake(self.name, self.table, change, rows, None, reference, bad)

        return BulkRead(decode, intake)

    def _bulk(
        self, after: Json, standing: _Standing, taken: Names, bytes_min: int
    ) -> BulkRead | None:
        """The files to read in bulk; None if they are too few, or have to be read step by step."""
        if self._reading.changes is not ChangeFormat.ROWS:
            return None  # The order of puts and deletes of one key matters.
        position, left = self._left
        if left and position == after:
            names = taken.missing(left[:_FILES_MAX])
        else:
            self._ahead = left = self._listed(standing, taken)
            names = left[:_FILES_MAX]
        if names and names[0] in self._few:
            return None
        files = list(self._whole_files(names))
        if sum(file.size for file in files) < bytes_min:
            self._few = frozenset(names)
            return None
        spans: list[Span] = []
        chosen: list[FileListed] = []
        wanted = task_bytes(sum(file.size for file in files))
        for file in files:
            settled = self._settling.is_settled(file)
            more = spans_of(file, self._reading, wanted, settled=settled)
            if more is None:
                continue
            if spans and parts_in((*spans, *more)) > PARTS_MAX:
                break
            chosen.append(file)
            spans += more
        if sum(file.size for file in chosen) < bytes_min:
            return None

        def read(decode: FilesDecode) -> BulkRead:
            def intake(staged: Staged) -> Intake:
                self._lag = len(left) - len(chosen)
                return self._bulk_intake(decode, staged, standing, chosen)

            unsplit = decode.unsplit()
            return BulkRead(decode, intake, None if unsplit is None else read(unsplit))

        return read(FilesDecode(self._reading, shares_of(spans)))

    def _whole_files(self, names: Sequence[str]) -> Iterator[FileListed]:
        """Files that are ready to be taken as a whole."""
        size = 0
        for name in names:
            if self._listing.is_unreadable(name) or size >= READ_BYTES_MAX:
                return
            with suppress(OSError, UnavailableError):  # Left to a step, which reports it.
                file = self._listing.find(name)
                if file is not None and file.size and self._is_ready(file):
                    yield file
                    size += file.size

    def _bulk_intake(
        self,
        decode: FilesDecode,
        staged: Staged,
        standing: _Standing,
        files: Sequence[FileListed],
    ) -> Intake:
        for file in files:
            if self._listing.find(file.name) != file:
                raise UnavailableError(
                    f"{file.name} was changed while it was read",
                    hint="it is read again in a moment",
                )
        names = tuple(file.name for file in files)
        for file in files:
            self._settling.forget(file.name)
            self._taking[file.name] = file.size
        self._given = position = standing.to_json(names, None)
        self._few = frozenset()
        parts, bad = decode.located(staged)
        change, reference = Change(staged=staged.rows), {"parts": list(parts), "grown": []}
        return Intake(
            self.name, self.table, change, staged.read, position, reference, bad, names=names
        )

    def _take(
        self, file: FileListed, place: Place, rows: int, size: int, *, settled: bool
    ) -> Piece:
        if not self._listing.is_unreadable(file.name):
            return self._reader.take(file, place, rows, size, settled=settled)
        wrong = "the name of this file is not UTF-8, and cannot be recorded: rename it"
        part = Part(file.name, file.size, file.mtime_ns, 0, 0, 1, "", wrong)
        return Piece(part, self._reader.again(part, file.path), None, 0)

    def _made(
        self, found: list[Batch | Undecoded], grown: list[Json], position: Json, reference: Json
    ) -> Intake:
        parts = tuple(Part.from_json(part) for part in reference["parts"])
        batches = [_numbered(batch, part) for part, batch in self._reader.decode(found)]
        batch = joined(batches, self._shape)
        late = _late(grown)
        change, numbers = fold_numbered(self._shape, batch.operations)
        bad = (*batch.bad, *late)
        told = partial(self._told, parts, numbers)
        return Intake(
            self.name, self.table, change, batch.rows + len(late), position, reference, bad, told
        )

    def _told(
        self, parts: Sequence[Part], numbers: pa.ChunkedArray, places: Sequence[int]
    ) -> list[tuple[str, str | None]]:
        """The positions of records that delete rows, and their text, read again."""
        records = [divmod(numbers[place].as_py(), _PART) for place in places]
        texts: dict[tuple[int, int], str | None] = {}
        for number in sorted({number for number, _ in records}):
            lines = sorted({line for at, line in records if at == number})
            part = parts[number]
            with suppress(StepwellError, OSError, Unfit, pa.ArrowException):
                # A file deleted meanwhile cannot be replayed either; the row itself serves instead.
                found = self._reader.texts(part, self._listing.folder / part.name, lines)
                texts |= {(number, line): text for line, text in zip(lines, found, strict=True)}
        return [
            (f"{parts[at].name}, {self._reader.unit} {line}", texts.get((at, line)))
            for at, line in records
        ]

    def _names(
        self, after: Json, standing: _Standing, taken: Names, took: Collection[str]
    ) -> Iterator[str]:
        """Names of files not taken yet: the rest of the last listing, then a new listing.

        A listing costs time for every existing file. Most steps of a large backlog continue where
        the previous one ended, so the total cost of all steps is linear in its size, not quadratic.
        """
        position, left = self._left
        if left and position == after:
            yield from self._counted(left, taken)
        new = self._listed(standing, taken) if self._ahead is None else self._ahead
        yield from self._counted([name for name in new if name not in took])

    def _listed(self, standing: _Standing, taken: Names) -> list[str]:
        """The new names of a listing."""
        names = self._listing.names()
        self._settling.forget_others(names)
        new = taken.missing(names)
        standing.compare(self.name, taken.count, taken.digest())
        taken.forget_others(names)
        return new

    def _counted(self, names: list[str], taken: Names | None = None) -> Iterator[str]:
        """Yield the names, counting those reached by the poll; `taken` filters them, if given."""
        self._new = names
        self._reached = 0
        for start in range(0, len(names), _FILES_MAX):
            some = names[start : start + _FILES_MAX]
            untaken = None if taken is None else set(taken.missing(some))
            for place, name in enumerate(some, start + 1):
                self._reached = place
                if untaken is None or name in untaken:
                    yield name

    def _waiting(
        self, after: Json, standing: _Standing, taken: Names, took: Collection[str]
    ) -> Iterator[tuple[FileListed, Place]]:
        """Files to take and where to start: the partly read one, then new ones by name."""
        opened = standing.open
        self._passed_over = opened is not None
        if opened is not None:
            yield self._reopen(opened), PLACE.read(Fields(opened, self.name))
        for name in self._names(after, standing, taken, took):
            if opened is not None and name == opened["part"][0]:
                continue
            self._passed_over = True
            try:
                file = self._listing.find(name)
            except UnavailableError as error:
                self._failed = self._failed or error
                continue
            if file is None or not file.size:
                why = "is empty" if file else "is not a file, or links to none"
                self._idle.append(f"{name} {why}")
                continue
            try:
                ready = self._listing.is_unreadable(name) or self._is_ready(file)
            except FileNotFoundError:
                continue
            except OSError:
                ready = True  # Taking it fails as well, and reports the reason.
            if ready:
                yield file, Place()

    def _reopen(self, opened: Json) -> FileListed:
        """The partly read file, checked to still start with the content taken.

        Size and modification time prove nothing: `cp -p` and `rsync` set both. The status change
        time does, once it is older than a tick. Until then, and in a new process, all the content
        taken is compared. For a file that only grew, only its last part is compared: comparing all
        of it at every step would take time quadratic in its size.
        """
        part, at = Part.from_json(opened["part"]), opened["at"]
        file = self._listing.find(part.name)
        if file is None:
            raise changed(part, "is gone")
        begun, now = self._begun, self._env.uptime()
        known = begun is not None and (begun.file.name, begun.at) == (file.name, at)
        same = known and begun is not None and begun.file == file
        if same and begun is not None and begun.certain:
            return file
        if known and begun is not None and file.grew_from(begun.file):
            self._reader.again(part, file.path)
        else:
            self._compare(file, part, at, opened["prefix"])
        since = begun.since if same and begun is not None else now
        self._begun = _Begun(file, at, since, certain=same and now - since > TICK_S)
        return file

    def _compare(self, file: FileListed, part: Part, at: int, prefix: str) -> None:
        """Compare the content taken of a file with its present content."""
        try:
            found = self._reader.prefix(file, at)
        except FileNotFoundError:
            raise changed(part, "is gone") from None
        except (OSError, pa.ArrowException) as error:
            if getattr(error, "errno", None) is not None:
                raise unavailable(part.name, error) from error
            raise changed(part, f"can no longer be read ({error})") from error
        if found != prefix:
            self._reader.again(part, file.path)  # This may raise a more precise error.
            raise changed(part, "was changed")

    def _check_same(self, file: FileListed, parts: list[Part], prefix: str) -> None:
        """Check that a file was not replaced between the parts that this poll has taken."""
        now = self._listing.find(file.name)
        if now is None or now == file or not prefix:
            return  # It cannot be compared, or is unchanged.
        if self._reader.prefix(now, parts[-1].end) != prefix:
            raise UnavailableError(
                f"{file.name} was changed while it was read", hint="it is read again in a moment"
            )

    def _note_begun(self, file: FileListed, at: int) -> None:
        begun = self._begun
        if begun is not None and begun.file == file:
            self._begun = replace(begun, at=at)
        else:
            self._begun = _Begun(file, at, self._env.uptime(), certain=False)

    def _is_ready(self, file: FileListed) -> bool:
        """Whether a file is complete, as far as can be told without taking it.

        A file that once looked incomplete is being written in place. A complete last line at the
        next check is then not enough: the file has to settle.
        """
        if not self._settling.is_observed(file.name) and self._reader.ends_whole(file):
            return True
        settled = self._settling.look(file)
        return settled or (self._reader.proves_whole(file) and self._reader.ends_whole(file))

    def _watch(self, after: Json, taken: Names) -> None:
        if after is not None and after == self._given:
            self._watched.update(self._taking)
            while len(self._watched) > _WATCHED_MAX:
                self._watched.popitem(last=False)
        elif self._watched:
            # A restore may have undone the taking of files: these are taken again as a whole.
            for name in taken.missing(list(self._watched)):
                del self._watched[name]
        self._taking = {}

    def _grown(self) -> list[Json]:
        """Files that grew after they were taken: name, old size, new size."""
        grown: list[Json] = []
        for name, size in self._watched.items():
            try:
                file = self._listing.find(name)
            except UnavailableError:
                continue  # It was taken already and is no longer needed.
            if file is not None and file.size > size:
                grown.append([name, size, file.size])
                self._taking[name] = file.size
        return grown


def _late(grown: list[Json]) -> list[BadRow]:
    return [
        BadRow(
            name,
            f"grew from {old} to {new} bytes after it was read; the added bytes are ignored",
            "",
        )
        for name, old, new in grown
    ]


def _numbered(batch: Batch, part: int) -> Batch:
    """The batch with its numbers of deleting records made unique within the step."""
    last = batch.operations.num_columns - 1
    numbers = batch.operations.column(last)
    if not part or numbers.null_count == len(numbers):
        return batch
    moved = pc.add(numbers, part * _PART)
    return replace(batch, operations=batch.operations.set_column(last, AT, moved))
