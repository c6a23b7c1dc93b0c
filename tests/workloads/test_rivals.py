"""What `benchmarks/rivals.py` compares is the same work, and what it draws can be read.

A benchmark that gives one system less to do than another, or that overlooks a wrong answer, says
nothing about either.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import _rivals
import _tpch
import rivals
from _changes import together
from _plot import break_even
from _rivals import DifferentAnswersError, Fingerprint, check_same, fingerprint

SCALE = 0.01


def test_a_change_that_was_written_is_read_as_it_was(tmp_path: Path) -> None:
    """Systems in other processes get it from files."""
    changes = _tpch.Changes(_tpch.load(tmp_path, SCALE))
    gone = changes.delete_orders(0.01)
    change = together(changes.new_orders(0.01), gone)
    assert _rivals.read_change(_rivals.write_change(tmp_path / "change", change)) == change


def test_the_views_touched_are_those_that_read_orders_or_lines() -> None:
    """A view that no order reaches would be compared with doing nothing."""
    assert set(_rivals.QUERIES) - set(_rivals.TOUCHED) == {"q02", "q11", "q16"}


@pytest.mark.parametrize(
    ("size", "orders"), [("1", 1), ("100", 100), ("0.01%", 150), ("10%", 150_000)]
)
def test_a_size_is_a_number_of_orders_or_a_share(size: str, orders: int) -> None:
    """As given on the command line."""
    assert rivals.orders_of(size, 1_500_000) == orders
    assert rivals.orders_of("0.01%", 10) == 1


def test_rounding_is_no_difference() -> None:
    """Spark's averages of decimals are decimals, and DuckDB's are doubles."""
    ours = pa.table({"n": [1, 2], "mean": [Decimal("0.333333"), Decimal("0.666667")]})
    theirs = pa.table({"n": [2, 1], "mean": [2 / 3, 1 / 3]})
    check_same(same(ours, theirs), ["v"])


@pytest.mark.parametrize(
    "other",
    [
        {"n": [1], "name": ["one"], "day": [date(2020, 1, 1)]},
        {"n": [1, 3], "name": ["one", "two"], "day": [date(2020, 1, 1)] * 2},
        {"n": [1, 2], "name": ["one", "three"], "day": [date(2020, 1, 1)] * 2},
        {"n": [1, 2], "name": ["one", "two"], "day": [date(2020, 1, 1), date(2020, 1, 2)]},
        {"n": [1, 2], "name": ["one", "two"]},
    ],
    ids=["rows", "number", "text", "date", "columns"],
)
def test_another_answer_is_found_out(other: dict[str, list[object]]) -> None:
    """Then the systems did other work, and their times say nothing."""
    one = pa.table({"n": [1, 2], "name": ["one", "two"], "day": [date(2020, 1, 1)] * 2})
    with pytest.raises(DifferentAnswersError, match="v: one and other do not agree"):
        check_same(same(one, pa.table(other)), ["v"])


def same(one: pa.Table, other: pa.Table) -> Mapping[str, Mapping[str, Fingerprint]]:
    return {"one": {"v": fingerprint(one)}, "other": {"v": fingerprint(other)}}


def test_duckdb_follows_changes(tmp_path: Path) -> None:
    """All 22 queries run as they stand, over tables to which the same change was applied."""
    pytest.importorskip("duckdb", reason="comes with the extra bench")
    files = _tpch.generate(tmp_path, SCALE)
    changes = _tpch.Changes(_tpch.load(tmp_path, SCALE))
    system = _rivals.DuckDB(files, tmp_path / "one")
    system.open()
    before = system.answers()
    gone = changes.delete_orders(0.05)
    change = together(changes.new_orders(0.05), gone)
    applied = system.apply(_rivals.write_change(tmp_path / "change", change))
    assert set(applied.views) == set(applied.with_difference) == set(_rivals.TOUCHED)

    folder = tmp_path / "changed"
    folder.mkdir()
    changed = {}
    for table, rows in changes.current().items():
        changed[table] = folder / f"{table}.parquet"
        pq.write_table(rows, changed[table])
    fresh = _rivals.DuckDB(changed, tmp_path / "two")
    fresh.open()
    check_same({"changed": system.answers(), "loaded": fresh.answers()}, list(_rivals.QUERIES))
    with pytest.raises(DifferentAnswersError):
        check_same({"before": before, "after": system.answers()}, list(_rivals.TOUCHED))


def test_a_system_in_a_process_answers_or_says_why() -> None:
    """A call that failed there must fail here, with its traceback."""
    with _rivals.Process(Echo, "hello") as process:
        assert process.call("say", "you") == ("hello", "you")
        assert process.call("pid") != os.getpid()
        with pytest.raises(RuntimeError, match="ValueError: no"):
            process.call("refuse")


class Echo:
    def __init__(self, word: str) -> None:
        self._word = word

    def say(self, name: str) -> tuple[str, str]:
        return self._word, name

    def pid(self) -> int:
        return os.getpid()

    def refuse(self) -> None:
        raise ValueError("no")


def test_the_plot_is_svg_with_a_line_for_each_rival() -> None:
    """Written by hand, so nothing else checks it."""
    lines = {"DuckDB": [(1e-6, 30.0), (0.1, 0.2)], "Spark & more": [(1e-6, 900.0), (0.1, 3.0)]}
    drawn = ElementTree.fromstring(break_even("a title", "share", "times", lines))
    space = "{http://www.w3.org/2000/svg}"
    paths = [line.get("points", "") for line in drawn.iter(f"{space}polyline")]
    assert [len(path.split()) for path in paths] == [2, 2]
    texts = [text.text for text in drawn.iter(f"{space}text")]
    assert {"a title", "DuckDB", "Spark & more", "0.0001 %", "10 %", "0.1", "1000"} <= set(texts)
    places = [tuple(map(float, pair.split(","))) for path in paths for pair in path.split()]
    assert all(0 <= x <= 720 and 0 <= y <= 440 for x, y in places)
