"""Access to the pipeline of a project: through the process that runs it, or opened here.

The process on this machine that runs the pipeline answers at its endpoint. If none answers, the
manifest names the last process that claimed the pipeline, and tells whether that writer closed it
properly. A command may open the pipeline itself only if no process can be using it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from stepwell.cli.progress import LongWork
from stepwell.deploy.liveness import seen_of, writer_liveness
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.project import Project
from stepwell.endpoint.client import TIMEOUT_S, Client, Opening, connect
from stepwell.endpoint.starting import wait_for_starting
from stepwell.endpoint.transactions import RemoteTransaction
from stepwell.endpoint.wire import Silent
from stepwell.engine.explicit import ExplicitTransaction
from stepwell.engine.open import Seen
from stepwell.engine.pushed import Receipt
from stepwell.env import Env
from stepwell.errors import (
    ClaimedError,
    ConflictError,
    FencedError,
    RejectedError,
    StepwellError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import BadRow
from stepwell.manifest.manifest import Manifests, Stored
from stepwell.model import Claim, format_time
from stepwell.process import Liveness

_LOOK_S = 0.2


def running(project: Project, env: Env, timeout_s: float = TIMEOUT_S) -> Client | None:
    """Connect to the process on this machine that runs or opens the project's pipeline, if any."""
    client = connect(project.open_store(env).uri, timeout_s)
    if client is not None:
        client.on_opening = OpeningReporter(client.pid)
    return client


def latest(project: Project, env: Env) -> Stored | None:
    """Return the latest manifest; None if there is no pipeline yet."""
    return Manifests(project.open_store(env), env).latest()


