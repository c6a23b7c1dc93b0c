"""Verification: does every object that a pipeline needs exist, unchanged? (K11)

    shallow    every manifest above the boundary · the high-water mark · the journal's identity and
               positions, and the chain that an open would replay · checkpoints · pins · size
               of every file, also of those in a parent's store · the clone's pin in its parent
    deep       also the bytes of every entry and of every file, against their checksums

Verification is read-only and disturbs no writer: if there is a problem and a newer manifest exists
by then, the object may have been collected, so everything is checked again. An unreachable store
(`UnavailableError`) is an error, not a finding. Files are read in pieces, so memory does not grow
with their size.

Some losses leave no trace: the last entries of a journal that was not closed, because an append
writes a single object (F4); a barrier that outlived its use; a collector's note, which is rebuilt
from the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from stepwell.env import Env
from stepwell.errors import (
    CorruptError,
    InvalidError,
    JournalStoreMismatch,
    StepwellError,
    UnavailableError,
)
from stepwell.journal import barriers, paths, watch
from stepwell.journal.entry import Cursor
from stepwell.journal.identity import Identity
from stepwell.journal.log import Log
from stepwell.manifest.checkpoint import (
    REPAIR,
    Checkpoint,
    File,
    files_of,
    read_checkpoint,
    sum_files,
)
from stepwell.manifest.high_water_mark import compare
from stepwell.manifest.layout import address_of, check_standing, own_journal
from stepwell.manifest.manifest import CheckpointRef, Manifest, Manifests, Stored
from stepwell.manifest.run_object import store_of
from stepwell.model import Position
from stepwell.store.base import Listed, Store
from stepwell.store.locate import open_store
from stepwell.store.sealed import read_sealed

_TRIES = 5
_BACKUP = "restore the object from a backup"
_OPENING = "now: the pipeline cannot be opened"
_RENAME = "nothing to do, or delete it: its content is read again"
_NOTES = {paths.WATCH: watch.FORMAT, paths.BARRIERS: barriers.FORMAT}
"""The notes that collectors keep next to the journal."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An object that is missing or damaged."""

    object: str
    what: str
    matters: str
    """The impact: since when, and on what."""
    repair: str


@dataclass(frozen=True, slots=True)
class Report:
    version: int
    """The verified manifest version; 0 if none could be read."""
    findings: tuple[Finding, ...]
    objects: int
    """Number of objects checked."""
    bytes_read: int
    """Bytes of files and entries whose contents were compared."""


Progress = Callable[[int, int], None]
"""Receives the number of bytes compared so far and the total."""


