"""Settings for the whole test run. Fixtures live beside the tests that use them."""

import os

import pytest
from hypothesis import settings

# A deadline per example measures the machine, not the code: it fails on a busy one.
settings.register_profile("here", deadline=None)
# Under CI the same examples are drawn every time, so that a failure can be run again.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for Spark is marked so, for `make test` to tell it from the rest."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
