"""House rules that no linter knows, checked over the syntax trees of the package.

A rule is a function from a path and the text of that file to a list of findings. Every rule is
fed snippets that break it and snippets that do not, because a rule that finds nothing in a clean
package may just as well be blind.
"""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = PurePosixPath("src/stepwell")

# Which layer may import from which, besides itself. A layer is a module or a folder directly under
# the package, or one of the backends in `execution`. A new one has to be entered here before
# anything can live in it.
BOTTOM = {"errors", "process", "threads", "env", "durations", "model", "text"}
STORAGE = BOTTOM | {"store", "journal", "manifest"}
DATA = STORAGE | {"plan", "sql", "lsm", "execution"}
BACKENDS = {"execution.local", "execution.spark", "execution.reference"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "text": {"errors"},
    "process": set(),
    "threads": set(),
    "env": {"errors", "process"},
    "durations": {"env"},
    "model": {"errors", "process", "env"},
    "store": BOTTOM,
    "journal": BOTTOM | {"store"},
    "manifest": BOTTOM | {"store", "journal"},
    # Pure: the same query gives the same plan, so not even the clock is within reach.
    "plan": {"errors", "model", "text"},
    "sql": {"errors", "model", "text", "plan"},
    "lsm": STORAGE | {"plan"},
    # The port that the engine drives, and three implementations that the engine does not know.
    "execution": STORAGE | {"plan", "sql", "lsm"},
    "execution.local": DATA,
    "execution.spark": DATA | {"execution.local"},
    "execution.reference": DATA,
    "engine": DATA,
    "connectors": DATA | {"engine"},
    # Below deploy, which asks a running process to take a new program.
    "endpoint": DATA | {"engine"},
    "deploy": DATA | BACKENDS | {"engine", "connectors", "endpoint", "__init__"},
    # The test kit must be usable without Spark, and only tests may depend on it.
    "testing": DATA | {"execution.reference", "engine"},
    # Starts the command line as processes, so that it need not import it.
    "demo": DATA | {"engine", "__init__"},
    "ui": DATA | BACKENDS | {"engine", "connectors", "endpoint", "deploy", "__init__"},
    "cli": DATA
    | BACKENDS
    | {"engine", "connectors", "endpoint", "deploy", "demo", "ui", "__init__"},
    "__main__": {"cli"},
    # What `import stepwell` loads at once. It may re-export anything as long as it does so lazily.
    "__init__": BOTTOM,
}

# Libraries that only one layer may import, so that replacing one of them touches one folder.
ONLY_IMPORTED_BY = {
    "pyspark": "execution.spark",
    "obstore": "store",
    "prometheus_client": "endpoint",
    "opentelemetry": "endpoint",
    "openlineage": "endpoint",
    "typer": "cli",
    "rich": "cli",
}

# Libraries that are installed under another name than they are imported by. Spark's is half of it.
DISTRIBUTION_OF = {
    "confluent_kafka": "confluent-kafka",
    "openlineage": "openlineage-python",
    "opentelemetry": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
    "py4j": "pyspark",
    "yaml": "pyyaml",
}

# What a pure layer has no use for.
INPUT_OUTPUT = {
    *("asyncio", "http", "io", "mmap", "os", "pathlib", "shutil", "socket", "sqlite3"),
    *("subprocess", "sys", "tempfile", "threading", "urllib", "obstore", "pyspark"),
}

# Everything nondeterministic comes in through env, or the simulator could not replay a seed.
NONDETERMINISTIC_MODULES = {"random", "secrets", "time", "uuid"}
NONDETERMINISTIC_NAMES = {
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
    *("datetime.date.today", "os.urandom", "os.getrandom"),
}

EMPTY_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
LINES_MAX = 600

Finding = str
Rule = Callable[[PurePosixPath, str], "list[Finding]"]


# Rules for the modules of the package


