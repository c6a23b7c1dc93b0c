"""The public test kit: a manual clock, a store with injected faults, a simulated disk, metrics, and
an executor that needs no Spark.

To write a crash test, run once on a `FaultyStore` to count its calls. Then run once per call with
`crash_at(n, "before")` and `crash_at(n, "after")`, reopen on the inner store, and compare.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar

from stepwell.env import ulid, with_variables
from stepwell.errors import UnavailableError
from stepwell.execution.reference import EXECUTOR_VARIABLE as EXECUTOR_VARIABLE
from stepwell.execution.reference.executor import ReferenceExecutor as ReferenceExecutor
from stepwell.model import Bytes
from stepwell.process import ProcessId
from stepwell.store.base import Listed, Object, Store, join
from stepwell.store.disk import Staged, SyncError

T = TypeVar("T")
When = Literal["before", "after", "halfway"]
"""When a fault strikes a call: before it reaches the storage; after it was applied, so that the
answer is lost; or, for a delete of several objects, once some of them are deleted.
"""


class Crash(BaseException):
    """The process dies here. A BaseException, so that no `except Exception` catches it."""


@contextmanager
def reference_executor() -> Iterator[None]:
    """Compute projects with `ReferenceExecutor` instead of Spark while the block runs.

    It recomputes every view in plain Python, for small data. Processes that are started in the
    block do the same, because they inherit `STEPWELL_TESTING_EXECUTOR=reference`. A pipeline can
    only be opened with the executor it was made with.
    """
    with with_variables({EXECUTOR_VARIABLE: "reference"}):
        yield


class ManualEnv:
    """A deterministic Env: time moves only on request, and ids and jitter come from the seed."""

    def __init__(self, seed: int = 0, *, host: str = "test-host", pid: int = 1) -> None:
        self.host = host
        self.pid = pid
        self.time = datetime(2026, 1, 1, tzinfo=UTC)
        self.up = 0.0
        self._random = random.Random(seed)

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.host, self.pid)

    def now(self) -> datetime:
        return self.time

    def uptime(self) -> float:
        return self.up

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        self.time += timedelta(seconds=seconds)
        self.up += seconds

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def jitter(self) -> float:
        return self._random.random()

    def new_id(self) -> str:
        return ulid(self.time, self._random.getrandbits(80))


@dataclass(frozen=True, slots=True)
class Call:
    """One call on a `FaultyStore`, numbered from 1."""

    number: int
    operation: str
    path: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of a call, and when it strikes. `halfway` means `before` except for a delete."""

    kind: Literal["fail", "crash", "stall", "short"]
    when: When = "before"
    seconds: float = 0.0


Plan = Callable[[Call], "Fault | None"]


def fail_at(number: int, when: When) -> Plan:
    """Make the n-th call fail; with `after`, it is applied and its answer is lost."""
    return lambda call: Fault("fail", when) if call.number == number else None


def crash_at(number: int, when: When) -> Plan:
    """Kill the process at the n-th call, before it reaches the storage or after it was applied."""
    return lambda call: Fault("crash", when) if call.number == number else None


def stall_at(number: int, seconds: float, when: When = "before") -> Plan:
    """Make the n-th call hang on the way to or from the storage, then continue."""
    return lambda call: Fault("stall", when, seconds) if call.number == number else None


def short_read_at(number: int) -> Plan:
    """Make the n-th call, if it reads bytes, return half of them."""
    return lambda call: Fault("short") if call.number == number else None


def storm(first: int, last: int) -> Plan:
    """Make every call from number `first` to number `last` fail without being applied."""
    return lambda call: Fault("fail") if first <= call.number <= last else None


