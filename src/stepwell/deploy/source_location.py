"""Whether a source that has read input can continue at another path."""

from __future__ import annotations

from pathlib import Path

from stepwell.connectors.base_folder import base_folder
from stepwell.deploy.references import veiled
from stepwell.deploy.resources import Resource


def path_refusal(old: Resource, new: Resource, folder: Path) -> str | None:
    """Return why a source that has read input must not change its path; None if it may. Pure.

    `folder` is the project's folder, where relative paths start.
    """
    before, now = old.options.get("path"), new.options.get("path")
    kinds = {old.options.get("type"), new.options.get("type")}
    if kinds != {"files"} or before == now:
        return None
    was, is_now = (base_folder(veiled(str(path)), folder) for path in (before, now))
    if was is not None and was == is_now:
        return None
    what = "its base folder changes" if was and is_now else "its base folder may change"
    return (
        f"{what} (path {before} before, {now} now), and the files it has read were recorded by "
        f"their names below the old one: some would be read twice, or never; give the new source "
        "another name"
    )
