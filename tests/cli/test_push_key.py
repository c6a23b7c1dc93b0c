"""`stepwell push --key`, in one process and through the endpoint of another."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pyarrow as pa
import pytest

from stepwell.cli import pipeline_access
from stepwell.cli.pipeline_access import PipelineAccess
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.endpoint.client import connect
from stepwell.endpoint.server import Endpoint
from stepwell.endpoint.wire import ConnectionLost, Silent
from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError, UnknownOutcomeError
from stepwell.lsm.change import Change
from tests.cli.conftest import Run
from tests.cli.projects import Process, load, stepwell, write_project
from tests.cli.test_endpoint import endpoint, pipeline  # noqa: F401 - fixtures

YML = """\
name: clicks
store: ./state
transaction: {max_rows: 2}
"""
SQL = "CREATE TABLE clicks (id BIGINT, page STRING);\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_project(tmp_path / "project", YML, SQL)
    (made / "a.json").write_text("".join(f'{{"id": {id}, "page": "/"}}\n' for id in range(5)))
    return made


def ids(run: Run, folder: Path) -> list[int]:
    rows = run("-C", folder, "query", "SELECT id FROM clicks ORDER BY id", "--format", "json")
    return [json.loads(line)["id"] for line in rows.stdout.splitlines()]


def test_a_file_that_is_pushed_again_with_its_key_is_in_once(run: Run, folder: Path) -> None:
    """J14: all of its transactions are answered; other rows under the key are refused."""
    first = run("-C", folder, "push", "clicks", folder / "a.json", "--key", "day 1")
    assert first.stdout == "pushed 5 rows to clicks, transactions 1 to 3\n"
    again = run("-C", folder, "push", "clicks", folder / "a.json", "--key", "day 1", "--json")
    assert json.loads(again.stdout)["transactions"] == [1, 2, 3]
    assert json.loads(again.stdout)["rows"] == 5
    assert ids(run, folder) == [0, 1, 2, 3, 4]
    (folder / "b.json").write_text('{"id": 9}\n')
    other = run("-C", folder, "push", "clicks", folder / "b.json", "--key", "day 1")
    assert other.exit_code == 1
    assert "the key 'day 1' was used before" in other.stderr
    assert run("-C", folder, "push", "clicks", folder / "b.json", "--key", "").exit_code == 1
    assert run("-C", folder, "push", "clicks", folder / "a.json").exit_code == 0
    assert len(ids(run, folder)) == 10, "without a key it is another push"


def test_a_push_that_stopped_in_the_middle_names_the_key_to_continue_with(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J14: the key that was made for it; the rest is taken in, and nothing twice."""
    original = PipelineAccess._push
    done: list[object] = []

    def push(self: PipelineAccess, *arguments: object) -> object:
        if len(done) == 2:
            raise UnknownOutcomeError("nobody knows", hint="open it again")
        done.append(original(self, *arguments))  # type: ignore[arg-type]
        return done[-1]

    with monkeypatch.context() as patch:
        patch.setattr(PipelineAccess, "_push", push)
        stopped = run("-C", folder, "push", "clicks", folder / "a.json")
    assert stopped.exit_code == 1
    assert "4 rows of a.json were committed before it stopped; with --key " in stopped.stderr
    hint = stopped.stderr.partition("with the same key is safe: stepwell ")[2]
    ended = run("-C", folder, *shlex.split(hint.splitlines()[0]))
    assert ended.stdout == "pushed 5 rows to clicks, transactions 1 to 3\n"
    assert ids(run, folder) == [0, 1, 2, 3, 4]


class Forgetful:
    """A pipeline that commits a push, and whose process goes away before it answers."""

    def __init__(self, inner: ProjectPipeline, times: int) -> None:
        self._inner = inner
        self._times = times

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def push(self, *arguments: object, **options: object) -> object:
        found = self._inner.push(*arguments, **options)  # type: ignore[arg-type]
        if self._times:
            self._times -= 1
            raise ConnectionLost("killed")
        return found


@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_answer_is_asked_for_again(
    pipeline: ProjectPipeline,  # noqa: F811
    times: int,
) -> None:
    """J14: once; then the user is told to repeat it with the key."""
    served = Endpoint(Forgetful(pipeline, times), pipeline.store.uri, SystemEnv())  # type: ignore[arg-type]
    rows = pa.table({"id": [1], "customer": ["ada"], "amount": [1]})
    reach = PipelineAccess(pipeline.project, SystemEnv(), take_over=False)
    try:
        if times == 1:
            assert reach.push("orders", Change(rows), (), "k") == 1
        else:
            with pytest.raises(UnknownOutcomeError) as caught:
                reach.push("orders", Change(rows), (), "k")
            assert "push again with the same key" in str(caught.value.hint)
        client = connect(pipeline.store.uri)
        assert client is not None
        with client:
            assert client.push("orders", rows, key="k") == 1
    finally:
        served.close()
    assert pipeline.transaction_number == 1


def test_a_process_that_fell_silent_is_not_asked_again(
    pipeline: ProjectPipeline,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J14: it would only be waited for once more; that the rows may be in must not be lost."""
    asked: list[int] = []

    def push(self: PipelineAccess, *arguments: object) -> object:
        asked.append(1)
        raise UnknownOutcomeError("silent") from Silent("it says nothing")

    def then_gone(self: PipelineAccess, *arguments: object) -> object:
        asked.append(1)
        if len(asked) == 2:
            raise UnknownOutcomeError("gone") from ConnectionLost("killed")
        raise UnavailableError("nobody answers", not_applied=True)

    for answer, expected in ((push, "silent"), (then_gone, "gone")):
        monkeypatch.setattr(PipelineAccess, "_push", answer)
        reach = pipeline_access.PipelineAccess(pipeline.project, SystemEnv(), take_over=False)
        with pytest.raises(UnknownOutcomeError, match=expected):
            reach.push("orders", Change(), (), "k")
    assert len(asked) == 3


def test_a_run_killed_between_pushes_with_keys_takes_each_once(folder: Path) -> None:
    """J14: real processes: the next `run` takes over, and knows what the killed one took in."""
    for number in range(2):
        running = Process(folder, "run")
        try:
            running.until("running")
            pushed = stepwell(folder, "push", "clicks", str(folder / "a.json"), "--key", "k")
            assert pushed.stdout == "pushed 5 rows to clicks, transactions 1 to 3\n", number
        finally:
            running.kill()
    project = load(folder)
    with ProjectPipeline(project, SystemEnv()) as opened:
        assert opened.table("clicks").num_rows == 5
