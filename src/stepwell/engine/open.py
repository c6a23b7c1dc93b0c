"""Open a pipeline for writing: claim it, fence the previous writer, replay, serve.

Opening for writing is itself a write (F2): it takes the next epoch in the manifest and the next
position in the journal, and so fences the previous writer. To read a pipeline without disturbing
its writer, use `Manifests.latest` and `JournalReader`.

    1 read the latest manifest; if there is none, the prefix must be empty (K4)
    2 check that this is its journal store and that the end of the journal is intact, that the
      manifest is not older than its high-water mark and its files exist (K6), and that the store
      honours put-if-absent (F9)
    3 claim: epoch + 1, by compare-and-swap
    4 put a barrier at the first free position above the replay position read *after* the claim
    5 check the epoch again; if the store was moved or restored from a backup, begin a timeline
    6 replay exactly (replay position, barrier]
    7 record changes of the journal reference, which checks the epoch again
    8 collect superseded manifests if there are many; serve

A crash at any point leaves a claimed epoch, a barrier, or neither. Nothing that was acknowledged is
lost, and the next opening starts from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from stepwell.env import Env
from stepwell.errors import (
    CollectedError,
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    StepwellError,
    UnknownOutcomeError,
    ensure,
)
from stepwell.journal import paths
from stepwell.journal.entry import Cursor, Draft, Recorded
from stepwell.journal.identity import Identity, write_identity
from stepwell.journal.journal import Journal, Settings
from stepwell.journal.log import Log
from stepwell.manifest.adopt import last_transaction, pin_here, settling
from stepwell.manifest.checkpoint import Damage, check_files, files_of, refuse_damaged
from stepwell.manifest.high_water_mark import compare, mark_fresh, raise_high_water_mark
from stepwell.manifest.history import History, collect_history
from stepwell.manifest.layout import (
    Standing,
    check_standing,
    mark_place,
    obstacles,
    own_journal,
)
from stepwell.manifest.manifest import (
    Change,
    Holder,
    JournalRef,
    Manifest,
    Manifests,
    Place,
    Stored,
    claimed_by,
)
from stepwell.manifest.run_object import store_of
from stepwell.model import Claim, Epoch, Position
from stepwell.store.base import Store
from stepwell.store.probe import probe
from stepwell.store.race import race_new


@dataclass(frozen=True, slots=True)
class Seen:
    """What the caller saw of a pipeline before it decided to open it.

    Spark takes seconds to start, during which another process may claim the pipeline. So the claim
    succeeds only if what the caller saw still holds.
    """

    claim: Claim | None
    """The last claim; None if there was no pipeline."""
    check: Callable[[], None] = lambda: None
    """Called right before the claim; raises `ClaimedError` if something else has changed."""


class Writer:
    """A pipeline held for writing. Once it is fenced or poisoned, every call fails."""

    def __init__(self, holder: Holder, journal: Journal, barrier: Position) -> None:
        self._holder = holder
        self._journal = journal
        self.barrier = barrier
        self.tidied = False
        """Whether this opening collected superseded manifests."""
        self.uncollected: StepwellError | None = None
        """Why this opening failed to collect superseded manifests, if it did."""

    @property
    def epoch(self) -> Epoch:
        return self._holder.claim.epoch

    @property
    def claim(self) -> Claim:
        """The claim of this writer, even if it was fenced since."""
        return self._holder.claim

    @property
    def manifest(self) -> Manifest:
        """The latest manifest this writer knows; raises once the writer is fenced."""
        return self.held.manifest

    @property
    def held(self) -> Stored:
        """The latest manifest, with its version number."""
        self._journal.check()
        return self._holder.current

    @property
    def journal(self) -> Journal:
        return self._journal

    def check(self, undone: str) -> None:
        """Ask the store whether this writer still has the pipeline; `FencedError` if not."""
        self._journal.check()
        try:
            self._holder.check(undone)
        except FencedError as error:
            self._journal.end(error)
            raise

    def append(self, draft: Draft) -> Recorded:
        """Make a draft durable; see `Journal.append`."""
        return self._journal.append(draft)

    def commit(self, change: Change, doing: str, revived: Collection[str] = frozenset()) -> Stored:
        """Commit a change to the manifest; see `Holder.commit`."""
        self._journal.check()
        return self._commit(change, doing, revived)

    def _commit(self, change: Change, doing: str, revived: Collection[str] = frozenset()) -> Stored:
        try:
            return self._holder.commit(change, doing, revived)
        except FencedError as error:
            self._journal.end(error)
            raise
        except BaseException as error:
            if self._holder.under_way:
                # A keyboard interrupt, too: memory and store may disagree from here on.
                self._journal.end(
                    UnknownOutcomeError(
                        f"an earlier commit to the manifest ({doing}) has an unknown outcome: "
                        f"{getattr(error, 'message', error)}",
                        hint="open the pipeline again: it detects whether the commit was made",
                    )
                )
            raise

    def close(self) -> None:
        """Release the pipeline. If the manifest holds everything, record that the journal is done.

        Waits for a running append. Does nothing if the writer was fenced, poisoned or closed.
        """
        try:
            tip = self._journal.close(
                InvalidError("this pipeline was closed", hint="open it again")
            )
        except (FencedError, UnknownOutcomeError, InvalidError):
            return
        if self._holder.current.manifest.replay == tip:
            self._commit(
                lambda m: replace(m, journal=replace(m.journal, closed=True)), "close the journal"
            )
            self.raise_high_water_mark()

    def raise_high_water_mark(self) -> None:
        """Record the manifest's version next to the journal. Best effort: nothing depends on it."""
        with suppress(StepwellError):
            raise_high_water_mark(self._journal.log, self._holder.current.id)


