"""What a transaction over the 22 views of TPC-H looks up and joins, counted instead of timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import _local
import _tpch
from _changes import together
from stepwell.execution.limits import QueryLimits
from stepwell.execution.local import joins, quotients
from stepwell.execution.spark import evaluate, frames, views
from stepwell.execution.spark.views import Views
from stepwell.lsm.change import Change

SCALE = 0.01
BY_COLUMN = QueryLimits(row_changes_max=-1)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Views:
    """The views in this process, without Spark, whose plans all run over columns."""
    for owner, name in (
        (views, "adopt"),
        (frames, "beside"),
        (evaluate, "constants"),
        (quotients, "DIVIDED_ROWS_MAX"),
        (evaluate.Evaluator, "jobs"),
    ):
        monkeypatch.setattr(owner, name, vars(owner)[name])  # Replaced by `_local`, put back after.
    return _local.open_views(_tpch.generate(tmp_path, SCALE), tmp_path, BY_COLUMN)


def drawn(changes: _tpch.Changes) -> dict[str, Change]:
    """150 orders that go, and as many new ones."""
    gone = changes.delete_orders(0.01)
    both = together(changes.new_orders(0.01), gone)
    return {table: Change(change.put, change.delete) for table, change in both.items()}


def test_views_share_look_ups_and_equal_parts_of_plans(
    opened: Views, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that is done for each view, or for each place in a plan, costs no wrong row."""
    changes = _tpch.Changes(_tpch.load(tmp_path, SCALE))
    opened.apply(drawn(changes))  # At the first one, it is decided what runs in this process.
    joined: list[int] = []
    pairs_of = joins.pairs_of

    def join(*arguments: Any) -> Any:
        found = pairs_of(*arguments)
        joined.append(0 if found is None else len(found[0]))
        return found

    monkeypatch.setattr(joins, "pairs_of", join)
    memo = opened._evaluator.shared.memo
    profiles = opened.apply(drawn(changes)).profile_of.values()
    fetched = sum(profile.rows_fetched for profile in profiles)
    assert (fetched, sum(profile.rows_shared for profile in profiles)) == (18_345, 25_189)
    assert (len(joined), sum(joined)) == (91, 39_325)
    assert (memo.computed, memo.shared) == (275, 194)
