"""The simulated world: one thread, one clock, one source of chance, all from a seed.

Writers, readers and a collector are tasks that pause around every store call. The world chooses who
moves next, who is struck by which fault, who sleeps for how long, and checks the invariants after
every change of the store. A violated invariant ends the run with the seed that shows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from stepwell.env import ulid
from stepwell.errors import (
    ConflictError,
    FencedError,
    InvalidError,
    StepwellError,
    TruncatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from stepwell.journal import codec, paths
from stepwell.journal.entry import Recorded
from stepwell.journal.journal import Settings
from stepwell.journal.log import JournalReader, Log
from stepwell.manifest import checkpoint
from stepwell.manifest.gc import Collector
from stepwell.manifest.gc import Settings as CollectSettings
from stepwell.manifest.history import History
from stepwell.manifest.manifest import FORMAT, Manifest, Manifests, Pin, from_json
from stepwell.model import Bytes, Position, checksum
from stepwell.process import ProcessId
from stepwell.store.base import Listed, Object, Store
from stepwell.store.memory import MemoryStore
from stepwell.store.retry import Retry
from stepwell.store.sealed import unseal
from stepwell.testing import Crash
from tests.pausing import Task, pause
from tests.tiny import RUN_FORMAT, Tiny, flushed_rows, rows_of, stored_rows

T = TypeVar("T")

KEEP_S = 100.0
STEPS = 1000
SETTINGS = Settings(barrier_keep_s=KEEP_S, retry=Retry(patience_s=0.012, wait_s_first=0.01))
COLLECT = CollectSettings(
    # Below 0: a collector whose clock is behind spares nothing either.
    grace_s=-KEEP_S,
    journal_keep_s=-KEEP_S,
    barrier_keep_s=KEEP_S,
    # None or few, so that they run out and age decides.
    barriers_kept=0,
    history=History(versions=0),
)

EXPECTED = (FencedError, UnavailableError, UnknownOutcomeError, ConflictError)
"""What a process may meet in a world of faults and rivals. Anything else is a violation."""


class ViolationError(AssertionError):
    """An invariant does not hold."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.time = datetime(2026, 1, 1, tzinfo=UTC)
        self.started = self.time
        self.trace: list[tuple[str, str, str, str]] = []
        self.acknowledged: set[str] = set()
        self.refused: set[str] = set()
        self.pinned: set[str] = set()
        self.calm = False
        self.storm = False
        # In a quiet world nothing fails and nobody crashes: two writers take the pipeline from each
        # other again and again, and fall asleep for long. There F8 is put to the test.
        self.quiet = seed % 3 == 0
        self.fault_rate = 0.0 if self.quiet else self.random.choice([0.0, 0.01, 0.03, 0.1])
        self.crash_rate = 0.0 if self.quiet else self.random.choice([0.0, 0.002, 0.01])
        self.barriers_kept = self.random.choice([0, 0, 0, 2])
        # In half of the worlds wall clocks jump; in the others barriers grow old undisturbed.
        self.wrong_clocks = self.random.random() < 0.5
        clock = self.storage = SimEnv(self, "store")
        self.main = MemoryStore(clock, "main")
        separate = self.random.random() < 0.3
        self.journal = MemoryStore(clock, "journal") if separate else self.main
        # In most worlds an opening collects at once what it finds superseded. In some there are
        # checkpoints.
        self.history = History(versions=self.random.choice([0, 1, 3, 50]), slack=0)
        self.checkpoints = self.random.random() < 0.4
        self.checker = Checker(self)
        self.storm_until = 0
        self.silences: set[int] = set()
        self.processes: list[Process] = []
        self.tasks: dict[str, Task] = {}
        self.frozen: dict[str, int] = {}
        for number in range(2 if self.quiet else self.random.randint(1, 3)):
            self._add(f"writer{number}", writer)
        for number in range(1 if self.quiet else self.random.randint(1, 2)):
            self._add(f"collector{number}", collector)
        for number in range(0 if self.quiet else self.random.randint(0, 2)):
            self._add(f"reader{number}", reader)
        if not self.quiet and self.random.random() < 0.3:
            self._add("pinner", pinner)
        if not self.quiet and self.checkpoints and self.random.random() < 0.5:
            self._add("keeper", keeper)

    def _add(self, name: str, body: Callable[[Process], None]) -> None:
        process = Process(self, name)
        self.processes.append(process)
        self.tasks[name] = Task(lambda: body(process))

    def run(self) -> World:
        for step in range(STEPS):
            self._move(step)
        # The storm is over: everybody still at work finishes, then a last writer takes stock.
        self.calm = True
        for task in self.tasks.values():
            task.run()
            self._check_ended(task)
        self._take_stock()
        return self

    def _move(self, step: int) -> None:
        chance = self.random.random()
        # In a quiet world a takeover and a collection fit into the time for which nobody asks (F8).
        self.time += timedelta(milliseconds=self.random.randint(0, 100 if self.quiet else 500))
        if chance < 0.004 or step in self.silences:
            # A long silence: enough for barriers to be collected.
            self.time += timedelta(seconds=self.random.uniform(0, 3 * KEEP_S))
        elif chance < 0.007:
            self.storm_until = step + self.random.randint(5, 40)
        elif chance < 0.02 and self.wrong_clocks:
            # Somebody's wall clock jumps, or the storage's: by a little, by hours, by days.
            clocks = [self.storage, *(process.env for process in self.processes)]
            skew = self.random.uniform(-KEEP_S, KEEP_S) * self.random.choice([0.25, 3, 30])
            self.random.choice(clocks).skew = timedelta(seconds=skew)
        self.storm = step < self.storm_until and self.fault_rate > 0
        awake = [n for n, t in self.tasks.items() if not t.done and self.frozen.get(n, 0) <= step]
        if not awake:
            return
        name = self.random.choice(awake)
        if self.random.random() < (0.015 if name.startswith("writer") else 0.002):
            self._freeze(name, step)
            return
        self.tasks[name].step()
        self._check_ended(self.tasks[name])

    def _freeze(self, name: str, step: int) -> None:
        """A process stops, perhaps for so long that barriers are collected meanwhile."""
        steps = self.random.randint(10, 250)
        self.frozen[name] = step + steps
        if self.random.random() < 0.5:
            self.silences.add(step + steps * 2 // 3)

    def _check_ended(self, task: Task) -> None:
        if task.error is not None:
            raise task.error

    def _take_stock(self) -> None:
        env = SimEnv(self, "auditor")
        journal = None if self.journal is self.main else self.journal
        before = stored_rows(self.main, env, journal)
        last = Tiny(self.main, env, journal, SETTINGS, self.history)
        if last.rows() != before:
            raise ViolationError(f"opening changed the rows: {before} -> {last.rows()}")
        last.push("the end")
        last.flush()
        last.close()
        collecting = Collector(
            self.main,
            env,
            journal_store=journal,
            settings=replace(COLLECT, barrier_keep_s=0.0, barriers_kept=0),
        )
        collecting.collect()
        self.checker.check()
        # The first pass begins to count the age of barriers.
        collecting.collect()
        self.checker.check()
        if collecting.plan().garbage:
            raise ViolationError("a collection left something to a second one")
        rows = Tiny(self.main, env, journal, SETTINGS).rows()
        if rows != [*before, "the end"]:
            raise ViolationError(f"a clean flush changed the rows: {before} -> {rows}")
        if not self.acknowledged <= set(rows):
            raise ViolationError(f"lost: {self.acknowledged - set(rows)}")
        if self.refused & set(rows):
            raise ViolationError(f"refused, but there: {self.refused & set(rows)}")


class SimEnv:
    """The world's clock with a skew of one's own, and its chance."""

    def __init__(self, world: World, host: str) -> None:
        self.host = host
        self.pid = 1
        self.skew = timedelta(0)
        self._world = world

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.host, self.pid)

    def now(self) -> datetime:
        return self._world.time + self.skew

    def uptime(self) -> float:
        return (self._world.time - self._world.started).total_seconds()

    def sleep(self, seconds: float) -> None:
        pause()

    def jitter(self) -> float:
        return self._world.random.random()

    def new_id(self) -> str:
        return ulid(self.now(), self._world.random.getrandbits(80))


