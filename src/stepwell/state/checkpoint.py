"""Checkpoints: a moment of a pipeline in one object, which holds all that restoring it needs.

    <store>/checkpoints/<ulid>.json      {id, created, state}

`state` is the body of the manifest at that moment; its runs (of relations, and of the names that
sources have taken) and its undelivered output are the list of every file the checkpoint needs, with
size and checksum (K5). That list is the only one: restore, verification, collection and clones all
read it.

The object comes first and counts once a manifest names it. A crash in between leaves an object that
nobody names; collection removes it. Changes to the list of checkpoints are compare-and-swap like
every commit, so of a collector and whoever names a checkpoint one comes first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stepwell.env import Env, Rising, made_at
from stepwell.errors import (
    CheckpointMissing,
    ConflictError,
    CorruptError,
    InvalidError,
    TruncatedError,
)
from stepwell.journal import paths
from stepwell.journal.entry import Cursor
from stepwell.model import Checksum, Transaction, checksum, format_time
from stepwell.state.manifest import CheckpointRef, Manifest, Manifests, from_json, to_json
from stepwell.state.progress import NO_PROGRESS
from stepwell.state.timeline import Timelines
from stepwell.store.base import Store
from stepwell.store.sealed import reread, seal, unseal

FORMAT = "stepwell-checkpoint/5"
KEEP = 2
"""How many checkpoints without a name stay, if nobody says otherwise (K10)."""
REPAIR = "stepwell restore repairs it from the newest whole checkpoint and the journal"
_TRIES = 100
_HOUR_S, _DAY_S = 3600, 86400
_PIECE = 4 * 2**20
_WORKERS = os.cpu_count() or 2
_PREFIX = 4
"""How much of an id must be given."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that a state needs."""

    path: str
    size: int
    checksum: Checksum
    root: str | None = None
    """The store it lies in, if not the pipeline's own."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    id: str
    created: datetime
    state: Manifest
    """Without checkpoints and pins."""

    @property
    def files(self) -> tuple[File, ...]:
        return files_of(self.state)

    @property
    def is_beginning(self) -> bool:
        """Whether it is the empty state before the first transaction, which no object holds."""
        return not self.id


def beginning_of(manifest: Manifest) -> Checkpoint | None:
    """The state before the first transaction, from which a whole journal leads everywhere.

    None if replay cannot begin there: a clone begins with what its parent had, and another program
    did not compute what this one has.
    """
    if manifest.parent is not None or manifest.generation:
        return None
    state = replace(
        manifest,
        replay=Cursor(),
        transaction=Transaction(0),
        runs=(),
        progress=NO_PROGRESS,
        checkpoints=(),
        pins=(),
    )
    return Checkpoint("", made_at(manifest.lineage), state)


def files_of(manifest: Manifest) -> tuple[File, ...]:
    """Every file that a manifest needs by itself, its checkpoints left out."""
    runs = [File(run.path, run.size, run.checksum, run.root) for run in manifest.all_runs]
    outbox = [File(item.path, item.size, item.checksum) for item in manifest.progress.outbox]
    return (*runs, *outbox)


def write_checkpoint(
    store: Store,
    env: Env,
    state: Manifest,
    *,
    name: str | None = None,
    keep_s: float | None = None,
) -> CheckpointRef:
    """Store a checkpoint of a state, durably; it counts once a manifest names it.

    `env` draws ids above the floor of the manifest that will be built upon.
    """
    id, created = env.new_id(), env.now()
    body = seal(
        FORMAT,
        {
            "id": id,
            "created": format_time(created),
            "state": to_json(replace(state, checkpoints=(), pins=())),
        },
    )
    store.put_new(paths.checkpoint(id), body)
    return CheckpointRef(
        id=id,
        transaction=state.transaction,
        created=created,
        size=len(body),
        checksum=checksum([body]),
        name=name,
        expires=None if keep_s is None else created + timedelta(seconds=keep_s),
    )


def read_checkpoint(store: Store, id: str, ref: CheckpointRef | None = None) -> Checkpoint:
    """A checkpoint's object, checked. `ref` is what the manifest says of it, where it does."""
    return reread(lambda: _read(store, id, ref))


def _read(store: Store, id: str, ref: CheckpointRef | None) -> Checkpoint:
    path = paths.checkpoint(id)
    where = f"{store.uri}/{path}"
    found = store.get(path)
    if found is None:
        raise TruncatedError(
            where,
            "missing, though the manifest names it",
            hint="restore the object from a backup, or delete the checkpoint",
        )
    fields = unseal(found.data, format=FORMAT, object=where)
    if fields.id("id") != id:
        raise fields.wrong("id", f"{id}, as in its name")
    if ref is not None and checksum([found.data]) != ref.checksum:
        raise CorruptError(
            where,
            f"expected checksum {ref.checksum}, as the manifest has it",
            field="checksum",
            hint="it was replaced: restore the object from a backup, or delete the checkpoint",
        )
    return Checkpoint(id, fields.time("created"), from_json(fields.child("state")))


