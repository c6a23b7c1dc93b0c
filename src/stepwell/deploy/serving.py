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
from stepwell.deploy.resources import Resource
from stepwell.engine.beside import KEEP_S
from stepwell.engine.core import Core
from stepwell.errors import ConflictError
from stepwell.store.sealed import Json


class RunningPipeline(ProjectPipeline):
    """A `ProjectPipeline` that can be changed."""

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
            return self._opened(program_json(changed.resources, executor))

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

    def _opened(self, program: Json) -> Core:
        project = as_deployed(self.project, program)
        core = Core(
            self.store,
            self._env,
            self._make(project, self._spark),
            project.make_sources(self._env),
            project.make_sinks(self._env),
            journal_store=project.open_journal_store(self._env),
            settings=project.sections.settings(),
            listener=self._listener,
            create=False,
            program=program,
            writer=self.writer_id,
        )
        self.project = project
        return core
