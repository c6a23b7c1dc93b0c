"""Who has the pipeline of a project: the way to it, without getting in anybody's way.

Of the processes on this machine the one that runs the pipeline answers at its endpoint. If none
answers, the manifest says who claimed the pipeline last, and whether that writer left in good
order; only if nobody can be at work any more may a command open the pipeline itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from stepwell.deploy.holding import writer_liveness
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.project import Project
from stepwell.endpoint.client import Client, connect
from stepwell.engine.ports import BadRow, Change
from stepwell.env import Env
from stepwell.errors import ConflictError, FencedError
from stepwell.model import Claim, Transaction, format_time
from stepwell.process import Liveness
from stepwell.state.manifest import Manifests, Stored

_WAIT_S = 10.0
"""How long a process that has the pipeline, and is perhaps starting, is waited for."""


def running(project: Project, env: Env) -> Client | None:
    """The process that runs the project's pipeline on this machine, if one does."""
    return connect(project.open_store(env).uri)


def latest(project: Project, env: Env) -> Stored | None:
    """The latest manifest; None: there is no pipeline yet."""
    return Manifests(project.open_store(env), env).latest()


class Reach:
    """A pipeline to work on: of the process that runs it, or else opened here."""

    def __init__(self, project: Project, env: Env, *, take_over: bool) -> None:
        self._project = project
        self._env = env
        self._take_over = take_over
        self._own: ProjectPipeline | None = None

    def push(self, table: str, change: Change, bad: Sequence[BadRow]) -> Transaction:
        """Durable when it returns."""
        goes = {"delete": change.delete, "discard": change.discard}
        while True:
            try:
                if self._own is None:
                    client = self._client()
                    if client is not None:
                        with client:
                            return client.push(table, change.put, **goes, bad=bad)
                    self._own = ProjectPipeline(self._project, self._env)
                return self._own.push(table, change.put, **goes, bad=bad)
            except FencedError:
                # For certain these rows were not taken. Whoever took over may take them.
                self.close()
                self._take_over = False

    def checkpoint(self, name: str | None, keep_s: float | None) -> str:
        """Take a checkpoint of everything there is; its id."""
        client = self._client()
        if client is not None:
            with client:
                return client.checkpoint(name, keep_s)
        with ProjectPipeline(self._project, self._env, create=False) as pipeline:
            ref = pipeline.checkpoint(name, keep_s=keep_s)
        return "" if ref is None else ref.id

    def compact(self, *, detach: bool = False) -> bool:
        """Whether there was anything to do."""
        client = self._client()
        if client is not None:
            with client:
                return client.compact(detach=detach)
        with ProjectPipeline(self._project, self._env, create=False) as pipeline:
            return pipeline.compact(detach=detach)

    def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def _client(self) -> Client | None:
        """Whom to ask; None if the pipeline may be opened here."""
        until = self._env.uptime() + _WAIT_S
        said = False
        while True:
            client = running(self._project, self._env)
            if client is not None:
                return client
            found = latest(self._project, self._env)
            if found is None or found.manifest.journal.closed or self._take_over:
                return None
            claim = found.manifest.claim
            alive = writer_liveness(claim, self._env)
            if alive is Liveness.DEAD:
                return None
            if alive is Liveness.UNKNOWN or self._env.uptime() > until:
                raise _held(self._project, claim, alive)
            if not said:
                print(f"waiting for process {claim.pid}, which has the pipeline", file=sys.stderr)
                said = True
            self._env.sleep(0.2)


def _held(project: Project, claim: Claim, alive: Liveness) -> ConflictError:
    since = f"has {project.store} since {format_time(claim.time)}"
    if alive is Liveness.UNKNOWN:
        return ConflictError(
            f"{claim.process} {since}, and did not say that it ended; it is on another machine or "
            "in another container, or this machine was started again",
            hint="push where it runs; or, if it does not run any more, add --take-over",
        )
    return ConflictError(
        f"process {claim.pid} {since}, and does not answer",
        hint="end it; or add --take-over, and it will be fenced",
    )
