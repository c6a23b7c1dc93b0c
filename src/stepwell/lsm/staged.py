"""Rows of a step that are in run files and not in memory (see `bulk`)."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.lsm.part import Part
from stepwell.model import Checksum


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Puts of one table: at most one for each key, in the table's types, with weight one."""

    part: Part
    checksum: Checksum
    """The checksum of the same rows as they were decoded (`checksum_rows`)."""

    @property
    def rows(self) -> int:
        return self.part.rows
