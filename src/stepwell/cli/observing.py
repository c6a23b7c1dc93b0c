"""What reports a `run` to other systems: metrics, traces and lineage, each only if asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from stepwell import __version__
from stepwell.cli.pipeline_access import latest
from stepwell.cli.progress import Progress
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.program import as_deployed
from stepwell.deploy.project import Project
from stepwell.engine.events import Listener, all_of
from stepwell.env import Env

if TYPE_CHECKING:
    from stepwell.endpoint.open_lineage import Datasets, LineageEvents
    from stepwell.endpoint.prometheus import PrometheusMetrics
    from stepwell.endpoint.traces import Traces


class Observers:
    """Reporters of one run. The packages they need are imported only if they are asked for."""

    def __init__(
        self,
        project: Project,
        env: Env,
        progress: Progress,
        stack: ExitStack,
        *,
        metrics: str | None,
        traces: bool,
        lineage: bool,
        batch: bool,
    ) -> None:
        """Start what is asked for; `stack` ends it. Before the pipeline is claimed: an option that
        cannot be followed must not fence its writer.
        """
        self._project = project
        self._env = env
        self._progress = progress
        self.metrics = self._metrics(metrics, stack)
        self._traces = self._traced(stack) if traces else None
        self._lineage = self._reported(stack, batch) if lineage else None

    def listener(self, other: Listener) -> Listener | None:
        """A listener for the pipeline: `other`, and those of the reporters."""
        return all_of(other, self._traces, self._lineage)

    def follow(self, pipeline: ProjectPipeline) -> None:
        """Report the pipeline, which is open now."""
        if self.metrics is not None:
            self.metrics.follow(pipeline.status)
        if self._traces is not None:
            self._traces.follow(pipeline.profile)
        if self._lineage is not None:
            self._lineage.opened(self._datasets())

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Report how the run ends."""
        if self._lineage is None:
            yield
            return
        self._lineage.start()
        try:
            yield
        except BaseException as error:
            self._lineage.fail(str(getattr(error, "message", error)) or type(error).__name__)
            raise
        self._lineage.complete(self._datasets())

    def _datasets(self) -> Datasets:
        """The datasets of the deployed project; none, if they cannot be determined."""
        from stepwell.deploy.datasets import datasets_of
        from stepwell.endpoint.open_lineage import Datasets

        try:
            found = latest(self._project, self._env)
            if found is None:
                return datasets_of(self._project, None)
            manifest = found.manifest
            return datasets_of(as_deployed(self._project, manifest.program), manifest.described)
        except Exception as error:  # noqa: BLE001 - a report must not stop a pipeline
            self._progress.say(f"the datasets of the pipeline are not reported: {error}")
            return Datasets()

    def _metrics(self, address: str | None, stack: ExitStack) -> PrometheusMetrics | None:
        if address is None:
            return None
        from stepwell.endpoint.prometheus import MetricsServer, PrometheusMetrics, parse_address

        metrics = PrometheusMetrics(self._project.name)

        def failed(error: BaseException) -> None:
            self._progress.say(f"metrics are no longer served: {error}")

        server = MetricsServer(metrics, *parse_address(address), failed)
        stack.callback(server.close)
        self._progress.say(f"metrics at {server.url}")
        return metrics

    def _traced(self, stack: ExitStack) -> Traces:
        from stepwell.endpoint.traces import Traces, exported

        traces = Traces(self._project.name, exported(os.environ), self._env)
        stack.callback(traces.close)
        return traces

    def _reported(self, stack: ExitStack, batch: bool) -> LineageEvents:
        from stepwell.endpoint.open_lineage import LineageEvents

        events = LineageEvents(
            self._project.name,
            __version__,
            self._env,
            batch=batch,
            namespace=os.environ.get("OPENLINEAGE_NAMESPACE"),
            say=self._progress.say,
        )
        stack.callback(events.close)
        self._progress.say(f"lineage events to {events.transport}")
        return events
