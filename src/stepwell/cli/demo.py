"""`stepwell demo`: two processes race for one pipeline; what they say is held against the journal.

Writer A appends rows as fast as it can. In the middle of that, B opens the same pipeline: A is
fenced, B replays what A had appended and goes on. Nothing here waits for time to pass: the writers
report each row through a pipe, and through another one they are told how many more to append. So A
cannot run away from B for ever, and the race is as short as it is real. A crash leaves the
temporary directory.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from stepwell import threads
from stepwell.cli import journal
from stepwell.cli.demo_writer import decode
from stepwell.cli.screen import Screen, count
from stepwell.env import Env, SystemEnv
from stepwell.errors import UnavailableError
from stepwell.journal import paths
from stepwell.journal.entry import Cursor
from stepwell.journal.log import JournalReader, Log
from stepwell.model import Position
from stepwell.store.base import Store
from stepwell.store.locate import open_store

ROWS_BEFORE = 10
"""What A has appended when B is let go."""
ROWS_MEANWHILE = 40
"""What A may append while B opens the pipeline."""
ROWS_AFTER = 10
"""What B appends; and A would, if it were not fenced."""
PATIENCE_S = 60.0

Told = tuple[str, "dict[str, Any] | None"]


@dataclass(slots=True)
class Writer:
    """What one writer has said so far."""

    name: str
    epoch: int = 0
    pid: int = 0
    replayed: int = 0
    acknowledged: list[int] = field(default_factory=list)
    fenced: dict[str, Any] | None = None
    closed: bool = False

    def hear(self, said: dict[str, Any]) -> None:
        event = said["event"]
        if event == "opened":
            self.epoch, self.pid, self.replayed = said["epoch"], said["pid"], said["replayed"]
        elif event == "acknowledged":
            self.acknowledged.append(said["row"])
        elif event == "fenced":
            self.fenced = said
        elif event == "closed":
            self.closed = True


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must hold, and whether it does."""

    holds: bool
    text: str


def show(*, keep: bool, json: bool) -> bool:
    """Run the race, show it, and say whether the promise was kept."""
    env, screen = SystemEnv(), Screen()
    directory = tempfile.mkdtemp(prefix="stepwell-demo-")
    try:
        a, b = race(directory)
        store = open_store(directory, env)
        rows = read_rows(store, env)
        findings = judge(a, b, rows)
        view = journal.read_view(store, env)
        holds = view.whole and all(finding.holds for finding in findings)
        if json:
            screen.json(
                {
                    "holds": holds,
                    "findings": [asdict(finding) for finding in findings],
                    "writers": [asdict(a), asdict(b)],
                    "rows_in_journal": len(rows),
                    "journal": journal.as_json(view),
                    "directory": directory if keep else None,
                }
            )
        else:
            tell(screen, a, b, view)
            conclude(screen, findings, holds)
            next_steps(screen, directory if keep else None)
        return holds
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def race(directory: str) -> tuple[Writer, Writer]:
    """Run both writers to their end."""
    a, b = Writer("A"), Writer("B")
    writers = {"A": a, "B": b}
    heard: queue.Queue[Told] = queue.Queue()
    with _process(directory, "A", heard) as first, _process(directory, "B", heard) as second:
        processes = {"A": first, "B": second}
        ready: set[str] = set()
        running = {"A", "B"}
        while running:
            name, said = _next(heard)
            if said is None:
                running.discard(name)
                processes[name].check()
                continue
            if said["event"] == "ready":
                ready.add(name)
                if len(ready) == len(processes):
                    first.append(ROWS_BEFORE)
                continue
            writers[name].hear(said)
            if name == "A" and len(a.acknowledged) == ROWS_BEFORE:
                first.append(ROWS_MEANWHILE)
                second.append(ROWS_AFTER, last=True)
            elif name == "B" and said["event"] == "opened":
                first.append(ROWS_AFTER, last=True)
    return a, b


class Process:
    """A writer's process, its pipes, and what it has to complain about."""

    def __init__(self, name: str, command: list[str]) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - see close
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )

    def append(self, rows: int, *, last: bool = False) -> None:
        """Tell it to append so many rows more; the first time, it opens the pipeline before."""
        # One that has ended already cannot be told; why it ended is found by `check`.
        with suppress(BrokenPipeError):
            if self.popen.stdin:
                self.popen.stdin.write(f"{rows}\n")
                self.popen.stdin.flush()
                if last:
                    self.popen.stdin.close()

    def check(self) -> None:
        """Raise what it died of, if it did."""
        if self.popen.wait(PATIENCE_S) != 0:
            self._errors.seek(0)
            raise UnavailableError(
                f"writer {self._name} of the demo failed: {self._errors.read().strip()}"
            )

    def close(self) -> None:
        """End it and wait, so that nothing writes to the directory any more."""
        self.popen.kill()
        self.popen.wait()
        self._errors.close()
        if self.popen.stdin:
            with suppress(BrokenPipeError):
                self.popen.stdin.close()


@contextmanager
def _process(directory: str, name: str, heard: queue.Queue[Told]) -> Iterator[Process]:
    command = [sys.executable, "-m", "stepwell", "demo-writer", directory, name]
    process = Process(name, command)
    listener = threads.start(
        f"stepwell-demo-{name}",
        partial(_listen, process.popen, name, heard),
        failed=lambda error: heard.put((name, None)),
    )
    try:
        yield process
    finally:
        process.close()
        listener.join()


