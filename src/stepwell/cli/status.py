"""`stepwell status`: the state of a pipeline, from the process that runs it or from its store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import typer

from stepwell.cli.pipeline_access import latest, opening_text, running
from stepwell.cli.profile import memory_text
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Row, Screen, count, plain, size
from stepwell.deploy.last_error import LastError, last_error
from stepwell.deploy.liveness import writer_liveness
from stepwell.deploy.program import as_deployed
from stepwell.deploy.project import Project
from stepwell.deploy.snapshot import no_pipeline
from stepwell.env import Env, SystemEnv
from stepwell.errors import UnavailableError
from stepwell.journal.log import Log
from stepwell.manifest.manifest import Manifest, Status, Stored
from stepwell.model import Claim, format_time
from stepwell.process import Liveness
from stepwell.store.retry import BRIEF_S


def show(where: ProjectOptions) -> None:
    env, screen = SystemEnv(), Screen()
    project = where.project(env, secrets=False)
    live: Mapping[str, Any] | None = None
    silent: UnavailableError | None = None
    try:
        client = running(project, env, where.timeout_s)
        if client is not None:
            with client:
                live = client.status()
    except UnavailableError as error:
        silent = error  # The state in the store is shown anyway.
    opening = None
    if live is not None and "opening" in live:
        opening, live = live, None
    try:
        # A process that answers knows more than the store, which may be unavailable.
        found = latest(project if live is None else replace(project, patience_s=BRIEF_S), env)
    except UnavailableError as error:
        if live is None:
            raise
        status = _without_store(project, env, live, error)
    else:
        if found is not None:
            project = as_deployed(project, found.manifest.program)
        status = _status(project, env, found, live)
    if opening is not None:
        text = opening_text(opening["pid"], opening["opening"])
        status.update(state="opening", pid=opening["pid"], opening=opening["opening"], said=text)
    elif silent is not None:
        status.update(state="not answering", said=silent.message, hint=silent.hint)
    if where.json:
        screen.json(status)
    else:
        _render(screen, status)
    if status["state"] == "not created":
        raise typer.Exit(1)


def _without_store(
    project: Project, env: Env, live: Mapping[str, Any], error: UnavailableError
) -> dict[str, Any]:
    """Return the status known to the running process while the store does not answer."""
    return {
        "project": project.name,
        "target": project.target,
        "store": project.store,
        "state": "running",
        "store_error": error.message,
        "held_by": {"epoch": live["epoch"], "host": env.host, "pid": live["pid"], "time": None},
        "parent": None,
        "clones": [],
        "sinks_off": [],
        **live,
    }


def _status(
    project: Project, env: Env, found: Stored | None, live: Mapping[str, Any] | None
) -> dict[str, Any]:
    status: dict[str, Any] = {
        "project": project.name,
        "target": project.target,
        "store": project.store,
        "state": "running" if live else "stopped",
    }
    if found is None:
        absent = no_pipeline(project, env)
        return {**status, "state": "not created", "said": absent.message, "hint": absent.hint}
    manifest = found.manifest
    if live is None:
        status["state"] = _state(manifest, env)
    status["lineage"] = manifest.lineage
    status["held_by"] = _claim(manifest.claim)
    status.update(_family(project, env, manifest))
    if live is not None:
        return {**status, **live}
    status["last_error"] = _ended_by(last_error(project.open_store(env)))
    journal_store = project.open_journal_store(env) or project.open_store(env)
    position = Log(journal_store, manifest.lineage).last(manifest.replay.position)
    progress = manifest.progress
    tables = {item.name: item.relation for item in project.sources}
    views = {item.name: item.relation for item in project.sinks}
    violations = {item.view: item.rows for item in progress.violations}
    waiting: dict[str, Counter[int]] = {}
    for item in progress.outbox:  # A large transaction is several files.
        waiting.setdefault(item.sink, Counter())[item.transaction] += item.size
    return {
        **status,
        "epoch": manifest.claim.epoch,
        "flushed": manifest.transaction,
        "position": position,
        "replay": manifest.replay.position,
        "sources": [
            {"name": at.name, "table": tables.get(at.name), "position": at.position}
            for at in progress.sources
        ],
        "sinks": [
            {
                "name": at.name,
                "view": views.get(at.name),
                "delivered": at.delivered,
                "pending": len(waiting.get(at.name, ())),
                "pending_bytes": sum(waiting.get(at.name, Counter()).values()),
            }
            for at in progress.sinks
        ],
        "dead_letters": {item.table: item.rows for item in progress.dead_letters},
        "tests": [
            {
                "name": test.name,
                "view": test.violations,
                "on_violation": test.on_violation,
                "violations": violations.get(test.violations),
            }
            for test in project.tests
        ],
    }


def _ended_by(error: LastError | None) -> dict[str, Any] | None:
    """Return the error that ended the last run."""
    if error is None:
        return None
    return {
        "time": format_time(error.time),
        "type": error.type,
        "message": error.message,
        "hint": error.hint,
    }


def _family(project: Project, env: Env, manifest: Manifest) -> dict[str, Any]:
    """Return the parent of a clone, and the pipeline's own clones."""
    parent = manifest.parent
    clones = [{"store": pin.clone, "checkpoint": pin.checkpoint} for pin in manifest.pins]
    origin = None
    if parent is not None:
        origin = {
            "store": parent.store,
            "checkpoint": parent.checkpoint,
            "pinned": parent.pin is not None,
        }
    return {"parent": origin, "clones": clones, "sinks_off": list(project.sinks_off(env))}


