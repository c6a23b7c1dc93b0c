"""The answer to a query: an Arrow table that knows its transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from stepwell.model import Transaction

if TYPE_CHECKING:
    from pandas import DataFrame as PandasFrame


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as an Arrow table, and the transaction as of which they are the answer.

    Any library that reads Arrow takes an answer as it is: `pyarrow.table(answer)`,
    `polars.from_arrow(answer)`, a DuckDB query over it.
    """

    transaction: Transaction
    """The last transaction that the rows include."""
    rows: pa.Table
    """The rows, as a `pyarrow.Table`."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.rows.num_rows)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self.rows.column_names)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self.rows.schema

    def column(self, name: str | int) -> pa.ChunkedArray:
        """Return one column, by its name or its number."""
        return self.rows.column(name)

    def to_pylist(self) -> list[dict[str, object]]:
        """Return the rows as a list of dictionaries."""
        rows: list[dict[str, object]] = self.rows.to_pylist()
        return rows

    def to_pandas(self) -> PandasFrame:
        """Return the rows as a pandas `DataFrame`. Needs pandas."""
        return self.rows.to_pandas()

    def __len__(self) -> int:
        return self.num_rows

    def __bool__(self) -> bool:
        """An answer without rows is an answer."""
        return True

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows through the Arrow PyCapsule interface."""
        return self.rows.__arrow_c_stream__(requested_schema)
