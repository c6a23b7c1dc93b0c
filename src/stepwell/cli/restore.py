"""`stepwell restore`: shows what going back, or repairing, would do; does it with --confirm."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import Any

from stepwell.cli.reach import latest, running
from stepwell.cli.screen import Screen, count, plain
from stepwell.cli.where import Where
from stepwell.deploy.holding import seen_of, writer_liveness
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.project import Project
from stepwell.engine.open import Seen
from stepwell.engine.restore import Preview, preview, restore
from stepwell.engine.target import Goal, Target
from stepwell.env import Env, SystemEnv
from stepwell.errors import ConflictError, InvalidError
from stepwell.model import format_time
from stepwell.process import Liveness


def show(
    where: Where,
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
    goal = Goal(checkpoint, transaction, None if time is None else _time(time))
    store = project.open_store(env)
    found = preview(goal, store, project.open_journal_store(env) or store, env)
    for name, why in found.target.passed_over:
        print(f"{plain(name)} cannot be used: {plain(why)}", file=sys.stderr)
    if not confirm:
        if where.json:
            screen.json({**_json(found), "done": False})
        else:
            _tell(screen, project, found)
            screen.line("nothing was done; with --confirm it is")
        return
    looks = [] if take_over else [_nobody_runs(project, env)]

    def open(target: Target | None) -> ProjectPipeline:
        # The second time, the last claim is our own.
        seen = looks.pop() if looks else None
        return ProjectPipeline(project, env, create=False, base=target, seen=seen)

    done = restore(goal, found.target, open)
    number = done.pipeline.transaction_number
    done.pipeline.close()
    if done.damage is not None:
        print(
            f"the state before it could not be read ({done.damage}), so no sink was told: empty "
            "each of them, and it receives the whole view",
            file=sys.stderr,
        )
    if where.json:
        told = {"done": True, "transaction": number, "checkpoint": done.checkpoint.id}
        screen.json({**_json(found), **told, "damage": done.damage})
    elif goal.repairs:
        screen.line(f"repaired: the pipeline is at transaction {number}, as it was")
    else:
        screen.line(
            f"restored: transaction {number} made the state that of {found.target.transaction}"
        )


def _tell(screen: Screen, project: Project, found: Preview) -> None:
    target, undone = found.target, found.undone
    base = target.checkpoint
    used = f"{base.id} of {format_time(base.created)}, transaction {base.state.transaction}"
    screen.line(
        f"{project.name} in {project.store} is at transaction {undone.present}; "
        + (
            "from the beginning of the journal"
            if base.is_beginning
            else f"the checkpoint used is {used}"
        )
    )
    if target.transaction is None:
        more = undone.present - base.state.transaction
        screen.line(f"repair: load it, and replay {count(more, 'transaction')}; nothing is undone")
        return
    undoes = count(undone.present - target.transaction, "transaction")
    screen.line(
        f"go back: transaction {undone.present + 1} will make the state that of "
        f"{target.transaction}, and undo {undoes}"
    )
    for name, rows in sorted(undone.again.items()):
        screen.line(f"  comes in again: {count(rows, 'row')} of source {plain(name)}")
    for name, rows in sorted(undone.lost.items()):
        screen.line(f"  is lost: {count(rows, 'row')} pushed to {plain(name)}")
    if not undone.known:
        screen.line("  part of the journal is gone: there may be more")
    for name in undone.ahead:
        screen.line(f"  sink {plain(name)} is ahead: it will be sent the difference")


def _json(found: Preview) -> dict[str, Any]:
    target, undone = found.target, found.undone
    return {
        "present": undone.present,
        "from": {
            "checkpoint": target.checkpoint.id or None,
            "transaction": target.checkpoint.state.transaction,
        },
        "to": target.transaction,
        "repairs": target.transaction is None,
        "comes_again": dict(undone.again),
        "lost": dict(undone.lost),
        "known": undone.known,
        "sinks_ahead": list(undone.ahead),
        "passed_over": [{"what": name, "why": why} for name, why in target.passed_over],
    }


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise InvalidError(
            f"--time must be a time, found {text!r}", hint="for example 2026-01-31T12:00:00Z"
        ) from None
    # Without a zone it is this machine's, as a person means it.
    return found.astimezone(timezone.utc)


def _nobody_runs(project: Project, env: Env) -> Seen:
    """What was seen, for the claim to rest on."""
    client = running(project, env)
    if client is not None:
        client.close()
        raise ConflictError(
            f"a process on this machine runs {project.name}", hint="end it first, then restore"
        )
    found = latest(project, env)
    uri = project.open_store(env).uri
    if found is None:
        return seen_of(None, uri)
    claim = found.manifest.claim
    if not found.manifest.journal.closed and writer_liveness(claim, env) is not Liveness.DEAD:
        raise ConflictError(
            f"{claim.process} has {project.store}, or had",
            hint="end it first, then restore; if it is gone, add --take-over",
        )
    return seen_of(claim, uri)