class Process:
    """One process: its environment, and stores that die with it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.env = SimEnv(world, name)
        self.random = world.random
        self.restart()

    def restart(self) -> None:
        self.dead = False
        self.main: Store = SimStore(self, self.world.main)
        separate = self.world.journal is not self.world.main
        self.journal: Store | None = SimStore(self, self.world.journal) if separate else None

    @property
    def running(self) -> bool:
        return not self.world.calm


def writer(process: Process) -> None:
    """Opens, pushes, flushes, is fenced, crashes, opens again."""
    world, count = process.world, 0
    while process.running:
        try:
            tiny = Tiny(process.main, process.env, process.journal, SETTINGS, world.history)
            for _ in range(process.random.randint(1, 12)):
                choice = process.random.random()
                if choice < 0.65:
                    count += 1
                    row = f"{process.name}.{count}"
                    try:
                        tiny.push(row)
                    except (FencedError, ConflictError, UnavailableError):
                        world.refused.add(row)  # It is nowhere, they say.
                        world.checker.check()
                        raise
                    world.acknowledged.add(row)
                    world.checker.check()
                elif choice < 0.92:
                    # Unavailable means that nothing was committed, so the handle may be used again.
                    with suppress(UnavailableError):
                        tiny.flush(merge=process.random.random() < 0.3)
                        if world.checkpoints and process.random.random() < 0.5:
                            tiny.checkpoint()
                else:
                    process.env.sleep(1)
            if process.random.random() < 0.3:
                tiny.close()
        except Crash:
            process.restart()
        except TruncatedError as error:
            check_overtaken(process, tiny, error)
        except EXPECTED:
            pause()


def check_overtaken(process: Process, tiny: Tiny, error: TruncatedError) -> None:
    """With no grace at all, a writer may find gone what it reads: if another one took over."""
    latest = process.world.checker.latest_manifest()
    if latest is None or latest.claim.epoch <= tiny.writer.epoch:
        raise ViolationError(f"{process.name} holds the pipeline, and {error.message}") from error


def collector(process: Process) -> None:
    """Collects without pause and without grace; another may run as well."""
    while process.running:
        if process.world.checker.latest_manifest() is None:
            pause()
            continue
        try:
            if process.random.random() < 0.2:
                # To lose the note costs time only; a new one covers barriers that came since.
                process.world.journal.delete(paths.WATCH)
            Collector(
                process.main,
                process.env,
                journal_store=process.journal,
                settings=replace(COLLECT, barriers_kept=process.world.barriers_kept),
            ).collect()
            pause()
        except Crash:
            process.restart()
        except EXPECTED:
            pause()


def keeper(process: Process) -> None:
    """Takes checkpoints of what is flushed without holding the pipeline, and lets go of some."""
    while process.running:
        try:
            manifests = Manifests(process.main, process.env)
            ref = checkpoint.checkpoint_as_it_lies(manifests, process.env, name="kept")
            for _ in range(process.random.randint(0, 20)):
                pause()
            manifests.amend(checkpoint.dropping(ref.id, "world"), "drop")
        except Crash:
            process.restart()
        except (*EXPECTED, InvalidError):  # Invalid: there is no pipeline yet.
            pause()


def pinner(process: Process) -> None:
    """Changes the manifest without holding the pipeline, as a clone that pins its parent."""
    while process.running:
        try:
            id = process.env.new_id()
            Manifests(process.main, process.env).amend(partial(pinned, id), "pin")
            process.world.pinned.add(id)
            process.world.checker.check()
            pause()
        except Crash:
            process.restart()
        except (*EXPECTED, InvalidError):  # Invalid: there is no pipeline yet.
            pause()


def pinned(id: str, manifest: Manifest) -> Manifest:
    if not manifest.checkpoints:
        raise InvalidError("there is no checkpoint to pin")
    pin = Pin(id, "clone", manifest.checkpoints[-1].id)
    return replace(manifest, pins=(*manifest.pins, pin))


def reader(process: Process) -> None:
    """Follows the journal from the latest manifest; whatever it sees must be true."""
    while process.running:
        try:
            manifests = Manifests(process.main, process.env)
            latest = manifests.latest()
            if latest is None:
                pause()
                continue
            try:
                process.world.checker.check_seen(
                    process.name, flushed_rows(process.main, latest.manifest)
                )
            except TruncatedError:
                # It was overtaken while it read; that the latest is whole is always checked.
                if (manifests.latest_id() or 0) <= latest.id:
                    raise ViolationError("the latest manifest names what is gone") from None
                continue
            log = Log(process.journal or process.main, latest.manifest.lineage)
            following = JournalReader(log, latest.manifest.replay)
            while process.running and process.random.random() < 0.9:
                seen = [row for item in following.poll(5) for row in rows_of(item)]
                process.world.checker.check_seen(process.name, seen)
                pause()
        except Crash:
            process.restart()
        except TruncatedError:
            pause()  # It was left behind, and starts again.
        except EXPECTED:
            pause()


class SimStore:
    """One process's way to a store: it pauses, it is struck by faults, it leaves a trace."""

    def __init__(self, process: Process, inner: MemoryStore) -> None:
        self._process = process
        self._world = process.world
        self.inner = inner
        self.uri = inner.uri
        self._cut = ""

    def get(self, path: str) -> Object | None:
        found = self._call("get", path, lambda: self.inner.get(path))
        if found is not None and path != self._cut and self._strikes(0.2):
            self._cut = path
            return Object(found.data[: len(found.data) // 2], found.etag)  # Cut off on the way.
        self._cut = ""
        return found

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        return self._call("get_range", path, lambda: self.inner.get_range(path, start, length))

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        self._call("put_new", path, lambda: self.inner.put_new(path, data), changes=True)

    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        self._call(
            "replace_if", path, lambda: self.inner.replace_if(path, data, etag), changes=True
        )

    def list(
        self, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> tuple[Listed, ...]:
        return self._call("list", prefix, lambda: self.inner.list(prefix, after=after, limit=limit))

    def delete(self, *paths: str) -> None:
        # One by one: whatever happens between two of them happens to a real request, too.
        for path in paths:
            self._world.checker.check_delete(path)
            self._call("delete", path, lambda path=path: self.inner.delete(path), changes=True)

    def exists(self, path: str) -> bool:
        return self._call("exists", path, lambda: self.inner.exists(path))

    def _call(
        self, operation: str, path: str, apply: Callable[[], T], *, changes: bool = False
    ) -> T:
        process = self._process
        if process.dead:
            raise Crash
        pause()
        self._strike(operation, path, "before")
        outcome = "ok"
        try:
            return apply()
        except StepwellError as error:
            outcome = type(error).__name__
            raise
        finally:
            self._world.trace.append((process.name, operation, path, outcome))
            if changes:
                self._world.checker.check()
                pause()
            self._strike(operation, path, "after")

    def _strike(self, operation: str, path: str, when: str) -> None:
        if self._world.calm:
            return
        if self._world.random.random() < self._world.crash_rate:
            self._process.dead = True
            self._world.trace.append((self._process.name, operation, path, f"crash {when}"))
            raise Crash
        if self._strikes():
            self._world.trace.append((self._process.name, operation, path, f"fail {when}"))
            raise UnavailableError(f"injected {when} {operation} {path}")

    def _strikes(self, factor: float = 1.0) -> bool:
        if self._world.calm:
            return False
        rate = 0.8 if self._world.storm else self._world.fault_rate
        return self._world.random.random() < rate * factor


class Checker:
    """The invariants, computed from the stored bytes alone, by a way of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._manifests: dict[bytes, Manifest] = {}
        self._entries: dict[bytes, Recorded] = {}
        self._runs: dict[bytes, list[str]] = {}
        self._latest = 0
        self._epoch = 0
        self._replay = 0

    def check(self) -> list[str]:
        """The rows the store holds now; `ViolationError` if anything is wrong with them."""
        manifest = self.latest_manifest()
        if manifest is None:
            return []
        if not self._world.pinned <= {pin.id for pin in manifest.pins}:
            raise ViolationError("a pin was lost to another commit")
        for ref in manifest.checkpoints:
            self._check_checkpoint(ref.id, ref.checksum)
        for pin in manifest.pins:
            self._check_checkpoint(pin.checkpoint, None)
        rows = [row for run in manifest.runs for row in self._run(run.path)]
        cursor = manifest.replay
        objects = self._world.journal._objects
        while (found := objects.get(paths.entry(cursor.next))) is not None:
            where = paths.entry(cursor.next)
            cursor, recorded = cursor.advance(self._entry(found[0], where), where)
            if not recorded.void:
                rows += rows_of(recorded)
        last = max((p for p in objects if p.endswith(".arrow")), default="")
        if last > paths.entry(max(cursor.position, Position(1))):
            raise ViolationError(f"a gap after position {cursor.position}, but {last} exists")
        if len(rows) != len(set(rows)):
            raise ViolationError(f"doubled rows: {sorted(rows)}")
        if not self._world.acknowledged <= set(rows):
            raise ViolationError(f"lost rows: {self._world.acknowledged - set(rows)}")
        if self._world.refused & set(rows):
            raise ViolationError(f"refused, but there: {self._world.refused & set(rows)}")
        return rows

    def _check_checkpoint(self, id: str, expected: str | None) -> None:
        """Readable, and equal to what it was."""
        found = self._world.main._objects.get(paths.checkpoint(id))
        if found is None or expected not in (None, checksum([found[0]])):
            raise ViolationError(f"checkpoint {id} is gone or was replaced")
        if found[0] not in self._manifests:
            fields = unseal(found[0], format=checkpoint.FORMAT, object=id)
            self._manifests[found[0]] = from_json(fields.child("state"))
        for run in self._manifests[found[0]].runs:
            self._run(run.path)

    def check_seen(self, reader: str, seen: list[str]) -> None:
        if not set(seen) <= set(self.check()):
            raise ViolationError(f"{reader} saw rows that are not there: {seen}")

    def check_delete(self, path: str) -> None:
        """Only behind the boundary, never the latest manifest, never what it names."""
        manifest = self.latest_manifest()
        name = paths.parse(path)
        if name.kind in ("probe", "run", "checkpoint"):
            return  # What is named and gone is found right after it.
        if manifest is None or name.number is None:
            raise ViolationError(f"deleted {path}")
        if name.kind == "entry" and name.number > manifest.replay.position:
            raise ViolationError(f"deleted {path} above the replay position")
        if name.kind == "manifest" and name.number >= self._latest:
            raise ViolationError(f"deleted the latest manifest {path}")

    def latest_manifest(self) -> Manifest | None:
        objects = self._world.main._objects
        path = max((p for p in objects if p.startswith(paths.MANIFESTS)), default=None)
        if path is None:
            if self._latest:
                raise ViolationError("every manifest is gone")
            return None
        data = objects[path][0]
        if data not in self._manifests:
            fields = unseal(data, format=FORMAT, object=path)
            self._manifests[data] = from_json(fields.child("body"))
        manifest = self._manifests[data]
        number = paths.parse(path).number or 0
        now = (number, manifest.claim.epoch, manifest.replay.position)
        if not (now[0] >= self._latest and now[1] >= self._epoch and now[2] >= self._replay):
            raise ViolationError(f"the manifest went back: {now}")
        self._latest, self._epoch, self._replay = now
        return manifest

    def _entry(self, data: bytes, where: str) -> Recorded:
        if data not in self._entries:
            self._entries[data] = Recorded(*codec.decode(data, where))
        return self._entries[data]

    def _run(self, path: str) -> list[str]:
        found = self._world.main._objects.get(path)
        if found is None:
            raise ViolationError(f"the manifest names {path}, which is gone")
        if found[0] not in self._runs:
            fields = unseal(found[0], format=RUN_FORMAT, object=path)
            self._runs[found[0]] = fields.any("rows")
        return self._runs[found[0]]
