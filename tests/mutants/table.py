"""The table of mutants: a patch to one file of the package, and the tests that must fail under it.

The rows are in `rows/`, one file for each part of the package, and are gathered from there. The
old text of a row occurs exactly once in its file; otherwise the row is stale.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import rows

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "stepwell"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug to plant: in `file`, below src/stepwell, `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Node ids of pytest. Each must fail: one of its cases, if it has parameters."""


def mutants() -> tuple[Mutant, ...]:
    """Every row, in the order of the files in `rows/`."""
    found: list[Mutant] = []
    for module in sorted(pkgutil.iter_modules(rows.__path__), key=lambda item: item.name):
        found += importlib.import_module(f"{rows.__name__}.{module.name}").MUTANTS
    return tuple(found)


def stale(mutant: Mutant, package: Path = PACKAGE, root: Path = ROOT) -> str | None:
    """Why a row does not fit the code or the tests as they are; None if it does."""
    file = package / mutant.file
    if not file.is_file():
        return f"there is no src/stepwell/{mutant.file}"
    if mutant.old == mutant.new:
        return "the old text and the new text are the same"
    count = file.read_text(encoding="utf-8").count(mutant.old)
    if count != 1:
        return f"the old text occurs {count} times in src/stepwell/{mutant.file}, not once"
    if not mutant.tests:
        return "it names no test"
    for test in mutant.tests:
        path, *names = test.partition("[")[0].split("::")
        if not (root / path).is_file():
            return f"there is no {path}"
        if not names:
            return f"{test} names a file, not a test"
        if names[-1] not in _functions(root / path):
            return f"{path} has no test called {names[-1]}"
    return None


def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
