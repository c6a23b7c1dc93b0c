"""The table of mutants fits the code, and the runner tells killed mutants from survivors."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.run import Baseline, judge
from tests.mutants.table import Mutant, mutants, stale


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_the_code_and_names_tests_that_exist(mutant: Mutant) -> None:
    """A row that fits nothing any more would be a test that is never run."""
    assert stale(mutant) is None, f"row {mutant.name} of tests/mutants/rows is stale: update it"


def test_no_two_mutants_share_a_name() -> None:
    """`make mutants ARGS="-k name"` must find the one that failed."""
    assert [name for name, n in Counter(item.name for item in mutants()).items() if n > 1] == []


PLANTED = Mutant(
    "planted",
    "model.py",
    "def format_time(",
    "def format_time_(",
    ("tests/journal/test_codec.py::test_every_cut_is_found",),
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"file": "absent.py"}, "there is no src/stepwell/absent.py"),
        ({"old": "no such text"}, "occurs 0 times"),
        ({"old": "\n"}, "times in src/stepwell/model.py, not once"),
        ({"new": PLANTED.old}, "the same"),
        ({"tests": ()}, "names no test"),
        ({"tests": ("tests/absent.py::test_a",)}, "there is no tests/absent.py"),
        ({"tests": ("tests/test_tidy.py",)}, "names a file"),
        ({"tests": ("tests/test_tidy.py::test_a[1]",)}, "has no test called test_a"),
    ],
)
def test_a_stale_row_is_told_with_its_reason(change: dict[str, str], expected: str) -> None:
    """A row whose patch is not applied would count its tests' success as the mutant's."""
    assert stale(PLANTED) is None
    assert expected in (stale(replace(PLANTED, **change)) or "")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("if found != computed:", "if False:", "killed"),
        ("if found != computed:", "if computed != found:", "survived"),
        ("if found != computed:", "if absent_text(:", "broken"),
        ("no such text", "", "stale"),
    ],
)
def test_the_runner_judges_a_planted_bug(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """A runner that calls everything killed would say that every test has teeth."""
    test = "tests/store/test_sealed.py::test_every_flipped_byte_is_found"
    mutant = Mutant("planted", "store/sealed.py", old, new, (test,))
    verdict, _ = judge(mutant, tmp_path, Baseline(tmp_path, 60.0), 60.0)
    assert verdict == expected
