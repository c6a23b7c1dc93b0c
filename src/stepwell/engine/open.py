"""Opening a pipeline for writing: claim it, fence the writer before, replay, serve.

Opening for writing is itself a write (F2): it takes the next epoch in the manifest and the next
position in the journal, and so fences whoever had the pipeline. Looking at one without disturbing
its writer is what `Manifests.latest` and `JournalReader` are for.

    1 read the latest manifest; none: only if the prefix is empty (K4)
    2 is this its journal store, and the end of it whole? is the manifest the latest that was
      known, are its files there? (K6) is put-if-absent honoured? (F9)
    3 claim: epoch + 1, by compare-and-swap
    4 barrier at the first free position above the replay position read *after* the claim
    5 check the epoch once more; if the store was put back or moved, begin a timeline
    6 replay exactly (replay position, barrier]
    7 record what is new about the journal, which checks the epoch once more
    8 collect superseded manifests, if many have gathered; serve

A crash at any point leaves an epoch claimed, a barrier put, or neither; nothing that was
acknowledged is lost, and the next opening starts from 1.
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
from stepwell.model import Claim, Epoch, Position
from stepwell.state.adopt import last_transaction, pin_here, settling
from stepwell.state.checkpoint import Damage, check_files, files_of, refuse_damaged
from stepwell.state.history import History, collect_history
from stepwell.state.manifest import (
    Change,
    Holder,
    JournalRef,
    Manifest,
    Manifests,
    Place,
    Stored,
    claimed_by,
)
from stepwell.state.places import (
    Standing,
    check_standing,
    in_the_way,
    mark_place,
    own_journal,
)
from stepwell.state.runs import store_of
from stepwell.state.witness import compare, mark_fresh, raise_witness
from stepwell.store.base import Store
from stepwell.store.probe import probe


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a pipeline by whoever then decided to open it.

    Between the look and the claim lie seconds in which Spark starts, and in which another process
    may claim the pipeline. So the claim is made only if what was seen is still so.
    """

    claim: Claim | None
    """The last one; None: there was no pipeline."""
    check: Callable[[], None] = lambda: None
    """Asked right before the claim; raises `ClaimedError` if something else has changed."""


class Writer:
    """A pipeline held for writing. Once it is fenced or poisoned, everything on it fails."""

    def __init__(self, holder: Holder, journal: Journal, barrier: Position) -> None:
        self._holder = holder
        self._journal = journal
        self.barrier = barrier
        self.tidied = False
        """Whether this opening found enough that was superseded to collect it."""
        self.uncollected: StepwellError | None = None
        """Why this opening did not collect superseded manifests, if it should have."""

    @property
    def epoch(self) -> Epoch:
        return self._holder.claim.epoch

    @property
    def claim(self) -> Claim:
        """The claim of this writer, whatever became of it."""
        return self._holder.claim

    @property
    def manifest(self) -> Manifest:
        """The latest manifest this writer knows; fails once the writer is fenced."""
        return self.held.manifest

    @property
    def held(self) -> Stored:
        """The same, with the number of its version."""
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
                # Also an interrupt from the keyboard: memory and store may disagree from here on.
                self._journal.end(
                    UnknownOutcomeError(
                        f"an earlier commit to the manifest ({doing}) has an unknown outcome: "
                        f"{getattr(error, 'message', error)}",
                        hint="open the pipeline again: it will see whether it was made",
                    )
                )
            raise

    def close(self) -> None:
        """Leave in good order. If the manifest holds everything, record that the journal may go.

        Waits for an append under way. A writer that was fenced, poisoned or closed before has
        nothing to leave.
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
            self.bear_witness()

    def bear_witness(self) -> None:
        """Note beside the journal which version there is; without the note nothing else is lost."""
        with suppress(StepwellError):
            raise_witness(self._journal.log, self._holder.current.id)


class Opening:
    """A pipeline that is ours, and whose old writer is fenced, but which does not serve yet.

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
        """The last position that is replayed."""
        return self._writer.barrier

    def replay(self) -> Iterator[Recorded]:
        """What must be replayed, in order."""
        for recorded in self._writer.journal.replay():
            self._entries += 1
            yield recorded
        self._replayed = True

    def commit(self, change: Change, doing: str, revived: Collection[str] = frozenset()) -> Stored:
        return self._writer.commit(change, doing, revived)

    def serve(self) -> Writer:
        """Record what is new about the journal, which checks the epoch once more; tidy up."""
        ensure(self._replayed, "a pipeline serves only once it has been replayed")
        ref, tip = self._journal, self._writer.journal.tip
        if not self._entries:
            # Only barriers lay there. Without this, a pipeline that is opened again and again would
            # read all of them each time.
            self.commit(lambda m: replace(m, journal=ref, replay=tip), "open the pipeline")
        elif self.manifest.journal != ref:
            self.commit(lambda m: replace(m, journal=ref), "attach the journal store")
        else:
            self._writer.check("the pipeline was not opened")
        try:
            gone = collect_history(self._manifests, self._writer.held, self._history)
            self._writer.tidied = bool(gone)
        except StepwellError as error:
            # The pipeline is open and whole; what was not collected costs time and space only.
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
    """Take over a pipeline and replay it: `take_over` for those who need nothing in between."""
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

    Without `create` an empty store is refused: where a pipeline is expected, a disk may be missing.
    `repair`: the manifest's own files may be damaged, and are not used. `replay_from`: an earlier
    place than the manifest's, that of a checkpoint.
    `consider` is given the manifest before the claim, None where there is none yet, and may refuse.
    `writer` is the id of the handle that claims. `seen`: only if that is still so; `ClaimedError`
    if not, with nothing changed.
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
    probe(store, env)
    if journal_store is not store:
        probe(journal_store, env)

    if seen is not None:
        seen.check()
    place = mark_place(store, None if found is None else found.manifest)
    if found is not None and check_standing(found.manifest, store) is not Standing.HERE:
        # Before the claim: who cannot pin must not fence a writer. A surplus pin costs space only.
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
    """The store was put back from a backup, or moved: from here on it is another history (F13).

    Behind the barrier, so that the journal ends where it is read to end.
    """
    manifest = writer.manifest
    since = last_transaction(log, manifest.replay, manifest.transaction)
    pin_here(manifest, place.uri, store, env)
    writer.commit(settling(place, env.new_id(), since), "begin a timeline")


