"""Mutants of the sources: what a file is believed to be."""

from tests.mutants.table import Mutant

_AVRO = "tests/connectors/test_avro.py"
_BROKEN = "tests/connectors/test_broken_files.py"
_FILES = "tests/connectors/test_files_source.py"

MUTANTS = (
    Mutant(
        "settling-believes-the-first-look",
        "connectors/settling.py",
        "                self._observed[file.name] = "
        "_Observed(file.size, file.mtime_ns, now)\n            return False\n",
        "                self._observed[file.name] = "
        "_Observed(file.size, file.mtime_ns, now)\n            return True\n",
        (
            f"{_FILES}::test_a_file_that_is_being_written_is_not_taken_whatever_the_clocks_say",
            f"{_FILES}::test_after_a_restart_a_file_is_observed_again",
        ),
    ),
    Mutant(
        "settling-counts-the-sleep-of-the-machine",
        "connectors/settling.py",
        "seen.quiet_s += min(now - seen.looked, self._needed_s(seen) / 2)",
        "seen.quiet_s += now - seen.looked",
        (f"{_FILES}::test_a_machine_that_slept_has_seen_no_quiet_period",),
    ),
    Mutant(
        "settling-ignores-coarse-file-times",
        "connectors/settling.py",
        "coarse = seen.mtime_ns % _SECOND_NS == 0",
        "coarse = False",
        (f"{_FILES}::test_the_time_of_a_file_may_lie_in_the_future",),
    ),
    Mutant(
        "files-source-believes-the-folder-time-by-the-wall-clock",
        "connectors/listing.py",
        "return changed_ns if now - self._changed[1] > TICK_S else None",
        "return changed_ns",
        (f"{_FILES}::test_names_that_come_within_one_tick_are_found_whatever_the_clocks_say",),
    ),
    Mutant(
        "half-taken-file-known-by-size-and-time",
        "connectors/files.py",
        "        if same and begun is not None and begun.certain:\n",
        "        if (file.size, file.mtime_ns) == (part.size, part.mtime_ns):\n",
        (
            f"{_FILES}::"
            "test_a_half_taken_file_that_is_replaced_with_the_same_size_and_time_stops_the_source",
        ),
    ),
    Mutant(
        "half-taken-file-compared-in-its-last-part-only",
        "connectors/files.py",
        '            self._compare(file, part, at, opened["prefix"])\n',
        "            self._reader.again(part, file.path)\n",
        (
            f"{_FILES}::"
            "test_a_half_taken_file_that_is_replaced_with_the_same_size_and_time_stops_the_source",
        ),
    ),
    Mutant(
        "file-replaced-while-it-is-read-not-noticed",
        "connectors/files.py",
        "        if now is None or now == file or not prefix:\n",
        "        if True:\n",
        (f"{_FILES}::test_a_file_that_is_replaced_while_it_is_read_is_read_again",),
    ),
    Mutant(
        "line-without-end-is-buffered",
        "connectors/lines.py",
        "if len(seen) - last > RECORD_BYTES_MAX:\n            # In",
        "if False:\n            # In",
        (f"{_BROKEN}::test_a_line_without_end_is_skipped_in_bounded_memory",),
    ),
    Mutant(
        "csv-records-not-counted",
        "connectors/csv_lines.py",
        "if rows != lines.count():",
        "if False:",
        (f"{_BROKEN}::test_a_broken_line_of_csv_costs_that_line_only",),
    ),
    Mutant(
        "decoder-that-fails-stops-the-source",
        "connectors/file_parts.py",
        "        except Exception:  # noqa: BLE001 - libraries may raise anything",
        "        except KeyError:  # noqa: BLE001 - libraries may raise anything",
        (f"{_BROKEN}::test_a_decoder_that_fails_costs_the_record_it_fails_on",),
    ),
    Mutant(
        "source-that-fails-stops-the-others",
        "engine/sources.py",
        "        except Exception as error:  # noqa: BLE001 - a source may",
        "        except KeyError as error:  # noqa: BLE001 - a source may",
        ("tests/engine/test_loop.py::test_a_source_that_raises_anything_is_paused_alone",),
    ),
    Mutant(
        "avro-replay-forgets-why-a-schema-was-refused",
        "connectors/avro_records.py",
        "            raise Unfit(refused.get(id) or absent(id))\n",
        "            raise Unfit(absent(id))\n",
        (f"{_AVRO}::test_the_schemas_of_a_step_are_recorded_and_replayed",),
    ),
    Mutant(
        "avro-schemas-are-recorded-without-those-they-refer-to",
        "connectors/avro_records.py",
        '{"" if id is None else str(id): list(t) for id, t in self._texts.items()}',
        '{"" if id is None else str(id): list(t)[-1:] for id, t in self._texts.items()}',
        (f"{_AVRO}::test_the_schemas_of_a_step_are_recorded_and_replayed",),
    ),
    Mutant(
        "avro-ignores-bytes-after-a-value",
        "connectors/avro.py",
        "        left = len(data) - file.tell()\n",
        "        left = 0\n",
        (f"{_AVRO}::test_bytes_after_a_value_are_not_ignored",),
    ),
    Mutant(
        "avro-reads-a-decimal-by-the-scale-of-the-reader",
        "connectors/avro.py",
        "    if isinstance(reader, dict) and _scale(reader) != _scale(writer):\n",
        "    if False:\n",
        (f"{_AVRO}::test_values_are_resolved_to_a_reader_schema",),
    ),
    Mutant(
        "avro-blames-records-for-what-is-not-a-registry",
        "connectors/avro_registry.py",
        'if error.code == 404 and told.get("error_code") in (40401, 40402, _NO_SCHEMA):',
        "if error.code == 404:",
        (f"{_AVRO}::test_a_registry_that_refuses_is_not_blamed_on_records",),
    ),
)
