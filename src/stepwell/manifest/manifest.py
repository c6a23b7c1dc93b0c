"""The manifest: the complete state of a pipeline, in numbered versions; the latest one is current.

    <store>/manifest/00000000000000000042.json       see `store/sequenced` for the envelope

`Manifest` is an immutable value. A change is a pure function from one manifest to the next; it is
applied to the latest version and checked by `manifest/invariants` before it is committed. `Holder`
is a writer's hold on a pipeline: it commits, and it is the guard that tells the journal when the
writer is fenced.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import pairwise

from stepwell.env import Env
from stepwell.errors import (
    BugError,
    ClaimedError,
    CollectedError,
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    StepwellError,
    UnavailableError,
    ensure,
)
from stepwell.journal import paths
from stepwell.journal.entry import Cursor
from stepwell.manifest import invariants
from stepwell.manifest.progress import NO_PROGRESS, PROGRESS, Progress
from stepwell.manifest.run_ref import RUN
from stepwell.manifest.run_ref import Run as Run
from stepwell.manifest.timeline import Timeline, Timelines, timeline_of
from stepwell.model import Checksum, Claim, Epoch, Position, Transaction, format_time
from stepwell.store.base import Store
from stepwell.store.records import (
    Kind,
    Record,
    anything,
    at_least,
    checksum,
    flag,
    many,
    member,
    names,
    nullable,
    number,
    omitted,
    one,
    text,
    time,
    ulid,
)
from stepwell.store.retry import Retry
from stepwell.store.sealed import Fields, Json
from stepwell.store.sequenced import Boundary, Sequence, Version

FORMAT = "stepwell-manifest/5"
_TRIES = 100
"""Lost commits in a row before giving up. Each loss is another process's progress."""


