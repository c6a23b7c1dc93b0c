"""The lease: one deploy at a time, and no deploy waits for a dead one.

    <store>/deploy/lease.json      {id, host, pid, since, beat, ...}; id null: not held

The lease is taken and released by compare-and-swap. The holder increments `beat` every few seconds.
A waiting process watches that number by its own clock: a holder whose number has not changed for
`expiry_s` is dead, whatever the clocks of the two machines say. A holder whose process is known to
have ended (`process.py`) is dead at once.

Safety does not depend on the lease: the changes of a deploy are fenced by the manifest's epoch and
by compare-and-swap. A crash leaves the lease held by a process that sends no more beats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from stepwell import threads
from stepwell.env import EPOCH, Env
from stepwell.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    StepwellError,
    UnavailableError,
)
from stepwell.journal import paths
from stepwell.model import checksum, format_time
from stepwell.process import Liveness, ProcessId, liveness
from stepwell.store.base import Store
from stepwell.store.patient import impatient
from stepwell.store.records import Record, number, omitted, text, time, ulid
from stepwell.store.sealed import read_sealed, seal

FORMAT = "stepwell-lease/1"
DAMAGED = "DAMAGED"
"""Id of a lease that cannot be read, for `unlock`."""


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    beat_s: float = 5.0
    expiry_s: float = 30.0
    look_s: float = 0.5
    """Interval at which a waiting process reads the lease."""


@dataclass(frozen=True, slots=True)
class Owner:
    id: str
    host: str
    pid: int
    since: datetime
    beat: int
    boot: str | None = None
    namespace: str | None = None
    started: str | None = None

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.host, self.pid, self.boot, self.namespace, self.started)

    def __str__(self) -> str:
        if self.id == DAMAGED:
            return "an unknown owner, whose lease is damaged"
        return f"process {self.pid} on host {self.host} since {format_time(self.since)}"


Alive = Callable[[ProcessId], Liveness]


class Lease:
    """A held lease. `release`, or the end of a `with`, gives it back."""

    def __init__(self, store: Store, owner: Owner, etag: str) -> None:
        self._store = store
        self._owner = owner
        self._etag = etag
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost: ConflictError | None = None

    @property
    def id(self) -> str:
        return self._owner.id

    def beat(self) -> None:
        """Renew the lease; `ConflictError` if another process has it by now."""
        self._beat(self._store)

    check = beat
    """Called before a write, to make sure that the lease is still ours."""

    def _beat(self, store: Store) -> None:
        with self._lock:
            if self._lost is not None:
                raise self._lost.with_traceback(None)
            self._owner = replace(self._owner, beat=self._owner.beat + 1)
            self._etag = self._replace(store, _encode(self._owner))

    def keep_alive(self, settings: LeaseSettings) -> None:
        """Renew the lease from a background thread until it is released."""

        def run() -> None:
            while not self._end.wait(settings.beat_s):
                try:
                    self._beat(impatient(self._store))  # The next beat follows soon.
                except ConflictError:
                    return
                except StepwellError:
                    continue  # The store does not answer; the next beat may get through.

        self._thread = threads.start("stepwell-lease", run, failed=self._stopped_beating)

    def _stopped_beating(self, error: BaseException) -> None:
        """Give up the lease: without beats it expires soon, and then nothing may be written."""
        with self._lock:
            if self._lost is None:
                self._lost = ConflictError(
                    f"this deploy cannot renew its lease: {error!r}",
                    hint="nothing more was changed; deploy again: it detects what was done",
                )

    def release(self) -> None:
        """Release the lease. If it was lost meanwhile, leave it to its new holder."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if self._lost is None:
                try:
                    self._replace(impatient(self._store), _encode(None))
                except (ConflictError, UnavailableError):
                    return  # Another process has it, or it will expire.

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _replace(self, store: Store, data: bytes) -> str:
        """Replace our own object; if the answer was lost, check whether the write got through."""
        try:
            store.replace_if(paths.LEASE, data, self._etag)
        except (ConflictError, UnavailableError) as error:
            found = store.get(paths.LEASE)
            if found is not None and found.data == data:
                return found.etag
            if isinstance(error, UnavailableError):
                raise
            now = read_lease(store)
            holder = "a process that has released it" if now is None else str(now)
            self._lost = ConflictError(
                f"this deploy lost its lease to {holder}",
                hint="nothing more was changed; check with stepwell plan",
            )
            raise self._lost from error
        found = store.get(paths.LEASE)
        return self._etag if found is None else found.etag


