"""`stepwell adopt`: declare that a store was moved or copied by hand."""

from __future__ import annotations

from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Screen, plain
from stepwell.env import SystemEnv
from stepwell.errors import InvalidError
from stepwell.manifest.adopt import Adopted, adopt


def show(where: ProjectOptions, *, moved: bool, copy: bool) -> None:
    if moved == copy:
        raise InvalidError(
            "adopt: give one of --moved and --copy",
            hint="--moved: the original is gone. --copy: the original stays in use",
        )
    env, screen = SystemEnv(), Screen()
    project = where.project(env)
    store = project.open_store(env)
    done = adopt(store, env, copy=copy, journal_store=project.open_journal_store(env))
    if where.json:
        screen.json(
            {
                "store": store.uri,
                "adopted": done.changed,
                "before": done.before,
                "timeline": done.manifest.timeline,
                "sinks_off": list(done.manifest.sinks_off),
                "clones": [pin.clone for pin in done.manifest.pins],
            }
        )
    else:
        _tell(screen, store.uri, done)


def _tell(screen: Screen, uri: str, done: Adopted) -> None:
    if not done.changed:
        screen.line(f"{plain(uri)} is where it was before; nothing was done")
        return
    manifest = done.manifest
    if manifest.place.uri == done.before:
        screen.line(f"{plain(uri)} is at its recorded location again; it continues from here")
        return
    screen.line(
        f"{plain(uri)} is a separate pipeline now, no longer the one in {plain(done.before)}"
    )
    if manifest.sinks_off:
        names = ", ".join(map(plain, manifest.sinks_off))
        screen.line(f"sinks turned off, because they belong to the original: {names}")
    if manifest.pins:
        names = ", ".join(plain(pin.clone) for pin in manifest.pins)
        screen.line(
            f"clones look for their files in {plain(done.before)}, which may be a link: {names}"
        )
