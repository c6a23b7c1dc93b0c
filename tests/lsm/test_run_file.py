"""Run files: what is found in them without reading all of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from stepwell.lsm import run_file
from stepwell.lsm.run_file import RunFiles, repeated_key, write_files


@pytest.mark.parametrize("group", [1, 2, 100])
def test_a_repeated_key_is_found_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    """S3: a table with two rows of one key; also if they are in two row groups."""
    monkeypatch.setattr(run_file, "ROW_GROUP_ROWS", group)
    names = (tmp_path / f"{number}.parquet" for number in itertools.count())

    def repeated(*pieces: pa.Table, key: tuple[int, ...]) -> tuple[object, ...] | None:
        return repeated_key(RunFiles(*write_files(pieces, key, lambda: next(names))), key)

    once = pa.table({"c0": [1, 1, 2, 2, None], "c1": ["a", "b", "a", "b", "a"], "w": [1] * 5})
    twice = pa.table({"c0": [4, 3, 4], "c1": ["a", None, "a"], "w": [1] * 3})
    nothing = pa.table({"c0": [6, 5, 6], "c1": [None, None, None], "w": [1] * 3})
    assert repeated(once, key=(0, 1)) is None
    assert repeated(once, key=(0,)) == (1,)
    assert repeated(once, twice, key=(0, 1)) == (4, "a")
    assert repeated(once, nothing.cast(once.schema), key=(0, 1)) == (6, None)
    assert repeated(once.slice(0, 0), key=(0, 1)) is None
