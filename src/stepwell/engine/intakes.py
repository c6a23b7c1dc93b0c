"""Fold the intakes of a transaction into one change per table."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from stepwell.engine.ports import Intake
from stepwell.errors import ensure
from stepwell.lsm.change import Change
from stepwell.lsm.fold import Folded, Keys, check_discards, fold_traced


def fold_intakes(intakes: Iterable[Intake], keys: Keys) -> dict[str, Folded]:
    """Fold intakes, in order. Rows can be traced back to the intakes, by number.

    A table that received only bad rows has no change.
    """
    changes: dict[str, list[Change]] = {}
    numbers: dict[str, list[int]] = {}
    for number, intake in enumerate(intakes):
        if intake.change.parts or intake.change.staged is not None:
            check_discards(intake.table, keys[intake.table], intake.change)
            changes.setdefault(intake.table, []).append(intake.change)
            numbers.setdefault(intake.table, []).append(number)
    for parts in changes.values():
        alone = len(parts) == 1 or all(part.staged is None for part in parts)
        ensure(alone, "rows that are in files are not folded with others")
    return {
        table: fold_traced(parts, keys[table], numbers[table]) for table, parts in changes.items()
    }


class Alike:
    """Checks that changes can be folded: their columns have types that compare directly.

    Otherwise two values that are equal in the table could differ here: a number and its text.
    """

    def __init__(self) -> None:
        self._types: dict[tuple[str, str], pa.DataType] = {}

    def takes(self, intakes: Iterable[Intake]) -> bool:
        """Accept intakes if their types match those accepted before; False if they do not."""
        types = dict(self._types)
        for intake in intakes:
            if intake.change.staged is not None:
                return False  # These rows are not in memory, and cannot be folded with others.
            for part in intake.change.parts:
                for field in part.schema:
                    if pa.types.is_null(field.type):
                        continue
                    known = types.setdefault((intake.table, field.name.lower()), field.type)
                    if known != field.type and not _both_whole(known, field.type):
                        return False
        self._types = types
        return True


def _both_whole(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(one) and pa.types.is_signed_integer(other))
