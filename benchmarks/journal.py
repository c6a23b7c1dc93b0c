"""How fast is the journal? Against plain system calls, against SlateDB, and as it grows.

    .venv/bin/python benchmarks/journal.py [--quick] [--only append] [--json]

Prints tables, as Markdown; RESULTS.md has those of one machine. Works in `.bench/` next to
this directory, on the disk of the repository, and removes it. Nothing is asserted: the figures are
for people to judge. 1 KB is 1,000 bytes.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from _measure import (
    Action,
    Table,
    Times,
    in_turns,
    ratio,
    say,
    section_parser,
    settle,
    show_sections,
    timed,
    workspace,
)
from stepwell.engine.open import Writer, open_writer
from stepwell.env import SystemEnv
from stepwell.errors import ConflictError
from stepwell.journal import paths
from stepwell.journal.codec import encode
from stepwell.journal.entry import Draft, Entry, Input, Kind
from stepwell.manifest.gc import Collector
from stepwell.manifest.gc import Settings as CollectSettings
from stepwell.model import NO_CHECKSUM, Bytes, Epoch, Position, Transaction, checksum
from stepwell.store.base import Store
from stepwell.store.disk import RealDisk, Staged
from stepwell.store.local import LocalStore
from stepwell.store.locate import open_store
from stepwell.testing import FaultyStore

ENV = SystemEnv()
KB, MB = 1_000, 1_000_000


def main() -> None:
    arguments = section_parser(__doc__ or "", SECTIONS).parse_args()
    with workspace() as directory:
        show_sections(
            arguments, SECTIONS, lambda name: SECTIONS[name](directory / name, arguments.quick)
        )


# --- append: durable appends against the plain system calls ---------------------------------------


def append(directory: Path, quick: bool) -> list[Table]:
    speed = Table(
        "Durable appends, one after another",
        (
            "data",
            "entry bytes",
            "rounds",
            "who",
            "entries/s",
            "MB/s",
            "p50 ms",
            "p99 ms",
            "mean ms",
        ),
        f"Timed in turns of {TURN} in a row, in a random order each round. MB/s is of data, "
        "without the envelope.",
    )
    against = Table(
        "Ours against plain system calls that write the same number of bytes",
        ("data", "baseline", "by median (95 % interval)", "by mean", "target"),
        "Baseline time / our time: 1 is as fast as the system calls alone.",
    )
    spent = Table(
        "Where the time of one append goes, medians in microseconds",
        ("data", "append", *STEPS),
        "Each measured by itself; encode contains checksum, put_new contains the columns after it.",
    )
    for label, size, target, rounds in (
        ("1 KB", KB, 0.6, 40 if quick else 2000),
        ("100 KB", 100 * KB, 0.9, 40 if quick else 2000),
        ("10 MB", 10 * MB, 0.9, 20 if quick else 160),
    ):
        say(f"  {label}")
        place = directory / str(size)
        data = os.urandom(size)
        length = entry_bytes(data)
        times = in_turns(
            {
                "ours": appending(place / "ours", data),
                "named temp": PlainCalls(place / "named", length).link_named,
                "unnamed temp": PlainCalls(place / "unnamed", length).link_unnamed,
            },
            rounds // TURN,
            in_a_row=TURN,
            warm_up=1,
        )
        for who, found in times.items():
            rate = found.per_second
            row = (label, length, rounds, who, rate, rate * size / MB, *milliseconds(found))
            speed.add(*row, found.mean * 1e3)
        for who, wanted in (("named temp", target), ("unnamed temp", None)):
            found_ratio = ratio(times[who], times["ours"])
            against.add(label, who, found_ratio, found_ratio.by_mean, wanted)
        steps = breakdown(place / "steps", data, min(rounds, 300))
        spent.add(label, times["ours"].median * 1e6, *steps)
    return [speed, against, spent]


TURN = 20
"""Appends come one after another; what the processor has in its caches is part of the matter."""

STEPS = ("encode", "checksum", "put_new", "stage", "fsync", "link", "close", "fsync directory")


def appending(root: Path, data: bytes, disk: RealDisk | None = None, *, inputs: int = 1) -> Action:
    """Appends to a new pipeline, always the same draft: making one is the caller's time."""
    writer = open_writer(LocalStore(str(root), ENV, disk), ENV)
    same = draft(data, inputs)
    return lambda number: ignore(writer.append(same))


