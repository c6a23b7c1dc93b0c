"""The race: a store that looks and then writes passes a sequential probe, and must be found out."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

import pytest

from stepwell.cli.doctor import Status, check_store
from stepwell.engine.open import open_writer
from stepwell.errors import ConfigError, ConflictError, UnavailableError
from stepwell.model import Bytes
from stepwell.store import race as races
from stepwell.store.memory import MemoryStore
from stepwell.store.probe import capabilities, probe
from stepwell.store.race import ROUNDS, WRITERS, race, race_new
from stepwell.testing import FaultyStore, ManualEnv
from tests.store.conftest import ENV, Open


class LooksFirst(MemoryStore):
    """Looks whether an object is there, and then writes it, as some servers do."""

    def __init__(self) -> None:
        super().__init__(ManualEnv(), name="careless")
        self.uri = "s3://careless/pipeline"
        self._between: dict[str, threading.Barrier] = {}
        self._guard = threading.Lock()

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        with self._guard:
            between = self._between.setdefault(path, threading.Barrier(2))
        if self.exists(path):
            raise ConflictError("exists")
        try:
            between.wait(0.2)  # For another writer that has looked, too.
        except threading.BrokenBarrierError:
            super().put_new(path, data)
        else:
            with self._guard:
                self.delete(path)
                super().put_new(path, data)


class Replacing(LooksFirst):
    """Refuses all but one writer, and keeps the object of another."""

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        try:
            MemoryStore.put_new(self, path, data)
        except ConflictError:
            with self._guard:
                self.delete(path)
                MemoryStore.put_new(self, path, data)
            raise


def test_every_store_of_ours_has_one_winner(shared: Open) -> None:
    """F9: what is supported must not be refused, and nothing of the race is left."""
    store = shared()
    assert race(store, ENV) is None
    assert store.list() == ()


def test_a_store_that_looks_and_then_writes_is_found_out() -> None:
    """F9: two writers of one pipeline would both be told that they hold it."""
    store = LooksFirst()
    with pytest.raises(ConfigError, match="simultaneous writers") as caught:
        race_new(store, ManualEnv())
    assert "Amazon S3" in str(caught.value.hint)
    assert store.list() == ()
    with pytest.raises(ConfigError, match="s3://careless/pipeline has no safe put-if-absent"):
        open_writer(store, ManualEnv())
    assert not store.list("manifest/"), "it is refused before anything is created"
    check = check_store(store, "there", ManualEnv())
    assert check.status is Status.MISSING
    assert re.search(r"\d of 8 simultaneous writers", check.detail)


def test_that_store_passes_the_sequential_probe() -> None:
    """Or the race would prove nothing that the probe does not."""
    probe(LooksFirst(), ManualEnv())
    assert capabilities(LooksFirst(), ManualEnv()).put_if_absent


def test_a_store_that_replaces_the_winner_is_found_out() -> None:
    """F9: the winner would believe that its entry is in the journal."""
    problem = race(Replacing(), ManualEnv())
    assert problem == "the object of the writer that won was replaced by another writer's"


def test_one_wrong_round_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector with a wrong clock may delete an object between two puts of one race."""
    verdicts = iter([None, "two winners", *[None] * ROUNDS])
    monkeypatch.setattr(races, "_round", lambda *_: next(verdicts))
    assert race(MemoryStore(ManualEnv()), ManualEnv()) is None
    verdicts = iter([None, "two winners", None, "three winners"])
    assert race(MemoryStore(ManualEnv()), ManualEnv()) == "two winners"


def test_a_store_that_is_down_is_not_refused_as_unsafe() -> None:
    """F9: an outage says nothing about conditions."""

    def down(call: object) -> None:
        raise UnavailableError("injected")

    with pytest.raises(UnavailableError, match="injected"):
        race(FaultyStore(MemoryStore(ManualEnv()), down), ManualEnv())


def test_a_bucket_is_raced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of opening is pinned: hundreds of requests each time would be felt."""
    store = MemoryStore(ManualEnv())
    store.uri = "s3://sound/pipeline"
    raced: list[str] = []
    monkeypatch.setattr(races, "race", lambda store, env: raced.append(store.uri))
    for _ in range(3):
        open_writer(store, ManualEnv())
    assert raced == ["s3://sound/pipeline"]
    open_writer(MemoryStore(ManualEnv()), ManualEnv())
    assert len(raced) == 1, "memory and directories are not raced"
    assert WRITERS == 8
