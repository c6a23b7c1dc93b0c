"""Mutants of checkpoints, restores, clones, copies and the log of a deploy."""

from tests.mutants.table import Mutant

_COPIED = "tests/engine/test_copied.py"
_COPY = "tests/journal/test_copy.py"
_REACH = "tests/engine/test_restore_points.py"
_RESTORE = "tests/engine/test_restore.py"

MUTANTS = (
    Mutant(
        "pins-matched-by-lineage-alone",
        "manifest/pins.py",
        "if (pin.id, pin.clone) != (id, clone))",
        "if pin.id != id)",
        (f"{_COPIED}::test_the_end_of_a_copied_clone_leaves_the_original_its_files",),
    ),
    Mutant(
        "places-copy-taken-for-moved",
        "manifest/layout.py",
        "    if mark is None or recorded.mark != mark:\n        return Standing.COPIED",
        "    if mark is None or recorded.mark != mark:\n        return Standing.MOVED",
        (f"{_COPIED}::test_a_copy_is_refused_until_somebody_says_what_it_is",),
    ),
    Mutant(
        "places-backup-put-back-unnoticed",
        "manifest/layout.py",
        "return Standing.HERE if recorded.mark == mark else Standing.REPLACED",
        "return Standing.HERE",
        (f"{_COPIED}::test_a_backup_that_is_put_back_is_another_history",),
    ),
    Mutant(
        "places-snapshot-taken-for-the-original",
        "manifest/layout.py",
        "    return Standing.MOVED if left else Standing.COPIED",
        "    return Standing.MOVED",
        (f"{_COPIED}::test_snapshots_that_are_both_mounted_are_told_apart",),
    ),
    Mutant(
        "places-original-under-another-name-taken-for-a-copy",
        "manifest/layout.py",
        "    if recorded.uri == store.uri or same_directory(recorded.uri, store.uri):",
        "    if recorded.uri == store.uri:",
        (f"{_COPIED}::test_the_original_under_another_name_is_not_a_copy_though_its_mark_changed",),
    ),
    Mutant(
        "places-told-by-a-file-that-hard-links-share",
        "store/mark.py",
        "    one, two = _stat(uri), _stat(other)",
        '    one, two = _stat(uri, "place.txt"), _stat(other, "place.txt")',
        (f"{_COPIED}::test_a_copy_is_refused_until_somebody_says_what_it_is",),
    ),
    Mutant(
        "adopt-strips-the-original",
        "manifest/adopt.py",
        "    if how is not Standing.COPIED:",
        "    if False:",
        (f"{_COPIED}::test_the_original_is_not_adopted_as_a_copy_of_itself",),
    ),
    Mutant(
        "destroy-copy-takes-the-journal-of-the-original",
        "manifest/destroy.py",
        "    if standing(manifest, store) is Standing.COPIED:",
        "    if False:",
        (f"{_COPIED}::test_destroying_a_copy_leaves_a_journal_that_was_not_copied",),
    ),
    Mutant(
        "retention-takes-a-restart-for-a-restore",
        "manifest/checkpoint.py",
        "if item.since and not item.resumed]",
        "if item.since]",
        (
            f"{_REACH}"
            "::test_a_directory_whose_mark_changes_at_every_start_keeps_no_more_than_another",
            f"{_REACH}::test_checkpoints_are_thinned_out_with_age",
        ),
    ),
    Mutant(
        "timelines-forget-a-restore",
        "manifest/timeline.py",
        "    resumed = [item for item in found[1:] if item.resumed]",
        "    resumed = list(found[1:])",
        (
            "tests/manifest/test_timeline.py"
            "::test_restarts_do_not_make_the_list_longer_and_restores_are_all_known",
        ),
    ),
    Mutant(
        "restore-without-a-timeline",
        "engine/flush.py",
        "        if begun is not None:\n            timelines",
        "        if False:\n            timelines",
        (f"{_RESTORE}::test_a_restore_begins_a_timeline_and_a_repair_does_not",),
    ),
    Mutant(
        "restore-chooses-by-size",
        "manifest/checkpoint.py",
        "for file, sum in found if sum != file.checksum))",
        "for file, sum in found if False))",
        (
            f"{_REACH}::test_a_flipped_byte_in_the_newest_checkpoint_is_passed_over",
            f"{_RESTORE}::test_the_newest_checkpoint_is_damaged",
        ),
    ),
    Mutant(
        "restore-takes-an-outage-for-damage",
        "engine/restore_request.py",
        "    except UnavailableError:\n        raise  # An unavailable",
        "    except UnavailableError as error:\n        return _Inspected(None, error.message)  #",
        (f"{_REACH}::test_a_store_that_does_not_answer_is_not_damage",),
    ),
    Mutant(
        "restore-without-the-beginning",
        "engine/restore_request.py",
        "    beginning = beginning_of(manifest)\n",
        "    beginning = None\n",
        (f"{_REACH}::test_an_untrimmed_journal_leads_everywhere_though_every_checkpoint_is_gone",),
    ),
    Mutant(
        "checkpoints-not-thinned-but-dropped",
        "manifest/checkpoint.py",
        "    if reach_s > 0:\n",
        "    if False:\n",
        (f"{_REACH}::test_every_transaction_that_the_journal_keeps_can_be_restored",),
    ),
    Mutant(
        "checkpoint-of-a-restore-dropped",
        "manifest/checkpoint.py",
        "if slot not in slots or restored:",
        "if slot not in slots:",
        (f"{_REACH}::test_what_came_after_a_restore_can_be_reached",),
    ),
    Mutant(
        "collect-trims-beyond-the-last-checkpoint",
        "manifest/gc.py",
        "    if before:\n        return max(before)\n",
        "    if before:\n        return limit\n",
        (
            f"{_REACH}::test_every_transaction_that_the_journal_keeps_can_be_restored",
            "tests/manifest/test_collect.py::test_entries_stay_for_as_long_as_they_are_to_be_kept",
        ),
    ),
    Mutant(
        "copy-begins-inside-a-transaction",
        "journal/copy.py",
        "                and draft.step <= 1\n",
        "",
        (f"{_COPY}::test_a_tail_that_begins_inside_a_transaction_is_not_copied",),
    ),
    Mutant(
        "copy-without-a-begin",
        "journal/copy.py",
        "                and (draft.step == 0 or self._ends(Position(number)))\n",
        "",
        (
            f"{_COPY}::test_without_its_begin_a_transaction_counts_only_if_it_has_ended",
            "tests/engine/test_clone.py"
            "::test_a_lost_begin_does_not_make_half_of_a_transaction_count",
        ),
    ),
    Mutant(
        "copy-does-not-notice-trimming",
        "journal/copy.py",
        "            self._check_not_trimmed(ours.next)\n",
        "",
        (f"{_COPY}::test_what_a_stalled_writer_puts_behind_the_boundary_is_not_copied",),
    ),
    Mutant(
        "deploy-log-removed-from-its-beginning",
        "deploy/log.py",
        "for item in reversed(store.list(paths.DEPLOY_LOG)):",
        "for item in store.list(paths.DEPLOY_LOG):",
        ("tests/deploy/test_state_file.py::test_a_log_that_is_discarded_can_be_killed_anywhere",),
    ),
    Mutant(
        "restore-stops-at-damage-that-going-back-meets",
        "engine/restore.py",
        "    except CorruptError as error:\n        # The restore point",
        "    except ZeroDivisionError as error:\n        # The restore point",
        (f"{_RESTORE}::test_damage_that_only_going_back_meets_does_not_stop_a_restore",),
    ),
    Mutant(
        "deploy-interrupted-without-its-lease",
        "deploy/apply.py",
        "        lease.check()  # The log may be a successor's by now.\n",
        "",
        (
            "tests/deploy/test_deploy.py"
            "::test_a_deploy_that_lost_its_lease_leaves_its_successor_the_log[True]",
        ),
    ),
    Mutant(
        "deploy-saves-without-its-lease",
        "deploy/apply.py",
        "    lease.check()\n    saved = _record(",
        "    saved = _record(",
        (
            "tests/deploy/test_deploy.py"
            "::test_a_deploy_that_lost_its_lease_leaves_its_successor_the_log",
        ),
    ),
)
