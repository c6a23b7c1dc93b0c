"""Clones on the reference executor: what they hold, how they diverge, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from stepwell.engine.open import open_writer
from stepwell.errors import (
    CheckpointMissing,
    InvalidError,
    JournalStoreMismatch,
    TruncatedError,
)
from stepwell.journal import paths
from stepwell.journal.copy import last_entry
from stepwell.journal.log import Log
from stepwell.manifest import clone as cloning
from stepwell.manifest.checkpoint import dropping
from stepwell.manifest.manifest import Manifests, Status
from stepwell.manifest.pins import free_pin
from stepwell.model import Position
from stepwell.store.base import Store
from tests.engine.clones import Family, ids_of
from tests.engine.doubles import everything, order
from tests.trimming import trim


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    made.close()


def contents_of(store: Store) -> dict[str, bytes]:
    """Every object of a store, to see that nothing was changed."""
    found = {item.path: store.get(item.path) for item in store.list()}
    return {path: item.data for path, item in found.items() if item is not None}


# What a clone holds


def test_a_clone_holds_what_its_parent_held_and_copies_none_of_its_files(family: Family) -> None:
    """Scenario 61, C5: a clone of a pipeline that is being written holds everything it had
    recorded, flushed or not; no run is copied, and the parent's writer is not disturbed.
    """
    parent = family.parent()
    before = everything(parent)
    made = family.clone()
    assert made.made
    assert made.files == made.bytes == 0
    assert made.entries == 2
    assert not family.store("clone").list("runs/")
    parent.push("orders", [order(20, "z", 9)])
    assert family.state("clone") == before
    parent.push("orders", [order(21, "z", 9)])
    parent.close()


def test_a_parent_that_is_flushed_in_the_meantime_is_read_again(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 61: a deploy or a restore that comes between the state and the end of the journal
    makes the entries behind it no continuation of that state, so a newer one is taken.
    """
    parent = family.parent()
    flushes = iter([True, True])

    def overtaken(log: Log, after: Position) -> Position:
        if next(flushes, False):
            parent.push("orders", [order(20 + parent.transaction_number)])
            parent.flush()
            parent.push("orders", [order(30 + parent.transaction_number)])
        return last_entry(log, after)

    monkeypatch.setattr(cloning, "last_entry", overtaken)
    made = family.clone()
    assert made.manifest.replay == family.manifest("parent").replay
    assert made.entries == 1
    assert family.state("clone") == everything(parent)
    assert [item.name for item in family.manifest("parent").checkpoints] == ["first"]


def test_a_clone_of_a_checkpoint_is_that_checkpoint(family: Family) -> None:
    """Scenario 61: of a checkpoint that is named the clone holds exactly its state, not what was
    recorded since.
    """
    parent = family.parent()
    first = parent.checkpoints()[0]
    made = family.clone(checkpoint="first")
    assert (made.entries, made.manifest.transaction) == (0, first.transaction)
    clone = family.open("clone")
    assert ids_of(clone) == [1, 2, 3]
    assert ids_of(parent) == [1, 10, 2, 3]


def test_a_transaction_that_was_open_is_settled_in_the_clone(family: Family) -> None:
    """J4: the journal's tail may end inside a transaction. An explicit one was not committed when
    the clone was made, so the clone takes it back; the parent may commit it anyway.
    """
    parent = family.parent()
    with parent.transaction() as transaction:
        transaction.push("orders", [order(30)])
        transaction.push("orders", [order(31)])
        family.clone()
    assert 30 in ids_of(parent)
    assert ids_of(family.open("clone")) == [1, 10, 2, 3]


def test_sources_continue_where_the_parent_was(family: Family) -> None:
    """J6: what the parent took in the clone does not take in again, and what comes later both do,
    each for itself.
    """
    parent = family.parent()
    family.clone()
    family.worlds["parent"].feeds["files"].put(order(40, "d", 4))
    clone = family.open("clone")
    clone.run(once=True)
    assert ids_of(clone) == [1, 10, 2, 3, 40]
    parent.run(once=True)
    assert everything(parent) == everything(clone)


