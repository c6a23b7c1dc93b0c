"""OpenLineage events of a `run`: START, RUNNING, and COMPLETE or FAIL, with datasets and columns.

    START       before the pipeline is opened
    RUNNING     once it is open, and at most once a minute while it commits; names all datasets
    COMPLETE    at its end, with the number of rows that each sink received
    FAIL        with the message of the error, whether the pipeline could be opened or not

The columns of a view come with the columns they are computed from (DIRECT), and the view with the
columns that decide which rows it has (INDIRECT): conditions, joins and groupings. Both follow from
the typed plans (`sql/lineage.py`).

Events are sent by a thread of their own, and what cannot be sent is reported once and dropped: a
lineage server that is down must not stop a pipeline. The client is configured as its documentation
says: `OPENLINEAGE_URL`, `OPENLINEAGE_CONFIG`, `openlineage.yml`, `OPENLINEAGE_NAMESPACE`.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stepwell import threads
from stepwell.engine.events import Committed, Event, Published
from stepwell.env import Env, ulid_number
from stepwell.errors import ConfigError

try:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import (
        InputDataset,
        Job,
        OutputDataset,
        Run,
        RunEvent,
        RunState,
    )
    from openlineage.client.facet_v2 import (
        DatasetFacet,
        OutputDatasetFacet,
        RunFacet,
        column_lineage_dataset,
        error_message_run,
        job_type_job,
        output_statistics_output_dataset,
        processing_engine_run,
        schema_dataset,
    )
except ImportError as error:
    raise ConfigError(
        "lineage events need openlineage-python, which is not installed",
        hint="pip install 'stepwell[lineage]'",
    ) from error

EVERY_S = 60.0
"""Shortest time between two RUNNING events."""
_SEND_S_MAX = 10.0
"""Longest wait for events that are being sent when the process ends."""
_NAMESPACE = "stepwell"
_PRODUCER = "https://pypi.org/project/stepwell"


@dataclass(frozen=True, slots=True)
class Dataset:
    """Data outside of the pipeline, or one of its relations, by the names that OpenLineage uses."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ColumnRead:
    """A column of another dataset."""

    dataset: Dataset
    column: str


@dataclass(frozen=True, slots=True)
class DescribedColumn:
    name: str
    type: str | None = None
    """Its type in Spark SQL; None if unknown."""
    reads: tuple[ColumnRead, ...] = ()
    """The columns that its values are computed from."""
    passed_on: bool = False
    """Whether its values are those of the one column that it reads."""


@dataclass(frozen=True, slots=True)
class DescribedDataset:
    dataset: Dataset
    columns: tuple[DescribedColumn, ...]
    rows_from: tuple[ColumnRead, ...] = ()
    """The columns that decide which rows it has."""
    traced: bool = False
    """Whether what its columns read is known."""
    sink: str | None = None
    """The sink that writes it."""


@dataclass(frozen=True, slots=True)
class Datasets:
    inputs: tuple[DescribedDataset, ...] = ()
    outputs: tuple[DescribedDataset, ...] = ()


