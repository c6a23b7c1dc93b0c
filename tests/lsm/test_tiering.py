"""Which runs become one: bounds on what is stored and written, and on how many there are."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.lsm import tiering as tiers
from stepwell.lsm.tiering import LIKE_RUNS, LIKE_SIZE, SHARE, like_sized, to_merge

Bag = Counter[int]


class Store:
    """A relation's runs, each a change set, merged as the rules say; and what that cost."""

    def __init__(self) -> None:
        self.runs: list[Bag] = []
        self.came = 0
        self.written = 0

    def add(self, change: Bag) -> None:
        change = summed([change])
        if not change:
            return
        self.came += len(change)
        self.runs.append(change)
        while places := to_merge([len(run) for run in self.runs]):
            merged = summed([self.runs[place] for place in places])
            self.written += len(merged)
            rest = [run for place, run in enumerate(self.runs) if place not in places]
            self.runs = [*rest, *([merged] if merged else [])]

    @property
    def stored(self) -> int:
        return sum(len(run) for run in self.runs)

    @property
    def alive(self) -> int:
        return len(summed(self.runs))


def summed(runs: list[Bag]) -> Bag:
    whole: Bag = Counter()
    for run in runs:
        for row, weight in run.items():
            whole[row] += weight
    return Counter({row: weight for row, weight in whole.items() if weight})


changes = st.lists(
    st.dictionaries(st.integers(0, 60), st.sampled_from([-2, -1, 1, 2]), max_size=40), max_size=40
)


@given(changes)
@settings(max_examples=100, deadline=None)
def test_at_most_twice_what_is_alive_is_stored(drawn: list[dict[int, int]]) -> None:
    """K5: after every change, whatever comes in and whatever it cancels."""
    store = Store()
    for change in drawn:
        store.add(Counter(change))
        assert store.stored <= 2 * store.alive


@pytest.mark.parametrize("kind", ["new", "updates", "deletes", "mixed", "to and fro"])
def test_a_long_life_writes_little_and_has_few_runs(kind: str) -> None:
    """K5: fewer than eight rows are written for each that comes in, in runs of a 400th and less."""
    draw, store, next_row = random.Random(7), Store(), 20_000
    alive = list(range(next_row))
    store.add(Counter(alive))
    store.came = store.written = 0
    for number in range(400):
        change: Bag = Counter()
        gone = draw.sample(alive, 10 if kind == "mixed" else 25)
        if kind in ("updates", "deletes", "mixed"):
            change.subtract(gone)
            alive = list(set(alive) - set(gone))
        if kind in ("updates", "new", "mixed"):
            new = range(next_row, next_row + 25)
            change.update(new)
            alive += new
            next_row += 25
        if kind == "to and fro":
            change = Counter(dict.fromkeys(range(50), 1 if number % 2 else -1))
        store.add(change)
        if number % 25 == 0:
            assert store.stored <= 2 * store.alive
        groups = 1 + math.log(max(1, store.stored), LIKE_SIZE + 1)
        assert len(store.runs) <= (LIKE_RUNS - 1) * groups + 1
    assert store.written <= 8 * store.came


def test_runs_of_like_size_become_one_and_the_large_one_is_left_alone() -> None:
    large = 1_000_000
    assert to_merge([large, *[10] * (LIKE_RUNS - 1)]) == ()
    assert to_merge([large, *[10] * LIKE_RUNS]) == tuple(range(1, LIKE_RUNS + 1))
    assert to_merge([10, large, *[10] * (LIKE_RUNS - 1)]) == (0, *range(2, LIKE_RUNS + 1))


def test_all_become_one_where_the_share_is_passed_and_not_before() -> None:
    assert to_merge([300, 50, 50]) == ()
    assert to_merge([300, 50, 51]) == (0, 1, 2)
    assert SHARE == 3


def test_next_to_a_run_that_is_ignored_only_the_number_counts() -> None:
    assert like_sized([300, 200]) == like_sized([1] * (LIKE_RUNS - 1)) == ()
    assert like_sized([1] * LIKE_RUNS) == tuple(range(LIKE_RUNS))


def test_one_run_or_none_is_left_as_it_is() -> None:
    assert to_merge([]) == to_merge([7]) == to_merge([0]) == ()


def test_the_bound_needs_the_first_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: without it the property above must fail."""
    monkeypatch.setattr(tiers, "SHARE", 0)
    with pytest.raises(AssertionError):
        test_at_most_twice_what_is_alive_is_stored()
