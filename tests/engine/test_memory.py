"""Memory in use: what is held is told apart from files that are mapped."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from stepwell.engine.memory import memory

MB = 1_000_000
on_linux = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells the kinds of memory apart"
)


@on_linux
def test_a_mapped_file_is_not_held(tmp_path: Path) -> None:
    """A cache of 17 GB that the system can drop at any time is not a leak."""
    path = tmp_path / "mapped"
    path.write_bytes(os.urandom(MB) * 40)
    before = memory()
    assert before.held is not None
    assert before.mapped is not None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) > 0
        during = memory()
    assert during.mapped is not None
    assert during.held is not None
    assert during.mapped - before.mapped > 35 * MB
    assert during.held - before.held < 10 * MB
    assert during.peak >= during.mapped


@on_linux
def test_rows_in_arrow_are_held() -> None:
    """Rows in memory are the part that a setting of Stepwell can change."""
    before = memory()
    rows = pa.array(range(5_000_000), pa.int64())
    after = memory()
    assert after.arrow - before.arrow >= rows.nbytes
    assert before.held is not None
    assert after.held is not None
    assert after.held - before.held >= rows.nbytes * 0.8


@on_linux
def test_java_is_counted_apart() -> None:
    """It is another process, with a limit of its own (spark.driver_memory)."""
    code = "x = bytearray(50_000_000); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        used = memory(other.pid).java
        other.communicate(b"\n")
    assert used is not None
    assert 50 * MB <= used < 500 * MB
    assert memory(other.pid).java is None, "it has ended"


def test_without_proc_the_peak_is_known(tmp_path: Path) -> None:
    """macOS has no /proc: what is not known is not reported as zero."""
    used = memory(1, proc=tmp_path)
    assert (used.held, used.mapped, used.java) == (None, None, None)
    assert used.peak > MB
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("Name:\tx\nVmRSS:\t1 kB\n")
    assert memory(proc=tmp_path).held is None, "an old kernel does not tell them apart"
