"""What destroying a pipeline refuses, and what it takes with it. Its crashes: test_clone_crash."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stepwell.errors import CorruptError, InvalidError, JournalStoreMismatch
from stepwell.journal import paths
from stepwell.manifest.destroy import destroy_pipeline
from tests.engine.clones import Family
from tests.engine.doubles import everything, order


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    made.close()


def test_a_parent_with_clones_is_not_destroyed_and_they_are_named(family: Family) -> None:
    """Scenario 59, C7: nothing is deleted, nothing marked, its writer goes on; once the clones are
    gone, so is what kept it.
    """
    parent = family.parent()
    family.clone("one")
    family.clone("two", source="one")
    with pytest.raises(InvalidError, match="has clones that need its files: memory://one"):
        destroy_pipeline(family.store("parent"), None, family.env)
    with pytest.raises(InvalidError, match="memory://two"):
        destroy_pipeline(family.store("one"), None, family.env)
    parent.push("orders", [order(500)])
    for name in ("two", "one", "parent"):
        destroy_pipeline(family.store(name), None, family.env)
        assert not family.store(name).list()
    with pytest.raises(CorruptError, match="lacks what epoch 1 committed"):
        parent.flush()
    assert not family.store("parent").list(paths.MANIFESTS)


def test_a_clone_that_is_gone_can_be_said_not_to_count(family: Family) -> None:
    """C7: a clone deleted by hand left its pin. It is named, and destroying goes on when told."""
    family.parent()
    family.clone("lost")
    for item in family.store("lost").list():
        family.store("lost").delete(item.path)
    with pytest.raises(InvalidError, match="--forget memory://lost"):
        destroy_pipeline(family.store("parent"), None, family.env)
    gone = destroy_pipeline(family.store("parent"), None, family.env, forget=["memory://lost"])
    assert [pin.clone for pin in gone.forgotten] == ["memory://lost"]


def test_destroying_a_clone_leaves_its_parent_whole(family: Family) -> None:
    """C7: the clone's own objects and its pin go; of the parent nothing is touched."""
    parent = family.parent()
    before = everything(parent)
    runs = family.store("parent").list("runs/")
    family.clone(journal="own")
    clone = family.open("clone", journal="own")
    clone.push("orders", [order(501)])
    clone.checkpoint()
    destroy_pipeline(family.store("clone"), None, family.env)
    assert not family.store("clone").list()
    assert not family.store("own").list()
    assert family.manifest("parent").pins == ()
    assert family.store("parent").list("runs/") == runs
    parent.push("orders", [order(502)])
    parent.push("orders", delete=[{"id": 502}])
    assert everything(parent) == before


def test_a_wrong_place_is_refused(family: Family) -> None:
    """Scenario 59: where there is no pipeline, or another one's journal, nothing is deleted."""
    family.parent()
    store = family.store("photos")
    store.put_new("runs/holiday/beach.jpg", b"1")
    for name in ("photos", "nothing"):
        with pytest.raises(InvalidError, match=f"memory://{name} holds no pipeline"):
            destroy_pipeline(family.store(name), None, family.env)
    assert [item.path for item in store.list()] == ["runs/holiday/beach.jpg"]
    family.clone(checkpoint="first")
    before = family.store("parent").list(), family.store("clone").list()
    with pytest.raises(JournalStoreMismatch, match="the journal of another pipeline"):
        destroy_pipeline(family.store("clone"), family.store("parent"), family.env)
    assert (family.store("parent").list(), family.store("clone").list()) == before


def test_a_dry_run_counts_and_changes_nothing(family: Family) -> None:
    """Scenario 59: the dry run lists what is deleted; a lease stays, for its holder."""
    family.parent()
    store = family.store("parent")
    store.put_new(paths.LEASE, b"held")
    store.put_new("notes.txt", b"mine")
    before = store.list()
    planned = destroy_pipeline(store, None, family.env, dry_run=True)
    assert store.list() == before
    assert planned.left == ("memory://parent/notes.txt",)
    seen: list[tuple[int, int]] = []
    destroy_pipeline(
        store, None, family.env, deleted=lambda done, total: seen.append((done, total))
    )
    # One more than planned: the marker.
    assert seen[-1] == (planned.objects + 1, planned.objects + 1)
    assert [item.path for item in store.list()] == [paths.LEASE, "notes.txt"]
    pipeline = family.worlds["parent"]
    store.delete("notes.txt")
    pipeline.shelves.clear()
    assert family.state("parent")["orders"] == []


def test_an_unfinished_clone_is_destroyed_with_the_checkpoint_taken_for_it(family: Family) -> None:
    """Scenarios 53 and 59: a clone that was given up leaves nothing in its parent."""
    family.parent()
    checkpoints = family.manifest("parent").checkpoints
    family.clone()
    store = family.store("clone")
    store.delete(paths.manifest(2))
    destroy_pipeline(store, None, family.env)
    assert family.manifest("parent").pins == ()
    assert family.manifest("parent").checkpoints == checkpoints