def _state(manifest: Manifest, env: Env) -> str:
    """Return the state of a pipeline that does not answer, as far as it is known."""
    if manifest.status is not Status.READY:
        return str(manifest.status.value)
    if manifest.journal.closed:
        return "stopped"
    alive = writer_liveness(manifest.claim, env)
    if alive is Liveness.UNKNOWN:
        return "unknown"
    return "not answering" if alive is Liveness.ALIVE else "killed"


def _claim(claim: Claim) -> dict[str, Any]:
    time = format_time(claim.time)
    return {"epoch": claim.epoch, "host": claim.host, "pid": claim.pid, "time": time}


STATES = {
    "running": "running, process {pid}",
    "opening": "being opened",
    "stopped": "stopped cleanly",
    "not created": "not created",
    "killed": "stopped by a crash or a kill: the next run replays what was not flushed",
    "not answering": "process {pid} holds it and does not answer; it may be starting",
    "incomplete": "a clone that was not completed: run the same clone again",
    "deleting": "being destroyed: destroy it again to finish",
    "unknown": "held by process {pid} on host {host}, which cannot be reached from here",
}


def _render(screen: Screen, status: Mapping[str, Any]) -> None:
    held = status.get("held_by", {"pid": "", "host": ""})
    state = STATES[status["state"]].format(pid=held["pid"], host=plain(str(held["host"])))
    if "said" in status:
        state = plain(status["said"])
    facts = [
        (
            "project",
            status["project"] + (f", target {status['target']}" if status["target"] else ""),
        ),
        ("store", status["store"]),
        ("state", state),
    ]
    if status.get("hint"):
        facts.append(("hint", plain(status["hint"])))
    facts += _outages(status)
    facts += _last_error(status)
    if "flushed" not in status:
        screen.facts(facts)
        return
    if "transaction" in status:
        facts.append(("transaction", _numbers(status)))
    else:
        facts.append(("flushed", f"transaction {status['flushed']}"))
    left = status["position"] - status["replay"]
    facts.append(
        ("journal", f"position {status['position']}, {_entries(left)} above the last flush")
    )
    dead = {table: rows for table, rows in status["dead_letters"].items() if rows}
    rejected = ", ".join(f"{rows:,} of {table}, see {table}$errors" for table, rows in dead.items())
    facts.append(("rejected", rejected or "none"))
    if status["tests"]:
        facts.append(("tests", _tests(status["tests"])))
    if status.get("cache"):
        facts.append(("cache", _cache(status["cache"])))
    if status.get("memory"):
        facts.append(("memory", memory_text(status["memory"])))
    facts += _relations(status)
    screen.facts(facts)
    if status["sources"]:
        screen.line()
        screen.table(["source", "table", "state"], [_source(item) for item in status["sources"]])
    if status["sinks"]:
        screen.line()
        headings = ["sink", "view", ">holds", ">pending", "state"]
        screen.table(headings, [_sink(item) for item in status["sinks"]])


