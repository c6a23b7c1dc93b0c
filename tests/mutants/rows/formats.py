"""Mutants of the versions of stored formats."""

from tests.mutants.table import Mutant

_FORMATS = "tests/formats/test_formats.py"

MUTANTS = (
    Mutant(
        "format-raised-without-a-stored-pipeline",
        "journal/identity.py",
        'FORMAT = "stepwell-identity/1"',
        'FORMAT = "stepwell-identity/99"',
        (
            f"{_FORMATS}::test_every_format_that_the_code_writes_is_stored",
            f"{_FORMATS}::test_a_stored_pipeline_is_replayed_and_its_sinks_catch_up",
        ),
    ),
)