class PlainCalls:
    """The fewest system calls that make a new file durable and atomic, in one open directory."""

    def __init__(self, directory: Path, length: int) -> None:
        directory.mkdir(parents=True)
        self._data = os.urandom(length)
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def link_named(self, number: int) -> None:
        """Staged under a name, as works everywhere."""
        here = self._directory
        fd = self._stage_named()
        os.link("temp", str(number), src_dir_fd=here, dst_dir_fd=here)
        os.unlink("temp", dir_fd=here)
        os.fsync(here)
        os.close(fd)

    def link_unnamed(self, number: int) -> None:
        """Staged without a name (`O_TMPFILE`), as Linux can: two changes of the directory fewer."""
        here = self._directory
        fd = os.open(".", os.O_WRONLY | os.O_TMPFILE, 0o600, dir_fd=here)
        self._write(fd)
        os.link(f"/proc/self/fd/{fd}", str(number), dst_dir_fd=here, follow_symlinks=True)
        os.fsync(here)
        os.close(fd)

    def rename(self, number: int) -> None:
        """Unconditional: would replace whatever is there, but here the name is new."""
        self._rename(str(number))

    def rename_over(self, number: int) -> None:
        """Unconditional, and something is there: its space is given back, too."""
        self._rename("same")

    def _rename(self, name: str) -> None:
        here = self._directory
        fd = self._stage_named()
        os.rename("temp", name, src_dir_fd=here, dst_dir_fd=here)
        os.fsync(here)
        os.close(fd)

    def _stage_named(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        fd = os.open("temp", flags, 0o600, dir_fd=self._directory)
        self._write(fd)
        return fd

    def _write(self, fd: int) -> None:
        if os.write(fd, self._data) != len(self._data):
            raise OSError("the system took less than it was given: is the disk full?")
        os.fsync(fd)


def breakdown(root: Path, data: bytes, rounds: int) -> Iterator[float]:
    """The steps of an append, in microseconds, each as the append takes it."""
    disk = TimedDisk(ENV)
    store = LocalStore(str(root), ENV, disk)
    same = entry(data)
    encoded = encode(same)
    times = in_turns(
        {
            "encode": lambda number: ignore(encode(same)),
            "checksum": lambda number: ignore(checksum(encoded.parts)),
            "put_new": lambda number: store.put_new(entry_path(number), encoded.parts),
        },
        rounds,
    )
    times |= {name: Times(tuple(seconds)) for name, seconds in disk.seconds.items()}
    return (times[name].median * 1e6 for name in STEPS)


class TimedDisk(RealDisk):
    """The real disk, with a stopwatch on every step."""

    def __init__(self, env: SystemEnv) -> None:
        super().__init__(env)
        self.seconds: dict[str, list[float]] = {name: [] for name in STEPS[3:]}

    def stage(self, directory: str, parts: Sequence[Bytes]) -> Staged:
        begin = time.perf_counter()
        staged = super().stage(directory, parts)
        self._note("stage", begin)
        return staged

    def sync(self, staged: Staged) -> None:
        begin = time.perf_counter()
        super().sync(staged)
        self._note("fsync", begin)

    def link(self, staged: Staged, name: str) -> None:
        begin = time.perf_counter()
        super().link(staged, name)
        self._note("link", begin)

    def discard(self, staged: Staged) -> None:
        begin = time.perf_counter()
        super().discard(staged)
        self._note("close", begin)

    def sync_directory(self, path: str) -> None:
        begin = time.perf_counter()
        super().sync_directory(path)
        self._note("fsync directory", begin)

    def _note(self, name: str, begin: float) -> None:
        self.seconds[name].append(time.perf_counter() - begin)


# --- conditional: what does put-if-absent cost? ---------------------------------------------------


def conditional(directory: Path, quick: bool) -> list[Table]:
    table = Table(
        "Put-if-absent against an unconditional PUT",
        ("store", "data", "rounds", "operation", "p50 ms", "p99 ms", "times the first"),
        "Timed in turns. The last column compares medians with the first line of its group.",
    )
    with s3_stand_in() as endpoint:
        for label, size in (("1 KB", KB), ("100 KB", 100 * KB)):
            say(f"  {label}")
            rounds = 20 if quick else 500
            local = on_disk(directory / str(size), os.urandom(size))
            bucket = on_s3(endpoint, str(size), os.urandom(size))
            for store, actions in (("local disk", local), ("S3 stand-in", bucket)):
                times = in_turns(actions, rounds)
                first = next(iter(times.values()))
                for operation, found in times.items():
                    relative = found.median / first.median
                    table.add(store, label, rounds, operation, *milliseconds(found), relative)
    return [table]


def on_disk(directory: Path, data: bytes) -> dict[str, Action]:
    store = LocalStore(str(directory / "ours"), ENV)
    store.put_new("taken", data)
    return {
        "unconditional, new name (rename)": PlainCalls(directory / "rename", len(data)).rename,
        "unconditional, over an object (rename)": PlainCalls(
            directory / "over", len(data)
        ).rename_over,
        "if absent, named temp (link)": PlainCalls(directory / "link", len(data)).link_named,
        "if absent, unnamed temp (linkat)": PlainCalls(
            directory / "unnamed", len(data)
        ).link_unnamed,
        "ours, put_new": lambda number: store.put_new(f"new-{number}", data),
        "ours, put_new, taken": lambda number: lose(lambda: store.put_new("taken", data)),
    }


def on_s3(endpoint: str, prefix: str, data: bytes) -> dict[str, Action]:
    options: dict[str, Any] = {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": "bench",
        "secret_access_key": "bench",
        "virtual_hosted_style_request": False,
        "allow_http": True,
    }
    client = S3Store(BUCKET, prefix=prefix, **options)
    store = open_store(f"s3://{BUCKET}/{prefix}", ENV, **options)
    store.put_new("taken", data)

    def put(path: str, mode: Any) -> None:
        obstore.put(client, path, data, mode=mode, use_multipart=False)

    return {
        "unconditional, new name (PUT)": lambda number: put(f"plain-{number}", "overwrite"),
        "unconditional, over an object (PUT)": lambda number: put("same", "overwrite"),
        "if absent (PUT, If-None-Match: *)": lambda number: put(f"create-{number}", "create"),
        "if absent, taken": lambda number: lose(lambda: put("taken", "create")),
        "ours, put_new": lambda number: store.put_new(f"ours-{number}", data),
        "ours, put_new, taken": lambda number: lose(lambda: store.put_new("taken", data)),
    }


BUCKET = "bench"


def lose(put: Callable[[], None]) -> None:
    with suppress(ConflictError, AlreadyExistsError):
        put()


@contextmanager
def s3_stand_in() -> Iterator[str]:
    """moto in a process of its own, so that it does not share our interpreter, on loopback only."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        while not listens(port):
            if server.poll() is not None:
                raise SystemExit("the S3 stand-in ended; hint: pip install -e '.[dev]'")
            time.sleep(0.05)
        create = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(create).close()
        yield endpoint
    finally:
        server.terminate()
        server.wait()


def listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


# --- slatedb: the same durable writes into SlateDB ------------------------------------------------


def slatedb(directory: Path, quick: bool) -> list[Table]:
    speed = Table(
        "Durable writes on the same disk, ours and SlateDB's in turns, pair by pair",
        ("data", "rounds", "who", "entries/s", "p50 ms", "p99 ms", "put p50 ms", "wait p50 ms"),
        "put: handing the value over, which its Python binding does byte by byte; wait: until it "
        "says that the write is durable.",
    )
    flushes = {
        "SlateDB, its default: flush every 100 ms": "100ms",
        "SlateDB, flush every 1 ms": "1ms",
        EXPLICIT: None,
    }
    for label, size, most in (("1 KB", KB, 200), ("100 KB", 100 * KB, 100), ("10 MB", 10 * MB, 5)):
        for theirs, interval in flushes.items():
            say(f"  {label}, {theirs}")
            place = directory / f"{size}-{interval}"
            data = os.urandom(size)
            rounds = min(most, 10 if quick else most)
            with SlateDb(place / "theirs", interval) as database:
                times = in_turns(
                    {
                        "ours": appending(place / "ours", data),
                        UNSYNCED: appending(place / "unsynced", data, UnsyncedDisk(ENV)),
                        theirs: database.putting(data),
                    },
                    rounds,
                    warm_up=1,
                )
                put, wait = (Times(tuple(part[1:])) for part in (database.puts, database.waits))
            for who, found in times.items():
                split = (put.median * 1e3, wait.median * 1e3) if who == theirs else (None, None)
                speed.add(label, rounds, who, found.per_second, *milliseconds(found), *split)
    return [speed, in_flight(directory / "flight", quick), syncs(directory / "syncs")]


EXPLICIT = "SlateDB, explicit flush of its log"
UNSYNCED = "ours without fsync"
"""Never offered to anybody: it is what SlateDB does on a local disk, to compare like with like."""


def in_flight(directory: Path, quick: bool) -> Table:
    """SlateDB makes many writes durable with one object; we put many inputs into one entry."""
    rounds, data = 5 if quick else 100, os.urandom(KB)
    table = Table(
        f"{MANY} writes of 1 KB made durable together",
        ("who", "rounds", "writes/s", "p50 ms", "p99 ms"),
    )
    with SlateDb(directory / "theirs", None) as database:
        times = in_turns(
            {
                f"ours, one entry with {MANY} inputs": appending(
                    directory / "ours", data, inputs=MANY
                ),
                f"{EXPLICIT} after {MANY} puts": database.putting_many(data),
            },
            rounds,
        )
    for who, found in times.items():
        table.add(who, rounds, found.per_second * MANY, *milliseconds(found))
    return table


MANY = 64


class SlateDb:
    """A SlateDB in a local directory. Without an interval, each write is followed by a flush."""

    def __init__(self, root: Path, interval: str | None) -> None:
        try:
            self._api: Any = import_module("slatedb.uniffi")
        except ImportError:
            raise SystemExit("slatedb is missing; hint: pip install -e '.[bench]'") from None
        self._flush = interval is None
        self._loop = asyncio.new_event_loop()
        settings = self._api.Settings.default()
        if interval is not None:
            settings.set("flush_interval", f'"{interval}"')
        root.mkdir(parents=True)
        # It takes the file system as the store, and the directory as the place in it.
        everything = self._api.ObjectStore.resolve("file:///")
        builder = self._api.DbBuilder(str(root).lstrip("/"), everything)
        builder.with_settings(settings)
        self._database = self._loop.run_until_complete(builder.build())
        self.puts: list[float] = []
        self.waits: list[float] = []

    def __enter__(self) -> SlateDb:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._database.shutdown())
        self._loop.close()

    def putting(self, data: bytes) -> Action:
        """One write, made durable."""
        return lambda number: self._loop.run_until_complete(self._put(number, data))

    async def _put(self, number: int, data: bytes) -> None:
        begin = time.perf_counter()
        handle = await self._database.put(b"%020d" % number, data)
        middle = time.perf_counter()
        await self._durable([handle])
        self.puts.append(middle - begin)
        self.waits.append(time.perf_counter() - middle)

    def putting_many(self, data: bytes) -> Action:
        """Many writes, made durable together."""
        return lambda number: self._loop.run_until_complete(self._put_many(number, data))

    async def _put_many(self, number: int, data: bytes) -> None:
        keys = (b"%020d" % (number * MANY + index) for index in range(MANY))
        await self._durable([await self._database.put(key, data) for key in keys])

    async def _durable(self, handles: Sequence[Any]) -> None:
        if self._flush:
            log = self._api.FlushOptions(flush_type=self._api.FlushType.WAL)
            await self._database.flush_with_options(log)
        for handle in handles:
            await handle.await_durable()


def syncs(directory: Path) -> Table:
    """What "durable" means to each: which system calls reach for the disk."""
    table = Table(
        "System calls for one durable write of 1 KB, counted by strace",
        ("who", "fsync and the like", "link"),
        "100 writes less those of opening and closing, divided by 100.",
    )
    for who in ("ours", "SlateDB"):
        counts = [traced(directory / f"{who}-{writes}", who, writes) for writes in (10, 110)]
        if counts[0] is None or counts[1] is None:
            table.add(who, "strace is not installed", None)
            continue
        table.add(who, *((many - few) / 100 for few, many in zip(*counts, strict=True)))
    return table


def traced(directory: Path, who: str, writes: int) -> tuple[int, int] | None:
    strace = shutil.which("strace")
    if strace is None:
        return None
    directory.mkdir(parents=True)
    report = directory / "strace"
    code = f"import journal; journal.write_durably({who!r}, {str(directory / 'db')!r}, {writes})"
    calls = "trace=fsync,fdatasync,msync,sync,syncfs,sync_file_range,link,linkat"
    command = [strace, "-f", "-c", "-o", str(report), "-e", calls, sys.executable, "-c", code]
    subprocess.run(command, check=True, cwd=Path(__file__).parent, env=child_environment())
    counts: Counter[str] = Counter()
    for line in report.read_text().splitlines():
        words = line.split()
        if words and words[0][0].isdigit() and words[-1] != "total":
            counts[words[-1]] += int(words[3])
    links = counts["link"] + counts["linkat"]
    return counts.total() - links, links


def child_environment() -> dict[str, str]:
    """Let a child import what we import, installed or not."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def write_durably(who: str, root: str, writes: int) -> None:
    """Called in a process of its own, under strace."""
    data = os.urandom(KB)
    with ExitStack() as stack:
        if who == "ours":
            action = appending(Path(root), data)
        else:
            action = stack.enter_context(SlateDb(Path(root), None)).putting(data)
        for number in range(writes):
            action(number)


# --- open: does opening grow with the journal? ----------------------------------------------------


def opening(directory: Path, quick: bool) -> list[Table]:
    return [
        open_behind(directory / "behind", quick),
        open_above(directory / "above", quick),
        *open_often(directory / "often", quick),
    ]


REQUESTS = ("get", "exists", "list", "put_new", "delete")


def open_behind(directory: Path, quick: bool) -> Table:
    table = Table(
        "Opening, by the number of entries behind the replay position",
        ("entries behind", "opens", "requests", *REQUESTS, "p50 ms", "p99 ms"),
        "The most requests that one of the opens made. Timed in turns, on the local disk.",
    )
    opens = 5 if quick else 40
    pipelines = {}
    for entries in (10, 2_000 if quick else 100_000):
        say(f"  {entries:,} entries behind")
        build(directory / str(entries), entries, replayed=True)
        pipelines[entries] = Opener(directory / str(entries))
    settle()
    times = opened(pipelines, opens)
    for entries, opener in pipelines.items():
        table.add(entries, opens, *opener.requests(), *milliseconds(times[entries]))
    return table


def open_above(directory: Path, quick: bool) -> Table:
    table = Table(
        "Opening, by the number of entries to replay",
        ("entries above", "opens", "requests", *REQUESTS, "p50 ms", "us per entry"),
        "`exists` is the search for the end of the journal; one `get` per entry is the replay.",
    )
    opens = 3 if quick else 7
    pipelines = {}
    for entries in (10, 100, 1_000, 10_000)[: 3 if quick else 4]:
        say(f"  {entries:,} entries above")
        build(directory / str(entries), entries, replayed=False)
        pipelines[entries] = Opener(directory / str(entries))
    settle()
    times = opened(pipelines, opens)
    for entries, opener in pipelines.items():
        found = times[entries].median
        each = (found - times[10].median) / (entries - 10) * 1e6 if entries > 10 else None
        table.add(entries, opens, *opener.requests(), found * 1e3, each)
    return table


def open_often(directory: Path, quick: bool) -> list[Table]:
    speed = Table(
        "Opening again and again, without a write",
        ("opens", "requests", *REQUESTS, "p50 ms", "p99 ms"),
        "The most requests that one of the opens made.",
    )
    space = Table(
        "What those opens leave, and what collecting leaves of it",
        ("when", "objects", "bytes", "seconds to collect"),
    )
    opens, window = (100, 20) if quick else (1000, 100)
    say(f"  {opens:,} opens")
    opener = Opener(directory)
    opener.open()
    opener.calls.clear()

    def measure(label: str, count: int) -> None:
        times = Times(tuple(timed(opener.open) for _ in range(count)))
        speed.add(label, *opener.requests(), *milliseconds(times))
        opener.calls.clear()

    for first in (0, opens // 2, opens - window):
        while opener.opens < first:
            opener.open()
        opener.calls.clear()
        measure(f"{opener.opens}-{opener.opens + window - 1}", window)
    store = LocalStore(str(directory), ENV)
    space.add(f"after {opener.opens:,} opens", *left(store), None)
    spent = timed(lambda: collect(store))
    space.add("after collecting", *left(store), spent)
    measure(f"{window} more, after collecting", window)
    return [speed, space]


class Opener:
    """Opens one pipeline as a new process would, and counts the requests of each time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.opens = 0
        self.calls: list[Counter[str]] = []

    def open(self) -> Writer:
        store = FaultyStore(LocalStore(str(self._root), ENV))
        writer = open_writer(store, ENV)
        self.opens += 1
        self.calls.append(Counter(call.operation for call in store.calls))
        return writer

    def action(self, number: int) -> None:
        self.open()

    def requests(self) -> tuple[int, ...]:
        """The most that one of the counted opens made: in all, and by operation."""
        most = max(calls.total() for calls in self.calls)
        return (most, *(max(calls[name] for calls in self.calls) for name in REQUESTS))


def opened(pipelines: dict[int, Opener], opens: int) -> dict[int, Times]:
    return in_turns({entries: opener.action for entries, opener in pipelines.items()}, opens)


def build(root: Path, entries: int, *, replayed: bool) -> None:
    """A pipeline with this many entries, written by the code that writes them, but not synced."""
    writer = open_writer(LocalStore(str(root), ENV, UnsyncedDisk(ENV)), ENV)
    same = draft(random.randbytes(100))
    for _ in range(entries):
        writer.append(same)
    if replayed:
        tip = writer.journal.tip
        writer.commit(lambda manifest: replace(manifest, replay=tip), "set the replay position")


class UnsyncedDisk(RealDisk):
    """Leaves it to the system when to write, to build what is then measured on a real one."""

    def sync(self, staged: Staged) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


def collect(store: Store) -> None:
    settings = CollectSettings(grace_s=0, journal_keep_s=0, barrier_keep_s=0)
    Collector(store, ENV, settings=settings).collect()


def left(store: Store) -> tuple[int, int]:
    found = store.list()
    return len(found), sum(item.size for item in found)


# --- what the sections share ----------------------------------------------------------------------


def draft(data: bytes, inputs: int = 1) -> Draft:
    taken = Input("bench", "bench", 1, NO_CHECKSUM, data=data)
    return Draft(Kind.STEP, Transaction(1), 0, True, ENV.now(), (taken,) * inputs)


def entry(data: bytes) -> Entry:
    return Entry(ENV.new_id(), Epoch(1), Position(1), ENV.new_id(), NO_CHECKSUM, draft(data))


def entry_path(number: int) -> str:
    return paths.entry(Position(number + 1))


def entry_bytes(data: bytes) -> int:
    return sum(len(part) for part in encode(entry(data)).parts)


def milliseconds(times: Times) -> tuple[float, float]:
    """p50 and p99."""
    return times.median * 1e3, times.percentile(99) * 1e3


def ignore(value: object) -> None:
    """For an action whose answer is not wanted."""


SECTIONS: dict[str, Callable[[Path, bool], list[Table]]] = {
    "append": append,
    "conditional": conditional,
    "slatedb": slatedb,
    "open": opening,
}

if __name__ == "__main__":
    main()
