"""`stepwell plan`, `deploy` and `destroy`: show the changes, make them, delete a pipeline."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepwell.cli.choices import seconds
from stepwell.cli.phase_progress import PhaseProgress
from stepwell.cli.progress import LongWork
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.run import INTERRUPTED, signals
from stepwell.cli.screen import Screen, count
from stepwell.cli.validate import likely_mistakes, warn
from stepwell.deploy.apply import Deployment, deploy, plan_project
from stepwell.deploy.destroy import destroy
from stepwell.deploy.liveness import writer_liveness
from stepwell.deploy.migration import Interrupted
from stepwell.deploy.plan import Action, Plan, Step, fresh_views
from stepwell.deploy.resources import display_name
from stepwell.deploy.unmatched import unmatched_sources
from stepwell.env import SystemEnv
from stepwell.errors import ConfigError, InvalidError
from stepwell.process import Liveness

ERROR, CHANGES = 1, 2
OFFLINE = (
    "checked without Spark, types as far as they are known: stepwell validate --spark asks it now"
)
NO_TYPES = (
    "checked without Spark, but not the types: spark.conf changes their rules. Ask Spark: "
    "stepwell validate --spark"
)
SIGNS = {
    Action.CREATE: ("+", "green"),
    Action.UPDATE: ("~", "yellow"),
    Action.REBUILD: ("~", "yellow"),
    Action.REBIND: ("~", "yellow"),
    Action.DELETE: ("-", "red"),
}


def show_plan(
    where: ProjectOptions, *, out: str | None, detailed: bool, renames: Sequence[str] | None = None
) -> int:
    """Print the plan; return the exit code."""
    env, screen = SystemEnv(), Screen()
    project = where.project(env, secrets=False)
    plan = plan_project(project, env, renames or ())
    warn([*likely_mistakes(project), *unmatched_sources(project, env)])
    if where.json:
        screen.json({**plan.to_json(), "checked": "offline", "types": project.types_checked})
    else:
        render(screen, plan)
        if plan.changes:
            screen.line(OFFLINE if project.types_checked else NO_TYPES)
    if plan.refusals:
        if out is not None:
            say(f"{out} was not written: this cannot be deployed")
        return ERROR
    if out is not None:
        _write(out, plan.encode())
        if not where.json:
            screen.line(f"wrote {out}; stepwell deploy --plan {out} carries it out")
    return CHANGES if detailed and plan.changes else 0


def show_deploy(
    where: ProjectOptions,
    *,
    plan_file: str | None,
    yes: bool,
    lock_timeout: str,
    take_over: bool,
    renames: Sequence[str] | None = None,
) -> int:
    env, screen, wait_s = SystemEnv(), Screen(), seconds("--lock-timeout", lock_timeout)
    if renames and plan_file is not None:
        raise ConfigError(
            f"--rename cannot be combined with --plan {plan_file}, which records the renames "
            f"already",
            hint="pass it to stepwell plan --out",
        )
    project = where.project(env)
    given = None if plan_file is None else (plan_file, _read(plan_file))
    phase, fresh = PhaseProgress(env), list[str]()

    def building_text(name: str) -> str:
        if name not in fresh:
            return f"computing {name}"
        return f"computing {name}: " + phase.text(
            "deploying", fresh.index(name), len(fresh), "view"
        )

    with signals() as caught:

        def building(name: str) -> None:
            if caught.name is not None:
                raise Interrupted
            if name:
                say(building_text(name))

        def approve(plan: Plan) -> bool:
            if not where.json:
                render(screen, plan)
            fresh[:] = fresh_views(plan)
            agreed = ask_approval(plan, yes=yes, question="deploy this?")
            # From now on a signal is noted, and handled where nothing is half done (D6).
            caught.stop = lambda: None
            return agreed

        try:
            done = deploy(
                project,
                env,
                approve=approve,
                plan_data=given,
                renames=renames or (),
                wait_s=wait_s,
                take_over=take_over,
                timeout_s=where.timeout_s,
                say=say,
                building=building,
                listener=LongWork(env),
            )
        except (Interrupted, KeyboardInterrupt):
            say("interrupted; nothing was changed")
            return INTERRUPTED
    if where.json:
        screen.json(_json(done, caught.name))
    else:
        _report(screen, done)
    if caught.name is not None:
        return INTERRUPTED
    return ERROR if done.failed or done.declined else 0


def show_destroy(
    where: ProjectOptions, *, yes: bool, lock_timeout: str, forget: Sequence[str] | None = None
) -> int:
    env, screen, wait_s = SystemEnv(), Screen(), seconds("--lock-timeout", lock_timeout)
    project = where.project(env)

    def approve(plan: Plan) -> bool:
        if not where.json:
            render(screen, plan)
        question = f"destroy the pipeline in {project.store}, with everything in it?"
        return ask_approval(plan, yes=yes, question=question, always=True)

    done = destroy(
        project,
        env,
        approve=approve,
        wait_s=wait_s,
        running=lambda claim: writer_liveness(claim, env) is not Liveness.DEAD,
        forget=forget or (),
        say=say,
    )
    if where.json:
        content = {"store": project.store, "objects": done.objects, "left": list(done.left)}
        screen.json({**content, "declined": done.declined})
    elif done.declined:
        screen.line("nothing was destroyed")
    elif not done.objects:
        screen.line(f"there is no pipeline in {project.store}: nothing to do")
    else:
        screen.line(f"destroyed: {count(done.objects, 'object')} deleted from {project.store}")
        for path in done.left:
            screen.line(f"not deleted, because Stepwell did not create it: {path}")
    return ERROR if done.declined else 0


def render(screen: Screen, plan: Plan) -> None:
    """Print a plan for the user."""
    changes = plan.changes
    if plan.refusal is not None:
        screen.line(f"refused: {plan.refusal}", "red")
    elif not changes:
        screen.line(f"nothing to do: {plan.store} matches the project")
    if not changes:
        return
    width = max(len(display_name(step.key)) for step in changes)
    for step in changes:
        sign, style = SIGNS[step.action]
        head = f"{sign} {step.action.value:<7}  {display_name(step.key):<{width}}"
        screen.line(f"{head}  {step.reason}".rstrip(), style)
        for line in _details(step):
            screen.line(f"    {line}")
    counts = {action: sum(step.action is action for step in plan.steps) for action in Action}
    parts = [
        f"{number} to {action.value}"
        for action, number in counts.items()
        if number and action is not Action.UNCHANGED
    ]
    screen.line()
    screen.line(f"plan: {', '.join(parts)}; {counts[Action.UNCHANGED]} unchanged")
    for step in plan.lost:
        screen.line(f"lost: {step.lost}", "red")


def _details(step: Step) -> list[str]:
    lines = list(step.difference)
    read = [f"{count(rows, 'row')} of {name}" for name, rows in step.work.items() if rows]
    if read:
        lines.append(f"reads about {', '.join(read)}")
    if step.refused:
        lines.append(f"refused: {step.refused}")
    if step.hint:
        lines.append(f"hint: {step.hint}")
    return lines


def ask_approval(plan: Plan, *, yes: bool, question: str, always: bool = False) -> bool:
    """Ask, unless `yes`. Without a terminal, approve only a plan that loses nothing (D9)."""
    if yes:
        return True
    if can_be_asked():
        return confirm(question)
    if always or plan.lost:
        lost = "; ".join(str(step.lost) for step in plan.lost) or "everything it stores"
        raise InvalidError(f"this would lose {lost}", hint="to do it anyway, add --yes")
    return True


def confirm(question: str) -> bool:
    """Ask a question; False if there is no terminal or the answer is not yes."""
    if not can_be_asked():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    with suppress(EOFError):
        return input().strip().lower() in ("y", "yes")
    return False


def can_be_asked() -> bool:
    return sys.stdin.isatty()


def _report(screen: Screen, done: Deployment) -> None:
    if done.declined:
        screen.line("nothing was deployed")
        return
    if done.interrupted:
        screen.line("interrupted; nothing was changed")
        return
    if done.changed is None:
        screen.line(f"nothing to do: {done.plan.store} matches the project")
        return
    for key, reason in sorted(done.failed.items()):
        screen.line(f"failed: {display_name(key)}: {reason}", "red")
    if done.changed.transaction is None:
        screen.line("nothing was changed")
    elif done.changed.transaction:
        screen.line(f"deployed, serial {done.serial}, in transaction {done.changed.transaction}")
    else:
        screen.line(f"deployed, serial {done.serial}")


def _json(done: Deployment, interrupted: str | None) -> dict[str, Any]:
    changed = done.changed
    return {
        "plan": done.plan.to_json(),
        "deployed": changed is not None and changed.transaction is not None,
        "declined": done.declined,
        "interrupted": interrupted,
        "serial": done.serial,
        "transaction": None if changed is None else changed.transaction,
        "failed": dict(done.failed),
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _read(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error


def _write(name: str, data: bytes) -> None:
    try:
        Path(name).write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{name} cannot be written: {error.strerror}") from error
