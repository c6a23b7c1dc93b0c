"""A pipeline reduced to its bones: rows in, rows kept. What the real engine does, without Spark.

It uses the very classes of the package: `open_writer`, `Writer.append`, `Writer.commit`, `trim`.
A row is a text; a flush writes all rows since the last one into a run object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stepwell.engine.open import Writer, open_writer
from stepwell.env import Env, MonotonicIds
from stepwell.errors import TruncatedError
from stepwell.journal.entry import Cursor, Draft, Input, Kind, Recorded
from stepwell.journal.journal import Settings
from stepwell.journal.log import Log
from stepwell.manifest.checkpoint import adding, write_checkpoint
from stepwell.manifest.history import History
from stepwell.manifest.manifest import Manifest, Manifests, Run
from stepwell.manifest.run_object import write_run
from stepwell.model import Transaction, checksum
from stepwell.store.base import Store
from stepwell.store.sealed import read_sealed, seal
from tests.trimming import trim

RUN_FORMAT = "stepwell-tinyrun/1"


def draft(env: Env, row: str, transaction: int = 1) -> Draft:
    data = row.encode()
    item = Input("push", "t", 1, checksum([data]), None, data)
    return Draft(Kind.STEP, Transaction(transaction), 0, True, env.now(), (item,))


def rows_of(recorded: Recorded) -> list[str]:
    return [bytes(item.data or b"").decode() for item in recorded.entry.draft.inputs]


class Tiny:
    """A writer with its rows in memory. Raises whatever the package raises."""

    def __init__(
        self,
        store: Store,
        env: Env,
        journal_store: Store | None = None,
        settings: Settings | None = None,
        history: History | None = None,
    ) -> None:
        self.store = store
        self.journal_store = journal_store or store
        self.env = MonotonicIds(env)
        self.settings = settings or Settings()
        self.unflushed: list[str] = []
        self.writer: Writer = open_writer(
            store,
            env,
            journal_store=journal_store,
            replay=self._replay,
            settings=self.settings,
            history=history,
        )
        self.env.above(self.writer.manifest.floor)

    def _replay(self, recorded: Recorded) -> None:
        self.unflushed += rows_of(recorded)

    def push(self, row: str) -> None:
        """Durable when it returns."""
        number = self.writer.manifest.transaction + len(self.unflushed) + 1
        self.writer.append(draft(self.env, row, number))
        self.unflushed.append(row)

    def flush(self, *, merge: bool = False) -> None:
        """The run first, then the manifest that names it and moves the replay position.

        `merge`: one run of all rows takes the place of those before.
        """
        tip = self.writer.journal.tip
        if tip == self.writer.manifest.replay and not merge:
            return
        count = len(self.unflushed)
        old = () if merge else self.writer.manifest.runs
        rows = self.rows() if merge else list(self.unflushed)
        runs: tuple[Run, ...] = ()
        if rows:
            body = seal(RUN_FORMAT, {"rows": rows})
            runs = (write_run(self.store, self.env, "t", body, len(rows)),)
        floor = self.env.new_id()

        def change(before: Manifest) -> Manifest:
            return replace(
                before,
                runs=old + runs,
                replay=tip,
                transaction=Transaction(before.transaction + count),
                floor=floor,
            )

        self.writer.commit(change, "flush")
        self.unflushed = []

    def checkpoint(self, keep: int = 2) -> None:
        """Keep what is flushed; drop the oldest beyond the given number."""
        ref = write_checkpoint(self.store, self.env, self.writer.manifest)
        self.writer.commit(adding(ref, keep), "checkpoint")

    def rows(self) -> list[str]:
        return [*flushed_rows(self.store, self.writer.manifest), *self.unflushed]

    def close(self) -> None:
        self.writer.close()


def collect(
    store: Store,
    env: Env,
    *,
    journal_store: Store | None = None,
    barrier_keep_s: float,
    only_trim: bool = False,
) -> None:
    """Trim the journal behind the replay position and drop manifests behind the latest.

    Barriers go by age alone, however few there are; the first call begins to count it.
    """
    manifests = Manifests(store, env)
    latest = manifests.latest()
    if latest is None:
        return
    trim(
        journal_store or store,
        env,
        latest.manifest.replay.position,
        barrier_keep_s=barrier_keep_s,
        barriers_kept=0,
    )
    if latest.id > 1 and not only_trim:
        manifests.collect(latest.id - 1)


def stored_rows(store: Store, env: Env, journal_store: Store | None = None) -> list[str]:
    """Every row the store holds, read without writing: runs, then the journal's end."""
    latest = Manifests(store, env).latest()
    if latest is None:
        return []
    rows = flushed_rows(store, latest.manifest)
    for recorded in entries(journal_store or store, latest.manifest.replay):
        rows += rows_of(recorded)
    return rows


def entries(store: Store, cursor: Cursor) -> Iterator[Recorded]:
    """The entries after a place, checked; void ones left out."""
    log = Log(store)
    while (found := log.read(cursor.next)) is not None:
        cursor, found = cursor.advance(found, log.full_name(cursor.next))
        if not found.void:
            yield found


def flushed_rows(store: Store, manifest: Manifest) -> list[str]:
    rows: list[str] = []
    for run in manifest.runs:
        found = read_sealed(store, run.path, RUN_FORMAT)
        if found is None:
            raise TruncatedError(run.path, "the manifest names it, and it is gone")
        rows += found[0].any("rows")
    return rows
