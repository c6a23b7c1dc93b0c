"""Running a command in this process, and pipelines to run it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stepwell.cli.main import app
from stepwell.engine.open import Writer, open_writer
from stepwell.env import SystemEnv
from stepwell.journal.entry import Draft, Input, Kind
from stepwell.model import Transaction, checksum
from stepwell.store.local import LocalStore
from tests.cli.rows import arrow_stream

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command; standard output and standard error are kept apart."""
    monkeypatch.delenv("STEPWELL_TRACEBACK", raising=False)

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke


class Pipeline:
    """A pipeline in a directory, with a writer to put something into it."""

    def __init__(self, directory: Path, journal: Path | None = None) -> None:
        self.directory = directory
        self.env = SystemEnv()
        self.store = LocalStore(str(directory), self.env)
        self.journal_store = LocalStore(str(journal), self.env) if journal else self.store
        self.writer: Writer = self.open()
        self.transaction = 0

    def open(self) -> Writer:
        self.writer = open_writer(self.store, self.env, journal_store=self.journal_store)
        return self.writer

    def push(self, rows: int = 2) -> None:
        self.transaction += 1
        data = arrow_stream(rows)
        pushed = Input("push", "orders", rows, checksum([data]), data=data)
        read = Input("files", "items", 7, checksum([b"7"]), reference='{"files": ["a.json"]}')
        inputs = (pushed, read) if self.transaction == 1 else (pushed,)
        transaction = Transaction(self.transaction)
        self.writer.append(Draft(Kind.STEP, transaction, 0, True, self.env.now(), inputs))

    def entry(self, position: int) -> Path:
        return self.directory / "journal" / f"{position:020d}.arrow"

    def manifest(self, id: int) -> Path:
        return self.directory / "manifest" / f"{id:020d}.json"


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """A barrier at position 1, and steps at 2 to 4."""
    made = Pipeline(tmp_path / "state")
    for rows in (2, 3, 12):
        made.push(rows)
    return made


def flip(path: Path, offset: int) -> None:
    """Damage one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file and folder below a directory, with what is in it and when it was changed."""
    return {
        str(path.relative_to(directory)): (
            path.read_bytes() if path.is_file() else b"",
            path.stat().st_mtime_ns,
        )
        for path in [directory, *directory.rglob("*")]
    }
