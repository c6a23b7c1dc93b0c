"""When is a view recomputed because that is cheaper?"""

from __future__ import annotations

from stepwell.plan.cost import DEFAULT, CostModel, Costs, costs
from stepwell.plan.expressions import SortKey, equal
from stepwell.plan.nodes import Inner, Node, Scan, TopN
from stepwell.plan.program import Field, Rows, Sums, Top

A, B = Scan("a", ("a1",)), Scan("b", ("b1",))
JOINED = Inner((A, B), (equal("a1", "b1"),))
ROWS = {"a": 10_000_000, "b": 1_000_000, "v$1": 5_000}


def sums(source: Node) -> Sums:
    return Sums("v$1", (Field("bigint"),), source, ("a1",), ())


def test_a_small_change_is_never_weighed() -> None:
    """S6: the question alone would cost more than the answer saves."""
    assert costs(sums(JOINED), ROWS, {"a": DEFAULT.changed_rows_min - 1}) is None


def test_a_change_that_only_has_to_be_added_is_kept_until_it_is_as_large_as_the_table() -> None:
    """S6: nothing is looked up for it."""
    found = costs(sums(A), ROWS, {"a": 9_000_000})
    assert found == Costs(incremental=9_000_000, recompute=10_005_000)
    assert not found.recompute_is_cheaper
    more = costs(sums(A), ROWS, {"a": 11_000_000})
    assert more is not None
    assert more.recompute_is_cheaper


def test_looking_up_what_a_change_meets_costs_more_than_reading_past_it() -> None:
    """S6: with a join the border comes earlier."""
    few = costs(sums(JOINED), ROWS, {"b": 1_000_000})
    assert few == Costs(incremental=1_000_000 * (1 + DEFAULT.look_up), recompute=11_005_000)
    assert not few.recompute_is_cheaper
    many = costs(sums(JOINED), ROWS, {"b": 1_500_000})
    assert many == Costs(incremental=11_500_000, recompute=11_005_000)
    assert many.recompute_is_cheaper


def test_meeting_all_of_a_small_table_costs_no_more_than_reading_it() -> None:
    """S6: a large table may change a lot next to a small one."""
    found = costs(sums(JOINED), ROWS, {"a": 5_000_000})
    assert found == Costs(incremental=6_000_000, recompute=11_005_000)
    both = costs(sums(JOINED), ROWS, {"a": 5_000_000, "b": 100_000})
    assert both == Costs(
        incremental=5_100_000 + 1_000_000 + DEFAULT.look_up * 100_000, recompute=11_005_000
    )


def test_a_change_elsewhere_does_not_count() -> None:
    """S6: a block is weighed by what it reads."""
    assert costs(Rows("v$1", (), A), ROWS, {"b": 10**9}) is None


def test_first_rows_have_a_way_of_their_own() -> None:
    """S6: they are maintained or recomputed depending on their changes."""
    top = TopN(A, (SortKey("a1"),), 10)
    assert costs(Top("v$1", (), top), ROWS, {"a": 10**9}) is None


def test_a_model_can_ask_for_either() -> None:
    """S6: tests and benchmarks choose one of the two ways for any change."""
    always = costs(sums(JOINED), ROWS, {"b": 1}, CostModel(scan=0, changed_rows_min=0))
    assert always == Costs(incremental=1, recompute=0)
    assert always.recompute_is_cheaper
    assert costs(sums(JOINED), ROWS, {"b": 10**9}, CostModel(changed_rows_min=10**12)) is None
