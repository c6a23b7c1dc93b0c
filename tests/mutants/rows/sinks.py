"""Mutants of the sinks: the comparison inside a commit, and what is on disk before it counts."""

from tests.mutants.table import Mutant

_CONTRACT = "tests/connectors/test_sink_contract.py"
_STOPPED = "tests/connectors/test_stopped_sinks.py"
_DELTA = "tests/connectors/test_delta_sink.py"
_FILES = "tests/connectors/test_files_sink.py"
_SYNC = "tests/connectors/test_failed_sync.py"
_ANOTHER = f"{_CONTRACT}::test_a_sink_that_holds_another_mark_than_believed_changes_nothing"
_LATE = f"{_STOPPED}::test_a_writer_stopped_inside_its_delivery_is_too_late_when_it_wakes_up"
_AT_ONCE = f"{_STOPPED}::test_of_two_writers_at_once_one_wins"

MUTANTS = (
    Mutant(
        "sinks-compare-numbers-only",
        "connectors/delivery.py",
        "    if held != previous:",
        "    if held is not None and held.transaction >= mark.transaction:",
        (f"{_ANOTHER}[files-json-a copy]", f"{_ANOTHER}[delta-changes-it went back]"),
    ),
    Mutant(
        "sinks-postgres-mark-replaced-without-comparing",
        "connectors/postgres.py",
        "            same = {**fields, **MARK.write(previous)}\n"
        '            del same["timeline"]  # The entry identifies the history for certain.\n',
        "            same = fields\n",
        (
            f"{_ANOTHER}[postgres-key-a copy]",
            f"{_LATE}[postgres-changes-5]",
            f"{_AT_ONCE}[postgres-changes]",
        ),
    ),
    Mutant(
        "sinks-postgres-compares-before-its-commit",
        "connectors/postgres.py",
        "            same = {**fields, **MARK.write(previous)}\n"
        '            del same["timeline"]  # The entry identifies the history for certain.\n',
        "            same = fields\n"
        "            check_held(self.name, self._held(cursor), previous, mark)\n",
        (f"{_LATE}[postgres-changes-5]",),
    ),
    Mutant(
        "sinks-files-number-of-the-log-replaced",
        "connectors/files_sink.py",
        "os.link(staged / _MARK, self._marker(sequence))",
        "shutil.copy(staged / _MARK, self._marker(sequence))",
        (f"{_LATE}[files-json-3]",),
    ),
    Mutant(
        "sinks-files-trimmed-number-taken-for-the-end",
        "connectors/files_sink.py",
        "if not mine or max(self._sequences(), default=0) != sequence:",
        "if not mine:",
        (f"{_STOPPED}::test_a_long_log_still_refuses_a_stopped_writer",),
    ),
    Mutant(
        "sinks-files-sweep-takes-what-is-being-written",
        "connectors/files_sink.py",
        "with suppress(FileNotFoundError, BlockingIOError, NotADirectoryError), _locked(found):",
        "with suppress(FileNotFoundError):",
        (f"{_STOPPED}::test_a_hidden_folder_of_a_living_writer_is_left_alone",),
    ),
    Mutant(
        "sinks-files-sweep-takes-what-is-committed",
        "connectors/files_sink.py",
        "if end is not None and end.staged == staged:",
        "if False:",
        (f"{_FILES}::test_a_folder_that_was_committed_is_not_swept_away",),
    ),
    Mutant(
        "sinks-files-committed-folder-not-published",
        "connectors/files_sink.py",
        "if found is not None and any(path.exists() for path in self._hidden(found.staged)):",
        "if False:",
        (f"{_LATE}[files-json-3]",),
    ),
    Mutant(
        "sinks-delta-commit-not-synced",
        "connectors/delta.py",
        "            self._commit(table, mark, fitted)\n            self._sync(table.version())\n",
        "            self._commit(table, mark, fitted)\n",
        (f"{_DELTA}::test_a_commit_is_on_disk_before_it_is_told",),
    ),
    Mutant(
        "sinks-delta-new-table-not-synced",
        "connectors/delta.py",
        "                self._sync(0)\n",
        "",
        (f"{_DELTA}::test_a_commit_is_on_disk_before_it_is_told",),
    ),
    Mutant(
        "sinks-delta-change-that-alters-nothing-not-committed",
        "connectors/delta.py",
        "        if table.version() == before:",
        "        if False:",
        (f"{_DELTA}::test_a_change_that_alters_nothing_is_committed_anyway",),
    ),
    Mutant(
        "sinks-delta-mark-not-compared",
        "connectors/delta.py",
        "            check_held(self.name, self._held(table), previous, mark)\n",
        "",
        (f"{_ANOTHER}[delta-key-a copy]",),
    ),
    Mutant(
        "sinks-failed-sync-forgotten",
        "connectors/durable.py",
        "        _distrusted[os.path.realpath(path)] = reason\n",
        "",
        (
            f"{_SYNC}::test_an_fsync_that_failed_is_not_repeated_and_believed[files-json]",
            f"{_SYNC}::test_an_fsync_that_failed_is_not_repeated_and_believed[delta-key]",
        ),
    ),
    Mutant(
        "sinks-failed-sync-tried-again",
        "connectors/durable.py",
        "        if staged or error.errno in UNSUPPORTED:",
        "        if True:",
        (
            f"{_SYNC}::test_the_outbox_keeps_what_a_sink_could_not_sync[files-json]",
            f"{_SYNC}::test_the_outbox_keeps_what_a_sink_could_not_sync[delta-key]",
        ),
    ),
    Mutant(
        "sinks-files-swept-without-renaming",
        "connectors/files_sink.py",
        "                    os.rename(made, gone)\n",
        "                    gone = made\n",
        (f"{_FILES}::test_a_writer_whose_lock_is_not_seen_commits_nothing_that_is_swept",),
    ),
    Mutant(
        "sinks-files-published-before-its-mark-is-durable",
        "connectors/files_sink.py",
        "        sync_folder(self._log)\n        for folder in",
        "        for folder in",
        (
            f"{_FILES}::test_a_process_that_publishes_for_a_dead_writer_makes_its_mark_durable_first",
        ),
    ),
)
