"""The column changes of a view that a sink with `evolve: true` can follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from stepwell.engine.evolution import Evolution, evolution
from stepwell.errors import InvalidError


def is_evolving(options: Mapping[str, object]) -> bool:
    return options.get("evolve") is True


def names_refusal(
    options: Mapping[str, object], before: Sequence[str], now: Sequence[str]
) -> str | None:
    """The reason why a sink cannot follow, judging by the column names alone; None if it can."""
    gained = [name for name in now if name not in before]
    lost = [name for name in before if name not in now]
    given = options.get("key", ())
    key = [given] if isinstance(given, str) else list(given) if isinstance(given, list) else []
    for name in lost:
        if name.lower() in {str(column).lower() for column in key}:
            return f"it would lose {name}, which is part of its key"
        twin = next((other for other in gained if other.lower() == name.lower()), None)
        if twin is not None:
            return f"{name} and {twin} differ in their case only"
    if lost and options.get("type") == "delta" and not key and options.get("mode") != "changes":
        return (
            f"it would lose {', '.join(lost)}, and without a key rows that differ in nothing else "
            "could not be told apart"
        )
    return None


def check_evolution(options: Mapping[str, object], before: pa.Schema, after: pa.Schema) -> None:
    """Raise `InvalidError` with the reason if a sink cannot follow."""
    why = names_refusal(options, before.names, after.names)
    if why is not None:
        raise InvalidError(
            f"the sink cannot follow: {why}",
            hint=(
                "give the sink another name and another location: it then starts with the whole "
                "view"
            ),
        )
    evolution(before, after)


def named_evolution(before: Sequence[str], now: Sequence[str]) -> Evolution:
    """The differences by name; types are not known yet."""
    return Evolution(
        tuple(name for name in now if name not in before),
        tuple(name for name in before if name not in now),
    )