class FaultyStore:
    """Wraps a store, injects faults by plan and records every call."""

    def __init__(
        self,
        inner: Store,
        plan: Plan | None = None,
        *,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.inner = inner
        self.plan = plan
        self.calls: list[Call] = []
        self.dead = False
        self._sleep = sleep

    @property
    def uri(self) -> str:
        return self.inner.uri

    def get(self, path: str) -> Object | None:
        def shorten(found: Object | None) -> Object | None:
            return found and Object(found.data[: len(found.data) // 2], found.etag)

        return self._call("get", path, lambda: self.inner.get(path), shorten)

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        def shorten(found: bytes | None) -> bytes | None:
            return found and found[: len(found) // 2]

        return self._call(
            "get_range", path, lambda: self.inner.get_range(path, start, length), shorten
        )

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        self._call("put_new", path, lambda: self.inner.put_new(path, data))

    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        self._call("replace_if", path, lambda: self.inner.replace_if(path, data, etag))

    def list(
        self, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> tuple[Listed, ...]:
        return self._call("list", prefix, lambda: self.inner.list(prefix, after=after, limit=limit))

    def delete(self, *paths: str) -> None:
        if not paths:
            return
        self._call(
            "delete",
            " ".join(paths),
            lambda: self.inner.delete(*paths),
            halfway=lambda: self.inner.delete(*paths[: len(paths) // 2]),
        )

    def exists(self, path: str) -> bool:
        return self._call("exists", path, lambda: self.inner.exists(path))

    def _call(
        self,
        operation: str,
        path: str,
        apply: Callable[[], T],
        shorten: Callable[[T], T] | None = None,
        halfway: Callable[[], None] = lambda: None,
    ) -> T:
        if self.dead:
            raise Crash(f"{operation} {path}: the process is dead")
        call = Call(len(self.calls) + 1, operation, path)
        self.calls.append(call)
        fault = self.plan(call) if self.plan else None
        if fault is None:
            return apply()
        if fault.when != "after":
            if fault.when == "halfway":
                halfway()
            self._strike(fault, call)
            result = apply()
            return shorten(result) if fault.kind == "short" and shorten else result
        try:
            result = apply()
        finally:
            # An error from the storage itself is lost with the answer, too.
            self._strike(fault, call)
        return result

    def _strike(self, fault: Fault, call: Call) -> None:
        where = f"{fault.when} call {call.number}, {call.operation} {call.path}"
        if fault.kind == "crash":
            self.dead = True
            raise Crash(where)
        if fault.kind == "fail":
            raise UnavailableError(f"injected failure {where}")
        if fault.kind == "stall" and self._sleep:
            self._sleep(fault.seconds)


class InMemoryMetrics:
    """Implements `stepwell.Metrics` and stores the reported values by name and labels.

    >>> metrics = InMemoryMetrics()
    >>> metrics.count("rows", 2)
    >>> metrics.observe("phase_seconds", 0.5, phase="record")
    >>> metrics.counters, metrics.histograms
    ({'rows': 2}, {'phase_seconds{phase=record}': [0.5]})
    """

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.gauges: dict[str, float] = {}
        self.histograms: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def count(self, name: str, value: int, **labels: str) -> None:
        key = self._key(name, labels)
        with self._lock:
            self.counters[key] = self.counters.get(key, 0) + value

    def gauge(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self.gauges[self._key(name, labels)] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self.histograms.setdefault(self._key(name, labels), []).append(value)

    @staticmethod
    def _key(name: str, labels: dict[str, str]) -> str:
        told = ",".join(f"{label}={value}" for label, value in sorted(labels.items()))
        return f"{name}{{{told}}}" if told else name


@dataclass(slots=True)
class _File:
    data: bytes
    synced: bool = False


@dataclass(slots=True)
class _Directory:
    names: dict[str, _File | _Directory] = field(default_factory=dict)
    synced: dict[str, _File | _Directory] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    """Names that a failed sync did not persist, and that no later sync will persist."""


class SimulatedDisk:
    """A disk in memory that loses unsynced data on `cut_power`.

    The bytes of a file survive if the file was synced; its name survives if the directory was
    synced after the name was created. The seed decides whether unsynced data survives: a real disk
    may write data back at any time, so code must be correct in both cases.
    """

    def __init__(self, env: ManualEnv, seed: int = 0) -> None:
        self._env = env
        self._random = random.Random(seed)
        self._root = _Directory()
        self._staged: dict[int, _File] = {}
        self._handles = 0
        self.distrusted: dict[str, str] = {}
        self.fails: Callable[[str], bool] = lambda path: False
        """Whether the next sync of a directory fails and loses the unsynced names."""

    def cut_power(self) -> None:
        """Lose unsynced data, completely or in part."""
        self._staged.clear()
        self._lose(self._root)

    def _lose(self, directory: _Directory) -> None:
        names: dict[str, _File | _Directory] = {}
        for name in sorted({*directory.names, *directory.synced}):
            # If a name was changed since the last sync, either state may be on the disk.
            states = [directory.synced.get(name), directory.names.get(name)]
            child = states[0] if states[0] is states[1] else self._random.choice(states)
            if child is not None:
                names[name] = child
        directory.names = names
        directory.synced = dict(names)
        directory.forgotten = set()
        for child in names.values():
            if isinstance(child, _Directory):
                self._lose(child)
            elif not child.synced:
                child.data = child.data[: self._random.randint(0, len(child.data))]
                child.synced = True

    def make_directory(self, path: str) -> bool:
        parent, name = self._parent(path)
        if name in parent.names:
            return False
        parent.names[name] = _Directory()
        return True

    def stage(self, directory: str, parts: Sequence[Bytes]) -> Staged:
        self._directory(directory)
        self._handles += 1
        self._staged[self._handles] = _File(join(parts))
        return Staged(directory, self._handles, None)

    def sync(self, staged: Staged) -> None:
        self._staged[staged.fd].synced = True

    def link(self, staged: Staged, name: str) -> None:
        parent, base = self._parent(name)
        if base in parent.names:
            raise FileExistsError(17, "File exists", name)
        parent.names[base] = self._staged[staged.fd]
        parent.forgotten.discard(base)

    def rename(self, staged: Staged, name: str) -> None:
        parent, base = self._parent(name)
        parent.names[base] = self._staged[staged.fd]
        parent.forgotten.discard(base)

    def discard(self, staged: Staged) -> None:
        self._staged.pop(staged.fd, None)

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        if self.fails(path):
            # Like the operating system: report the error once, and treat lost names as clean.
            directory.forgotten |= {
                name
                for name, child in directory.names.items()
                if directory.synced.get(name) is not child
            }
            raise SyncError(5, "Input/output error")
        kept = {name: directory.synced.get(name) for name in directory.forgotten}
        states = {**directory.names, **kept}
        directory.synced = {name: child for name, child in states.items() if child is not None}

    def unlink(self, path: str) -> None:
        parent, base = self._parent(path)
        if base not in parent.names:
            raise FileNotFoundError(2, "No such file or directory", path)
        if isinstance(parent.names[base], _Directory):
            raise IsADirectoryError(21, "Is a directory", path)
        del parent.names[base]

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        parent, base = self._parent(path)
        found = parent.names.get(base)
        if not isinstance(found, _File):
            raise FileNotFoundError(2, "No such file or directory", path)
        return found.data[start : None if length is None else start + length]

    def is_file(self, path: str) -> bool:
        try:
            parent, base = self._parent(path)
        except FileNotFoundError:
            return False
        return isinstance(parent.names.get(base), _File)

    def walk(self, directory: str) -> Iterator[str]:
        try:
            names = self._directory(directory).names
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, child in list(names.items()):
            if name.startswith("."):
                continue
            if isinstance(child, _Directory):
                yield from self.walk(f"{directory}/{name}")
            else:
                yield f"{directory}/{name}"

    def stat(self, path: str) -> tuple[int, datetime] | None:
        try:
            return len(self.read(path)), self._env.now()
        except FileNotFoundError:
            return None

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        self._parent(path)
        yield

    def _directory(self, path: str) -> _Directory:
        here = self._root
        for name in path.split("/")[1:]:
            child = here.names.get(name) if name else here
            if isinstance(child, _File):
                raise NotADirectoryError(20, "Not a directory", path)
            if child is None:
                raise FileNotFoundError(2, "No such file or directory", path)
            here = child
        return here

    def _parent(self, path: str) -> tuple[_Directory, str]:
        head, _, base = path.rpartition("/")
        return self._directory(head), base
