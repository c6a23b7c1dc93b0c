"""Commands in processes that start at once: forked from one that has everything imported.

It reads calls from standard input, one a line as JSON: where to write to, and the arguments of the
command. It forks a child that becomes the command, and answers with its number. What the child does
is what `stepwell` does; only the second it takes to import everything is saved.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.projects import wait


class Forked:
    """A command that was forked, to be killed."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    @property
    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def until(self, text: str) -> None:
        wait(lambda: text in self.text or not self.alive, lambda: self.text)
        assert text in self.text, self.text

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        wait(lambda: not self.alive)


class Forks:
    """The process that forks, seen from the test."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def start(self, folder: Path, log: Path, *arguments: str) -> Forked:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        call = [str(log), ["-C", str(folder), *arguments]]
        self._process.stdin.write(json.dumps(call).encode() + b"\n")
        self._process.stdin.flush()
        return Forked(int(self._process.stdout.readline()), log)


@contextmanager
def forks() -> Iterator[Forks]:
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        yield Forks(process)
    finally:
        process.communicate(timeout=60)
        assert process.returncode == 0


def main() -> None:
    import deltalake  # noqa: F401
    import psycopg  # noqa: F401

    import stepwell.cli.main as command
    import stepwell.cli.run
    import stepwell.execution.reference.executor  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Children that are killed leave nothing.
    for line in sys.stdin:
        log, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(written, 1)
            os.dup2(written, 2)
            sys.argv = ["stepwell", *arguments]
            try:
                command.main()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(1)
        print(child, flush=True)


if __name__ == "__main__":
    main()
