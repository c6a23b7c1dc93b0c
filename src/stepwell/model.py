"""Immutable values shared by all layers: named numbers, times, checksums, and claims."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NewType

import xxhash

from stepwell.process import ProcessId

Position = NewType("Position", int)
"""The number of a journal entry, from 1. 0 is the position before the first entry."""

Epoch = NewType("Epoch", int)
"""The number of a writer, from 1. Each open for writing takes the next one."""

Transaction = NewType("Transaction", int)
"""The number of a transaction, from 1, never reused. 0 means none yet."""

Checksum = NewType("Checksum", str)
"""32 hex digits of XXH3-128. Detects damage, not forgery."""

Bytes = bytes | bytearray | memoryview

NO_CHECKSUM = Checksum("0" * 32)
"""The start of the checksum chain, and the placeholder while a checksum is computed."""

_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@dataclass(frozen=True, slots=True)
class Claim:
    """The holder of a pipeline: the writer of `epoch` and its process."""

    epoch: Epoch
    host: str
    pid: int
    time: datetime
    writer: str | None = None
    """The id of the handle that made the claim; equal in all claims of one handle."""
    boot: str | None = None
    namespace: str | None = None
    started: str | None = None

    @classmethod
    def by(cls, epoch: Epoch, process: ProcessId, time: datetime, writer: str | None) -> Claim:
        at = (process.boot, process.namespace, process.started)
        return cls(epoch, process.host, process.pid, time, writer, *at)

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.host, self.pid, self.boot, self.namespace, self.started)

    def __str__(self) -> str:
        return f"epoch {self.epoch}, host {self.host}, pid {self.pid}, {format_time(self.time)}"


def checksum(parts: Iterable[Bytes]) -> Checksum:
    """The checksum of the concatenated parts, computed without copying them."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return Checksum(digest.hexdigest())


def is_checksum(text: str) -> bool:
    return _CHECKSUM.fullmatch(text) is not None


def is_ulid(text: str) -> bool:
    return _ULID.fullmatch(text) is not None


def format_time(time: datetime) -> str:
    """Format a time in UTC with microseconds, always 27 characters.

    >>> format_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    '2026-01-02T03:04:05.000000Z'
    """
    if time.tzinfo is not UTC:
        time = time.astimezone(UTC)
    return time.isoformat(timespec="microseconds")[:26] + "Z"


def parse_time(text: str) -> datetime:
    """The inverse of `format_time`; raises ValueError for any other text."""
    if not _TIME.fullmatch(text):
        raise ValueError(f"not a UTC time with microseconds: {text!r}")
    return datetime.fromisoformat(text[:-1]).replace(tzinfo=UTC)