class Opening:
    """A pipeline that is claimed and whose previous writer is fenced, but which does not serve yet.

    Replay it to the end, then `serve`. A long replay may commit on the way.
    """

    def __init__(
        self, writer: Writer, journal: JournalRef, manifests: Manifests, history: History
    ) -> None:
        self._writer = writer
        self._journal = journal
        self._manifests = manifests
        self._history = history
        self._entries = 0
        self._replayed = False

    @property
    def manifest(self) -> Manifest:
        return self._writer.manifest

    @property
    def barrier(self) -> Position:
        """The last position to replay."""
        return self._writer.barrier

    def replay(self) -> Iterator[Recorded]:
        """The entries to replay, in order."""
        for recorded in self._writer.journal.replay():
            self._entries += 1
            yield recorded
        self._replayed = True

    def commit(self, change: Change, doing: str, revived: Collection[str] = frozenset()) -> Stored:
        return self._writer.commit(change, doing, revived)

    def serve(self) -> Writer:
        """Record changes of the journal reference, which checks the epoch; collect; serve."""
        ensure(self._replayed, "a pipeline serves after it was replayed")
        ref, tip = self._journal, self._writer.journal.tip
        if not self._entries:
            # There were only barriers. Without this commit, each opening would read all of them.
            self.commit(lambda m: replace(m, journal=ref, replay=tip), "open the pipeline")
        elif self.manifest.journal != ref:
            self.commit(lambda m: replace(m, journal=ref), "attach the journal store")
        else:
            self._writer.check("the pipeline was not opened")
        try:
            gone = collect_history(self._manifests, self._writer.held, self._history)
            self._writer.tidied = bool(gone)
        except StepwellError as error:
            # The pipeline is open and intact; garbage costs only time and space.
            self._writer.uncollected = error
        return self._writer


def open_writer(
    store: Store,
    env: Env,
    *,
    journal_store: Store | None = None,
    replay: Callable[[Recorded], None] = lambda recorded: None,
    settings: Settings | None = None,
    history: History | None = None,
    create: bool = True,
) -> Writer:
    """Take over a pipeline, replay it and serve, without work in between."""
    opening = take_over(
        store,
        env,
        journal_store=journal_store,
        settings=settings,
        history=history,
        create=create,
    )
    for recorded in opening.replay():
        replay(recorded)
    return opening.serve()


def take_over(
    store: Store,
    env: Env,
    *,
    journal_store: Store | None = None,
    settings: Settings | None = None,
    history: History | None = None,
    create: bool = True,
    repair: bool = False,
    replay_from: Cursor | None = None,
    consider: Callable[[Manifest | None], None] = lambda manifest: None,
    writer: str | None = None,
    seen: Seen | None = None,
) -> Opening:
    """Steps 1 to 5: claim a pipeline and fence its writer. In an empty store, begin one.

    Without `create` an empty store is refused: where a pipeline is expected, a mount may be
    missing. With `repair` the manifest's files may be damaged, and are not used; `replay_from` is
    then the cursor of a checkpoint, before the manifest's. `consider` is called with the manifest
    before the claim (None if there is none) and may refuse. `writer` is the id of the handle that
    claims. With `seen`, raises `ClaimedError` and changes nothing if another process has claimed
    the pipeline since.
    """
    settings = settings or Settings()
    journal_store = journal_store or store
    manifests = Manifests(store, env, settings.retry)

    found = manifests.latest()
    if found is None:
        found = _only_if_empty(manifests, store, journal_store)
    if found is None and not create:
        raise InvalidError(
            f"there is no pipeline in {store.uri}", hint="check the address, and that it is mounted"
        )
    last = Position(0)
    if found is not None:
        manifests.check_ready(found.manifest)
        check_standing(found.manifest, store)
        own_journal(journal_store, found.manifest)
        found, last = _look_ahead(manifests, journal_store, found, env, repair=repair)
    consider(None if found is None else found.manifest)
    for each in (store,) if journal_store is store else (store, journal_store):
        probe(each, env)
        if found is None:
            race_new(each, env)

    if seen is not None:
        seen.check()
    place = mark_place(store, None if found is None else found.manifest)
    if found is not None and check_standing(found.manifest, store) is not Standing.HERE:
        # Before the claim, so that a failure does not fence the writer. A surplus pin costs space.
        pin_here(found.manifest, place.uri, store, env)
    holder = _hold(manifests, found, place, writer, seen)
    claimed = holder.current.manifest
    journal_id = _attach(journal_store, holder.current, env)
    journal = Journal(
        journal_store,
        env,
        lineage=claimed.lineage,
        epoch=holder.claim.epoch,
        replayed=replay_from or claimed.replay,
        guard=holder,
        settings=settings,
        seen=last,
    )
    barrier = journal.take_over()
    held = Writer(holder, journal, barrier)
    if check_standing(claimed, store) is not Standing.HERE:
        _settle(held, store, journal.log, place, env)
    return Opening(
        held,
        replace(claimed.journal, id=journal_id, closed=False),
        manifests,
        history or History(),
    )


