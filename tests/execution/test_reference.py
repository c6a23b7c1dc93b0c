"""The reference evaluator: what each node means for bags, change sets and pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from math import nan

import pytest

from stepwell.errors import BugError, InvalidError
from stepwell.execution.reference.evaluate import Bag, bag, evaluate
from stepwell.execution.reference.spark_values import NAN, Value
from stepwell.plan.expressions import NULL, Expr, SortKey, build, column, number, parse, text
from stepwell.plan.nodes import (
    Accumulate,
    Aggregate,
    Consolidate,
    Diff,
    Distinct,
    Filter,
    Generate,
    Inner,
    Item,
    Join,
    Keys,
    Leaf,
    Merge,
    Negate,
    Node,
    Project,
    Restrict,
    Scan,
    SetKind,
    SetOp,
    Side,
    TopN,
    Union,
    Values,
    When,
    Window,
)
from stepwell.plan.sums import Accumulator

R = Scan("r", ("a", "b"))
S = Scan("s", ("c", "d"))


def expr(sql: str, *columns: str) -> Expr:
    return parse(sql, columns)


def calls(*texts: str) -> tuple[Item, ...]:
    return tuple((f"x{place}", expr(text)) for place, text in enumerate(texts))


def leaf(when: When, relation: str = "r", columns: tuple[str, ...] = ("a", "b")) -> Leaf:
    return Leaf(relation, columns, when)


def over(node: Node, r: object = (), s: object = ()) -> object:
    """What a node gives for the rows of r and s."""
    return evaluate(node, {"r": as_bag(r), "s": as_bag(s)})


def as_bag(rows: object) -> Bag:
    return Counter(rows) if isinstance(rows, Mapping) else bag(rows)  # type: ignore[call-overload]


# Relations and versions

OLD = {"r": bag([(1, 1), (1, 1), (2, 2)])}
DELTAS = {"r": Counter({(1, 1): -1, (2, 2): -1, (3, 3): 2})}


def test_a_leaf_shows_the_relation_at_its_moment() -> None:
    """Old and new swapped would still look right for a relation that does not change."""
    new = {(1, 1): 1, (3, 3): 2}
    assert evaluate(R, OLD, DELTAS) == new
    assert evaluate(leaf(When.NEW), OLD, DELTAS) == new
    assert evaluate(leaf(When.OLD), OLD, DELTAS) == OLD["r"]
    assert evaluate(leaf(When.DELTA), OLD, DELTAS) == DELTAS["r"]
    pairs = {(1, 1): (2, 1), (2, 2): (1, 0), (3, 3): (0, 2)}
    assert evaluate(leaf(When.BOTH), OLD, DELTAS) == pairs


def test_a_relation_without_rows_is_refused() -> None:
    """An oracle that takes a misspelt relation for an empty one agrees with everything."""
    assert evaluate(leaf(When.OLD), {}, DELTAS) == {}
    assert evaluate(leaf(When.DELTA), OLD) == {}
    with pytest.raises(InvalidError, match="relation q"):
        evaluate(Scan("q", ("a",)), OLD, DELTAS)
    with pytest.raises(BugError):
        evaluate(Scan("r", ("a",)), OLD)


def test_values_are_rows_written_out() -> None:
    """Equal rows in a VALUES list are two rows."""
    one, two = (number(1), text("a")), (number(2), NULL)
    node = Values((one, two, one), ("a", "b"))
    assert evaluate(node, {}) == {(1, "a"): 2, (2, None): 1}


# Linear nodes


def test_filter_and_project_pass_weights_on_and_sum_them_up() -> None:
    """A projection makes rows equal that were not; their weights add up, or cancel."""
    change = {"r": Counter({(1, 1): 2, (2, 1): -1, (3, None): 1, (4, 2): 1, (5, 2): -1})}
    delta = leaf(When.DELTA)
    kept = Filter(delta, expr("b >= 1", "b"))
    assert evaluate(kept, {}, change) == {(1, 1): 2, (2, 1): -1, (4, 2): 1, (5, 2): -1}
    assert evaluate(Project(delta, (("x", column("b")),)), {}, change) == {(1,): 1, (None,): 1}


def test_inner_multiplies_weights_and_needs_every_condition_to_hold() -> None:
    """A sign lost in the product turns a deletion into an insertion."""
    node = Inner((leaf(When.DELTA), S), (expr("a = c", "a", "c"), expr("d > 0", "d")))
    change = {"r": Counter({(1, 7): -2, (None, 7): 1, (2, 7): 3})}
    old = {"s": bag([(1, 5), (1, 5), (1, 0), (None, 5), (2, None)])}
    assert evaluate(node, old, change) == {(1, 7, 1, 5): -4}


def test_inner_without_a_condition_is_a_product_of_any_number_of_inputs() -> None:
    """One input passes through; none would be the row of no columns."""
    assert over(Inner((R,)), r={(1, 2): 3}) == {(1, 2): 3}
    third = Scan("s", ("e", "f"))
    product = over(Inner((R, S, third)), r={(1, 1): 2}, s={(2, 2): 3})
    assert product == {(1, 1, 2, 2, 2, 2): 18}


def test_union_adds_by_position_and_negate_takes_away() -> None:
    """UNION ALL of a change set and its negation is nothing, not rows of weight zero."""
    assert over(Union((R, S), ("x", "y")), r=[(1, 1)], s=[(1, 1), (2, 2)]) == {(1, 1): 2, (2, 2): 1}
    assert over(Union((R, Negate(R)), ("x", "y")), r=[(1, 1)]) == {}
    assert over(Negate(R), r=[(1, 1)]) == {(1, 1): -1}


def test_generate_repeats_a_row_and_outer_keeps_one_without_items() -> None:
    """NULL and empty arrays lose their row, unless OUTER asks for it."""
    rows = {(1, (5, 5, None)): -2, (2, ()): 1, (3, None): 1}
    change = {"r": Counter(rows)}
    inner = Generate(leaf(When.DELTA), expr("explode(b)", "b"), False, ("x",))
    exploded = {(1, (5, 5, None), 5): -4, (1, (5, 5, None), None): -2}
    assert evaluate(inner, {}, change) == exploded
    outer = Generate(leaf(When.DELTA), expr("explode(b)", "b"), True, ("x",))
    assert evaluate(outer, {}, change) == exploded | {(2, (), None): 1, (3, None, None): 1}
    numbered = Generate(R, expr("posexplode(array(a, 8))", "a"), False, ("p", "x"))
    assert over(numbered, r=[(7, 0)]) == bag([(7, 0, 0, 7), (7, 0, 1, 8)])
    structs = Generate(R, expr("inline(b)", "b"), False, ("x", "y"))
    nested = ((7, 8), None)
    assert over(structs, r=[(1, nested)]) == bag([(1, nested, 7, 8), (1, nested, None, None)])
    with pytest.raises(InvalidError, match="stack"):
        over(Generate(R, expr("stack(2, a, b)", "a", "b"), False, ("x",)), r=[(1, 1)])


# Joins

ON = (("a", "c"),)


def test_left_join_pads_what_has_no_match_once_per_row() -> None:
    """NULL keys match nothing, and each such row stays as often as it was there."""
    node = Join(Side.LEFT, R, S, ON)
    got = over(node, r=[(1, 1), (1, 1), (None, 2), (None, 2), (3, 3)], s=[(1, 8), (None, 9)])
    assert got == {(1, 1, 1, 8): 2, (None, 2, None, None): 2, (3, 3, None, None): 1}


def test_full_join_pads_both_sides() -> None:
    """A right row whose only partners fail the extra condition is unmatched too."""
    node = Join(Side.FULL, R, S, ON, also=(expr("b < d", "b", "d"),))
    got = over(node, r=[(1, 5), (2, 1)], s=[(1, 4), (1, 4), (2, 7), (None, 0)])
    assert got == {
        (1, 5, None, None): 1,
        (None, None, 1, 4): 2,
        (2, 1, 2, 7): 1,
        (None, None, None, 0): 1,
    }


def test_a_null_safe_join_matches_null_and_any_join_matches_nan() -> None:
    """`=` and `<=>` differ for NULL only: NaN equals NaN in both."""
    rows, others = [(None, 1), (nan, 2)], [(None, 3), (float("nan"), 4)]
    plain = over(Join(Side.LEFT, R, S, ON), r=rows, s=others)
    assert plain == bag([(None, 1, None, None), (NAN, 2, NAN, 4)])
    safe = over(Join(Side.LEFT, R, S, ON, null_safe=True), r=rows, s=others)
    assert safe == bag([(None, 1, None, 3), (NAN, 2, NAN, 4)])


def test_semi_and_anti_keep_the_multiplicity_of_the_left() -> None:
    """Duplicates on the right must not multiply, nor may a NULL there empty an anti join."""
    rows, others = [(1, 1), (1, 1), (None, 2), (3, 3)], [(1, 0), (1, 0), (None, 0)]
    assert over(Join(Side.SEMI, R, S, ON), r=rows, s=others) == {(1, 1): 2}
    assert over(Join(Side.ANTI, R, S, ON), r=rows, s=others) == {(None, 2): 1, (3, 3): 1}
    assert over(Join(Side.ANTI, R, S, ()), r=rows, s=others) == {}
    assert over(Join(Side.ANTI, R, S, ()), r=rows) == bag(rows)


def test_keys_of_types_that_spark_would_convert_are_refused() -> None:
    """Python finds '1' and 1 different without a word, where Spark casts and finds them equal."""
    joined = Join(Side.LEFT, R, S, ON)
    assert over(joined, r=[(1, 0)], s=[(1.0, 0)]) == {(1, 0, 1, 0): 1}
    for one, other in (("1", 1), (date(2020, 1, 1), datetime(2020, 1, 1)), (Decimal("0.1"), 0.1)):
        for node in (joined, SetOp(SetKind.EXCEPT, R, S, ("x", "y"))):
            with pytest.raises(InvalidError, match="does not know"):
                over(node, r=[(one, 0), (None, 0)], s=[(other, 0)])


# Aggregates


def test_null_is_one_group_and_so_are_nan_and_both_zeros() -> None:
    """One group per NULL or NaN is the classic of incremental views."""
    node = Aggregate(R, ("a",), calls("count(*)", "sum(b)"))
    got = over(node, r=[(None, 1), (None, None), (nan, 2), (float("nan"), 3), (0.0, 4), (-0.0, 5)])
    assert got == bag([(None, 2, 1), (NAN, 2, 5), (0.0, 2, 9)])


def test_a_global_aggregate_of_nothing_is_one_row_and_a_grouped_one_none() -> None:
    """GROUP BY nothing counts zero; GROUP BY a key has no group to count."""
    texts = calls("count(*)", "count(a)", "sum(a)", "max(a)", "avg(a)", "collect_list(a)")
    assert over(Aggregate(R, (), texts)) == {(0, 0, None, None, None, ()): 1}
    assert over(Aggregate(R, ("a",), texts)) == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("count(*)", 6),
        ("count(b)", 5),
        ("count(a, b)", 5),
        ("count(DISTINCT b)", 3),
        ("count(DISTINCT a, b)", 4),
        ("sum(DISTINCT b)", Decimal("6.50")),
        ("sum(b)", Decimal("10.50")),
        ("avg(b)", Decimal("2.100000")),
        ("avg(a)", 1.5),
        ("min(b)", Decimal("1.50")),
        ("first(b)", Decimal("1.50")),
        ("collect_set(b)", (Decimal("1.50"), Decimal("2.00"), Decimal("3.00"))),
        ("max_by(a, b)", 1),
        ("bool_and(b > 1)", True),
        ("count_if(b > 2)", 1),
        ("sum(a) FILTER (WHERE b = 2)", 4),
        ("var_pop(a)", 0.25),
        ("sum(b) - max(a)", Decimal("8.50")),
    ],
)
def test_aggregates_see_a_row_as_often_as_it_is_there(text: str, value: Value) -> None:
    """Multiplicities are part of the data: three equal rows are three."""
    two, low, high = Decimal("2.00"), Decimal("1.50"), Decimal("3.00")
    rows = {(1, two): 2, (2, two): 1, (2, low): 1, (1, high): 1, (2, None): 1}
    got = over(Aggregate(R, (), calls(text)), r=rows)
    assert got == {(value,): 1}


def test_all_null_sums_to_null_and_a_sample_of_one_has_no_variance() -> None:
    """Zero for the one and NaN for the other are what a sum kept by hand gives."""
    texts = calls("sum(a)", "avg(a)", "min(a)", "count(a)", "var_samp(b)", "var_pop(b)")
    assert over(Aggregate(R, (), texts), r=[(None, 5)]) == {(None, None, None, 0, None, 0.0): 1}


def test_max_is_nan_while_there_is_one_and_a_sum_absorbs_it() -> None:
    """The row taken back must bring the number back, so the group is recomputed."""
    node = Aggregate(leaf(When.BOTH), (), calls("max(a)", "min(a)", "sum(a)"))
    old = {"r": bag([(nan, 0), (1.5, 0)])}
    got = evaluate(node, old, {"r": Counter({(NAN, 0): -1})})
    assert got == {(NAN, 1.5, NAN): (1, 0), (1.5, 1.5, 1.5): (0, 1)}


def test_an_unknown_aggregate_is_refused() -> None:
    """A property test skips what the oracle does not know, rather than believe a guess."""
    for written in ("percentile(a, 0.5)", "approx_count_distinct(a)", "upper(a)", "a"):
        with pytest.raises(InvalidError, match="does not know"):
            over(Aggregate(R, (), calls(written)), r=[(1, 1)])


# Distinct and set operations


def test_distinct_forgets_how_often() -> None:
    """NULL and NaN are values like any other here."""
    assert over(Distinct(R), r=[(None, nan), (None, float("nan"))]) == {(None, NAN): 1}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (SetKind.EXCEPT, {(3, 0): 1}),
        (SetKind.EXCEPT_ALL, {(1, None): 2, (3, 0): 1}),
        (SetKind.INTERSECT, {(1, None): 1, (2, 0): 1}),
        (SetKind.INTERSECT_ALL, {(1, None): 1, (2, 0): 1}),
    ],
)
def test_set_operations_count_and_take_null_for_equal(kind: SetKind, expected: Bag) -> None:
    """max(0, a - b) and min(a, b): a difference below zero must not survive."""
    rows = {(1, None): 3, (2, 0): 1, (3, 0): 1}
    others = {(1, None): 1, (2, 0): 2, (4, 0): 1}
    assert over(SetOp(kind, R, S, ("x", "y")), r=rows, s=others) == expected


# Windows and top rows


def test_a_frame_without_rows_includes_the_peers() -> None:
    """The default frame is RANGE: a running sum jumps at ties, ROWS does not."""
    texts = calls(
        "sum(b) OVER (PARTITION BY a ORDER BY b)",
        "rank() OVER (PARTITION BY a ORDER BY b DESC)",
        "count(*) OVER (PARTITION BY a)",
    )
    got = over(Window(R, ("a",), texts), r=[(1, 2), (1, 2), (1, 5), (None, 1), (None, 1)])
    assert got == {(1, 2, 4, 2, 3): 2, (1, 5, 9, 1, 3): 1, (None, 1, 2, 1, 2): 2}


def test_equal_rows_get_different_row_numbers() -> None:
    """A row of multiplicity two is two rows to a window, and may come out as two."""
    text = "row_number() OVER (PARTITION BY a ORDER BY b)"
    assert over(Window(R, ("a",), calls(text)), r={(1, 1): 2}) == {(1, 1, 1): 1, (1, 1, 2): 1}
    assert over(Window(R, ("a",), ()), r={(1, 1): 2}) == {(1, 1): 2}


@pytest.mark.parametrize(
    ("clause", "key", "firsts"),
    [
        ("b", SortKey("b"), None),
        ("b DESC", SortKey("b", descending=True, nulls_first=False), 9),
        ("b NULLS LAST", SortKey("b", nulls_first=False), 1),
        ("b DESC NULLS FIRST", SortKey("b", descending=True), None),
    ],
)
def test_null_is_smallest_unless_told_otherwise(clause: str, key: SortKey, firsts: Value) -> None:
    """Spark puts NULL first in ascending order; most other databases put it last."""
    text = f"first_value(b) OVER (PARTITION BY a ORDER BY {clause})"
    rows = [(1, 9), (1, None), (1, 1)]
    got = over(Window(R, ("a",), calls(text)), r=rows)
    assert got == bag([(*row, firsts) for row in rows])
    top = over(TopN(R, (key, SortKey("a")), 1), r=rows)
    assert top == {(1, firsts): 1}


def test_the_first_rows_count_multiplicity_and_skip_the_offset() -> None:
    """A row of which only some copies fit is there that often."""
    rows = {(1, 1): 2, (2, 1): 3, (nan, 1): 1}
    assert over(TopN(R, (SortKey("a"),), 3), r=rows) == {(1, 1): 2, (2, 1): 1}
    assert over(TopN(R, (SortKey("a"),), 2, 1), r=rows) == {(1, 1): 1, (2, 1): 1}
    assert over(TopN(R, (SortKey("a", descending=True),), 1), r=rows) == {(NAN, 1): 1}
    assert over(TopN(R, (SortKey("a"),), None, 5), r=rows) == {(NAN, 1): 1}


def test_a_window_that_is_not_known_is_refused() -> None:
    """A frame read wrong is a wrong number in every row."""
    for written in ("sum(a) OVER (ORDER BY b RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING)", "sum(a)"):
        with pytest.raises(InvalidError, match="does not know"):
            over(Window(R, (), calls(written)), r=[(1, 1)])


# Pairs


def test_a_plain_bag_next_to_pairs_counts_the_same_before_and_after() -> None:
    """Read as absent in one version, it would make the whole join look new."""
    node = Inner((leaf(When.BOTH), S), (expr("a = c", "a", "c"),))
    old = OLD | {"s": bag([(1, 9), (1, 9), (3, 9)])}
    got = evaluate(node, old, DELTAS)
    assert got == {(1, 1, 1, 9): (4, 2), (3, 3, 3, 9): (0, 2)}
    assert evaluate(Diff(node), old, DELTAS) == {(1, 1, 1, 9): -2, (3, 3, 3, 9): 2}
    assert evaluate(Diff(S), old, DELTAS) == {}


def test_a_node_over_pairs_is_evaluated_once_per_version() -> None:
    """Old and new rows of one group must not meet in one aggregate."""
    node = Aggregate(leaf(When.BOTH), (), calls("count(*)", "sum(a)"))
    assert evaluate(node, OLD, DELTAS) == {(3, 4): (1, 0), (3, 7): (0, 1)}
    gone = evaluate(
        Join(Side.LEFT, leaf(When.BOTH), leaf(When.BOTH, "s", ("c", "d")), ON),
        {"r": bag([(1, 1)]), "s": bag([(1, 2)])},
        {"s": Counter({(1, 2): -1})},
    )
    assert gone == {(1, 1, 1, 2): (1, 0), (1, 1, None, None): (0, 1)}


def test_consolidate_keeps_a_pair_that_is_zero_on_one_side_only() -> None:
    """A row that goes away is half zero; dropping it would forget the deletion."""
    assert evaluate(Consolidate(leaf(When.BOTH)), OLD, DELTAS) == {
        (1, 1): (2, 1),
        (2, 2): (1, 0),
        (3, 3): (0, 2),
    }
    cancelled = Union((leaf(When.BOTH), Negate(leaf(When.BOTH))), ("x", "y"))
    assert evaluate(Consolidate(cancelled), OLD, DELTAS) == {}


def test_keys_hold_what_occurs_in_either_version_or_with_any_weight() -> None:
    """A key whose rows cancel out in number has changed anyway."""
    items = (("k", "b"),)
    assert evaluate(Keys(leaf(When.BOTH), items), OLD, DELTAS) == bag([(1,), (2,), (3,)])
    swapped = {"r": Counter({(1, None): -1, (2, None): 1})}
    assert evaluate(Keys(leaf(When.DELTA), items), {}, swapped) == {(None,): 1}


def test_restrict_keeps_weights_pairs_and_null() -> None:
    """A restriction is a null-safe semi join: more rows is slow, fewer rows is wrong."""
    keys = Keys(leaf(When.DELTA, "s", ("c", "d")), (("k", "c"),))
    deltas = DELTAS | {"s": Counter({(1, 0): -1, (1, 1): 5, (None, 0): 1})}
    old = {"r": bag([(1, 1), (1, 1), (2, 2), (None, 4)])}
    assert evaluate(Restrict(leaf(When.OLD), keys, (("a", "k"),)), old, deltas) == {
        (1, 1): 2,
        (None, 4): 1,
    }
    both = evaluate(Restrict(leaf(When.BOTH), keys, (("a", "k"),)), old, deltas)
    assert both == {(1, 1): (2, 1), (None, 4): (1, 1)}


@pytest.mark.parametrize(
    "make",
    [
        Distinct,
        lambda node: Aggregate(node, (), ()),
        lambda node: Join(Side.SEMI, S, node, ()),
        lambda node: SetOp(SetKind.EXCEPT, node, S, ("x", "y")),
        lambda node: Window(node, (), ()),
        lambda node: TopN(node, (SortKey("a"),), 1),
    ],
    ids=["distinct", "aggregate", "join", "set operation", "window", "top"],
)
def test_a_change_set_where_a_whole_bag_belongs_is_a_bug(make: object) -> None:
    """Minus one row is not a row: a rule that feeds changes to such a node is wrong."""
    node = make(leaf(When.DELTA))  # type: ignore[operator]
    with pytest.raises(BugError, match="whole bag"):
        evaluate(node, {"r": bag([]), "s": bag([])}, {"r": Counter({(1, 1): -1})})


# Sums that are kept up to date


TOTAL = Accumulator(column("b"), None, "bigint")


def accumulated(node: Node) -> Accumulate:
    large = Accumulator(None, build("b > 1", b=column("b")), "bigint")
    return Accumulate(node, ("a",), "n", (("x0", TOTAL), ("x1", large)))


def test_accumulated_changes_merge_into_what_is_stored() -> None:
    """A group goes with its last row, and one whose sums did not move is not written again."""
    before = {"r": bag([(1, 1), (1, 3), (None, 5), (3, 4)])}
    deltas = {"r": Counter({(1, 1): -1, (1, 2): 2, (None, 5): -1, (4, 9): 1, (3, 4): 1})}
    stored = evaluate(accumulated(leaf(When.OLD)), before)
    assert stored == bag([(1, 2, 4, 1), (None, 1, 5, 1), (3, 1, 4, 1)])
    after = evaluate(accumulated(leaf(When.NEW)), before, deltas)
    assert after == bag([(1, 3, 7, 3), (3, 2, 8, 2), (4, 1, 9, 1)])
    columns = ("k", "n", "x", "y")
    merged = Merge(Leaf("v", columns, When.OLD), accumulated(leaf(When.DELTA)), 1, ())
    change = evaluate(merged, before | {"v": stored}, deltas)
    assert evaluate(Scan("v", columns), {"v": stored}, {"v": change}) == after
    assert evaluate(merged, before | {"v": stored}, {}) == {}


def test_a_sum_without_keys_is_always_one_row() -> None:
    """It is there before the first row and after the last."""
    nothing = Accumulate(leaf(When.DELTA), (), "n", (("x0", TOTAL),))
    stored = {"v": evaluate(nothing, {}, {"r": Counter()})}
    assert stored["v"] == {(0, 0): 1}
    merged = Merge(Leaf("v", ("n", "x"), When.OLD), nothing, 0, ())
    change = evaluate(merged, stored, {"r": bag([(1, 5)])})
    assert change == {(0, 0): -1, (1, 5): 1}
    back = evaluate(merged, {"v": bag([(1, 5)])}, {"r": Counter({(1, 5): -1})})
    assert back == {(1, 5): -1, (0, 0): 1}


def test_a_row_taken_out_that_was_never_in_is_a_bug() -> None:
    """Negative counts of rows would stay in the view forever."""
    merged = Merge(Leaf("v", ("k", "n", "x", "y"), When.OLD), accumulated(leaf(When.DELTA)), 1, ())
    with pytest.raises(BugError, match="number of rows"):
        evaluate(merged, {"v": bag([])}, {"r": Counter({(1, 1): -1})})
    with pytest.raises(BugError, match="not pairs"):
        evaluate(accumulated(leaf(When.BOTH)), OLD, DELTAS)
