"""A person at the terminal: options in any place, the project from any folder, hints that help."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from itertools import count, product
from pathlib import Path

import pytest
import typer.main

import stepwell
from stepwell.cli import project_options
from stepwell.cli.main import app
from stepwell.cli.options import moved_to_front
from stepwell.deploy.explain import OFFLINE
from stepwell.endpoint.server import Endpoint
from stepwell.env import SystemEnv
from stepwell.lsm.dead_letter import LETTER
from stepwell.testing import EXECUTOR_VARIABLE
from tests.cli.conftest import Run
from tests.cli.projects import SQL, YML, put_file, write_project

TARGET = "targets:\n  other: {store: ./other}\n"
SECRET = YML.replace("path: out,", "path: '${env:STEPWELL_TEST_OUT}',")
TESTS = """\
tests:
  totals: {view: revenue, not_null: [total]}
"""
ROWS: list[dict[str, object]] = [
    {"id": 1, "customer": "ada", "amount": "1.50"},
    {"id": 2, "customer": "bob", "amount": "4.00"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_project(tmp_path / "project", YML + TARGET)
    put_file(made, "a.json", ROWS)
    return made


@pytest.fixture
def filled(folder: Path, run: Run) -> Path:
    assert run("-C", folder, "run", "--once").exit_code == 0
    return folder


def test_options_of_the_project_stand_before_or_after_the_command(run: Run, folder: Path) -> None:
    """A user who recalls a command from the history adds the option at its end."""
    given = [("-C", str(folder)), ("--target", "other"), ("--json",)]
    asked = []
    for before in product((True, False), repeat=len(given)):
        front = [
            word for words, first in zip(given, before, strict=True) if first for word in words
        ]
        behind = [w for words, first in zip(given, before, strict=True) if not first for w in words]
        ended = run(*front, "status", *behind)
        assert ended.exit_code == 1, "there is no pipeline"
        asked.append(json.loads(ended.stdout)["store"])
    assert set(asked) == {str(folder / "other")}


@pytest.mark.parametrize(
    ("given", "moved"),
    [
        ("query Q -C d", "-C d query Q"),
        ("query Q -Cd --target=t", "-Cd --target=t query Q"),
        ("query --format csv Q --store s", "--store s query --format csv Q"),
        # The value of another option, and what follows --, are not options.
        ("push t f --delimiter -C", "push t f --delimiter -C"),
        ("query -- -C", "query -- -C"),
        ("inspect journal p --var a=b --limit 3", "--var a=b inspect journal p --limit 3"),
        ("run --log-level info --once", "--log-level info run --once"),
        ("run --log-format=json", "--log-format=json run"),
        ("-C a status -C b", "-C a -C b status"),
        ("status --target", "--target status"),
    ],
)
def test_what_is_moved_to_the_front(given: str, moved: str) -> None:
    """The later of two wins, as if both stood before the command."""
    assert moved_to_front(typer.main.get_command(app), given.split()) == moved.split()


def test_a_project_is_found_from_a_folder_inside_it(
    run: Run, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like git; and it says which one, because that is not plain to see."""
    monkeypatch.chdir(filled / "data")
    found = run("status")
    assert found.exit_code == 0
    assert found.stderr == f"project {filled}\n"
    assert f" {filled}/state\n" in found.stdout
    document = run("status", "--json")
    assert json.loads(document.stdout)["store"] == str(filled / "state")
    assert document.stderr == ""
    monkeypatch.chdir(filled)
    assert run("status").stderr == ""


def test_no_project_anywhere_above_is_told_of_the_folder_it_was_asked_in(
    run: Run, tmp_path: Path
) -> None:
    ended = run("-C", tmp_path, "status")
    assert f"there is no stepwell.yml in {tmp_path}" in ended.stderr


