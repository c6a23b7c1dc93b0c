"""`init`, `validate`, `status`, `query`, `push`, `tail` and `explain`, where nothing else runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from stepwell.cli import init
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.project import load_project
from stepwell.env import SystemEnv
from tests.cli.conftest import Run, snapshot
from tests.cli.projects import load, put_file, sink_rows, stepwell, write_project

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_project(tmp_path / "project")


@pytest.fixture
def filled(folder: Path, run: Run) -> Path:
    """Two customers, three orders, and one row that is none."""
    rows: list[dict[str, object]] = [
        {"id": 1, "customer": "ada", "amount": "1.50"},
        {"id": 2, "customer": "ada", "amount": "2.00"},
        {"id": 3, "customer": None, "amount": "4.00"},
        {"id": "four"},
    ]
    put_file(folder, "a.json", rows)
    ended = run("-C", folder, "run", "--once")
    assert ended.exit_code == 0, ended.stderr
    return folder


@pytest.mark.parametrize("template", ["orders", "empty"])
def test_what_init_writes_is_right_and_runs(run: Run, tmp_path: Path, template: str) -> None:
    """The first minute decides whether there is a second."""
    made = tmp_path / "made"
    ended = run("init", made, "--template", template)
    assert ended.exit_code == 0
    assert ended.stdout.count("wrote ") == len([p for p in made.rglob("*") if p.is_file()])
    assert "next:\n" in ended.stdout
    assert f"cd {made}" in ended.stdout
    assert run("-C", made, "validate").exit_code == 0
    if template == "orders":
        once = run("-C", made, "--target", "test", "run", "--once")
        assert once.exit_code == 0, once.stderr
        asked = run("-C", made, "--target", "test", "query", "SELECT * FROM revenue", "--json")
        assert json.loads(asked.stdout)["rows"][0] == {"customer": "ada", "total": 134.99, "n": 2}


def test_init_overwrites_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pipeline.sql").write_text("mine")
    before = snapshot(tmp_path)
    ended = run("-C", tmp_path, "init")
    assert ended.exit_code == 1
    assert "pipeline.sql already exists; nothing was written" in ended.stderr
    assert snapshot(tmp_path) == before


def test_the_example_is_what_init_writes(run: Run, tmp_path: Path) -> None:
    """Two copies drift apart unless something holds them together."""
    run("init", tmp_path / "orders")
    written = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    examples = ROOT / "examples"
    shown = {
        name: (examples / name).read_bytes() for name in written if (examples / name).is_file()
    }
    assert shown == written
    assert {path.name for path in init.TEMPLATES.iterdir()} == {"orders", "empty"}


def test_validate_lists_what_a_project_declares(run: Run, folder: Path) -> None:
    put_file(folder, "a.json", [{"id": 1, "customer": "ada", "amount": "1"}])
    ended = run("-C", folder, "validate")
    assert ended.stdout == (
        "kind               name         from\n"
        "table              orders       pipeline.sql:1\n"
        "materialized view  revenue      pipeline.sql:2\n"
        "source             order_files  files -> orders\n"
        "sink               revenue_out  revenue -> files\n"
        "\n"
        "orders: 4 resources\n"
        "valid as far as the files show, types included; Spark knows more: "
        "stepwell validate --spark\n"
    )
    document = json.loads(run("-C", folder, "validate", "--json").stdout)
    assert document["resources"][0] == {"kind": "table", "name": "orders", "from": "pipeline.sql:1"}


def test_validate_shows_a_mistake_and_exits_1(run: Run, folder: Path) -> None:
    with open(folder / "stepwell.yml", "a") as file:
        file.write("chekpoint: {every: 1m}\n")
    ended = run("-C", folder, "validate")
    assert ended.exit_code == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        "error: stepwell.yml:7:1: stepwell.yml has no key chekpoint\n"
        "chekpoint: {every: 1m}\n"
        "^^^^^^^^^\n"
        "hint: did you mean checkpoint?\n"
    )
    error = json.loads(run("-C", folder, "validate", "--json").stderr)["error"]
    assert (error["file"], error["line"], error["column"]) == ("stepwell.yml", 7, 1)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "SELECT customer, sum(amount) AS s FROM orders GROUP customer",
            "customer is not expected",
        ),
        ("SELECT customer, sum(amount) AS s FROM orders", "customer is neither grouped nor"),
        ("SELECT id, rand() AS r FROM orders", "rand() gives a different answer each time"),
    ],
)
def test_validate_finds_mistakes_in_queries(run: Run, folder: Path, query: str, said: str) -> None:
    """D10: each was "valid", and failed when the pipeline was opened, with Spark up."""
    (folder / "more.sql").write_text(f"\nCREATE MATERIALIZED VIEW more AS\n  {query};\n")
    ended = run("-C", folder, "validate")
    assert ended.exit_code == 1
    assert ended.stderr.startswith("error: more.sql:3:")
    assert (
        f"more{': ' if said.startswith('customer') else ' is stored, but '}{said}" in ended.stderr
    )
    assert "hint: " in ended.stderr
    planned = run("-C", folder, "plan")
    assert said in planned.stderr


def test_validate_finds_a_key_that_is_not_a_column(run: Run, folder: Path) -> None:
    """D10: it failed with the first delivery."""
    path = folder / "stepwell.yml"
    text = path.read_text()
    with open(path, "a") as file:
        file.write("  keyed: {view: revenue, type: delta, path: ./d, key: [custmer]}\n")
    ended = run("-C", folder, "validate")
    assert ended.exit_code == 1, text
    assert "sink keyed: revenue has no column custmer" in ended.stderr
    assert "hint: did you mean customer?" in ended.stderr
    line = len(text.splitlines()) + 1
    assert ended.stderr.startswith(f"error: stepwell.yml:{line}:")
    shown, caret = ended.stderr.splitlines()[1:3]
    assert shown[caret.index("^") :].startswith("[custmer]")


@pytest.mark.spark
def test_validate_asks_spark_for_what_the_files_do_not_tell(run: Run, folder: Path) -> None:
    """D10: what we do not know of a function is Spark's to tell, with the file and the line."""

    def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
        # In a process of its own, because the tests' Spark has other settings.
        command = [sys.executable, "-m", "stepwell", "-C", str(folder), "validate", "--spark"]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)

    good = "CREATE MATERIALIZED VIEW more AS\n  SELECT id, sha2('a', 256) AS m\n"
    (folder / "more.sql").write_text(f"{good}  FROM orders;\n")
    ended = asked("--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["checked"] == "spark"
    wrong = good.replace("'a'", "array(1)")
    (folder / "more.sql").write_text(f"{wrong}  FROM orders;\n")
    assert run("-C", folder, "validate").exit_code == 0, "the files alone do not tell"
    ended = asked()
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: more.sql:2:"), ended.stderr
    assert "sha2" in ended.stderr


def test_validate_warns_of_a_function_that_spark_does_not_have(run: Run, folder: Path) -> None:
    """D10: a session may have registered it, so it is not refused."""
    put_file(folder, "a.json", [{"id": 1, "customer": "ada", "amount": "1"}])
    (folder / "more.sql").write_text("CREATE VIEW more AS SELECT sume(amount) AS s FROM orders;")
    for command in ("validate", "plan"):
        ended = run("-C", folder, command)
        assert ended.exit_code == 0
        assert "warning: more.sql:1:28: more calls sume(), which is not" in ended.stderr
    document = json.loads(run("-C", folder, "validate", "--json").stdout)
    assert document["checked"] == "offline"
    assert len(document["warnings"]) == 1


def test_commands_that_only_read_a_project_do_not_load_spark(folder: Path) -> None:
    """Spark takes seconds to start, and Java to be there."""
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom stepwell.cli.main import app\n"
        f"for command in (['validate'], ['push', '--help'], ['run', '--once'], ['status']):\n"
        f"    ended = CliRunner().invoke(app, ['-C', {str(folder)!r}, *command])\n"
        "    assert ended.exit_code == 0, ended.stderr\n"
        "sys.exit('pyspark' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_status_of_what_is_not_there_yet_creates_nothing(run: Run, folder: Path) -> None:
    ended = run("-C", folder, "status")
    assert ended.exit_code == 1, "a store that was moved away looks the same"
    assert f"no pipeline at {folder}/state" in ended.stdout
    assert "was it moved?" in ended.stdout
    assert not (folder / "state").exists()
    asked = run("-C", folder, "query", "SELECT 1 AS a")
    assert asked.exit_code == 1
    assert f"no pipeline at {folder}/state" in asked.stderr
    assert not (folder / "state").exists()


def test_status_reads_the_manifest_and_writes_nothing(run: Run, filled: Path) -> None:
    before = snapshot(filled / "state")
    shown = run("-C", filled, "status").stdout
    assert "state     stopped cleanly" in shown
    assert "rejected  1 of orders, see orders$errors" in shown
    document = json.loads(run("-C", filled, "status", "--json").stdout)
    assert document["sinks"] == [
        {"name": "revenue_out", "view": "revenue", "delivered": 1, "pending": 0, "pending_bytes": 0}
    ]
    assert snapshot(filled / "state") == before


def test_query_prints_rows_in_every_format(run: Run, filled: Path) -> None:
    sql = "SELECT customer, total, n FROM revenue"
    table = run("-C", filled, "query", sql)
    assert table.stdout == "customer  total  n\nada        3.50  2\nNULL       4.00  1\n"
    assert table.stderr == "2 rows as of transaction 1\n"
    assert run("-C", filled, "query", sql, "--format", "json").stdout == (
        '{"customer":"ada","total":3.50,"n":2}\n{"customer":null,"total":4.00,"n":1}\n'
    )
    document = json.loads(run("-C", filled, "query", sql, "--json").stdout, parse_float=Decimal)
    assert document["transaction"] == 1
    assert document["columns"] == ["customer", "total", "n"]
    assert document["rows"][0]["total"] == Decimal("3.50")
    csv = stepwell(filled, "query", sql, "--format", "csv").stdout
    assert csv == '"customer","total","n"\n"ada",3.50,2\n,4.00,1\n'


def test_query_prints_arrow_that_arrow_reads(filled: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "stepwell", "-C", str(filled), "query"]
    ended = subprocess.run(
        [*command, "SELECT n FROM revenue", "--format", "arrow"], capture_output=True, timeout=60
    )
    assert sorted(pa.ipc.open_stream(ended.stdout).read_all()["n"].to_pylist()) == [1, 2]


def test_an_answer_without_rows_still_has_its_columns(run: Run, filled: Path) -> None:
    ended = run("-C", filled, "query", "SELECT customer FROM revenue WHERE n > 99")
    assert ended.stdout == "customer\n"
    assert ended.stderr == "0 rows as of transaction 1\n"


def test_dead_letters_can_be_read(run: Run, filled: Path) -> None:
    """J13: a row that vanished without a trace would be looked for in vain."""
    ended = run("-C", filled, "query", "SELECT * FROM `orders$errors`", "--format", "json")
    assert json.loads(ended.stdout)["reason"] == "id: 'four' is not a valid BIGINT"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DELETE FROM orders", "expected SELECT, found DELETE"),
        ("SELECT 1 AS a; SELECT 2 AS b", "this is a second statement"),
        ("", "this query is empty"),
        ("SELECT * FROM order", "there is no table or view order\nhint: did you mean orders?"),
        ("SELECT amont FROM orders", "Column 'amont' could not be resolved"),
    ],
)
def test_query_takes_one_select(run: Run, filled: Path, sql: str, said: str) -> None:
    """Security: a reader may not change anything."""
    ended = run("-C", filled, "query", sql)
    assert ended.exit_code == 1
    assert said in ended.stderr


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("more.json", b'{"id": 9, "customer": "bob", "amount": "7.00"}\n', ()),
        ("more.csv", b"id;customer;amount\n9;bob;7.00\n", ("--delimiter", ";")),
        (
            "more.txt",
            b'{"insert": {"id": 9, "customer": "bob", "amount": 7}}',
            ("--format", "json", "--changes", "insert_delete"),
        ),
    ],
)
def test_push_reads_every_format(
    run: Run, filled: Path, tmp_path: Path, name: str, content: bytes, options: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(content)
    ended = run("-C", filled, "push", "orders", tmp_path / name, *options)
    assert (ended.exit_code, ended.stdout) == (0, "pushed 1 row to orders, transaction 2\n")
    assert sink_rows(filled)["bob", "7.00", 1] == 1


def test_push_reads_what_is_compressed(run: Run, filled: Path, tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "more.json.gz"
    path.write_bytes(gzip.compress(b'{"id": 9, "customer": "bob", "amount": "7.00"}\n'))
    assert run("-C", filled, "push", "orders", path).stdout.startswith("pushed 1 row")


def test_push_tells_which_rows_it_could_not_read(run: Run, filled: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id": 7}\n{"id": "x"}\nnonsense\n')
    ended = run("-C", filled, "push", "orders", tmp_path / "a.json")
    assert ended.stdout == "pushed 1 row to orders, transaction 2\n"
    look = "stepwell query 'SELECT * FROM `orders$errors`'"
    assert ended.stderr.endswith(f"2 rows rejected; {look} shows why\n")
    document = json.loads(run("-C", filled, "push", "orders", tmp_path / "a.json", "--json").stdout)
    counts = {"rows": 3, "taken": 1, "rejected": 2}
    assert document == {"table": "orders", **counts, "transactions": [3]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["order", "a.json"], "there is no table order\nhint: did you mean orders?\n"),
        (["revenue", "a.json"], "there is no table revenue\n"),
        (["orders", "nothing.json"], "nothing.json cannot be read: No such file or directory\n"),
        (["orders", "a"], "the name a does not show its format\nhint: add --format"),
    ],
)
def test_a_wrong_push_opens_nothing(
    run: Run, folder: Path, arguments: list[str], said: str
) -> None:
    ended = run("-C", folder, "push", *arguments)
    assert ended.exit_code == 1
    assert said in ended.stderr
    assert not (folder / "state").exists()


def test_push_does_not_fence_a_writer_on_another_machine(run: Run, folder: Path) -> None:
    """F3: it is unknown whether it is alive, so a person must decide."""
    elsewhere = SystemEnv()
    elsewhere.host = "elsewhere"
    pipeline = ProjectPipeline(load(folder), elsewhere)
    (folder / "a.json").write_text('{"id": 1}\n')
    refused = run("-C", folder, "push", "orders", folder / "a.json")
    assert refused.exit_code == 1
    assert f"process {os.getpid()} on host elsewhere has" in refused.stderr
    assert "add --take-over" in refused.stderr
    assert "cannot be reached from here" in run("-C", folder, "status").stdout
    assert run("-C", folder, "query", "SELECT id FROM orders").exit_code == 0
    pipeline.push("orders", [{"id": 5}])
    taken = run("-C", folder, "push", "orders", folder / "a.json", "--take-over")
    assert taken.stdout == "pushed 1 row to orders, transaction 2\n"
    pipeline.close()


def test_tail_needs_a_process_that_runs(run: Run, filled: Path) -> None:
    ended = run("-C", filled, "tail", "revenue")
    assert ended.exit_code == 1
    assert "no process on this machine runs the pipeline" in ended.stderr
    assert "start one in another terminal: stepwell run" in ended.stderr
    assert "did you mean revenue?" in run("-C", filled, "tail", "revenu").stderr


def test_a_store_that_is_given_is_used(run: Run, filled: Path, tmp_path: Path) -> None:
    ended = run("-C", filled, "--store", tmp_path / "other", "status")
    assert f"store    {tmp_path}/other\n" in ended.stdout
    assert "no pipeline at" in ended.stdout


def test_secrets_are_printed_by_no_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Security: a resolved reference is neither shown nor stored."""
    from tests.cli.projects import YML

    monkeypatch.setenv("SECRET_PLACE", "hunter2")
    yml = YML.replace("path: out,", 'path: "${env:SECRET_PLACE}",')
    folder = write_project(tmp_path / "project", yml)
    put_file(folder, "a.json", [{"id": 1, "customer": "ada", "amount": "1.00"}])
    for command in (["validate"], ["run", "--once"], ["status"], ["validate", "--json"]):
        ended = run("-C", folder, *command)
        assert ended.exit_code == 0
        assert "hunter2" not in ended.stdout + ended.stderr
    for path in (folder / "state").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()
    assert (folder / "hunter2").is_dir()
    assert "hunter2" not in repr(load_project(folder, SystemEnv()))