def test_a_clone_writes_to_none_of_its_parents_sinks(family: Family) -> None:
    """J7: the clone knows the names of its parent's sinks, to leave them alone, and has none of
    their numbers; a sink of its own begins with the whole view.
    """
    parent = family.parent()
    parent.deliver()
    manifest = family.clone().manifest
    assert manifest.parent is not None
    assert manifest.parent.sinks == ("buyers", "revenue", "visits")
    assert manifest.progress.sinks == manifest.progress.outbox == ()
    shelves = family.worlds["parent"].shelves
    before = {name: list(shelf.batches) for name, shelf in shelves.items()}
    clone = family.open("clone")
    clone.push("orders", [order(50, "a", 1)])
    assert {name: list(shelf.batches) for name, shelf in shelves.items()} == before
    family.worlds["clone"].check(clone)


def test_the_journal_store_may_be_wiped_after_a_full_checkpoint(family: Family) -> None:
    """Scenario 41, C1 and C2: a checkpoint needs no journal. With the journal's store wiped, a
    clone of the checkpoint has everything; so has a clone of a pipeline that was closed.
    """
    parent = family.parent(journal="journal")
    parent.checkpoint("full")
    before = everything(parent)
    wipe(family.store("journal"))
    family.clone("one", checkpoint="full", source_journal="journal")
    assert family.state("one") == before
    with pytest.raises(JournalStoreMismatch, match="unreplayed entries are in journal") as refused:
        family.clone("two", source_journal="journal")
    assert "--checkpoint ID" in str(refused.value)


def test_a_pipeline_that_was_closed_is_cloned_without_its_journal(family: Family) -> None:
    """C2: a writer that left in good order left nothing in the journal."""
    parent = family.parent(journal="journal")
    before = everything(parent)
    parent.close()
    wipe(family.store("journal"))
    family.clone(source_journal="journal")
    assert family.state("clone") == before


def test_a_full_checkpoint_right_after_opening_closes_the_gap_of_the_barrier(
    family: Family,
) -> None:
    """Scenario 41, C1: opening wrote a barrier and left nothing in memory; a checkpoint moves the
    replay position past it anyway, so that wiping the journal loses nothing.
    """
    parent = family.parent(journal="journal")
    parent.close()
    again = family.open("parent", journal="journal")
    before = everything(again)
    again.checkpoint("empty")
    manifest = family.manifest("parent")
    assert manifest.replay.position == again.status().position
    wipe(family.store("journal"))
    family.clone(checkpoint="empty")
    assert family.state("clone") == before


def wipe(store: Store) -> None:
    for item in store.list():
        store.delete(item.path)


def test_a_clone_does_not_inherit_its_parents_journal_store(family: Family) -> None:
    """C3: a clone without entries of its own takes whatever journal store it is opened with first,
    and records it; with unreplayed entries in one, another is refused. The parent's never fits.
    """
    parent = family.parent(journal="journal")
    parent.checkpoint("full")
    family.clone(checkpoint="full", source_journal="journal")
    assert family.manifest("clone").journal.id is None
    with pytest.raises(JournalStoreMismatch, match="the journal of another pipeline"):
        family.open("clone", journal="journal")
    clone = family.open("clone", journal="own")
    clone.push("orders", [order(60)])
    with pytest.raises(JournalStoreMismatch, match="unreplayed entries are in journal"):
        family.open("clone", journal="third")
    assert 60 in ids_of(family.open("clone", journal="own"))


def test_the_tail_goes_to_the_journal_store_that_the_clone_is_given(family: Family) -> None:
    """C3: the entries that came along are in the clone's own journal store, and it says which."""
    parent = family.parent(journal="journal")
    before = everything(parent)
    family.clone(journal="own", source_journal="journal")
    manifest = family.manifest("clone")
    assert manifest.journal.store == "memory://own"
    assert not family.store("clone").list(paths.JOURNAL)
    with pytest.raises(JournalStoreMismatch):
        family.open("clone")
    assert family.state("clone", journal="own") == before
    assert family.manifest("clone").journal.store == "memory://own"


# Entries that are missing (C4)


