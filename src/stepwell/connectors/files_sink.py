"""Files: a sink that writes a folder for each transaction.

    <path>/<transaction>/part.json            the change set: the view's columns and `_w`
    <path>/<transaction>/_transaction.json    its mark, which identifies the transaction
    <path>/_stepwell/<sequence>.json          the same file, by a hard link: the log of marks

A write has four steps:

    1 stage     write rows and mark into a hidden folder, and sync everything
    2 commit    link the mark to the next number of the log: THE COMMIT, which fails if the
                number is taken
    3 publish   rename the hidden folder to its transaction's name
    4 trim      remove all but the last few marks of the log

The log only grows, and each number is created once, so of two writers one loses at step 2 by
construction, however late it wakes up. A writer that was stalled until its number was trimmed can
create that number again; it then sees that the log has advanced, and is refused. The mark it
created is below the end of the log, where no reader looks.

A reader of the end of the log performs step 3 for a writer that stalled or died before it. A folder
therefore appears complete and exactly once, because its hidden folder can be renamed only once.
Readers may remove folders; the log records what was delivered.

A large change is written by executors, which have to see the path as this process does. Their
tasks write into `parts` within the hidden folder, each attempt under a name of its own. This
process moves the files that tasks report into the hidden folder as `part-<task>.<format>`, and
removes `parts`, before the commit. So an attempt that is still running, because its executor was
thought to be lost, has no folder to write to.

With `coalesce`, several transactions may share one folder, under the number of the last: it holds
the sum of their change sets, which may be empty. Its mark then also has the number of the `first`.

A crash leaves a hidden folder that no mark names. A writer holds a lock (flock) on its hidden
folder, and the next write removes only folders whose lock is free. For machines that do not see
each other's locks (NFS), a folder is renamed before the log is read for the last time: its writer's
link then finds no file, and the write fails.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from stepwell.connectors.delivery import (
    Numbered,
    all_rows,
    check_changes,
    check_held,
    check_large,
)
from stepwell.connectors.durable import check_trusted, make_folder, sync_file, sync_folder
from stepwell.connectors.part_files import PartWriter
from stepwell.connectors.writing import FileFormat, write_rows
from stepwell.engine.ports import Delivered
from stepwell.env import Env
from stepwell.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    UnavailableError,
    ensure,
)
from stepwell.lsm.bulk import NotInBulkError
from stepwell.lsm.large_change import LargeChange
from stepwell.lsm.table_diff import summed
from stepwell.manifest.progress import MARK
from stepwell.model import Transaction
from stepwell.store.sealed import Json, seal, unseal

_LOG = "_stepwell"
_MARK = "_transaction.json"
_FORMAT = "stepwell-filessink/2"
_BEFORE = "_stepwell.json"
"""The only mark in format 1."""
_STAGED = ".tmp-"
_GONE = ".gone-"
"""Prefix of a hidden folder that is being swept, which its writer can no longer commit."""
_PARTS = "parts"
"""Within a hidden folder: the files of tasks, until they are done."""
_DIGITS = 20
_KEEP = 16
"""Number of marks to keep in the log. So few names are listed by one system call."""


Fill = Callable[[Path], dict[str, Json]]
"""Writes rows into a hidden folder, and returns the fields of the mark that describe them."""


@dataclass(frozen=True, slots=True)
class _Logged:
    """The mark at the end of the log, and the hidden folder to which its rows were written."""

    sequence: int
    mark: Delivered
    staged: str


class FilesSink:
    """One folder per transaction that changed the view, or per several if the sink lags."""

    def __init__(
        self,
        name: str,
        view: str,
        env: Env,
        *,
        path: str,
        format: FileFormat,
        coalesce: bool = False,
        mode: int | None = None,
    ) -> None:
        """`mode` sets the permissions of files; folders get the matching search permission. None
        means the process's defaults.
        """
        self.name = name
        self.coalesces = coalesce
        self.view = view
        self._env = env
        self._root = Path(path)
        self._log = self._root / _LOG
        self._format = format
        self._mode = mode

    def last(self) -> Delivered | None:
        check_trusted(self.name, self._root)
        with self._errors():
            found = self._end()
            if found is None:
                return None
            # Its writer may have died before it synced the log; a reported mark must be durable.
            sync_folder(self._log)
            return found.mark

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        self.write_together(previous, [(mark, change)])

    def write_together(self, previous: Delivered | None, changes: Numbered) -> None:
        mark = check_changes(self.name, previous, changes)
        self._commit(previous, mark, lambda staged: self._fill(staged, mark, changes))

    def write_bulk(self, previous: Delivered | None, mark: Delivered, change: LargeChange) -> None:
        check_large(self.name, previous, mark, change)
        self._commit(previous, mark, lambda staged: self._fill_in_tasks(staged, mark, change))

    def _commit(self, previous: Delivered | None, mark: Delivered, fill: Fill) -> None:
        check_trusted(self.name, self._root)
        with self._errors():
            end = self._end()
            check_held(self.name, None if end is None else end.mark, previous, mark)
            if self._folder(mark.transaction).exists() and self._read_end() == end:
                raise InvalidError(
                    f"sink {self.name}: there is a folder {self._folder(mark.transaction)} that "
                    "this pipeline did not write",
                    hint="give this pipeline a folder of its own",
                )
            make_folder(self._log)
            self._permit(self._log)
            self._sweep()
            self._write(1 if end is None else end.sequence + 1, mark, fill)

    def close(self) -> None:
        """Nothing to release."""

    # Writing

    def _write(self, sequence: int, mark: Delivered, fill: Fill) -> None:
        with self._staging() as staged:
            fields = {**MARK.write(mark), **fill(staged)}
            self._write_mark(staged, {**fields, "sequence": sequence, "staged": staged.name})
            sync_folder(staged, staged=True)
            sync_folder(self._root)
            mine = True
            try:
                os.link(staged / _MARK, self._marker(sequence))
            except FileExistsError:
                # On a network file system, a link request sent twice conflicts with itself.
                mine = _same_file(staged / _MARK, self._marker(sequence))
            except FileNotFoundError:
                raise ConflictError(
                    f"sink {self.name}: another writer has removed {staged}: {mark} was not written"
                ) from None
            if not mine or max(self._sequences(), default=0) != sequence:
                # Either the number was taken, or it had been trimmed because the log has advanced.
                shutil.rmtree(staged, ignore_errors=True)
                raise ConflictError(f"sink {self.name} has moved on: {mark} was not written")
            if not self._publish(_Logged(sequence, mark, staged.name)):
                # Another writer published it and a reader removed it; `last` gives the answer.
                raise UnavailableError(
                    f"sink {self.name}: {mark} is committed, but its folder is missing",
                    hint="the engine asks what the sink holds before it continues",
                )
        for number in self._sequences():
            if number <= sequence - _KEEP:
                self._marker(number).unlink(missing_ok=True)

    @contextmanager
    def _staging(self) -> Iterator[Path]:
        """A hidden folder of our own, locked for as long as we may still commit it."""
        staged = self._root / f"{_STAGED}{self._env.new_id()}"
        staged.mkdir()
        self._permit(staged)
        with _locked(staged):
            yield staged

    def _fill(self, folder: Path, mark: Delivered, changes: Numbered) -> dict[str, Json]:
        """Write the rows; returns the fields of the mark that describe them."""
        change = changes[0][1] if len(changes) == 1 else summed(all_rows(changes))
        data = folder / f"part.{self._format.value}"
        write_rows(change, data, self._format)
        self._permit(data)
        sync_file(data, staged=True)
        fields: dict[str, Json] = {"rows": change.num_rows}
        if len(changes) > 1:
            fields["first"] = changes[0][0].transaction
        return fields

    def _fill_in_tasks(self, folder: Path, mark: Delivered, change: LargeChange) -> dict[str, Json]:
        """Let tasks write parts; returns the fields of the mark that describe them."""
        folder = folder.absolute()
        parts = folder / _PARTS
        parts.mkdir()
        self._permit(parts)
        written = change.write(PartWriter(str(parts), self._format, self._mode))
        for task, part in enumerate(written):
            found = None if part is None else parts / part.name
            if part is None or found is None or not found.exists():
                raise NotInBulkError(f"sink {self.name}: a worker does not see {self._root}")
            ensure(found.stat().st_size == part.size, f"{found} has the size that was reported")
            os.rename(found, folder / f"part-{task:05d}.{self._format.value}")
        # Only then can no other attempt of a task add a file to the transaction.
        _remove_folder(parts)
        rows = sum(part.rows for part in written)
        ensure(rows == change.num_rows, f"{change.num_rows} rows of a change were written")
        return {"rows": rows, "parts": len(written)}

    def _write_mark(self, folder: Path, fields: dict[str, Json]) -> None:
        lines = folder / _MARK
        lines.write_bytes(seal(_FORMAT, {"view": self.view, **fields}))
        self._permit(lines)
        sync_file(lines, staged=True)

    def _permit(self, path: Path) -> None:
        if self._mode is not None:
            enter = (self._mode & 0o444) >> 2 if path.is_dir() else 0
            path.chmod(self._mode | enter)

    def _publish(self, logged: _Logged) -> bool:
        """Give a committed folder its name, unless done already; returns whether the folder exists.

        The mark must be durable first: a named folder without it would look like another writer's.
        Hidden folders are only ever renamed forward, so looking in this order cannot miss one.
        """
        final = self._folder(logged.mark.transaction)
        sync_folder(self._log)
        for folder in self._hidden(logged.staged):
            with suppress(FileNotFoundError):
                os.rename(folder, final)
                sync_folder(self._root)
                return True
        return final.exists()

    def _hidden(self, staged: str) -> tuple[Path, Path]:
        """The possible paths of a staged folder: its writer's, and a sweep's."""
        return self._root / staged, self._root / (_GONE + staged.removeprefix(_STAGED))

    def _sweep(self) -> None:
        """Remove uncommitted hidden folders of writers that are gone.

        Another machine may not see a lock, so a folder is renamed before the log is read: a writer
        that has not committed by then no longer can, because its link source is gone. A crash
        leaves the new name, and the next sweep continues with it.
        """
        for found in [*self._root.glob(f"{_STAGED}*"), *self._root.glob(f"{_GONE}*")]:
            with suppress(FileNotFoundError, BlockingIOError, NotADirectoryError), _locked(found):
                staged = _STAGED + found.name.removeprefix(_STAGED).removeprefix(_GONE)
                made, gone = self._hidden(staged)
                if found == made:
                    os.rename(made, gone)
                end = self._read_end()
                if end is not None and end.staged == staged:
                    self._publish(end)
                else:
                    shutil.rmtree(gone)

    # Reading

    def _end(self) -> _Logged | None:
        """The end of the log, with its folder published."""
        found = self._read_end() or self._find_folder()
        if found is not None and any(path.exists() for path in self._hidden(found.staged)):
            self._publish(found)
        return found

    def _read_end(self) -> _Logged | None:
        while sequences := self._sequences():
            path = self._marker(max(sequences))
            with suppress(FileNotFoundError):  # The log has advanced, and this mark was trimmed.
                return _read(path, path.read_bytes())
        return None

    def _find_folder(self) -> _Logged | None:
        """Restore a missing log by linking the newest folder's mark.

        Without a log, either nothing was ever written here, or the log was removed.
        """
        try:
            names = [name for name in os.listdir(self._root) if name.isdigit()]
        except FileNotFoundError:
            return None
        if (self._root / _BEFORE).exists():
            raise InvalidError(
                f"sink {self.name}: {self._root} has filessink format 1; this Stepwell reads 2",
                hint="give the sink another name and another folder: it then receives the whole "
                "view",
            )
        names = [name for name in names if len(name) == _DIGITS]
        if not names:
            return None
        lines = self._root / max(names) / _MARK
        try:
            found = _read(lines, lines.read_bytes())
        except FileNotFoundError:
            raise CorruptError(str(lines.parent), f"has no {_MARK}") from None
        make_folder(self._log)
        with suppress(FileExistsError):
            os.link(lines, self._marker(found.sequence))
        return found

    def _sequences(self) -> list[int]:
        try:
            names = os.listdir(self._log)
        except FileNotFoundError:
            return []
        return [int(name[:_DIGITS]) for name in names if name[:_DIGITS].isdigit()]

    def _marker(self, sequence: int) -> Path:
        return self._log / f"{sequence:0{_DIGITS}d}.json"

    def _folder(self, transaction: Transaction) -> Path:
        return self._root / f"{transaction:0{_DIGITS}d}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(
                f"sink {self.name} cannot use {self._root}: {error.strerror or error}",
                hint="check that the folder can be written, that its file system has hard links, "
                "and that its disk is not full",
            ) from error


def _read(path: Path, data: bytes) -> _Logged:
    fields = unseal(data, format=_FORMAT, object=str(path))
    return _Logged(fields.number("sequence"), MARK.read(fields), fields.text("staged"))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; raises `BlockingIOError` if another writer holds it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _remove_folder(folder: Path) -> None:
    """Remove a folder in which others may still create files."""
    for attempt in range(_REMOVALS_MAX):
        shutil.rmtree(folder, ignore_errors=attempt + 1 < _REMOVALS_MAX)
        if not folder.exists():
            return


_REMOVALS_MAX = 100


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:
        return False
