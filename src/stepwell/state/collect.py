"""Collection: removing what nothing needs, and nothing else (K3).

    1 read     the latest manifest n; every checkpoint it names or that a pin names; the versions
               superseded less than `grace` ago. One that cannot be read: stop, delete nothing
    2 list     both stores, once
    3 plan     what goes, and why: a value, computed from what was read; the dry run shows it
    4 do it    boundaries first, then the deletes

What goes, and why nobody will miss it, now or later, however long the collector sleeps between 1
and 4 and whatever others do meanwhile:

* A run, a checkpoint's object or a file of the outbox that n does not name, by itself, by a
  checkpoint or by a pin, and whose id is at or below n's floor: no later version will name it
  (`docs/design/0013`). So it does not matter that n is not the latest any more: what a flush, a
  checkpoint or a pin adds meanwhile is named by n already, or lies above its floor. A writer that
  was fenced cannot commit. No clock is asked.
* A manifest before n that is neither among the last `history.versions` nor superseded less than
  `grace` ago. The boundary moves first (`store/sequenced`).
* Entries that no replay begins before: neither from n, nor from a version superseded less than
  `grace` ago, nor from the checkpoint *before* the newest, so that the newest may be damaged (K9).
  And from the first on only as far as all are older than `journal_keep`, and then only up to a
  checkpoint, or else none at all: entries are of use only from a place where replay can begin, and
  so any transaction of `journal_keep` can be restored (K12). The boundary moves first, and barriers
  stay as `trim` says (F8): the last few always, the others until three clocks agree on their age. A
  checkpoint that is older needs no entry to be restored itself.
* What a probe left an hour ago, and what a process before the one that has the pipeline spilled for
  Spark's workers, two days ago. No manifest ever names that.

Names that `journal/paths` does not know are never deleted, nor is anything in another pipeline's
store. In a copy made by hand nothing is: its journal may be the original's. The listing comes after
the manifest: a version that is not listed could not be protected for those who read it. Superseded
versions protect their own files, for readers: that is a courtesy, and may go by a clock. A reader
that was slower finds a file missing, and reads the latest version.

Checkpoints whose time is over are let go of by a commit first; only what was read after that
commit decides what is deleted. A clone that names no file of another store any more frees its
pin: in the parent first, then in its own manifest.

A crash leaves boundaries moved and some objects still there; the next collection finds them.
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
from stepwell.model import Position
from stepwell.state.checkpoint import (
    KEEP,
    Checkpoint,
    beginning_of,
    expired,
    files_of,
    read_checkpoint,
)
from stepwell.state.history import History
from stepwell.state.manifest import CheckpointRef, Manifest, Manifests, Parent, Status, Stored
from stepwell.state.pins import free_pin
from stepwell.state.places import check_standing, own_journal
from stepwell.state.witness import compare
from stepwell.store.base import Listed, Store, batched

_TRIES = 20
_PROBE_S = 3600.0
"""A probe takes seconds; to delete what one is looking at would make it fail."""
_SPILL_S = 2 * 86400.0
"""What is spilled is removed by whoever wrote it. One that was fenced may read it yet."""
_SKEW = timedelta(hours=1)
"""By so much the clocks of a writer and of a store may differ."""

Reason = Literal["run", "checkpoint", "outbox", "manifest", "entry", "probe", "spill"]
REASONS: dict[Reason, str] = {
    "run": "runs that neither the manifest nor a checkpoint needs",
    "checkpoint": "checkpoints that were let go",
    "outbox": "output that was delivered",
    "manifest": "superseded manifests",
    "entry": "journal entries that nothing replays any more",
    "probe": "leftovers of probes",
    "spill": "rows that were written for Spark's workers, and forgotten",
}


@dataclass(frozen=True, slots=True)
class Settings:
    grace_s: float = 600.0
    """How long a version that was superseded still protects its files, for those who read it."""
    journal_keep_s: float = 7 * 86400.0
    """How long entries stay that no opening replays any more."""
    barrier_keep_s: float = BARRIER_KEEP_S
    barriers_kept: int = BARRIERS_KEPT
    """How many of the last barriers stay whatever their age."""
    checkpoint_keep: int = KEEP
    history: History = field(default_factory=History)


@dataclass(frozen=True, slots=True)
class Doomed:
    """An object that goes."""

    path: str
    size: int
    reason: Reason
    in_journal: bool = False
    """Whether it lies in the journal store, where that is another one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a collection would do."""

    read: Stored
    """The version it was computed from."""
    doomed: tuple[Doomed, ...]
    expired: tuple[CheckpointRef, ...]
    """Checkpoints to be let go of first."""
    manifests_up_to: int
    trim: Trim
    """What becomes of the journal; its entries are among `doomed`."""
    frees: Parent | None
    """The parent whose files are not needed any more, though its pin is there."""

    def count(self, reason: Reason) -> tuple[int, int]:
        """How many objects go for a reason, and how many bytes they have."""
        sizes = [item.size for item in self.doomed if item.reason == reason]
        return len(sizes), sum(sizes)

    @property
    def bytes(self) -> int:
        return sum(item.size for item in self.doomed)


@dataclass(frozen=True, slots=True)
class Collected:
    plan: Plan
    deleted: int
    """How many objects were deleted: all of the plan, unless it was told to stop."""
    problem: StepwellError | None = None
    """Why the pin in the parent was not freed, if it should have been."""


class Collector:
    """Collects one pipeline. Any number may run, also while it is written to."""

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
        """What would go now. Changes nothing."""
        return plan(self._read(), self._env, self._settings)

    def collect(self, stopping: Callable[[], bool] = lambda: False) -> Collected:
        """Delete what nothing needs. `stopping` is asked before every 1,000 deletes."""
        found = self.plan()
        if found.expired:
            self._manifests.amend(self._let_go, "let go of checkpoints whose time is over")
            # What was read before that commit is not enough: somebody may have pinned one of them,
            # or gone back to it.
            found = self.plan()
        deleted = self._delete(found, stopping)
        problem = None
        try:
            if found.frees is not None:
                free_pin(self._manifests, self._env)
        except StepwellError as error:
            problem = error  # The parent cannot be reached now; its pin costs space only.
        return Collected(found, deleted, problem)

    def _let_go(self, manifest: Manifest) -> Manifest:
        over = expired(manifest, self._settings.checkpoint_keep, self._env.now())
        return replace(
            manifest, checkpoints=tuple(item for item in manifest.checkpoints if item not in over)
        )

    def _delete(self, found: Plan, stopping: Callable[[], bool]) -> int:
        found.trim.begin(self._journal_store)
        if found.manifests_up_to:
            self._manifests.boundary.advance("manifest", found.manifests_up_to)
        done = 0
        for in_journal, items in groupby(found.doomed, lambda item: item.in_journal):
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
                raise InvalidError(f"there is no pipeline in {self._store.uri}")
            try:
                return self._read_from(found)
            except CorruptError:
                # Another collector may have removed what a newer version does not name any more.
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
                hint="finish what was begun: run the same clone or destroy again",
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
        """Whether the journal store is the one that the manifest means; not: it may be empty."""
        identity = own_journal(self._journal_store, manifest)
        if identity is None or identity.id != manifest.journal.id:
            return False
        if not numbers:
            raise TruncatedError(
                f"{self._journal_store.uri}/{paths.JOURNAL_BOUNDARY}",
                "missing: whether the latest manifest is the last there was is not known",
                hint="nothing was deleted: open and close the pipeline, which writes it anew",
            )
        return True

    def _check_whole(self, versions: Sequence[tuple[int, datetime]], latest: int) -> None:
        """Above the boundary, which is read after the listing, no version may be missing."""
        listed = {id for id, _ in versions}
        for id in range(self._collected() + 1, latest):
            if id not in listed:
                raise self._missing(id)

    def _collected(self) -> int:
        return self._manifests.boundary.numbers().get("manifest", 0)

    def _missing(self, id: int) -> TruncatedError:
        return TruncatedError(
            self._manifests.where(id),
            "missing, though it was never collected",
            hint="nothing was deleted: stepwell verify says what else is damaged",
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
    """All that a plan is computed from."""

    latest: Stored
    checkpoints: dict[str, Checkpoint]
    """By id: those that the latest version names, and those that its pins name."""
    recent: tuple[Manifest, ...]
    """Versions superseded less than `grace` ago."""
    superseded: tuple[tuple[int, datetime], ...]
    listing: tuple[Listed, ...]
    journal_store: Store
    beside: tuple[Listed, ...]
    """All of the journal store, where that is another one."""
    entries: tuple[Listed, ...]
    """The journal in it, if it is the one that the manifest means."""
    trimmed: Position
    """Up to where it was trimmed before."""
    now: datetime


def superseded(listing: Iterable[Listed], latest: int) -> tuple[tuple[int, datetime], ...]:
    """The versions before the latest, and since when each is superseded: when the next one came."""
    times = [
        (name.number, item.modified)
        for item in listing
        if (name := paths.parse(item.path)).kind == "manifest" and name.number is not None
    ]
    return tuple((id, since) for (id, _), (_, since) in pairwise(times) if id < latest)


def plan(read: Read, env: Env, settings: Settings) -> Plan:
    """What goes. Pure, but for a look at notes about barriers, and entries that may be some."""
    manifest = read.latest.manifest
    over = expired(manifest, settings.checkpoint_keep, read.now)
    kept = {id: item for id, item in read.checkpoints.items() if id not in {i.id for i in over}}
    states = [manifest, *(item.state for item in kept.values())]
    files = [file for state in (*states, *read.recent) for file in files_of(state)]
    named = {file.path for file in files if file.root is None}
    named |= {paths.checkpoint(id) for id in kept}
    # To let go of checkpoints is one more version.
    latest = read.latest.id + bool(over)
    manifests_up_to = _manifests_up_to(read, latest, settings)
    doomed: list[Doomed] = []
    # Ours may be ahead; the storage's clock counts as far as it shows.
    now = min([read.now, *(item.modified for item in _youngest(read.listing))])
    for item in read.listing:
        reason = _reason(item, manifest, named, manifests_up_to, now)
        if reason is not None:
            doomed.append(Doomed(item.path, item.size, reason))
    for item in read.beside:
        if _is_old_probe(item, now):
            doomed.append(Doomed(item.path, item.size, "probe", True))
    trim = plan_trim(
        read.journal_store,
        env,
        manifest.journal.id or "",  # Without one nothing is listed.
        _entries_up_to(read, kept, settings),
        read.trimmed,
        read.entries,
        barrier_keep_s=settings.barrier_keep_s,
        barriers_kept=settings.barriers_kept,
    )
    doomed += [Doomed(item.path, item.size, "entry", True) for item in trim.doomed]
    parent = manifest.parent
    frees = parent is not None and parent.pin is not None and all(f.root is None for f in files)
    return Plan(
        read.latest,
        tuple(doomed),
        over,
        manifests_up_to if any(item.reason == "manifest" for item in doomed) else 0,
        trim,
        parent if frees else None,
    )


def _reason(
    item: Listed, manifest: Manifest, named: set[str], manifests_up_to: int, now: datetime
) -> Reason | None:
    """Why an object goes; None: it stays."""
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
        # Whoever has the pipeline may use what it spilled for as long as it runs.
        before = min(now - timedelta(seconds=_SPILL_S), manifest.claim.time - _SKEW)
        return "spill" if item.modified <= before else None
    return "probe" if _is_old_probe(item, now) else None


def _youngest(listing: Sequence[Listed]) -> Sequence[Listed]:
    """The youngest object, if there is one: the storage's clock is not behind it."""
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
    """The last place up to a limit from which the journal can be followed.

    An entry is of use only if replay can begin before it: at a checkpoint, or at the beginning.
    """
    manifest = read.latest.manifest
    same = [item.state for item in checkpoints if item.state.generation == manifest.generation]
    before = [s.replay.position for s in same if s.replay.position <= limit]
    if before:
        return max(before)
    whole = read.trimmed == 0 and settings.journal_keep_s > 0
    return Position(0) if whole and beginning_of(manifest) is not None else limit


def _entries_up_to(read: Read, checkpoints: dict[str, Checkpoint], settings: Settings) -> Position:
    """Up to where the journal is needed by nobody."""
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