def verify(
    store: Store,
    env: Env,
    *,
    journal_store: Store | None = None,
    deep: bool = False,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Verify a whole pipeline; raises `InvalidError` if there is none."""
    for attempt in range(_TRIES):
        verifying = _Verifying(store, env, journal_store or store, deep, progress)
        report = verifying.report()
        if not report.findings or attempt == _TRIES - 1:
            return report
        if (Manifests(store, env).latest_id(report.version) or 0) <= report.version:
            return report
    return report


class _Verifying:
    def __init__(
        self, store: Store, env: Env, journal_store: Store, deep: bool, progress: Progress
    ) -> None:
        self._store = store
        self._env = env
        self._journal_store = journal_store
        self._deep = deep
        self._progress = progress
        self._manifests = Manifests(store, env)
        self._findings: list[Finding] = []
        self._objects = 0
        self._bytes = 0
        self._total = 0

    def report(self) -> Report:
        found = self._latest()
        if found is not None:
            self._verify(found)
        return Report(
            0 if found is None else found.id, tuple(self._findings), self._objects, self._bytes
        )

    def _verify(self, found: Stored) -> None:
        manifest = found.manifest
        # List after reading the manifest, and read the boundaries after that: an object above the
        # boundaries that is missing from the listing was not collected.
        try:
            check_standing(manifest, self._store)
        except InvalidError as error:
            self._found(error, "now: the pipeline cannot be opened for writing", error.hint or "")
        listing = self._store.list()
        separate = self._journal_store is not self._store
        journal_listing = self._journal_store.list(paths.JOURNAL) if separate else listing
        self._check_versions(found, listing)
        checkpoints = self._checkpoints(manifest)
        self._check_journal(found, journal_listing, checkpoints)
        self._check_files(manifest, checkpoints, listing)
        if manifest.parent is not None and manifest.parent.pin is not None:
            self._check_pin(manifest, manifest.parent.store)

    # Manifests

    def _latest(self) -> Stored | None:
        self._objects += 1
        try:
            found = self._manifests.latest()
        except (CorruptError, InvalidError) as error:
            self._found(error, _OPENING, "restore the manifest/ objects from a backup")
            return None
        if found is None and self._store.list(limit=1):
            where = f"{self._store.uri}/{paths.MANIFESTS}"
            what = "there is no manifest, though the store is not empty"
            self._add(where, what, _OPENING, "restore the manifest/ objects from a backup")
        elif found is None:
            raise InvalidError(
                f"there is no pipeline in {self._store.uri}",
                hint="check the address, and that it is mounted",
            )
        return found

    def _check_versions(self, found: Stored, listing: Iterable[Listed]) -> None:
        ids = {name.number for name in _names(listing) if name.kind == "manifest"}
        self._objects += len(ids)
        boundary = self._manifests.boundary.read("manifest")
        first = min((id for id in ids if id is not None), default=found.id)
        if not boundary and first > 1:
            self._add(
                f"{self._store.uri}/{paths.BOUNDARY}",
                f"missing, though the versions before {first} were collected",
                "if a writer that was fenced long ago wakes up: it could fill the place of one",
                f"{_BACKUP}; or open the pipeline: the next garbage collection rewrites it",
            )
            boundary = first - 1
        epoch = 0
        for id in range(boundary + 1, found.id):
            matters = "when a reader still uses this version; until then gc deletes nothing"
            try:
                older = self._manifests.read(id)
            except (CorruptError, InvalidError) as error:
                self._found(error, matters, f"{_BACKUP}; nothing else needs it")
                continue
            where = self._manifests.full_name(id)
            if older is None:
                if id > self._manifests.boundary.read("manifest"):
                    self._add(where, "missing, though it was never collected", matters, _BACKUP)
            elif older.epoch < epoch or older.epoch > found.epoch:
                self._add(where, f"epoch {older.epoch} goes back", _OPENING, _BACKUP)
            else:
                epoch = older.epoch

    # The journal

    def _check_journal(
        self, found: Stored, listing: Iterable[Listed], checkpoints: dict[str, Checkpoint]
    ) -> None:
        manifest = found.manifest
        log = Log(self._journal_store, manifest.lineage)
        positions = sorted(
            Position(name.number)
            for name in _names(listing)
            if name.kind == "entry" and name.number is not None
        )
        self._objects += len(positions) + 2
        identity = self._identity(manifest, positions)
        try:
            numbers = log.boundary.numbers()
            compare(self._manifests, log, found, numbers)
        except CorruptError as error:
            self._found(error, _OPENING, error.hint or _BACKUP)
            return
        if identity is None or identity.id != manifest.journal.id:
            return  # Closed, then wiped or replaced: everything is in the manifest.
        if not numbers:
            self._add(
                f"{self._journal_store.uri}/{paths.JOURNAL_BOUNDARY}",
                "missing",
                "if the latest manifest or old entries are lost: it would go unnoticed",
                f"{_BACKUP}; or open and close the pipeline, which rewrites it",
            )
        trimmed = Position(numbers.get("journal", 0))
        if trimmed > manifest.replay.position:
            what = f"was trimmed up to {trimmed}, behind replay position {manifest.replay.position}"
            where = f"{self._journal_store.uri}/{paths.JOURNAL}"
            self._add(where, what, _OPENING, "was an old manifest restored? restore the latest")
            return
        self._check_positions(log, manifest, positions, trimmed)
        start = trimmed if self._deep else Position(manifest.replay.position - 1)
        known = [manifest.replay, *(item.state.replay for item in checkpoints.values())]
        self._check_chain(log, [p for p in positions if p > max(start, trimmed)], known)
        if self._deep:
            self._check_kept(log, [p for p in positions if p <= trimmed], listing)

    def _check_kept(self, log: Log, kept: list[Position], listing: Iterable[Listed]) -> None:
        """Check barriers that outlive their use, and the collectors' notes about them."""
        for position in kept:
            try:
                log.read(position)
            except CorruptError as error:
                self._found(error, "if a writer that was fenced long ago wakes up", _BACKUP)
        there = {item.path for item in listing}
        for path, format in _NOTES.items():
            try:
                if path in there:
                    read_sealed(self._journal_store, path, format)
            except CorruptError as error:
                self._found(error, "until the next garbage collection, which rewrites it", _RENAME)

    def _identity(self, manifest: Manifest, positions: list[Position]) -> Identity | None:
        try:
            identity = own_journal(self._journal_store, manifest)
        except (CorruptError, JournalStoreMismatch, InvalidError) as error:
            self._found(error, _OPENING, _BACKUP)
            return None
        if identity is None and positions:
            where = f"{self._journal_store.uri}/{paths.IDENTITY}"
            self._add(where, "missing, though there are entries", _OPENING, _BACKUP)
        return identity

    def _check_positions(
        self, log: Log, manifest: Manifest, positions: list[Position], trimmed: Position
    ) -> None:
        there = set(positions)
        last = max([manifest.replay.position, *positions[-1:]])
        missing = [p for p in range(trimmed + 1, last + 1) if p not in there]
        for first, end in _spans(missing):
            span = f"entries {first} to {end} are" if end > first else "the entry is"
            needed = end > manifest.replay.position
            matters = (
                _OPENING
                if needed
                else "when a transaction before the last flush is to be restored; not for opening"
            )
            where = log.full_name(Position(first))
            self._add(where, f"{span} missing, and never were trimmed", matters, _BACKUP)

    def _check_chain(self, log: Log, positions: list[Position], known: list[Cursor]) -> None:
        """Check the links between entries, and the entries that manifest and checkpoints name."""
        at = {cursor.position: cursor for cursor in known}
        cursor: Cursor | None = None
        for position in positions:
            try:
                found = log.read(position)
                if found is None:
                    if position > log.trimmed():
                        self._add(log.full_name(position), "missing", _OPENING, _BACKUP)
                    cursor = None
                    continue
                expected = at.get(position)
                if expected is not None and expected.checksum != found.checksum:
                    raise CorruptError(
                        log.full_name(position),
                        f"is {found.checksum}, but what was flushed up to it names "
                        f"{expected.checksum}",
                        field="checksum",
                    )
                if cursor is None or cursor.next != position:
                    cursor = expected or found.cursor
                else:
                    cursor, _ = cursor.advance(found, log.full_name(position))
            except CorruptError as error:
                above = position > known[0].position
                matters = _OPENING if above else "when a transaction after it is to be restored"
                self._found(error, matters, _BACKUP)
                cursor = None

    # Checkpoints and files

    def _checkpoints(self, manifest: Manifest) -> dict[str, Checkpoint]:
        found: dict[str, Checkpoint] = {}
        for ref in manifest.checkpoints:
            what = (
                f"when checkpoint {ref.name or ref.id} is restored; until then gc deletes nothing"
            )
            repair = f"{_BACKUP}, or delete it: stepwell checkpoint delete {ref.id}"
            self._read_checkpoint(found, ref.id, ref, what, repair)
        for pin in manifest.pins:
            if pin.checkpoint not in found:
                what = f"for the clone in {pin.clone}; until then gc deletes nothing"
                self._read_checkpoint(found, pin.checkpoint, None, what, _BACKUP)
        return found

    def _read_checkpoint(
        self,
        found: dict[str, Checkpoint],
        id: str,
        ref: CheckpointRef | None,
        matters: str,
        repair: str,
    ) -> None:
        self._objects += 1
        try:
            found[id] = read_checkpoint(self._store, id, ref)
        except (CorruptError, InvalidError) as error:
            self._found(error, matters, repair)

    def _check_files(
        self, manifest: Manifest, checkpoints: dict[str, Checkpoint], listing: Iterable[Listed]
    ) -> None:
        """Check every file once, however many states need it; the manifest's own come first."""
        needed: dict[File, str] = {}
        for file in files_of(manifest):
            needed.setdefault(file, "")
        for id, item in checkpoints.items():
            for file in item.files:
                needed.setdefault(file, id)
        names = {ref.id: ref.name or ref.id for ref in manifest.checkpoints}
        sizes: dict[str | None, dict[str, int]] = {None: {item.path: item.size for item in listing}}
        whole: list[File] = []
        self._objects += len(needed)
        for file, id in needed.items():
            try:
                if file.root not in sizes:
                    theirs = store_of(self._store, file.root, self._env)
                    sizes[file.root] = {item.path: item.size for item in theirs.list("runs/")}
            except StepwellError as error:
                self._add(file.root or "", error.message, _OPENING, "bring the parent's store back")
                sizes[file.root] = {}
            size = sizes[file.root].get(file.path)
            if size == file.size:
                whole.append(file)
                continue
            what = "missing" if size is None else f"has {size} bytes, not {file.size}"
            self._add_file(file, what, id, names)
        if self._deep:
            self._total = sum(file.size for file in whole)
            found = sum_files(whole, lambda root: store_of(self._store, root, self._env))
            for file, computed in zip(whole, found, strict=True):
                self._bytes += file.size
                self._progress(self._bytes, self._total)
                if computed != file.checksum:
                    what = f"its checksum is {computed}, not {file.checksum}: it was changed"
                    self._add_file(file, what, needed[file], names)

    def _add_file(self, file: File, what: str, id: str, names: dict[str, str]) -> None:
        where = f"{file.root or self._store.uri}/{file.path}"
        if not id:
            self._add(where, what, _OPENING, REPAIR)
        elif id in names:
            repair = f"{_BACKUP}, or delete it: stepwell checkpoint delete {id}"
            self._add(where, what, f"when checkpoint {names[id]} is restored", repair)
        else:
            self._add(where, what, "for a clone that needs it", _BACKUP)

    def _check_pin(self, manifest: Manifest, parent: str) -> None:
        self._objects += 1
        matters = "soon: the parent may collect files that this clone needs"
        try:
            latest = Manifests(open_store(parent, self._env), self._env).latest()
        except UnavailableError:
            raise
        except StepwellError as error:
            self._add(parent, error.message, matters, "bring the parent's store back")
            return
        pins = () if latest is None else latest.manifest.pins
        address = address_of(manifest, self._store)
        if not any((pin.id, pin.clone) == (manifest.lineage, address) for pin in pins):
            self._add(
                parent,
                "has no pin of this clone",
                matters,
                "copy the clone while its files are there: stepwell clone --copy",
            )

    # Findings

    def _found(self, error: StepwellError, matters: str, repair: str) -> None:
        where = error.object if isinstance(error, CorruptError) else self._store.uri
        what = error.message.removeprefix(f"{where}: ")
        self._add(where, what, matters, repair)

    def _add(self, where: str, what: str, matters: str, repair: str) -> None:
        self._findings.append(Finding(where, what, matters, repair))


def _names(listing: Iterable[Listed]) -> Iterator[paths.Name]:
    return (paths.parse(item.path) for item in listing)


def _spans(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive numbers, as first and last.

    >>> list(_spans([1, 2, 5]))
    [(1, 2), (5, 5)]
    """
    span: tuple[int, int] | None = None
    for number in numbers:
        if span is not None and number == span[1] + 1:
            span = (span[0], number)
        else:
            if span is not None:
                yield span
            span = (number, number)
    if span is not None:
        yield span
