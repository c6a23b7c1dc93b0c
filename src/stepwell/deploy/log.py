"""The log of a deploy in progress: its intents and its outcomes.

    <store>/deploy/resources.json.wal/00000000000000000000.json    header {session, lineage, serial}
    <store>/deploy/resources.json.wal/00000000000000000001.json    {session, records: [...]}

The log consists of sealed objects on every store, so an append is there as a whole or not at all. A
log is opened only if there is none, written by one session, and removed from its end to its
beginning after its serial was saved. A removal may be undone by a power cut, so any part of a log
may come back: every record carries the serial, which shows that it is stale. A corrupt record is
dropped if it is the last one, and refused if other records follow it, because those were
acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from stepwell.env import Env
from stepwell.errors import ConflictError, CorruptError
from stepwell.journal import paths
from stepwell.store.base import Listed, Store
from stepwell.store.patient import patience_of
from stepwell.store.sealed import Fields, Json, reread, seal, unseal

FORMAT = "stepwell-deploy-log/1"
REPAIR = "stepwell state repair"
Phase = Literal["intent", "done"]


@dataclass(frozen=True, slots=True)
class Record:
    """One action on one resource, before it (`intent`) or after it (`done`)."""

    phase: Phase
    key: str
    action: str
    value: Json
    """The resource after the action; None if it is deleted."""


@dataclass(frozen=True, slots=True)
class Header:
    session: str
    lineage: str
    serial: int


@dataclass(frozen=True, slots=True)
class LogContent:
    """A log left by a deploy. `header` is None if all it holds is one corrupt object."""

    header: Header | None
    stale: bool
    """Whether its serial was already saved, so that the log holds nothing new."""
    records: tuple[Record, ...]
    dropped: tuple[str, ...]
    """Objects to ignore: a torn end, or records of another session."""


class DeployLog:
    """The log of one session. A call is durable when it returns."""

    def __init__(self, store: Store, env: Env, header: Header) -> None:
        """Open a new log; `ConflictError` if there is one already."""
        self._store = store
        self._env = env
        self._header = header
        self._written = 0
        found = store.list(paths.DEPLOY_LOG, limit=1)
        if found:
            raise ConflictError(f"{store.uri}/{found[0].path} exists: another deploy is running")
        self._put({"lineage": header.lineage})

    @property
    def serial(self) -> int:
        return self._header.serial

    def append(self, *records: Record) -> None:
        """Append records in one object: after a crash there are all of them or none."""
        self._put(
            {
                "records": [
                    {"phase": r.phase, "key": r.key, "action": r.action, "value": r.value}
                    for r in records
                ]
            }
        )

    def _put(self, content: Mapping[str, Json]) -> None:
        path = paths.deploy_log(self._written)
        own = self._header
        head = {"seq": self._written, "session": own.session, "serial": own.serial}
        data = seal(FORMAT, {**head, **content})

        def put() -> None:
            try:
                self._store.put_new(path, data)
            except ConflictError:
                found = self._store.get(path)
                # It may be our own write, sent twice because the first answer was lost.
                if found is None or found.data != data:
                    raise ConflictError(
                        f"{self._store.uri}/{path} was written by another deploy",
                        hint="this one lost its lease; check with stepwell plan",
                    ) from None

        unknown = f"{path} may or may not have been written"
        patience_of(self._store, self._env).run(put, lambda: unknown)
        self._written += 1


def read_log(store: Store, committed: int = 0) -> LogContent | None:
    """Read and check the log that a deploy left; None if there is none. Only reads.

    `committed` is the last saved serial. Raises `CorruptError` if a record is corrupt or missing
    and others follow it.
    """
    listed = store.list(paths.DEPLOY_LOG)
    if not listed:
        return None
    objects = tuple(item.path for item in listed)
    read = [_read(store, item) for item in listed]
    known = [item for item in read if isinstance(item, Fields)]
    if known and all(item.number("serial") <= committed for item in known):
        header = Header(known[0].id("session"), "", known[0].number("serial"))
        return LogContent(header, True, (), ())
    read = [r for r in read if isinstance(r, CorruptError) or r.number("serial") > committed]
    if isinstance(read[-1], CorruptError):
        read.pop()  # A torn end was never acknowledged. One crash cannot tear two objects.
    if not read:
        return LogContent(None, False, (), objects)
    first = read[0]
    if isinstance(first, CorruptError):
        raise _damaged(first)
    if first.number("seq") != 0:
        raise _damaged(CorruptError(f"{store.uri}/{paths.deploy_log(0)}", "missing"))
    header = Header(first.id("session"), first.id("lineage"), first.number("serial", least=1))
    records: list[Record] = []
    own = {first.object}
    for fields in read[1:]:
        if isinstance(fields, CorruptError):
            raise _damaged(fields)
        if fields.id("session") != header.session:
            continue
        expected = len(own)
        if fields.number("seq") != expected:
            gap = CorruptError(f"{store.uri}/{paths.deploy_log(expected)}", "missing")
            raise _damaged(gap)
        records += [_record(item) for item in fields.children("records")]
        own.add(fields.object)
    dropped = tuple(path for path in objects if f"{store.uri}/{path}" not in own)
    return LogContent(header, False, tuple(records), dropped)


def check_log(store: Store) -> Iterator[tuple[str, str]]:
    """Yield each corrupt object of a log, and the reason. None is torn: stores write it whole."""
    for item in store.list(paths.DEPLOY_LOG):
        found = _read(store, item)
        if isinstance(found, CorruptError):
            yield found.object, found.message.removeprefix(f"{found.object}: ")


def remove_log(store: Store) -> None:
    """Remove the log from its end to its beginning, so that a crash leaves a valid log."""
    for item in reversed(store.list(paths.DEPLOY_LOG)):
        store.delete(item.path)


def _read(store: Store, item: Listed) -> Fields | CorruptError:
    where = f"{store.uri}/{item.path}"

    def read() -> Fields:
        found = store.get(item.path)
        if found is None:
            raise CorruptError(where, "missing")
        fields = unseal(found.data, format=FORMAT, object=where)
        if paths.parse(item.path).number != fields.number("seq"):
            raise fields.wrong("seq", "the number in its name")
        return fields

    try:
        return reread(read)
    except CorruptError as error:
        return error


def _record(fields: Fields) -> Record:
    phase = fields.text("phase")
    if phase not in ("intent", "done"):
        raise fields.wrong("phase", "intent or done")
    kind: Phase = "done" if phase == "done" else "intent"
    return Record(kind, fields.text("key"), fields.text("action"), fields.any("value"))


def _damaged(error: CorruptError) -> CorruptError:
    return CorruptError(
        error.object,
        f"{error.message.partition(': ')[2]}; records after it exist, so a crash is not the cause",
        hint=f"nothing was changed. {REPAIR} shows what it would do",
    )
