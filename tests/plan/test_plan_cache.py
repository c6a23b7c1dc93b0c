"""Plans are kept from one transaction to the next while sizes stay similar."""

from __future__ import annotations

from stepwell.plan.nodes import Names, walk
from stepwell.plan.plan_cache import PlanCache
from tests.plan.test_plans import DIMENSIONS, blocks_of, star

ROWS = {"fact": 1000, "v": 1000, "v$1": 1000, **{f"d{i}": 100 for i in range(DIMENSIONS)}}


def test_a_block_is_planned_again_only_when_sizes_differ() -> None:
    [block] = blocks_of(star(3))
    rows = {**ROWS, block.relation: 1000}
    plans = PlanCache(Names(prefix="_m"), dict)
    first = plans.maintenance(block, rows, {"fact": 5}).plan(block)
    assert first is not None
    assert plans.maintenance(block, rows, {"fact": 6}).plan(block) is first
    assert plans.maintenance(block, rows, {"fact": 63}).plan(block) is first
    assert plans.maintenance(block, rows, {"fact": 64}).plan(block) is not first
    assert plans.maintenance(block, rows, {"fact": 6, "other": 9}).plan(block) is first
    assert plans.maintenance(block, {**rows, "d1": 500}, {"fact": 5}).plan(block) is not first
    assert plans.maintenance(block, rows, {"fact": 500}).plan(block) is not first
    both = plans.maintenance(block, rows, {"fact": 5, "d0": 1}).plan(block)
    assert both is not None
    assert len(list(walk(both))) > len(list(walk(first)))


def test_a_plan_comes_with_its_own_stages() -> None:
    """Each plan of a block may need other queries before it, and no name means two of them."""
    blocks = blocks_of(star(2, "FULL"))
    rows = {**ROWS, **{block.relation: 1000 for block in blocks}}
    changed = dict.fromkeys(rows, 5)
    cache = PlanCache(Names(prefix="_m"), dict)
    found = [(block, cache.maintenance(block, rows, changed)) for block in blocks]
    for block, maintenance in found:
        maintenance.plan(block)
    block, maintenance = next((b, m) for b, m in found if m.stages)
    plan, stages = maintenance.plan(block), maintenance.stages
    assert len({stage.relation for stage in stages}) == len(stages)
    assert maintenance.plan(block) is plan
    assert maintenance.stages == stages
