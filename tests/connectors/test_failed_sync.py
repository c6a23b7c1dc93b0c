"""An fsync of a sink fails once: what it leaves on the disk is unknown, and never told as held."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stepwell.engine.outbox import Outbox
from stepwell.errors import InvalidError, UnavailableError
from stepwell.manifest.progress import SinkAt
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.connectors.conftest import make_place
from tests.connectors.sinks import LINEAGE, Place, alone, mark, put

PLACES = ["files-json", "delta-key", "delta-changes"]


class FailingDisk:
    """The n-th fsync reports an error, and forgets it, as systems do."""

    def __init__(self, fails_at: int, number: int = errno.EIO) -> None:
        self.calls = 0
        self._fails_at = fails_at
        self._number = number

    def fsync(self, opened: int) -> None:
        self.calls += 1
        if self.calls == self._fails_at:
            raise OSError(self._number, os.strerror(self._number))


def filled(word: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    place = make_place(word, request, folder)
    put(place.make(), 1, alone(1))
    return place


@pytest.mark.parametrize("word", PLACES)
def test_an_fsync_that_failed_is_not_repeated_and_believed(
    word: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 104, K8, J7: each fsync of a write in turn. The next one succeeds and proves
    nothing, so no handle of this process says that the transaction is there.
    """
    stops = 0
    for fails_at in range(1, 100):
        place = filled(word, request, tmp_path / str(fails_at))
        disk = FailingDisk(fails_at)
        sink = place.make()
        held = sink.last()
        monkeypatch.setattr(os, "fsync", disk.fsync)
        try:
            sink.write(held, mark(2), alone(2))
        except InvalidError:
            for handle in (sink, place.make()):
                with pytest.raises(InvalidError, match=r"unknown\nhint: .*start the process again"):
                    handle.last()
                with pytest.raises(InvalidError, match=r"what is on disk is unknown"):
                    handle.write(held, mark(2), alone(2))
            stops += 1
        except UnavailableError:
            # Nothing names that file, and nothing ever will: another is written.
            assert sink.last() == mark(1)
            put(sink, 2, alone(2))
            assert place.content() == place.expected({1: alone(1), 2: alone(2)})
        else:
            assert disk.calls < fails_at
            break
    assert stops >= 3


@pytest.mark.parametrize("word", PLACES)
def test_who_asks_a_sink_and_cannot_sync_what_it_says_is_not_told_later(
    word: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 104, K8: its writer may have died before it synced; neither can the one who asks."""
    place = filled(word, request, tmp_path / "here")
    other = filled(word, request, tmp_path / "there")
    monkeypatch.setattr(os, "fsync", FailingDisk(1).fsync)
    sink = place.make()
    for _ in range(2):
        with pytest.raises(InvalidError, match=r"fsync of .* failed: Input/output error"):
            sink.last()
    assert other.make().last() == mark(1), "another folder has nothing to do with it"


@pytest.mark.parametrize("word", ["files-json", "delta-key"])
def test_the_outbox_keeps_what_a_sink_could_not_sync(
    word: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 104, J7: dropped from the outbox, it would be gone with the next power cut."""
    place = make_place(word, request, tmp_path)
    (tmp_path / "out").mkdir()
    env = ManualEnv()
    outbox = Outbox(place.make(), LINEAGE, MemoryStore(env), env, at=SinkAt("out", None))
    outbox.ask()
    outbox.offer(mark(1), alone(1))
    committed = FailingDisk(0)

    def fsync(opened: int) -> None:
        """Fails once, after the commit."""
        marks = [*tmp_path.glob("out/_stepwell/*.json"), *tmp_path.glob("out/_delta_log/*1.json")]
        if marks and not committed.calls:
            committed.calls += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(3):
        assert not outbox.deliver()
        env.sleep(60)
    status = outbox.status()
    assert committed.calls == 1
    assert (status.pending, status.stopped) == (1, True)
    assert "what is on disk is unknown" in str(status.error)


def test_a_file_system_that_cannot_sync_folders_is_not_called_broken(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8: another process would find the same; it is asked again, and says the same."""
    place = filled("files-json", request, tmp_path)
    monkeypatch.setattr(os, "fsync", FailingDisk(1, errno.EINVAL).fsync)
    with pytest.raises(UnavailableError):
        place.make().last()
    assert place.make().last() == mark(1)
