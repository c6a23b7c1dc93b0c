"""Incremental SQL materialized views on Apache Spark.

    import stepwell

    with stepwell.open("examples/orders") as pipeline:
        pipeline.push("orders", [{"id": 1, "customer": "ada", "amount": 12}])
        pipeline.query("SELECT * FROM revenue").to_pandas()

Importing the package is cheap on purpose: heavy modules are loaded on first use.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from stepwell.errors import (
    BugError,
    BuildError,
    CheckpointMissing,
    ClaimedError,
    CollectedError,
    ConfigError,
    ConflictError,
    CorruptError,
    ExecutorLostError,
    FencedError,
    InvalidError,
    JournalStoreMismatch,
    RejectedError,
    ReplayMismatchError,
    SnapshotExpiredError,
    SqlError,
    StepwellError,
    TruncatedError,
    UnavailableError,
    UnknownOutcomeError,
    UserCodeError,
)

if TYPE_CHECKING:
    import os

    from stepwell.deploy.pipeline import ProjectPipeline as Pipeline
    from stepwell.deploy.snapshot import Snapshot
    from stepwell.endpoint.client import Client
    from stepwell.engine.answer import Answer
    from stepwell.engine.explicit import ExplicitTransaction as Transaction
    from stepwell.engine.metrics import Metrics
    from stepwell.engine.profile import Profile
    from stepwell.engine.pushed import Receipt
    from stepwell.engine.status import Status
    from stepwell.env import Env
    from stepwell.execution.spark.dataframe import SparkSession

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "BugError",
    "BuildError",
    "CheckpointMissing",
    "ClaimedError",
    "Client",
    "CollectedError",
    "ConfigError",
    "ConflictError",
    "CorruptError",
    "ExecutorLostError",
    "FencedError",
    "InvalidError",
    "JournalStoreMismatch",
    "Metrics",
    "Pipeline",
    "Profile",
    "Receipt",
    "RejectedError",
    "ReplayMismatchError",
    "Snapshot",
    "SnapshotExpiredError",
    "SqlError",
    "Status",
    "StepwellError",
    "Transaction",
    "TruncatedError",
    "UnavailableError",
    "UnknownOutcomeError",
    "UserCodeError",
    "connect",
    "open",
    "read",
]

_LAZY = {
    "Answer": ("stepwell.engine.answer", "Answer"),
    "Client": ("stepwell.endpoint.client", "Client"),
    "Metrics": ("stepwell.engine.metrics", "Metrics"),
    "Pipeline": ("stepwell.deploy.pipeline", "ProjectPipeline"),
    "Profile": ("stepwell.engine.profile", "Profile"),
    "Receipt": ("stepwell.engine.pushed", "Receipt"),
    "Snapshot": ("stepwell.deploy.snapshot", "Snapshot"),
    "Status": ("stepwell.engine.status", "Status"),
    "Transaction": ("stepwell.engine.explicit", "ExplicitTransaction"),
}
"""The module of each class that is imported on first use."""

# A library is silent unless the application configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> type:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found: type = getattr(importlib.import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def open(
    project: str | os.PathLike[str],
    *,
    target: str | None = None,
    store: str | None = None,
    spark: SparkSession | None = None,
    env: Env | None = None,
    metrics: Metrics | None = None,
) -> Pipeline:
    """Open the pipeline of a project for writing; use it in a `with`.

    `project` is the folder with `stepwell.yml`, or the address (`s3://...` or `file://...`) of a
    store to which the project was deployed. The first open creates the pipeline. Only one process
    can write at a time: opening a pipeline fences its previous writer. `target` and `store`
    correspond to `--target` and `--store` on the command line. `spark` is a session to use instead
    of one that Stepwell starts. `metrics` receives measurements. `env` is for tests that drive the
    clock.
    """
    from stepwell.deploy.open import open_pipeline

    return open_pipeline(project, target=target, store=store, spark=spark, env=env, metrics=metrics)


def read(
    project: str | os.PathLike[str],
    *,
    target: str | None = None,
    store: str | None = None,
    spark: SparkSession | None = None,
    env: Env | None = None,
) -> Snapshot:
    """Read a pipeline as of its last transaction, whether or not a process is running it.

    Reading claims nothing and writes nothing, so it does not disturb a writer. `project` is a
    folder or the address of a store, as for `open`; the deployed program is read. Raises
    `InvalidError` if the pipeline does not exist yet.
    """
    from stepwell.deploy.open import read_pipeline

    return read_pipeline(project, target=target, store=store, spark=spark, env=env)


def connect(
    project: str | os.PathLike[str],
    *,
    target: str | None = None,
    store: str | None = None,
    timeout_s: float = 30.0,
) -> Client:
    """Connect to the process on this machine that runs a pipeline; use it in a `with`.

    The client pushes rows, runs explicit transactions and queries while `stepwell run` continues;
    it fences no writer. `project` is a folder or the address of a store, as for `open`. Raises
    `UnavailableError` if no process is running the pipeline.
    """
    from stepwell.deploy.open import connect_running

    return connect_running(project, target=target, store=store, timeout_s=timeout_s)
