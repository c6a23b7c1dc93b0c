"""Open a Spark session of our own, or one based on the caller's.

`open_session` starts Spark on the given master, with settings that suit many small jobs. `adopt`
uses a session that is already running. Both return a session with our own SQL settings, so that a
view means the same wherever it runs: ANSI arithmetic, UTC, case-insensitive column names.

A process has one Spark, which ends with the process; callers need not stop it. Two sessions opened
here share it, so stopping one stops both. Spark works in temporary directories that are removed at
the end; a crash leaves them behind, named `spark-*`, `blockmgr-*` and `stepwell-spark-*`.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

from py4j.java_gateway import java_import
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from stepwell.env import with_variables
from stepwell.errors import ConfigError, StepwellError, UnavailableError
from stepwell.execution.java import Java, find_java, launcher_home
from stepwell.execution.spark import row_order
from stepwell.sql.settings import DEFAULTS, SUBSTITUTE, Value, changes_meaning, text_of

SPARK = "4.3"
LOOPBACK = "127.0.0.1"
_OUT_OF_MEMORY = 52
"""The exit code with which Spark ends Java when the heap is full."""
_END_WAIT_S_MAX = 1.0

# For masters on other machines, whose number of cores is known only after a while.
CLUSTER_PARTITIONS = 16
# Spark's default: far too many for small jobs.
SPARKS_PARTITIONS = "200"

# Settings of how a session computes. They can be changed in a running session.
SESSION = {
    # Replanning in the middle of a job costs more than it saves while the data is small.
    "spark.sql.adaptive.enabled": "false",
    # The meaning of a view does not depend on the user who runs it.
    **DEFAULTS,
    **row_order.REQUIRED,
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The default, INT96, has no statistics, so nothing could be pruned by time.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A damaged page is rejected, not computed with.
    "spark.hadoop.parquet.page.write-checksum.enabled": "true",
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
}

# Settings of how Spark runs. They are read once, when Spark starts.
LAUNCH = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # No catalog is needed; Hive's would leave a database in the current directory.
    "spark.sql.catalogImplementation": "in-memory",
    # The default holds 100 classes, which a few views fill; then all are compiled each time.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Memory is allocated and zeroed by the page, for every aggregate of every task, however few its
    # rows. The default page has tens of megabytes. A task has at most 8192 pages.
    "spark.buffer.pageSize": "8m",
    # Every broadcast join starts a thread, up to 128 by default, before an idle one is reused.
    "spark.sql.broadcastExchange.maxThreadThreshold": "16",
    # It looks up the caller's line for every new column, which is much of a small job's time.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}

# Classes that pyspark calls by a short name for every query and for every table it is given. Java
# would search all jars for them each time, in one package after another.
_NAMED_OFTEN = (
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
)

_INVALID = re.compile(
    r"INVALID_CONF_VALUE\S*\] The value '(?P<value>[^']*)' in the config \"(?P<key>[^\"]+)\""
)
"""Spark's message about an invalid setting."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

# A running Spark keeps the name that the first caller gave it, which does no harm.
KEPT = {"spark.app.name"}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The location and configuration of Spark."""

    master: str = "local[*]"
    name: str = "stepwell"
    # Any Spark settings. They override the ones chosen here.
    conf: Mapping[str, Value] = field(default_factory=dict)
    # Default: the number of cores for a local master, CLUSTER_PARTITIONS for any other.
    shuffle_partitions: int | None = None
    driver_memory: str = "2g"


@contextmanager
def _values_named() -> Iterator[None]:
    """Name the setting whose value Spark rejects, which happens only when Spark needs it."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        found = _INVALID.search(str(error))
        if found is None:
            raise
        raise ConfigError(
            f"the Spark setting {found['key']} cannot be {found['value']!r}",
            hint="correct it under spark: conf: in stepwell.yml",
        ) from error


def java_process() -> Popen[bytes] | None:
    """The Java process in which Spark runs, if this process has started it."""
    return getattr(SparkContext._gateway, "proc", None)


