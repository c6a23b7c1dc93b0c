"""How many rows of relations a process holds in memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Row limits of one executor. Tests lower them to reach the code for large relations."""

    memory_rows_max: int = 100_000
    """Maximum number of rows of a relation in memory; more become a run."""
    merged_rows_max: int = 5_000_000
    """Runs with at most this many rows are compacted in memory, all at once. If executors are on
    other machines, a run with more rows has no files on this one."""
    shipped_rows_max: int = 50_000
    """Spark gets more rows than this as a file: within a plan they would be slow."""
