"""`plan`, `deploy`, `destroy`, `state` and `unlock`, in one process and in many that are killed."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepwell.cli.main import app
from stepwell.deploy.lease import take_lease
from stepwell.deploy.state_file import read_state
from stepwell.env import SystemEnv
from stepwell.journal import paths
from stepwell.store.locate import open_store
from tests.cli.conftest import Run, snapshot
from tests.cli.projects import SQL, YML, Process, put_file, sink_rows, stepwell, wait, write_project

CHANGED = SQL.replace("SUM(amount) AS total", "MAX(amount) AS total")
EMPTY = "nothing to do"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_project(tmp_path / "project")


def write(folder: Path, sql: str = SQL, yml: str = YML) -> None:
    (folder / "pipeline.sql").write_text(sql, encoding="utf-8")
    (folder / "stepwell.yml").write_text(yml, encoding="utf-8")


def fill(folder: Path, run: Run) -> None:
    rows: list[dict[str, object]] = [
        {"id": id, "customer": "abc"[id % 3], "amount": f"{id}.25"} for id in range(30)
    ]
    put_file(folder, "a.json", rows)
    ended = run("-C", folder, "run", "--once")
    assert ended.exit_code == 0, ended.stderr


def revenue(folder: Path, run: Run) -> Counter[tuple[object, ...]]:
    asked = run("-C", folder, "query", "SELECT * FROM revenue", "--json")
    assert asked.exit_code == 0, asked.stderr
    found = json.loads(asked.stdout, parse_float=str)["rows"]
    return Counter(tuple(row.values()) for row in found)


def test_plan_says_what_deploy_does_and_then_nothing(folder: Path, run: Run) -> None:
    """D7: text and JSON, and the exit codes that a script wants."""
    planned = run("-C", folder, "plan", "--detailed-exitcode")
    assert planned.exit_code == 2
    assert "+ create   table orders" in planned.stdout
    told = "plan: 4 to create; 0 unchanged\nchecked without Spark, types as far as they are known"
    assert told in planned.stdout
    assert json.loads(run("-C", folder, "plan", "--json").stdout)["checked"] == "offline"
    assert not (folder / "state").exists(), "planning writes nothing"
    deployed = run("-C", folder, "deploy")
    assert deployed.exit_code == 0, deployed.stderr
    assert "deployed, serial 1" in deployed.stdout
    again = run("-C", folder, "plan", "--detailed-exitcode", "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["changes"] == 0
    assert EMPTY in run("-C", folder, "deploy").stdout


def test_plan_writes_nothing_and_starts_no_spark(folder: Path, run: Run) -> None:
    """D5, D7, scenario 79: also where something is deployed; nor is Spark imported."""
    assert run("-C", folder, "deploy").exit_code == 0
    write(folder, CHANGED)
    before = snapshot(folder / "state")
    planned = stepwell(folder, "plan", "--json")
    assert json.loads(planned.stdout)["counts"]["rebuild"] == 1
    assert run("-C", folder, "state", "show").exit_code == 0
    assert snapshot(folder / "state") == before
    code = (
        "import sys; sys.argv = ['stepwell', '-C', sys.argv[1], 'plan']\n"
        "from stepwell.cli.main import app\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        "print('loaded', [m for m in ('pyspark', 'py4j', 'pandas') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60
    )
    assert "loaded []" in shown.stdout, shown.stdout + shown.stderr


def test_a_plan_that_was_kept_is_carried_out(folder: Path, run: Run, tmp_path: Path) -> None:
    """D7: what was looked at is what happens; a plan of yesterday is refused."""
    kept = tmp_path / "today.plan"
    assert run("-C", folder, "plan", "--out", kept).exit_code == 0
    assert run("-C", folder, "deploy", "--plan", kept).exit_code == 0
    ended = run("-C", folder, "deploy", "--plan", kept)
    assert ended.exit_code == 1
    assert "has changed since it was made" in ended.stderr


def test_a_column_is_renamed_on_the_command_line(folder: Path, run: Run) -> None:
    """D11: suggested where values would be lost, refused where it does not fit, then done."""
    fill(folder, run)
    before = revenue(folder, run)
    write(folder, SQL.replace("amount ", "price ").replace("SUM(amount)", "SUM(price)"))
    planned = run("-C", folder, "plan")
    assert "hint: if price is amount under another name" in planned.stdout
    assert "lost: the values of amount" in planned.stdout
    wrong = run("-C", folder, "plan", "--rename", "orders.amuont=price")
    assert (wrong.exit_code, "hint: did you mean amount?" in wrong.stderr) == (1, True), (
        wrong.stderr
    )
    both = run("-C", folder, "deploy", "--plan", "x", "--rename", "orders.amount=price")
    assert "cannot be combined with --plan" in both.stderr
    option = ("--rename", "orders.amount=price")
    shown = run("-C", folder, "plan", *option)
    assert "~ rebind   view revenue" in shown.stdout
    assert "lost" not in shown.stdout
    done = run("-C", folder, "deploy", *option)
    assert done.exit_code == 0, done.stderr
    assert EMPTY in run("-C", folder, "plan").stdout
    assert revenue(folder, run) == before


def test_run_uses_what_is_deployed_and_says_that_the_project_differs(
    folder: Path, run: Run
) -> None:
    """D7: a project that is being edited does not change what runs."""
    fill(folder, run)
    before = revenue(folder, run)
    write(folder, CHANGED)
    ended = run("-C", folder, "run", "--once")
    assert ended.exit_code == 0
    assert "differs from what is deployed (revenue has changed)" in ended.stderr
    assert revenue(folder, run) == before
    assert run("-C", folder, "deploy").exit_code == 0
    assert revenue(folder, run) != before
    assert run("-C", folder, "run", "--once").exit_code == 0
    assert sink_rows(folder) == revenue(folder, run)


def test_losing_data_needs_a_word(folder: Path, run: Run) -> None:
    """D9: where nobody can be asked, only --yes drops rows; nothing was opened before."""
    fill(folder, run)
    write(folder, "CREATE TABLE other (a INT);", "name: orders\nstore: ./state\n")
    ended = run("-C", folder, "deploy")
    assert ended.exit_code == 1
    assert "this would lose about 30 rows of table orders" in ended.stderr
    assert not list((folder / "state" / "deploy").glob("resources.json.wal/*"))
    assert run("-C", folder, "deploy", "--yes").exit_code == 0
    assert EMPTY in run("-C", folder, "plan").stdout


def test_destroy_asks_deletes_and_has_nothing_to_do_then(folder: Path, run: Run) -> None:
    """D9: twice is the same as once, and the place can be used again."""
    fill(folder, run)
    refused = run("-C", folder, "destroy")
    assert refused.exit_code == 1
    assert "--yes" in refused.stderr
    ended = run("-C", folder, "destroy", "--yes")
    assert ended.exit_code == 0, ended.stderr
    assert not [path for path in (folder / "state").rglob("*.*") if not path.name.startswith(".")]
    again = run("-C", folder, "destroy", "--yes")
    assert "nothing to do" in again.stdout
    assert sink_rows(folder), "what sinks hold is theirs"
    assert run("-C", folder, "plan", "--detailed-exitcode").exit_code == 2
    write(folder, SQL, YML.replace("path: out", "path: out-again"))
    assert run("-C", folder, "deploy").exit_code == 0


def test_what_is_protected_is_not_destroyed(folder: Path, run: Run) -> None:
    """D9: until it is deployed unprotected."""
    write(folder, SQL, YML + "protect: [orders]\n")
    assert run("-C", folder, "deploy").exit_code == 0
    ended = run("-C", folder, "destroy", "--yes")
    assert ended.exit_code == 1
    assert "table orders: it is protected" in ended.stderr


def test_a_damaged_record_is_repaired_and_kept(folder: Path, run: Run) -> None:
    """D3: refused with the command that helps, which shows first and keeps what it replaces."""
    assert run("-C", folder, "deploy").exit_code == 0
    path = folder / "state" / "deploy" / "resources.json"
    path.write_bytes(path.read_bytes()[:-9] + b"damaged!}")
    log = folder / "state" / paths.deploy_log(4)
    log.parent.mkdir(exist_ok=True)
    log.write_bytes(b"?")
    write(folder, CHANGED)
    ended = run("-C", folder, "deploy")
    assert ended.exit_code == 1
    assert "checksum" in ended.stderr
    shown = run("-C", folder, "state", "show")
    assert shown.exit_code == 1
    assert "problem" in shown.stdout
    assert run("-C", folder, "state", "repair").exit_code == 1
    repaired = run("-C", folder, "state", "repair", "--yes")
    assert repaired.exit_code == 0, repaired.stderr
    assert len(list((folder / "state" / "deploy").glob("resources.json.wal.kept/*/*"))) == 2
    assert run("-C", folder, "deploy").exit_code == 0
    assert "nothing to repair" in run("-C", folder, "state", "repair").stdout


def test_a_deploy_waits_for_another_and_names_it(folder: Path, run: Run) -> None:
    """D5, scenario 80: and unlock frees it by its id."""
    assert run("-C", folder, "deploy").exit_code == 0
    write(folder, CHANGED)
    env = SystemEnv()
    store = open_store(str(folder / "state"), env)
    lease = take_lease(store, env, wait_s=0)
    ended = stepwell(folder, "deploy", "--lock-timeout", "500ms")
    assert ended.returncode == 1
    assert f"process {env.pid} on host {env.host}" in ended.stderr
    assert run("-C", folder, "plan").exit_code == 0, "readers wait for nobody"
    freed = run("-C", folder, "unlock", lease.id)
    assert freed.exit_code == 0, freed.stderr
    assert stepwell(folder, "deploy").returncode == 0
    wrong = run("-C", folder, "deploy", "--lock-timeout", "soon")
    assert wrong.exit_code == 2


def test_variables_come_from_five_places_in_order(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: --var, the environment, a file, the target, the default."""
    yml = YML.replace("path: out", 'path: "${var:place}"') + (
        "variables: {place: default}\ntargets:\n  test: {variables: {place: target}}\n"
    )
    write(folder, SQL, yml)

    def place(*options: str) -> str:
        planned = run("-C", folder, *options, "plan", "--out", folder / "p", "--json")
        assert planned.exit_code == 0, planned.stderr
        wanted = json.loads((folder / "p").read_text(encoding="utf-8"))["wanted"]
        return str(wanted["sink.revenue_out"]["options"]["path"])

    assert place() == "default"
    assert place("--target", "test") == "target"
    (folder / "stepwell.vars.yml").write_text("place: file\n", encoding="utf-8")
    assert place("--target", "test") == "file"
    monkeypatch.setenv("STEPWELL_VAR_place", "environment")
    assert place() == "environment"
    assert place("--var", "place=given") == "given"
    wrong = run("-C", folder, "--var", "plaec=x", "plan")
    assert wrong.exit_code == 1
    assert "did you mean place?" in wrong.stderr
    (folder / "stepwell.vars.yml").write_text("plcae: file\n", encoding="utf-8")
    wrong = run("-C", folder, "plan")
    assert "stepwell.vars.yml:1:1" in wrong.stderr