def test_a_project_of_another_user_is_not_found_by_chance(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project's options of Spark run code: one left in /tmp must be named to be used."""
    owner = os.stat(folder / "stepwell.yml").st_uid
    monkeypatch.setattr(project_options.os, "getuid", lambda: owner + 1000)
    real = Path.stat

    def stat(path: Path, **named: bool) -> os.stat_result:
        found = list(real(path, **named))
        found[4] = owner + 2000
        return os.stat_result(found)

    monkeypatch.setattr(project_options.Path, "stat", stat)
    refused = run("-C", folder / "data", "status")
    assert refused.exit_code == 1
    assert "belongs to another user" in refused.stderr
    assert f"hint: to use it: stepwell -C {folder}" in refused.stderr
    assert run("-C", folder, "validate").exit_code == 0


def test_commands_that_only_read_need_no_secrets(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of a pipeline need not be able to write to its sinks."""
    folder = write_project(tmp_path / "project", SECRET + TESTS)
    put_file(folder, "a.json", ROWS)
    monkeypatch.setenv("STEPWELL_TEST_OUT", str(tmp_path / "out"))
    assert run("-C", folder, "run", "--once").exit_code == 0
    monkeypatch.delenv("STEPWELL_TEST_OUT")
    reading = (
        ["status"],
        ["query", "SELECT * FROM revenue"],
        ["query", "SHOW TABLES"],
        ["plan"],
        ["verify"],
        ["gc"],
        ["state", "show"],
        ["checkpoint", "list"],
        ["test"],
        ["cache", "show"],
        ["clone", folder, tmp_path / "clone"],
    )
    for command in reading:
        ended = run("-C", folder, *command)
        assert ended.exit_code == 0, (command, ended.stderr)
    unchanged = json.loads(run("-C", folder, "plan", "--json").stdout)
    assert unchanged["changes"] == 0
    with stepwell.read(folder) as snapshot:
        assert snapshot.table("revenue").num_rows == 2
    for command in (["run", "--once"], ["validate"]):
        ended = run("-C", folder, *command)
        assert ended.exit_code == 1, command
        assert "the environment variable STEPWELL_TEST_OUT is not set" in ended.stderr
        assert "hint: export STEPWELL_TEST_OUT=..." in ended.stderr
    monkeypatch.delenv(EXECUTOR_VARIABLE)  # The reference executor has nothing to explain.
    never_run = write_project(tmp_path / "never_run", SECRET)
    ended = run("-C", never_run, "explain")
    assert (ended.exit_code, OFFLINE in ended.stdout) == (0, True), ended.stderr


def test_whoever_asks_a_running_pipeline_needs_no_secrets(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that runs the pipeline has them."""
    folder = write_project(tmp_path / "project", SECRET)
    monkeypatch.setenv("STEPWELL_TEST_OUT", str(tmp_path / "out"))
    with stepwell.open(folder) as pipeline:
        monkeypatch.delenv("STEPWELL_TEST_OUT")
        endpoint = Endpoint(pipeline, pipeline.store.uri, SystemEnv())  # type: ignore[arg-type]
        try:
            with stepwell.connect(folder) as client:
                assert client.status()["transaction"] == 0
            shown = threading.Event()

            def change() -> None:
                for number in count(1):
                    if shown.wait(0.1):
                        return
                    pipeline.push("orders", [{"id": number, "customer": f"c{number}"}])

            changing = threading.Thread(target=change)
            changing.start()
            ended = run("-C", folder, "tail", "revenue", "--max-transactions", "1")
            shown.set()
            changing.join()
            assert ended.exit_code == 0, ended.stderr
            assert json.loads(ended.stdout)["n"] == 1
        finally:
            endpoint.close()


def test_a_file_with_a_secret_that_is_gone_matters_to_its_sink_only(
    run: Run, tmp_path: Path
) -> None:
    secret = tmp_path / "project" / "out.txt"
    folder = write_project(
        tmp_path / "project", YML.replace("path: out,", "path: '${file:out.txt}',")
    )
    secret.write_text(f"{tmp_path}/out\n")
    assert run("-C", folder, "run", "--once").exit_code == 0
    secret.unlink()
    assert run("-C", folder, "status").exit_code == 0
    assert "${file:out.txt} cannot be read" in run("-C", folder, "run", "--once").stderr


@pytest.mark.parametrize("command", ["validate", "plan", "run"])
def test_a_source_that_matches_nothing_is_a_warning(run: Run, tmp_path: Path, command: str) -> None:
    """A path that is mistyped shows as an empty table, for no visible reason."""
    folder = write_project(tmp_path / "project", YML.replace("data/*.json", "dta/*.json"))
    ended = run("-C", folder, command, *(["--once"] if command == "run" else []))
    assert ended.exit_code == 0, ended.stderr
    assert "warning: source order_files: 'dta/*.json' matches no file" in ended.stderr
    assert f"there is no folder {folder}/dta" in ended.stderr
    right = write_project(tmp_path / "right")
    assert f"files are waited for in {right}/data" in run("-C", right, "validate").stderr
    put_file(right, "a.json", ROWS)
    assert "warning" not in run("-C", right, "validate").stderr


def test_a_run_that_ends_says_what_its_sources_left(run: Run, tmp_path: Path) -> None:
    """`run --once` of a scheduler is never asked for its status while it runs."""
    folder = write_project(tmp_path / "project")
    put_file(folder, "a.json", ROWS)
    (folder / "data" / "secret.json").symlink_to("/etc/hostname")
    ended = run("-C", folder, "run", "--once")
    assert ended.exit_code == 0, ended.stderr
    said = ended.stderr.splitlines()[-1]
    assert "stopped at transaction 1: 1 transaction, " in said
    assert said.endswith(
        "secret.json leads out of the folder: set follow_links: true to follow such links"
    )
    (folder / "data" / "secret.json").unlink()
    assert run("-C", folder, "run", "--once").stderr.endswith("0 rows in\n")


def test_show_and_describe_list_what_there_is(run: Run, filled: Path) -> None:
    """They are what people type first into a prompt for SQL."""

    def rows(sql: str) -> list[dict[str, object]]:
        ended = run("-C", filled, "query", sql, "--json")
        assert ended.exit_code == 0, ended.stderr
        found: list[dict[str, object]] = json.loads(ended.stdout)["rows"]
        return found

    assert rows("SHOW TABLES;") == [{"name": "orders", "key": "id"}]
    assert rows("show views") == [{"name": "revenue", "kind": "materialized view"}]
    assert rows("SHOW MATERIALIZED VIEWS") == rows("SHOW VIEWS")
    assert rows("DESCRIBE TABLE Orders") == [
        {"col_name": "id", "data_type": "bigint", "comment": "primary key"},
        {"col_name": "customer", "data_type": "string", "comment": None},
        {"col_name": "amount", "data_type": "decimal(12,2)", "comment": None},
    ]
    described = rows("DESC `revenue`")
    assert [row["col_name"] for row in described] == ["customer", "total", "n"]
    assert {row["data_type"] for row in described} == {None}, "this executor knows no types"
    assert [row["col_name"] for row in rows("DESCRIBE orders$errors")] == list(LETTER)
    shown = run("-C", filled, "query", "SHOW TABLES")
    assert shown.stdout == "name    key\norders  id\n"
    assert shown.stderr == "1 row\n"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SHOW FUNCTIONS", "expected TABLES or VIEWS, found FUNCTIONS"),
        ("SHOW TABLES IN x", "expected the end, found IN"),
        ("DESCRIBE revenu", "there is no table or view revenu\nhint: did you mean revenue?"),
        ("DESCRIBE orders extra", "expected the end, found extra"),
        ("DROP TABLE orders", "expected SELECT, found DROP"),
    ],
)
def test_what_is_not_understood_is_named(run: Run, filled: Path, sql: str, said: str) -> None:
    ended = run("-C", filled, "query", sql)
    assert ended.exit_code == 1
    assert said in ended.stderr


