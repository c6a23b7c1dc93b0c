"""Mutants of delivery: the outbox and what it believes of a sink."""

from tests.mutants.table import Mutant

_SINKS = "tests/engine/test_sinks.py"

MUTANTS = (
    Mutant(
        "outbox-failed-write-counts-as-not-made",
        "engine/outbox.py",
        "            self._certain = False\n            self._error = ",
        "            self._certain = True\n            self._error = ",
        (f"{_SINKS}::test_a_write_whose_answer_was_lost_is_not_made_again",),
    ),
    Mutant(
        "outbox-lineage-of-the-sink-not-compared",
        "engine/outbox.py",
        "if found is not None and found.lineage != self._lineage:",
        "if False:",
        (f"{_SINKS}::test_a_sink_of_another_pipeline_is_refused",),
    ),
    Mutant(
        "outbox-sink-that-lost-output-believed",
        "engine/outbox.py",
        "if held < self.delivered:",
        "if False:",
        (f"{_SINKS}::test_a_sink_that_lost_what_it_was_given_is_noticed",),
    ),
    Mutant(
        "outbox-order-of-transactions-not-guarded",
        "engine/outbox.py",
        "                transaction > self._offered,\n",
        "                True,\n",
        (f"{_SINKS}::test_the_guard_raises_when_the_order_is_broken",),
    ),
)