def test_a_deploy_changes_a_pipeline_that_runs_and_it_continues(folder: Path, run: Run) -> None:
    """D11, scenario 80: the process that has the pipeline does it itself; nobody is fenced."""
    put_file(folder, "a.json", [{"id": 1, "customer": "a", "amount": "5.00"}])
    running = Process(folder, "run")
    try:
        running.until("transaction 1")
        put_file(folder, "b.json", [{"id": 2, "customer": "a", "amount": "3.00"}])
        running.until("transaction 2")
        write(folder, CHANGED + "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders;\n")
        ended = stepwell(folder, "deploy")
        assert ended.returncode == 0, ended.stderr
        assert "to change it" in ended.stderr
        assert "computing revenue: deploying, 0 %, 0 of 2 views" in ended.stderr
        assert "computing ids: deploying, 50 %, 1 of 2 views" in ended.stderr
        put_file(folder, "c.json", [{"id": 3, "customer": "b", "amount": "9.00"}])
        wait(lambda: len(sink_rows(folder)) == 2, lambda: running.text)
        assert revenue(folder, run) == sink_rows(folder)
        asked = run("-C", folder, "query", "SELECT * FROM ids", "--json")
        assert len(json.loads(asked.stdout)["rows"]) == 3
        assert EMPTY in run("-C", folder, "plan").stdout
        running.send(signal.SIGTERM)
        assert running.end() == 130
    finally:
        running.kill()


