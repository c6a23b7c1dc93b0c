"""What a user's type checker sees of the public API, with the stubs of Arrow."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
from collections.abc import Mapping
from typing import assert_type

import pyarrow as pa

import stepwell


def write(folder: str) -> None:
    with stepwell.open(folder) as pipeline:
        assert_type(pipeline, stepwell.Pipeline)
        assert_type(pipeline.push("t", [{"a": 1}], delete={"a": [2]}), stepwell.Receipt)
        assert_type(pipeline.push("t", pa.table({"a": [1]}), key="one").rejected, int)
        with pipeline.transaction() as transaction:
            assert_type(transaction, stepwell.Transaction)
            transaction.push("t", pa.table({"a": [1]}))
        assert_type(pipeline.table("t"), pa.Table)
        assert_type(pipeline.query("SELECT 1 AS a"), stepwell.Answer)
        assert_type(pipeline.status(), stepwell.Status)
        assert_type(pipeline.run(once=True), int)
        for number, change in pipeline.tail("v"):
            assert_type(change, pa.Table)


def read(folder: str) -> None:
    snapshot = stepwell.read(folder)
    assert_type(snapshot, stepwell.Snapshot)
    assert_type(snapshot.table("t"), pa.Table)
    answer = snapshot.query("SELECT 1 AS a")
    assert_type(answer.rows, pa.Table)
    assert_type(answer.schema, pa.Schema)
    assert_type(answer.to_pylist(), list[dict[str, object]])
    assert_type(answer.column("a").length(), int)


def ask(folder: str) -> None:
    with stepwell.connect(folder) as client:
        assert_type(client, stepwell.Client)
        assert_type(client.push("t", pa.table({"a": [1]})), stepwell.Receipt)
        assert_type(client.query("SELECT 1 AS a").rows, pa.Table)
        assert_type(client.status(), Mapping[str, object])
        for item in client.tail("v"):
            if item is not None:
                assert_type(item[1], pa.Table)
"""


@pytest.mark.slow
def test_a_type_checker_knows_what_the_public_api_returns(tmp_path: Path) -> None:
    """A type that the checker takes for `Any` accepts every mistake."""
    try:
        importlib.metadata.version("pyarrow-stubs")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("pyarrow-stubs is not installed")
    assert check(tmp_path, PROGRAM) == []
    wrong = 'assert_type(stepwell.read("p").table("t"), int)\nstepwell.read("p").table(1)\n'
    first, second = check(tmp_path, f"{PROGRAM}\n{wrong}")
    assert "assert-type" in first
    assert "arg-type" in second


def check(folder: Path, program: str) -> list[str]:
    """What mypy finds in a program, by the same rules as for a user's own."""
    (folder / "program.py").write_text(program)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file=", "--strict", "--no-error-summary"),
            *("--follow-imports=silent", "--ignore-missing-imports", "program.py"),
            *("--cache-dir", str(folder / "cache")),
        ],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert not ended.stderr, ended.stderr
    return [line for line in ended.stdout.splitlines() if ": error: " in line]
