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
            "::test_a_pid_that_was_given_to_another_process_is_not_a_sign_of_life",
        ),
    ),
    Mutant(
        "the watch compares host and pid",
        "cli/run.py",
        "claim.writer == self._pipeline.writer_id",
        "claim.process == SystemEnv().process",
        ("tests/cli/test_liveness.py::test_a_takeover_by_the_same_host_and_pid_is_noticed",),
    ),
    Mutant(
        "a claim does not look at what was seen",
        "manifest/manifest.py",
        "if expected is not None and before.claim != expected:",
        "if False:",
        (
            "tests/cli/test_liveness.py::test_a_deploy_that_was_overtaken_looks_again",
            "tests/deploy/test_lost_executor.py"
            "::test_one_that_was_taken_over_in_the_meantime_is_not_claimed_back",
        ),
    ),
    Mutant(
        "a thread dies unseen",
        "threads.py",
        "                if not left:\n                    failed(error)",
        "                if not left:\n                    return",
        (
            "tests/test_threads.py"
            "::test_what_a_thread_dies_of_is_told_once_it_was_started_often_enough",
            "tests/endpoint/test_connections.py::test_a_worker_that_dies_is_told_of",
        ),
    ),
    Mutant(
        "Arrow bytes are believed",
        "endpoint/arrow_input.py",
        "        table.validate(full=True)\n",
        "",
        (
            "tests/endpoint/test_arrow_input.py::test_an_offset_behind_its_buffer_is_refused",
            "tests/endpoint/test_arrow_input.py"
            "::test_damaged_rows_are_refused_and_never_end_the_process",
        ),
    ),
    Mutant(
        "a lack of descriptors ends the endpoint",
        "endpoint/connections.py",
        "if error.errno in _SHORT_OF:",
        "if False:",
        (
            "tests/endpoint/test_connections.py"
            "::test_a_process_without_descriptors_serves_again_once_it_has_some",
        ),
    ),
    Mutant(
        "a lost executor is not noticed",
        "engine/pipeline.py",
        "if why is not None and self._failure is None:",
        "if False:",
        ("tests/deploy/test_lost_executor.py::test_an_idle_run_notices_at_once_and_continues",),
    ),
)
