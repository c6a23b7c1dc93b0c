"""The manifest: a full picture of a pipeline, in numbered versions; its latest one is the truth.

    <store>/manifest/00000000000000000042.json       see `store/sequenced` for the envelope

`Manifest` is a frozen value; a change is a pure function from one to the next, applied to the
latest version and checked by `state/invariants` before it is committed. `Holder` is a writer's
grip on a pipeline: it commits, and it is the guard which tells the journal that it has lost it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import Enum
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
from stepwell.model import Checksum, Claim, Epoch, Position, Transaction, format_time
from stepwell.state import invariants
from stepwell.state.progress import (
    NO_PROGRESS,
    Progress,
    progress_from_json,
    progress_to_json,
)
from stepwell.state.run_ref import Run as Run
from stepwell.state.run_ref import run_from_json, run_to_json
from stepwell.state.timeline import Timeline, Timelines, timeline_of
from stepwell.store.base import Store
from stepwell.store.retry import Retry
from stepwell.store.sealed import Fields, Json
from stepwell.store.sequenced import Boundary, Sequence, Version

FORMAT = "stepwell-manifest/5"
_OPTIONAL = ("writer", "boot", "namespace", "started")
"""What a claim says of its handle and its process, where that is known."""
_TRIES = 100
"""Commits lost in a row before we say so. Each loss is somebody else's progress."""


class Status(str, Enum):
    READY = "ready"
    INCOMPLETE = "incomplete"
    """A clone still being made: it cannot be opened."""
    DELETING = "deleting"
    """Being destroyed: it cannot be opened any more."""


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint that is kept; its own object (`state/checkpoint`) holds all it needs."""

    id: str
    transaction: Transaction
    created: datetime
    size: int
    checksum: Checksum
    """Of its object, which so cannot be taken for another's."""
    name: str | None = None
    """Given by a person: it then stays until it is deleted, or expires."""
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """A clone elsewhere which needs the files of one of our checkpoints."""

    id: str
    clone: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Parent:
    """Where a clone came from."""

    store: str
    lineage: str
    checkpoint: str
    pin: str | None
    """Its pin in the parent; None once nothing of the parent's is needed any more."""
    sinks: tuple[str, ...] = ()
    """The parent's sinks, which are off in the clone."""
    until: Position = Position(0)
    """The last entry of the parent's journal that the clone holds, in its runs or its journal."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pipeline is; see `state/places`."""

    uri: str
    mark: str | None = None
    """Of a directory: what tells it from a copy (`store/mark`)."""


@dataclass(frozen=True, slots=True)
class JournalRef:
    """Which journal store belongs to this pipeline. `id` is None until one was attached.

    `closed`: the last writer left in good order and the manifest holds everything, so that the
    journal may be wiped. The next writer takes that back before it serves.
    """

    id: str | None = None
    closed: bool = False
    store: str | None = None
    """Of a clone: where its journal lies, if not beside its state."""


@dataclass(frozen=True, slots=True)
class Manifest:
    lineage: str
    timelines: Timelines
    """The histories this pipeline has had, oldest first; see `state/timeline`."""
    claim: Claim
    place: Place
    """Where it was last opened for writing. A copy says where its original is."""
    status: Status = Status.READY
    replay: Cursor = field(default_factory=Cursor)
    """The last journal entry that the runs hold; replay starts after it."""
    transaction: Transaction = Transaction(0)
    journal: JournalRef = field(default_factory=JournalRef)
    program: Json = None
    runs: tuple[Run, ...] = ()
    progress: Progress = NO_PROGRESS
    checkpoints: tuple[CheckpointRef, ...] = ()
    pins: tuple[Pin, ...] = ()
    parent: Parent | None = None
    sinks_off: tuple[str, ...] = ()
    """Sinks of the pipeline that this one was copied from; see also `parent.sinks`."""
    generation: int = 0
    """How often the program was changed: replay leads from a state to a later one of the same."""
    floor: str | None = None
    """An id: what lies at or below it and is named by nothing in here will never be named."""
    described: str | None = None
    """What the executor that wrote the runs says of them; see `query/described`."""

    @property
    def all_runs(self) -> tuple[Run, ...]:
        """The runs of the relations, and those that hold the names which sources have taken."""
        return (*self.runs, *(run for at in self.progress.sources for run in at.taken))

    @property
    def timeline(self) -> str:
        """The history that the next transaction belongs to."""
        return self.timelines[-1].id

    def timeline_of(self, transaction: int) -> str:
        """The history that a transaction of this pipeline belongs to."""
        return timeline_of(self.timelines, transaction)


Change = Callable[[Manifest], Manifest]


@dataclass(frozen=True, slots=True)
class Stored:
    """A manifest and the number of its version."""

    id: int
    manifest: Manifest

    @property
    def epoch(self) -> Epoch:
        return self.manifest.claim.epoch