def imports_go_down(path: PurePosixPath, source: str) -> list[Finding]:
    """A layer imports from itself and the layers its row names. Imports for types count too."""
    layer = layer_of(path)
    if layer not in MAY_IMPORT:
        return [finding(path, 1, f"layer {layer} is not in the table of tests/test_tidy.py")]
    tree = ast.parse(source)
    lazy = lazy_nodes(tree) if layer == "__init__" else set()
    findings = []
    for node, name in imported_names(tree, path):
        top, _, rest = name.partition(".")
        if top != PACKAGE.name or node in lazy:
            continue
        # A name that is not a layer is an attribute of the package itself.
        target = layer_in(rest) or "__init__"
        if target != layer and target not in MAY_IMPORT[layer]:
            findings.append(finding(path, node.lineno, f"{layer} must not import {target}: {name}"))
    return findings


def libraries_stay_in_their_layer(path: PurePosixPath, source: str) -> list[Finding]:
    """Spark, object stores and the command line toolkit each have one layer that knows them."""
    findings = []
    for node, name in imported_names(ast.parse(source), path):
        owner = ONLY_IMPORTED_BY.get(name.partition(".")[0])
        if owner is not None and owner != layer_of(path):
            findings.append(finding(path, node.lineno, f"only {owner} may import {name}"))
    return findings


def the_spark_backend_is_spark(path: PurePosixPath, source: str) -> list[Finding]:
    """What needs no pyspark belongs into another room, where all backends can use it."""
    if layer_of(path) != "execution.spark" or path.name == "__init__.py":
        return []
    names = {name.partition(".")[0] for _, name in imported_names(ast.parse(source), path)}
    return [] if "pyspark" in names else [finding(path, 1, "does not import pyspark")]


def the_engine_computes_nothing(path: PurePosixPath, source: str) -> list[Finding]:
    """Kernels and file formats belong to `lsm` and the backends; the engine moves tables."""
    if layer_of(path) != "engine":
        return []
    tree = ast.parse(source)
    return [
        finding(path, node.lineno, f"no kernel and no codec here, but it uses {name}")
        for node, name in [*imported_names(tree, path), *used_names(tree, path)]
        if name.startswith(("pyarrow.compute", "pyarrow.parquet"))
    ]


def libraries_are_declared(path: PurePosixPath, source: str) -> list[Finding]:
    """What is installed for another package's sake may be missing where that one is not."""
    return [
        finding(path, node.lineno, f"{name} is not among the dependencies of pyproject.toml")
        for node, name in imported_names(ast.parse(source), path)
        if (top := name.partition(".")[0]) != PACKAGE.name
        and top not in sys.stdlib_module_names
        and not declared_libraries() & {top, DISTRIBUTION_OF.get(top, top)}
    ]


def plans_are_pure(path: PurePosixPath, source: str) -> list[Finding]:
    """The SQL front end and plans compute: they open no file, no socket and no session."""
    if layer_of(path) not in ("sql", "plan"):
        return []
    tree = ast.parse(source)
    findings = [
        finding(path, node.lineno, f"no input or output here, but it imports {name}")
        for node, name in imported_names(tree, path)
        if name.partition(".")[0] in INPUT_OUTPUT
    ]
    findings += [
        finding(path, node.lineno, f"no input or output here, but it calls {node.func.id}")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"open", "input"}
    ]
    return findings


def nondeterminism_comes_through_env(path: PurePosixPath, source: str) -> list[Finding]:
    """Time, randomness and ids have one door; the test kit may draw from a seeded generator."""
    if layer_of(path) == "env":
        return []
    tree = ast.parse(source)
    seeded_allowed = layer_of(path) == "testing"
    findings = []
    for node, name in [*imported_names(tree, path), *used_names(tree, path)]:
        if seeded_allowed and name in {"random", "random.Random"}:
            continue
        if name.partition(".")[0] in NONDETERMINISTIC_MODULES or name in NONDETERMINISTIC_NAMES:
            findings.append(finding(path, node.lineno, f"{name} belongs behind stepwell.env"))
    bound = bound_names(tree, path)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and dotted(call.func, bound) == "random.Random":
            seeds = [*call.args, *(keyword.value for keyword in call.keywords)]
            # Random(None) takes its seed from the system, just as Random() does.
            if not seeds or any(isinstance(s, ast.Constant) and s.value is None for s in seeds):
                findings.append(finding(path, call.lineno, "random.Random needs a seed"))
    return findings


