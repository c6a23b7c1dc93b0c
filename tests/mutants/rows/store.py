"""Mutants of the store layer: order of syncs, put-if-absent, seals, numbered versions."""

from tests.mutants.table import Mutant

_POWER_CUT = "tests/store/test_power_cut.py"
_LOCAL = "tests/store/test_local.py"
_SEQUENCE = "tests/store/test_sequenced.py"
_SYNC = "tests/store/test_sync.py"

MUTANTS = (
    Mutant(
        "local-object-not-synced-before-its-link",
        "store/local.py",
        "                disk.sync(staged)\n                linked = True\n",
        "                linked = True\n",
        (
            f"{_POWER_CUT}::test_what_put_new_returned_from_survives_a_power_cut",
            f"{_LOCAL}::test_a_new_object_is_durable_before_it_is_acknowledged",
        ),
    ),
    Mutant(
        "local-directory-not-synced-after-a-link",
        "store/local.py",
        "                disk.discard(staged)\n            self._sync_names(directory, path)\n",
        "                disk.discard(staged)\n",
        (
            f"{_POWER_CUT}::test_what_put_new_returned_from_survives_a_power_cut",
            f"{_LOCAL}::test_a_new_object_is_durable_before_it_is_acknowledged",
        ),
    ),
    Mutant(
        "local-conflict-without-syncing-the-winner",
        "store/local.py",
        "            except FileExistsError:\n                self._sync_names(directory, path)\n",
        "            except FileExistsError:\n",
        (
            f"{_POWER_CUT}::test_an_object_that_made_us_lose_survives_a_power_cut",
            f"{_LOCAL}::test_a_conflict_proves_that_what_was_first_is_durable",
        ),
    ),
    Mutant(
        "local-link-replaces",
        "store/disk.py",
        "            os.link(source, name, src_dir_fd=staged.fd, follow_symlinks=True)\n\n",
        "            self.rename(staged, name)\n\n",
        (f"{_LOCAL}::test_of_two_processes_exactly_one_creates_an_object",),
    ),
    Mutant(
        "disk-sync-does-nothing",
        "store/disk.py",
        "        _sync_or_say(staged.fd)\n",
        "        pass\n",
        (
            f"{_SYNC}::"
            "test_the_real_disk_syncs_bytes_before_the_name_and_the_name_before_the_answer",
        ),
    ),
    Mutant(
        "disk-sync-directory-does-nothing",
        "store/disk.py",
        "            _sync_or_say(fd)\n",
        "            pass\n",
        (
            f"{_SYNC}::"
            "test_the_real_disk_syncs_bytes_before_the_name_and_the_name_before_the_answer",
            f"{_SYNC}::test_the_real_disk_syncs_the_directory_before_it_reports_a_conflict",
            f"{_SYNC}::test_the_real_disk_syncs_a_replacement_before_and_after_its_rename",
        ),
    ),
    Mutant(
        "local-failure-after-the-link-reported-as-not-applied",
        "store/local.py",
        "not_applied=not linked",
        "not_applied=True",
        (
            f"{_SYNC}::test_a_failure_at_the_link_or_after_it_is_never_reported_as_not_applied",
            f"{_SYNC}::test_a_directory_that_could_not_be_opened_is_synced_by_the_next_attempt",
        ),
    ),
    Mutant(
        "local-failed-directory-sync-retried-and-believed",
        "store/local.py",
        "        except SyncError as error:\n",
        "        except StopIteration as error:\n",
        (
            f"{_SYNC}::test_a_directory_sync_that_failed_is_not_repeated_and_believed",
            f"{_SYNC}::"
            "test_a_writer_whose_directory_sync_failed_acknowledges_nothing_and_is_poisoned",
        ),
    ),
    Mutant(
        "sealed-checksum-not-compared",
        "store/sealed.py",
        "if found != computed:",
        "if False:",
        ("tests/store/test_sealed.py::test_every_flipped_byte_is_found",),
    ),
    Mutant(
        "sequence-boundary-not-read-after-a-create",
        "store/sequenced.py",
        "if id <= self._patience.run(lambda: self._boundary.read(self.name), unknown):",
        "if False:",
        (
            f"{_SEQUENCE}::"
            "test_an_author_that_stalls_while_its_number_is_collected_is_not_committed",
        ),
    ),
    Mutant(
        "sequence-own-create-not-recognised",
        "store/sequenced.py",
        "return found is not None and found.put_id == put_id",
        "return False",
        (f"{_SEQUENCE}::test_a_create_whose_answer_was_lost_is_recognised",),
    ),
)