def _settle(writer: Writer, store: Store, log: Log, place: Place, env: Env) -> None:
    """Begin a timeline in a store that was moved or restored from a backup (F13).

    After the barrier, so that no other writer can extend the journal that is read here.
    """
    manifest = writer.manifest
    since = last_transaction(log, manifest.replay, manifest.transaction)
    pin_here(manifest, place.uri, store, env)
    writer.commit(settling(place, env.new_id(), since), "begin a timeline")


def begin_pipeline(store: Store, env: Env, *, journal_store: Store | None = None) -> Manifest:
    """Begin a pipeline if there is none, and return the manifest, whichever process began it.

    A crash leaves an empty pipeline, or none.
    """
    manifests = Manifests(store, env)
    found = manifests.latest()
    if found is None:
        found = _only_if_empty(manifests, store, journal_store or store)
    if found is None:
        probe(store, env)
        race_new(store, env)
        found = _hold(manifests, None, mark_place(store)).current
    return found.manifest


def _look_ahead(
    manifests: Manifests, journal_store: Store, found: Stored, env: Env, *, repair: bool
) -> tuple[Stored, Position]:
    """Check that every needed object exists and can be read; return where the journal ends.

    This comes before the claim: a process that cannot open a pipeline must not fence its writer.
    The latest manifest must not be older than the high-water mark, and its files must exist with
    their sizes (K6); a repair skips both checks.
    """
    while True:
        log = Log(journal_store, found.manifest.lineage)
        try:
            numbers = log.boundary.numbers()
            if not repair:
                found = compare(manifests, log, found, numbers)
                refuse_damaged(_damage(manifests.store, found.manifest, env))
            after = found.manifest.replay.position
            last = log.survey(after, Position(numbers.get("journal", 0)))
            if last > after:
                log.read(last)
            return found, last
        except CorruptError:
            # Its writer may have flushed, collected and trimmed in the meantime.
            newer = manifests.latest()
            if newer is None or newer.id == found.id:
                raise
            found = newer


def _damage(store: Store, manifest: Manifest, env: Env) -> tuple[Damage, ...]:
    return check_files(files_of(manifest), lambda root: store_of(store, root, env))


def _only_if_empty(manifests: Manifests, store: Store, journal_store: Store) -> Stored | None:
    """Refuse to begin a pipeline in a store that is not empty (K4)."""
    for place in (store,) if journal_store is store else (store, journal_store):
        others = obstacles(place)
        if not others:
            continue
        found = manifests.latest()
        if found is not None:  # Another process began it just now.
            return found
        raise CorruptError(
            f"{store.uri}/{paths.MANIFESTS}",
            f"there is no manifest, but {place.uri} is not empty: it holds {others[0]}"
            + (" and more" if len(others) > 1 else ""),
            hint="nothing was touched. If a pipeline lived here, restore the manifest/ objects "
            "from a backup; for a new pipeline choose an empty location",
        )
    return None


def _attach(journal_store: Store, held: Stored, env: Env) -> str:
    """Mark a fresh journal store as part of this pipeline; return the id of the journal."""
    manifest = held.manifest
    identity = own_journal(journal_store, manifest)
    if identity is not None:
        return identity.id
    first = journal_store.list(paths.JOURNAL, limit=1)
    if first and paths.parse(first[0].path).kind == "entry":
        identity = own_journal(journal_store, manifest)  # Did another process attach it just now?
        if identity is None:
            raise CorruptError(
                f"{journal_store.uri}/{paths.IDENTITY}",
                f"missing, though the journal store holds {first[0].path}",
                hint="restore the object from a backup",
            )
        return identity.id
    mark_fresh(Log(journal_store), held.id, manifest.replay.position)
    write_identity(journal_store, Identity(manifest.lineage, env.new_id()))
    return _attach(journal_store, held, env)


def _hold(
    manifests: Manifests,
    found: Stored | None,
    place: Place,
    writer: str | None = None,
    seen: Seen | None = None,
) -> Holder:
    if found is None:
        try:
            return manifests.begin(writer, place)
        except (ConflictError, CollectedError):
            pass  # Another process was first: claim its pipeline like any other.
    expected = None if seen is None else seen.claim
    if seen is not None and expected is None:
        found = found or manifests.latest()
        if found is not None:
            raise claimed_by(manifests.store.uri, found.manifest.claim)
    return manifests.claim(found, writer, expected)
