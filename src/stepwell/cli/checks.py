"""The result of one check of `stepwell doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its subject, its result, and the command that fixes it."""

    name: str
    status: Status
    detail: str
    fix: str | None = None