def test_interrupted_before_it_changed_anything_it_ends_with_130(folder: Path) -> None:
    """D6: the lease is given back and no log is left."""
    env = SystemEnv()
    store = open_store(str(folder / "state"), env)
    lease = take_lease(store, env, wait_s=0)
    waiting = Process(folder, "deploy")
    waiting.until("waiting for process")
    waiting.send(signal.SIGINT)
    assert waiting.end() == 130
    lease.release()
    assert stepwell(folder, "deploy").returncode == 0


def killed_again_and_again(folder: Path, run: Run, rounds: int, seed: int) -> None:
    """Deploys killed at random moments; the next one always succeeds, and all comes out right."""
    draw = random.Random(seed)
    fill(folder, run)
    env = SystemEnv()
    texts = [SQL, CHANGED, CHANGED + "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders;\n"]
    store = open_store(str(folder / "state"), env)
    for number in range(rounds):
        write(folder, texts[number % len(texts)])
        process = Process(folder, "deploy", "--yes")
        # A deploy takes about a second: most of them are hit in the middle of it.
        threading.Event().wait(draw.uniform(0.1, 1.5))
        process.kill()
        if number % 4 != 3:
            continue
        serial = read_state(store).serial
        ended = stepwell(folder, "deploy", "--yes")
        assert ended.returncode == 0, ended.stderr
        assert read_state(store).serial >= serial
        assert EMPTY in run("-C", folder, "plan").stdout
        assert run("-C", folder, "run", "--once").exit_code == 0
        assert sink_rows(folder) == revenue(folder, run)
    write(folder, SQL)
    assert run("-C", folder, "deploy", "--yes").exit_code == 0
    assert run("-C", folder, "run", "--once").exit_code == 0
    amounts = Counter[str]()
    for id in range(30):
        amounts["abc"[id % 3]] += id * 100 + 25
    expected = Counter({(name, f"{sum / 100:.2f}", 10): 1 for name, sum in amounts.items()})
    assert revenue(folder, run) == expected
    assert sink_rows(folder) == expected


