"""Explicit transactions of other processes: through the endpoint, and with processes killed."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import stepwell
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.endpoint import transactions
from stepwell.endpoint.client import Client, connect
from stepwell.endpoint.server import Endpoint
from stepwell.endpoint.wire import ConnectionLost
from stepwell.engine.explicit import ExplicitTransaction
from stepwell.env import SystemEnv
from stepwell.errors import (
    CorruptError,
    InvalidError,
    UnavailableError,
    UnknownOutcomeError,
)
from tests.cli.conftest import Run
from tests.cli.projects import Process, load, wait, write_project
from tests.cli.projects import stepwell as command
from tests.cli.test_endpoint import client, endpoint, pipeline  # noqa: F401 - fixtures

ADA = {"id": 1, "customer": "ada", "amount": 1}
BOB = {"id": 2, "customer": "bob", "amount": 2}
YML = """\
name: shop
store: ./state
transaction: {max_rows: 2}
"""
SQL = """\
CREATE TABLE orders (id BIGINT);
CREATE TABLE items (id BIGINT);
"""


def ids(opened: ProjectPipeline, table: str = "orders") -> list[int]:
    return sorted(row["id"] for row in opened.table(table).to_pylist())


def test_a_transaction_becomes_visible_at_once(client: Client, pipeline: ProjectPipeline) -> None:  # noqa: F811
    """J10: over a connection as in the process itself; the connection is of use afterwards."""
    other = connect(pipeline.store.uri)
    assert other is not None
    with client.transaction() as transaction:
        transaction.push("orders", [ADA])
        transaction.push("Orders", {"id": [2], "customer": ["bob"], "amount": [2]})
        transaction.push("orders", delete=[{"id": 1}])
        assert other.status()["open"] == "explicit"
        assert pipeline.transaction_number == 0
        assert transaction.commit() == 1
    with pytest.raises(InvalidError, match="has ended"):
        transaction.push("orders", [ADA])
    assert ids(pipeline) == [2]
    transaction = client.transaction()
    transaction.push("orders", [ADA])
    transaction.abort()
    with pytest.raises(ZeroDivisionError), client.transaction() as transaction:
        transaction.push("orders", [ADA])
        raise ZeroDivisionError
    assert client.push("orders", [ADA]) == 2
    other.close()


def test_an_error_inside_leaves_the_transaction_open(
    client: Client,  # noqa: F811
    pipeline: ProjectPipeline,  # noqa: F811
) -> None:
    """J10: a row that cannot be sent, a table that is not there: the next push may be right."""
    with client.transaction() as transaction:
        with pytest.raises(InvalidError, match="there is no table order"):
            transaction.push("order", [ADA])
        with pytest.raises(InvalidError, match="cannot be read"):
            transaction.push("orders", [1])
        transaction.push("orders", [ADA])
    assert ids(pipeline) == [1]


@pytest.mark.parametrize("how", ["left", "stopped", "idle", "open too long", "nonsense", "closed"])
def test_a_transaction_whose_client_goes_away_is_rolled_back(
    how: str,
    endpoint: Endpoint,  # noqa: F811
    pipeline: ProjectPipeline,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J4, J10: the next in line gets its turn; nothing the client sends later counts."""
    if how == "idle":
        monkeypatch.setattr(transactions, "IDLE_S_MAX", 0.2)
    if how == "open too long":
        monkeypatch.setattr(transactions, "OPEN_S_MAX", 0.2)
    found = connect(pipeline.store.uri)
    assert found is not None
    transaction = found.transaction(key="k")
    with suppress(UnavailableError):  # Perhaps its time is over already.
        transaction.push("orders", [ADA])
    if how == "left":
        found.close()
    if how == "stopped":
        found.stop()
    if how == "nonsense":
        found._connection.sendall(b"\xff" * 64)
    if how == "closed":
        endpoint.close()
    waiting = threading.Thread(target=lambda: pipeline.push("orders", [BOB]))
    waiting.start()
    waiting.join(60)
    assert not waiting.is_alive()
    assert ids(pipeline) == [2]
    if how != "left":
        with pytest.raises((UnavailableError, CorruptError, UnknownOutcomeError)) as caught:
            transaction.commit()
        if how in ("idle", "open too long"):
            assert "the transaction was rolled back: " in caught.value.message
            assert ("asked for nothing" in caught.value.message) == (how == "idle")
            assert isinstance(caught.value, UnavailableError)
            assert caught.value.not_applied
        found.close()
    assert pipeline.push("orders", [ADA], key="k") == 2, "its key was not used"
    assert pipeline.status().open is None