def only_the_command_line_prints(path: PurePosixPath, source: str) -> list[Finding]:
    """Standard output belongs to the data a command was asked for."""
    if layer_of(path) == "cli" or "print" not in source:
        return []
    return [
        finding(path, node.lineno, "print outside cli")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and node.id == "print"
    ]


def threads_are_supervised(path: PurePosixPath, source: str) -> list[Finding]:
    """A thread that nobody is told of dies unseen; `threads.start` asks who is told."""
    if layer_of(path) == "threads" or "thread" not in source:
        return []
    tree = ast.parse(source)
    bare = {"threading.Thread", "threading.Timer", "_thread.start_new_thread"}
    return [
        finding(path, node.lineno, f"{name}: use stepwell.threads.start")
        for node, name in [*imported_names(tree, path), *called_names(tree, path)]
        if name in bare
    ]


def invariants_are_not_asserts(path: PurePosixPath, source: str) -> list[Finding]:
    """An assert vanishes under `python -O`, so a guard written as one guards nothing."""
    if "assert" not in source:
        return []
    return [
        finding(path, node.lineno, "assert in the package: use ensure()")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assert)
    ]


def names_say_something(path: PurePosixPath, source: str) -> list[Finding]:
    """A file whose name says nothing collects what belongs nowhere."""
    findings = []
    for name in (path.stem, *(parent.name for parent in path.parents)):
        if name.rpartition("_")[2] in EMPTY_NAMES:
            findings.append(finding(path, 1, f"the name {name} says nothing about what is inside"))
        if re.search(r"_v\d+$", name):
            findings.append(
                finding(path, 1, f"{name}: replace the old one, do not stand beside it")
            )
    return findings


def modules_say_what_they_are(path: PurePosixPath, source: str) -> list[Finding]:
    """The docstring of a module is where a reader starts."""
    if (ast.get_docstring(ast.parse(source)) or "").strip():
        return []
    return [finding(path, 1, "no module docstring")]


def files_can_be_held_in_mind(path: PurePosixPath, source: str) -> list[Finding]:
    """A long file holds a second idea that wants a file of its own."""
    lines = len(source.splitlines())
    if lines <= LINES_MAX:
        return []
    return [finding(path, LINES_MAX, f"{lines} lines, at most {LINES_MAX}")]


# Rules for every text file of the repository


def no_package_index_is_named(path: PurePosixPath, source: str) -> list[Finding]:
    """Where packages come from is the user's choice."""
    # The pattern and the ones below are spelled so that they do not match their own source.
    pattern = re.compile(r"(index[-_]url)\b|(find[-_]links)\b|(trusted[-_]host)\b", re.IGNORECASE)
    return matching_lines(path, source, pattern, "names a package index")


def no_lock_of_another_tool(path: PurePosixPath, source: str) -> list[Finding]:
    """Such a lock file holds addresses, and there must be one list of versions, not two."""
    return [finding(path, 1, "lock file beside constraints.txt")] if path.name == "uv.lock" else []


def no_path_of_one_machine(path: PurePosixPath, source: str) -> list[Finding]:
    """A path into somebody's home folder works on one machine only."""
    folders = ("home/[^/\\s]+", "Users/[^/\\s]+", "root", "work", "workspace", "builds")
    # Not inside a longer path or an address, unless right behind the scheme of a file address.
    start = r"(?:(?<![\w./:~{}$*<>)-])|(?<=://))"
    pattern = re.compile(start + "/(?:" + "|".join(folders) + ")/")
    return matching_lines(path, source, pattern, "names a path of one machine")


PACKAGE_RULES: tuple[Rule, ...] = (
    imports_go_down,
    libraries_stay_in_their_layer,
    the_spark_backend_is_spark,
    the_engine_computes_nothing,
    libraries_are_declared,
    plans_are_pure,
    nondeterminism_comes_through_env,
    only_the_command_line_prints,
    threads_are_supervised,
    invariants_are_not_asserts,
    names_say_something,
    modules_say_what_they_are,
    files_can_be_held_in_mind,
)
REPOSITORY_RULES: tuple[Rule, ...] = (
    no_package_index_is_named,
    no_lock_of_another_tool,
    no_path_of_one_machine,
)


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    """A rule broken once is copied from then on."""
    files = sorted((ROOT / PACKAGE).rglob("*.py"))
    assert files, "found no module to check"
    assert findings_in(rule, files) == []


