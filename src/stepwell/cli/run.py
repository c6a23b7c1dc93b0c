"""`stepwell run`: the ingest loop of a pipeline in this process, until it is asked to end.

Ctrl-C and SIGTERM let the current transaction finish, flush, and end with exit code 130. A second
signal ends the process at once, which is no worse than a crash. Meanwhile the endpoint answers
other processes. A background thread checks periodically whether another writer has taken over: an
idle pipeline would notice only with its next transaction.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType

from stepwell import threads
from stepwell.cli.observing import Observers
from stepwell.cli.pipeline_access import find_holder, latest
from stepwell.cli.progress import Progress
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Screen
from stepwell.deploy.last_error import note_error
from stepwell.deploy.liveness import writer_liveness
from stepwell.deploy.program import as_deployed, project_differences
from stepwell.deploy.project import Project
from stepwell.deploy.serving import RunningPipeline
from stepwell.deploy.unmatched import unmatched_sources
from stepwell.endpoint.server import Endpoint
from stepwell.engine.events import (
    Checkpointed,
    Committed,
    Event,
    Flushed,
    Listener,
    OpeningAt,
    RolledBack,
    TransactionAt,
    Working,
)
from stepwell.engine.open import Seen
from stepwell.env import Env, SystemEnv
from stepwell.errors import (
    ClaimedError,
    ConflictError,
    FencedError,
    StepwellError,
    UnavailableError,
)
from stepwell.manifest.manifest import Manifests, Stored, fenced
from stepwell.process import Liveness
from stepwell.store.patient import impatient

INTERRUPTED = 130
_WATCH_S = 2.0
_LOOK_S = 0.2
_PROGRESS = (Checkpointed, Committed, Flushed, OpeningAt, RolledBack, TransactionAt, Working)
"""Events that show waiting clients that the process does not hang."""


def show(
    where: ProjectOptions,
    *,
    once: bool,
    max_transactions: int | None,
    take_over: bool = False,
    skip_expired: bool = False,
    metrics: str | None = None,
    traces: bool = False,
    lineage: bool = False,
) -> int:
    """Run the pipeline and report how it ended; return the exit code."""
    env = SystemEnv()
    wanted = replace(where.project(env), skip_expired=skip_expired)
    progress = Progress(env, json=where.json)
    with signals() as caught, progress, ExitStack() as stack:
        observers = Observers(
            wanted,
            env,
            progress,
            stack,
            metrics=metrics,
            traces=traces,
            lineage=lineage,
            batch=once or max_transactions is not None,
        )
        stack.enter_context(observers.reporting())
        try:
            pipeline, endpoint = _open(wanted, env, progress, where, take_over, observers)
        except StepwellError as error:
            note_error(wanted.open_store(env), env, error)
            raise
        if endpoint is not None:
            stack.callback(endpoint.close)
        with pipeline:
            observers.follow(pipeline)
            caught.stop = pipeline.stop
            if caught.name is None:
                _serve(
                    pipeline,
                    endpoint,
                    env,
                    progress,
                    caught,
                    once=once,
                    max_transactions=max_transactions,
                )
    progress.end()
    if where.json:
        ended = {"transaction": progress.transaction, "transactions": progress.transactions}
        Screen().json({**ended, "interrupted": caught.name})
    return 0 if caught.name is None else INTERRUPTED


def _open(
    wanted: Project,
    env: Env,
    progress: Progress,
    where: ProjectOptions,
    take_over: bool,
    observers: Observers,
) -> tuple[RunningPipeline, Endpoint | None]:
    """Open the pipeline, and its endpoint, which is reachable while the pipeline is still opening.

    If several processes start at once, one succeeds, and the others detect it.
    """
    until = env.uptime() + where.timeout_s
    while True:
        found = _free(wanted, env, where.timeout_s, take_over)
        endpoint: Endpoint | None = None
        with ExitStack() as unless_open:
            try:
                endpoint = _endpoint(wanted, env, progress, take_over)
                if endpoint is not None:
                    unless_open.callback(endpoint.close)
                if where.starting is not None:
                    where.starting.close()  # From now on, this process can be reached.
                project = _announced(wanted, env, progress, found)
                seen = Seen(None if found is None else found.manifest.claim)
                pipeline = RunningPipeline(
                    project,
                    env,
                    listener=observers.listener(_listener(progress, endpoint)),
                    metrics=observers.metrics,
                    seen=None if take_over else seen,
                )
            except ClaimedError:
                if env.uptime() > until:
                    raise
                env.sleep(_LOOK_S)  # The faster process may be a push, which ends soon.
                continue
            unless_open.pop_all()
            return pipeline, endpoint


def _free(project: Project, env: Env, timeout_s: float, take_over: bool) -> Stored | None:
    """Return the manifest if the pipeline is free; `ConflictError` if a process runs it."""
    if take_over:
        found = latest(project, env)
    else:
        client, found = find_holder(
            project, env, take_over=False, timeout_s=timeout_s, starting=False
        )
        if client is not None:
            client.close()
            does = "runs" if client.opening is None else "is opening"
            raise ConflictError(
                f"process {client.pid} {does} the pipeline in {project.store}",
                hint="ask it: stepwell status; or add --take-over, and it will be fenced",
            )
    return found


def _endpoint(project: Project, env: Env, progress: Progress, take_over: bool) -> Endpoint | None:
    try:
        return Endpoint(None, project.open_store(env).uri, env, take_over=take_over)
    except UnavailableError as error:
        # Other processes will see that the pipeline is held; that is not worth stopping for.
        progress.say(f"other processes cannot connect to this one: {error.message}")
        return None


def _listener(progress: Progress, endpoint: Endpoint | None) -> Listener:
    def listen(event: Event) -> None:
        if endpoint is not None:
            if isinstance(event, OpeningAt):
                endpoint.report_opening(event.stage, event.percent)
            if isinstance(event, _PROGRESS):
                endpoint.report_progress()
        progress(event)

    return listen


def _announced(wanted: Project, env: Env, progress: Progress, found: Stored | None) -> Project:
    """Return the project as it is deployed, and report differences and warnings."""
    project = wanted
    if found is None or found.manifest.program is None:
        progress.say("nothing is deployed yet: this run deploys the project")
    else:
        project = as_deployed(wanted, found.manifest.program)
        differs = project_differences(wanted, found.manifest.program)
        if differs:
            progress.say(
                f"the project differs from what is deployed ({', '.join(differs)}): running the "
                f"deployed version; stepwell deploy applies the changes"
            )
    for warning in unmatched_sources(project, env):
        progress.say(f"warning: {warning.message}: {warning.hint}")
    progress.say_opening(project)
    if found is not None and not found.manifest.journal.closed:
        claim = found.manifest.claim
        if writer_liveness(claim, env) is not Liveness.DEAD:
            progress.say(f"{claim.process} holds the pipeline, or held it: taking it over")
    off = project.sinks_off(env)
    if off:
        progress.say(f"sinks turned off, because they belong to the parent: {', '.join(off)}")
    return project


def _serve(
    pipeline: RunningPipeline,
    endpoint: Endpoint | None,
    env: Env,
    progress: Progress,
    caught: Caught,
    *,
    once: bool,
    max_transactions: int | None,
) -> None:
    progress.look = pipeline.status

    def tick() -> None:
        # Not in the signal handler: the signal may interrupt the thread that holds the screen's
        # lock.
        if caught.name is not None:
            progress.say_ending()
        progress.tick()

    watch = Watch(pipeline, env, tick)
    try:
        progress.say_running(endless=not once and max_transactions is None)
        if endpoint is not None:
            endpoint.serve(pipeline, pipeline.fail)
        pipeline.run(once=once, max_transactions=max_transactions)
        progress.note_waiting()
    finally:
        watch.close()
        if endpoint is not None:
            endpoint.close()
    if watch.error is not None:
        raise watch.error


class Caught:
    """The signal that asked the process to end, if any."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.stop: Callable[[], None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        first, self.name = self.name is None, signal.Signals(number).name
        if self.stop is None:
            raise KeyboardInterrupt
        if not first:
            os._exit(INTERRUPTED)
        self.stop()


