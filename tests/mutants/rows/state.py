"""Mutants of the manifest, its rules and of garbage collection."""

from tests.mutants.table import Mutant

_COLLECT = "tests/manifest/test_collect.py"

MUTANTS = (
    Mutant(
        "collect-takes-runs-above-the-floor",
        "manifest/gc.py",
        'return "run" if (name.id or "~") <= floor else None',
        'return "run"',
        (
            f"{_COLLECT}::"
            "test_paused_anywhere_while_another_is_at_work_it_takes_nothing_that_is_needed",
        ),
    ),
    Mutant(
        "trim-does-not-move-the-boundary",
        "journal/trim.py",
        '            Log(store).boundary.advance("journal", int(self.up_to))\n',
        "",
        ("tests/journal/test_journal.py::test_a_reader_left_behind_by_the_collector_is_told",),
    ),
    Mutant(
        "manifest-replay-position-may-go-back",
        "manifest/invariants.py",
        "    replay_moves_forward,\n    transaction_moves_forward,\n",
        "    transaction_moves_forward,\n",
        (
            "tests/manifest/test_manifest.py::"
            "test_a_commit_that_breaks_a_rule_is_stopped_before_it_is_stored",
        ),
    ),
    Mutant(
        "run-read-in-place-is-not-checked",
        "lsm/storage.py",
        "            return check_file(place, run)\n",
        "            return place\n",
        ("tests/lsm/test_opening_again.py::test_a_run_that_is_read_later_is_checked_before",),
    ),
)
