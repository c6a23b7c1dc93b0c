"""A pipeline with a history, to be collected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from stepwell.journal import paths
from stepwell.journal.journal import Settings as JournalSettings
from stepwell.manifest.checkpoint import find_checkpoint, read_checkpoint
from stepwell.manifest.gc import Collector, Settings
from stepwell.manifest.history import History
from stepwell.manifest.manifest import Manifest, Manifests, Stored
from stepwell.model import Transaction
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.testing import ManualEnv
from tests.tiny import Tiny, entries, flushed_rows, rows_of, stored_rows

AT_ONCE = Settings(grace_s=0, journal_keep_s=0, barrier_keep_s=0, history=History(versions=0))
JOURNAL = JournalSettings(barrier_keep_s=3600, retry=Retry(patience_s=0.06))
NO_HISTORY = History(versions=10**6)


class World:
    """A pipeline with something of everything to collect, and its writer at work."""

    def __init__(self, *, separate: bool = False, keep: int = 2) -> None:
        self.env = ManualEnv()
        self.store = MemoryStore(self.env)
        self.journal = MemoryStore(self.env, "journal") if separate else self.store
        self.tiny = self.open()
        for row in "abcd":
            self.tiny.push(row)
            self.tiny.flush(merge=True)
            self.tiny.checkpoint(keep)
            self.env.advance(10)
        self.store.put_new(paths.run("t", ManualEnv(9).new_id()), b"left by a crash")
        self.store.put_new(paths.outbox("s", Transaction(1), ManualEnv(8).new_id()), b"delivered")
        self.store.put_new("notes/readme.txt", b"not ours")
        self.store.put_new("runs/t/by-hand.parquet", b"not ours either")
        self.tiny.push("e")

    def open(self, store: Store | None = None, seed: int = 0) -> Tiny:
        env = self.shared(seed)
        journal = None if self.journal is self.store else self.journal
        return Tiny(store or self.store, env, journal, JOURNAL, NO_HISTORY)

    def shared(self, seed: int) -> ManualEnv:
        """The environment of another process, which lives by the same clock."""
        world = self.env

        class Shared(ManualEnv):
            def now(self) -> datetime:
                return world.now()

            def new_id(self) -> str:
                self.time = world.now()
                return super().new_id()

        return Shared(seed)

    def collector(self, store: Store | None = None, settings: Settings = AT_ONCE) -> Collector:
        journal = None if self.journal is self.store else self.journal
        return Collector(store or self.store, self.env, journal_store=journal, settings=settings)

    def latest(self) -> Stored:
        found = Manifests(self.store, self.env).latest()
        assert found is not None
        return found

    def paths(self, prefix: str = "") -> set[str]:
        return {item.path for item in self.store.list(prefix)}

    def check(self, rows: str = "abcde") -> None:
        """Everything that is named is there, and holds what it did."""
        journal = None if self.journal is self.store else self.journal
        assert stored_rows(self.store, self.env, journal) == list(rows)
        manifest = self.latest().manifest
        ids = {ref.id for ref in manifest.checkpoints} | {pin.checkpoint for pin in manifest.pins}
        for id in ids:
            state = read_checkpoint(self.store, id).state
            assert flushed_rows(self.store, state) == list(rows)[: state.transaction]
        for ref in manifest.checkpoints[-2:]:
            # The newest may be damaged: the one before and the journal after it give all (K9).
            state = read_checkpoint(self.store, ref.id, ref).state
            after = [row for e in entries(self.journal, state.replay) for row in rows_of(e)]
            assert [*flushed_rows(self.store, state), *after] == list(rows)


def expiring(id: str, at: datetime) -> Callable[[Manifest], Manifest]:
    """A change of a manifest that has a checkpoint expire at another time."""

    def change(manifest: Manifest) -> Manifest:
        checkpoint = find_checkpoint(manifest, id, "here")
        changed = replace(checkpoint, expires=at)
        found = (changed if item == checkpoint else item for item in manifest.checkpoints)
        return replace(manifest, checkpoints=tuple(found))

    return change
