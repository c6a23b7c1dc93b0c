"""The names of the package that benchmarks use exist.

No test runs the benchmarks as a whole: they take minutes. So a name that they import, or set to
reach another path of the code, could disappear without notice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.workloads import BENCHMARKS

SOURCES = Path(__file__).resolve().parents[2] / "src"
FILES = sorted(Path(BENCHMARKS).glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_benchmark_uses_names_that_exist(file: Path) -> None:
    """A benchmark that fails, or sets a name that nothing reads, is noticed when it is needed."""
    assert list(missing(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "from stepwell.store.nowhere import Store",
        "from stepwell.store.base import Shop",
        "import stepwell.nowhere",
        "from stepwell.store import base\nbase.Shop",
        "from stepwell.store import base as b\nb.CHUNK = 1",
        "import stepwell.store.base\nstepwell.store.base.Shop",
    ],
)
def test_a_name_that_does_not_exist_is_found(source: str) -> None:
    """A check that finds nothing may just as well be blind."""
    assert len(list(missing(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from stepwell.store.base import Store\nStore.anything",
        "from stepwell.store import base as b\nb.Store",
        "import stepwell\nstepwell.open",
        "import stepwell.store.base\nstepwell.store.base.Store",
        "from stepwell.store.records import Record",
        "from stepwell import errors\nerrors.SqlError",
        "from stepwell.store import base\ndef read(base):\n    base.anything",
    ],
)
def test_a_name_that_exists_is_not_found(source: str) -> None:
    """Also one that a module takes over from another one."""
    assert list(missing(source)) == []


def missing(source: str) -> Iterator[str]:
    """The names of the package that a module uses and that do not exist."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                modules[item.asname or item.name] = item.name
                if not exists(item.name):
                    yield item.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for item in node.names:
                name = f"{node.module}.{item.name}"
                modules[item.asname or item.name] = name
                if not exists(name):
                    yield name
    for variable in variables(tree) & modules.keys():
        del modules[variable]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = modules.get(ast.unparse(node.value), "")
            if path_of(owner) is not None and not exists(f"{owner}.{node.attr}"):
                yield f"{owner}.{node.attr}"


def variables(tree: ast.AST) -> set[str]:
    """Names that may be something else than the module that was imported under them."""
    found = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    stored = (n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return found | {node.id for node in stored}


def exists(name: str) -> bool:
    """Whether a module, or a name in one, exists; all others than the package's do."""
    owner, _, last = name.rpartition(".")
    path = path_of(owner)
    return (
        not name.startswith("stepwell.")
        or path_of(name) is not None
        or (path is not None and last in names_in(path))
    )


def path_of(module: str) -> Path | None:
    """The file of a module of the package."""
    if module.partition(".")[0] != "stepwell":
        return None
    path = SOURCES.joinpath(*module.split("."))
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return found if found.exists() else None


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names that a module defines or imports, and those that it offers lazily."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.alias():
                found.add((node.asname or node.name).partition(".")[0])
            case ast.Constant(value=str()) if path.name == "__init__.py":
                found.add(node.value)
            case _:
                pass
    return frozenset(found)
