"""The cache that a project uses: its location and its maximum size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stepwell.deploy.project import Project
from stepwell.env import Env
from stepwell.lsm.cache import Cache


def open_cache(project: Project, env: Env) -> Cache:
    """Open the cache that `cache:` in stepwell.yml names."""
    section = project.sections.cache
    if section.path is None:
        return Cache(default_folder(os.environ), env, section.bytes_max)
    return Cache(project.folder / Path(section.path).expanduser(), env, section.bytes_max)


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return the default cache folder, which all pipelines of a user on this machine share.

    >>> str(default_folder({"XDG_CACHE_HOME": "/var/cache/ada"}))
    '/var/cache/ada/stepwell'
    """
    given = environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path("~/.cache").expanduser()
    return base / "stepwell"
