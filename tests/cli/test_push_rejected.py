"""Pushes with rows that are rejected: counted, told of, and treated alike from shell and Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stepwell
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.endpoint.client import connect
from stepwell.endpoint.server import Endpoint
from stepwell.env import SystemEnv
from stepwell.errors import InvalidError, RejectedError
from tests.cli.conftest import Run

SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(8,2));
CREATE TABLE clicks (id BIGINT, page STRING);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer;
"""
LOOK = "SELECT position, reason, text FROM `orders$errors`"
BAD: list[Any] = [{"id": "x"}, {"id": None}, {"id": 1, "amount": 0.125}, 5]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "stepwell.yml").write_text(
        "name: rejected\nstore: ./state\ntransaction: {max_rows: 2}\n"
    )
    (made / "pipeline.sql").write_text(SQL)
    return made


def written(folder: Path, rows: list[Any]) -> Path:
    path = folder / "a.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@contextmanager
def served(folder: Path, by: str) -> Iterator[None]:
    """A process that runs the pipeline, as far as others see it; or none."""
    if by == "nobody":
        yield
        return
    with stepwell.open(folder) as pipeline:
        endpoint = Endpoint(pipeline, pipeline.store.uri, SystemEnv())  # type: ignore[arg-type]
        try:
            yield
        finally:
            endpoint.close()


@pytest.mark.parametrize("by", ["nobody", "another process"])
def test_a_push_of_which_nothing_was_taken_fails_and_says_where_to_look(
    run: Run, folder: Path, by: str
) -> None:
    """J13: a mistake in every row is none that a script may overlook."""
    with served(folder, by):
        ended = run("-C", folder, "push", "orders", written(folder, BAD))
        assert ended.exit_code == 1
        assert ended.stdout == ""
        assert (
            "all 4 rows pushed to orders were rejected, and kept in orders$errors" in ended.stderr
        )
        assert f"hint: stepwell query '{LOOK}' shows why" in ended.stderr
        found = json.loads(run("-C", folder, "query", LOOK, "--json").stdout)["rows"]
        assert [row["position"] for row in found] == [f"a.json, line {n}" for n in (1, 2, 3, 4)]
        assert [row["text"] for row in found] == [json.dumps(row) for row in BAD]
        told = run("-C", folder, "push", "orders", written(folder, BAD[:1]), "--json")
        assert told.exit_code == 1
        counted = json.loads(told.stdout)
        assert counted == {
            "table": "orders",
            "rows": 1,
            "taken": 0,
            "rejected": 1,
            "transactions": [3],
        }


@pytest.mark.parametrize("by", ["nobody", "another process"])
def test_a_push_of_which_something_was_taken_counts_the_rest(
    run: Run, folder: Path, by: str
) -> None:
    """J13: also where one of its transactions holds nothing but bad rows, and for deletes."""
    lines = [{"delete": {"id": 8}}, {"insert": {"id": "x"}}, {"insert": {"id": 2}}]
    push = ("-C", folder, "push", "orders", "--changes", "insert_delete")
    with served(folder, by):
        ended = run(*push, written(folder, lines))
        assert (ended.exit_code, ended.stdout) == (
            0,
            "pushed 1 row to orders, transactions 1 to 2\n",
        )
        assert ended.stderr.endswith(
            "2 rows rejected; stepwell query 'SELECT * FROM `orders$errors`' shows why\n"
        )
        told = json.loads(run(*push, written(folder, lines), "--json").stdout)
        assert told == {
            "table": "orders",
            "rows": 3,
            "taken": 1,
            "rejected": 2,
            "transactions": [3, 4],
        }
        ended = run(*push, written(folder, lines[:1]))
        assert ended.exit_code == 1
        assert "the row pushed to orders was rejected" in ended.stderr


@pytest.mark.parametrize("by", ["nobody", "another process"])
def test_a_transaction_counts_rejected_rows_as_a_push_does(run: Run, folder: Path, by: str) -> None:
    """J13: also deletes that only the executor can reject; all rejected is exit code 1."""
    transaction = ("-C", folder, "transaction", "--changes", "insert_delete")
    missing, stored = {"delete": {"id": 8}}, {"insert": {"id": 2}}
    with served(folder, by):
        one = run(*transaction, f"orders={written(folder, [missing])}", "--key", "k", "--json")
        assert one.exit_code == 1
        counts = {"rows": 1, "taken": 0, "rejected": 1, "tables": {"orders": 1}}
        assert json.loads(one.stdout) == {"transaction": 1, **counts}
        assert "the row pushed to orders was rejected, and kept in orders$errors" in one.stderr
        again = run(*transaction, f"orders={folder / 'a.json'}", "--key", "k", "--json")
        assert (again.exit_code, again.stdout) == (1, one.stdout)
        file = written(folder, [missing, {"insert": {"id": "x"}}])
        both = run(*transaction, f"orders={file}", f"clicks={file}")
        assert (both.exit_code, both.stdout) == (1, "")
        assert "all 4 rows pushed to orders, clicks were rejected" in both.stderr
        some = run(*transaction, f"orders={written(folder, [missing, stored])}")
        assert (some.exit_code, some.stdout) == (0, "pushed 1 row to orders, transaction 3\n")
        assert "1 row rejected: see orders$errors" in some.stderr


