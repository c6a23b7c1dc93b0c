"""The effect of changed columns on a table's rows: kept, converted, or refused.

Columns are identified by name, unless a rename is declared. A new column is NULL in existing rows,
or its default if that is a plain value. A dropped column loses its values. A type may become a
wider one, which holds every value of the old type. Any other change might lose or change a value,
and is refused.

Rows are rewritten only if their values change: a type, a default, or the key that identifies them.
Columns that are added as NULL, dropped or moved only change the mapping of a run's columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stepwell.plan.numbers import INTEGER_BITS, decimal_width, holds, value_width
from stepwell.plan.types import stored_type
from stepwell.sql.statements import Column, Table, fold
from stepwell.text import did_you_mean

_WHOLE = tuple(INTEGER_BITS)
_WIDER: dict[str, frozenset[str]] = {
    **{name: frozenset(_WHOLE[place + 1 :]) for place, name in enumerate(_WHOLE)},
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
}
_TEXT = re.compile(r"(?:var)?char\((\d+)\)")
_PLAIN = re.compile(r"NULL|TRUE|FALSE|-?\d+(\.\d+)?|'(?:[^'\\]|'')*'", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableChange:
    added: tuple[Column, ...] = ()
    dropped: tuple[Column, ...] = ()
    widened: tuple[tuple[Column, Column], ...] = ()
    """Pairs of the old and the new column."""
    key: bool = False
    """Whether other columns than before identify the rows."""
    moved: bool = False
    """Whether the columns are in another order."""
    renamed: tuple[tuple[Column, Column], ...] = ()
    """Pairs of the old and the new column."""
    places: tuple[int | None, ...] = ()
    """Position of each column among the old ones; None for a new column."""
    refused: str | None = None

    @property
    def columns(self) -> bool:
        """Whether readers of the table may see other columns."""
        return bool(self.added or self.dropped or self.moved or self.renamed or self.retyped)

    @property
    def retyped(self) -> tuple[tuple[Column, Column], ...]:
        """Columns whose values are stored in another type."""
        return tuple(
            pair for pair in self.widened if stored_type(pair[0].type) != stored_type(pair[1].type)
        )

    @property
    def rewrites(self) -> bool:
        """Whether existing rows have to be rewritten."""
        filled = any(default_value(column) is not None for column in self.added)
        return bool(self.retyped or self.key or filled)

    @property
    def reshapes(self) -> bool:
        """Whether the columns of stored rows are at other positions than those of the table."""
        return self.places != tuple(range(len(self.places))) or bool(self.dropped)

    def __str__(self) -> str:
        parts = [f"renames column {old.name} to {new.name}" for old, new in self.renamed]
        parts += [f"adds column {c.name}" for c in self.added]
        parts += [f"drops column {c.name}" for c in self.dropped]
        for old, new in self.widened:
            verb = "widens" if _is_wider(old.type, new.type) else "changes"
            parts.append(f"{verb} {new.name} from {old.type} to {new.type}")
        parts += ["changes the key"] if self.key else []
        parts += ["moves columns"] if self.moved else []
        return ", ".join(parts) or "is written differently but describes the same rows"


def table_change(old: Table, new: Table, renames: Mapping[str, str] | None = None) -> TableChange:
    """Compare two declarations. `renames` maps new names to old ones, in lower case."""
    wrong = [problem for problem, _, _ in wrong_renames(old, new, renames or {})]
    was = renames_done(old, renames or {}) if not wrong else {}
    before = {fold(c.name): c for c in old.columns}
    now = {was.get(fold(c.name), fold(c.name)): c for c in new.columns}
    both = [(before[name], column) for name, column in now.items() if name in before]
    order, numbers = [name for name in before if name in now], list(before)
    change = TableChange(
        added=tuple(c for name, c in now.items() if name not in before),
        dropped=tuple(c for name, c in before.items() if name not in now),
        widened=tuple(pair for pair in both if pair[0].type != pair[1].type),
        key=[fold(name) for name in old.key]
        != [was.get(fold(name), fold(name)) for name in new.key],
        moved=order != [name for name in now if name in before],
        renamed=tuple(pair for pair in both if fold(pair[0].name) != fold(pair[1].name)),
        places=tuple(numbers.index(name) if name in before else None for name in now),
    )
    refused = wrong[0] if wrong else _refused(change, both, new)
    return replace(change, refused=refused)


def renames_done(old: Table, renames: Mapping[str, str]) -> dict[str, str]:
    """Return the renames that a deploy has to do: those of columns that have only the old name."""
    before = {fold(column.name) for column in old.columns}
    return {now: was for now, was in renames.items() if was in before and now not in before}


def wrong_renames(
    old: Table, new: Table, renames: Mapping[str, str]
) -> list[tuple[str, str, str | None]]:
    """Return invalid renames: each problem, the new name it is about, and a hint.

    A rename that was already deployed is valid: its clause may stay in the file.
    """
    before = {fold(column.name): column.name for column in old.columns}
    found: list[tuple[str, str, str | None]] = []
    for now, was in renames.items():
        if was in before and now in before:
            found.append(
                (
                    f"{now} cannot be renamed from {was}: the deployed table {old.name} has both",
                    now,
                    f"leave the rename out, and fill {now} from {was} where rows are created",
                )
            )
        elif was not in before and now not in before:
            hint = did_you_mean(was, before.values())
            found.append(
                (
                    f"{now} is renamed from {was}, which the deployed table {old.name} does not "
                    "have",
                    now,
                    hint or f"its columns are: {', '.join(before.values())}",
                )
            )
    return found


def default_value(column: Column) -> str | None:
    """Return the plain value of a new column in existing rows; None for NULL."""
    default = column.default
    return None if default is None or default.strip().upper() == "NULL" else default.strip()


def _refused(change: TableChange, both: list[tuple[Column, Column]], new: Table) -> str | None:
    for column in change.added:
        if column.default is not None and not _PLAIN.fullmatch(column.default.strip()):
            return (
                f"the default of the new column {column.name} is {column.default}, and only a "
                f"literal can be given to existing rows"
            )
        if not column.nullable and default_value(column) is None:
            return (
                f"the new column {column.name} is NOT NULL, and existing rows have no value for "
                f"it; give it a default, or leave NOT NULL out"
            )
    for old, now in change.widened:
        if not _is_wider(old.type, now.type):
            return (
                f"the type of {now.name} cannot become {now.type}, which cannot hold every "
                f"{old.type}; add a column of another name instead"
            )
    for old, now in both:
        if old.nullable and not now.nullable:
            return f"{now.name} becomes NOT NULL, and existing rows may hold NULL"
    dropped = {fold(column.name) for column in change.dropped}
    if dropped & {fold(name) for name in new.key}:
        return "a column of its key is dropped"
    return None


def _is_wider(old: str, new: str) -> bool:
    """Whether every value of the old type is a value of the new one.

    >>> _is_wider("int", "bigint"), _is_wider("decimal(10,2)", "decimal(12,2)")
    (True, True)
    >>> _is_wider("bigint", "double"), _is_wider("decimal(10,2)", "decimal(10,4)")
    (False, False)
    """
    if new in _WIDER.get(old, ()):
        return True
    decimal = decimal_width(new)
    if decimal is not None:
        before = value_width(old)
        return before is not None and holds(decimal, before)
    text = _TEXT.fullmatch(old)
    if text is not None:
        longer = _TEXT.fullmatch(new)
        if new == "string":
            return True
        return longer is not None and new.startswith("varchar") and int(longer[1]) >= int(text[1])
    return False