def test_a_dozen_deploys_killed_at_random_moments(folder: Path, run: Run) -> None:
    """D4, scenario 77: SIGKILL; no person is needed, and the sink has each change once."""
    killed_again_and_again(folder, run, 12, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_deploys_killed_at_random_moments(folder: Path, run: Run, seed: int) -> None:
    """D4, scenario 77: the same, fifty at a time."""
    killed_again_and_again(folder, run, 50, seed=100 + seed)


PARSED = """
from sqlglot import parse_one
for i in range(1_000):
    parse_one(f"SELECT x.k, SUM(x.v) AS s, COUNT(*) AS n FROM t{i} x JOIN u{i} y ON x.id = y.id "
              f"WHERE y.v > {i} GROUP BY x.k", dialect="spark")
"""


def processor_s(command: Callable[[], object]) -> float:
    """Processor time that a command spends in other processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_two_hundred_views_cost_little_more_than_parsing_them(folder: Path) -> None:
    """D7: processor time, without Spark, as a multiple of what the same machine takes to parse."""
    tables = [f"CREATE TABLE t{i} (id BIGINT PRIMARY KEY, k STRING, v BIGINT);" for i in range(20)]
    views = [
        f"CREATE MATERIALIZED VIEW v{i} AS SELECT x.k, SUM(x.v) AS s, COUNT(*) AS n "
        f"FROM t{i % 20} x JOIN t{(i * 7 + 3) % 20} y ON x.id = y.id WHERE y.v > {i} GROUP BY x.k;"
        for i in range(200)
    ]
    write(folder, "\n".join([*tables, *views]), "name: p\nstore: ./state\n")
    parsing = processor_s(lambda: subprocess.run([sys.executable, "-c", PARSED], check=True))
    for command in ("validate", "plan"):
        ended: list[subprocess.CompletedProcess[str]] = []
        spent = processor_s(lambda: ended.append(stepwell(folder, command)))
        assert ended[0].returncode == 0, ended[0].stderr
        assert spent < 3.5 * parsing, f"{command} took {spent:.2f} s, parsing {parsing:.2f}"


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("", 1)])
def test_a_process_that_can_be_asked_is_asked(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    """D6, D9: what is declined leaves no log, and the place as it was."""
    assert run("-C", folder, "deploy").exit_code == 0
    write(folder, CHANGED)
    monkeypatch.setattr("stepwell.cli.deploy.can_be_asked", lambda: True)
    ended = CliRunner().invoke(app, ["-C", str(folder), "deploy"], input=answer)
    assert ended.exit_code == code
    assert "deploy this? [y/N]" in ended.stderr
    assert not list((folder / "state" / "deploy").glob("resources.json.wal/*"))
    changed = run("-C", folder, "plan", "--detailed-exitcode").exit_code
    assert changed == (0 if code == 0 else 2)