def test_tail_of_a_table_suggests_the_views_over_it(run: Run, filled: Path) -> None:
    ended = run("-C", filled, "tail", "ORDERS")
    assert "orders is a table, not a materialized view" in ended.stderr
    assert "materialized views that read it are: revenue" in ended.stderr


def test_state_show_after_a_first_run_shows_what_it_deployed(run: Run, filled: Path) -> None:
    """`nothing was deployed yet` would be wrong: the run has deployed it."""
    shown = run("-C", filled, "state", "show")
    assert "the first run created it; the next deploy writes the record" in shown.stdout
    assert "table orders" in shown.stdout
    document = json.loads(run("-C", filled, "state", "show", "--json").stdout)
    assert document["first_run"]
    assert document["serial"] is None
    assert {"table.orders", "view.revenue"} <= set(document["resources"])


def test_the_next_steps_of_a_clone_keep_the_target(run: Run, folder: Path, tmp_path: Path) -> None:
    """Without it the command that is suggested would run another pipeline's settings."""
    assert run("-C", folder, "--target", "other", "run", "--once").exit_code == 0
    made = run("clone", folder, tmp_path / "a clone", "--target", "other")
    assert made.exit_code == 0, made.stderr
    expected = f"next: stepwell -C {folder} --target other --store '{tmp_path}/a clone' run --once"
    assert expected in made.stdout