class Manifests:
    """The manifest versions of one pipeline. Holds no state."""

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

    def where(self, id: int) -> str:
        return self._sequence.where(id)

    def collect(self, up_to: int, keep: frozenset[int] = frozenset()) -> tuple[int, ...]:
        return self._sequence.collect(up_to, keep)

    def begin(self, writer: str | None = None, place: Place | None = None) -> Holder:
        """Create the first version, held by us. `ConflictError` if there is one."""
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
        """Take the next epoch, by compare-and-swap. Whoever held the last one is to be fenced.

        `found` is the latest version where the caller has just read it. One that somebody else
        created meanwhile, claimant or not, is read and built upon. With `expected`, only as long
        as that is the last claim: `ClaimedError` if there is another.
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
                # Claiming once more does no harm, whatever became of this one.
                found = None
        raise ConflictError(
            f"{self.store.uri}: {_TRIES} claims in a row were lost to other writers"
        )

    def create(self, id: int, manifest: Manifest) -> Stored:
        """Commit a version as it is; for `begin`, `claim`, `amend` and `Holder`, which check it."""
        body = to_json(manifest)
        try:
            readable = from_json(Fields(json.loads(json.dumps(body)), self.where(id))) == manifest
        except (StepwellError, TypeError, ValueError) as error:
            raise BugError(f"a manifest that could not be read again: {error}") from error
        ensure(readable, "a manifest is read as it was written")
        return self._stored(self._sequence.create(id, manifest.claim.epoch, body))

    def amend(self, change: Change, doing: str) -> Stored:
        """Commit a change without being the holder: a clone's pin, a checkpoint dropped.

        It takes no epoch, and the holder builds upon it. Any number of conflicts are retried. A
        change that changes nothing is not committed.
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
        """Refuse a clone that was not completed, and what is being destroyed."""
        if manifest.status is Status.INCOMPLETE:
            raise InvalidError(
                f"{self.store.uri} is a clone that was not completed; it cannot be opened",
                hint="run the same clone again: it goes on where it stopped",
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
                self.where(version.id),
                f"is {manifest.claim.epoch}, but the version's epoch is {version.epoch}",
                field="body.claim.epoch",
            )
        return Stored(version.id, manifest)


