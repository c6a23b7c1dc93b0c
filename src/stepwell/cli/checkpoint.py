"""`stepwell checkpoint create|list|show|delete` and `stepwell compact`."""

from __future__ import annotations

from typing import Any

from stepwell.cli.choices import seconds
from stepwell.cli.pipeline_access import PipelineAccess, latest
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Row, Screen, count, plain, size
from stepwell.deploy.project import Project
from stepwell.deploy.snapshot import no_pipeline
from stepwell.env import Env, SystemEnv
from stepwell.errors import InvalidError
from stepwell.manifest.checkpoint import (
    check_files,
    check_name,
    dropping,
    find_checkpoint,
    read_checkpoint,
)
from stepwell.manifest.manifest import CheckpointRef, Manifest, Manifests
from stepwell.manifest.pins import free_pin
from stepwell.manifest.run_object import store_of
from stepwell.model import format_time


def create(where: ProjectOptions, *, name: str | None, keep: str | None, take_over: bool) -> None:
    env = SystemEnv()
    project = where.deployed(env)
    if name is not None:
        check_name(name)
    keep_s = None if keep is None else seconds("--keep", keep)
    if keep_s == 0:
        raise InvalidError("--keep must be longer than 0s", hint="for example 90m, 12h or 7d")
    _manifest(project, env)
    id = PipelineAccess(project, env, take_over=take_over, timeout_s=where.timeout_s).checkpoint(
        name, keep_s
    )
    manifest = _manifest(project, env)
    made = [item for item in manifest.checkpoints if item.id == id]
    if where.json:
        Screen().json(_json(made[0]) if made else {"id": id})
        return
    details = f", transaction {made[0].transaction}" if made else ""
    Screen().line(f"checkpoint {name or id}{details}" + (f" ({id})" if name else ""))


def list_all(where: ProjectOptions) -> None:
    env, screen = SystemEnv(), Screen()
    manifest = _manifest(where.deployed(env, secrets=False), env)
    pinned = [pin.checkpoint for pin in manifest.pins]
    if where.json:
        listed = [{**_json(item), "clones": pinned.count(item.id)} for item in manifest.checkpoints]
        screen.json({"checkpoints": listed})
        return
    if not manifest.checkpoints:
        screen.line(
            "no checkpoints yet: a run takes one when it ends, or use stepwell checkpoint create"
        )
        return
    rows = [
        Row(
            (item.id, str(item.transaction), format_time(item.created), _stays(item)),
            plain(item.name or ""),
        )
        for item in manifest.checkpoints
    ]
    screen.table(("id", ">transaction", "created", "stays", "name"), rows)


def show(where: ProjectOptions, which: str) -> bool:
    """Print a checkpoint; return whether all its files are there."""
    env, screen = SystemEnv(), Screen()
    project = where.deployed(env, secrets=False)
    store = project.open_store(env)
    ref = find_checkpoint(_manifest(project, env), which, project.store)
    checkpoint = read_checkpoint(store, ref.id, ref)
    files, progress = checkpoint.files, checkpoint.state.progress
    damaged = check_files(files, lambda root: store_of(store, root, env))
    content = {
        **_json(ref),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "sources": {at.name: at.position for at in progress.sources},
        "sinks": {at.name: at.delivered for at in progress.sinks},
        "undelivered": len(progress.outbox),
        "replay": checkpoint.state.replay.position,
        "damaged": [{"object": item.where, "what": item.what} for item in damaged],
    }
    if where.json:
        screen.json(content)
        return not damaged
    screen.facts(
        [
            ("checkpoint", ref.id + (f", {plain(ref.name)}" if ref.name else "")),
            ("transaction", str(ref.transaction)),
            ("created", format_time(ref.created)),
            ("stays", _stays(ref)),
            ("files", f"{count(len(files), 'file')}, {size(content['bytes'])}"),
            ("sources", ", ".join(plain(at.name) for at in progress.sources) or "none"),
            (
                "sinks",
                ", ".join(f"{plain(at.name)} at {at.delivered}" for at in progress.sinks) or "none",
            ),
            ("undelivered", count(len(progress.outbox), "file") if progress.outbox else "nothing"),
        ]
    )
    for item in damaged:
        screen.line(f"damaged: {item.where} {item.what}")
    return not damaged


def delete(where: ProjectOptions, which: str) -> None:
    env = SystemEnv()
    project = where.deployed(env, secrets=False)
    store = project.open_store(env)
    ref = find_checkpoint(_manifest(project, env), which, project.store)
    Manifests(store, env).amend(dropping(ref.id, project.store), "delete a checkpoint")
    if where.json:
        Screen().json({"deleted": ref.id})
    else:
        Screen().line(
            f"deleted checkpoint {plain(ref.name or ref.id)}; stepwell gc frees its files"
        )


def compact(where: ProjectOptions, *, detach: bool, take_over: bool) -> None:
    env = SystemEnv()
    project = where.deployed(env)
    first = _manifest(project, env)
    if detach and first.parent is None:
        raise InvalidError(
            f"{project.store} is not a clone: it owns all its files",
            hint="to compact its files, leave out --detach",
        )
    before = _runs(first)
    PipelineAccess(project, env, take_over=take_over, timeout_s=where.timeout_s).compact(
        detach=detach
    )
    after = _runs(_manifest(project, env))
    needing = _detached(project, env) if detach else []
    if where.json:
        found: dict[str, Any] = {"before": before, "after": after}
        Screen().json({**found, "parent_needed_by": needing} if detach else found)
        return
    shown = [
        f"{count(found['files'], 'file')}, {size(found['bytes'])}" for found in (before, after)
    ]
    if before == after:
        Screen().line(f"nothing to compact: {shown[0]}")
    else:
        Screen().line(f"compacted: {shown[0]} before, {shown[1]} now")
    if needing:
        Screen().line(f"the parent is still needed by {', '.join(map(plain, needing))}")
        Screen().line("next: stepwell checkpoint delete, or wait until newer ones replace it")
    elif detach and first.parent is not None:
        Screen().line(f"no longer needs {plain(first.parent.store)}")


def _detached(project: Project, env: Env) -> list[str]:
    """Free the pin in the parent; return the checkpoints and clones that still need its files."""
    store = project.open_store(env)
    if free_pin(Manifests(store, env), env):
        return []
    manifest = _manifest(project, env)
    who = [(ref.id, f"checkpoint {ref.name or ref.id}") for ref in manifest.checkpoints]
    who += [(pin.checkpoint, f"the clone in {pin.clone}") for pin in manifest.pins]
    states = ((name, read_checkpoint(store, id).state) for id, name in who)
    return [name for name, state in states if any(run.root for run in state.all_runs)]


def _runs(manifest: Manifest) -> dict[str, int]:
    return {"files": len(manifest.all_runs), "bytes": sum(run.size for run in manifest.all_runs)}


def _manifest(project: Project, env: Env) -> Manifest:
    found = latest(project, env)
    if found is None:
        raise no_pipeline(project, env)
    return found.manifest


def _stays(ref: CheckpointRef) -> str:
    if ref.expires is not None:
        return f"until {format_time(ref.expires)}"
    return "until deleted" if ref.name is not None else "until newer ones replace it"


def _json(ref: CheckpointRef) -> dict[str, Any]:
    return {
        "id": ref.id,
        "name": ref.name,
        "transaction": ref.transaction,
        "created": format_time(ref.created),
        "expires": None if ref.expires is None else format_time(ref.expires),
    }