def test_bash_completes_commands_options_and_choices(run: Run, tmp_path: Path) -> None:
    """The script is sourced and driven as a shell does on Tab."""
    script = tmp_path / "completion.bash"
    script.write_text(run("completion", "bash").stdout)
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    program = tmp_path / "stepwell"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stepwell "$@"\n')
    program.chmod(0o755)

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in ("stepwell", *words))
        code = (
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; "
            f"complete -p stepwell >&2; _stepwell_completion {program}; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        ended = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.split()

    assert completed("que") == ["query"]
    assert set(completed("inspect", "")) == {"journal", "manifest"}
    assert "--format" in completed("query", "--fo")
    assert completed("query", "--format", "a") == ["arrow"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_of_other_shells_asks_the_same_program(run: Run, shell: str) -> None:
    script = run("completion", shell).stdout
    assert f"_STEPWELL_COMPLETE=complete_{shell}" in script
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, text=True)
        assert checked.returncode == 0
    assert run("completion", "tcsh").exit_code == 2


SPARK = "name: orders\nstore: ./state\n"


def test_explain_of_a_project_that_was_never_run_needs_no_spark(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that Spark was not asked, and of what it does not know that it does not."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.delenv(EXECUTOR_VARIABLE)
    more = (
        "CREATE MATERIALIZED VIEW over AS SELECT n FROM revenue WHERE n > 1;\n"
        "CREATE MATERIALIZED VIEW whole REFRESH POLICY FULL AS SELECT id FROM orders;\n"
        "CREATE MATERIALIZED VIEW upper_case AS SELECT upper(customer) AS c FROM orders;\n"
    )
    folder = write_project(tmp_path / "project", SPARK, SQL + more)
    shown = run("-C", folder, "explain", "revenue")
    assert shown.exit_code == 0, shown.stderr
    assert "revenue$1: rule 3 sums" in shown.stdout
    assert OFFLINE in shown.stdout
    views = json.loads(run("-C", folder, "explain", "--json").stdout)["views"]
    found = {view["view"]: view for view in views}
    assert all(view["offline"] for view in views)
    assert found["over"]["relations"][0]["rule"].startswith("1")
    assert found["whole"]["reasons"] == ["POLICY_FULL"]
    assert "upper()" in found["upper_case"]["unknown"]


def test_explain_tells_what_is_deployed_from_what_is_written(run: Run, tmp_path: Path) -> None:
    folder = write_project(tmp_path / "project", YML)
    assert run("-C", folder, "run", "--once").exit_code == 0
    text = (folder / "pipeline.sql").read_text()
    more = "CREATE MATERIALIZED VIEW fresh AS SELECT customer FROM orders;"
    (folder / "pipeline.sql").write_text(text.replace("COUNT(*)", "COUNT(id)") + more)
    shown = run("-C", folder, "explain", "fresh")
    assert "fresh is not deployed yet" in shown.stderr
    assert OFFLINE in shown.stdout
    assert "there is no materialized view nothing" in run("-C", folder, "explain", "nothing").stderr


def test_the_cache_is_shown_and_cleared(run: Run, folder: Path, tmp_path: Path) -> None:
    """X2: a user who needs the space can see where it went, and free it."""
    with (folder / "stepwell.yml").open("a", encoding="utf-8") as file:
        file.write(f"cache: {{path: {tmp_path / 'cache'}, max_size: 2GiB}}\n")
    cached = tmp_path / "cache" / "v1" / "0123abcd" / "c0.order"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"x" * 3000)
    shown = run("-C", str(folder), "cache", "show")
    assert str(tmp_path / "cache") in shown.stdout.replace("\n", "")
    assert "2.1 GB" in shown.stdout or "2 GiB" in shown.stdout
    found = json.loads(run("-C", str(folder), "cache", "show", "--json").stdout)
    assert (found["bytes"], found["bytes_max"], found["runs"]) == (3000, 2**31, 1)
    cleared = json.loads(run("-C", str(folder), "cache", "clear", "--json").stdout)
    assert cleared["removed"] == 3000
    assert not cached.exists()
    assert "removed 0" in run("-C", str(folder), "cache", "clear").stdout
