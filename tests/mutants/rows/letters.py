"""Mutants of dead letters."""

from tests.mutants.table import Mutant

_CRASH = "tests/engine/test_letter_crash.py"
_TEXTS = "tests/connectors/test_letters.py"
_PUSHED = "tests/cli/test_push_rejected.py"

MUTANTS = (
    Mutant(
        "letters-of-the-last-transaction-of-a-replay",
        "engine/transaction.py",
        "before = chain.from_iterable(gathered.arrivals for gathered in self.earlier)",
        "before = (Arrival(i, self.transaction, self.time) for g in self.earlier for i in g.intakes)",  # noqa: E501
        (f"{_CRASH}::test_transactions_that_are_replayed_as_one_keep_their_own_letters",),
    ),
    Mutant(
        "letters-of-another-row-of-the-fold",
        "lsm/fold.py",
        "place = self.left[part][at].as_py() if part in self.left else at",
        "place = at",
        (f"{_CRASH}::test_however_rows_fall_into_steps_their_letters_are_the_same",),
    ),
    Mutant(
        "letters-without-the-recorded-position",
        "engine/payload.py",
        "Intake(*source_table, change, item.rows, position, None, bad, deleted, names)",
        "Intake(*source_table, change, item.rows, position, None, bad, None, names)",
        (f"{_TEXTS}::test_a_pushed_delete_that_is_rejected_has_its_line_and_the_row_as_json",),
    ),
    Mutant(
        "letters-with-the-text-of-the-first-file",
        "connectors/files.py",
        "    moved = pc.add(numbers, part * _PART)",
        "    moved = numbers",
        (f"{_TEXTS}::test_a_rejected_delete_is_kept_with_the_text_of_its_own_line",),
    ),
    Mutant(
        "letters-cut-again-when-they-are-replayed",
        "lsm/dead_letter.py",
        'sound = cut(sound.encode("utf-8", "backslashreplace").decode(), length_max)',
        'sound = sound.encode("utf-8", "backslashreplace").decode()',
        (f"{_TEXTS}::test_a_letter_is_the_same_when_it_comes_back_from_the_journal",),
    ),
    Mutant(
        "push-of-nothing-but-bad-rows-succeeds",
        "cli/push.py",
        "    if rows and rejected >= rows:",
        "    if rows and rejected > rows:",
        (f"{_PUSHED}::test_a_push_of_which_nothing_was_taken_fails_and_says_where_to_look",),
    ),
)