def test_everybody_else_waits_for_the_end(client: Client, pipeline: ProjectPipeline) -> None:  # noqa: F811
    """J3: pushes and other transactions, of any process; beats tell them that they are heard."""
    answers: list[object] = []

    def push() -> None:
        found = connect(pipeline.store.uri, 5.0)
        assert found is not None
        with found:
            answers.append(found.push("orders", [BOB]))

    def begin() -> None:
        found = connect(pipeline.store.uri, 5.0)
        assert found is not None
        with found, found.transaction() as second:
            second.push("orders", [{"id": 3}])
            answers.append(second.commit())

    with client.transaction() as transaction:
        others = [threading.Thread(target=act) for act in (push, begin)]
        for count, thread in enumerate(others, 1):
            thread.start()
            wait(lambda count=count: len(pipeline._turns._line) == count)  # type: ignore[misc]
        assert answers == []
        transaction.push("orders", [ADA])
        assert transaction.commit() == 1
    for thread in others:
        thread.join(60)
    assert sorted(map(str, answers)) == ["2", "3"]


def test_a_transaction_is_repeated_with_its_key(client: Client, pipeline: ProjectPipeline) -> None:  # noqa: F811
    """J14: its answer was lost; the second one gets the same."""
    for _ in range(2):
        with client.transaction(key="k") as transaction:
            transaction.push("orders", [ADA])
            transaction.push("orders", [BOB])
            assert transaction.commit() == 1
    with pytest.raises(InvalidError, match="'k' was used before"), client.transaction(key="k") as t:
        t.push("orders", [ADA])
    assert pipeline.transaction_number == 1