def test_entries_missing_at_the_start_that_held_nothing_are_skipped(family: Family) -> None:
    """Scenario 56, C4: barriers above the checkpoint are gone. The first entry with data begins
    the transaction after the checkpoint's, which proves that none is missing; the clone's replay
    position is moved to just before what there is.
    """
    family.parent().close()
    for _ in range(2):
        parent = family.open("parent")  # Which writes a barrier.
    parent.push("orders", [order(70)])
    replay = family.manifest("parent").replay.position
    older(family, replay - 1)
    family.store("parent").delete(paths.entry(Position(replay)))
    made = family.clone()
    assert made.manifest.replay.position == replay
    assert made.entries == 1
    assert family.state("clone") == everything(parent)


def older(family: Family, position: int) -> None:
    """Set the parent's replay position back, as if its writer had not recorded the barriers."""
    manifests = Manifests(family.store("parent"), family.env)
    found = manifests.latest()
    assert found is not None
    replay = replace(found.manifest.replay, position=Position(position))
    manifests.create(found.id + 1, replace(found.manifest, replay=replay))


@pytest.mark.parametrize("gone", ["first", "middle"])
def test_a_missing_entry_that_counts_is_lost_data_and_no_clone(family: Family, gone: str) -> None:
    """Scenario 56, C4: with rows that no checkpoint holds missing, at the start or after an entry
    that was copied, there is no clone; the hole is not passed over.
    """
    parent = family.parent()
    parent.push("orders", [order(80)])
    first = family.manifest("parent").replay.position + 1
    family.store("parent").delete(paths.entry(Position(first + (gone == "middle"))))
    with pytest.raises(TruncatedError, match="the entry is missing"):
        family.clone()
    assert family.manifest("clone").status is Status.INCOMPLETE
    with pytest.raises(InvalidError, match="not completed"):
        family.open("clone")


@pytest.mark.parametrize("ended", [False, True])
def test_a_lost_begin_does_not_make_half_of_a_transaction_count(
    family: Family, ended: bool
) -> None:
    """C4, J4, scenario 106: without its `begin` an open transaction passes for an automatic one,
    and would be committed as far as it was recorded. One that was committed is whole without.
    """
    parent = family.parent()
    parent.flush()
    begin = family.manifest("parent").replay.position + 1
    transaction = parent.transaction()
    transaction.push("orders", [order(85)])
    transaction.push("orders", [order(86)])
    if ended:
        transaction.commit()
    family.store("parent").delete(paths.entry(Position(begin)))
    if ended:
        family.clone()
        assert family.state("clone") == everything(parent)
        return
    with pytest.raises(TruncatedError, match="the entry is missing"):
        family.clone()
    assert family.manifest("clone").status is Status.INCOMPLETE


def test_entries_trimmed_after_they_were_copied_are_not_missed(family: Family) -> None:
    """Scenario 56, C4, C6: a clone was interrupted with half of the journal copied; then the parent
    flushed and trimmed. What the clone has it needs not be given again; the rest is lost to it.
    """
    parent = family.parent()
    parent.push("orders", [order(81)])
    before = everything(parent)
    tail = parent.status().position
    interrupted(family, tail)
    parent.flush()
    trim(family.store("parent"), family.env, Position(tail), barrier_keep_s=0)
    with pytest.raises(TruncatedError, match="the entry is missing"):
        family.clone()
    family.store("clone").put_new(paths.entry(Position(tail)), KEPT[0])
    family.clone()
    assert family.state("clone") == before


KEPT: list[bytes] = []


def interrupted(family: Family, last: int) -> None:
    """A clone that has all but the last entry of the journal, and is not complete."""
    family.clone()
    store = family.store("clone")
    found = store.get(paths.entry(Position(last)))
    assert found is not None
    KEPT[:] = [found.data]
    store.delete(paths.entry(Position(last)))
    for id in Manifests(store, family.env).ids()[1:]:
        store.delete(paths.manifest(id))


# The same clone, or another


def test_cloning_again_does_nothing(family: Family) -> None:
    """Scenario 52, C6: a clone that is finished is left as it is, also when both have moved on."""
    parent = family.parent()
    family.clone()
    clone = family.open("clone")
    clone.push("orders", [order(90)])
    parent.push("orders", [order(91)])
    before = contents_of(family.store("clone")), contents_of(family.store("parent"))
    again = family.clone()
    assert not again.made
    assert (contents_of(family.store("clone")), contents_of(family.store("parent"))) == before
    clone.push("orders", [order(92)])


