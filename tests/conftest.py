"""Settings for the whole test run. Fixtures are next to the tests that use them."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from hypothesis import settings

from stepwell.testing import reference_executor

# A deadline per example measures the machine, not the code: it fails on a busy one.
settings.register_profile("here", deadline=None)
# Under CI the same examples are drawn every time, so that a failure can be run again.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# Pipelines of tests cache nothing in the home of the user who runs them; other processes inherit
# it.
_CACHE = tempfile.mkdtemp(prefix="stepwell-test-cache-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = _CACHE


@pytest.fixture(autouse=True)
def _executor_of_projects(request: pytest.FixtureRequest) -> Iterator[None]:
    """Only tests that are marked so compute projects on Spark; other processes inherit it."""
    with nullcontext() if "spark" in request.keywords else reference_executor():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for Spark is marked so, for `make test` to tell it from the rest."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
