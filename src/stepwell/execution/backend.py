"""The seam between backends: what runs a plan, and who decides which backend does.

    Backend.run(plan, inputs) -> Part

The local backend is faster for few rows and computes a part of SQL. Spark computes all of it. So
the choice is made once, when a view is deployed, and stored with the program: `Support` says for
each block whether the local backend computes its change, or why not. A block that is supported runs
locally unless the data prevents it, for one of three reasons (`Fallback`). Then Spark runs the same
plan. A fourth, `REFUSED`, reports a wrong decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias, TypeVar

from stepwell.errors import NotApplicable
from stepwell.lsm.part import Part
from stepwell.plan.nodes import Leaf, Node


@dataclass(frozen=True, slots=True)
class Yes:
    """The local backend computes the change."""

    def __str__(self) -> str:
        return "local"


@dataclass(frozen=True, slots=True)
class No:
    """Spark computes the change, because the local backend lacks something."""

    reason: str

    def __str__(self) -> str:
        return f"Spark: {self.reason}"


Support: TypeAlias = Yes | No


class Fallback(Enum):
    """Why Spark runs a plan that the local backend supports."""

    TOO_MANY_ROWS = "too many rows"
    ARITHMETIC = "overflow, division by zero or rounding"
    """Spark raises the error in its own words, or rounds as only Spark does."""
    ROWS_ELSEWHERE = "rows that cannot be looked up here"
    REFUSED = "a plan that was decided to run here, but does not: this is a bug in Stepwell"
    """No answer depends on it, so the pipeline continues; tests fail on it."""


class CannotRunError(NotApplicable):
    """This backend does not run this plan."""


class NotSupported(CannotRunError):  # noqa: N818 - the name says what happened
    """The backend lacks an operator, a function or a type, whatever the rows are."""


class Declined(CannotRunError):  # noqa: N818
    """The backend supports the plan, but does not run it on these rows."""

    def __init__(self, fallback: Fallback) -> None:
        super().__init__(fallback.value)
        self.fallback = fallback


class Inputs(Protocol):
    """The relations that a plan reads."""

    def types(self, leaf: Leaf) -> tuple[str, ...]:
        """The types of a leaf's columns."""

    def parts(self, leaf: Leaf) -> tuple[list[Part], Part | None]:
        """The stored rows that a leaf reads, and their change; each empty if it reads only the
        other."""


In = TypeVar("In", bound=Inputs, contravariant=True)


class Backend(Protocol[In]):
    """Runs plans of change sets, over inputs of its own kind."""

    def run(self, plan: Node, inputs: In, types: tuple[str, ...] | None = None) -> Part:
        """The change set that a plan computes, consolidated, with columns c0, c1, ... and w.

        `types` are the types of its columns, by default inferred. Raises `CannotRunError`.
        """
