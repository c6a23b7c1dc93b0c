"""Remember what follows from a plan, by its identity.

Blocks and plans are immutable and live as long as their view, and comparing two of them costs more
than most of what is derived from one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

_OBJECTS_MAX = 10_000

Given = TypeVar("Given")
Made = TypeVar("Made")


def by_identity(compute: Callable[[Given], Made]) -> Callable[[Given], Made]:
    """A function that computes its result once for each object."""
    # The object is held as well, so no other one can get its id.
    known: dict[int, tuple[Given, Made]] = {}

    @wraps(compute)
    def remembered(given: Given) -> Made:
        found = known.get(id(given))
        if found is None:
            if len(known) >= _OBJECTS_MAX:
                known.clear()
            found = known[id(given)] = given, compute(given)
        return found[1]

    return remembered
