"""A process whose children are killed.

It reads calls from standard input, one a line as JSON: the name of a function, how many numbers it
may tell, how many seconds it may go on after that, and its arguments. It forks a child that calls
the function, kills the child when its time is over, and answers with the last number the child
told. Forking saves the time it takes to import everything.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import stepwell.connectors.iceberg_sink  # noqa: F401 - once, instead of in each child
from stepwell.connectors.registry import make_sink, make_source
from stepwell.engine.events import Committed
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Coalesces, Limits
from stepwell.engine.writer_session import Settings
from stepwell.env import SystemEnv
from stepwell.errors import UnavailableError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.sql.statements import Table, parse_statements
from stepwell.store.locate import open_store
from stepwell.text import Source as Text
from tests.connectors.sinks import Place, in_turn, mark

Tell = Callable[[int], None]


def write(
    tell: Tell, options: dict[str, object], keyed: bool, first: int, together: int = 1
) -> None:
    """Write one transaction after another to a sink, telling each before it is written.

    With `together` that many of them in one commit, reporting the last.
    """
    sink = Place(str(options["type"]), options, keyed=keyed).make()
    held = sink.last()
    for number in range(first, first + 1_000_000, together):
        changes = [(mark(n), in_turn(n)) for n in range(number, number + together)]
        last = changes[-1][0]
        tell(last.transaction)
        if together == 1:
            sink.write(held, *changes[0])
        else:
            assert isinstance(sink, Coalesces)
            sink.write_together(held, changes)
        held = last


def run(tell: Tell, checkpoint_every_s: float, **given: object) -> None:
    """Run a pipeline, telling its number when it is open and after each transaction."""

    def listen(event: object) -> None:
        if isinstance(event, Committed):
            tell(int(event.transaction))

    with open_pipeline(**given, checkpoint_every_s=checkpoint_every_s, listener=listen) as pipeline:  # type: ignore[arg-type]
        tell(int(pipeline.transaction_number))
        while True:
            pipeline.run(once=True)


def run_through_outages(tell: Tell, **given: object) -> None:
    """Run a pipeline, telling a number at once; open it again when something does not answer."""
    tell(0)
    while True:
        with suppress(UnavailableError):
            run(tell, **given)  # type: ignore[arg-type]


def open_pipeline(
    folder: str,
    sql: str,
    sources: object,
    sinks: object,
    *,
    checkpoint_every_s: float = 1000.0,
    listener: Callable[[object], None] | None = None,
) -> Pipeline:
    """A pipeline in a folder; sources and sinks are options by name."""
    env, base = SystemEnv(), Path(folder)
    statements = parse_statements(Text("pipeline.sql", sql))
    tables = {s.name: s for s in statements if isinstance(s, Table)}
    assert isinstance(sources, dict)
    assert isinstance(sinks, dict)
    return Pipeline(
        open_store(str(base / "state"), env),
        env,
        executor=lambda store, env: ReferenceExecutor(sql, store, env),
        sources=[
            make_source(name, options, tables[options["table"]], env, base=base)
            for name, options in sources.items()
        ],
        sinks=[
            make_sink(name, options, options["view"], env, base=base)
            for name, options in sinks.items()
        ],
        settings=Settings(limits=Limits(rows_max=50), checkpoint_every_s=checkpoint_every_s),
        listener=listener,
    )


class Victims:
    """The process, seen from the test."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def kill(self, name: str, numbers: int, delay_s: float, **arguments: object) -> int:
        """Start a call, kill it a while after it reported `numbers` numbers; return the last."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, numbers, delay_s, arguments]).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def victims() -> Iterator[Victims]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", __name__],
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Victims(process)
    finally:
        process.communicate(timeout=60)
        assert process.returncode == 0


def main() -> None:
    for line in sys.stdin:
        name, numbers, delay_s, arguments = json.loads(line)
        calls = {"write": write, "run": run, "run_through_outages": run_through_outages}
        call = calls[name]
        print(fork_and_kill(call, numbers, delay_s, arguments), flush=True)


def fork_and_kill(
    call: Callable[..., None], numbers: int, delay_s: float, arguments: dict[str, object]
) -> int:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            call(lambda number: os.write(writing, number.to_bytes(8, "big")), **arguments)
        finally:
            os._exit(1)
    os.close(writing)
    told = b""
    while len(told) < 8 * numbers and (block := os.read(reading, 8)):
        told += block
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while block := os.read(reading, 1 << 16):
        told += block
    os.close(reading)
    assert told, "the child failed before it said anything"
    return int.from_bytes(told[-8:], "big")


if __name__ == "__main__":
    main()
