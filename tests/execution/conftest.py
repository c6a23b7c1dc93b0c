"""One Spark for all tests of a process, started when the first test asks for it."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from stepwell.execution.spark.session import SessionSettings, open_session

# Collecting with one thread suits two busy cores. Java compiles as it likes: with its quick
# compiler alone it starts sooner, but then Spark's analyser, which is most of the work here, takes
# a fifth longer.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
SETTINGS = SessionSettings(
    master="local[2]",
    name="stepwell-tests",
    conf={
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.buffer.pageSize": "1m",
        # Every query of a test is a new one, over a handful of rows: compiling it to Java takes
        # longer than running it without.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    },
    shuffle_partitions=2,
)


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """Shared by all tests, so a view or a setting that one leaves behind meets the others."""
    # Not stopped: it ends with the process, and stopping takes seconds.
    return open_session(SETTINGS)
