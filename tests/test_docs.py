"""The docs say what the program does: pages are current, links lead somewhere, sessions are true.

A session is compared word by word, with what differs from run to run (numbers, ids, times, places)
made equal on both sides. A line of `...` in it stands for anything.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from stepwell.deploy import sections
from stepwell.deploy.project import load_project
from stepwell.engine.open import open_writer
from stepwell.env import SystemEnv
from stepwell.journal import paths
from stepwell.journal.entry import Draft, Kind
from stepwell.manifest.manifest import Manifests
from stepwell.model import Position, Transaction
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.trimming import trim

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("benchmarks/*.md")])


def generator() -> ModuleType:
    """docs/generate.py, which is a script and not part of any package."""
    spec = importlib.util.spec_from_file_location("generate_docs", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_reference_is_current() -> None:
    """A reference that lags behind is worse than none; `make docs` writes it."""
    generate = generator()
    assert generate.CLI.read_text(encoding="utf-8") == generate.cli_reference(), "run: make docs"


def test_the_python_reference_is_current() -> None:
    """A docstring that changes must change the page; `make docs` writes it."""
    generate = generator()
    page = generate.PYTHON.read_text(encoding="utf-8")
    assert page == generate.python_reference(), "run: make docs"


def test_every_command_is_documented() -> None:
    """What is not in the reference does not exist for its readers."""
    help_texts = subprocess.run(
        [sys.executable, "-m", "stepwell", "--help"], capture_output=True, text=True, timeout=60
    ).stdout
    commands = re.findall(r"^  (\S+)  ", help_texts.partition("Commands:")[2], re.MULTILINE)
    assert len(commands) >= 3
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in commands if f"\n## stepwell {name}\n" not in page] == []
    assert "demo-writer" not in page, "what is hidden stays hidden"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A dead link is found by a reader, at the worst moment."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        aim = (page.parent / file).resolve() if file else page
        if not aim.exists() or (anchor and anchor not in anchors(aim)):
            dead.append(target)
    assert dead == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_and_its_sessions_are_true(tmp_path: Path) -> None:
    """A reader who follows the README must see what the README shows."""
    text = README.read_text(encoding="utf-8")
    (snippet,) = fences(text, "python")
    (tmp_path / "more.py").write_text(snippet, encoding="utf-8")
    sessions = [step for block in fences(text, "console") for step in steps(block)]
    printed = play([command for command, _ in sessions], tmp_path)
    assert any(output for _, output in sessions)
    for (command, output), said in zip(sessions, printed, strict=True):
        compare(output, said, command)


def test_the_script_of_the_readme_can_be_pasted_as_it_stands(tmp_path: Path) -> None:
    """Nothing is typed between its lines: a push right behind a starting run finds it.

    Only the executor is another one, so that it takes seconds; the slow test takes Spark.
    """
    run_pasted(pasted(), tmp_path)


@pytest.mark.slow
@pytest.mark.spark
def test_the_script_of_the_readme_runs_on_spark(tmp_path: Path) -> None:
    """Word for word, as a user pastes it."""
    run_pasted(pasted(), tmp_path)


def pasted() -> str:
    (script,) = fences(README.read_text(encoding="utf-8"), "bash")
    assert script.startswith("stepwell init orders && cd orders\n")
    return script


def run_pasted(script: str, directory: Path) -> None:
    (shown,) = fences(README.read_text(encoding="utf-8"), "text")
    ended = subprocess.run(
        ["bash"],
        input=script,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        env=shell_environment(),
    )
    assert ended.returncode == 0, ended.stdout
    compare(shown, ended.stdout, "the script of the README")


def test_the_view_that_the_readme_shows_is_the_one_it_runs() -> None:
    """A reader must not have to guess which of two definitions counts."""
    (view,) = fences(README.read_text(encoding="utf-8"), "sql")
    assert view in (ROOT / "examples" / "orders" / "pipeline.sql").read_text(encoding="utf-8")


def test_the_snippet_that_opens_an_entry_runs(tmp_path: Path) -> None:
    """Any Arrow reader opens an entry, as the map of files says."""
    (snippet,) = fences((DOCS / "internals" / "files.md").read_text(encoding="utf-8"), "python")
    (tmp_path / "open.py").write_text(snippet, encoding="utf-8")
    commands = ["stepwell init orders", "cd orders", "stepwell run --once", "python ../open.py"]
    assert play(commands, tmp_path)[-1].startswith("b'step'")


def test_the_readme_compares_what_it_claims_to_compare() -> None:
    """A comparison that accepts anything would accept a README that lies."""
    compare("a 1 row\n...\nend", "a 7 row\nmiddle\nend", "x")
    compare(
        "at file:///tmp/x since 2026-01-02 03:04:05",
        "at file:///a/b since 2027-11-12 13:14:15",
        "x",
    )
    for output in ("a 7 rows\nend", "b 7 row\nend", "end\na 7 row"):
        with pytest.raises(AssertionError):
            compare("a 1 row\n...\nend", output, "x")


def test_the_map_of_files_shows_objects_as_the_code_writes_them() -> None:
    """A format described wrongly misleads a user who has to repair one by hand."""
    env = ManualEnv(7, host="worker-7", pid=4711)
    store = MemoryStore(env)
    writer = open_writer(store, env)
    writer.append(Draft(Kind.STEP, Transaction(1), 0, True, env.now()))
    written = [data(store, paths.IDENTITY), data(store, paths.manifest(2))]
    tip = writer.journal.tip
    writer.commit(lambda manifest: replace(manifest, replay=tip), "flush")
    manifests = Manifests(store, env)
    trim(store, env, Position(tip.position))
    manifests.collect(2)
    written.insert(1, data(store, paths.JOURNAL_BOUNDARY))
    written.insert(2, data(store, paths.BOUNDARY))
    page = (DOCS / "internals" / "files.md").read_text(encoding="utf-8")
    examples = [block.strip() for block in fences(page, "json")]
    assert [without_ids(example) for example in examples] == [without_ids(text) for text in written]
    for example in examples:
        for field in json.loads(example).get("body", {}):
            assert f"| `body.{field}" in page, f"{field} is not explained"


def test_the_map_of_files_names_every_object() -> None:
    """A name in the code that the map does not have is a byte nobody answers for."""
    page = (DOCS / "internals" / "files.md").read_text(encoding="utf-8")
    for name in ("manifest/", "journal/", "runs/", "checkpoints/", "outbox/", paths.IDENTITY):
        assert name in page
    assert paths.BOUNDARY in page


def test_the_page_about_architecture_names_modules_that_exist() -> None:
    """A newcomer looks for files there, so a name that is gone misleads."""
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "stepwell"
    rooms = re.findall(r"^\| `([a-z/]+)/` \|(.*)$", page, re.MULTILINE)
    assert len(rooms) > 10
    for room, text in rooms:
        named = set(re.findall(r"`([a-z_]+)`", text))
        found = {path.stem for path in (package / room).glob("*.py")}
        assert named <= found, f"{room}: {named - found}"
        assert len(named) >= len(found) / 4, f"{room}: {found - named}"
    for path in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|md))`", page):
        assert any((top / path).exists() for top in (package, ROOT, ROOT / "docs")), path


def test_the_glossary_is_sorted_and_has_each_word_once() -> None:
    """A word with two lines has two meanings."""
    page = (DOCS / "concepts" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| ([a-z][^|]*?) \|", page, re.MULTILINE)[1:]
    assert len(words) > 30
    assert words == sorted(set(words), key=lambda word: word.replace("-", " "))


def test_fault_scenarios_are_numbered_one_after_the_other() -> None:
    """Tests name them by number."""
    text = (ROOT / "docs" / "internals" / "faults.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    assert numbers == list(range(91, 91 + len(numbers)))


def test_the_page_about_projects_names_every_key() -> None:
    """A key that is not explained is found by reading the code, if at all."""
    page = (DOCS / "reference" / "project.md").read_text(encoding="utf-8")
    for name, keys in sections.ROOT.items():
        for key in (f"{name}.{key}" for key in keys) if keys else (name,):
            assert f"| `{key}` |" in page, key


def test_the_project_that_the_page_shows_is_right(tmp_path: Path) -> None:
    """What is copied from there must be read, for each of its targets."""
    (shown,) = fences((DOCS / "reference" / "project.md").read_text(encoding="utf-8"), "yaml")
    (tmp_path / "stepwell.yml").write_text(shown, encoding="utf-8")
    orders = (ROOT / "examples" / "orders" / "pipeline.sql").read_text(encoding="utf-8")
    (tmp_path / "pipeline.sql").write_text(orders, encoding="utf-8")
    assert load_project(tmp_path, SystemEnv()).name == "orders"
    assert load_project(tmp_path, SystemEnv(), target="prod").store == "s3://acme/orders"


def test_the_snippets_about_python_run(tmp_path: Path) -> None:
    """A copied example must work, and the log line that it promises."""
    snippets = fences((DOCS / "reference" / "python.md").read_text(encoding="utf-8"), "python")
    assert len(snippets) == 2
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for number, snippet in enumerate(snippets):
        (tmp_path / f"{number}.py").write_text(snippet, encoding="utf-8")
    printed = play(["python 0.py", "python 1.py"], tmp_path)
    assert "INFO orders 2 1 opened at transaction 1" in printed[1]


@pytest.mark.parametrize(
    "guide", sorted((DOCS / "guides").glob("*.md")), ids=lambda page: page.stem
)
def test_the_sessions_of_a_guide_are_true(guide: Path, tmp_path: Path) -> None:
    """What a guide shows wrongly would be found out on somebody's production."""
    session = installed(with_files(guide.read_text(encoding="utf-8")))
    assert session
    printed = play([command for command, _ in session], tmp_path)
    for (command, output), said in zip(session, printed, strict=True):
        compare(output, said, command)


