"""What stands in front of a command: `stepwell -C DIR --target T --store URI --json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwell.deploy.project import Project
    from stepwell.env import Env


@dataclass(frozen=True, slots=True)
class Where:
    folder: str = "."
    target: str | None = None
    store: str | None = None
    json: bool = False

    def project(self, env: Env) -> Project:
        """The project it names, read and checked."""
        from stepwell.deploy.project import load_project

        return load_project(self.folder, env, target=self.target, store=self.store)
