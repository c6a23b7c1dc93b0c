"""Who is alive, who may take over, and what dies unseen."""

from __future__ import annotations

from tests.mutants.table import Mutant

MUTANTS = (
    Mutant(
        "a pid counts in every namespace",
        "process.py",
        "(other.host, other.boot, other.namespace) != (here.host, here.boot, here.namespace)",
        "other.host != here.host",
        (
            "tests/test_process.py::test_where_numbers_count_differently_nothing_is_known",
            "tests/cli/test_liveness.py::test_a_writer_in_another_container_is_not_taken_for_dead",
            "tests/deploy/test_lease.py"
            "::test_an_owner_in_another_container_is_not_dead_because_its_number_is_free_here",
        ),
    ),
    Mutant(
        "a pid is never reused",
        "process.py",
        "return Liveness.DEAD if told and other.started != started else Liveness.ALIVE",
        "return Liveness.ALIVE",
        (
            "tests/test_process.py"
            "::test_a_number_that_was_given_to_another_process_is_no_sign_of_life",
        ),
    ),
    Mutant(
        "the watch compares host and pid",
        "cli/run.py",
        "claim.writer == self._pipeline.writer_id",
        "claim.process == SystemEnv().process",
        ("tests/cli/test_liveness.py::test_a_takeover_by_the_same_host_and_pid_is_noticed",),
    ),
)