def _tests(tests: list[Mapping[str, Any]]) -> str:
    """Summarize the data tests; a test that was never counted is not mentioned."""
    passing = sum(1 for test in tests if test["violations"] == 0)
    failing = [
        f"{test['name']} has {count(test['violations'], 'violation')}, see {test['view']}"
        for test in tests
        if test["violations"]
    ]
    return "; ".join([f"{passing} of {len(tests)} pass", *failing])


def _cache(cache: Mapping[str, Any]) -> str:
    asked = cache["hits"] + cache["misses"]
    hits = f", {cache['hits'] / asked:.0%} hits" if asked else ""
    return f"{size(cache['bytes'])} of {size(cache['bytes_max'])}{hits}"


def _outages(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the stores that the process waits for, or the store if it does not answer here."""
    waiting = [
        f"{item['store']} unavailable since {item['since']}, retrying until {item['until']}: "
        f"{item['error']}"
        for item in status.get("outages", ())
    ]
    if not waiting and "store_error" in status:
        waiting = [f"the store does not answer: {status['store_error']}"]
    return [("outage", plain(text)) for text in waiting]


def _last_error(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    error = status.get("last_error")
    if error is None:
        return []
    lines = [f"{error['time']}: {error['message']}"]
    lines += [f"hint: {error['hint']}"] if error["hint"] else []
    # A message may quote lines of SQL, which keep their own lines.
    lines = [line for text in lines for line in text.splitlines()]
    return [("last error" if not at else "", plain(line)) for at, line in enumerate(lines)]


def _relations(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the relations to other pipelines, if any."""
    facts = []
    parent = status["parent"]
    if parent is not None:
        needs = "" if parent["pinned"] else ", which it no longer needs"
        facts.append(("clone of", f"{plain(parent['store'])}{needs}"))
    if status["sinks_off"]:
        names = ", ".join(status["sinks_off"])
        whose = "original" if parent is None else "parent"
        facts.append(
            (
                "sinks off",
                f"{names}: they belong to the {whose}; sinks of this pipeline need other names",
            )
        )
    if status["clones"]:
        facts.append(("clones", ", ".join(plain(item["store"]) for item in status["clones"])))
    return facts


def _numbers(status: Mapping[str, Any]) -> str:
    flushed, bytes_ = status["flushed"], status["unflushed_bytes"]
    open = f", {status['open']} one open" if status["open"] else ""
    return f"{status['transaction']}, flushed up to {flushed}, {size(bytes_)} in memory{open}"


def _entries(number: int) -> str:
    return count(number, "entry", "entries")


def _source(item: Mapping[str, Any]) -> Row:
    begun = "at its start" if item["position"] is None else "ok"
    state = item.get("error") or item.get("waiting") or begun
    return Row((item["name"], item["table"] or ""), plain(state))


def _sink(item: Mapping[str, Any]) -> Row:
    cells = (item["name"], item["view"] or "", str(item["delivered"]), str(item["pending"]))
    waits = size(item["pending_bytes"]) if item.get("pending_bytes") else ""
    usual = f"behind, {waits} waiting" if waits else "behind" if item["pending"] else "ok"
    state = plain(item.get("error") or (f"full, {waits} waiting" if item.get("full") else usual))
    return Row(cells, f"stopped: {state}" if item.get("stopped") else state)
