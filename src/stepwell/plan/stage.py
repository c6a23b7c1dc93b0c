"""Queries that run before the query of a block, which reads their results."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.plan.nodes import Node

STAGE = "$stage"
"""Names the results of stages; numbered from 1."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A query whose result is held until the block is done; read as a change set."""

    relation: str
    node: Node
