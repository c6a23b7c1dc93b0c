"""Results of functions of columns, each computed once in a transaction.

Several views join the same rows by the same columns, and collect the same distinct values. Arrow's
memory never changes, so two columns of one type in the same memory are equal, and what was computed
from one holds for the other. Columns are recognised by the addresses of their buffers. The memo
holds the columns, so no other one can get their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias, TypeVar

import pyarrow as pa

Column: TypeAlias = "pa.Array | pa.ChunkedArray"
Result = TypeVar("Result")

ROWS_MAX = 4_000_000
"""With more rows in all columns it holds, the memo keeps no further results."""


class ColumnMemo:
    """The results of one transaction. Columns must not be nested."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._known: dict[Hashable, tuple[Sequence[Column], object]] = {}
        self._rows = 0
        self.computed = 0
        self.shared = 0
        """How many results were returned again."""

    def of(
        self, function: Hashable, columns: Sequence[Column], compute: Callable[[], Result]
    ) -> Result:
        """The result of a function, given by name and other arguments, of these columns.

        Callers must not modify it.
        """
        key = function, *map(_memory, columns)
        known = self._known.get(key)
        if known is not None:
            self.shared += 1
            return known[1]  # type: ignore[return-value]
        result = compute()
        self.computed += 1
        rows = sum(map(len, columns))
        if self._rows + rows <= self._rows_max:
            self._rows += rows
            self._known[key] = tuple(columns), result
        return result


def _memory(column: Column) -> Hashable:
    """Equal for columns of one type in the same memory."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return column.type, *(
        (chunk.offset, len(chunk), *(b.address if b is not None else 0 for b in chunk.buffers()))
        for chunk in chunks
    )
