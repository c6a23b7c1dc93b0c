"""Stepwell keeps SQL materialized views up to date on Apache Spark.

    import stepwell

    with stepwell.open("examples/orders") as pipeline:
        pipeline.push("orders", [{"id": 1, "customer": "ada", "amount": 12}])
        pipeline.query("SELECT * FROM revenue").to_pandas()

Importing the package is cheap on purpose: nothing heavy is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from stepwell.deploy.pipeline import ProjectPipeline, SparkSession
    from stepwell.endpoint.client import Client
    from stepwell.env import Env

__version__ = "0.1.0"


def open(
    project: str | os.PathLike[str],
    *,
    target: str | None = None,
    store: str | None = None,
    spark: SparkSession | None = None,
    env: Env | None = None,
) -> ProjectPipeline:
    """Open the pipeline of a project, the folder with stepwell.yml; use it in a `with`.

    The first opening creates it. Instead of a folder it may be the address of a store, `s3://...`
    or `file://...`: then what is deployed there is opened. Opening is for writing, and one process
    at a time can: whoever had the pipeline is fenced. `target` and `store` are what `--target` and
    `--store` are on the command line; `spark` is a session of yours to be used instead of one of
    ours.
    """
    from stepwell.deploy.open import open_pipeline

    return open_pipeline(project, target=target, store=store, spark=spark, env=env)


def connect(
    project: str | os.PathLike[str],
    *,
    target: str | None = None,
    store: str | None = None,
    timeout_s: float = 30.0,
) -> Client:
    """Connect to the process on this machine that runs a project's pipeline; use it in a `with`.

    For pushing, explicit transactions and queries beside `stepwell run`: nobody is fenced.
    `UnavailableError` if no process runs it. Instead of a folder it may be the address of a store.
    """
    from stepwell.deploy.open import connect_running

    return connect_running(project, target=target, store=store, timeout_s=timeout_s)
