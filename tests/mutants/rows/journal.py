"""Mutants of the journal: the fence, the chain, the barriers that outlive their use."""

from tests.mutants.table import Mutant

_JOURNAL = "tests/journal/test_journal.py"
_SILENCE = "tests/journal/test_silence.py"
_FENCE = "tests/engine/test_fence.py"

MUTANTS = (
    Mutant(
        "journal-entry-of-a-rival-taken-for-our-own",
        "journal/journal.py",
        "if found.put_id != entry.put_id:",
        "if found.epoch < self._epoch:",
        (f"{_JOURNAL}::test_an_entry_of_our_own_epoch_by_another_hand_stops_hard",),
    ),
    Mutant(
        "journal-barrier-steps-forward-without-asking",
        "journal/journal.py",
        "                self._guard.check("
        'f"the barrier at position {self._tip.next} was not written")\n',
        "",
        (
            f"{_JOURNAL}::"
            "test_a_barrier_that_finds_its_place_taken_steps_forward_and_asks_each_time",
        ),
    ),
    Mutant(
        "journal-chain-not-compared",
        "journal/entry.py",
        "if entry.previous != self.checksum:",
        "if False:",
        (f"{_JOURNAL}::test_damage_in_the_middle_of_the_journal_is_never_skipped",),
    ),
    Mutant(
        "journal-entry-checksum-not-compared",
        "journal/codec.py",
        "if found != computed.encode():",
        "if False:",
        ("tests/journal/test_codec.py::test_every_flipped_byte_is_found",),
    ),
    Mutant(
        "journal-unknown-outcome-does-not-poison",
        "journal/journal.py",
        "                except BaseException as error:\n",
        "                except StopIteration as error:\n",
        (
            f"{_JOURNAL}::test_spent_retries_poison_the_writer_for_reads_and_writes",
            f"{_JOURNAL}::test_an_interrupt_during_an_append_poisons_the_writer",
        ),
    ),
    Mutant(
        "journal-hole-taken-for-the-end",
        "journal/log.py",
        "                return after, Position(name.number)\n",
        "                return after, None\n",
        (f"{_JOURNAL}::test_a_hole_of_any_width_is_found_before_the_pipeline_is_claimed",),
    ),
    Mutant(
        "reader-takes-a-hole-for-the-end",
        "journal/log.py",
        "if not seen and (beyond := self._log.beyond(cursor.next)) is not None:",
        "if False and (beyond := self._log.beyond(cursor.next)) is not None:",
        (f"{_JOURNAL}::test_a_hole_of_any_width_is_found_before_the_pipeline_is_claimed",),
    ),
    Mutant(
        "journal-silent-writer-does-not-ask",
        "journal/journal.py",
        "            if self._long_since_confirmed(began):\n",
        "            if False:\n",
        (
            f"{_SILENCE}::"
            "test_a_writer_that_slept_past_the_collection_of_its_barrier_writes_nothing",
        ),
    ),
    Mutant(
        "journal-no-look-after-a-long-put",
        "journal/journal.py",
        "        if not self._long_since_confirmed(self._clocks()):\n",
        "        if True:\n",
        (f"{_SILENCE}::test_a_writer_that_slept_inside_its_put_is_not_acknowledged",),
    ),
    Mutant(
        "journal-looks-at-the-wall-clock-only",
        "journal/journal.py",
        "return now[0] - up >= limit.total_seconds() or now[1] - wall >= limit",
        "return now[1] - wall >= limit",
        (
            f"{_SILENCE}::"
            "test_a_writer_asks_if_either_of_its_clocks_says_that_it_was_silent_for_long",
            f"{_SILENCE}::test_a_writer_looks_if_either_of_its_clocks_says_that_its_put_took_long",
        ),
    ),
    Mutant(
        "journal-looks-at-the-clock-of-the-boot-only",
        "journal/journal.py",
        "return now[0] - up >= limit.total_seconds() or now[1] - wall >= limit",
        "return now[0] - up >= limit.total_seconds()",
        (
            f"{_SILENCE}::"
            "test_a_writer_asks_if_either_of_its_clocks_says_that_it_was_silent_for_long",
            f"{_SILENCE}::test_a_writer_looks_if_either_of_its_clocks_says_that_its_put_took_long",
        ),
    ),
    Mutant(
        "journal-manifest-asked-after-the-put",
        "journal/journal.py",
        "        where = self._log.full_name(position)\n        numbers = ",
        '        self._guard.check("it was not written")\n'
        "        where = self._log.full_name(position)\n        numbers = ",
        (f"{_SILENCE}::test_a_writer_that_slept_and_was_claimed_from_knows_that_its_entry_counts",),
    ),
    Mutant(
        "journal-attempt-in-doubt-forgotten",
        "journal/journal.py",
        "            return self._log.trimmed() >= self._doubtful\n",
        "            return False\n",
        (
            f"{_SILENCE}::test_a_lost_answer_and_a_trimmed_entry_are_not_called_unwritten",
            f"{_SILENCE}::test_a_conflict_with_what_is_gone_at_once_is_not_called_unwritten",
        ),
    ),
    Mutant(
        "error-after-recording-passed-on",
        "engine/transaction.py",
        "            raise state.broken from error\n",
        "            raise\n",
        (
            "tests/engine/test_failure.py::"
            "test_when_applying_fails_after_recording_only_opening_again_helps",
        ),
    ),
    Mutant(
        "open-serves-without-the-last-look-at-the-epoch",
        "engine/open.py",
        '            self._writer.check("the pipeline was not opened")\n',
        "            pass\n",
        (f"{_FENCE}::test_a_writer_overtaken_during_its_replay_never_serves",),
    ),
    Mutant(
        "trim-takes-young-barriers",
        "journal/trim.py",
        "if position <= old and len(kept) >= barriers_kept:",
        "if True:",
        (f"{_SILENCE}::test_a_barrier_outlives_its_use_and_catches_a_writer_that_slept",),
    ),
    Mutant(
        "trim-keeps-no-number-of-barriers",
        "journal/trim.py",
        "if position <= old and len(kept) >= barriers_kept:",
        "if position <= old:",
        (f"{_SILENCE}::test_the_last_barriers_stay_whatever_their_age",),
    ),
    Mutant(
        "barriers-note-counts-above-the-boundary",
        "journal/barriers.py",
        'if fields.text("journal") != journal or up_to > trimmed:',
        'if fields.text("journal") != journal:',
        (f"{_SILENCE}::test_a_note_of_barriers_that_does_not_count_keeps_every_barrier",),
    ),
    Mutant(
        "barriers-note-of-another-journal-counts",
        "journal/barriers.py",
        'if fields.text("journal") != journal or up_to > trimmed:',
        "if up_to > trimmed:",
        (f"{_SILENCE}::test_a_note_of_barriers_that_does_not_count_keeps_every_barrier",),
    ),
    Mutant(
        "trim-forgets-which-entries-it-has-read",
        "journal/trim.py",
        "            write_barriers(store, self.journal, self.up_to, self.kept, self.known)\n",
        "",
        (f"{_SILENCE}::test_no_entry_is_read_twice_to_know_whether_it_is_a_barrier",),
    ),
    Mutant(
        "trim-moves-the-boundary-before-it-notes-barriers",
        "journal/trim.py",
        """            write_barriers(store, self.journal, self.up_to, self.kept, self.known)
            Log(store).boundary.advance("journal", int(self.up_to))
""",
        """            Log(store).boundary.advance("journal", int(self.up_to))
            write_barriers(store, self.journal, self.up_to, self.kept, self.known)
""",
        (f"{_SILENCE}::test_a_trim_killed_at_any_call_leaves_no_note_that_costs_a_barrier",),
    ),
    Mutant(
        "watch-believes-the-clock-that-is-most-ahead",
        "journal/watch.py",
        "if min(elapsed) >= keep else",
        "if max(elapsed) >= keep else",
        (f"{_SILENCE}::test_no_clock_that_is_ahead_makes_a_barrier_old",),
    ),
    Mutant(
        "watch-counts-with-another-machines-clock",
        "journal/watch.py",
        "if note is None or note.boot != now.boot or now.storage is None:",
        "if note is None or now.storage is None:",
        (f"{_SILENCE}::test_a_collector_on_another_machine_does_not_count_with_this_ones_clock",),
    ),
)
