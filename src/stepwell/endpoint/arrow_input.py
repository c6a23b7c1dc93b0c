"""Arrow input from outside. All of it is read here.

Arrow trusts its input: it follows an offset that points beyond its buffer, and the process dies
with a segmentation fault long after the bytes were read. A table from outside is therefore
validated in full (every offset, index and character) before any other code sees it. Files that
Stepwell has written itself carry a checksum and are not read here.
"""

from __future__ import annotations

import pyarrow as pa

from stepwell.errors import CorruptError


def read_table(data: bytes | pa.Buffer, where: str) -> pa.Table:
    """Read the rows of an Arrow IPC stream; `CorruptError` if the bytes are not a valid stream."""
    try:
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise CorruptError(where, f"these rows cannot be read: {error}") from error
    return table
