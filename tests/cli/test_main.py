"""Exit codes, errors and help, whichever command it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell import __version__
from stepwell.cli import manifest
from stepwell.errors import FencedError
from tests.cli.conftest import Pipeline, Run


def process(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a process of its own, as a shell would."""
    return subprocess.run(
        [sys.executable, "-m", "stepwell", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environ},
    )


def test_the_version_is_printed_and_nothing_else() -> None:
    """Scripts read it."""
    ended = process("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"stepwell {__version__}\n", "")


def test_help_loads_nothing_heavy() -> None:
    """A command line that takes a second to say what it can do is not asked twice."""
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from stepwell.cli.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'pyarrow', 'obstore', 'rich', 'pyspark', 'xxhash'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_help_shows_an_example_of_every_command(run: Run) -> None:
    """An example is read before the options are."""
    for command in (["inspect", "journal"], ["inspect", "manifest"], ["doctor"], ["demo"]):
        shown = run(*command, "--help").stdout
        assert "stepwell " + " ".join(command) in shown.partition("\n")[2], command


def test_wrong_usage_exits_2_and_says_what_is_meant(run: Run, tmp_path: Path) -> None:
    """A script must be able to tell its own mistake from a failure."""
    misspelt = run("inspect", "jurnal", tmp_path)
    assert misspelt.exit_code == 2
    assert misspelt.stderr == (
        "error: No such command 'jurnal'. Did you mean 'journal'?\nhint: stepwell inspect --help\n"
    )
    assert misspelt.stdout == ""
    no_number = run("inspect", "journal", tmp_path, "--limit", "many", "--json")
    assert no_number.exit_code == 2
    error = json.loads(no_number.stderr)["error"]
    assert error["type"] == "UsageError"
    assert "--limit" in error["message"]
    assert error["hint"] == "stepwell inspect journal --help"


def test_a_command_that_is_not_finished_shows_what_there_is(run: Run) -> None:
    """`stepwell` alone is how most people begin."""
    for command in ([], ["inspect"]):
        ended = run(*command)
        assert ended.exit_code == 2
        assert ended.stderr.startswith("Usage: stepwell")
        assert "Commands:" in ended.stderr


def test_an_error_is_a_message_and_a_hint_without_traceback(run: Run, tmp_path: Path) -> None:
    """K2: what is wrong with the user's side is told in the user's words."""
    ended = run("inspect", "manifest", tmp_path / "nowhere")
    assert ended.exit_code == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        f"error: {tmp_path}/nowhere does not exist\n"
        "hint: give the directory that holds manifest/ and journal/, or the address of a bucket\n"
    )


@pytest.mark.parametrize("where", ["before", "after"])
def test_json_may_stand_before_or_after_the_command(run: Run, tmp_path: Path, where: str) -> None:
    """The reader of a pipe may close it late."""
    command = ["inspect", "manifest", tmp_path / "nowhere"]
    ended = run(*(["--json", *command] if where == "before" else [*command, "--json"]))
    assert ended.exit_code == 1
    error = json.loads(ended.stderr)["error"]
    assert error["type"] == "InvalidError"
    assert error["message"].endswith("nowhere does not exist")
    assert error["hint"].startswith("give the directory")


def test_json_of_a_fence_tells_who_took_over(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """F3: a program that is told must not have to read prose to know who it was."""

    def fenced(*_: object, **__: object) -> None:
        raise FencedError("gone", epoch=3, host="h", pid=7, time="t", hint="stop")

    monkeypatch.setattr(manifest, "show", fenced)
    error = json.loads(run("inspect", "manifest", "x", "--json").stderr)["error"]
    assert error == {
        "type": "FencedError",
        "message": "gone",
        "hint": "stop",
        "epoch": 3,
        "host": "h",
        "pid": 7,
        "time": "t",
    }


def test_an_unexpected_exception_says_that_it_is_a_bug(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A traceback helps us; the user needs to know that it is not the user's fault."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(manifest, "show", broken)
    ended = run("inspect", "manifest", "x")
    assert ended.exit_code == 1
    assert ended.stderr.startswith("error: unexpected ZeroDivisionError: oops\nhint: this is a bug")
    assert "STEPWELL_TRACEBACK=1" in ended.stderr
    assert "Traceback" not in ended.stderr
    monkeypatch.setenv("STEPWELL_TRACEBACK", "1")
    shown = run("inspect", "manifest", "x").stderr
    assert shown.startswith("Traceback")
    assert "in broken" in shown


def test_an_interrupt_exits_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells and supervisors tell an interrupt from a failure by it."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(manifest, "show", interrupted)
    ended = run("inspect", "manifest", "x")
    assert ended.exit_code == 130
    assert "Traceback" not in ended.stderr


def test_a_reader_that_has_seen_enough_is_not_reported_as_an_error(pipeline: Pipeline) -> None:
    """`| head` closes the pipe; a traceback behind the ten lines asked for is a nuisance."""
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "stepwell", "inspect", "journal", str(pipeline.directory)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_exit_codes_reach_the_shell(tmp_path: Path) -> None:
    """What the runner of these tests calls an exit code must be one."""
    assert process("inspect", "journal", str(tmp_path / "nowhere")).returncode == 1
    assert process("inspect", "nothing").returncode == 2
    assert process("inspect", "journal", "--help").returncode == 0


def test_a_process_ends_in_good_order_with_its_code() -> None:
    """What was to be done at the end is done, threads are waited for, and all is printed. Arrow is
    not taken down: that aborts, now and then, a process whose work is done (apache/arrow#34314).
    """
    script = (
        "import atexit, threading, time\n"
        "from stepwell.cli.main import leave\n"
        "atexit.register(print, 'cleaned up')\n"
        "threading.Timer(0.2, print, ['thread done']).start()\n"
        "print('printed', end=' ')\n"
        "leave(3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.split("\n") == ["printed thread done", "cleaned up", ""]
