"""Arrow bytes from outside: refused, or sound; never the end of the process."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from stepwell.endpoint.arrow_input import read_table
from stepwell.errors import CorruptError

CASES = 400


def table() -> pa.Table:
    """One of every kind of layout that Arrow has."""
    texts = ["ada", None, "x" * 40, ""]
    return pa.table(
        {
            "number": pa.array([1, None, 3, 4], pa.int64()),
            "text": pa.array(texts),
            "large": pa.array(texts, pa.large_string()),
            "view": pa.array(texts, pa.string_view()),
            "bytes": pa.array([b"a", None, b"", b"bcd"]),
            "list": pa.array([[1, 2], None, [], [3]]),
            "fixed": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
            "map": pa.array([[("a", 1)], None, [], [("b", 2)]], pa.map_(pa.string(), pa.int32())),
            "struct": pa.array([{"a": "x", "b": [1]}, None, {"a": None, "b": []}, {}]),
            "dictionary": pa.array(["u", "v", None, "u"]).dictionary_encode(),
            "runs": pa.RunEndEncodedArray.from_arrays([2, 4], ["r", "s"]),
            "union": pa.UnionArray.from_dense(
                pa.array([0, 1, 0, 1], pa.int8()),
                pa.array([0, 0, 1, 1], pa.int32()),
                [pa.array([1, 2]), pa.array(["x", "y"])],
            ),
            "decimal": pa.array([Decimal("1.5"), None, Decimal("2"), Decimal("3")]),
            "time": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 4),
            "flag": pa.array([True, None, False, True]),
        }
    )


def stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def damaged(data: bytes, seed: int) -> bytes:
    """The same bytes with some flipped, swapped for extremes, cut off or doubled."""
    chance, changed = random.Random(seed), bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        place = chance.randrange(len(changed))
        match chance.randrange(5):
            case 0:
                changed[place] ^= 1 << chance.randrange(8)
            case 1:
                changed[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                changed[place : place + 4] = b"\xff\xff\xff\x7f"
            case 3:
                del changed[place : place + chance.randrange(1, 9)]
            case _:
                changed[place:place] = changed[place : place + chance.randrange(1, 9)]
    return bytes(changed)


def use(rows: pa.Table) -> None:
    """What a pipeline does with rows: look at every value, take some, write them again."""
    rows.to_pylist()
    rows.slice(1).combine_chunks()
    stream(rows)


def main(first: int, last: int) -> None:
    data = stream(table())
    refused = 0
    for seed in range(first, last):
        try:
            rows = read_table(damaged(data, seed), "fuzz")
        except CorruptError:
            refused += 1
            continue
        # A time may be beyond Python's; a process that raises is a process that lives.
        with suppress(ValueError, OverflowError, pa.ArrowException):
            use(rows)
    print(refused)


def test_damaged_rows_are_refused_and_never_end_the_process() -> None:
    """R1: an offset that was believed ended the process with SIGSEGV. In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, "0", str(CASES)], capture_output=True, text=True
    )
    assert done.returncode == 0, f"ended by {done.returncode}: {done.stderr}"
    assert CASES / 2 < int(done.stdout) < CASES, "some are damaged where it does not matter"


def test_an_offset_behind_its_buffer_is_refused() -> None:
    """R1: the frame that crashed a run."""
    good = stream(pa.table({"a": ["abc", ""]}))
    at = good.index(struct.pack("<3i", 0, 3, 3))
    wrong = good[:at] + struct.pack("<3i", 0, 2**30, 2**30) + good[at + 12 :]
    with pytest.raises(CorruptError, match="these rows cannot be read"):
        read_table(wrong, "endpoint")


def test_sound_rows_come_as_they_were() -> None:
    assert read_table(stream(table()), "endpoint").equals(table())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