@pytest.mark.parametrize("finished", [True, False])
def test_another_parent_or_checkpoint_is_refused(family: Family, finished: bool) -> None:
    """Scenario 52, C6: on a place that holds a clone, only the same clone is made; otherwise
    nothing is changed.
    """
    parent = family.parent()
    parent.checkpoint("second")
    family.clone("other")
    family.clone(checkpoint="first")
    if not finished:
        store = family.store("clone")
        for id in Manifests(store, family.env).ids()[1:]:
            store.delete(paths.manifest(id))
    places = ("clone", "other", "parent")
    before = [contents_of(family.store(name)) for name in places]
    with pytest.raises(InvalidError, match="holds a clone of memory://parent"):
        family.clone(source="other")
    with pytest.raises(InvalidError, match="holds a clone of checkpoint"):
        family.clone(checkpoint="second")
    with pytest.raises(CheckpointMissing, match="no checkpoint third"):
        family.clone(checkpoint="third")
    with pytest.raises(InvalidError, match="holds a pipeline already"):
        family.clone("parent", source="other")
    assert [contents_of(family.store(name)) for name in places] == before
    assert family.clone(checkpoint="first").made is not finished


def test_a_place_that_is_not_empty_is_refused(family: Family) -> None:
    """K4: a clone begins only where there is nothing, in neither of its stores."""
    family.parent()
    family.store("full").put_new("something/else", b"1")
    with pytest.raises(InvalidError, match="is not empty: it holds something/else"):
        family.clone("full")
    with pytest.raises(InvalidError, match="memory://full is not empty"):
        family.clone("empty", journal="full")
    assert not family.store("empty").list()
    with pytest.raises(InvalidError, match="neither inside its parent"):
        family.clone("parent/inside")
    with pytest.raises(InvalidError, match="memory://nobody holds no pipeline"):
        family.clone("clone", source="nobody")
    assert not family.store("clone").list()


def test_an_unfinished_clone_cannot_be_opened_or_cloned(family: Family) -> None:
    """Scenario 55, C6: until it is complete, a clone is nothing anybody can read or build upon."""
    parent = family.parent()
    interrupted(family, parent.status().position)
    with pytest.raises(InvalidError, match="not completed"):
        family.open("clone")
    with pytest.raises(InvalidError, match="not completed"):
        open_writer(family.store("clone"), family.env)
    with pytest.raises(InvalidError, match="cannot be cloned: it is incomplete"):
        family.clone("second", source="clone")


def test_a_checkpoint_deleted_before_it_is_pinned_is_missing(family: Family) -> None:
    """Scenario 53: the checkpoint goes between the clone's first version and its pin: the clone is
    refused and the parent has no pin. After the pin its going does no harm.
    """
    family.parent()
    family.clone(checkpoint="first")
    unpinned(family)
    before = contents_of(family.store("parent"))
    with pytest.raises(CheckpointMissing, match="any more"):
        family.clone()
    assert contents_of(family.store("parent")) == before
    assert family.manifest("parent").pins == ()


def unpinned(family: Family) -> None:
    """A clone that was stopped before it was pinned, and its checkpoint deleted since."""
    store = family.store("clone")
    for id in Manifests(store, family.env).ids()[1:]:
        store.delete(paths.manifest(id))
    parent = Manifests(family.store("parent"), family.env)
    parent.amend(lambda manifest: replace(manifest, pins=()), "unpin")
    parent.amend(dropping("first", "parent"), "drop")


def test_a_checkpoint_deleted_after_it_is_pinned_is_kept_by_the_pin(family: Family) -> None:
    """Scenario 53, C7: the parent drops its own checkpoint; the clone is finished from the pin."""
    parent = family.parent()
    family.clone(checkpoint="first")
    store = family.store("clone")
    for id in Manifests(store, family.env).ids()[1:]:
        store.delete(paths.manifest(id))
    parent.delete_checkpoint("first")
    assert family.clone().made
    assert ids_of(family.open("clone")) == [1, 2, 3]
    assert len(family.manifest("parent").pins) == 1


