"""The deployment record: `resources.json`, brought up to date from the log of a deploy.

The manifest's program is what *is* deployed. This file is the deployer's record of it, with a
serial that changes only together with the save that persists it. A save is one compare-and-swap, so
a crash leaves either the old record or the new one. `recover` merges the log that a crash leaves:

    no record in it                  discarded, the serial stays
    serial = committed + 1           merge outcomes, and intents that the manifest shows as done
    serial <= committed              dropped: it was saved, but not removed
    serial > committed + 1, another lineage, corruption in the middle    refused, nothing is touched

Recovery is idempotent: after the save the log is stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stepwell import __version__
from stepwell.deploy.log import REPAIR, LogContent, Record, read_log, remove_log
from stepwell.env import Env
from stepwell.errors import ConflictError, CorruptError, InvalidError
from stepwell.journal import paths
from stepwell.store.base import Store
from stepwell.store.patient import patience_of
from stepwell.store.sealed import Json, read_sealed, seal

FORMAT = "stepwell-resources/1"
FEATURES: frozenset[str] = frozenset()
"""Features that a record may require of its reader. A record with an unknown one is rejected."""

Resources = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class DeployState:
    """A record as it was read. `etag` is None if it was never saved."""

    lineage: str | None = None
    serial: int = 0
    resources: Resources = field(default_factory=dict)
    tool_version: str = __version__
    etag: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The decision about a log, before it is carried out."""

    state: DeployState
    """The state after recovery."""
    save: bool
    log: LogContent | None
    message: str | None
    adopted: tuple[str, ...] = ()
    """Keys of actions without a logged outcome that happened according to the manifest."""


def read_state(store: Store) -> DeployState:
    """Read the committed record; empty if nothing was ever deployed. Only reads."""
    try:
        return _read_state(store)
    except CorruptError as error:
        problem = error.message.removeprefix(f"{error.object}: ")
        hint = f"the pipeline is not harmed. {REPAIR} rebuilds the record from the manifest"
        raise CorruptError(error.object, problem, hint=hint) from error


def serial_above(state: DeployState, version: int) -> int:
    """Return a serial that no deploy had, for a lost record; ids are derived from serials (D4).

    Every deploy commits a manifest, so the latest manifest version is at least as large as any
    serial.
    """
    return max(state.serial, version) + 1


def _read_state(store: Store) -> DeployState:
    found = read_sealed(store, paths.RESOURCES, FORMAT)
    if found is None:
        return DeployState()
    fields, etag = found
    features = fields.any("features")
    unknown = sorted(set(features) - FEATURES) if isinstance(features, list) else ["?"]
    if unknown:
        raise InvalidError(
            f"{fields.object} needs {', '.join(map(str, unknown))}, which this Stepwell "
            f"({__version__}) does not know; it was written by {fields.text('tool_version')}",
            hint="upgrade Stepwell on this machine: pip install --upgrade stepwell",
        )
    resources = fields.child("resources")
    return DeployState(
        lineage=fields.id("lineage"),
        serial=fields.number("serial", least=1),
        resources={key: resources.any(key) for key in resources.names()},
        tool_version=fields.text("tool_version"),
        etag=etag,
    )


def save_state(store: Store, env: Env, state: DeployState) -> DeployState:
    """Replace the record that was read; `ConflictError` if it has changed since.

    A crash leaves either the old record or the new one, whole.
    """
    resources = dict(sorted(state.resources.items()))
    data = seal(
        FORMAT,
        {
            "tool_version": __version__,
            "lineage": state.lineage,
            "serial": state.serial,
            "features": sorted(FEATURES),
            "resources": resources,
        },
    )

    def put() -> str:
        try:
            if state.etag is None:
                store.put_new(paths.RESOURCES, data)
            else:
                store.replace_if(paths.RESOURCES, data, state.etag)
        except ConflictError:
            found = store.get(paths.RESOURCES)
            # It may be our own write, sent twice because the first answer was lost.
            if found is not None and found.data == data:
                return found.etag
            raise ConflictError(
                f"{store.uri}/{paths.RESOURCES} was changed by another deploy in the meantime",
                hint="this one lost its lease; check with stepwell plan",
            ) from None
        saved = store.get(paths.RESOURCES)
        return "" if saved is None else saved.etag

    unknown = f"{paths.RESOURCES} may or may not have been saved"
    etag = patience_of(store, env).run(put, lambda: unknown)
    return replace(state, resources=resources, tool_version=__version__, etag=etag)


def merge(resources: Resources, records: tuple[Record, ...]) -> dict[str, Json]:
    """Apply these actions to the resources, in order."""
    merged = dict(resources)
    for record in records:
        if record.value is None:
            merged.pop(record.key, None)
        else:
            merged[record.key] = record.value
    return merged


def decide(store: Store, state: DeployState, lineage: str | None, actual: Resources) -> Recovery:
    """Decide how to recover from a log. Only reads, so that `plan` can use it, too.

    `lineage` is the pipeline's; `actual` are the deployed resources according to its manifest.
    """
    if state.lineage is not None and lineage is not None and state.lineage != lineage:
        raise _refused(store, paths.RESOURCES, "lineage", lineage, state.lineage)
    log = read_log(store, state.serial)
    if log is None:
        return Recovery(state, False, None, None)
    if log.header is None:
        message = "a deploy was killed while it started its log; the log was discarded"
        return Recovery(state, False, log, message)
    header, committed = log.header, state.serial
    if log.stale:
        message = f"the log of serial {header.serial} was already saved, and was deleted"
        return Recovery(state, False, log, message)
    known = state.lineage or lineage
    if known is not None and header.lineage != known:
        raise _refused(store, paths.deploy_log(0), "lineage", known, header.lineage)
    if header.serial > committed + 1:
        raise _refused(
            store,
            paths.deploy_log(0),
            "serial",
            f"{committed + 1}, the one after the committed serial {committed}",
            str(header.serial),
        )
    done = {(r.key, r.action) for r in log.records if r.phase == "done"}
    adopted = tuple(
        r.key
        for r in log.records
        if r.phase == "intent" and (r.key, r.action) not in done and _happened(r, actual)
    )
    happened = tuple(
        r for r in log.records if r.phase == "done" or (r.key in adopted and r.phase == "intent")
    )
    if not happened:
        message = "a deploy was killed before it had changed anything; its log was discarded"
        return Recovery(state, False, log, message)
    after = replace(
        state,
        lineage=header.lineage,
        serial=header.serial,
        resources=merge(state.resources, happened),
    )
    named = ", ".join(sorted({r.key for r in happened}))
    message = f"a deploy was killed after it had changed {named}; that was recorded"
    return Recovery(after, True, log, message, adopted)


def recover(store: Store, env: Env, decided: Recovery) -> DeployState:
    """Carry out a recovery: save, then remove the log. If killed in between, the log is stale."""
    state = decided.state
    if decided.save:
        state = save_state(store, env, state)
    if decided.log is not None:
        remove_log(store)
    return state


def _happened(record: Record, actual: Resources) -> bool:
    found = actual.get(record.key)
    if record.value is None:
        return found is None
    return found is not None and found.get("id") == record.value.get("id")


def _refused(store: Store, path: str, field: str, expected: str, found: str) -> CorruptError:
    return CorruptError(
        f"{store.uri}/{path}",
        f"expected {expected}, found {found}",
        field=field,
        hint=f"nothing was changed. {REPAIR} shows what it would do",
    )
