"""The names that a query may read, and what they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp


@dataclass(frozen=True, slots=True)
class Stored:
    """A relation that stores rows: a table or a materialized view."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Defined:
    """A view that is not stored: its query replaces each reference to it."""

    query: exp.Query
    columns: tuple[str, ...]


Catalog = Mapping[str, Stored | Defined]
Ctes = Mapping[str, "tuple[exp.Expr, tuple[str, ...], Ctes]"]


def catalog_of(
    stored: Mapping[str, Sequence[str]], defined: Mapping[str, tuple[exp.Query, Sequence[str]]]
) -> Catalog:
    """A catalog of stored relations and of views that are only defined."""
    entries: dict[str, Stored | Defined] = {}
    for name, columns in stored.items():
        entries[name.lower()] = Stored(name, tuple(columns))
    for name, (query, columns) in defined.items():
        entries[name.lower()] = Defined(query, tuple(columns))
    return entries
