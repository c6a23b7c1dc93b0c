"""Sizes at which a plan is run in another way.

They affect speed and memory, never a result. Pipelines use the defaults; tests choose others to
reach the code for large changes with few rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.lsm.large_change import BULK_ROWS
from stepwell.plan.cost import DEFAULT, CostModel


@dataclass(frozen=True, slots=True)
class QueryLimits:
    row_changes_max: int = 1_500
    """Changes of at most this many rows are computed row by row, which costs less than calls that
    handle whole columns."""
    handled_rows_max: int = 8_000
    """How many rows are looked up and joined for such a change, before whole columns are used."""
    local_rows_max: int = 1_000_000
    """With more rows Spark, which uses all cores, is faster than this process."""
    small_rows_max: int = 50_000
    """For at most this many rows, Spark computes faster than it generates Java code and tasks."""
    collected_rows_max: int = 200_000
    """Spark writes results that may have more rows than this."""
    fetched_rows_max: int = 200_000
    """Executors on other machines return at most this many rows of a look-up; more stay there."""
    collected_groups_max: int = 1_000_000
    """Group counts are overestimated, and a row of sums is small: usually there are far fewer."""
    bulk_rows: int | None = BULK_ROWS
    """Executors write changes of a view with at least this many rows to sinks, if Spark has
    written them to files; None: they never do."""
    sql_length_max: int = 100_000
    """Maximum length of a query that maintains a block. Spark was seen to take 4 to 7 s to plan
    half as much text. A block that would need more is recomputed, as when all tables of a view with
    many joins change at once and none of them can be looked up."""
    nodes_max: int = 3_000
    """Maximum number of nodes of a plan, before it is reduced; a larger block is recomputed."""
    costs: CostModel = DEFAULT
    """When a block is recomputed because that is cheaper."""