class Holder:
    """One writer's grip on a pipeline, from its claim until another writer's.

    Safe to use from several threads; they take turns.
    """

    def __init__(self, manifests: Manifests, claimed: Stored) -> None:
        self._manifests = manifests
        self._lock = threading.RLock()
        self._current = claimed
        self.claim = claimed.manifest.claim
        self.under_way = False
        """Whether a create was sent whose outcome is not known yet."""

    @property
    def current(self) -> Stored:
        """The latest version this holder knows."""
        return self._current

    def check(self, undone: str) -> None:
        """`FencedError` if another writer has claimed the pipeline since. One request mostly."""
        with self._lock:
            id = self._manifests.latest_id(after=self._current.id - 1)
            # Our version is the latest, which is never collected, or there is a later one.
            if id is None:
                raise self._rolled_back()
            if id > self._current.id:
                self._adopt(undone)

    def commit(self, change: Change, doing: str, revived: Collection[str] = frozenset()) -> Stored:
        """Apply a change to the latest version and commit it, however often somebody else is first.

        `doing` says in a few words what the change is, for the message if it is refused. `revived`:
        files of a checkpoint that the change names anew, and whose checkpoint it looks for. A crash
        leaves the change made or not. `UnknownOutcomeError`: it may have been; open again.
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
        """Build upon another's version of our own epoch (a clone's pin, say); yield to a higher
        one.
        """
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
            self._manifests.where(self._current.id),
            f"the store lacks what epoch {self.claim.epoch} committed: it went back in time",
            hint="was a backup restored under a running pipeline? see `stepwell inspect manifest`",
        )


def claimed_by(uri: str, claim: Claim) -> ClaimedError:
    return ClaimedError(
        f"{claim.process} has claimed {uri} meanwhile (epoch {claim.epoch}); nothing was changed",
        hint="look who has it: stepwell status",
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
    """The same manifest with each of `all_runs` replaced by what `change` makes of it."""
    progress = manifest.progress
    sources = tuple(
        replace(at, taken=tuple(change(run) for run in at.taken)) for at in progress.sources
    )
    return replace(
        manifest,
        runs=tuple(change(run) for run in manifest.runs),
        progress=replace(progress, sources=sources),
    )


def to_json(manifest: Manifest) -> dict[str, Json]:
    """The body as it is stored; `from_json` is its inverse."""
    claim = manifest.claim
    progress = manifest.progress
    known = {} if progress == NO_PROGRESS else {"progress": progress_to_json(progress)}
    return {
        "lineage": manifest.lineage,
        "timelines": [_timeline(item) for item in manifest.timelines],
        "claim": {
            "epoch": claim.epoch,
            "host": claim.host,
            "pid": claim.pid,
            "time": format_time(claim.time),
            **{name: getattr(claim, name) for name in _OPTIONAL if getattr(claim, name)},
        },
        "place": _flat(manifest.place),
        "status": manifest.status.value,
        "replay": _flat(manifest.replay),
        "transaction": manifest.transaction,
        "journal": _journal(manifest.journal),
        "program": manifest.program,
        "runs": [run_to_json(run) for run in manifest.runs],
        **known,
        "checkpoints": [
            {
                **_flat(item),
                "created": format_time(item.created),
                "expires": None if item.expires is None else format_time(item.expires),
            }
            for item in manifest.checkpoints
        ],
        "pins": [_flat(pin) for pin in manifest.pins],
        "parent": None
        if manifest.parent is None
        else {**_flat(manifest.parent), "sinks": list(manifest.parent.sinks)},
        **({"sinks_off": list(manifest.sinks_off)} if manifest.sinks_off else {}),
        **({"generation": manifest.generation} if manifest.generation else {}),
        **({} if manifest.floor is None else {"floor": manifest.floor}),
        **({} if manifest.described is None else {"described": manifest.described}),
    }


def _journal(journal: JournalRef) -> dict[str, Json]:
    body = _flat(journal)
    if journal.store is None:
        del body["store"]
    return body


def _flat(
    value: Cursor | JournalRef | CheckpointRef | Pin | Parent | Place,
) -> dict[str, Json]:
    return {item.name: getattr(value, item.name) for item in fields(value)}


def _timeline(item: Timeline) -> dict[str, Json]:
    known: dict[str, Json] = {"resumed": True} if item.resumed else {}
    return {"id": item.id, "since": item.since, **known}


def from_json(body: Fields) -> Manifest:
    claim, replay, journal = body.child("claim"), body.child("replay"), body.child("journal")
    place, status = body.child("place"), body.text("status")
    if status not in [member.value for member in Status]:
        raise body.wrong("status", "one of " + ", ".join(member.value for member in Status))
    return Manifest(
        lineage=body.id("lineage"),
        timelines=_timelines(body),
        claim=Claim(
            epoch=Epoch(claim.number("epoch", least=1)),
            host=claim.text("host"),
            pid=claim.number("pid"),
            time=claim.time("time"),
            **{name: claim.text(name) for name in _OPTIONAL if name in claim.names()},
        ),
        place=Place(place.text("uri"), place.maybe("mark", place.text)),
        status=Status(status),
        replay=Cursor(
            position=Position(replay.number("position")),
            checksum=Checksum(replay.checksum("checksum")),
            epoch=Epoch(replay.number("epoch")),
        ),
        transaction=Transaction(body.number("transaction")),
        journal=JournalRef(
            id=journal.maybe("id", journal.id),
            closed=journal.flag("closed"),
            store=journal.text("store") if "store" in journal.names() else None,
        ),
        program=body.any("program"),
        runs=tuple(run_from_json(run) for run in body.children("runs")),
        progress=progress_from_json(body.child("progress"))
        if "progress" in body.names()
        else NO_PROGRESS,
        checkpoints=tuple(
            CheckpointRef(
                id=item.id("id"),
                transaction=Transaction(item.number("transaction")),
                created=item.time("created"),
                size=item.number("size"),
                checksum=Checksum(item.checksum("checksum")),
                name=item.maybe("name", item.text),
                expires=item.maybe("expires", item.time),
            )
            for item in body.children("checkpoints")
        ),
        pins=tuple(
            Pin(id=pin.id("id"), clone=pin.text("clone"), checkpoint=pin.id("checkpoint"))
            for pin in body.children("pins")
        ),
        parent=None if body.any("parent") is None else _parent(body.child("parent")),
        sinks_off=_names(body, "sinks_off") if "sinks_off" in body.names() else (),
        generation=body.number("generation") if "generation" in body.names() else 0,
        floor=body.id("floor") if "floor" in body.names() else None,
        described=body.text("described") if "described" in body.names() else None,
    )


def _timelines(body: Fields) -> Timelines:
    found = tuple(
        Timeline(
            item.id("id"),
            Transaction(item.number("since")),
            resumed="resumed" in item.names() and item.flag("resumed"),
        )
        for item in body.children("timelines")
    )
    if not found or any(a.since >= b.since for a, b in pairwise(found)):
        raise body.wrong("timelines", "at least one, in rising order")
    return found


def _names(body: Fields, field: str) -> tuple[str, ...]:
    found = body.any(field)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise body.wrong(field, "a list of names")
    return tuple(found)


def _parent(body: Fields) -> Parent:
    return Parent(
        store=body.text("store"),
        lineage=body.id("lineage"),
        checkpoint=body.id("checkpoint"),
        pin=body.maybe("pin", body.id),
        sinks=_names(body, "sinks"),
        until=Position(body.number("until")),
    )