def find_holder(
    project: Project, env: Env, *, take_over: bool, timeout_s: float, starting: bool = True
) -> tuple[Client | None, Stored | None]:
    """Return the process to ask, or None if the pipeline may be opened here; and the manifest.

    Waits for a `run` that is `starting`, and for a process that holds the pipeline but has no
    endpoint, such as a push. Raises `ConflictError` if the latter does not finish in time, or if
    its liveness is unknown. `take_over` ignores both.
    """
    if starting:
        wait_for_starting(project.folder, env, timeout_s, say)
    until = env.uptime() + timeout_s
    said = False
    while True:
        try:
            client = running(project, env, timeout_s)
        except UnavailableError:
            if not take_over:
                raise
            client = None
        found = latest(project, env)
        if client is not None:
            return client, found
        if found is None or found.manifest.journal.closed or take_over:
            return None, found
        claim = found.manifest.claim
        alive = writer_liveness(claim, env)
        if alive is Liveness.DEAD:
            return None, found
        if alive is Liveness.UNKNOWN or env.uptime() > until:
            raise held(project, claim, alive)
        if not said:
            print(f"waiting for process {claim.pid}, which holds the pipeline", file=sys.stderr)
            said = True
        env.sleep(_LOOK_S)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class OpeningReporter:
    """Reports now and then the progress of a process that opens the pipeline."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._told = -1

    def __call__(self, opening: Opening) -> None:
        percent = int(opening["percent"])
        if percent >= self._told + 10 or self._told < 0:
            self._told = percent
            text = opening_text(self._pid, opening)
            print(f"waiting: {text}", file=sys.stderr, flush=True)


def opening_text(pid: int | None, opening: Opening) -> str:
    return f"process {pid} is opening the pipeline, {opening['stage']}, {opening['percent']} %"


class PipelineAccess:
    """A pipeline to work on: in the process that runs it, or opened here."""

    def __init__(
        self, project: Project, env: Env, *, take_over: bool, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._project = project
        self._env = env
        self._take_over = take_over
        self._timeout_s = timeout_s
        self._own: ProjectPipeline | None = None
        self._new = False
        """Whether nothing was deployed at the last look."""

    def push(
        self, table: str, change: Change, bad: Sequence[BadRow], key: str | None = None
    ) -> Receipt:
        """Push durably. With a key, the push is repeated once if the other process has gone."""
        try:
            return self._push(table, change, bad, key)
        except UnknownOutcomeError as unknown:
            once = key is None or self._own is not None
            if once or isinstance(unknown.__cause__, Silent):
                raise
            try:
                return self._push(table, change, bad, key)
            except RejectedError:
                raise  # An answer: the first push was not applied, or was rejected as well.
            except StepwellError:
                raise unknown from None  # The first push may be in, whatever the second one did.

    def _push(self, table: str, change: Change, bad: Sequence[BadRow], key: str | None) -> Receipt:
        goes = {"delete": change.delete, "discard": change.discard}
        while True:
            try:
                if self._own is None:
                    client, seen = self._client()
                    if client is not None:
                        with client:
                            return client.push(table, change.put, **goes, bad=bad, key=key)
                    self._own = self._open(seen, create=True)
                return self._own.push(table, change.put, **goes, bad=bad, key=key)
            except ClaimedError:
                continue  # Nothing was changed. Ask the process that was faster.
            except FencedError:
                # These rows were certainly not applied. The process that took over may commit them.
                self.close()
                self._take_over = False

    @contextmanager
    def transaction(self, key: str) -> Iterator[RemoteTransaction | ExplicitTransaction]:
        """Begin an explicit transaction, which is rolled back unless the body commits it."""
        while True:
            client, seen = self._client()
            if client is not None:
                with client, client.transaction(key=key) as remote:
                    yield remote
                return
            try:
                pipeline = self._open(seen, create=True)
            except ClaimedError:
                continue  # Nothing was changed. Ask the process that was faster.
            with pipeline, pipeline.transaction(key=key) as own:
                yield own
            return

    def checkpoint(self, name: str | None, keep_s: float | None) -> str:
        """Take a checkpoint of the current state; return its id."""
        while True:
            client, seen = self._client()
            if client is not None:
                with client:
                    return client.checkpoint(name, keep_s=keep_s)
            with suppress(ClaimedError), self._open(seen) as pipeline:
                ref = pipeline.checkpoint(name, keep_s=keep_s)
                return "" if ref is None else ref.id

    def compact(self, *, detach: bool = False) -> bool:
        """Compact the runs; return False if there was nothing to compact."""
        while True:
            client, seen = self._client()
            if client is not None:
                with client:
                    return client.compact(detach=detach)
            with suppress(ClaimedError), self._open(seen) as pipeline:
                return pipeline.compact(detach=detach)

    def _open(self, seen: Seen, *, create: bool = False) -> ProjectPipeline:
        if create and self._new:
            # A store that was moved away, or is not mounted, looks like this, too.
            store = self._project.store
            say(f"nothing is deployed yet in {store}: this command deploys the project")
        return ProjectPipeline(
            self._project, self._env, create=create, seen=seen, listener=LongWork(self._env)
        )

    def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def _client(self) -> tuple[Client | None, Seen]:
        """Return the process to ask, if any, and the `Seen` for opening the pipeline here."""
        client, found = find_holder(
            self._project, self._env, take_over=self._take_over, timeout_s=self._timeout_s
        )
        claim = None if found is None else found.manifest.claim
        self._new = found is None or found.manifest.program is None
        if self._take_over:
            return client, Seen(claim)
        return client, seen_of(claim, self._project.open_store(self._env).uri)


def held(project: Project, claim: Claim, alive: Liveness) -> ConflictError:
    since = f"has held {project.store} since {format_time(claim.time)}"
    if alive is Liveness.UNKNOWN:
        return ConflictError(
            f"{claim.process} {since}, and did not report its end; it is on another machine or in "
            f"another container, or this machine was restarted",
            hint="push where it runs; or, if it is no longer running, add --take-over",
        )
    return ConflictError(
        f"process {claim.pid} {since}, and does not answer",
        hint="stop it; or add --take-over, and it will be fenced",
    )
