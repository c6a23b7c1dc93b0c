"""Garbage collection: deletes unreferenced objects, and nothing else (K3).

    1 read     the latest manifest n; every checkpoint that it or a pin names; the versions
               superseded less than `grace` ago. If any is unreadable: stop, delete nothing
    2 list     both stores, once
    3 plan     what to delete, and why: a value computed from 1 and 2; the dry run shows it
    4 delete   move the boundaries first, then delete

The following objects are deleted. Each rule holds however long the collector sleeps between 1 and
4, and whatever other processes do meanwhile:

* A run, a checkpoint's object or an outbox file that n does not name, directly, by a checkpoint or
  by a pin, and whose id is at or below n's floor: no later version will name it
  (`docs/design/0013`). It therefore does not matter if n is no longer the latest version: whatever
  a flush, a checkpoint or a pin adds meanwhile is already named by n, or lies above its floor. A
  fenced writer cannot commit. No clock is involved.
* A manifest before n that is neither among the last `history.versions` nor superseded less than
  `grace` ago. The boundary moves first (`store/sequenced`).
* Entries that no replay needs: neither from n, nor from a version superseded less than `grace` ago,
  nor from the checkpoint *before* the newest, so that the newest may be damaged (K9). Of these,
  only the leading entries that are all older than `journal_keep`, and only up to a checkpoint, or
  else none at all: entries are useful only from a point where replay can begin, and this makes
  every transaction of `journal_keep` restorable (K12). The boundary moves first, and barriers stay
  as `trim` requires (F8): the last few always, the others until three clocks agree on their age. An
  older checkpoint needs no entry to be restored itself.
* Probe objects after an hour, and objects spilled for Spark's workers by an earlier process than
  the present writer after two days. No manifest ever names these.

Names that `journal/paths` does not know are never deleted, nor is anything in another pipeline's
store. In a manual copy nothing is deleted: its journal may be the original's. The listing is made
after the manifest is read: a version that is not listed could not be protected for its readers.
Superseded versions protect their own files for readers. That is a courtesy, so a clock may end it:
a slower reader finds a file missing, and reads the latest version.

Expired checkpoints are first dropped by a commit; only the state read after that commit decides
what is deleted. A clone that no longer names any file of another store frees its pin, in the parent
first and then in its own manifest.

A crash leaves boundaries moved and some objects not deleted; the next collection finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Literal

from stepwell.env import Env
from stepwell.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    StepwellError,
    TruncatedError,
)
from stepwell.journal import paths
from stepwell.journal.journal import BARRIER_KEEP_S
from stepwell.journal.log import Log
from stepwell.journal.trim import BARRIERS_KEPT, Trim, plan_trim
from stepwell.manifest.checkpoint import (
    KEEP,
    Checkpoint,
    beginning_of,
    expired,
    files_of,
    read_checkpoint,
)
from stepwell.manifest.high_water_mark import compare
from stepwell.manifest.history import History
from stepwell.manifest.layout import check_standing, own_journal
from stepwell.manifest.manifest import CheckpointRef, Manifest, Manifests, Parent, Status, Stored
from stepwell.manifest.pins import free_pin
from stepwell.model import Position
from stepwell.store.base import Listed, Store, batched

_TRIES = 20
_PROBE_S = 3600.0
"""A probe takes seconds; deleting the object it is checking would make it fail."""
_SPILL_S = 2 * 86400.0
"""The writer removes its own spilled objects. A fenced writer may still read them."""
_SKEW = timedelta(hours=1)
"""Upper bound on the difference between the clocks of a writer and of a store."""

Reason = Literal["run", "checkpoint", "outbox", "manifest", "entry", "probe", "spill"]
REASONS: dict[Reason, str] = {
    "run": "runs that neither the manifest nor a checkpoint needs",
    "checkpoint": "deleted checkpoints",
    "outbox": "output that was delivered",
    "manifest": "superseded manifests",
    "entry": "journal entries that nothing replays any more",
    "probe": "leftovers of probes",
    "spill": "leftover rows that were written for Spark's workers",
}


@dataclass(frozen=True, slots=True)
class Settings:
    grace_s: float = 600.0
    """How long a superseded version still protects its files for readers."""
    journal_keep_s: float = 7 * 86400.0
    """How long to keep entries that no open will replay."""
    barrier_keep_s: float = BARRIER_KEEP_S
    barriers_kept: int = BARRIERS_KEPT
    """Number of latest barriers to keep whatever their age."""
    checkpoint_keep: int = KEEP
    history: History = field(default_factory=History)


@dataclass(frozen=True, slots=True)
class Garbage:
    """An object to delete."""

    path: str
    size: int
    reason: Reason
    in_journal: bool = False
    """Whether the object is in the journal store, if that is a separate store."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned work of a collection."""

    read: Stored
    """The version from which the plan was computed."""
    garbage: tuple[Garbage, ...]
    expired: tuple[CheckpointRef, ...]
    """Checkpoints to drop first."""
    manifests_up_to: int
    trim: Trim
    """The trim of the journal; its entries are among `garbage`."""
    frees: Parent | None
    """The parent whose files are no longer needed although its pin still exists."""

    def count(self, reason: Reason) -> tuple[int, int]:
        """Number of objects to delete for a reason, and their total size in bytes."""
        sizes = [item.size for item in self.garbage if item.reason == reason]
        return len(sizes), sum(sizes)

    @property
    def bytes(self) -> int:
        return sum(item.size for item in self.garbage)


