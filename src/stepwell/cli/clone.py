"""`stepwell clone`: create a second pipeline that starts from the state of another."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from stepwell.cli.addresses import open_existing_store
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Screen, count, plain, size
from stepwell.env import Env, SystemEnv
from stepwell.errors import InvalidError
from stepwell.manifest.clone import Cloned, clone
from stepwell.manifest.manifest import Manifests
from stepwell.store.base import Store
from stepwell.store.locate import open_store

_FILE = "stepwell.yml"
"""Copied from `deploy/project`, which takes a second to import and is not needed for a store."""


def show(
    where: ProjectOptions,
    source: str,
    destination: str,
    *,
    checkpoint: str | None,
    journal: str | None,
    copy: bool,
) -> None:
    env, screen = SystemEnv(), Screen()
    if where.store is not None:
        raise InvalidError(
            "--store gives the location of a project's pipeline; clone takes both locations as "
            "arguments",
            hint=f"stepwell clone {where.store} {destination}",
        )
    store, journal_store = _source(where, source, env)
    with _progress() as copied:
        made = clone(
            store,
            open_store(destination, env),
            env,
            source_journal=journal_store,
            journal_store=None if journal is None else open_store(journal, env),
            checkpoint=checkpoint,
            copy=copy,
            copied=copied,
        )
    if where.json:
        screen.json(_document(made, destination, env))
    else:
        _render(screen, made, replace(where, folder=source), destination)


def _source(where: ProjectOptions, source: str, env: Env) -> tuple[Store, Store | None]:
    """Return the stores of the pipeline to clone."""
    if _is_project(source):
        project = replace(where, folder=source).project(env, secrets=False)
        return project.open_store(env), project.open_journal_store(env)
    store = open_existing_store(source, env)
    found = Manifests(store, env).latest()
    # Only a clone's manifest records the location of its journal.
    recorded = None if found is None else found.manifest.journal.store
    return store, None if recorded is None else open_store(recorded, env)


def _is_project(source: str) -> bool:
    return os.path.isfile(Path(source).expanduser() / _FILE)


class _Copied(Protocol):
    def __call__(self, done: int, total: int) -> None: ...


@contextmanager
def _progress() -> Iterator[_Copied]:
    """Show a progress bar for copied bytes, if there are any."""
    columns = (TextColumn("copying files"), BarColumn(), DownloadColumn())
    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("", visible=False)

        def copied(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        yield copied


def _document(made: Cloned, destination: str, env: Env) -> dict[str, Any]:
    manifest = made.manifest
    parent = manifest.parent
    return {
        "store": open_store(destination, env).uri,
        "lineage": manifest.lineage,
        "made": made.made,
        "parent": None if parent is None else parent.store,
        "checkpoint": None if parent is None else parent.checkpoint,
        "transaction": manifest.transaction,
        "entries": made.entries,
        "files": made.files,
        "bytes": made.bytes,
        "sinks_off": [] if parent is None else list(parent.sinks),
        "journal": manifest.journal.store,
    }


def _render(screen: Screen, made: Cloned, source: ProjectOptions, destination: str) -> None:
    manifest = made.manifest
    parent = manifest.parent
    if not made.made:
        screen.line(f"{destination} is already that clone; nothing was done")
    facts = [("clone", destination)]
    if parent is not None:
        facts.append(("of", f"{plain(parent.store)}, checkpoint {parent.checkpoint}"))
    entries = count(made.entries, "journal entry", "journal entries")
    facts.append(("holds", f"transaction {manifest.transaction}, and {entries} after it"))
    files = (
        f"{count(made.files, 'file')} copied, {size(made.bytes)}" if made.files else "none copied"
    )
    facts.append(("files", files))
    if parent is not None and parent.sinks:
        facts.append(("sinks off", ", ".join(map(plain, parent.sinks))))
    screen.facts(facts)
    options = source.options if _is_project(source.folder) else ""
    screen.line()
    screen.line(f"next: stepwell {options}--store {quote(destination)} run --once")