@contextmanager
def signals() -> Iterator[Caught]:
    """End cleanly on Ctrl-C and SIGTERM."""
    caught = Caught()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.signal(number, caught) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Watch:
    """Periodically checks in the store which writer has the pipeline."""

    def __init__(
        self,
        pipeline: RunningPipeline,
        env: Env,
        tick: Callable[[], None],
    ) -> None:
        self.error: FencedError | None = None
        self._pipeline = pipeline
        # Impatient, or nothing would be reported during an outage.
        self._manifests = Manifests(impatient(pipeline.store), env)
        self._epoch = pipeline.status().epoch
        self._tick = tick
        self._end = threading.Event()
        self._thread = threads.start("stepwell-watch", self._run, failed=pipeline.fail)

    def look(self) -> bool:
        """Return whether another writer has the pipeline."""
        try:
            found = self._manifests.latest()
        except StepwellError:
            return False  # A store that does not answer proves nothing.
        if found is None or found.epoch < self._epoch:
            return False
        claim = found.manifest.claim
        # After a deploy this handle has claimed the pipeline again. Hosts and pids prove nothing: a
        # container has the host's name, and numbers its processes from 1.
        if claim.writer == self._pipeline.writer_id:
            self._epoch = found.epoch
        else:
            self.error = fenced(
                self._pipeline.store.uri, claim, "this process accepts no more input"
            )
        return self.error is not None

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(_WATCH_S / 2):
            self._tick()
            if self._end.wait(_WATCH_S / 2):
                return
            if self.look():
                self._pipeline.stop()
                return
