"""What is decided over empty tables holds for any rows, any sizes and any combination of changes.

No Spark: random views are compiled as `explain` compiles them for a project that was never run.
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from stepwell.deploy.graph import column_names
from stepwell.errors import BugError
from stepwell.execution.backend import Declined, NotSupported, Yes
from stepwell.execution.local.lookup import LookUps
from stepwell.execution.local.offline import Prediction
from stepwell.execution.local.support import _plans
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.part import Part, Relation
from stepwell.plan.join_order import Estimates
from stepwell.plan.maintain import Maintenance
from stepwell.plan.nodes import Names, relations
from stepwell.plan.program import Block, Full
from stepwell.sql.statements import fold, parse_statements
from stepwell.text import Source
from tests.random_views.cases import case_of

ROWS = 6
"""Of a relation; a change has at most half as many."""


SEEDS = 30
SEEDS_SLOW = 600


def test_a_supported_plan_is_run_or_declined_but_never_refused() -> None:
    """X3: a plan that is refused against the decision would be a bug, and stop the pipeline."""
    counts = Counter[str]()
    for seed in range(SEEDS):
        counts += outcomes(case_of(seed).sql, random.Random(seed))
    assert counts["run"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS, SEEDS_SLOW, 10))
def test_plans_of_thousands_of_views_are_never_refused(first: int) -> None:
    """X3: what is rare among hundreds is not among thousands."""
    for seed in range(first, first + 10):
        outcomes(case_of(seed).sql, random.Random(seed))


def outcomes(sql: str, draw: random.Random) -> Counter[str]:
    """How often plans of random changes were run, or declined because of the rows."""
    statements = parse_statements(Source("random.sql", sql))
    by_name = {fold(statement.name): statement for statement in statements}
    prediction = Prediction(lambda name: column_names(name, by_name.get))
    prediction.all(statements)
    counts = Counter[str]()
    for block in (block for program in prediction.programs for block in program.blocks):
        if isinstance(block, Full):
            continue
        reads = sorted(relations(block.input))
        for size in (1, 1, draw.randint(1, len(reads)), len(reads)):
            changed = frozenset(draw.sample(reads, size))
            if isinstance(prediction.decisions.support(block, changed), Yes):
                counts += run(prediction, block, changed, draw)
    return counts


def run(
    prediction: Prediction, block: Block, changed: frozenset[str], draw: random.Random
) -> Counter[str]:
    decisions = prediction.decisions
    inputs = {*relations(block.input), block.relation}  # type: ignore[union-attr]
    stored = {name: relation(name, decisions.types(name), draw) for name in inputs}
    deltas = {name: part(decisions.types(name), draw, 0.5) for name in changed}
    sizes = {name: draw.choice([0, 1, 1000, 10**7]) for name in inputs}
    moved = {name: draw.choice([1, 100, 10**6]) for name in changed}
    maintenance = Maintenance(
        Names(prefix="_m"), changed, Estimates(sizes, moved, decisions.unique())
    )
    counts = Counter[str]()
    for plan in _plans(block, maintenance):
        fresh = [s for s in maintenance.stages if s.relation not in deltas]
        for name, node in [*((s.relation, s.node) for s in fresh), ("", plan)]:
            lookups = LookUps(stored, None, deltas)  # type: ignore[arg-type]
            try:
                deltas[name] = decisions.backend.run(
                    decisions.backend.reduced(node, lookups), lookups
                )
            except NotSupported as error:
                raise BugError(f"{block.relation}, {sorted(changed)}: {error}") from error
            except Declined:
                return counts + Counter(declined=1)
            counts["run"] += 1
    return counts


def relation(name: str, types: tuple[str, ...], draw: random.Random) -> Relation:
    return Relation(name, types, (), [part(types, draw)] if draw.random() < 0.9 else [])


def part(types: tuple[str, ...], draw: random.Random, share: float = 1.0) -> Part:
    """Few values, so that rows of relations match, and rows with NULL everywhere."""
    rows = draw.randint(1, int(ROWS * share))
    schema = arrow_schema(types)
    columns = [[value(field.type, draw) for _ in range(rows)] for field in schema][:-1]
    weights = [draw.choice([1, 1, 1, -1 if share < 1 else 1]) for _ in range(rows)]
    arrays = [pa.array(c, f.type) for c, f in zip([*columns, weights], schema, strict=True)]
    return Part(types, rows, pa.Table.from_arrays(arrays, schema=schema))


def value(kind: pa.DataType, draw: random.Random) -> Any:
    if draw.random() < 0.25:
        return None
    number = draw.randint(0, 2)
    types = pa.types
    if types.is_boolean(kind):
        return bool(number)
    if types.is_integer(kind) or types.is_floating(kind):
        return number
    if types.is_decimal(kind):
        return Decimal(number)
    if types.is_date(kind):
        return datetime.date(2024, 1, 1 + number)
    if types.is_timestamp(kind):
        return datetime.datetime(2024, 1, 1 + number, tzinfo=datetime.UTC)
    if types.is_list(kind):
        return [value(kind.value_type, draw)] * number
    if types.is_binary(kind):
        return b"abc"[:number]
    return "abc"[:number] if types.is_string(kind) else None
