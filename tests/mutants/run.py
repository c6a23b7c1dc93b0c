"""Plant each mutant in a copy of the package and see whether its tests fail: `make mutants`.

    killed     every test that the row names failed
    survived   one of them passed: it does not test what it says
    stale      the row does not fit the code any more
    broken     the tests did not run, or fail without the mutant too

The exit code is 0 only if every mutant was killed. The package itself is not touched: the copy lies
in a temporary folder, which PYTHONPATH names.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutants.table import PACKAGE, ROOT, Mutant, mutants, stale

PASSED, FAILED = 0, 1
"""Exit codes of pytest. Any other one means that the tests did not run."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make mutants", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "-k", metavar="TEXT", default="", help="only mutants whose name contains it"
    )
    parser.add_argument("--list", action="store_true", help="print the names, run nothing")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one test")
    chosen = parser.parse_args(arguments)
    rows = [mutant for mutant in mutants() if chosen.k in mutant.name]
    if chosen.list:
        print("\n".join(mutant.name for mutant in rows))
        return 0
    if not rows:
        print(f"no mutant has {chosen.k!r} in its name", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="stepwell-mutants-") as folder:
        passing = Baseline(Path(folder), chosen.timeout)
        verdicts = []
        for mutant in rows:
            verdict, detail = judge(mutant, Path(folder), passing, chosen.timeout)
            verdicts.append(verdict)
            print(f"{verdict:9} {mutant.name}" + (f": {detail}" if detail else ""), flush=True)
    killed = verdicts.count("killed")
    print(f"{killed} of {len(verdicts)} killed")
    return 0 if killed == len(verdicts) else 1


class Baseline:
    """Which tests pass without a mutant; each is run once."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._source = copy_package(folder / "plain")
        self._timeout_s = timeout_s
        self._codes: dict[str, int | None] = {}

    def failing(self, tests: Iterable[str]) -> str | None:
        """The first of the tests that does not pass as it is."""
        for test in tests:
            if test not in self._codes:
                self._codes[test] = run_test(test, self._source, self._timeout_s)
            if self._codes[test] != PASSED:
                return test
        return None


def judge(
    mutant: Mutant, folder: Path, baseline: Baseline, timeout_s: float
) -> tuple[str, str | None]:
    """The verdict about one mutant, and what there is to say about it."""
    reason = stale(mutant)
    if reason is not None:
        return "stale", reason
    failing = baseline.failing(mutant.tests)
    if failing is not None:
        return "broken", f"{failing} does not pass without the mutant"
    source = copy_package(folder / mutant.name)
    try:
        file = source / "stepwell" / mutant.file
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        detail = None
        for test in mutant.tests:
            code = run_test(test, source, timeout_s)
            if code == PASSED:
                return "survived", f"{test} passes"
            if code is None:
                detail = f"{test} did not end within {timeout_s:.0f} s"
            elif code != FAILED:
                return "broken", f"pytest ended with exit code {code} for {test}"
        return "killed", detail
    finally:
        shutil.rmtree(source)


def copy_package(source: Path) -> Path:
    """A copy of src to patch: a folder for PYTHONPATH."""
    shutil.copytree(PACKAGE, source / "stepwell", ignore=shutil.ignore_patterns("__pycache__"))
    return source


def run_test(test: str, source: Path, timeout_s: float) -> int | None:
    """The exit code of pytest for one test; None if it was still running at the end."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        test,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        # The same examples of property tests, with the mutant and without.
        "CI": "1",
    }
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
