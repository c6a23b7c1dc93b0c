"""The pipeline of `stepwell run`, which a deploy may change while it runs.

Fresh views are computed beside the old ones from a checkpoint, while transactions go on, and follow
the journal. Then the pipeline stands still between two transactions for the swap, and is opened
anew, by the same process, as it is deployed. Tables whose rows are converted are not built beside:
for those it stands still all the time. A crash leaves the old program or the new one.
"""

from __future__ import annotations

from typing import Any

from stepwell.deploy.apply import changed_to_json
from stepwell.deploy.changing import Changed, Changing
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.plan import fingerprint
from stepwell.deploy.program import as_deployed, program_json, read_program
from stepwell.deploy.project import Project
from stepwell.deploy.resources import Resource
from stepwell.engine.beside import KEEP_S
from stepwell.engine.core import Core
from stepwell.engine.events import ExecutorLost
from stepwell.engine.open import Seen
from stepwell.env import Env
from stepwell.errors import ConflictError, ExecutorLostError
from stepwell.model import Claim
from stepwell.store.sealed import Json

LOST_MAX = 3
LOST_S = 3600.0
"""How often an executor that was lost is replaced, within how long."""


class RunningPipeline(ProjectPipeline):
    """A `ProjectPipeline` that can be changed, and goes on with another executor."""

    def __init__(self, project: Project, env: Env, **options: Any) -> None:
        self._lost_at: list[float] = []
        super().__init__(project, env, **options)

    def __enter__(self) -> RunningPipeline:
        return self

    def change(self, program: Json, before: str) -> dict[str, Any]:
        """Compute another program from now on, as far as it can be made; for `deploy`.

        `before` is the fingerprint of what the deploy found.
        """
        done: list[Changed] = []
        wanted, _ = read_program(program, "the deploy")
        changing = Changing(self.project, self._env, self._make, spark=self._spark)
        with self._turn("deploy"):
            core = self._core
            core.boundary()
            deployed, executor = self._expected(core, before)
            checkpoint = core.checkpoint(f"deploy-{self._env.new_id()}", KEEP_S)
            manifest = core.manifest
        beside = changing.build_beside(core, manifest, checkpoint, deployed, wanted, executor)

        def make(core: Core) -> Core:
            self._expected(core, before)
            if beside is None:
                core.delete_checkpoint(checkpoint.id)
            changed = changing.change(core, deployed, wanted, executor, beside)
            done.append(changed)
            if changed.transaction is None:
                return core
            core.close()
            return self._opened(program_json(changed.resources, executor), core.writer.claim)

        self.exchange(make)
        return changed_to_json(done[0])

    def _expected(self, core: Core, before: str) -> tuple[dict[str, Resource], str]:
        """What is deployed, if it is what the deploy has found."""
        deployed, executor = read_program(core.manifest.program, self.project.store)
        if fingerprint(deployed, executor) != before:
            raise ConflictError(
                f"{self.project.store} is not what this deploy has found any more",
                hint="deploy again",
            )
        return deployed, executor

    def _replace_executor(self, why: str) -> None:
        """Start another, and replay what the manifest does not hold; not without end.

        The pipeline is claimed anew, unless somebody else has claimed it meanwhile. A crash leaves
        what every crash does.
        """
        now = self._env.uptime()
        self._lost_at = [at for at in self._lost_at if now - at < LOST_S] + [now]
        times = len(self._lost_at)
        if self._spark is not None or times > LOST_MAX:
            often = f", {times} times within {LOST_S / 60:g} minutes" if times > 1 else ""
            raise ExecutorLostError(
                why + often,
                hint="what was acknowledged is in the journal, and the next run replays it. Has "
                "the machine run out of memory? Look into the log of the system",
            )
        core, program = self._core, self._core.manifest.program
        core.events.emit(ExecutorLost(why, times, LOST_MAX))
        self._standing = self.status()

        def make(core: Core) -> Core:
            core.abandon(ExecutorLostError(why))
            return self._opened(program, core.writer.claim)

        self._swap(make)

    def _opened(self, program: Json, claim: Claim) -> Core:
        """`claim`: our last one. Whoever has claimed the pipeline since keeps it."""
        project = as_deployed(self.project, program)
        core = Core(
            self.store,
            self._env,
            self._make(project, self._spark),
            project.make_sources(self._env),
            project.make_sinks(self._env),
            journal_store=project.open_journal_store(self._env),
            settings=project.settings(),
            listener=self._listener,
            create=False,
            program=program,
            writer=self.writer_id,
            seen=Seen(claim),
        )
        self.project = project
        return core
