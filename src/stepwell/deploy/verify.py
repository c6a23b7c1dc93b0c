"""Verification of the objects of deploys: the record, the log in progress, the lease (K11).

`manifest/verify` checks the pipeline itself, which does not use these objects: their corruption
never stops a pipeline, only the next deploy. A deploy in progress changes them all the time, so a
finding counts only if nothing has changed during the check.

Two losses leave no trace: the last object of a log, which may never have been written, and the
record of a clone, which begins without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepwell.deploy.last_error import check_last_error
from stepwell.deploy.lease import check_lease
from stepwell.deploy.log import REPAIR, check_log
from stepwell.deploy.program import read_program
from stepwell.deploy.resources import resources_to_json
from stepwell.deploy.state_file import decide, read_state
from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError
from stepwell.journal import paths
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.manifest.verify import Finding, Report
from stepwell.store.base import Store

_TRIES = 5
_FOLDER = "deploy/"
_DEPLOY = "at the next deploy, which refuses to start; not for the pipeline"


def verify_deployed(store: Store, env: Env, report: Report) -> Report:
    """Add findings about the deploys to the report of a pipeline. Only reads."""
    for attempt in range(_TRIES):
        listed, found = store.list(_FOLDER), _findings(store, env)
        if not found or attempt == _TRIES - 1 or store.list(_FOLDER) == listed:
            break
    return replace(
        report,
        findings=(*report.findings, *found),
        objects=report.objects + len(listed),
    )


def _findings(store: Store, env: Env) -> tuple[Finding, ...]:
    found: list[Finding] = []

    def check(look: Callable[[], None], matters: str, repair: str) -> None:
        try:
            look()
        except CorruptError as error:
            what = error.message.removeprefix(f"{error.object}: ")
            found.append(Finding(error.object, what, matters, repair))
        except InvalidError as error:
            found.append(Finding(f"{store.uri}/{_FOLDER}", error.message, matters, repair))

    try:
        latest = Manifests(store, env).latest()
        manifest = None if latest is None else latest.manifest
        deployed = read_program(None if manifest is None else manifest.program, store.uri)[0]
    except (CorruptError, InvalidError):
        return ()  # Reported for the pipeline; a record is checked against a valid manifest.
    if manifest is None:
        return ()
    ids = [resource.id for resource in deployed.values() if resource.id]
    check(lambda: _check_record(store, manifest, bool(ids)), _DEPLOY, REPAIR)
    for object, what in check_log(store):
        found.append(Finding(object, what, _DEPLOY, REPAIR))
    if not found:
        actual = resources_to_json(deployed)
        check(lambda: _decide(store, manifest, actual), _DEPLOY, REPAIR)
    check(
        lambda: check_lease(store),
        "at the next deploy, which waits until the lease has expired; not for the pipeline",
        "stepwell deploy rebuilds it",
    )
    check(
        lambda: _check_note(store),
        "now: stepwell status does not show the error that ended the last run",
        "nothing to do: the next run that succeeds removes it",
    )
    return tuple(found)


def _check_record(store: Store, manifest: Manifest, has_ids: bool) -> None:
    state = read_state(store)
    if state.etag is None and has_ids and manifest.parent is None:
        where = f"{store.uri}/{paths.RESOURCES}"
        raise CorruptError(where, "missing, though this pipeline was deployed")


def _check_note(store: Store) -> None:
    check_last_error(store)


def _decide(store: Store, manifest: Manifest, actual: dict[str, object]) -> None:
    decide(store, read_state(store), manifest.lineage, actual)