class Status(StrEnum):
    READY = "ready"
    INCOMPLETE = "incomplete"
    """A clone in progress; it cannot be opened."""
    DELETING = "deleting"
    """Being destroyed; it can no longer be opened."""


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A retained checkpoint; its own object (`manifest/checkpoint`) holds everything it needs."""

    id: str
    transaction: Transaction
    created: datetime
    size: int
    checksum: Checksum
    """The checksum of its object, so that no other object can be taken for it."""
    name: str | None = None
    """A user-supplied name; a named checkpoint stays until it is deleted or expires."""
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """A clone elsewhere that needs the files of one of our checkpoints."""

    id: str
    clone: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Parent:
    """The origin of a clone."""

    store: str
    lineage: str
    checkpoint: str
    pin: str | None
    """The clone's pin in the parent; None once none of the parent's files are needed."""
    sinks: tuple[str, ...] = ()
    """The parent's sinks, which are off in the clone."""
    until: Position = Position(0)
    """The last entry of the parent's journal that the clone holds, in its runs or its journal."""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a pipeline; see `manifest/layout`."""

    uri: str
    mark: str | None = None
    """For a directory: distinguishes it from a copy (`store/mark`)."""


@dataclass(frozen=True, slots=True)
class JournalRef:
    """The journal store of this pipeline. `id` is None until one is attached.

    `closed` means that the last writer closed cleanly and the manifest holds everything, so that
    the journal may be wiped. The next writer resets it before it serves.
    """

    id: str | None = None
    closed: bool = False
    store: str | None = None
    """For a clone: the store of its journal, if not the same as its state."""


@dataclass(frozen=True, slots=True)
class Manifest:
    lineage: str
    timelines: Timelines
    """The histories of this pipeline, oldest first; see `manifest/timeline`."""
    claim: Claim
    place: Place
    """Where the pipeline was last opened for writing. In a copy, the location of the original."""
    status: Status = Status.READY
    replay: Cursor = field(default_factory=Cursor)
    """The last journal entry included in the runs; replay starts after it."""
    transaction: Transaction = Transaction(0)
    journal: JournalRef = field(default_factory=JournalRef)
    program: Json = None
    runs: tuple[Run, ...] = ()
    progress: Progress = NO_PROGRESS
    checkpoints: tuple[CheckpointRef, ...] = ()
    pins: tuple[Pin, ...] = ()
    parent: Parent | None = None
    sinks_off: tuple[str, ...] = ()
    """Sinks of the pipeline from which this one was copied; see also `parent.sinks`."""
    generation: int = 0
    """Number of program changes: replay leads only to later states of the same program."""
    floor: str | None = None
    """An id: files at or below it that this manifest does not name will never be named."""
    described: str | None = None
    """The description of the runs by the executor that wrote them; see `plan/described`."""

    @property
    def all_runs(self) -> tuple[Run, ...]:
        """The runs of the relations, and those with the names that sources have taken."""
        return (*self.runs, *(run for at in self.progress.sources for run in at.taken))

    @property
    def timeline(self) -> str:
        """The timeline of the next transaction."""
        return self.timelines[-1].id

    def timeline_of(self, transaction: int) -> str:
        """The timeline of a transaction of this pipeline."""
        return timeline_of(self.timelines, transaction)


Change = Callable[[Manifest], Manifest]


@dataclass(frozen=True, slots=True)
class Stored:
    """A manifest and its version number."""

    id: int
    manifest: Manifest

    @property
    def epoch(self) -> Epoch:
        return self.manifest.claim.epoch


class Manifests:
    """The manifest versions of one pipeline. Stateless."""

    def __init__(self, store: Store, env: Env, retry: Retry | None = None) -> None:
        self.store = store
        self.boundary = Boundary(store, paths.BOUNDARY)
        self._env = env
        self._sequence = Sequence(
            store,
            env,
            name="manifest",
            prefix=paths.MANIFESTS,
            format=FORMAT,
            boundary=self.boundary,
            retry=retry,
        )

    def latest(self) -> Stored | None:
        found = self._sequence.latest()
        return None if found is None else self._stored(found)

    def latest_id(self, after: int = 0) -> int | None:
        return self._sequence.latest_id(after)

    def read(self, id: int) -> Stored | None:
        found = self._sequence.read(id)
        return None if found is None else self._stored(found)

    def ids(self) -> tuple[int, ...]:
        return self._sequence.ids()

    def full_name(self, id: int) -> str:
        return self._sequence.full_name(id)

    def collect(self, up_to: int, keep: frozenset[int] = frozenset()) -> tuple[int, ...]:
        return self._sequence.collect(up_to, keep)

    def begin(self, writer: str | None = None, place: Place | None = None) -> Holder:
        """Create the first version, held by us; raises `ConflictError` if one exists."""
        claim = self._claim(Epoch(1), writer)
        place = place or Place(self.store.uri)
        lineage, timelines = self._env.new_id(), (Timeline(self._env.new_id()),)
        return Holder(self, self.create(1, Manifest(lineage, timelines, claim, place)))

    def claim(
        self,
        found: Stored | None = None,
        writer: str | None = None,
        expected: Claim | None = None,
    ) -> Holder:
        """Take the next epoch by compare-and-swap, in order to fence the previous holder.

        `found` is the latest version, if the caller has just read it. A version that another
        process created meanwhile, claim or not, is read and built upon. With `expected`, the claim
        succeeds only while that is the last claim; otherwise `ClaimedError` is raised.
        """
        for _ in range(_TRIES):
            found = found or self.latest()
            if found is None:
                raise InvalidError(f"{self.store.uri} holds no pipeline")
            before = found.manifest
            self.check_ready(before)
            if expected is not None and before.claim != expected:
                raise claimed_by(self.store.uri, before.claim)
            after = replace(before, claim=self._claim(Epoch(found.epoch + 1), writer))
            invariants.check_claim(before, after)
            try:
                return Holder(self, self.create(found.id + 1, after))
            except (ConflictError, CollectedError):
                # Claiming again is harmless, whatever the outcome of this claim.
                found = None
        raise ConflictError(
            f"{self.store.uri}: {_TRIES} claims in a row were lost to other writers"
        )

    def create(self, id: int, manifest: Manifest) -> Stored:
        """Commit a version; the callers `begin`, `claim`, `amend` and `Holder` check it first."""
        body = to_json(manifest)
        try:
            readable = (
                from_json(Fields(json.loads(json.dumps(body)), self.full_name(id))) == manifest
            )
        except (StepwellError, TypeError, ValueError) as error:
            raise BugError(f"a manifest that could not be read again: {error}") from error
        ensure(readable, "a manifest is read as it was written")
        return Stored(self._sequence.create(id, manifest.claim.epoch, body).id, manifest)

    def amend(self, change: Change, doing: str) -> Stored:
        """Commit a change without being the holder, such as a clone's pin or a dropped checkpoint.

        It takes no epoch, and the holder builds upon it. Conflicts are retried without limit. A
        change with no effect is not committed.
        """
        for _ in range(_TRIES):
            found = self.latest()
            if found is None:
                raise InvalidError(f"{self.store.uri} holds no pipeline")
            after = change(found.manifest)
            if after == found.manifest:
                return found
            invariants.check_commit(found.manifest, after)
            with suppress(ConflictError):
                return self.create(found.id + 1, after)
        raise ConflictError(f"{doing}: {_TRIES} attempts in a row were lost to other commits")

    def check_ready(self, manifest: Manifest) -> None:
        """Refuse an incomplete clone, and a pipeline that is being destroyed."""
        if manifest.status is Status.INCOMPLETE:
            raise InvalidError(
                f"{self.store.uri} is a clone that was not completed; it cannot be opened",
                hint="run the same clone again: it continues where it stopped",
            )
        if manifest.status is Status.DELETING:
            raise InvalidError(
                f"{self.store.uri} is being destroyed; it cannot be opened",
                hint="destroy it again to finish",
            )

    def _claim(self, epoch: Epoch, writer: str | None) -> Claim:
        return Claim.by(epoch, self._env.process, self._env.now(), writer)

    def _stored(self, version: Version) -> Stored:
        manifest = from_json(version.body)
        if manifest.claim.epoch != version.epoch:
            raise CorruptError(
                self.full_name(version.id),
                f"is {manifest.claim.epoch}, but the version's epoch is {version.epoch}",
                field="body.claim.epoch",
            )
        return Stored(version.id, manifest)


class Holder:
    """One writer's hold on a pipeline, from its claim until another writer's claim.

    Thread-safe: calls are serialized.
    """

    def __init__(self, manifests: Manifests, claimed: Stored) -> None:
        self._manifests = manifests
        self._lock = threading.RLock()
        self._current = claimed
        self.claim = claimed.manifest.claim
        self.under_way = False
        """Whether a create was sent whose outcome is still unknown."""

    @property
    def current(self) -> Stored:
        """The latest version known to this holder."""
        return self._current

    def check(self, undone: str) -> None:
        """Raise `FencedError` if another writer has since claimed the pipeline.

        Usually takes one request.
        """
        with self._lock:
            id = self._manifests.latest_id(after=self._current.id - 1)
            # Our version is the latest, which is never collected, or a later one exists.
            if id is None:
                raise self._rolled_back()
            if id > self._current.id:
                self._adopt(undone)

    def commit(self, change: Change, doing: str, revived: Collection[str] = frozenset()) -> Stored:
        """Apply a change to the latest version and commit it, retrying after a conflict.

        `doing` describes the change in a few words, for the error message. `revived` holds files
        that the change names again because their checkpoint does; the change checks that the
        checkpoint exists. A crash leaves the change committed or not. After `UnknownOutcomeError`
        it may have been committed: reopen.
        """
        undone = f"{doing}: not committed to the manifest"
        with self._lock:
            self.check(undone)
            for _ in range(_TRIES):
                before = self._current.manifest
                after = change(before)
                invariants.check_commit(before, after, revived)
                try:
                    self.under_way = True
                    self._current = self._manifests.create(self._current.id + 1, after)
                    self.under_way = False
                    return self._current
                except (UnavailableError, BugError):
                    self.under_way = False  # It was never sent.
                    raise
                except ConflictError:
                    self.under_way = False
                    self._adopt(undone)
        raise ConflictError(f"{undone}: {_TRIES} attempts in a row were lost to other commits")

    def _adopt(self, undone: str) -> None:
        """Build upon another version of our own epoch, such as a pin; yield to a higher epoch."""
        newer = self._manifests.latest()
        if newer is None or newer.id < self._current.id or newer.epoch < self.claim.epoch:
            raise self._rolled_back()
        if newer.epoch > self.claim.epoch:
            raise fenced(self._manifests.store.uri, newer.manifest.claim, undone)
        if newer.manifest.claim != self.claim:
            # Our epoch was claimed a second time, after the store had lost our claim.
            raise self._rolled_back()
        self._current = newer

    def _rolled_back(self) -> CorruptError:
        return CorruptError(
            self._manifests.full_name(self._current.id),
            f"the store lacks what epoch {self.claim.epoch} committed: it went back in time",
            hint="was a backup restored under a running pipeline? see `stepwell inspect manifest`",
        )


def claimed_by(uri: str, claim: Claim) -> ClaimedError:
    return ClaimedError(
        f"{claim.process} has claimed {uri} in the meantime (epoch {claim.epoch}); nothing was "
        f"changed",
        hint="see who holds it: stepwell status",
    )


def fenced(uri: str, by: Claim, undone: str) -> FencedError:
    when = format_time(by.time)
    return FencedError(
        f"another writer took over {uri} at {when} (epoch {by.epoch}, host {by.host}, "
        f"pid {by.pid}); {undone}",
        epoch=by.epoch,
        host=by.host,
        pid=by.pid,
        time=when,
        hint="stop this process: the new writer has everything that was acknowledged here. "
        "To take the pipeline back, open it again",
    )


def with_runs(manifest: Manifest, change: Callable[[Run], Run]) -> Manifest:
    """The manifest with `change` applied to each of `all_runs`."""
    progress = manifest.progress
    sources = tuple(
        replace(at, taken=tuple(change(run) for run in at.taken)) for at in progress.sources
    )
    return replace(
        manifest,
        runs=tuple(change(run) for run in manifest.runs),
        progress=replace(progress, sources=sources),
    )


def _timelines(body: Fields, name: str) -> Timelines:
    found = tuple(map(_TIMELINE.read, body.children(name)))
    if not found or any(a.since >= b.since for a, b in pairwise(found)):
        raise body.wrong(name, "at least one, in rising order")
    return found


_TIMELINE = Record(Timeline, id=ulid, since=number, resumed=omitted(flag))
_MANIFEST = Record(
    Manifest,
    lineage=ulid,
    timelines=Kind(_timelines, lambda items: [_TIMELINE.write(item) for item in items]),
    claim=one(
        Record(
            Claim,
            epoch=at_least(1),
            host=text,
            pid=number,
            time=time,
            writer=omitted(text),
            boot=omitted(text),
            namespace=omitted(text),
            started=omitted(text),
        )
    ),
    place=one(Record(Place, uri=text, mark=nullable(text))),
    status=member(Status),
    replay=one(Record(Cursor, position=number, checksum=checksum, epoch=number)),
    transaction=number,
    journal=one(Record(JournalRef, id=nullable(ulid), closed=flag, store=omitted(text))),
    program=anything,
    runs=many(RUN),
    progress=omitted(one(PROGRESS)),
    checkpoints=many(
        Record(
            CheckpointRef,
            id=ulid,
            transaction=number,
            created=time,
            size=number,
            checksum=checksum,
            name=nullable(text),
            expires=nullable(time),
        )
    ),
    pins=many(Record(Pin, id=ulid, clone=text, checkpoint=ulid)),
    parent=nullable(
        one(
            Record(
                Parent,
                store=text,
                lineage=ulid,
                checkpoint=ulid,
                pin=nullable(ulid),
                sinks=names,
                until=number,
            )
        )
    ),
    sinks_off=omitted(names),
    generation=omitted(number),
    floor=omitted(ulid),
    described=omitted(text),
)
to_json = _MANIFEST.write
"""The body as stored; `from_json` is its inverse."""
from_json = _MANIFEST.read