def check_name(name: str) -> str:
    """A name a person gave to a checkpoint."""
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise InvalidError(
            f"not a name for a checkpoint: {name!r}",
            hint="give up to 200 printable characters, for example before-migration",
        )
    return name


def find_checkpoint(manifest: Manifest, wanted: str, where: str) -> CheckpointRef:
    """By id, by name (the newest of that name), or by the beginning of an id."""
    found = [item for item in manifest.checkpoints if item.id == wanted.upper()]
    found = found or [item for item in manifest.checkpoints if item.name == wanted][-1:]
    if len(wanted) >= _PREFIX:
        found = found or [i for i in manifest.checkpoints if i.id.startswith(wanted.upper())]
    if len(found) == 1:
        return found[0]
    known = ", ".join(item.name or item.id for item in manifest.checkpoints[-5:])
    raise CheckpointMissing(
        f"{where} has {'several checkpoints' if found else 'no checkpoint'} {wanted}",
        hint=f"there are: {known}" if known else "there is none: stepwell checkpoint create",
    )


# Changes to the list, each a function from one manifest to the next


def adding(
    ref: CheckpointRef, keep: int = KEEP, reach_s: float = 0.0
) -> Callable[[Manifest], Manifest]:
    """Name a checkpoint, and let go of those that retention does not keep."""

    def change(manifest: Manifest) -> Manifest:
        kept = retained(manifest, keep, ref.created, reach_s)
        return replace(manifest, checkpoints=(*kept, ref))

    return change


def retained(
    manifest: Manifest, keep: int, now: datetime, reach_s: float = 0.0
) -> tuple[CheckpointRef, ...]:
    """Those that stay beside one more: named, unexpired, pinned, or among the newest `keep`.

    `reach_s`: also those from which the journal leads to every transaction of so many seconds.
    """
    items = manifest.checkpoints
    own = [item for item in items if item.name is None and item.expires is None]
    newest = {item.id for item in own[max(0, len(own) - keep + 1) :]}
    if reach_s > 0:
        newest |= _reaching(own, manifest.timelines, now, reach_s)
    pinned = {pin.checkpoint for pin in manifest.pins}

    def stays(item: CheckpointRef) -> bool:
        if item.id in pinned or item.id in newest:
            return True
        if item.expires is not None:
            return item.expires > now
        return item.name is not None

    return tuple(item for item in items if stays(item))


def _reaching(
    own: Sequence[CheckpointRef], timelines: Timelines, now: datetime, reach_s: float
) -> set[str]:
    """Thinned out: the first of every hour of the last day, and of every day before it.

    Besides, the newest of those that are older than `reach_s`: the journal is followed from there.
    And the first after every restore: numbers are missing before it, so that no journal leads
    there from an earlier one.
    """
    ids: set[str] = set()
    slots: set[tuple[int, int]] = set()
    since = [item.since for item in timelines if item.since and not item.resumed]
    oldest: str | None = None
    for item in own:
        age_s = (now - item.created).total_seconds()
        if age_s > reach_s:
            oldest = item.id
            continue
        width = _HOUR_S if age_s < _DAY_S else _DAY_S
        slot = width, int(item.created.timestamp()) // width
        restored = [start for start in since if start < item.transaction]
        since = [start for start in since if start >= item.transaction]
        if slot not in slots or restored:
            ids.add(item.id)
        slots.add(slot)
    return ids if oldest is None else {*ids, oldest}


def expired(manifest: Manifest, keep: int, now: datetime) -> tuple[CheckpointRef, ...]:
    """Those whose time is over: neither pinned, nor among the newest `keep`."""
    pinned = {pin.checkpoint for pin in manifest.pins}
    older = manifest.checkpoints[: max(0, len(manifest.checkpoints) - keep)]
    return tuple(
        item
        for item in older
        if item.id not in pinned and item.expires is not None and item.expires <= now
    )


def dropping(id: str, where: str) -> Callable[[Manifest], Manifest]:
    """Let a checkpoint go. A clone's pin keeps what the clone needs of it."""

    def change(manifest: Manifest) -> Manifest:
        ref = find_checkpoint(manifest, id, where)
        return replace(
            manifest, checkpoints=tuple(i for i in manifest.checkpoints if i.id != ref.id)
        )

    return change


def refreshing(id: str, expires: datetime | None, where: str) -> Callable[[Manifest], Manifest]:
    """Give a checkpoint another lifetime; None: for ever."""

    def change(manifest: Manifest) -> Manifest:
        ref = find_checkpoint(manifest, id, where)
        changed = replace(ref, expires=expires)
        return replace(
            manifest,
            checkpoints=tuple(changed if i.id == ref.id else i for i in manifest.checkpoints),
        )

    return change


