"""Arrow bytes from outside: the one place that reads them.

Arrow believes its input: an offset that points behind its buffer is followed, and the process ends
with a segmentation fault, long after the bytes were read. So a table from outside is validated in
full, every offset, index and character of it, before anybody else sees it. What we have written
ourselves carries a checksum, and is not read here.
"""

from __future__ import annotations

import pyarrow as pa

from stepwell.errors import CorruptError


def read_table(data: bytes | pa.Buffer, where: str) -> pa.Table:
    """The rows of an Arrow IPC stream; `CorruptError` if it is none, or not a sound one."""
    try:
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise CorruptError(where, f"these rows cannot be read: {error}") from error
    return table
