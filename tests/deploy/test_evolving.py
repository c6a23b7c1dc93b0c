"""Sinks with `evolve: true`: a view gains, loses or widens a column, and they go on."""

from __future__ import annotations

import shutil
from collections import Counter
from itertools import count
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable

from stepwell.connectors.delta import DeltaSink
from stepwell.errors import InvalidError, UnavailableError
from stepwell.testing import Crash, FaultyStore, crash_at
from tests.connectors.conftest import postgres
from tests.deploy.project_world import ORDERS, SQL, YML, Lab
from tests.deploy.test_deploy_crash import copy_of

__all__ = ["postgres"]

EVOLVE = YML.replace("format: json}", "format: json, evolve: true}")
QUERY = "SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer"
GAINED = QUERY.replace("AS total", "AS total, COUNT(*) AS n")
LOST = "SELECT customer, COUNT(*) AS n FROM orders GROUP BY customer"
NUMBERS = count(1)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path / "project", monkeypatch)
    made.write(SQL, EVOLVE)
    made.deploy()
    made.push(*ORDERS)
    made.run()
    return made


def reason(lab: Lab, key: str) -> str:
    return next(step.reason for step in lab.plan().steps if step.key == key)


def test_a_plan_says_how_a_sink_evolves(lab: Lab) -> None:
    """D7: which columns it gains and loses is seen before anything is done."""
    lab.write(SQL.replace(QUERY, GAINED), EVOLVE)
    assert not lab.plan().refusals
    assert "it evolves: gains n; it receives the difference" in reason(lab, "sink.out")
    lab.write(SQL.replace(QUERY, LOST), EVOLVE)
    assert "it evolves: gains n; loses total" in reason(lab, "sink.out")


def test_without_evolve_the_refusal_names_it(lab: Lab) -> None:
    """D7: the next step is said."""
    lab.write(SQL, YML)
    lab.deploy()
    lab.write(SQL.replace(QUERY, GAINED), YML)
    (refused,) = lab.plan().refusals
    assert "set evolve: true on the sink" in refused


