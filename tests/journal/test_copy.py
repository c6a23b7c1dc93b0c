"""Copying the tail of a journal: where it may begin, and what may happen meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepwell.engine.open import Writer, open_writer
from stepwell.errors import TruncatedError
from stepwell.journal import paths
from stepwell.journal.codec import encode
from stepwell.journal.copy import Tail, copy_tail
from stepwell.journal.entry import Cursor, Draft, Entry, Kind
from stepwell.journal.journal import Settings
from stepwell.journal.log import Log
from stepwell.model import Position, Transaction
from stepwell.store.base import Object
from stepwell.store.memory import MemoryStore
from stepwell.testing import FaultyStore, ManualEnv

NEW = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
SETTINGS = Settings(barrier_keep_s=3600)


class Watched(FaultyStore):
    """Does something once, when an object is about to be read."""

    def __init__(self, inner: MemoryStore, path: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._path, self._act = path, act

    def get(self, path: str) -> Object | None:
        if path == self._path:
            self._path = ""
            self._act()
        return super().get(path)


def write(writer: Writer, transaction: int, step: int, kind: Kind = Kind.STEP) -> Position:
    closes = kind is Kind.CLOSE
    draft = Draft(kind, Transaction(transaction), step, closes, ManualEnv().now())
    return writer.append(draft).entry.position


def begun() -> tuple[ManualEnv, MemoryStore, Writer, Cursor]:
    """A journal, and a place in it after which nothing was recorded yet."""
    env = ManualEnv()
    store = MemoryStore(env)
    writer = open_writer(store, env, settings=SETTINGS)
    return env, store, writer, writer.journal.tip


def copied(env: ManualEnv, store: MemoryStore, tail: Tail) -> list[str]:
    copy = MemoryStore(env, "copy")
    copy_tail(Log(store), Log(copy), NEW, tail)
    return [item.path for item in copy.list(paths.JOURNAL)]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_tail_that_begins_inside_a_transaction_is_not_copied(lost: int) -> None:
    """C4, J4, scenario 106: the `begin`, a step or all but the end of a transaction is lost. Only a
    transaction of which every step is there, and that has ended, is whole without its `begin`.
    """
    env, store, writer, after = begun()
    positions = [write(writer, 1, 0), write(writer, 1, 1), write(writer, 1, 2)]
    until = write(writer, 1, 3, Kind.CLOSE)
    tail = Tail(after, Transaction(0), until)
    assert len(copied(env, store, tail)) == 4
    store.delete(*(paths.entry(position) for position in positions[:lost]))
    if lost == 1:
        assert len(copied(env, store, tail)) == 3
        return
    with pytest.raises(TruncatedError, match="the entry is missing"):
        copied(env, store, tail)


@pytest.mark.parametrize("end", [None, Kind.ABORT, Kind.CLOSE])
def test_without_its_begin_a_transaction_counts_only_if_it_has_ended(end: Kind | None) -> None:
    """C4, J4, scenario 106: an open one would be committed as far as it was recorded."""
    env, store, writer, after = begun()
    begin, until = write(writer, 1, 0), write(writer, 1, 1)
    if end is not None:
        until = write(writer, 1, 2, end)
    store.delete(paths.entry(begin))
    tail = Tail(after, Transaction(0), until)
    if end is not None:
        assert len(copied(env, store, tail)) == 2
        return
    with pytest.raises(TruncatedError, match="the entry is missing"):
        copied(env, store, tail)


def test_what_a_stalled_writer_puts_behind_the_boundary_is_not_copied() -> None:
    """F8, C4: the journal is trimmed while it is copied, and a writer that slept in its PUT fills
    the hole. It is never acknowledged, and a copy that has its row holds what never happened.
    """
    env, store, stalled, after = begun()
    manifest, epoch = stalled.manifest, stalled.epoch
    until = open_writer(store, env, settings=SETTINGS).barrier
    assert until == after.next
    draft = Draft(Kind.STEP, Transaction(1), 1, True, env.now())
    late = Entry(manifest.lineage, epoch, until, env.new_id(), after.checksum, draft)

    def trimmed_and_filled() -> None:
        Log(store).boundary.advance("journal", int(until))
        store.delete(paths.entry(until))
        store.put_new(paths.entry(until), encode(late).parts)

    watched = Watched(store, paths.entry(until), trimmed_and_filled)
    copy = MemoryStore(env, "copy")
    with pytest.raises(TruncatedError, match="was trimmed up to position"):
        copy_tail(Log(watched), Log(copy), NEW, Tail(after, Transaction(0), until))
    assert not copy.list(paths.JOURNAL)