def await_end(java: Popen[bytes] | None) -> None:
    """Wait a moment for a Java process that no longer answers.

    The sockets of a killed process close before it is gone. A check in between would find it alive.
    """
    if java is not None:
        with suppress(TimeoutExpired):
            java.wait(timeout=_END_WAIT_S_MAX)


def has_ended(java: Popen[bytes] | None) -> str | None:
    """How a Java process has ended; None if it has not, or that is unknown. Never waits."""
    code = None if java is None else java.poll()
    if java is None or code is None:
        return None
    if code == _OUT_OF_MEMORY:
        how = "ran out of memory"
    else:
        how = f"was killed by signal {-code}" if code < 0 else f"has ended with exit code {code}"
    return f"Spark's Java, process {java.pid}, {how}"


def _forget_dead_java() -> None:
    """Reset pyspark, or it would go on talking to a Java process that has ended."""
    if has_ended(java_process()) is None:
        return
    gateway = SparkContext._gateway
    SparkContext._active_spark_context = None
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    with suppress(Exception):
        if gateway is not None:
            gateway.shutdown()


def _leave_out_py4j(record: logging.LogRecord) -> bool:
    """Filter for the root logger, where Py4J writes a traceback for each lost connection to Java.

    The command that lost it reports the error in its own words.
    """
    return not (record.name == "root" and record.module == "java_gateway")


def open_session(settings: SessionSettings) -> SparkSession:
    """Start Spark in this process, or join the one that was started with the same settings."""
    logging.getLogger().addFilter(_leave_out_py4j)
    _check_request(settings, os.environ)
    _forget_dead_java()
    running = SparkContext._active_spark_context
    if running is not None and _is_stopped(running):
        # Its cluster is gone, and Python has not noticed.
        running.stop()
    elif running is not None:
        first = SparkSession(running)
        _check_same(first, settings)
        return adopt(first, settings)
    java = find_java(os.environ)
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(_to_start_with(settings, os.environ).items()))
    conf.set("spark.sql.warehouse.dir", _temporary_directory())
    try:
        with with_variables(_variables(settings, java)), _signals_kept():
            spark = SparkSession(SparkContext(conf=conf))
        _check_running(spark)
    except (PySparkException, Py4JError, OSError, ValueError) as error:
        raise _not_started(settings, java, error, os.environ) from error
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # They print an error as a page of JSON, and the error is raised as well.
        PySparkLogger.getLogger(name).disabled = True
    with _values_named():
        _set_partitions(spark, settings)
    return spark


@_values_named()
def adopt(spark: SparkSession, settings: SessionSettings | None = None) -> SparkSession:
    """A session of our own next to the caller's, on the same Spark. The caller's is not changed.

    It has the views and functions that the caller's session has at this moment, but none of its
    settings that change the meaning of a query. Of `settings`, only those apply that can still be
    changed while Spark runs.
    """
    _check_running(spark)
    settings = settings or SessionSettings()
    _check_conf(settings)
    for name in _NAMED_OFTEN:
        java_import(spark._jvm, name)
    ours = beside(spark)
    for key in ours.conf.getAll:
        if changes_meaning(key) and ours.conf.isModifiable(key):
            ours.conf.unset(key)
    for key, value in {**SESSION, **_texts(settings.conf)}.items():
        # A session has no Hadoop settings. It passes them on under their own names.
        name = key.removeprefix("spark.hadoop.")
        if name != key or ours.conf.isModifiable(key):
            ours.conf.set(name, value)
    _set_partitions(ours, settings)
    return ours


