"""What becomes of a table's rows when its columns change: kept, converted, or refused.

Columns are told by their names. A new one is NULL (or its default, if that is a plain value) in the
rows that are there; one that is gone takes its values with it; a type may become a wider one, which
holds every value of the old. Anything else might lose or change a value, and is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepwell.query.statements import Column, Table, fold

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_WIDER: dict[str, frozenset[str]] = {
    **{name: frozenset(_WHOLE[place + 1 :]) for place, name in enumerate(_WHOLE)},
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
}
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_TEXT = re.compile(r"(?:var)?char\((\d+)\)")
_PLAIN = re.compile(r"NULL|TRUE|FALSE|-?\d+(\.\d+)?|'(?:[^'\\]|'')*'", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableChange:
    added: tuple[Column, ...] = ()
    dropped: tuple[Column, ...] = ()
    widened: tuple[tuple[Column, Column], ...] = ()
    """Each as it was and as it is to be."""
    key: bool = False
    """Whether the rows are told apart by other columns than before."""
    moved: bool = False
    """Whether the columns stand in another order."""
    refused: str | None = None

    @property
    def rows(self) -> bool:
        """Whether the rows that are there have to be written anew."""
        return bool(self.added or self.dropped or self.widened or self.key or self.moved)

    def __str__(self) -> str:
        parts = [f"adds column {c.name}" for c in self.added]
        parts += [f"drops column {c.name}" for c in self.dropped]
        for old, new in self.widened:
            verb = "widens" if _is_wider(old.type, new.type) else "changes"
            parts.append(f"{verb} {old.name} from {old.type} to {new.type}")
        parts += ["changes the key"] if self.key else []
        parts += ["moves columns"] if self.moved else []
        return ", ".join(parts) or "says the same of its rows in other words"


def table_change(old: Table, new: Table) -> TableChange:
    """From one declaration to another."""
    before = {fold(c.name): c for c in old.columns}
    now = {fold(c.name): c for c in new.columns}
    both = [(before[name], column) for name, column in now.items() if name in before]
    order = [name for name in before if name in now]
    change = TableChange(
        added=tuple(c for name, c in now.items() if name not in before),
        dropped=tuple(c for name, c in before.items() if name not in now),
        widened=tuple(pair for pair in both if pair[0].type != pair[1].type),
        key=[fold(name) for name in old.key] != [fold(name) for name in new.key],
        moved=order != [name for name in now if name in before],
    )
    return TableChange(
        change.added,
        change.dropped,
        change.widened,
        change.key,
        change.moved,
        _refused(change, both, new),
    )


def default_value(column: Column) -> str | None:
    """The plain value a new column has in rows that are there; None: NULL."""
    default = column.default
    return None if default is None or default.strip().upper() == "NULL" else default.strip()


def _refused(change: TableChange, both: list[tuple[Column, Column]], new: Table) -> str | None:
    for column in change.added:
        if column.default is not None and not _PLAIN.fullmatch(column.default.strip()):
            return (
                f"the default of the new column {column.name} is {column.default}, and only a "
                "plain value can be given to the rows that are there"
            )
        if not column.nullable and default_value(column) is None:
            return (
                f"the new column {column.name} is NOT NULL, and the rows that are there have no "
                "value for it; give it a default, or leave NOT NULL out"
            )
    for old, now in change.widened:
        if not _is_wider(old.type, now.type):
            return (
                f"the type of {now.name} cannot become {now.type}: not every {old.type} is one; "
                "add a column of another name instead"
            )
    for old, now in both:
        if old.nullable and not now.nullable:
            return f"{now.name} becomes NOT NULL, and rows that are there may hold NULL"
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
    decimal = _DECIMAL.fullmatch(new)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
        if old in _DIGITS:
            return precision - scale >= _DIGITS[old]
        before = _DECIMAL.fullmatch(old)
        return before is not None and (
            scale >= int(before[2]) and precision - scale >= int(before[1]) - int(before[2])
        )
    text = _TEXT.fullmatch(old)
    if text is not None:
        longer = _TEXT.fullmatch(new)
        if new == "string":
            return True
        return longer is not None and new.startswith("varchar") and int(longer[1]) >= int(text[1])
    return False
