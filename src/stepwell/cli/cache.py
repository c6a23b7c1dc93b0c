"""`stepwell cache show|clear`: show or remove the files cached on this machine."""

from __future__ import annotations

from typing import Any

from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Screen, count, plain, size
from stepwell.deploy.cache import open_cache
from stepwell.env import SystemEnv
from stepwell.lsm.cache import Usage


def show(where: ProjectOptions) -> None:
    env, screen = SystemEnv(), Screen()
    usage = open_cache(where.project(env, secrets=False), env).usage()
    if where.json:
        screen.json(usage_json(usage))
        return
    screen.facts(
        [
            ("path", plain(usage.path)),
            ("size", f"{size(usage.bytes)} of {size(usage.bytes_max)}"),
            ("runs", str(usage.runs)),
        ]
    )


def clear(where: ProjectOptions) -> None:
    env, screen = SystemEnv(), Screen()
    removed = open_cache(where.project(env, secrets=False), env).clear()
    if where.json:
        screen.json({**usage_json(removed), "removed": removed.bytes})
        return
    runs = count(removed.runs, "run")
    screen.line(f"removed {size(removed.bytes)} of {runs} from {plain(removed.path)}")


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "path": usage.path,
        "bytes": usage.bytes,
        "bytes_max": usage.bytes_max,
        "runs": usage.runs,
    }
