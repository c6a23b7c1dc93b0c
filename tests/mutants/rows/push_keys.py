"""Mutants of the keys of pushes."""

from tests.mutants.table import Mutant

_KEYS = "tests/engine/test_push_keys.py"

MUTANTS = (
    Mutant(
        "key-of-a-push-not-checked",
        "engine/push_keys.py",
        "return None if latest is None or latest.time_us <= oldest_us else latest",
        "return None",
        (
            f"{_KEYS}::test_a_push_that_is_repeated_with_its_key_is_answered_and_not_taken",
            f"{_KEYS}::test_a_transaction_with_a_key_is_taken_once",
        ),
    ),
    Mutant(
        "key-of-a-push-not-flushed",
        "engine/flush.py",
        "runs = (*stored, *state.pushes.flush())",
        "runs = stored",
        (
            f"{_KEYS}::test_keys_are_known_after_a_restart",
            f"{_KEYS}::test_a_restore_forgets_the_keys_of_what_it_undoes",
        ),
    ),
    Mutant(
        "key-of-a-push-answered-by-a-fenced-writer",
        "engine/writer_session.py",
        "        if known is not None:\n            self._writer.check",
        "        if known is None:\n            self._writer.check",
        (f"{_KEYS}::test_a_fenced_writer_does_not_answer_from_memory",),
    ),
    Mutant(
        "keys-outlive-a-restore",
        "engine/rewind.py",
        "state.pushes = past.pushes",
        "pass",
        (f"{_KEYS}::test_a_restore_forgets_the_keys_of_what_it_undoes",),
    ),
    Mutant(
        "digest-of-a-push-not-compared",
        "engine/push_keys.py",
        "if known.digest != bytes.fromhex(key.digest):",
        "if False:",
        (f"{_KEYS}::test_a_key_is_refused_for_anything_but_the_same_push",),
    ),
)
