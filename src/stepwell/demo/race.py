"""Two processes race for one pipeline; their reports are compared with the journal.

Writer A appends rows as fast as it can. Meanwhile B opens the same pipeline: A is fenced, and B
replays A's rows and continues. Nothing here depends on timing: each writer reports every row
through a pipe, and another pipe tells it how many more rows to append. So A cannot outrun B
forever, and the race is real but short. A crash leaves the temporary directory behind.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stepwell import threads
from stepwell.demo.writer import decode
from stepwell.env import Env
from stepwell.errors import UnavailableError
from stepwell.journal.entry import Cursor
from stepwell.journal.log import JournalReader, Log
from stepwell.store.base import Store

ROWS_BEFORE = 10
"""Rows that A has appended when B is started."""
ROWS_MEANWHILE = 40
"""Rows that A may append while B opens the pipeline."""
ROWS_AFTER = 10
"""Rows that B appends, and that A would append if it were not fenced."""
PATIENCE_S = 60.0

Told = tuple[str, "dict[str, Any] | None"]


@dataclass(slots=True)
class Writer:
    """Reports of one writer so far."""

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
    """One guarantee, and whether it holds."""

    holds: bool
    text: str


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
    """A writer's process, its pipes, and its error output."""

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
        """Ask for `rows` more rows; the first request makes the writer open the pipeline."""
        # A writer that has ended cannot be told; `check` finds out why it ended.
        with suppress(BrokenPipeError):
            if self.popen.stdin:
                self.popen.stdin.write(f"{rows}\n")
                self.popen.stdin.flush()
                if last:
                    self.popen.stdin.close()

    def check(self) -> None:
        """Raise the error that the writer died of, if it did."""
        if self.popen.wait(PATIENCE_S) != 0:
            self._errors.seek(0)
            raise UnavailableError(
                f"writer {self._name} of the demo failed: {self._errors.read().strip()}"
            )

    def close(self) -> None:
        """End the process and wait, so that nothing writes to the directory any more."""
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
    """Read every row in the journal, in order, as any reader sees it."""
    reader = JournalReader(Log(store), Cursor())
    rows: list[tuple[str, int]] = []
    while entries := reader.poll():
        for recorded in entries:
            for item in recorded.entry.draft.inputs:
                rows += decode(item)
    return rows


def judge(a: Writer, b: Writer, rows: list[tuple[str, int]]) -> list[Finding]:
    """Compare the acknowledgements with the rows in the journal."""
    promised = [("A", row) for row in a.acknowledged] + [("B", row) for row in b.acknowledged]
    kept, known = set(rows), set(promised)
    lost = [row for row in promised if row not in kept]
    repeated = len(rows) - len(kept)
    # An unacknowledged row in the journal would not be a loss, but it cannot happen here: when A
    # was fenced, its only pending row was the one that A was told is not written.
    extra = [row for row in rows if row not in known]
    of_a = sum(1 for name, _ in rows if name == "A")
    in_order = [row for row in rows if row in known] == [row for row in promised if row in kept]
    return [
        Finding(a.fenced is not None and b.closed, "A was fenced, B was not"),
        Finding(
            bool(promised) and not lost,
            f"{len(promised)} rows were acknowledged, "
            + (f"but not in the journal: {_named(lost)}" if lost else "and all are in the journal"),
        ),
        Finding(not repeated, f"{repeated} of them twice" if repeated else "each of them once"),
        Finding(in_order or bool(repeated), "in the order of acknowledgement, A's before B's"),
        Finding(not extra, f"besides them: {_named(extra)}" if extra else "and nothing else"),
        Finding(b.replayed == of_a, f"B replayed {b.replayed} of A's {of_a} rows before it served"),
    ]


def _named(rows: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"row {row} of {name}" for name, row in rows[:5])
    return shown if len(rows) <= 5 else f"{shown} and {len(rows) - 5} more"
