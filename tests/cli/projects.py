"""Projects that need no Spark, and processes that run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from stepwell.deploy.project import Project, load_project
from stepwell.env import SystemEnv

YML = """\
name: orders
store: ./state
sources:
  order_files: {table: orders, type: files, path: data/*.json, format: json, settle: 0s}
sinks:
  revenue_out: {view: revenue, type: files, path: out, format: json}
"""
SQL = """\
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(12,2));
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
"""
PATIENCE_S = 120.0


def write_project(folder: Path, yml: str = YML, sql: str = SQL) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "stepwell.yml").write_text(yml, encoding="utf-8")
    (folder / "pipeline.sql").write_text(sql, encoding="utf-8")
    return folder


def load(folder: Path) -> Project:
    return load_project(folder, SystemEnv())


def put_file(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    """A file that appears whole, under its name."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    hidden = folder / "data" / f".{name}"
    hidden.write_text(text, encoding="utf-8")
    hidden.rename(folder / "data" / name)


def sink_rows(folder: Path) -> Counter[tuple[object, ...]]:
    """What the sink's files add up to; nothing goes that did not come."""
    rows: Counter[tuple[object, ...]] = Counter()
    for part in sorted((folder / "out").glob("*/part.json")):
        for line in part.read_text(encoding="utf-8").splitlines():
            values = json.loads(line, parse_float=str)
            rows[tuple(value for name, value in values.items() if name != "_w")] += values["_w"]
        assert min(rows.values(), default=0) >= 0, f"{part} takes back what was not there"
    return +rows


class Process:
    """A command in a process of its own, as a shell would start it."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        log: Path | None = None,
        program: Sequence[str] = (sys.executable, "-m", "stepwell"),
        given: str = "",
    ) -> None:
        self.log = log or folder.parent / f"{arguments[0]}-{SystemEnv().new_id()}.log"
        self._opened: IO[str] = open(self.log, "w")  # noqa: SIM115 - closed when it ends
        self._process = subprocess.Popen(
            [*program, "-C", str(folder), *arguments],
            stdin=subprocess.PIPE if given else None,
            stdout=self._opened,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1"},
        )
        if self._process.stdin is not None:
            with self._process.stdin as stdin:
                stdin.write(given.encode())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def until(self, text: str) -> None:
        """Wait until it has said something."""
        wait(lambda: text in self.text or self._process.poll() is not None, lambda: self.text)
        assert text in self.text, self.text

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        try:
            return self._process.wait(PATIENCE_S)
        finally:
            self._opened.close()

    def kill(self) -> None:
        self._process.kill()
        self.end()


def wait(condition: Callable[[], bool], shown: Callable[[], object] = lambda: "") -> None:
    env = SystemEnv()
    until = env.uptime() + PATIENCE_S
    while not condition():
        assert env.uptime() < until, f"waited in vain: {shown()}"
        env.sleep(0.02)


def stepwell(folder: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "stepwell", "-C", str(folder), *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