def checkpoint_as_it_lies(
    manifests: Manifests, env: Env, *, name: str | None = None, keep_s: float | None = None
) -> CheckpointRef:
    """Name the state that is flushed, without being the writer and without disturbing it.

    What came after it is in the journal. A flush that comes in between may have raised the floor
    above the new object, which a collector may then remove: it is written anew.
    """
    ids = Rising(env)
    for _ in range(_TRIES):
        found = manifests.latest()
        if found is None:
            raise InvalidError(f"{manifests.store.uri} holds no pipeline")
        state = found.manifest
        ids.above(state.floor)
        ref = write_checkpoint(manifests.store, ids, state, name=name, keep_s=keep_s)

        def change(
            manifest: Manifest, ref: CheckpointRef = ref, state: Manifest = state
        ) -> Manifest:
            if (manifest.floor, manifest.runs) != (state.floor, state.runs):
                raise ConflictError("the pipeline was flushed meanwhile")
            return replace(manifest, checkpoints=(*manifest.checkpoints, ref))

        try:
            manifests.amend(change, "checkpoint")
        except ConflictError:
            continue
        return ref
    raise ConflictError(f"checkpoint: overtaken by {_TRIES} flushes in a row")


# Are its files there?


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not as a list says."""

    file: File
    where: str
    what: str


Stores = Callable[[str | None], Store]
"""The store of a root; None: the pipeline's own."""


def check_files(files: Iterable[File], stores: Stores) -> tuple[Damage, ...]:
    """Which files are missing or have another size: by listing, so it grows with their number."""
    by_root: dict[str | None, list[File]] = {}
    for file in files:
        by_root.setdefault(file.root, []).append(file)
    return tuple(
        damage for root, wanted in by_root.items() for damage in _check(stores(root), wanted)
    )


def _check(store: Store, wanted: Sequence[File]) -> Iterator[Damage]:
    # One listing for all relations, and not one for each: openings ask this, too.
    folders = sorted({file.path.partition("/")[0] + "/" for file in wanted})
    sizes = {item.path: item.size for folder in folders for item in store.list(folder)}
    for file in wanted:
        size = sizes.get(file.path)
        where = f"{store.uri}/{file.path}"
        if size is None:
            yield Damage(file, where, "missing")
        elif size != file.size:
            yield Damage(file, where, f"has {size} bytes, not {file.size}")


Sums = dict[tuple[str | None, str], Checksum]
"""The checksums of files that were read, by root and path."""


def check_contents(files: Iterable[File], stores: Stores, sums: Sums) -> tuple[Damage, ...]:
    """The same, and which have other bytes than their checksum says: all of them are read (K9).

    But for those in `sums`, to which the others are added: checkpoints share most of their files.
    """
    files = tuple(files)
    damaged = check_files(files, stores)
    whole = [file for file in files if file not in {item.file for item in damaged}]
    unread = [file for file in whole if (file.root, file.path) not in sums]
    for file, sum in zip(unread, sum_files(unread, stores), strict=True):
        sums[file.root, file.path] = sum
    found = ((file, sums[file.root, file.path]) for file in whole)
    return (*damaged, *(_changed(file, sum, stores) for file, sum in found if sum != file.checksum))


def _changed(file: File, found: Checksum, stores: Stores) -> Damage:
    what = f"was changed: its checksum is {found}, not {file.checksum}"
    return Damage(file, f"{stores(file.root).uri}/{file.path}", what)


def sum_files(files: Sequence[File], stores: Stores) -> Iterator[Checksum]:
    """The checksum of each file's bytes, in order. Memory does not grow with their size."""
    # Several files at a time: reading and summing up are the work of all cores.
    with ThreadPoolExecutor(_WORKERS) as workers:
        yield from workers.map(lambda file: checksum(_pieces(stores(file.root), file)), files)


def _pieces(store: Store, file: File) -> Iterator[bytes]:
    start = 0
    while start < file.size:
        piece = store.get_range(file.path, start, min(_PIECE, file.size - start))
        if not piece:
            return  # Gone, or cut off, since it was listed.
        start += len(piece)
        yield piece


def refuse_damaged(found: Sequence[Damage]) -> None:
    """Raise what is wrong with files that are needed, each by its name."""
    if not found:
        return
    first, *others = found
    problem = first.what
    if others:
        named = [f"{item.where} ({item.what})" for item in others[:9]]
        more = f", and {len(others) - 9} more" if len(others) > 9 else ""
        problem += f"; besides it: {', '.join(named)}{more}"
    if first.what == "missing":
        raise TruncatedError(first.where, problem, hint=REPAIR)
    raise CorruptError(first.where, problem, field="size", hint=REPAIR)