class LineageEvents:
    """Reports one run. A listener of its pipeline, called from any thread."""

    def __init__(
        self,
        pipeline: str,
        version: str,
        env: Env,
        *,
        batch: bool,
        namespace: str | None = None,
        client: OpenLineageClient | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._client = client or OpenLineageClient()
        self._env = env
        self._say = say
        self._job = Job(
            namespace or _NAMESPACE,
            pipeline,
            {
                "jobType": job_type_job.JobTypeJobFacet(
                    "BATCH" if batch else "STREAMING", "STEPWELL", "PIPELINE", producer=_PRODUCER
                )
            },
        )
        self._run = run_id(env.new_id())
        self._engine = processing_engine_run.ProcessingEngineRunFacet(
            version, "Stepwell", producer=_PRODUCER
        )
        self._datasets = Datasets()
        self._lock = threading.Lock()
        self._rows: Counter[str] = Counter()
        self._told_at = env.uptime()
        self._failed = False
        self._queue: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._thread = threads.start("stepwell-lineage", self._send, failed=self._broken)

    @property
    def transport(self) -> str:
        """Where events go, for messages."""
        url = getattr(self._client.transport, "url", None)
        return f"{self._client.transport.kind}" + (f" {url}" if url else "")

    def start(self) -> None:
        """The run begins."""
        self._emit(RunState.START)

    def opened(self, datasets: Datasets) -> None:
        """The pipeline is open, and these are its datasets."""
        self._datasets = datasets
        self._emit(RunState.RUNNING)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Published):
            with self._lock:
                self._rows[event.sink] += event.rows
        elif isinstance(event, Committed) and self._datasets.outputs:
            now = self._env.uptime()
            if now - self._told_at >= EVERY_S:
                self._told_at = now
                self._emit(RunState.RUNNING)

    def complete(self, datasets: Datasets | None = None) -> None:
        """The run has ended; a deploy may have changed its datasets."""
        self._datasets = datasets or self._datasets
        self._emit(RunState.COMPLETE)

    def fail(self, message: str) -> None:
        """The run has ended with an error."""
        fault = error_message_run.ErrorMessageRunFacet(message, "PYTHON", producer=_PRODUCER)
        self._emit(RunState.FAIL, {"errorMessage": fault})

    def close(self) -> None:
        """Send what was not sent yet, for a while."""
        self._queue.put(None)
        self._thread.join(_SEND_S_MAX)
        if self._thread.is_alive():
            self._broken(TimeoutError("no answer"))
        else:
            self._client.close(_SEND_S_MAX)

    def _emit(self, state: RunState, more: Mapping[str, RunFacet] | None = None) -> None:
        with self._lock:
            rows = dict(self._rows)
        facets: dict[str, RunFacet] = {"processing_engine": self._engine, **(more or {})}
        self._queue.put(
            RunEvent(
                eventTime=self._env.now().isoformat(),
                producer=_PRODUCER,
                eventType=state,
                run=Run(self._run, facets),
                job=self._job,
                inputs=[
                    InputDataset(item.dataset.namespace, item.dataset.name, facets=_facets(item))
                    for item in self._datasets.inputs
                ],
                outputs=[_output(item, rows) for item in self._datasets.outputs],
            )
        )

    def _send(self) -> None:
        while True:
            event = self._queue.get()
            if event is None:
                return
            try:
                self._client.emit(event)
            except Exception as error:  # noqa: BLE001 - a transport may raise anything
                self._broken(error)

    def _broken(self, error: BaseException) -> None:
        if not self._failed:
            self._failed = True
            self._say(f"lineage events cannot be sent: {error}")


def run_id(id: str) -> str:
    """A ULID as a UUID of version 7, which also begins with the time.

    >>> run_id("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    '01563e3a-b5d3-7676-8c61-efb99302bd5b'
    """
    number = ulid_number(id)
    number = number & ~(0xF << 76) | 0x7 << 76
    text = f"{number & ~(0x3 << 62) | 0x2 << 62:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _output(item: DescribedDataset, rows: Mapping[str, int]) -> OutputDataset:
    counted: dict[str, OutputDatasetFacet] = {}
    if item.sink is not None:
        number = rows.get(item.sink, 0)
        counted["outputStatistics"] = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=number, producer=_PRODUCER
            )
        )
    return OutputDataset(item.dataset.namespace, item.dataset.name, counted, facets=_facets(item))


def _facets(item: DescribedDataset) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {
        "schema": schema_dataset.SchemaDatasetFacet(
            [
                schema_dataset.SchemaDatasetFacetFields(column.name, column.type)
                for column in item.columns
            ],
            producer=_PRODUCER,
        )
    }
    if item.traced:
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(
            {
                column.name: column_lineage_dataset.Fields(
                    [
                        _input(read, "DIRECT", "IDENTITY" if column.passed_on else "TRANSFORMATION")
                        for read in column.reads
                    ]
                )
                for column in item.columns
            },
            [_input(read, "INDIRECT", None) for read in item.rows_from],
            producer=_PRODUCER,
        )
    return facets


def _input(read: ColumnRead, type: str, subtype: str | None) -> column_lineage_dataset.InputField:
    how = column_lineage_dataset.Transformation(type, subtype)
    return column_lineage_dataset.InputField(
        read.dataset.namespace, read.dataset.name, read.column, [how]
    )