def test_the_checkpoint_taken_for_a_clone_does_not_stay_in_the_parents_list(
    family: Family,
) -> None:
    """C7: a clone takes none of the places that retention gives to the parent's checkpoints."""
    parent = family.parent()
    before = family.manifest("parent").checkpoints
    family.clone()
    manifest = family.manifest("parent")
    assert manifest.checkpoints == before
    assert [pin.clone for pin in manifest.pins] == ["memory://clone"]
    assert family.store("parent").exists(paths.checkpoint(manifest.pins[0].checkpoint))
    parent.push("orders", [order(95)])
    parent.close()


# Going different ways


def test_parent_and_clone_diverge(family: Family) -> None:
    """Scenario 57, C7: what is written to one does not show in the other, through flushes,
    checkpoints and openings on both sides.
    """
    parent = family.parent()
    family.clone()
    clone = family.open("clone")
    for number in range(3):
        parent.push("orders", [order(100 + number, "p", 1)], delete=[{"id": 1 + number}])
        clone.push("orders", [order(200 + number, "c", 2)])
        parent.checkpoint()
        clone.checkpoint()
    assert ids_of(parent) == [10, 100, 101, 102]
    assert ids_of(clone) == [1, 10, 2, 200, 201, 202, 3]
    states = everything(parent), everything(clone)
    parent.close()
    clone.close()
    assert (family.state("parent"), family.state("clone")) == states
    roots = {run.root for run in family.manifest("clone").runs}
    assert "memory://parent" in roots


def test_clones_of_clones_of_clones(family: Family) -> None:
    """Scenario 57, C7: every one reads its files where they lie, and pins in the one it came from;
    the first checkpoint may be deleted by its owner.
    """
    parent = family.parent()
    names = ["parent", "one", "two", "three"]
    expected = {}
    for number, (source, name) in enumerate(pairwise(names)):
        family.clone(name, source=source)
        clone = family.open(name)
        clone.push("orders", [order(300 + number)])
        if number == 0:
            clone.checkpoint()
        expected[name] = everything(clone)
    parent.delete_checkpoint("first")
    parent.push("orders", [order(400)], delete=[{"id": 1}])
    parent.close()
    for name in reversed(names[1:]):
        assert family.state(name) == expected[name]
    three = family.manifest("three")
    assert {run.root for run in three.runs} >= {"memory://parent", "memory://one"}
    assert [pin.clone for name in names for pin in family.manifest(name).pins] == [
        "memory://one",
        "memory://two",
        "memory://three",
    ]


def test_a_full_copy_needs_its_parent_no_longer(family: Family) -> None:
    """Scenario 58, C5, C7: with every file copied, the pin is freed, and the parent may go."""
    parent = family.parent()
    before = everything(parent)
    made = family.clone(copy=True)
    runs = family.manifest("parent").runs
    assert (made.files, made.bytes) == (len(runs), sum(run.size for run in runs))
    assert family.manifest("parent").pins == ()
    assert {run.root for run in family.manifest("clone").runs} == {None}
    wipe(family.store("parent"))
    assert family.state("clone") == before


def test_a_clone_that_needs_its_parent_no_longer_frees_its_pin(family: Family) -> None:
    """Scenario 58, C7: the pin goes once no file of the parent is named by the clone's manifest or
    checkpoints; first in the parent, and a crash in between is made good by the next attempt.
    """
    family.parent()
    family.clone()
    clone, parent = (Manifests(family.store(name), family.env) for name in ("clone", "parent"))
    assert not free_pin(clone, family.env)
    family.open("clone").checkpoint("old")
    clone.amend(lambda manifest: replace(manifest, runs=()), "as if compacted")
    assert not free_pin(clone, family.env), "a checkpoint still needs the parent"
    clone.amend(dropping("old", "clone"), "drop")
    parent.amend(lambda manifest: replace(manifest, pins=()), "as before a crash")
    assert free_pin(clone, family.env)
    manifest = family.manifest("clone")
    assert manifest.parent is not None
    assert manifest.parent.pin is None
    assert family.manifest("parent").pins == ()
