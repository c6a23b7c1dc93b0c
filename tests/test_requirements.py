"""Every requirement of docs/internals/requirements.md is proved by a test that names it.

A test names requirements in its docstring by their ids and a colon, alone or as a list, mostly at
the very start. Ids of requirements that are not implemented yet are in NOT_YET, a list that can
only shrink.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
REQUIREMENTS = TESTS.parent / "docs" / "internals" / "requirements.md"

NOT_YET = {
    *("R3", "X1"),
}

ID = r"[FJKCDSRX][1-9]\d*"
ID_LIST = re.compile(rf"(?<![\w./-])({ID}(?:(?:\s*,\s*|\s+and\s+){ID})*):")
# A requirement and a kind of store share this name. Only at the start of a line is it the former.
AMBIGUOUS = "S3"


def test_every_requirement_that_is_built_has_a_test() -> None:
    """A promise nobody checks is a wish."""
    missing = set(required_ids()) - set(proofs()) - NOT_YET
    assert not missing, f"no test names {in_order(missing)}"


def test_the_list_of_what_is_not_built_shrinks() -> None:
    """An id left in the list after its test was written would let that test disappear again."""
    proved = NOT_YET & set(proofs())
    assert not proved, f"take these out of NOT_YET, they have tests: {in_order(proved)}"


def test_no_test_names_an_unknown_requirement() -> None:
    """A mistyped id would leave the real one unproved."""
    known = set(required_ids())
    unknown = {name: tests for name, tests in proofs().items() if name not in known}
    assert not unknown
    assert known >= NOT_YET, f"unknown in NOT_YET: {in_order(NOT_YET - known)}"


def test_requirements_are_numbered_without_gaps() -> None:
    """A gap or a repeated id in the page is a line lost or pasted twice."""
    numbers: dict[str, list[int]] = {}
    for name in required_ids():
        numbers.setdefault(name[0], []).append(int(name[1:]))
    assert "".join(numbers) == "FJKCDSRX"
    for area, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), area


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("F1: two writers.", {"F1"}),
        ("F1, F2: two writers.", {"F1", "F2"}),
        ("F1,\n    F10 and J12: over a line break.", {"F1", "F10", "J12"}),
        ("What a lost answer costs.\n\nF7: nothing.", {"F7"}),
        ("Scenario 3, K8: the directory.", {"K8"}),
        ("S3: any query.", {"S3"}),
        ("The same on S3: one winner.", set()),
        ("F9: a store like S3: probed.", {"F9"}),
        ("F1 without a colon.", set()),
        ("See F: fencing.", set()),
        ("XF1: no, F1x: no, F0: no, a/F1: no.", set()),
    ],
)
def test_ids_are_read_from_a_docstring(docstring: str, expected: set[str]) -> None:
    """A reader of docstrings that misses one reports a gap that is none, or hides one."""
    assert ids_in(docstring) == expected


def test_docstrings_of_functions_methods_and_test_classes_count() -> None:
    """Only what runs and can fail is a proof."""
    source = '''
"""F1: of the module."""
def test_a(): """F2: of a function."""
async def test_b(): """F3: of a coroutine."""
def build(): """F4: of no test."""
class TestThing:
    """F5: of a test class."""
    @pytest.mark.parametrize("n", [1, 2])
    def test_c(self, n): """F6: of a parametrised method."""
class Contract:
    """F7: of a class that runs only through its methods."""
    def test_d(self): """F8: of an inherited method."""
@pytest.mark.skip(reason="later")
def test_e(): """F9: of a test that never runs."""
@pytest.mark.xfail
def test_f(): """F10: of a test that fails."""
'''
    assert {name for _, names in named_in(source) for name in names} == {
        *("F2", "F3", "F5", "F6", "F8")
    }


def required_ids() -> list[str]:
    """The ids of the tables, in their order."""
    text = REQUIREMENTS.read_text(encoding="utf-8")
    return re.findall(rf"^\| *({ID}) *\|", text, flags=re.MULTILINE)


@cache
def proofs() -> dict[str, list[str]]:
    """The tests that name each id."""
    found: dict[str, list[str]] = {}
    for file in sorted(TESTS.rglob("*.py")):
        for test, names in named_in(file.read_text(encoding="utf-8")):
            for name in names:
                found.setdefault(name, []).append(f"{file.relative_to(TESTS)}::{test}")
    return found


def named_in(source: str) -> Iterator[tuple[str, set[str]]]:
    """Each test of a file with the ids it names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            is_test = node.name.startswith("Test")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_test = node.name.startswith("test_")
        else:
            continue
        if is_test and not never_passes(node):
            yield node.name, ids_in(ast.get_docstring(node) or "")


def never_passes(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    marks = {
        re.sub(r"\(.*", "", ast.unparse(mark), flags=re.DOTALL) for mark in node.decorator_list
    }
    return bool(marks & {"pytest.mark.skip", "pytest.mark.xfail"})


def ids_in(docstring: str) -> set[str]:
    found: set[str] = set()
    for match in ID_LIST.finditer(docstring):
        names = set(re.findall(ID, match[1]))
        starts_a_line = not docstring[: match.start()].rpartition("\n")[2].strip()
        if not starts_a_line:
            names.discard(AMBIGUOUS)
        found |= names
    return found


def in_order(names: set[str]) -> list[str]:
    return sorted(names, key=lambda name: (name[0], int(name[1:])))
