"""The local backend: runs plans on Arrow in this process.

run       fold joins (`joins`), then the rest of the plan, row by row (`operators`)
show      the output of a view over rows in memory
"""

from __future__ import annotations

from stepwell.execution.backend import Declined, NotSupported
from stepwell.execution.limits import QueryLimits
from stepwell.execution.local.expressions import ExpressionEvaluator
from stepwell.execution.local.joins import fold_joins
from stepwell.execution.local.lookup import LookUps
from stepwell.execution.local.operators import PlanEvaluator, from_lookups
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.part import Part
from stepwell.plan.identity import with_equal_nodes_once
from stepwell.plan.nodes import Accumulate, Node
from stepwell.plan.semi_join import reduced


class LocalBackend:
    """Runs plans over rows that are in memory or were looked up."""

    def __init__(self, expressions: ExpressionEvaluator, limits: QueryLimits | None = None) -> None:
        self.expressions = expressions
        self._rows_max = (limits or QueryLimits()).local_rows_max

    def reduced(self, plan: Node, inputs: LookUps) -> Node:
        """An equivalent plan that reads little: rows are looked up, and joins folded.

        The results are registered in `inputs`. A join that is not supported stays in the plan.
        """
        small = reduced(with_equal_nodes_once(plan), inputs)
        return fold_joins(small, inputs, self._evaluator(inputs))

    def run(self, plan: Node, inputs: LookUps, types: tuple[str, ...] | None = None) -> Part:
        """The change set of a reduced plan. Raises `CannotRunError`."""
        evaluator = self._evaluator(inputs)
        try:
            if isinstance(plan, Accumulate):
                table, kinds = evaluator.added(plan)
            else:
                table, kinds = evaluator.changes(plan, types)
        except NotSupported as error:
            # The plan still has a join that was not folded, because its rows are not here.
            if inputs.declined is not None:
                raise Declined(inputs.declined) from error
            raise
        return Part(kinds, table.num_rows, table.cast(arrow_schema(kinds)))

    def show(self, rows: Part, output: Node, types: tuple[str, ...]) -> Part:
        """The rows of a view, given those of the relation it shows. Raises `CannotRunError`."""
        evaluator = PlanEvaluator(
            lambda _: (rows.table, rows.types), self.expressions, self._rows_max
        )
        table = evaluator.shown(output, types)
        return Part(types, table.num_rows, table)

    def _evaluator(self, inputs: LookUps) -> PlanEvaluator:
        return PlanEvaluator(from_lookups(inputs), self.expressions, self._rows_max)
