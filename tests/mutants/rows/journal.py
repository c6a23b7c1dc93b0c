"""Mutants of the journal: the fence, the chain, the barriers that outlive their use."""

from tests.mutants.table import Mutant

_JOURNAL = "tests/journal/test_journal.py"

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
        "trim-takes-young-barriers",
        "journal/trim.py",
        "if listed.modified <= young or not _may_be_barrier(",
        "if True or not _may_be_barrier(",
        (f"{_JOURNAL}::test_a_barrier_outlives_its_use_and_catches_a_writer_that_slept",),
    ),
)
