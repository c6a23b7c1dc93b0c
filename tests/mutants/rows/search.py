"""Mutants of look-ups by executors."""

from tests.mutants.table import Mutant

_SEARCH = "tests/lsm/test_search.py"

MUTANTS = (
    Mutant(
        "range-leaves-out-its-low-end",
        "lsm/index.py",
        "(sought >= self.low)",
        "(sought > self.low)",
        (f"{_SEARCH}::test_a_range_keeps_files_that_may_hold_a_value",),
    ),
    Mutant(
        "range-forgets-null",
        "lsm/index.py",
        "        if values.null_count and self.nulls:\n            return True\n",
        "",
        (f"{_SEARCH}::test_a_range_keeps_files_that_may_hold_a_value",),
    ),
    Mutant(
        "file-is-named-by-its-size",
        "lsm/search.py",
        'f"{self.file.size} {self.file.checksum}"',
        'f"{self.file.size}"',
        (f"{_SEARCH}::test_a_file_of_other_contents_has_another_name",),
    ),
    Mutant(
        "rows-in-the-order-in-which-tasks-end",
        "lsm/search.py",
        "hits = sorted(asked.hits, key=lambda hit: hit.file)",
        "hits = asked.hits",
        (f"{_SEARCH}::test_a_column_that_is_missing_is_fetched_for_the_same_rows",),
    ),
    Mutant(
        "answers-outlive-their-parts",
        "lsm/lookup.py",
        "if results is None or not results.of(relation):",
        "if results is None:",
        (f"{_SEARCH}::test_rows_of_other_parts_are_looked_up_again",),
    ),
    Mutant(
        "file-is-not-compared-with-the-manifest",
        "lsm/search.py",
        "if self._cache.load(self._checked) is None:",
        "if False:",
        (f"{_SEARCH}::test_a_file_that_is_gone_or_damaged_is_an_error",),
    ),
    Mutant(
        "too-many-rows-are-asked-for-again",
        "lsm/lookup.py",
        " or (known is not None and limit <= known)",
        "",
        (f"{_SEARCH}::test_a_look_up_of_too_many_rows_is_asked_once",),
    ),
)
