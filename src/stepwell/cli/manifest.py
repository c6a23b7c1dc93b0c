"""`stepwell inspect manifest`: one version of a pipeline's manifest, checked and formatted."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.cli.addresses import Single, nothing_here, open_existing_store, read_single
from stepwell.cli.screen import Row, Screen, count, plain, size, span
from stepwell.env import Env, SystemEnv
from stepwell.errors import CorruptError, InvalidError
from stepwell.manifest.manifest import FORMAT, Manifest, Manifests, Stored, from_json, to_json
from stepwell.model import format_time
from stepwell.store.sealed import unseal


def show(place: str, *, id: int | None, json: bool) -> None:
    env, screen = SystemEnv(), Screen()
    single = read_single(place, env, "manifest")
    ids: Sequence[int] = ()
    if single is not None:
        where, stored = single.where, _decode(single)
    else:
        where, stored, ids = _find(place, env, id)
    if json:
        content = {"object": where, "id": stored.id, **to_json(stored.manifest)}
        screen.json({**content, "ids": list(ids)} if ids else content)
    else:
        _render(screen, where, stored, ids)


def _decode(single: Single) -> Stored:
    """Decode a single version, without its store."""
    fields = unseal(single.data, format=FORMAT, object=single.where)
    id = fields.number("id", least=1)
    if single.number is not None and single.number != id:
        raise CorruptError(single.where, f"holds version {id}", field="id")
    return Stored(id, from_json(fields.child("body")))


def _find(place: str, env: Env, id: int | None) -> tuple[str, Stored, Sequence[int]]:
    store = open_existing_store(place, env)
    manifests = Manifests(store, env)
    stored = manifests.latest() if id is None else manifests.read(id)
    ids = manifests.ids()
    if stored is not None:
        return manifests.full_name(stored.id), stored, ids
    if not ids:
        raise nothing_here(store, "pipeline: there is no manifest")
    raise InvalidError(
        f"{manifests.full_name(id or 0)} does not exist",
        hint=f"the versions in the store: {span(ids)}; without --id you get the latest",
    )


def _render(screen: Screen, where: str, stored: Stored, ids: Sequence[int]) -> None:
    manifest = stored.manifest
    claim = manifest.claim
    screen.facts(
        [
            ("manifest", where),
            ("version", _version(stored.id, ids)),
            ("pipeline", f"{manifest.lineage}, {manifest.status.value}"),
            ("epoch", str(claim.epoch)),
            (
                "held by",
                f"host {plain(claim.host)}, pid {claim.pid}, since {format_time(claim.time)}",
            ),
            ("transaction", str(manifest.transaction) if manifest.transaction else "none yet"),
            ("replay", _replay(manifest)),
            ("journal", _journal(manifest)),
            ("program", "none yet" if manifest.program is None else "see --json"),
            ("parent", _parent(manifest)),
            ("runs", count(len(manifest.all_runs), "file") if manifest.all_runs else "none"),
            ("checkpoints", str(len(manifest.checkpoints) or "none")),
            ("clones", str(len(manifest.pins) or "none")),
        ]
    )
    runs = [
        Row((plain(run.relation), f"{run.rows:,}", size(run.size)), plain(run.path))
        for run in manifest.all_runs
    ]
    checkpoints = [
        Row((item.id, str(item.transaction), format_time(item.created)), plain(item.name or ""))
        for item in manifest.checkpoints
    ]
    pins = [Row((pin.id, pin.checkpoint), plain(pin.clone)) for pin in manifest.pins]
    tables: list[tuple[str, tuple[str, ...], list[Row]]] = [
        ("Runs", ("relation", ">rows", ">bytes", "path"), runs),
        ("Checkpoints", ("id", ">transaction", "created", "name"), checkpoints),
        ("Clones", ("pin", "checkpoint", "store"), pins),
    ]
    for title, headings, rows in tables:
        if rows:
            screen.line()
            screen.line(title)
            screen.table(headings, rows)


def _version(id: int, ids: Sequence[int]) -> str:
    if not ids:
        return str(id)
    which = "the latest" if id == ids[-1] else f"not the latest, which is {ids[-1]}"
    return f"{id}, {which}; {count(len(ids), 'version')} kept: {span(ids)}"


def _replay(manifest: Manifest) -> str:
    replay = manifest.replay
    if not replay.position:
        return "from the beginning of the journal"
    return f"after position {replay.position} (epoch {replay.epoch}, checksum {replay.checksum})"


def _parent(manifest: Manifest) -> str:
    parent = manifest.parent
    if parent is None:
        return "none"
    pin = "its files are pinned" if parent.pin is not None else "it is no longer needed"
    return f"{plain(parent.store)}, checkpoint {parent.checkpoint}; {pin}"


def _journal(manifest: Manifest) -> str:
    if manifest.journal.id is None:
        return "none attached yet"
    state = (
        "closed: it holds nothing that is needed, and may be wiped"
        if manifest.journal.closed
        else "in use: it holds what was acknowledged after the replay position"
    )
    return f"{manifest.journal.id}, {state}"