def begin_pipeline(store: Store, env: Env, *, journal_store: Store | None = None) -> Manifest:
    """Begin a pipeline where there is none, and say what is there now: whoever began it.

    A crash leaves a pipeline that holds nothing, or none.
    """
    manifests = Manifests(store, env)
    found = manifests.latest()
    if found is None:
        found = _only_if_empty(manifests, store, journal_store or store)
    if found is None:
        probe(store, env)
        found = _hold(manifests, None, mark_place(store)).current
    return found.manifest


def _look_ahead(
    manifests: Manifests, journal_store: Store, found: Stored, env: Env, *, repair: bool
) -> tuple[Stored, Position]:
    """Is all there that this needs, and of a format that we read? Say where the journal ends.

    Asked before the claim: who cannot open a pipeline must not fence the writer that has it. The
    latest manifest must not be older than its witness, and its files must be there with their sizes
    (K6); a repair does without both.
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
            # Its writer may have flushed, collected and trimmed meanwhile.
            newer = manifests.latest()
            if newer is None or newer.id == found.id:
                raise
            found = newer


def _damage(store: Store, manifest: Manifest, env: Env) -> tuple[Damage, ...]:
    return check_files(files_of(manifest), lambda root: store_of(store, root, env))


def _only_if_empty(manifests: Manifests, store: Store, journal_store: Store) -> Stored | None:
    """No manifest: a new pipeline only if there is nothing else either (K4)."""
    for place in (store,) if journal_store is store else (store, journal_store):
        others = in_the_way(place)
        if not others:
            continue
        found = manifests.latest()
        if found is not None:  # Somebody began it just now.
            return found
        raise CorruptError(
            f"{store.uri}/{paths.MANIFESTS}",
            f"there is no manifest, but {place.uri} is not empty: it holds {others[0]}"
            + (" and more" if len(others) > 1 else ""),
            hint="nothing was touched. If a pipeline lived here, restore the manifest/ objects "
            "from a backup; for a new pipeline choose an empty place",
        )
    return None


def _attach(journal_store: Store, held: Stored, env: Env) -> str:
    """The id of the journal; a fresh journal store is marked as ours."""
    manifest = held.manifest
    identity = own_journal(journal_store, manifest)
    if identity is not None:
        return identity.id
    first = journal_store.list(paths.JOURNAL, limit=1)
    if first and paths.parse(first[0].path).kind == "entry":
        identity = own_journal(journal_store, manifest)  # Somebody attached it just now?
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
            pass  # Somebody else was first, or at it since; then it is a pipeline like any other.
    expected = None if seen is None else seen.claim
    if seen is not None and expected is None:
        found = found or manifests.latest()
        if found is not None:
            raise claimed_by(manifests.store.uri, found.manifest.claim)
    return manifests.claim(found, writer, expected)