def _listen(process: subprocess.Popen[str], name: str, heard: queue.Queue[Told]) -> None:
    if process.stdout:
        with process.stdout as lines:
            for line in lines:
                heard.put((name, json.loads(line)))
    heard.put((name, None))


def _next(heard: queue.Queue[Told]) -> Told:
    try:
        return heard.get(timeout=PATIENCE_S)
    except queue.Empty:
        raise UnavailableError(
            f"the writers of the demo said nothing for {PATIENCE_S:.0f} s",
            hint="is the disk busy? see: stepwell doctor",
        ) from None


def read_rows(store: Store, env: Env) -> list[tuple[str, int]]:
    """Every row in the journal, in its order, as any reader sees it."""
    reader = JournalReader(Log(store), Cursor())
    rows: list[tuple[str, int]] = []
    while entries := reader.poll():
        for recorded in entries:
            for item in recorded.entry.draft.inputs:
                rows += decode(item)
    return rows


def judge(a: Writer, b: Writer, rows: list[tuple[str, int]]) -> list[Finding]:
    """Compare what the writers were told with what the journal holds."""
    promised = [("A", row) for row in a.acknowledged] + [("B", row) for row in b.acknowledged]
    kept, known = set(rows), set(promised)
    lost = [row for row in promised if row not in kept]
    repeated = len(rows) - len(kept)
    # A row in the journal that nobody was told of would be no loss, but here it cannot be: the
    # only one under way when A was fenced is the one that A was told is not written.
    extra = [row for row in rows if row not in known]
    of_a = sum(1 for name, _ in rows if name == "A")
    in_order = [row for row in rows if row in known] == [row for row in promised if row in kept]
    return [
        Finding(a.fenced is not None and b.closed, "A was fenced, B was not"),
        Finding(
            bool(promised) and not lost,
            f"{count(len(promised), 'row was', 'rows were')} acknowledged, "
            + (f"but not in the journal: {_named(lost)}" if lost else "and all are in the journal"),
        ),
        Finding(not repeated, f"{repeated} of them twice" if repeated else "each of them once"),
        Finding(in_order or bool(repeated), "in the order of acknowledgement, A's before B's"),
        Finding(not extra, f"beside them: {_named(extra)}" if extra else "and nothing else"),
        Finding(b.replayed == of_a, f"B replayed {b.replayed} of A's {of_a} rows before it served"),
    ]


def _named(rows: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"row {row} of {name}" for name, row in rows[:5])
    return shown if len(rows) <= 5 else f"{shown} and {len(rows) - 5} more"


def tell(screen: Screen, a: Writer, b: Writer, view: journal.View) -> None:
    """The story, then the journal."""
    screen.line("Two processes race for one pipeline in a local store.", "bold")
    screen.line()
    screen.paragraph(
        f"pid {a.pid} opened the pipeline (epoch {a.epoch}) and appended "
        f"{count(len(a.acknowledged), 'row')}, as fast as it could",
        first="A  ",
    )
    screen.paragraph(
        f"pid {b.pid} opened it meanwhile (epoch {b.epoch}): it took the next position with a "
        f"barrier and replayed {count(b.replayed, 'row')}",
        first="B  ",
    )
    if a.fenced:
        screen.paragraph(f"was fenced when it wanted to append row {a.fenced['row']}:", first="A  ")
        screen.paragraph(f"error: {a.fenced['message']}", indent=" " * 5)
        screen.paragraph(f"hint: {a.fenced['hint']}", indent=" " * 5)
    rows = count(len(b.acknowledged), "row")
    screen.paragraph(f"appended {rows} and closed the pipeline", first="B  ")
    screen.line()
    journal.render(screen, view, keep=_around_the_fence(view))


def _around_the_fence(view: journal.View) -> list[int]:
    """The positions worth seeing: both ends, and where one writer follows the other."""
    positions = [line.position for line in view.lines]
    barriers = [
        line.position
        for line in view.lines
        if line.content is None or line.content["kind"] == "barrier"
    ]
    kept = set(positions[:3] + positions[-2:])
    for barrier in barriers:
        kept |= set(range(barrier - 2, barrier + 3))
    return sorted(kept)


def conclude(screen: Screen, findings: list[Finding], holds: bool) -> None:
    screen.line()
    for finding in findings:
        label = "ok      " if finding.holds else "BROKEN  "
        screen.paragraph(finding.text, first=label, style="" if finding.holds else "red")
    screen.line()
    if holds:
        screen.line("Nothing was lost, and nothing was written twice.", "bold")
    else:
        screen.line(
            "The promise was broken. This is a bug in Stepwell: please report it.", "bold red"
        )


def next_steps(screen: Screen, directory: str | None) -> None:
    screen.line()
    screen.line("Next:")
    if directory is None:
        steps = [("keep the store", "stepwell demo --keep")]
    else:
        steps = [
            ("every entry", f"stepwell inspect journal {directory}"),
            ("one entry", f"stepwell inspect journal {directory}/{paths.entry(Position(2))}"),
            ("who holds it", f"stepwell inspect manifest {directory}"),
            ("remove it", f"rm -r {directory}"),
        ]
    steps.append(("your machine", "stepwell doctor"))
    for what, command in steps:
        screen.line(f"  {what:<16}{command}")
