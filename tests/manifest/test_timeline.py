"""Timelines: which history a number belongs to, and that no commit forgets one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.errors import BugError, CorruptError
from stepwell.manifest.manifest import Manifest, Manifests, from_json, to_json
from stepwell.manifest.timeline import RESUMED_MAX, Timeline, diverged, is_history
from stepwell.model import Transaction
from stepwell.store.memory import MemoryStore
from stepwell.store.sealed import Fields
from stepwell.testing import ManualEnv

A, B, C = (
    "01ARZ3NDEKTSV4RRFFQ69G5FAA",
    "01ARZ3NDEKTSV4RRFFQ69G5FAB",
    "01ARZ3NDEKTSV4RRFFQ69G5FAC",
)


def at(number: int) -> Transaction:
    return Transaction(number)


def manifest(*timelines: Timeline, transaction: int = 0) -> Manifest:
    holder = Manifests(MemoryStore(ManualEnv()), ManualEnv()).begin()
    begun = holder.current.manifest
    return replace(begun, timelines=timelines or begun.timelines, transaction=at(transaction))


def test_a_number_belongs_to_the_history_in_which_it_was_given_out() -> None:
    """F13: what a sink holds of a history that ended is told from what came before its end."""
    found = manifest(Timeline(A), Timeline(B, at(3)), Timeline(C, at(7)))
    assert found.timeline == C
    assert [found.timeline_of(n) for n in (1, 3, 4, 7, 8, 99)] == [A, A, B, B, C, C]
    assert is_history(found.timelines, A, 3)
    assert not is_history(found.timelines, A, 4), "written after the backup was made"
    assert not is_history(found.timelines, B, 3), "this number was another timeline's"
    assert is_history(found.timelines, B, 7)
    assert not is_history(found.timelines, B, 8)
    assert is_history(found.timelines, C, 99), "how far it has come, the caller knows"
    assert not is_history(found.timelines, "01ARZ3NDEKTSV4RRFFQ69G5FAD", 1)


def test_a_history_without_a_transaction_of_its_own_leaves_no_trace() -> None:
    """A store that is copied again and again must not collect histories in which nothing was."""
    once = diverged((Timeline(A),), Timeline(B, at(3)))
    assert once == (Timeline(A), Timeline(B, at(3)))
    assert diverged(once, Timeline(C, at(3))) == (Timeline(A), Timeline(C, at(3)))
    assert diverged((Timeline(A),), Timeline(B, at(0))) == (Timeline(B),)


def test_restarts_do_not_make_the_list_longer_and_restores_are_all_known() -> None:
    """F13, K12: of those that resumed the newest stay, in addition to the first and every
    restore."""
    found = (Timeline(A),)
    for number in range(1, 101):
        resumed = number % 25 != 0
        found = diverged(found, Timeline(f"{number}", at(number), resumed=resumed))
    restores = [item.since for item in found if not item.resumed]
    assert restores == [0, 25, 50, 75, 100]
    newest = [number for number in range(1, 100) if number % 25][-RESUMED_MAX:]
    assert [item.since for item in found if item.resumed] == newest


@pytest.mark.parametrize(
    "after",
    [
        (Timeline(B),),
        (Timeline(A), Timeline(C, at(9))),
        (Timeline(A), Timeline(B, at(3)), Timeline(C, at(4))),
        (Timeline(A), Timeline(B, at(5)), Timeline(C, at(9))),
        (Timeline(A), Timeline(B, at(3)), Timeline(A, at(9))),
    ],
    ids=["replaced", "forgotten", "before what is flushed", "moved", "again"],
)
def test_no_commit_forgets_a_history(after: tuple[Timeline, ...]) -> None:
    """F13: a sink that holds output of a forgotten history would be refused forever."""
    holder = Manifests(MemoryStore(ManualEnv()), ManualEnv()).begin()
    start = holder.current.manifest.timelines[0]
    two = (start, Timeline(B, at(3)))
    holder.commit(lambda m: replace(m, timelines=two), "diverge")
    holder.commit(lambda m: replace(m, transaction=at(6)), "flush")
    wrong = tuple(replace(item, id=start.id) if item.id == A else item for item in after)
    with pytest.raises(BugError, match="timelines_only_grow"):
        holder.commit(lambda m: replace(m, timelines=wrong), "diverge")
    holder.commit(lambda m: replace(m, timelines=(*two, Timeline(C, at(6)))), "diverge")


@pytest.mark.parametrize("stored", [[], [{"id": A, "since": 3}, {"id": B, "since": 3}]])
def test_timelines_that_make_no_sense_are_damage(stored: list[object]) -> None:
    """K2: object and field are named."""
    with pytest.raises(CorruptError, match="timelines"):
        from_json(Fields({**to_json(manifest()), "timelines": stored}, "m"))