def installed(session: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The session without files that import a library which nothing else needs and is missing."""
    lacking = [
        saved[1]
        for command, _ in session
        if (saved := re.match(r"cat >+ (\S+) <<", command))
        and not all(map(importlib.util.find_spec, re.findall(r"(?m)^import (\w+)", command)))
    ]
    return [step for step in session if not any(name in step[0] for name in lacking)]


def data(store: MemoryStore, path: str) -> str:
    found = store.get(path)
    assert found is not None, path
    return found.data.decode()


def without_ids(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{32}\b", "CHECKSUM", re.sub(r"\b[0-9A-Z]{26}\b", "ID", text))


def fences(text: str, language: str) -> list[str]:
    """The code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def with_files(text: str) -> list[tuple[str, str]]:
    """The steps of a page in its order, with those that save the files it tells the reader to.

    A block is saved if the line before it ends with "as `NAME`:", and appended after "to `NAME`:"
    or "end of `NAME`:".
    """
    made: list[tuple[str, str]] = []
    for block in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        saved = re.search(r"\b(as|to|of) `([^`]+)`:$", text[: block.start()].rstrip())
        if block[1] == "console":
            made += steps(block[2])
        elif saved:
            how = ">" if saved[1] == "as" else ">>"
            made.append((f"cat {how} {saved[2]} <<'END'\n{block[2]}END", ""))
    return made


def steps(session: str) -> list[tuple[str, str]]:
    """The commands of a session with the output that follows each."""
    parts = re.split(r"^\$ (.+)\n", session, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def play(commands: list[str], directory: Path) -> list[str]:
    """What each command of a session prints, typed into one shell.

    Without Spark, so that it takes seconds: the shell inherits the choice of the executor. What is
    put into the background is waited for until it runs.
    """
    script = ["set -m", f"cd {directory}"]
    for command in commands:
        script += ["echo '<<<>>>'", command]
        if command.endswith("&"):
            script.append("until grep -q running run.log; do sleep 0.1; done")
        else:
            script.append('test $? -eq 0 || echo "FAILED with $?"')
    ended = subprocess.run(
        ["bash"],
        input="\n".join(script),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        env=shell_environment(),
    )
    assert "FAILED with" not in ended.stdout, ended.stdout
    return ended.stdout.split("<<<>>>\n")[1:]


def shell_environment() -> dict[str, str]:
    """One in which `stepwell` and `python` are those of this checkout."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }


def compare(shown: str, printed: str, command: str) -> None:
    """Each part of what is shown occurs in what was printed, in this order."""
    words = comparable(printed)
    at = 0
    for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE):
        wanted = comparable(part)
        while words[at : at + len(wanted)] != wanted:
            at += 1
            assert at <= len(words), f"{command} does not print (any more): {' '.join(wanted)}"
        at += len(wanted)


def comparable(text: str) -> list[str]:
    """The words of a text, with what differs from run to run made equal."""
    for pattern, name in (
        (r"file://\S+", "URI"),
        (r"(?m)^store( +)/\S+", r"store\1URI"),
        (r"/\S+/orders/state\b", "STATE"),
        (r"\b[0-9A-Z]{26}\b", "ID"),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{6}Z)?", "TIME"),
        (r"\bhost [^,\s]+", "host HOST"),
        (r"\d[\d.,]*\d|\d", "N"),
    ):
        text = re.sub(pattern, name, text)
    return text.split()


def test_the_example_is_what_init_writes() -> None:
    """Two copies that may differ would be two examples, of which one is not tested."""
    template, example = ROOT / "src/stepwell/cli/templates/orders", ROOT / "examples/orders"
    written = {path.relative_to(template): path for path in template.rglob("*") if path.is_file()}
    assert written
    for name, path in written.items():
        # Without its dot it is not at work where the templates are.
        copy = example / (".gitignore" if name.name == "gitignore" else name)
        assert copy.read_bytes() == path.read_bytes(), name
