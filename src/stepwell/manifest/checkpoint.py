"""Checkpoints: a state of a pipeline in one object, with everything needed to restore it.

    <store>/checkpoints/<ulid>.json      {id, created, state}

`state` is the body of the manifest at that moment. Its runs (of relations, and of the names that
sources have taken) and its undelivered output list every file the checkpoint needs, with size and
checksum (K5). No other list exists: restore, verification, collection and clones all read this one.

The object is written first and takes effect once a manifest names it. A crash in between leaves an
orphan, which collection removes. Changes to the list of checkpoints are compare-and-swap like every
commit, so they are ordered with respect to a collector.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stepwell.env import Env, MonotonicIds, made_at
from stepwell.errors import (
    CheckpointMissing,
    ConflictError,
    CorruptError,
    InvalidError,
    TruncatedError,
)
from stepwell.journal import paths
from stepwell.journal.entry import Cursor
from stepwell.manifest.manifest import CheckpointRef, Manifest, Manifests, from_json, to_json
from stepwell.manifest.progress import NO_PROGRESS
from stepwell.manifest.timeline import Timelines
from stepwell.model import Checksum, Transaction, checksum, format_time
from stepwell.store.base import Store
from stepwell.store.sealed import reread, seal, unseal

FORMAT = "stepwell-checkpoint/5"
KEEP = 2
"""Default number of unnamed checkpoints to keep (K10)."""
REPAIR = "stepwell restore repairs it from the newest intact checkpoint and the journal"
_TRIES = 100
_HOUR_S, _DAY_S = 3600, 86400
_PIECE = 4 * 2**20
_WORKERS = os.cpu_count() or 2
_PREFIX = 4
"""Minimum length of an abbreviated id."""


@dataclass(frozen=True, slots=True)
class File:
    """A file needed by a state."""

    path: str
    size: int
    checksum: Checksum
    root: str | None = None
    """The store of the file, if it is not the pipeline's own."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    id: str
    created: datetime
    state: Manifest
    """The manifest, without checkpoints and pins."""

    @property
    def files(self) -> tuple[File, ...]:
        return files_of(self.state)

    @property
    def is_beginning(self) -> bool:
        """Whether this is the empty state before the first transaction, which has no object."""
        return not self.id


def beginning_of(manifest: Manifest) -> Checkpoint | None:
    """The state before the first transaction, from which a complete journal reaches any state.

    None if replay cannot begin there: a clone begins with its parent's state, and a different
    program did not compute the present state.
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
    """Every file that a manifest needs by itself, not counting its checkpoints."""
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
    """Store a checkpoint of a state durably; it takes effect once a manifest names it.

    `env` generates ids above the floor of the manifest that the next commit builds on.
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
    """Read and check a checkpoint's object. `ref` is its reference in the manifest, if any."""
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
    """Check a user-supplied checkpoint name."""
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise InvalidError(
            f"not a name for a checkpoint: {name!r}",
            hint="give up to 200 printable characters, for example before-migration",
        )
    return name


def find_checkpoint(manifest: Manifest, wanted: str, where: str) -> CheckpointRef:
    """Look up a checkpoint by id, by name (the newest of that name), or by an abbreviated id."""
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
    """Add a checkpoint, and drop those that retention does not keep."""

    def change(manifest: Manifest) -> Manifest:
        kept = retained(manifest, keep, ref.created, reach_s)
        return replace(manifest, checkpoints=(*kept, ref))

    return change


def retained(
    manifest: Manifest, keep: int, now: datetime, reach_s: float = 0.0
) -> tuple[CheckpointRef, ...]:
    """The checkpoints that stay when one is added: named, unexpired, pinned, or the newest `keep`.

    With `reach_s`, also those from which the journal reaches every transaction of the last
    `reach_s` seconds.
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
    """Thinned-out restore points: the first of each hour of the last day, and of each day before.

    Also the newest checkpoint older than `reach_s`, from which the journal is replayed, and the
    first one after each restore: transaction numbers are missing before it, so no journal leads
    there from an earlier checkpoint.
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
    """Checkpoints past their expiry that are neither pinned nor among the newest `keep`."""
    pinned = {pin.checkpoint for pin in manifest.pins}
    older = manifest.checkpoints[: max(0, len(manifest.checkpoints) - keep)]
    return tuple(
        item
        for item in older
        if item.id not in pinned and item.expires is not None and item.expires <= now
    )


def dropping(id: str, where: str) -> Callable[[Manifest], Manifest]:
    """Drop a checkpoint. A clone's pin keeps the files that the clone needs."""

    def change(manifest: Manifest) -> Manifest:
        ref = find_checkpoint(manifest, id, where)
        return replace(
            manifest, checkpoints=tuple(i for i in manifest.checkpoints if i.id != ref.id)
        )

    return change


def checkpoint_as_it_lies(
    manifests: Manifests, env: Env, *, name: str | None = None, keep_s: float | None = None
) -> CheckpointRef:
    """Checkpoint the flushed state without being the writer and without disturbing it.

    Later transactions are in the journal. A concurrent flush may raise the floor above the new
    object, so that a collector may remove it; in that case the checkpoint is written again.
    """
    ids = MonotonicIds(env)
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
                raise ConflictError("the pipeline was flushed in the meantime")
            return replace(manifest, checkpoints=(*manifest.checkpoints, ref))

        try:
            manifests.amend(change, "checkpoint")
        except ConflictError:
            continue
        return ref
    raise ConflictError(f"checkpoint: overtaken by {_TRIES} flushes in a row")


# Checking that the files exist


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that differs from its listed size or checksum, or is missing."""

    file: File
    where: str
    what: str


Stores = Callable[[str | None], Store]
"""Maps a root to its store; None is the pipeline's own."""


def check_files(files: Iterable[File], stores: Stores) -> tuple[Damage, ...]:
    """Find missing files and files of the wrong size by listing; linear in their number."""
    by_root: dict[str | None, list[File]] = {}
    for file in files:
        by_root.setdefault(file.root, []).append(file)
    return tuple(
        damage for root, wanted in by_root.items() for damage in _check(stores(root), wanted)
    )


def _check(store: Store, wanted: Sequence[File]) -> Iterator[Damage]:
    # One listing for all relations rather than one each, because every open calls this.
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
"""The checksums of the files read so far, by root and path."""


def check_contents(files: Iterable[File], stores: Stores, sums: Sums) -> tuple[Damage, ...]:
    """Like `check_files`, but also find files whose bytes do not match: reads all of them (K9).

    Files in `sums` are not read again, and new ones are added to it: checkpoints share most of
    their files.
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
    # Several files at a time, so that reading and hashing use all cores.
    with ThreadPoolExecutor(_WORKERS) as workers:
        yield from workers.map(lambda file: checksum(_pieces(stores(file.root), file)), files)


def _pieces(store: Store, file: File) -> Iterator[bytes]:
    start = 0
    while start < file.size:
        piece = store.get_range(file.path, start, min(_PIECE, file.size - start))
        if not piece:
            return  # Deleted or cut off since it was listed.
        start += len(piece)
        yield piece


def refuse_damaged(found: Sequence[Damage]) -> None:
    """Raise an error that names each damaged file, if there are any."""
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