@pytest.mark.parametrize("rule", REPOSITORY_RULES, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_the_rule(rule: Rule) -> None:
    """What describes one machine must not be published."""
    files = repository_files()
    assert Path(__file__) in files, "the list of files misses this one, so it misses others"
    assert findings_in(rule, files) == []


def test_the_layer_table_has_no_cycle() -> None:
    """Two layers that may import each other are one layer."""
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()


def test_the_layer_table_names_only_layers() -> None:
    """A misspelt row would forbid nothing or everything."""
    assert set().union(*MAY_IMPORT.values()) <= set(MAY_IMPORT)
    assert set(ONLY_IMPORTED_BY.values()) <= set(MAY_IMPORT)


# A file that breaks the rule, and one as close to it as possible that does not.
BROKEN: list[tuple[Rule, str, str]] = [
    (imports_go_down, "store/local.py", "from stepwell.journal.entry import Entry"),
    (imports_go_down, "store/local.py", "from stepwell import journal"),
    (imports_go_down, "store/local.py", "from stepwell import open"),
    (imports_go_down, "store/local.py", "import stepwell"),
    (imports_go_down, "store/local.py", "import stepwell.journal.entry as e"),
    (imports_go_down, "store/local.py", "from ..journal import entry"),
    (imports_go_down, "store/local.py", "from .. import journal"),
    (imports_go_down, "store/__init__.py", "from ..journal import entry"),
    (imports_go_down, "store/local.py", "def f():\n    from stepwell.manifest import gc"),
    (imports_go_down, "store/a.py", "import importlib\nimportlib.import_module('stepwell.cli')"),
    (imports_go_down, "store/a.py", "if TYPE_CHECKING:\n    from stepwell.journal import Entry"),
    (imports_go_down, "engine/ingest_loop.py", "from stepwell.execution.spark import session"),
    (imports_go_down, "engine/ingest_loop.py", "from stepwell.connectors.kafka import Source"),
    (imports_go_down, "execution/local/joins.py", "from stepwell.execution.spark import runs"),
    (imports_go_down, "execution/executor.py", "from stepwell.execution.local import joins"),
    (imports_go_down, "lsm/index.py", "from stepwell.sql.parse import parse"),
    (imports_go_down, "sql/parse.py", "from stepwell.store.base import Store"),
    (imports_go_down, "sql/parse.py", "from stepwell.env import Env"),
    (imports_go_down, "manifest/gc.py", "from stepwell.testing import FaultyStore"),
    (imports_go_down, "cli/main.py", "from stepwell.testing import FaultyStore"),
    (imports_go_down, "errors.py", "from stepwell.model import Epoch"),
    (imports_go_down, "__init__.py", "from stepwell.journal.journal import Journal"),
    (imports_go_down, "pipelines/new.py", "from stepwell.errors import StepwellError"),
    (libraries_stay_in_their_layer, "engine/ingest_loop.py", "import pyspark.sql"),
    (libraries_stay_in_their_layer, "connectors/kafka.py", "from pyspark.sql import DataFrame"),
    (libraries_stay_in_their_layer, "journal/journal.py", "from obstore.store import S3Store"),
    (libraries_stay_in_their_layer, "engine/ingest_loop.py", "import rich"),
    (the_spark_backend_is_spark, "execution/spark/joins.py", "import pyarrow"),
    (the_engine_computes_nothing, "engine/a.py", "import pyarrow.compute as pc"),
    (the_engine_computes_nothing, "engine/a.py", "import pyarrow as pa\npa.compute.sum(x)"),
    (the_engine_computes_nothing, "engine/a.py", "def f():\n    from pyarrow import parquet"),
    (libraries_are_declared, "engine/ingest_loop.py", "import hypothesis"),
    (libraries_are_declared, "engine/ingest_loop.py", "def f():\n    from polars import DataFrame"),
    (plans_are_pure, "sql/parse.py", "import os"),
    (plans_are_pure, "sql/parse.py", "from pathlib import Path"),
    (plans_are_pure, "sql/parse.py", "text = open('a.sql').read()"),
    (nondeterminism_comes_through_env, "store/a.py", "import time"),
    (nondeterminism_comes_through_env, "store/a.py", "from time import monotonic"),
    (nondeterminism_comes_through_env, "store/a.py", "import uuid"),
    (nondeterminism_comes_through_env, "store/a.py", "from secrets import token_hex"),
    (nondeterminism_comes_through_env, "store/a.py", "def f():\n    import random"),
    (nondeterminism_comes_through_env, "store/a.py", "import datetime\ndatetime.datetime.now()"),
    (nondeterminism_comes_through_env, "store/a.py", "import datetime as d\nd.date.today()"),
    (
        nondeterminism_comes_through_env,
        "model.py",
        "from datetime import datetime as d\nx = field(default_factory=d.utcnow)",
    ),
    (nondeterminism_comes_through_env, "store/a.py", "import os\nos.urandom(8)"),
    (nondeterminism_comes_through_env, "store/a.py", "from os import urandom"),
    (nondeterminism_comes_through_env, "store/env.py", "import time"),
    (nondeterminism_comes_through_env, "testing.py", "import time"),
    (nondeterminism_comes_through_env, "testing.py", "import random\nrandom.random()"),
    (nondeterminism_comes_through_env, "testing.py", "from random import choice"),
    (nondeterminism_comes_through_env, "testing.py", "import random\nrandom.Random()"),
    (nondeterminism_comes_through_env, "testing.py", "from random import Random\nRandom(None)"),
    (only_the_command_line_prints, "store/a.py", "print('hello')"),
    (only_the_command_line_prints, "store/a.py", "run(log=print)"),
    (threads_are_supervised, "cli/run.py", "import threading\nthreading.Thread(target=f).start()"),
    (threads_are_supervised, "cli/run.py", "import threading as t\nt.Timer(1, f).start()"),
    (threads_are_supervised, "cli/run.py", "from threading import Thread"),
    (threads_are_supervised, "cli/run.py", "import threading\nclass A(threading.Thread): ..."),
    (invariants_are_not_asserts, "store/a.py", "def f(x):\n    assert x"),
    (names_say_something, "store/utils.py", ""),
    (names_say_something, "store/lock_manager.py", ""),
    (names_say_something, "helpers/__init__.py", ""),
    (names_say_something, "journal/codec_v2.py", ""),
    (modules_say_what_they_are, "store/__init__.py", ""),
    (modules_say_what_they_are, "store/a.py", "import os\n'''Too late to be a docstring.'''"),
    (modules_say_what_they_are, "store/a.py", "'''  '''"),
    (files_can_be_held_in_mind, "store/a.py", "x = 1\n" * (LINES_MAX + 1)),
    (no_package_index_is_named, "x", "pip install --extra-index" + "-url=somewhere stepwell"),
    (no_package_index_is_named, "x", "PIP_INDEX" + "_URL=somewhere"),
    (no_lock_of_another_tool, "uv.lock", ""),
    (no_path_of_one_machine, "x", "cd " + "/home" + "/ada/stepwell"),
    (no_path_of_one_machine, "x", "store: file://" + "/Users" + "/ada/state"),
    (no_path_of_one_machine, "x", "see `" + "/root" + "/notes`"),
    (no_path_of_one_machine, "x", 'open("' + "/work" + '/x")'),
]
CLEAN: list[tuple[Rule, str, str]] = [
    (imports_go_down, "journal/journal.py", "from stepwell.store import base\nimport stepwell.env"),
    (
        imports_go_down,
        "store/local.py",
        "from stepwell.store.base import Store\nfrom . import disk",
    ),
    (imports_go_down, "store/__init__.py", "from .base import Store"),
    (
        imports_go_down,
        "execution/spark/views.py",
        "from stepwell.execution.executor import BackgroundTask",
    ),
    (imports_go_down, "cli/main.py", "from stepwell import __version__, journal"),
    (imports_go_down, "store/local.py", "from stepwell_extra import journal"),
    (imports_go_down, "__init__.py", "def __getattr__(name):\n    from stepwell.engine import run"),
    (imports_go_down, "__init__.py", "if TYPE_CHECKING:\n    from stepwell.engine import run"),
    (imports_go_down, "__init__.py", "from stepwell.errors import FencedError"),
    (
        libraries_stay_in_their_layer,
        "execution/spark/session.py",
        "from pyspark.sql import SparkSession",
    ),
    (libraries_stay_in_their_layer, "store/objects.py", "import obstore"),
    (the_spark_backend_is_spark, "execution/spark/joins.py", "from pyspark.sql import DataFrame"),
    (the_spark_backend_is_spark, "execution/local/joins.py", "import pyarrow"),
    (the_engine_computes_nothing, "lsm/a.py", "import pyarrow.compute as pc"),
    (the_engine_computes_nothing, "engine/a.py", "import pyarrow as pa\npa.ipc.open_stream(x)"),
    (
        libraries_are_declared,
        "engine/ingest_loop.py",
        "import json, yaml\nfrom stepwell import errors",
    ),
    (libraries_are_declared, "connectors/postgres.py", "def f():\n    import psycopg.rows"),
    (plans_are_pure, "sql/parse.py", "import re\nfrom stepwell.model import Relation"),
    (plans_are_pure, "store/local.py", "import os\nopen('a')"),
    (nondeterminism_comes_through_env, "env.py", "import time, random, uuid, secrets"),
    (nondeterminism_comes_through_env, "testing.py", "import random\nrandom.Random(7)"),
    (nondeterminism_comes_through_env, "store/a.py", "from datetime import time, datetime"),
    (nondeterminism_comes_through_env, "store/a.py", "self.env.now()\nself.time = 1"),
    (nondeterminism_comes_through_env, "store/a.py", "import os\nos.fsync(fd)"),
    (only_the_command_line_prints, "cli/inspect.py", "print('row')"),
    (threads_are_supervised, "threads.py", "import threading\nthreading.Thread(target=f)"),
    (threads_are_supervised, "cli/run.py", "import threading\nx: threading.Thread | None = None"),
    (only_the_command_line_prints, "store/a.py", "'''Call print(x).'''\nself.print(x)"),
    (invariants_are_not_asserts, "store/a.py", "ensure(x, 'x is set')"),
    (names_say_something, "journal/codec.py", ""),
    (names_say_something, "journal/common_prefix.py", ""),
    (modules_say_what_they_are, "store/a.py", "'''The local store.'''"),
    (files_can_be_held_in_mind, "store/a.py", "x = 1\n" * LINES_MAX),
    (no_package_index_is_named, "x", "the url of the index"),
    (no_lock_of_another_tool, "constraints.txt", ""),
    (no_path_of_one_machine, "x", "a journal under s3://work/root/ or ./work/ or docs/root/"),
    (no_path_of_one_machine, "x", "https://example.org/work/ and ~/work/ and $HOME/work/"),
]


def label(value: object) -> str | None:
    """Rules by name; paths and snippets as pytest shows them."""
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("rule", "name", "source"), BROKEN, ids=label)
def test_a_broken_rule_is_found(rule: Rule, name: str, source: str) -> None:
    """A rule that cannot fail protects nothing."""
    assert rule(PACKAGE / name, source) != []


