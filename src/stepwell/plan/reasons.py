"""Reasons why a view, or a part of it, is recomputed instead of being maintained incrementally.

Codes are stable names: `explain` prints them, and tests and users' scripts compare them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from stepwell.errors import NotApplicable, StepwellError


class Code(StrEnum):
    NON_DETERMINISTIC = "NON_DETERMINISTIC"
    WINDOW_WITHOUT_PARTITION = "WINDOW_WITHOUT_PARTITION"
    LIMIT_WITHOUT_ORDER = "LIMIT_WITHOUT_ORDER"
    UNSUPPORTED_SUBQUERY = "UNSUPPORTED_SUBQUERY"
    UNSUPPORTED_OPERATOR = "UNSUPPORTED_OPERATOR"
    PARSE_MISMATCH = "PARSE_MISMATCH"
    TIME_DEPENDENT = "TIME_DEPENDENT"
    UNSUPPORTED_TYPE = "UNSUPPORTED_TYPE"
    CHEAPER_TO_RECOMPUTE = "CHEAPER_TO_RECOMPUTE"
    POLICY_FULL = "POLICY_FULL"
    DEFINITION_CHANGED = "DEFINITION_CHANGED"
    SESSION_CHANGED = "SESSION_CHANGED"


ADVICE = {
    Code.NON_DETERMINISTIC: "compute the value where the row is created, and store it in a column",
    Code.WINDOW_WITHOUT_PARTITION: "add PARTITION BY: then only partitions that changed are read",
    Code.LIMIT_WITHOUT_ORDER: "leave out columns by which rows cannot be sorted (MAP)",
    Code.UNSUPPORTED_SUBQUERY: "write the subquery as a join, or as a view of its own",
    Code.UNSUPPORTED_OPERATOR: "move this part into a view of its own: only that is recomputed",
    Code.PARSE_MISMATCH: "report the query: Spark and Stepwell parse it differently",
    Code.TIME_DEPENDENT: "filter by time where the view is read, not where it is defined",
    Code.UNSUPPORTED_TYPE: "cast the column to a type that can be compared",
    Code.CHEAPER_TO_RECOMPUTE: "nothing: this change was so large that recomputing is cheaper",
    Code.POLICY_FULL: "write REFRESH POLICY AUTO or INCREMENTAL",
    Code.DEFINITION_CHANGED: "nothing: the view is built once with its new definition",
    Code.SESSION_CHANGED: "use the settings that the view was created with",
}


@dataclass(frozen=True, slots=True)
class Reason:
    code: Code
    detail: str

    @property
    def advice(self) -> str:
        return ADVICE[self.code]

    def __str__(self) -> str:
        return f"{self.code.value}: {self.detail}"


class Unsupported(NotApplicable):
    """The compiler cannot maintain this query incrementally; carries the reason."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(f"{code.value}: {detail}")
        self.reason = Reason(code, detail)
        self.about: str | None = None
        """The table or view concerned, as in `StepwellError`."""


@contextmanager
def about(relation: str) -> Iterator[None]:
    """Attribute errors in the block to the table or view whose statement causes them."""
    try:
        yield
    except (StepwellError, Unsupported) as error:
        error.about = relation
        raise
