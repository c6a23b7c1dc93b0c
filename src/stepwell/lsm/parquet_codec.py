"""Tables as Parquet in memory, with page checksums.

pyarrow.parquet is slow to import, and needed only by a process that writes or reads such a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from stepwell.errors import CorruptError

BATCH_ROWS = 65_536


def encode_table(table: pa.Table, **options: Any) -> bytes:
    """`options` are those of `pyarrow.parquet.write_table`."""
    from pyarrow import parquet

    out = pa.BufferOutputStream()
    parquet.write_table(table, out, write_page_checksum=True, **options)
    return bytes(out.getvalue().to_pybytes())


def encode_tables(tables: Iterable[pa.Table]) -> tuple[bytes, int]:
    """Tables of one schema, at least one, as one Parquet file; also returns its row count."""
    from pyarrow import parquet

    rest = iter(tables)
    first, rows = next(rest), 0
    out = pa.BufferOutputStream()
    with parquet.ParquetWriter(out, first.schema, write_page_checksum=True) as writer:
        for table in chain([first], rest):
            writer.write_table(table)
            rows += table.num_rows
    return bytes(out.getvalue().to_pybytes()), rows


def decode_table(body: bytes, where: str) -> pa.Table:
    """Read a table; `CorruptError` with the location `where` if it is not Parquet."""
    from pyarrow import parquet

    try:
        return parquet.read_table(pa.BufferReader(body), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(where, f"not a Parquet file: {error}") from error


def decode_batches(body: bytes, schema: pa.Schema, where: str) -> Iterator[pa.RecordBatch]:
    """Like `decode_table`, in batches, which must have this schema."""
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(body), page_checksum_verification=True)
        if file.schema_arrow.remove_metadata() != schema:
            raise CorruptError(where, f"expected {schema.names}", field="columns")
        yield from file.iter_batches(BATCH_ROWS)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(where, f"not a Parquet file: {error}") from error
