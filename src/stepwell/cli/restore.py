"""`stepwell restore`: preview a restore or a repair; carry it out with --confirm."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from stepwell.cli.pipeline_access import latest, running, say
from stepwell.cli.progress import LongWork
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Screen, count, plain
from stepwell.deploy.liveness import seen_of, writer_liveness
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.project import Project
from stepwell.endpoint.starting import wait_for_starting
from stepwell.engine.open import Seen
from stepwell.engine.restore import Preview, preview, restore
from stepwell.engine.restore_request import RestorePoint, RestoreRequest
from stepwell.env import Env, SystemEnv
from stepwell.errors import ConflictError, InvalidError
from stepwell.model import format_time
from stepwell.process import Liveness


def show(
    where: ProjectOptions,
    *,
    checkpoint: str | None,
    transaction: int | None,
    time: str | None,
    confirm: bool,
    take_over: bool,
) -> None:
    if sum(given is not None for given in (checkpoint, transaction, time)) > 1:
        raise InvalidError("restore: give one of --checkpoint, --transaction and --time")
    env, screen = SystemEnv(), Screen()
    project = where.deployed(env)
    request = RestoreRequest(checkpoint, transaction, None if time is None else _time(time))
    store = project.open_store(env)
    found = preview(request, store, project.open_journal_store(env) or store, env)
    for name, why in found.point.passed_over:
        print(f"{plain(name)} cannot be used: {plain(why)}", file=sys.stderr)
    if not confirm:
        if where.json:
            screen.json({**_json(found), "done": False})
        else:
            _tell(screen, project, found)
            screen.line("nothing was done; to restore, add --confirm")
        return
    listener = LongWork(env)
    looks = [] if take_over else [_refuse_if_running(project, env, where.timeout_s)]

    def open(target: RestorePoint | None) -> ProjectPipeline:
        # The second time, the last claim is our own.
        seen = looks.pop() if looks else None
        return ProjectPipeline(
            project, env, create=False, base=target, seen=seen, listener=listener
        )

    done = restore(request, found.point, open)
    number = done.pipeline.transaction_number
    done.pipeline.close()
    if done.damage is not None:
        print(
            f"the state before it could not be read ({done.damage}), so the sinks did not receive "
            f"the difference: empty each of them, and it receives the whole view",
            file=sys.stderr,
        )
    if where.json:
        told = {"done": True, "transaction": number, "checkpoint": done.checkpoint.id}
        screen.json({**_json(found), **told, "damage": done.damage})
    elif request.repairs:
        screen.line(f"repaired: the pipeline is at transaction {number}, as before")
    else:
        screen.line(
            f"restored: transaction {number} set the state back to that of "
            f"{found.point.transaction}"
        )


def _tell(screen: Screen, project: Project, found: Preview) -> None:
    point, undone = found.point, found.undone
    base = point.checkpoint
    used = f"{base.id} of {format_time(base.created)}, transaction {base.state.transaction}"
    screen.line(
        f"{project.name} in {project.store} is at transaction {undone.present}; "
        + (
            "from the beginning of the journal"
            if base.is_beginning
            else f"the checkpoint used is {used}"
        )
    )
    if point.transaction is None:
        more = undone.present - base.state.transaction
        screen.line(f"repair: load it and replay {count(more, 'transaction')}; nothing is undone")
        return
    undoes = count(undone.present - point.transaction, "transaction")
    screen.line(
        f"go back: transaction {undone.present + 1} will set the state back to that of "
        f"{point.transaction}, and undo {undoes}"
    )
    for name, rows in sorted(undone.again.items()):
        screen.line(f"  is read again: {count(rows, 'row')} of source {plain(name)}")
    for name, rows in sorted(undone.lost.items()):
        screen.line(f"  is lost: {count(rows, 'row')} pushed to {plain(name)}")
    if not undone.known:
        screen.line("  part of the journal is gone: there may be more")
    for name in undone.ahead:
        screen.line(f"  sink {plain(name)} is ahead: it will be sent the difference")


def _json(found: Preview) -> dict[str, Any]:
    point, undone = found.point, found.undone
    return {
        "present": undone.present,
        "from": {
            "checkpoint": point.checkpoint.id or None,
            "transaction": point.checkpoint.state.transaction,
        },
        "to": point.transaction,
        "repairs": point.transaction is None,
        "comes_again": dict(undone.again),
        "lost": dict(undone.lost),
        "known": undone.known,
        "sinks_ahead": list(undone.ahead),
        "passed_over": [{"what": name, "why": why} for name, why in point.passed_over],
    }


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise InvalidError(
            f"--time must be a time, found {text!r}", hint="for example 2026-01-31T12:00:00Z"
        ) from None
    # A time without a zone is local time, as a user means it.
    return found.astimezone(UTC)


def _refuse_if_running(project: Project, env: Env, timeout_s: float) -> Seen:
    """Check that no process runs the pipeline; return the evidence on which the claim rests."""
    wait_for_starting(project.folder, env, timeout_s, say)
    client = running(project, env, timeout_s)
    if client is not None:
        client.close()
        raise ConflictError(
            f"a process on this machine runs {project.name}", hint="stop it first, then restore"
        )
    found = latest(project, env)
    uri = project.open_store(env).uri
    if found is None:
        return seen_of(None, uri)
    claim = found.manifest.claim
    if not found.manifest.journal.closed and writer_liveness(claim, env) is not Liveness.DEAD:
        raise ConflictError(
            f"{claim.process} has {project.store}, or had",
            hint="stop it first, then restore; if it is gone, add --take-over",
        )
    return seen_of(claim, uri)
