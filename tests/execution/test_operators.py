"""Plans over rows in memory: which branches of a union are computed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stepwell.execution.backend import NotSupported
from stepwell.execution.local.expressions import ExpressionEvaluator
from stepwell.execution.local.operators import PlanEvaluator
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.plan.expressions import column, parse
from stepwell.plan.nodes import Leaf, Node, Project, Scan, Union, When

TYPES = ("int",)


def linear(rows: dict[str, list[int]]) -> PlanEvaluator:
    """Over relations of one column, each with these rows."""

    def read(leaf: Leaf | Scan) -> tuple[pa.Table, tuple[str, ...]]:
        values = rows.get(leaf.relation, [])
        return pa.table([values, [1] * len(values)], schema=arrow_schema(TYPES)), TYPES

    return PlanEvaluator(read, ExpressionEvaluator(lambda _: None))


def leaf(relation: str, name: str) -> Leaf:
    return Leaf(relation, (name,), When.DELTA)


UNSUPPORTED = Project(leaf("c", "_c3"), (("_c4", parse("hash(_c3)", ["_c3"])),))
NESTED = Union((leaf("a", "_c1"), leaf("b", "_c2")), ("_c5",))


@pytest.mark.parametrize("branch", [leaf("a", "_c1"), NESTED], ids=["leaf", "union"])
def test_over_no_rows_every_branch_is_computed(branch: Node) -> None:
    """S4: what is decided over no rows must hold for any rows, also beside a nested union."""
    plan = Union((branch, UNSUPPORTED), ("_c6",))
    with pytest.raises(NotSupported):
        linear({}).rows(plan, frozenset({"_c6"}))


def test_an_empty_branch_is_left_out_where_another_has_rows() -> None:
    plan = Union((leaf("a", "_c1"), Project(leaf("c", "_c3"), (("_c4", column("_c3")),))), ("_c6",))
    found = linear({"a": [1, 2]}).rows(plan, frozenset({"_c6"}))
    assert found.columns["_c6"].data.to_pylist() == [1, 2]
