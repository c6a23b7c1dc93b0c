"""Data tests: views of violations that a pipeline maintains, counts, and may refuse to extend.

A data test is a materialized view whose rows are violations, so it is evaluated incrementally like
any other view. The engine adds three things:

    count    the number of violations, stored in the manifest
    report   the violations that a transaction added, in its `Committed` event
    gate     `on_violation: fail` refuses a transaction that adds some, before it is recorded

A gate compares numbers: a transaction is refused if it leaves more violations than there were. So
violations that existed before a test was deployed do not stop a pipeline, and can be corrected one
by one. Replay passes no gate: recorded input was accepted under the tests of its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from stepwell.errors import InvalidError
from stepwell.execution.executor import Executed
from stepwell.lsm.change import WEIGHT, added_rows, net_rows
from stepwell.lsm.large_change import as_table

OnViolation = Literal["warn", "dead_letter", "fail"]
_SHOWN_MAX = 3
"""The number of violations that an error shows."""


@dataclass(frozen=True, slots=True)
class DataTest:
    name: str
    violations: str
    """The materialized view that holds the violations."""
    on_violation: OnViolation = "warn"


@dataclass(frozen=True, slots=True)
class Violation:
    """The violations that one transaction added to one test."""

    test: str
    view: str
    """The view that holds the violations."""
    added: int


def net_change(test: DataTest, executed: Executed) -> int:
    """The change in the number of violations."""
    change = _change(test, executed)
    return 0 if change is None else net_rows(change)


def added_violations(tests: Iterable[DataTest], executed: Executed) -> Iterator[Violation]:
    """The tests to which a transaction adds violations."""
    for test in tests:
        added = _added(test, executed)
        if added is not None:
            yield Violation(test.name, test.violations, net_rows(added))


def refuse_violations(tests: Iterable[DataTest], executed: Executed) -> None:
    """Raise `InvalidError` if a test with `on_violation: fail` has more violations than before."""
    for test in tests:
        if test.on_violation != "fail" or net_change(test, executed) <= 0:
            continue
        added = _added(test, executed)
        if added is None:
            continue
        count = net_rows(added)
        rows = added.drop_columns([WEIGHT]).slice(0, _SHOWN_MAX).to_pylist()
        shown = "; ".join(
            ", ".join(f"{name}={value!r}" for name, value in row.items())[:200] for row in rows
        )
        more = f" and {count - len(rows):,} more" if count > len(rows) else ""
        raise InvalidError(
            f"data test {test.name} fails: {count:,} "
            f"{'violation' if count == 1 else 'violations'}: {shown}{more}",
            hint="nothing was taken in: correct the rows, or deploy the test with "
            "on_violation: warn to accept them",
        )


def _added(test: DataTest, executed: Executed) -> pa.Table | None:
    change = _change(test, executed)
    if change is None:
        return None
    added = added_rows(change)
    return added if added.num_rows else None


def _change(test: DataTest, executed: Executed) -> pa.Table | None:
    for view, change in executed.changes.items():
        if view.lower() == test.violations.lower() and change.num_rows:
            return as_table(change)
    return None
