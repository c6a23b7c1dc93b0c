"""Sources whose path matches no file: usually a mistake, which would show as an empty table.

A warning, not an error, because files may come later.
"""

from __future__ import annotations

from stepwell.connectors.listing import Listing
from stepwell.connectors.options import Options
from stepwell.deploy.project import Project
from stepwell.deploy.references import missing
from stepwell.env import Env
from stepwell.errors import ConfigError


def unmatched_sources(project: Project, env: Env) -> list[ConfigError]:
    """Return a warning for each file source that matches no file now."""
    found = []
    for source in project.sources:
        if source.type != "files" or missing(source.options) is not None:
            continue
        what = f"source {source.name}"
        listing = Listing(Options(what, source.options, project.folder).place("path"), env)
        if listing.names():
            continue
        given = source.options["path"]
        if not listing.folder.is_dir():
            hint = f"there is no folder {listing.folder}; is the path right?"
        else:
            hint = f"files are waited for in {listing.folder}; is the path right?"
        found.append(ConfigError(f"{what}: {given!r} matches no file", hint=hint))
    return found
