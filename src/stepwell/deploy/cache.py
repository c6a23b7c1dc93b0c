"""The cache that a project uses: its location and its maximum size."""

from __future__ import annotations

from pathlib import Path

from stepwell.deploy.project import Project
from stepwell.env import Env
from stepwell.lsm.cache import Cache, CachePlace


def open_cache(project: Project, env: Env) -> Cache:
    """Open the cache that `cache:` in stepwell.yml names."""
    return cache_place(project).open(env)


def cache_place(project: Project) -> CachePlace:
    """Where executors on other machines keep theirs: under the same path, if one is set."""
    section = project.sections.cache
    if section.path is None:
        return CachePlace(None, section.bytes_max)
    folder = (project.folder / Path(section.path).expanduser()).absolute()
    return CachePlace(str(folder), section.bytes_max)
