"""The pipeline of `stepwell run`, which a deploy may change while it runs.

It stands still between two transactions while fresh views are computed, and is then opened anew, by
the same process, as it is deployed. A crash in between leaves the old program or the new one.
"""

from __future__ import annotations

from typing import Any

from stepwell.deploy.apply import changed_to_json
from stepwell.deploy.changing import Changed, Changing
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.plan import fingerprint
from stepwell.deploy.program import as_deployed, program_json, read_program
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

        def make(core: Core) -> Core:
            deployed, executor = read_program(core.manifest.program, self.project.store)
            if fingerprint(deployed, executor) != before:
                raise ConflictError(
                    f"{self.project.store} is not what this deploy has found any more",
                    hint="deploy again",
                )
            wanted, _ = read_program(program, "the deploy")
            changing = Changing(self.project, self._env, self._make, spark=self._spark)
            changed = changing.change(core, deployed, wanted, executor)
            done.append(changed)
            if changed.transaction is None:
                return core
            core.close()
            return self._opened(program_json(changed.resources, executor))

        self.exchange(make)
        return changed_to_json(done[0])

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
        )
        self.project = project
        return core
