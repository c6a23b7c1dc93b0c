"""Fold the intakes of a transaction into one change per table."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from stepwell.engine.ports import Intake
from stepwell.lsm.change import Change
from stepwell.lsm.fold import Folded, Keys, check_discards, fold_traced


def fold_intakes(intakes: Iterable[Intake], keys: Keys) -> dict[str, Folded]:
    """Fold intakes, in order. Rows can be traced back to the intakes, by number.

    A table that received only bad rows has no change.
    """
    changes: dict[str, list[Change]] = {}
    numbers: dict[str, list[int]] = {}
    for number, intake in enumerate(intakes):
        if intake.change.parts:
            check_discards(intake.table, keys[intake.table], intake.change)
            changes.setdefault(intake.table, []).append(intake.change)
            numbers.setdefault(intake.table, []).append(number)
    return {
        table: fold_traced(parts, keys[table], numbers[table]) for table, parts in changes.items()
    }


class Alike:
    """Checks that columns of the same name have types whose values can be compared directly.

    Otherwise two values that are equal in the table could differ here: a number and its text.
    """

    def __init__(self) -> None:
        self._types: dict[tuple[str, str], pa.DataType] = {}

    def takes(self, intakes: Iterable[Intake]) -> bool:
        """Accept intakes if their types match those accepted before; False if they do not."""
        types = dict(self._types)
        for intake in intakes:
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
