"""The pipeline of `stepwell run`, which a deploy may change while it runs.

A shadow build computes the fresh views from a checkpoint and follows the journal while transactions
continue. Then the pipeline pauses between two transactions for the swap, and the same process
reopens it with the deployed program. There is no shadow build if rows of tables are converted:
then the pipeline pauses for the whole change. A crash leaves either the old program or the new one.
"""

from __future__ import annotations

from typing import Any

from stepwell.deploy.apply import CHANGED
from stepwell.deploy.migration import Building, Changed, Migration
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.plan import fingerprint, fresh_views, make_plan
from stepwell.deploy.program import as_deployed, program_json, read_program
from stepwell.deploy.project import Project
from stepwell.deploy.resources import Resource
from stepwell.engine.events import ExecutorLost, Working
from stepwell.engine.open import Seen
from stepwell.engine.shadow_build import KEEP_S
from stepwell.engine.writer_session import WriterSession
from stepwell.env import Env
from stepwell.errors import ConflictError, ExecutorLostError
from stepwell.model import Claim
from stepwell.store.sealed import Json

LOST_MAX = 3
LOST_S = 3600.0
"""A lost executor is replaced at most `LOST_MAX` times within `LOST_S` seconds."""


class RunningPipeline(ProjectPipeline):
    """A `ProjectPipeline` that can switch to another program and replace its executor."""

    def __init__(self, project: Project, env: Env, **options: Any) -> None:
        self._lost_at: list[float] = []
        super().__init__(project, env, **options)

    def __enter__(self) -> RunningPipeline:
        return self

    def fail(self, error: BaseException) -> None:
        """End `run` with this error, from any thread: a thread that it needs has died."""
        self._fail(error)

    def change(
        self, program: Json, before: str, building: Building = lambda name: None
    ) -> dict[str, Any]:
        """Switch to another program, as far as it can be built; called by `deploy`.

        `before` is the fingerprint of the program that the deploy has seen. `building` is called
        with the name of each relation before it is computed; listeners of this pipeline receive the
        progress.
        """
        done: list[Changed] = []
        wanted, _ = read_program(program, "the deploy")
        fresh: tuple[str, ...] = ()

        def on_building(name: str) -> None:
            building(name)
            if name in fresh:
                session.events.emit(Working("deploying", fresh.index(name), len(fresh), "view"))

        changing = Migration(
            self.project, self._env, self._make, spark=self._spark, building=on_building
        )
        with self._turn("deploy"):
            session = self._session
            session.reach_boundary()
            deployed, executor = self._expected(session, before)
            checkpoint = session.checkpointer.checkpoint(f"deploy-{self._env.new_id()}", KEEP_S)
            manifest = session.manifest
        plan = make_plan("", deployed, wanted, executor=executor, deployed_executor=executor)
        fresh = fresh_views(plan)
        shadow = changing.build_shadow(session, manifest, checkpoint, deployed, wanted, executor)

        def make(session: WriterSession) -> WriterSession:
            self._expected(session, before)
            if shadow is None:
                session.checkpointer.delete_checkpoint(checkpoint.id)
            changed = changing.change(session, deployed, wanted, executor, shadow)
            done.append(changed)
            if fresh:
                session.events.emit(Working("deploying", len(fresh), len(fresh), "view"))
            if changed.transaction is None:
                return session
            session.close()
            return self._open(program_json(changed.resources, executor), session.writer.claim)

        self._exchange(make)
        return CHANGED.write(done[0])

    def _expected(self, session: WriterSession, before: str) -> tuple[dict[str, Resource], str]:
        """Return the deployed resources; `ConflictError` if the deploy has seen others."""
        deployed, executor = read_program(session.manifest.program, self.project.store)
        if fingerprint(deployed, executor) != before:
            raise ConflictError(
                f"{self.project.store} has changed since this deploy read it",
                hint="deploy again",
            )
        return deployed, executor

    def _replace_executor(self, why: str) -> None:
        """Start another executor and replay the journal above the manifest; limited by `LOST_MAX`.

        The pipeline is claimed again, unless another process has claimed it meanwhile. A crash here
        is like any other crash.
        """
        now = self._env.uptime()
        self._lost_at = [at for at in self._lost_at if now - at < LOST_S] + [now]
        times = len(self._lost_at)
        if self._spark is not None or times > LOST_MAX:
            often = f", {times} times within {LOST_S / 60:g} minutes" if times > 1 else ""
            raise ExecutorLostError(
                why + often,
                hint="what was acknowledged is in the journal, and the next run replays it. If "
                "Spark ran out of memory, give it more: spark.driver_memory in stepwell.yml; if "
                "the machine did, the system's log says so",
            )
        session, program = self._session, self._session.manifest.program
        session.events.emit(ExecutorLost(why, times, LOST_MAX))
        self._standing = self.status()

        def make(session: WriterSession) -> WriterSession:
            session.abandon(ExecutorLostError(why))
            return self._open(program, session.writer.claim)

        self._swap(make)

    def _open(self, program: Json, claim: Claim) -> WriterSession:
        """Open a session; `claim` is our last one. A process that has claimed it since keeps it."""
        project = as_deployed(self.project, program)
        session = WriterSession(
            self.store,
            self._env,
            self._make(project, self._spark),
            project.make_sources(self._env),
            project.make_sinks(self._env),
            journal_store=project.open_journal_store(self._env),
            settings=project.settings(),
            listener=self._listener,
            metrics=self._metrics,
            create=False,
            program=program,
            writer=self.writer_id,
            seen=Seen(claim),
        )
        self.project = project
        return session