@pytest.mark.parametrize(("rule", "name", "source"), CLEAN, ids=label)
def test_what_only_looks_broken_is_left_alone(rule: Rule, name: str, source: str) -> None:
    """A rule that cries wolf gets switched off."""
    assert rule(PACKAGE / name, source) == []


def test_every_rule_is_itself_tested() -> None:
    """A new rule comes with a snippet for each side of it."""
    rules = {rule.__name__ for rule in PACKAGE_RULES + REPOSITORY_RULES}
    assert {rule.__name__ for rule, _, _ in BROKEN} == rules
    assert {rule.__name__ for rule, _, _ in CLEAN} == rules


@lru_cache
def declared_libraries() -> frozenset[str]:
    """By the name they are installed by; those of the extras too, but for the developers' own."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = re.search(
        r"^dependencies = \[$.*?^\[project.scripts\]$", text, re.DOTALL | re.MULTILINE
    )
    assert section is not None
    for_users = re.sub(r"^dev = \[$.*?^\]$", "", section[0], flags=re.DOTALL | re.MULTILINE)
    return frozenset(re.findall(r'"([A-Za-z0-9_-]+)', for_users))


def finding(path: PurePosixPath, line: int, text: str) -> Finding:
    return f"{path}:{line}: {text}"


def findings_in(rule: Rule, files: list[Path]) -> list[Finding]:
    findings = []
    for file in files:
        try:
            source = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        findings += rule(PurePosixPath(file.relative_to(ROOT).as_posix()), source)
    return findings


def matching_lines(
    path: PurePosixPath, source: str, pattern: re.Pattern[str], text: str
) -> list[Finding]:
    return [
        finding(path, number, f"{text}: {line.strip()}")
        for number, line in enumerate(source.splitlines(), start=1)
        if pattern.search(line)
    ]


def layer_of(path: PurePosixPath) -> str:
    """The layer of a file; one that is not in the table goes by the name of its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return layer_in(".".join(parts)) or parts[0]