def beside(spark: SparkSession) -> SparkSession:
    """A copy of this session, with independent settings."""
    # Not newSession: the functions that a view calls are registered in the caller's session.
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def within(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """The same rows, computed with the settings of another session."""
    return frame_of(spark, frame._jdf.queryExecution().analyzed())


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """The rows of a plan. A command in it is executed at once, as by `spark.sql`."""
    jvm: Any = spark._jvm
    rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return DataFrame(rows, spark)


@contextmanager
def activated(spark: SparkSession) -> Iterator[None]:
    """Make this the active session, whose settings the parser and other code read."""
    jvm: Any = spark._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    active = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if active.isDefined():
            sessions.setActiveSession(active.get())
        else:
            sessions.clearActiveSession()


def _to_start_with(settings: SessionSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Every setting that Spark is started with, except the directory that is created each time."""
    chosen = {
        "spark.app.name": settings.name,
        "spark.driver.memory": settings.driver_memory,
        **LAUNCH,
        **SESSION,
    }
    if _is_here(settings.master):
        # No other machine needs to reach it, and a laptop's name may resolve to any address.
        chosen |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    given = _texts(settings.conf)
    options = given.get(JAVA_OPTIONS, "")
    if "SPARK_CONF_DIR" not in environ and "log4j2.configurationFile" not in options:
        quiet = Path(__file__).with_name("log4j2.properties").as_uri()
        options = f"-Dlog4j2.configurationFile={quiet} {options}".rstrip()
    given[JAVA_OPTIONS] = options
    return {"spark.master": settings.master, **chosen, **given}


def _variables(settings: SessionSettings, java: Java) -> dict[str, str]:
    """Settings that Spark reads only from the environment."""
    variables = {"JAVA_HOME": launcher_home(java, os.environ)}
    if _is_here(settings.master):
        variables["SPARK_LOCAL_IP"] = LOOPBACK
        # Otherwise the first python3 on the path runs the functions, whatever version it is.
        variables["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    return variables


def _is_stopped(context: SparkContext) -> bool:
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError):
        # Its Java is gone.
        return True


def _is_here(master: str) -> bool:
    """Whether all of it runs on this machine. `local-cluster` starts workers, but here."""
    return master.startswith("local")


def on_this_machine(spark: SparkSession) -> bool:
    """Whether Spark runs in this process and so sees its files. Workers of a cluster do not."""
    return re.match(r"local(\[|$)", str(spark.sparkContext.master)) is not None


def _set_partitions(spark: SparkSession, settings: SessionSettings) -> None:
    key = "spark.sql.shuffle.partitions"
    if key in settings.conf:
        return
    context = spark.sparkContext
    partitions = settings.shuffle_partitions
    if partitions is None and spark.conf.get(key) != SPARKS_PARTITIONS:
        return  # The project, or the owner of the session, has chosen a value.
    if partitions is None:
        # Spark counts local cores; those of a cluster register one by one.
        partitions = context.defaultParallelism if on_this_machine(spark) else CLUSTER_PARTITIONS
    spark.conf.set(key, str(partitions))


def _check_request(settings: SessionSettings, environ: Mapping[str, str]) -> None:
    connect = {
        "spark.master": settings.master.startswith("sc://"),
        "SPARK_REMOTE": "SPARK_REMOTE" in environ,
        "SPARK_CONNECT_MODE_ENABLED": "SPARK_CONNECT_MODE_ENABLED" in environ,
    }
    for name, asked in connect.items():
        if asked:
            raise ConfigError(
                f"{name} asks for Spark Connect, which cannot run pipelines", hint=_HOW
            )
    if not re.match(r"local($|\[|-cluster\[)|spark://|k8s://|yarn$", settings.master):
        raise ConfigError(
            f"{settings.master!r} is not a Spark master",
            hint="use one like local[*], local[4], spark://host:7077, k8s://..., or yarn",
        )
    _check_conf(settings)


def _check_conf(settings: SessionSettings) -> None:
    if _texts(settings.conf).get(SUBSTITUTE, "false").strip().lower() != "false":
        raise ConfigError(
            f"the Spark setting {SUBSTITUTE} cannot be set in conf: it would put environment "
            f"variables into queries",
            hint="leave it out; stepwell.yml itself supports ${NAME}",
        )
    for key, value in row_order.REQUIRED.items():
        if _texts(settings.conf).get(key, value).strip().lower() != value:
            raise ConfigError(
                f"the Spark setting {key} cannot be set in conf: replayed output is identical "
                f"only if it is {value}",
                hint="leave it out",
            )
    for key in settings.conf:
        if not key.startswith("spark."):
            raise ConfigError(
                f"the Spark setting {key!r} does not start with 'spark.', so Spark would ignore it",
                hint=f"for a setting of Hadoop write spark.hadoop.{key}",
            )
    owned = {
        "spark.master": "master",
        "spark.app.name": "name",
        "spark.driver.memory": "driver_memory",
    }
    for key, name in owned.items():
        if key in settings.conf:
            raise ConfigError(
                f"the Spark setting {key} cannot be set in conf",
                hint=f"give it as {name}, next to conf",
            )


def _check_same(running: SparkSession, settings: SessionSettings) -> None:
    """Check that the running Spark has these settings: one process cannot have two Sparks."""
    actual = dict(running.sparkContext.getConf().getAll())
    for key, wanted in _to_start_with(settings, os.environ).items():
        if key in KEPT or key.startswith("spark.hadoop.") or running.conf.isModifiable(key):
            continue
        found = actual.get(key, "")
        # Spark puts Java options of its own before the given ones.
        if found != wanted and not (key == JAVA_OPTIONS and found.endswith(wanted)):
            raise ConfigError(
                f"Spark runs in this process already, with {key}={found}, "
                f"and was asked for again with {key}={wanted}",
                hint="use that one: stepwell.open(..., spark=spark); or end it: spark.stop()",
            )


def _check_running(spark: object) -> None:
    """Check that this is a running classic session of the right version."""
    if not isinstance(spark, SparkSession):
        kind = f"{type(spark).__module__}.{type(spark).__qualname__}"
        if "pyspark.sql.connect" in kind:
            raise ConfigError(
                "this is a session of Spark Connect, which cannot run pipelines", hint=_HOW
            )
        raise ConfigError(f"expected a SparkSession, found {kind}", hint=_HOW)
    if _is_stopped(spark.sparkContext):
        raise ConfigError("the Spark session was stopped", hint="make a new one, or give none")
    if not spark.version.startswith(f"{SPARK}."):
        raise ConfigError(
            f"the Spark session is version {spark.version}, and Stepwell needs {SPARK}",
            hint="unset SPARK_HOME, or let it name a Spark of that version",
        )


def _not_started(
    settings: SessionSettings, java: Java, error: Exception, environ: Mapping[str, str]
) -> StepwellError:
    said = str(error)
    if isinstance(error, Py4JJavaError):
        said = str(error.java_exception.getMessage())
    what = f"Spark with master {settings.master} did not start: {said.splitlines()[0]}"
    home, arguments = environ.get("SPARK_HOME"), environ.get("PYSPARK_SUBMIT_ARGS")
    if "INVALID_DRIVER_MEMORY" in said:
        hint = f"give it more than {settings.driver_memory}: spark.driver_memory in stepwell.yml"
        return ConfigError(what, hint=hint)
    if isinstance(error, OSError) and home:
        return ConfigError(what, hint=f"SPARK_HOME is {home}, which is not a Spark; unset it")
    if "JAVA_GATEWAY_EXITED" in said:
        hint = f"its own output is above; Java is {java.program}, with {settings.driver_memory} "
        hint += "of memory (spark.driver_memory); see also: stepwell doctor"
        if arguments:
            hint = f"its own output is above; PYSPARK_SUBMIT_ARGS is {arguments!r}: unset it"
        return ConfigError(what, hint=hint)
    if _is_here(settings.master) or "Could not parse Master URL" in said:
        return ConfigError(what, hint="check the settings master and conf under spark")
    if "stopped SparkContext" in said:
        what = f"the Spark master {settings.master} does not answer, or refuses"
    return UnavailableError(what, hint="is that cluster running, and can this machine reach it?")


def _texts(conf: Mapping[str, Value]) -> dict[str, str]:
    return {key: text_of(value) for key, value in conf.items()}


def _temporary_directory() -> str:
    # Spark creates this directory, by default in the current one; nothing is written to it.
    directory = tempfile.mkdtemp(prefix="stepwell-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory).as_uri()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Preserve the caller's handler for interrupts, which Spark replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        # Python's default handler only raises; Spark's also cancels the jobs, so Spark's may stay.
        if before is not None and before is not signal.default_int_handler:
            with suppress(ValueError):
                signal.signal(signal.SIGINT, before)


_HOW = "make one with SparkSession.builder.master(...), without remote(...) and SPARK_REMOTE"
