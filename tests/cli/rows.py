"""Data as a push would journal it."""

from __future__ import annotations

import pyarrow as pa


def arrow_stream(rows: int) -> bytes:
    """Rows with an id and a customer, as an Arrow IPC stream."""
    batch = pa.RecordBatch.from_pydict(
        {"id": list(range(rows)), "customer": [f"customer-{number}" for number in range(rows)]}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())
