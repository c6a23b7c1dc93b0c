"""Mutants of delivery: the outbox, and what it believes of a sink."""

from tests.mutants.table import Mutant

_SINKS = "tests/engine/test_sinks.py"
_HISTORY = "tests/engine/test_sink_history.py"

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
        "engine/sink_history.py",
        "if found is not None and found.lineage != lineage:",
        "if False:",
        (f"{_SINKS}::test_a_sink_of_another_pipeline_is_refused",),
    ),
    Mutant(
        "outbox-any-answer-of-a-sink-believed",
        "engine/outbox.py",
        "        if not fits:",
        "        if False:",
        (
            f"{_SINKS}::test_a_sink_that_lost_what_it_was_given_is_noticed",
            f"{_HISTORY}::test_a_sink_that_goes_back_while_the_pipeline_runs_is_refused",
            f"{_HISTORY}::test_an_answer_is_the_mark_believed_or_one_that_waits",
        ),
    ),
    Mutant(
        "outbox-sink-ahead-of-what-was-offered-believed",
        "engine/outbox.py",
        "            fits = found == self.held or found in sent",
        "            fits = found is not None and found.transaction >= self.delivered",
        (
            f"{_HISTORY}::test_a_sink_ahead_of_a_store_from_a_backup_is_refused_when_it_comes_back",
            f"{_HISTORY}::test_of_two_copies_of_a_pipeline_one_has_the_sink",
            f"{_HISTORY}::test_an_answer_is_the_mark_believed_or_one_that_waits",
        ),
    ),
    Mutant(
        "outbox-answer-not-looked-up-in-the-journal",
        "engine/outbox.py",
        "            fits = found.transaction >= self.delivered and self._recorded(found)",
        "            fits = found.transaction >= self.delivered",
        (f"{_HISTORY}::test_a_copy_whose_numbers_fit_when_it_is_opened_is_refused",),
    ),
    Mutant(
        "outbox-entry-of-a-mark-not-compared",
        "engine/sink_history.py",
        "        and found.checksum == mark.entry\n",
        "",
        (f"{_HISTORY}::test_a_copy_whose_numbers_fit_when_it_is_opened_is_refused",),
    ),
    Mutant(
        "outbox-idle-sink-not-asked",
        "engine/outbox.py",
        "            return bool(self._parcels) or not self._certain",
        "            return bool(self._parcels)",
        (f"{_HISTORY}::test_a_sink_that_comes_back_is_asked_though_nothing_waits_for_it",),
    ),
    Mutant(
        "outbox-flush-on-the-way-forgets-what-the-sink-said",
        "engine/outbox.py",
        "            at = SinkAt(self.sink.name, self.held)",
        "            at = SinkAt(self.sink.name, self.held if self._settled else None)",
        (f"{_HISTORY}::test_what_a_sink_said_is_kept_while_a_long_replay_is_flushed",),
    ),
    Mutant(
        "outbox-first-load-made-up-for-by-a-change",
        "engine/outbox.py",
        "                if self._again.get(transaction) == mark:",
        "                if transaction in self._again:",
        (
            "tests/engine/test_restore.py::"
            "test_the_view_a_sink_begins_with_is_not_made_up_for_by_a_change",
        ),
    ),
    Mutant(
        "outbox-order-of-transactions-not-guarded",
        "engine/outbox.py",
        "                transaction > self._offered,\n",
        "                True,\n",
        (f"{_SINKS}::test_the_guard_raises_when_the_order_is_broken",),
    ),
)
