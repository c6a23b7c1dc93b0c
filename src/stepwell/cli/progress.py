"""Progress of `stepwell run` on standard error, driven by the pipeline's events.

In a terminal one line is updated in place, and only important messages stay. Elsewhere every line
has a timestamp. To keep a log readable, transactions are reported about once a second, however many
there are, and a long phase every few seconds. Both modes name sources and sinks that lag. Speed
refers to the time spent on transactions, not to waiting for input. With `--json` every event is a
line of JSON, except progress events, which are printed every few seconds as well.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict

from rich.console import Console
from rich.status import Status

from stepwell.cli import logs
from stepwell.cli.phase_progress import PhaseProgress
from stepwell.cli.screen import count, plain
from stepwell.deploy.project import Project
from stepwell.engine.event_log import message_of
from stepwell.engine.events import (
    BackgroundTaskFailed,
    CollectFailed,
    Committed,
    Event,
    ExecutorLost,
    FlushFailed,
    Opened,
    OpeningAt,
    Published,
    Settled,
    SinkFailed,
    SourceFailed,
    Stopped,
    StoreAvailable,
    StoreUnavailable,
    TransactionAt,
    Waiting,
    Working,
)
from stepwell.engine.status import Status as PipelineStatus
from stepwell.env import Env
from stepwell.model import Transaction

_PAUSE_S = 1.0
_PHASE_S = 3.0
"""Interval of the reports about a long phase, and delay before the first one."""
_TOLD = (
    *(Settled, SinkFailed, SourceFailed, FlushFailed, ExecutorLost, BackgroundTaskFailed),
    *(CollectFailed, StoreUnavailable, StoreAvailable, Waiting),
)
"""Events that are told at once, as they are logged."""
_LATELY_S = 10.0
"""Speed is computed over the last seconds of work, up to this many."""


class Progress:
    """Listener of a pipeline, called from any of its threads. The line is shown inside a `with`."""

    def __init__(self, env: Env, *, json: bool) -> None:
        self._env = env
        self._json = json
        self._lock = threading.Lock()
        self._console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
        self._logs = not json and logs.configured() is not None
        """Whether the pipeline logs its events to standard error: then nothing is shown here."""
        self._name: str | None = None
        dumb = os.environ.get("TERM") == "dumb" or self._logs
        live = sys.stderr.isatty() and not dumb and not json
        self._live: Status | None = self._console.status("", spinner="dots") if live else None
        self._rows = 0
        self._rows_told = 0
        self._told = Transaction(0)
        self._told_at = -_PAUSE_S
        self._started = env.uptime()
        self._lately: deque[tuple[float, int]] = deque()
        """Seconds and rows of the last transactions."""
        self._phase = PhaseProgress(env)
        self._phase_at = 0.0
        self._behind = ""
        self._left = ""
        self._ending = False
        self._last: Opened | Stopped | None = None
        self.look: Callable[[], PipelineStatus] | None = None
        """Returns the current status of the pipeline."""
        self.transaction = Transaction(0)
        self.transactions = 0

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say_opening(self, project: Project) -> None:
        self._name = project.name
        where = f"{project.name} in {project.store}"
        by = "" if project.sections.executor == "reference" else ", starting Spark"
        self.say(f"opening {where}{by}")

    def say_running(self, *, endless: bool) -> None:
        if endless:
            self.say("running; Ctrl-C ends it after the transaction under way")

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Committed):
                self.transaction = event.transaction
                self.transactions += 1
                self._rows += event.rows
                self._lately.append((event.seconds, event.rows))
                while len(self._lately) > 1 and self._worked() - self._lately[0][0] > _LATELY_S:
                    self._lately.popleft()
            elif isinstance(event, (Opened, Stopped)):
                self.transaction = event.transaction
                self._last = event
            if self._logs:
                return
            at = _phase(event)
            if at is not None:
                self._show_phase(event, *at)
                return
            if self._json:
                self._print_json(event)
                return
            self._show(event)

    def tick(self) -> None:
        """Called periodically, so that no progress stays unreported."""
        if self._json or self._logs:
            return
        behind = "" if self.look is None else _behind(self.look())
        with self._lock:
            self._behind = behind
            self._tell()

    def note_waiting(self) -> None:
        """Note what the sources leave for another run, to be said at the end."""
        left = [] if self.look is None else _waiting(self.look())
        with self._lock:
            self._left = "".join(f"; {plain(text)}" for text in left)

    def say_ending(self) -> None:
        """Report, once, that the command was asked to end."""
        if not self._ending and not self._json:
            self._ending = True
            self.say("ending after the transaction under way; Ctrl-C again ends at once")

    def end(self) -> None:
        """Report the final progress."""
        if self._json or self._logs or not isinstance(self._last, Stopped):
            return
        with self._lock:
            self._tell(now=True)
        done = count(self.transactions, "transaction")
        rows = count(self._rows, "row")
        self.say(f"stopped at transaction {self.transaction}: {done}, {rows} in{self._left}")

    def _show(self, event: Event) -> None:
        if isinstance(event, Opened):
            self._told = event.transaction
            again = f", {count(event.replayed, 'transaction')} replayed" if event.replayed else ""
            self.say(f"opened at transaction {event.transaction} (epoch {event.epoch}){again}")
        elif isinstance(event, Committed):
            self._tell()
            if event.rejected:
                rejected = count(event.rejected, "row")
                where = plain(", ".join(f"{table}$errors" for table in event.tables))
                self.say(f"transaction {event.transaction}: {rejected} rejected, see {where}")
            for item in event.violations:
                found = count(item.added, "new violation")
                told = f"{found} of data test {item.test}, see {item.view}"
                self.say(f"transaction {event.transaction}: {told}")
        elif isinstance(event, Published):
            self._tell()
        elif isinstance(event, _TOLD) and not (isinstance(event, SinkFailed) and event.stops):
            # The command ends with the error of a sink that stops it.
            self._tell(now=True)
            self.say(message_of(event))

    def _tell(self, *, now: bool = False) -> None:
        """Report the transactions since the last report, unless that was just now."""
        rows, first = self._rows - self._rows_told, self._told + 1
        at = self._env.uptime()
        if self._live is not None:
            done = f"transaction {self.transaction}, {count(self._rows, 'row')} in"
            self._line(done + self._speed() + self._behind)
            return
        if first > self.transaction or (at - self._told_at < _PAUSE_S and not now):
            return
        which = f"transactions {first} to {self.transaction}"
        if first == self.transaction:
            which = f"transaction {first}"
        self._told, self._told_at, self._rows_told = self.transaction, at, self._rows
        self.say(f"{which}: {count(rows, 'row')} in{self._speed()}{self._behind}")

    def _speed(self) -> str:
        """Return the rows per second of work; empty if there was no work yet."""
        worked = self._worked()
        if worked <= 0:
            return ""
        return f", {sum(rows for _, rows in self._lately) / worked:,.0f} rows/s"

    def _worked(self) -> float:
        return sum(seconds for seconds, _ in self._lately)

    def _show_phase(self, event: Event, what: str, done: int, total: int, unit: str) -> None:
        text, at = self._phase.text(what, done, total, unit), self._env.uptime()
        if self._live is not None:
            self._line(text)
        elif at - max(self._phase_at, self._phase.began) >= _PHASE_S:
            self._phase_at = at
            if self._json:
                self._print_json(event)
            else:
                self.say(text)

    def _line(self, text: str) -> None:
        if self._live is not None:
            self._live.update(text)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._json:
            return
        if self._logs:
            fields = {"pipeline": self._name, "transaction": self.transaction or None}
            logs.LOGGER.info("%s", text, extra=fields)
            return
        if self._live is not None:
            self._console.print(plain(text), soft_wrap=True)
        else:
            time = f"{self._env.now().astimezone():%Y-%m-%d %H:%M:%S}"
            print(f"{time} {plain(text)}", file=sys.stderr, flush=True)

    def _print_json(self, event: Event) -> None:
        content = {"event": type(event).__name__, **asdict(event)}
        print(json.dumps(content, default=str), file=sys.stderr, flush=True)


def _phase(event: Event) -> tuple[str, int, int, str] | None:
    """Return the progress in an event that reports nothing but progress; None for others."""
    match event:
        case OpeningAt():
            if event.total:
                return f"opening: {event.stage}", event.done, event.total, event.unit
            return f"opening: {event.stage}", event.percent, 100, ""
        case Working():
            return event.what, event.done, event.total, event.unit
        case TransactionAt():
            return f"transaction {event.transaction}", event.done, event.rows, "row"
        case _:
            return None


def _behind(status: PipelineStatus) -> str:
    """List the sources that lag and the sinks that have not received everything."""
    sinks = [
        f"sink {item.name} is {count(item.pending, 'transaction')} behind"
        for item in status.sinks
        if item.pending
    ]
    return "".join(f"; {plain(text)}" for text in (*_waiting(status), *sinks))


def _waiting(status: PipelineStatus) -> list[str]:
    return [f"{item.name}: {item.waiting}" for item in status.sources if item.waiting]


class LongWork:
    """Listener for commands that are usually short: reports outages and long phases."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._phase = PhaseProgress(env)
        self._said_at = 0.0

    def __call__(self, event: Event) -> None:
        if logs.configured() is not None:
            return  # The pipeline logs it.
        if isinstance(event, (StoreUnavailable, StoreAvailable)):
            print(plain(message_of(event)), file=sys.stderr, flush=True)
            return
        at = _phase(event)
        if at is not None:
            text, now = self._phase.text(*at), self._env.uptime()
            if now - max(self._said_at, self._phase.began) >= _PHASE_S:
                self._said_at = now
                print(plain(text), file=sys.stderr, flush=True)
