"""One Spark for all tests of a process, started when the first test asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stepwell.spark.session import SessionSettings, open_session

HERE = Path(__file__).parent

# Compiling less eagerly and collecting with one thread halves the start on two busy cores, and the
# tests are over before better code would pay.
SETTINGS = SessionSettings(
    master="local[2]",
    name="stepwell-tests",
    conf={
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        # Every query of a test is a new one, over a handful of rows: compiling it to Java takes
        # longer than running it without.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    },
    shuffle_partitions=2,
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for Spark is marked so, for `make test` to tell it from the rest."""
    for item in items:
        if item.path.is_relative_to(HERE) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """Shared by all tests, so a view or a setting that one leaves behind meets the others."""
    # Not stopped: it ends with the process, and stopping takes seconds.
    return open_session(SETTINGS)