def test_evolve_can_be_set_in_the_deploy_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7, D11: it says how the sink goes on, not where or what it holds."""
    lab = Lab(tmp_path / "project", monkeypatch)
    lab.deploy()
    lab.push(*ORDERS)
    lab.run()
    lab.write(SQL.replace(QUERY, GAINED), EVOLVE)
    assert not lab.plan().refusals
    assert "evolve changed; it evolves: gains n" in reason(lab, "sink.out")
    assert not lab.deploy().failed
    lab.run()
    assert lab.is_settled()
    assert len(lab.batches()) == 5


@pytest.mark.parametrize(
    ("query", "options", "why"),
    [
        (QUERY.replace("AS total", "AS TOTAL"), "key: [customer]", "differ in their case only"),
        (LOST, "mode: table", "without a key rows that differ in nothing else"),
    ],
)
def test_what_a_sink_cannot_follow_is_refused_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, options: str, why: str
) -> None:
    """D7: with the reason, and nothing is changed."""
    lab = Lab(tmp_path / "project", monkeypatch)
    yml = YML.replace("type: files", "type: delta").replace(
        "format: json", f"evolve: true, {options}"
    )
    lab.write(SQL, yml)
    lab.deploy()
    lab.push(*ORDERS)
    lab.run()
    lab.write(SQL.replace(QUERY, query), yml)
    (refused,) = lab.plan().refusals
    assert why in refused
    with pytest.raises(InvalidError, match="this cannot be deployed"):
        lab.deploy()
    assert lab.serial == 1


def test_a_type_that_does_not_hold_the_old_values_holds_the_view_back(lab: Lab) -> None:
    """D8: only the executor knows types; the view stays as it is, and the reason is said."""
    lab.write(
        SQL.replace(QUERY, QUERY.replace("SUM(amount)", "CAST(SUM(amount) AS STRING)")), EVOLVE
    )
    done = lab.deploy()
    assert "column total changes from int64 to string" in done.failed["sink.out"]
    assert "view.revenue" in done.failed
    assert lab.rows("revenue")[("ada", 30)] == 1


@pytest.mark.parametrize("query", [GAINED, LOST], ids=["gained", "lost"])
def test_every_type_of_sink_follows(
    query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: str
) -> None:
    """D11, J7: through a deploy, read back from a real database and real Delta tables."""
    lab = Lab(tmp_path / "project", monkeypatch)
    tables = [f"evolving{next(NUMBERS)}" for _ in range(2)]
    yml = EVOLVE + "".join(
        f"  {name}: {{view: revenue, evolve: true, {options}}}\n"
        for name, options in {
            "lake": "type: delta, path: lake, key: customer",
            "lake_log": "type: delta, path: lake_log, mode: changes",
            "base": f'type: postgres, dsn: "{postgres}", table: {tables[0]}, key: customer',
            "base_log": f'type: postgres, dsn: "{postgres}", table: {tables[1]}',
        }.items()
    )
    lab.write(SQL, yml)
    lab.deploy()
    lab.push(*ORDERS)
    lab.run()
    lab.write(SQL.replace(QUERY, query), yml)
    assert not lab.deploy().failed
    lab.push((9, "zoe", 7), (2, "ada", 26))
    lab.run()
    rows = lab.rows_by_name("revenue")
    names = list(rows[0])
    expected = Counter(tuple(row.values()) for row in rows)
    for sink in ("lake", "lake_log"):
        found = DeltaTable(lab.folder / sink).to_pyarrow_table().to_pylist()
        assert added_up(found, names) == expected, sink
        if sink == "lake":
            assert set(found[0]) == set(names)
    with psycopg.connect(postgres) as connection:
        for table in tables:
            cursor = connection.execute(f"SELECT * FROM {table}")  # type: ignore[arg-type]
            columns = [item.name for item in cursor.description or ()]
            found = [dict(zip(columns, row, strict=True)) for row in cursor]
            assert added_up(found, names) == expected, table
            if table == tables[0]:
                assert set(columns) == set(names)
    assert lab.is_settled()


def test_what_waits_in_the_old_columns_arrives_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11, J7: a sink that is down during the deploy catches up in order, by two commits: rows in
    old and in new columns are never one.
    """
    lab = Lab(tmp_path / "project", monkeypatch)
    yml = EVOLVE + "  lake: {view: revenue, evolve: true, type: delta, path: lake, key: customer}\n"
    lab.write(SQL, yml)
    lab.deploy()
    lab.push(*ORDERS)
    lab.run()

    def down(*given: object) -> None:
        raise UnavailableError("the bucket is down")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaSink, "write_together", down)
        lab.push((9, "zoe", 7), (2, "ada", 26))
        lab.write(SQL.replace(QUERY, GAINED), yml)
        assert not lab.deploy().failed
        lab.push((3, "bob", 41), (10, "ada", 1))
    before = DeltaTable(lab.folder / "lake").version()
    lab.run()
    table = DeltaTable(lab.folder / "lake")
    assert added_up(table.to_pyarrow_table().to_pylist(), ["customer", "total", "n"]) == lab.rows(
        "revenue"
    )
    assert table.version() == before + 3, "old columns, the new ones, and rows in them"


def added_up(rows: list[dict[str, object]], names: list[str]) -> Counter[tuple[object, ...]]:
    total: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        total[tuple(row.get(name) for name in names)] += int(str(row.get("_w", 1)))
    return Counter({row: n for row, n in total.items() if n})


def test_killed_at_every_store_call_columns_change_once(lab: Lab) -> None:
    """D4, D11, J7: a deploy that dies leaves the old columns or the new ones, and the next one
    comes to the same.
    """
    start, out, kept = copy_of(lab.inner), lab.folder / "out", lab.folder / "kept"
    shutil.copytree(out, kept)
    lab.write(SQL.replace(QUERY, GAINED), EVOLVE)
    number = 0
    while True:
        number += 3
        lab.inner = copy_of(start)
        shutil.rmtree(out)
        shutil.copytree(kept, out)
        lab.store = FaultyStore(lab.inner, crash_at(number, "after"))
        try:
            lab.deploy()
        except Crash:
            lab.store = lab.inner
            lab.env.advance(60)  # The dead deploy's lease expires.
            lab.deploy()
        else:
            break
        lab.run()
        assert len(lab.batches()) == 5, "four transactions, and the change of columns"
        lab.push((9, "zoe", 7))
        texts = [part.read_text(encoding="utf-8") for part in out.glob("*/part.json")]
        assert '{"customer":"zoe","total":7,"n":1,"_w":1}\n' in texts
        assert len(lab.batches()) == 6
    assert number > 40, "a deploy makes more calls than that"
