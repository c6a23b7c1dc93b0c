"""Verification of what deploys leave: the record, the log of one under way, the lease (K11).

`state/verify` looks at the pipeline itself; these objects lie beside it and are of no use to it, so
their damage never stops a pipeline, only the next deploy. A deploy that is at work changes them all
the time: what is amiss counts once nothing has changed while it was looked at.

Two losses leave no trace: the last object of a log, which may never have been written; and the
record of a clone, which begins without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepwell.deploy.lease import check_lease
from stepwell.deploy.log import REPAIR, check_log
from stepwell.deploy.program import read_program
from stepwell.deploy.resources import resources_to_json
from stepwell.deploy.state_file import decide, read_state
from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError
from stepwell.journal import paths
from stepwell.state.manifest import Manifest, Manifests
from stepwell.state.verify import Finding, Report
from stepwell.store.base import Store

_TRIES = 5
_FOLDER = "deploy/"
_DEPLOY = "at the next deploy, which refuses to begin; not for the pipeline"


def verify_deployed(store: Store, env: Env, report: Report) -> Report:
    """The report of a pipeline, and what is to be said of its deploys. Reads only."""
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
        return ()  # Said of the pipeline already; it is the truth that a record is compared with.
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
        "at the next deploy, which waits until it is sure that nobody holds it; not for the "
        "pipeline",
        "stepwell deploy writes it anew",
    )
    return tuple(found)


def _check_record(store: Store, manifest: Manifest, has_ids: bool) -> None:
    state = read_state(store)
    if state.etag is None and has_ids and manifest.parent is None:
        where = f"{store.uri}/{paths.RESOURCES}"
        raise CorruptError(where, "missing, though this pipeline was deployed")


def _decide(store: Store, manifest: Manifest, actual: dict[str, object]) -> None:
    decide(store, read_state(store), manifest.lineage, actual)