def layer_in(name: str) -> str | None:
    """The innermost layer that a dotted name below the package lies in."""
    while name and name not in MAY_IMPORT:
        name = name.rpartition(".")[0]
    return name or None


def imported_names(tree: ast.AST, path: PurePosixPath) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Every import anywhere in the file, by its full dotted name with the name taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node, f"{import_base(node, path)}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            argument = node.args[0]
            if (
                called in {"import_module", "__import__"}
                and isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
            ):
                yield node, argument.value


def import_base(node: ast.ImportFrom, path: PurePosixPath) -> str:
    """The module a `from` import takes its names from, with leading dots resolved."""
    if node.level == 0:
        return node.module or ""
    # One dot is the folder of the file, for a package's __init__ as well.
    folder = path.relative_to(PACKAGE.parent).parent
    parts = folder.parts[: len(folder.parts) - node.level + 1]
    return ".".join((*parts, *([node.module] if node.module else [])))


def bound_names(tree: ast.AST, path: PurePosixPath) -> dict[str, str]:
    """What each name that an import binds stands for."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                bound[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{import_base(node, path)}.{alias.name}"
    return bound


def used_names(tree: ast.AST, path: PurePosixPath) -> Iterator[tuple[ast.Attribute, str]]:
    """Every `a.b.c` whose first name an import has bound, by its full dotted name."""
    bound = bound_names(tree, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = dotted(node, bound)
            if name is not None:
                yield node, name


def called_names(tree: ast.AST, path: PurePosixPath) -> Iterator[tuple[ast.expr, str]]:
    """Every `a.b.c` that is called, or is the base of a class, by its full dotted name."""
    bound = bound_names(tree, path)
    for node in ast.walk(tree):
        called = [node.func] if isinstance(node, ast.Call) else []
        called += node.bases if isinstance(node, ast.ClassDef) else []
        for expression in called:
            name = dotted(expression, bound)
            if name is not None:
                yield expression, name


def dotted(node: ast.expr, bound: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, bound)
        return None if base is None else f"{base}.{node.attr}"
    return None


def lazy_nodes(tree: ast.AST) -> set[ast.AST]:
    """What does not run when the module is imported: bodies of functions, imports for types."""
    lazy: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            lazy.update(ast.walk(node))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.body:
                lazy.update(ast.walk(statement))
    return lazy


def repository_files() -> list[Path]:
    """What is in the repository or about to be; all files, outside a git checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        names = [name for name in listed.decode().split("\0") if name]
        files = [ROOT / name for name in names]
    except (OSError, subprocess.CalledProcessError):
        apart = {".git", ".venv", "__pycache__", "build", "dist", ".hypothesis"}
        apart |= {".mypy_cache", ".pytest_cache", ".ruff_cache"}
        files = [f for f in ROOT.rglob("*") if not apart & set(f.relative_to(ROOT).parts)]
    return sorted(file for file in files if file.is_file())
