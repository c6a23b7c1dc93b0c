"""Who has the pipeline of a project: the way to it, without getting in anybody's way.

Of the processes on this machine the one that runs the pipeline answers at its endpoint. If none
answers, the manifest says who claimed the pipeline last, and whether that writer left in good
order; only if nobody can be at work any more may a command open the pipeline itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from stepwell.cli.progress import LongWork
from stepwell.deploy.holding import seen_of, writer_liveness
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.project import Project
from stepwell.endpoint.client import TIMEOUT_S, Client, Opening, connect
from stepwell.endpoint.transactions import RemoteTransaction
from stepwell.endpoint.wire import Silent
from stepwell.engine.explicit import ExplicitTransaction
from stepwell.engine.open import Seen
from stepwell.engine.ports import BadRow, Change
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
from stepwell.model import Claim, format_time
from stepwell.process import Liveness
from stepwell.state.manifest import Manifests, Stored

_LOOK_S = 0.2


def running(project: Project, env: Env, timeout_s: float = TIMEOUT_S) -> Client | None:
    """The process that runs the project's pipeline on this machine, or opens it, if one does."""
    client = connect(project.open_store(env).uri, timeout_s)
    if client is not None:
        client.on_opening = Said(client.pid)
    return client


def latest(project: Project, env: Env) -> Stored | None:
    """The latest manifest; None: there is no pipeline yet."""
    return Manifests(project.open_store(env), env).latest()


def find_holder(
    project: Project, env: Env, *, take_over: bool, timeout_s: float
) -> tuple[Client | None, Stored | None]:
    """Whom to ask; nobody, if the pipeline may be opened here as the manifest has it.

    One that has the pipeline and cannot be asked, a push say, is waited for; `ConflictError` if in
    vain, or if nobody can tell whether it is alive. `take_over`: neither is minded.
    """
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
            print(f"waiting for process {claim.pid}, which has the pipeline", file=sys.stderr)
            said = True
        env.sleep(_LOOK_S)


class Said:
    """Tells a person, now and then, how far a process is that opens the pipeline."""

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


class Reach:
    """A pipeline to work on: of the process that runs it, or else opened here."""

    def __init__(
        self, project: Project, env: Env, *, take_over: bool, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._project = project
        self._env = env
        self._take_over = take_over
        self._timeout_s = timeout_s
        self._own: ProjectPipeline | None = None

    def push(
        self, table: str, change: Change, bad: Sequence[BadRow], key: str | None = None
    ) -> Receipt:
        """Durable when it returns. With a key, it is sent once more if who was asked has gone."""
        try:
            return self._push(table, change, bad, key)
        except UnknownOutcomeError as unknown:
            once = key is None or self._own is not None
            if once or isinstance(unknown.__cause__, Silent):
                raise
            try:
                return self._push(table, change, bad, key)
            except RejectedError:
                raise  # That is an answer: the first one was not taken in, or rejected as well.
            except StepwellError:
                raise unknown from None  # The first one may be in, whatever became of this one.

    def _push(self, table: str, change: Change, bad: Sequence[BadRow], key: str | None) -> Receipt:
        goes = {"delete": change.delete, "discard": change.discard}
        while True:
            try:
                if self._own is None:
                    client, seen = self._client()
                    if client is not None:
                        with client:
                            return client.push(table, change.put, **goes, bad=bad, key=key)
                    self._own = self._opened(seen, create=True)
                return self._own.push(table, change.put, **goes, bad=bad, key=key)
            except ClaimedError:
                continue  # Nothing was changed. Whoever was faster is asked.
            except FencedError:
                # For certain these rows were not taken. Whoever took over may take them.
                self.close()
                self._take_over = False

    @contextmanager
    def transaction(self, key: str) -> Iterator[RemoteTransaction | ExplicitTransaction]:
        """An explicit transaction, rolled back unless it is committed in the body."""
        while True:
            client, seen = self._client()
            if client is not None:
                with client, client.transaction(key=key) as remote:
                    yield remote
                return
            try:
                pipeline = ProjectPipeline(self._project, self._env, seen=seen)
            except ClaimedError:
                continue  # Nothing was changed. Whoever was faster is asked.
            with pipeline, pipeline.transaction(key=key) as own:
                yield own
            return

    def checkpoint(self, name: str | None, keep_s: float | None) -> str:
        """Take a checkpoint of everything there is; its id."""
        while True:
            client, seen = self._client()
            if client is not None:
                with client:
                    return client.checkpoint(name, keep_s)
            with suppress(ClaimedError), self._opened(seen) as pipeline:
                ref = pipeline.checkpoint(name, keep_s=keep_s)
                return "" if ref is None else ref.id

    def compact(self, *, detach: bool = False) -> bool:
        """Whether there was anything to do."""
        while True:
            client, seen = self._client()
            if client is not None:
                with client:
                    return client.compact(detach=detach)
            with suppress(ClaimedError), self._opened(seen) as pipeline:
                return pipeline.compact(detach=detach)

    def _opened(self, seen: Seen, *, create: bool = False) -> ProjectPipeline:
        return ProjectPipeline(
            self._project, self._env, create=create, seen=seen, listener=LongWork(self._env)
        )

    def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def _client(self) -> tuple[Client | None, Seen]:
        """Whom to ask; if nobody, what was seen, for opening the pipeline here."""
        client, found = find_holder(
            self._project, self._env, take_over=self._take_over, timeout_s=self._timeout_s
        )
        claim = None if found is None else found.manifest.claim
        if self._take_over:
            return client, Seen(claim)
        return client, seen_of(claim, self._project.open_store(self._env).uri)


def held(project: Project, claim: Claim, alive: Liveness) -> ConflictError:
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