def read_lease(store: Store) -> Owner | None:
    """Return the holder of the lease; None if it is free. Only reads."""
    return _read(store)[0]


def check_lease(store: Store) -> None:
    """Raise `CorruptError` if the lease is corrupt, or missing after a deploy. Only reads."""
    if _read_sound(store)[1] is None and store.exists(paths.RESOURCES):
        raise CorruptError(f"{store.uri}/{paths.LEASE}", "missing, though a deploy was made here")


def take_lease(
    store: Store,
    env: Env,
    *,
    wait_s: float,
    settings: LeaseSettings | None = None,
    alive: Alive | None = None,
    waiting: Callable[[Owner], None] = lambda owner: None,
) -> Lease:
    """Take the lease, waiting for its holder; `ConflictError` names the holder after `wait_s`.

    After a crash, the lease is either taken or not.
    """
    settings = settings or LeaseSettings()
    here = env.process
    alive = alive or (lambda process: liveness(process, here))
    until = env.uptime() + wait_s
    seen: tuple[str, int] | None = None
    seen_at = env.uptime()
    told = False
    while True:
        owner, etag = _read(store)
        now = env.uptime()
        if owner is not None and (owner.id, owner.beat) != seen:
            seen, seen_at = (owner.id, owner.beat), now
        silent = owner is not None and now - seen_at >= settings.expiry_s
        if owner is None or silent or alive(owner.process) is Liveness.DEAD:
            lease = _take(store, env, etag)
            if lease is not None:
                return lease
            continue
        if now >= until:
            raise ConflictError(
                f"{owner} is deploying to {store.uri}",
                hint="wait for it: --lock-timeout 5m. The lease of a dead one expires after "
                f"{settings.expiry_s:g}s; to free its lease now: stepwell unlock {owner.id}",
            )
        if not told:
            waiting(owner)
            told = True
        env.sleep(min(settings.look_s, max(until - now, 0.001)))


def unlock(store: Store, id: str) -> Owner:
    """Release a lease by its id, whichever process holds it."""
    owner, etag = _read(store)
    if owner is None:
        raise InvalidError(
            f"no process holds the lease of {store.uri}", hint="there is nothing to do"
        )
    if owner.id != id:
        raise InvalidError(
            f"the lease of {store.uri} is {owner.id}, not {id}; {owner} holds it",
            hint=f"stepwell unlock {owner.id}",
        )
    store.replace_if(paths.LEASE, _encode(None), etag or "")
    return owner


def _take(store: Store, env: Env, etag: str | None) -> Lease | None:
    """Try to take the lease; None if another process was faster."""
    here = env.process
    at = (here.boot, here.namespace, here.started)
    owner = Owner(env.new_id(), here.host, here.pid, env.now(), 0, *at)
    data = _encode(owner)
    try:
        if etag is None:
            store.put_new(paths.LEASE, data)
        else:
            store.replace_if(paths.LEASE, data, etag)
    except ConflictError:
        pass  # Our own answer may have been lost: the id tells whose lease it is.
    found, now = _read(store)
    return Lease(store, owner, now or "") if found is not None and found.id == owner.id else None


def _read(store: Store) -> tuple[Owner | None, str | None]:
    """Return the owner of the lease, and the etag of its object.

    A corrupt lease counts as held by an unknown owner until it expires. It therefore blocks a
    deploy no longer than a dead owner does, and never has to be removed by hand.
    """
    try:
        return _read_sound(store)
    except CorruptError:
        found = store.get(paths.LEASE)
        if found is None:
            return None, None
        number = int(checksum([found.data])[:12], 16)
        return Owner(DAMAGED, "unknown", 0, EPOCH, number), found.etag


def _read_sound(store: Store) -> tuple[Owner | None, str | None]:
    found = read_sealed(store, paths.LEASE, FORMAT)
    if found is None:
        return None, None
    fields, etag = found
    if fields.maybe("id", fields.id) is None:
        return None, etag
    return _OWNER.read(fields), etag


def _encode(owner: Owner | None) -> bytes:
    return seal(FORMAT, {"id": None} if owner is None else _OWNER.write(owner))


_OWNER = Record(
    Owner,
    id=ulid,
    host=text,
    pid=number,
    since=time,
    beat=number,
    boot=omitted(text),
    namespace=omitted(text),
    started=omitted(text),
)