@dataclass(frozen=True, slots=True)
class Collected:
    plan: Plan
    deleted: int
    """Number of objects deleted: all of the plan, unless the collection was stopped."""
    problem: StepwellError | None = None
    """The error that prevented freeing the pin in the parent, if any."""


class Collector:
    """Collects one pipeline. Any number may run, also while the pipeline is being written."""

    def __init__(
        self,
        store: Store,
        env: Env,
        *,
        journal_store: Store | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._store = store
        self._journal_store = journal_store or store
        self._env = env
        self._settings = settings or Settings()
        self._manifests = Manifests(store, env)

    def plan(self) -> Plan:
        """Plan a collection now. Changes nothing."""
        return plan(self._read(), self._env, self._settings)

    def collect(self, stopping: Callable[[], bool] = lambda: False) -> Collected:
        """Delete unreferenced objects. `stopping` is called before every 1,000 deletes."""
        found = self.plan()
        if found.expired:
            self._manifests.amend(self._drop_expired, "delete expired checkpoints")
            # State read before that commit is stale: a checkpoint may have been pinned or restored.
            found = self.plan()
        deleted = self._delete(found, stopping)
        problem = None
        try:
            if found.frees is not None:
                free_pin(self._manifests, self._env)
        except StepwellError as error:
            problem = error  # The parent cannot be reached now; its pin only costs space.
        return Collected(found, deleted, problem)

    def _drop_expired(self, manifest: Manifest) -> Manifest:
        over = expired(manifest, self._settings.checkpoint_keep, self._env.now())
        return replace(
            manifest, checkpoints=tuple(item for item in manifest.checkpoints if item not in over)
        )

    def _delete(self, found: Plan, stopping: Callable[[], bool]) -> int:
        found.trim.begin(self._journal_store)
        if found.manifests_up_to:
            self._manifests.boundary.advance("manifest", found.manifests_up_to)
        done = 0
        for in_journal, items in groupby(found.garbage, lambda item: item.in_journal):
            store = self._journal_store if in_journal else self._store
            for some in batched(items):
                if stopping():
                    return done
                store.delete(*(item.path for item in some))
                done += len(some)
        found.trim.end(self._journal_store)
        return done

    # Reading what must stay

    def _read(self) -> Read:
        for _ in range(_TRIES):
            found = self._manifests.latest()
            if found is None:
                raise InvalidError(
                    f"there is no pipeline in {self._store.uri}",
                    hint="check the address, and that it is mounted",
                )
            try:
                return self._read_from(found)
            except CorruptError:
                # Another collector may have removed objects that a newer version no longer names.
                if (self._manifests.latest_id(found.id) or 0) <= found.id:
                    raise
        raise ConflictError(f"collect: overtaken by {_TRIES} commits in a row")

    def _read_from(self, found: Stored) -> Read:
        log = Log(self._journal_store, found.manifest.lineage)
        numbers = log.boundary.numbers()
        found = compare(self._manifests, log, found, numbers)
        manifest = found.manifest
        if manifest.status is not Status.READY:
            raise InvalidError(
                f"{self._store.uri} is {manifest.status.value}; nothing is collected in it",
                hint="complete it first: run the same clone or destroy again",
            )
        check_standing(manifest, self._store)
        attached = self._attached(manifest, numbers)
        refs = {ref.id: ref for ref in manifest.checkpoints}
        ids = [*refs, *(pin.checkpoint for pin in manifest.pins if pin.checkpoint not in refs)]
        checkpoints = {id: read_checkpoint(self._store, id, refs.get(id)) for id in ids}
        listing = self._store.list()
        separate = self._journal_store is not self._store
        journal = self._journal_store.list() if separate else listing
        versions = superseded(listing, found.id)
        entries = [item for item in journal if attached and item.path.startswith(paths.JOURNAL)]
        now = self._env.now()
        young = now - timedelta(seconds=self._settings.grace_s)
        self._check_whole(versions, found.id)
        read = [self._version(id) for id, since in versions if since > young]
        return Read(
            found,
            checkpoints,
            tuple(item for item in read if item is not None),
            versions,
            listing,
            self._journal_store,
            journal if separate else (),
            tuple(entries),
            Position(numbers.get("journal", 0)),
            now,
        )

    def _attached(self, manifest: Manifest, numbers: Mapping[str, int]) -> bool:
        """Whether the journal store is the one the manifest names; if not, it may be empty."""
        identity = own_journal(self._journal_store, manifest)
        if identity is None or identity.id != manifest.journal.id:
            return False
        if not numbers:
            raise TruncatedError(
                f"{self._journal_store.uri}/{paths.JOURNAL_BOUNDARY}",
                "missing: whether the latest manifest is the last there was is not known",
                hint="nothing was deleted: open and close the pipeline, which rewrites it",
            )
        return True

    def _check_whole(self, versions: Sequence[tuple[int, datetime]], latest: int) -> None:
        """Check that no version above the boundary, which is read after the listing, is missing."""
        listed = {id for id, _ in versions}
        for id in range(self._collected() + 1, latest):
            if id not in listed:
                raise self._missing(id)

    def _collected(self) -> int:
        return self._manifests.boundary.numbers().get("manifest", 0)

    def _missing(self, id: int) -> TruncatedError:
        return TruncatedError(
            self._manifests.full_name(id),
            "missing, though it was never collected",
            hint="nothing was deleted: stepwell verify shows the rest of the damage",
        )

    def _version(self, id: int) -> Manifest | None:
        """A superseded version; None if another collector has removed it."""
        found = self._manifests.read(id)
        if found is not None:
            return found.manifest
        if id <= self._collected():
            return None
        raise self._missing(id)


@dataclass(frozen=True, slots=True)
class Read:
    """The input of a plan."""

    latest: Stored
    checkpoints: dict[str, Checkpoint]
    """By id: the checkpoints named by the latest version or by its pins."""
    recent: tuple[Manifest, ...]
    """Versions superseded less than `grace` ago."""
    superseded: tuple[tuple[int, datetime], ...]
    listing: tuple[Listed, ...]
    journal_store: Store
    elsewhere: tuple[Listed, ...]
    """All objects of the journal store, if that is a separate store."""
    entries: tuple[Listed, ...]
    """The journal's objects, if it is the journal that the manifest names."""
    trimmed: Position
    """The journal's boundary before this collection."""
    now: datetime


def superseded(listing: Iterable[Listed], latest: int) -> tuple[tuple[int, datetime], ...]:
    """The versions before the latest, each with the time at which the next one superseded it."""
    times = [
        (name.number, item.modified)
        for item in listing
        if (name := paths.parse(item.path)).kind == "manifest" and name.number is not None
    ]
    return tuple((id, since) for (id, _), (_, since) in pairwise(times) if id < latest)


def plan(read: Read, env: Env, settings: Settings) -> Plan:
    """Compute the plan. Pure, except that it reads notes about barriers and possible barriers."""
    manifest = read.latest.manifest
    over = expired(manifest, settings.checkpoint_keep, read.now)
    kept = {id: item for id, item in read.checkpoints.items() if id not in {i.id for i in over}}
    states = [manifest, *(item.state for item in kept.values())]
    files = [file for state in (*states, *read.recent) for file in files_of(state)]
    named = {file.path for file in files if file.root is None}
    named |= {paths.checkpoint(id) for id in kept}
    # Dropping checkpoints adds a version.
    latest = read.latest.id + bool(over)
    manifests_up_to = _manifests_up_to(read, latest, settings)
    garbage: list[Garbage] = []
    # Our clock may be ahead, so the latest time of the storage limits it.
    now = min([read.now, *(item.modified for item in _youngest(read.listing))])
    for item in read.listing:
        reason = _reason(item, manifest, named, manifests_up_to, now)
        if reason is not None:
            garbage.append(Garbage(item.path, item.size, reason))
    for item in read.elsewhere:
        if _is_old_probe(item, now):
            garbage.append(Garbage(item.path, item.size, "probe", True))
    trim = plan_trim(
        read.journal_store,
        env,
        manifest.journal.id or "",  # Without an id, nothing is listed.
        _entries_up_to(read, kept, settings),
        read.trimmed,
        read.entries,
        barrier_keep_s=settings.barrier_keep_s,
        barriers_kept=settings.barriers_kept,
    )
    garbage += [Garbage(item.path, item.size, "entry", True) for item in trim.garbage]
    parent = manifest.parent
    frees = parent is not None and parent.pin is not None and all(f.root is None for f in files)
    return Plan(
        read.latest,
        tuple(garbage),
        over,
        manifests_up_to if any(item.reason == "manifest" for item in garbage) else 0,
        trim,
        parent if frees else None,
    )


def _reason(
    item: Listed, manifest: Manifest, named: set[str], manifests_up_to: int, now: datetime
) -> Reason | None:
    """The reason to delete an object; None if it stays."""
    name = paths.parse(item.path)
    floor = manifest.floor or ""
    if item.path in named:
        return None
    if name.kind == "run":
        return "run" if (name.id or "~") <= floor else None
    if name.kind == "checkpoint":
        return "checkpoint" if (name.id or "~") <= floor else None
    if name.kind == "outbox":
        return "outbox" if (name.id or "~") <= floor else None
    if name.kind == "manifest":
        return "manifest" if name.number is not None and name.number <= manifests_up_to else None
    if name.kind == "spill":
        # The present writer may use its spilled objects for as long as it runs.
        before = min(now - timedelta(seconds=_SPILL_S), manifest.claim.time - _SKEW)
        return "spill" if item.modified <= before else None
    return "probe" if _is_old_probe(item, now) else None


def _youngest(listing: Sequence[Listed]) -> Sequence[Listed]:
    """The newest object, if any: the storage's clock is not behind it."""
    return sorted(listing, key=lambda item: item.modified)[-1:]


def _is_old_probe(item: Listed, now: datetime) -> bool:
    old = item.modified <= now - timedelta(seconds=_PROBE_S)
    return old and paths.parse(item.path).kind == "probe"


def _manifests_up_to(read: Read, latest: int, settings: Settings) -> int:
    young = read.now - timedelta(seconds=settings.grace_s)
    up_to = latest - 1 - settings.history.versions
    first_young = min((id for id, since in read.superseded if since > young), default=latest)
    return max(0, min(up_to, first_young - 1, read.latest.id - 1))


def _replayable(
    read: Read, limit: Position, checkpoints: Sequence[Checkpoint], settings: Settings
) -> Position:
    """The last point up to a limit from which the journal can be replayed.

    An entry is useful only if replay can begin before it: at a checkpoint, or at the beginning.
    """
    manifest = read.latest.manifest
    same = [item.state for item in checkpoints if item.state.generation == manifest.generation]
    before = [s.replay.position for s in same if s.replay.position <= limit]
    if before:
        return max(before)
    whole = read.trimmed == 0 and settings.journal_keep_s > 0
    return Position(0) if whole and beginning_of(manifest) is not None else limit


def _entries_up_to(read: Read, checkpoints: dict[str, Checkpoint], settings: Settings) -> Position:
    """The position up to which the journal is not needed."""
    manifest = read.latest.manifest
    listed = [ref.id for ref in manifest.checkpoints if ref.id in checkpoints]
    starts = [state.replay.position for state in (manifest, *read.recent)]
    starts += [checkpoints[id].state.replay.position for id in listed[-2:]]
    keep = timedelta(seconds=max(settings.journal_keep_s, settings.grace_s))
    now = min([read.now, *(item.modified for item in _youngest(read.entries))])
    young = [
        name.number
        for item in read.entries
        if (name := paths.parse(item.path)).kind == "entry"
        and name.number is not None
        and item.modified > now - keep
    ]
    limit = Position(min([*starts, *(number - 1 for number in young)]))
    return _replayable(read, limit, [checkpoints[id] for id in listed], settings)