def test_a_commit_from_python_returns_its_counts(folder: Path) -> None:
    """J13: here and over the endpoint; a commit does not fail because of rejected rows."""
    with stepwell.open(folder) as pipeline:
        with pipeline.transaction() as own:
            own.push("orders", [{"id": 1}], delete=[{"id": 8}])
            receipt = own.commit()
        assert (receipt, receipt.rows, receipt.taken, receipt.rejected) == (1, 2, 1, 1)
        endpoint = Endpoint(pipeline, pipeline.store.uri, SystemEnv())  # type: ignore[arg-type]
        client = connect(pipeline.store.uri)
        assert client is not None
        try:
            with client, client.transaction() as remote:
                remote.push("orders", delete=[{"id": 8}])
                receipt = remote.commit()
        finally:
            endpoint.close()
        assert (receipt, receipt.rows, receipt.taken, receipt.rejected) == (2, 1, 0, 1)


def test_rows_that_cancel_out_are_not_rejected(run: Run, folder: Path) -> None:
    """J13: what was put and deleted in one step was taken in, though nothing is left of it."""
    click = {"id": 1, "page": "/"}
    lines = [{"insert": click}, {"delete": click}, {"delete": click}]
    (folder / "stepwell.yml").write_text("name: rejected\nstore: ./state\n")
    push = ("-C", folder, "push", "clicks", "--changes", "insert_delete")
    told = run(*push, written(folder, lines), "--json")
    assert told.exit_code == 0
    counted = json.loads(told.stdout)
    assert (counted["taken"], counted["rejected"]) == (2, 1)


def letters(pipeline: ProjectPipeline) -> list[tuple[object, ...]]:
    rows = pipeline.table("orders$errors").to_pylist()
    names = ("source", "reason", "text", "transaction")
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def test_python_and_command_line_treat_rows_alike(run: Run, folder: Path, tmp_path: Path) -> None:
    """J13: the same rows are taken in, the others are dead letters with the same reason."""
    rows = [{"id": 1, "amount": "1.5"}, BAD[0], {"id": 2, "customer": "a"}, BAD[2]]
    run("-C", folder, "push", "orders", written(folder, [rows[0], rows[1]]))
    run("-C", folder, "push", "orders", written(folder, [rows[2], rows[3]]))
    other = tmp_path / "other"
    other.mkdir()
    for name in ("stepwell.yml", "pipeline.sql"):
        (other / name).write_text((folder / name).read_text())
    with stepwell.open(other) as pipeline, stepwell.open(folder) as pushed:
        receipt = pipeline.push("orders", rows[:2])
        assert (receipt, receipt.rows, receipt.taken, receipt.rejected) == (1, 2, 1, 1)
        with pipeline.transaction() as several:
            several.push("orders", rows[2:])
        assert pipeline.table("orders") == pushed.table("orders")
        assert [(s, reason, t) for s, reason, _, t in letters(pipeline)] == [
            (s, reason, t) for s, reason, _, t in letters(pushed)
        ]


def test_a_push_from_python_of_which_nothing_was_taken_raises(folder: Path) -> None:
    """J13: and the dead letters are kept anyway, through a restart."""
    with stepwell.open(folder) as pipeline:
        with pytest.raises(RejectedError, match="all 4 rows pushed to orders were rejected") as all:
            pipeline.push("orders", BAD)
        assert isinstance(all.value, InvalidError)
        assert (all.value.table, all.value.rows, all.value.transaction) == ("orders", 4, 1)
        with pytest.raises(RejectedError, match="the row pushed to orders was rejected"):
            pipeline.push("orders", delete=[{"id": 5}])
        assert pipeline.status().dead_letters == {"orders": 5}
        before = letters(pipeline)
    with stepwell.open(folder) as again:
        assert letters(again) == before
        assert [row[1:3] for row in before if "delete" in str(row[1])] == [
            ("delete of a key that is not there", '{"id":5}')
        ]
        endpoint = Endpoint(again, again.store.uri, SystemEnv())  # type: ignore[arg-type]
        client = connect(again.store.uri)
        assert client is not None
        try:
            with client, pytest.raises(RejectedError) as told:
                client.push("orders", pa.table({"id": ["x"]}))
            assert (told.value.rows, told.value.transaction) == (1, 3)
        finally:
            endpoint.close()


def test_empty_rows_next_to_deletes_are_accepted(folder: Path) -> None:
    """Who computes two lists may find one of them empty."""
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [{"id": 1}, {"id": 2}])
        assert pipeline.push("orders", [], delete=[{"id": 1}]).taken == 1
        assert pipeline.push("orders", [{"id": 3}], delete=[], discard=[]).taken == 1
        assert [row["id"] for row in pipeline.table("orders").to_pylist()] == [2, 3]
        with pipeline.transaction() as several:
            several.push("orders", [], delete=[{"id": 2}])
        assert pipeline.push("orders", []) == 4
        assert [row["id"] for row in pipeline.table("orders").to_pylist()] == [3]


def test_on_error_fail_refuses_rows_from_python_as_it_does_all_others(folder: Path) -> None:
    """J13: nothing is recorded, no letter is kept."""
    (folder / "stepwell.yml").write_text(
        "name: rejected\nstore: ./state\ntransaction: {on_error: fail}\n"
    )
    with stepwell.open(folder) as pipeline:
        with pytest.raises(InvalidError, match="cannot be accepted: source push, row 2") as refused:
            pipeline.push("orders", [{"id": 1}, {"id": "x"}])
        assert not isinstance(refused.value, RejectedError)
        assert pipeline.table("orders").num_rows == 0
        assert pipeline.table("orders$errors").num_rows == 0