@pytest.mark.parametrize("key", [None, "k"])
def test_a_lost_commit_is_unknown_and_a_lost_push_is_not(
    key: str | None,
    client: Client,  # noqa: F811
    pipeline: ProjectPipeline,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J1: before the commit was asked for, nothing was taken in, for certain."""

    def gone(*arguments: object) -> bool:
        raise ConnectionLost("killed")

    monkeypatch.setattr(transactions, "_answer", gone)
    transaction = client.transaction(key=key)
    with pytest.raises(UnavailableError, match="was rolled back") as caught:
        transaction.push("orders", [ADA])
    assert caught.value.not_applied
    found = connect(pipeline.store.uri)
    assert found is not None
    with found:
        transaction = found.transaction(key=key)
        with pytest.raises(UnknownOutcomeError) as unknown:
            transaction.commit()
    assert ("same key" in str(unknown.value.hint)) == (key is not None)


# Real processes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_project(tmp_path / "project", YML, SQL)
    (made / "orders.json").write_text("".join(f'{{"id": {id}}}\n' for id in range(5)))
    (made / "items.csv").write_text("id\n7\nx\n")
    return made


@pytest.fixture
def running(folder: Path) -> Iterator[Process]:
    process = Process(folder, "run")
    process.until("running")
    yield process
    process.kill()


FILES = ("orders=orders.json", "items=items.csv")
CLIENT = """
import sys, threading, stepwell
with stepwell.connect(sys.argv[1]) as client:
    transaction = client.transaction(key="k")
    transaction.push("orders", [{"id": 1}, {"id": 2}])
    if sys.argv[2] == "commit":
        print("committed", transaction.commit(), flush=True)
    print("pushed", flush=True)
    threading.Event().wait()
"""


def python(folder: Path, what: str) -> Process:
    """A client that stays until it is killed."""
    program = [sys.executable, "-c", CLIENT, str(folder), what]
    return Process(folder, what, program=program)


def test_a_client_killed_inside_its_transaction_leaves_no_trace(
    folder: Path, running: Process
) -> None:
    """J4, J10: SIGKILL; a push that waits for its end is taken in."""
    killed = python(folder, "push")
    killed.until("pushed")
    pushed = Process(folder, "push", "orders", "-", given='{"id": 9}')
    killed.kill()
    assert pushed.end() == 0, pushed.text
    assert "transaction 1" in pushed.text
    with stepwell.connect(folder) as found:
        assert found.query("SELECT id FROM orders").to_pylist() == [{"id": 9}]
        with found.transaction(key="k") as transaction:
            transaction.push("orders", [{"id": 1}, {"id": 2}])
            assert transaction.commit() == 2


def test_a_commit_that_was_acknowledged_survives_both_processes(
    folder: Path, running: Process
) -> None:
    """J1, J14: both are killed; what was told to be in is in, and repeated it is not twice."""
    committed = python(folder, "commit")
    committed.until("committed 1")
    running.kill()
    committed.kill()
    with ProjectPipeline(load(folder), SystemEnv()) as opened:
        assert ids(opened) == [1, 2]
        with opened.transaction(key="k") as transaction:
            transaction.push("orders", [{"id": 1}, {"id": 2}])
            assert transaction.commit() == 1


def test_a_run_killed_inside_a_transaction_of_another_process(
    folder: Path, running: Process
) -> None:
    """J4: the client is told that nothing was taken in, and the next opening rolls it back."""
    with stepwell.connect(folder) as found:
        transaction = found.transaction(key="k")
        transaction.push("orders", [{"id": 1}])
        running.send(signal.SIGKILL)
        running.end()
        with pytest.raises(UnavailableError, match="was rolled back") as caught:
            transaction.push("orders", [{"id": 2}])
        assert caught.value.not_applied
    with pytest.raises(UnavailableError, match="no process on this machine runs the pipeline"):
        stepwell.connect(folder)
    with ProjectPipeline(load(folder), SystemEnv()) as opened:
        assert ids(opened) == []


def test_a_run_that_is_to_end_does_not_wait_for_a_client(folder: Path, running: Process) -> None:
    """J4, J10: SIGTERM inside a transaction of another process rolls it back, and says so."""
    with stepwell.connect(folder) as found:
        transaction = found.transaction()
        transaction.push("orders", [{"id": 1}])
        running.send(signal.SIGTERM)
        assert running.end() == 130, running.text
        with pytest.raises(UnavailableError, match="is ending") as caught:
            transaction.commit()
        assert caught.value.not_applied
    with ProjectPipeline(load(folder), SystemEnv()) as opened:
        assert ids(opened) == []


def test_the_command_pushes_several_files_in_one_transaction(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J10, J14: all or nothing, with a key, where nothing runs."""
    monkeypatch.chdir(folder)
    ended = run("transaction", *FILES, "--key", "day 1")
    assert ended.stdout == "pushed 6 rows to orders, items, transaction 1\n"
    assert "1 row rejected: see orders$errors, items$errors" in ended.stderr
    again = json.loads(run("transaction", *FILES, "--key", "day 1", "--json").stdout)
    counts = {"rows": 7, "taken": 6, "rejected": 1, "tables": {"orders": 5, "items": 2}}
    assert again == {"transaction": 1, **counts}, "a repeated transaction has the same answer"
    refused = run("transaction", "orders=orders.json", "items=nothing.csv")
    assert refused.exit_code == 1
    for wrong, said in ((["orders"], "expected TABLE=FILE"), (["order=a.json"], "no table order")):
        ended = run("transaction", *wrong)
        assert (ended.exit_code, said in ended.stderr) == (1, True)
    with ProjectPipeline(load(folder), SystemEnv()) as opened:
        assert opened.transaction_number == 1
        assert ids(opened) == [0, 1, 2, 3, 4]
        assert ids(opened, "items") == [7]


def test_the_command_asks_the_process_that_runs(folder: Path, running: Process) -> None:
    """J10, F3: nobody is fenced."""
    files = [f"orders={folder / 'orders.json'}", f"items={folder / 'items.csv'}"]
    for _ in range(2):
        ended = command(folder, "transaction", *files, "--key", "k")
        assert ended.stdout == "pushed 6 rows to orders, items, transaction 1\n"
    status = json.loads(command(folder, "status", "--json").stdout)
    assert (status["state"], status["pid"]) == ("running", running.pid)


def test_a_lost_answer_of_the_command_is_asked_for_again(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J14: once; then it names its key."""
    original = ExplicitTransaction.commit
    lost: list[int] = []

    def commit(self: ExplicitTransaction) -> object:
        original(self)
        lost.append(1)
        raise UnknownOutcomeError("nobody knows") from ConnectionLost("killed")

    monkeypatch.chdir(folder)
    with monkeypatch.context() as patch:
        patch.setattr(ExplicitTransaction, "commit", commit)
        unknown = run("transaction", *FILES)
    assert unknown.exit_code == 1
    assert len(lost) == 2
    hint = unknown.stderr.partition("with the same key is safe: stepwell ")[2]
    assert run(*shlex.split(hint.splitlines()[0])).stdout.endswith(", transaction 1\n")
