"""The probe at open: a store that ignores put-if-absent is refused before it can do harm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from stepwell.errors import ConfigError, ConflictError, UnavailableError
from stepwell.model import Bytes
from stepwell.store.base import Listed, Object, Store
from stepwell.store.memory import MemoryStore
from stepwell.store.probe import PROBE_PREFIX, Capabilities, capabilities, probe
from stepwell.testing import Call, Crash, FaultyStore, ManualEnv, crash_at, fail_at
from tests.store.conftest import ENV

ALL = Capabilities(
    put_if_absent=True, compare_and_swap=True, sorted_listing=True, read_after_write=True
)


class Overwriting(MemoryStore):
    """Ignores the condition and replaces what is there."""

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        self.delete(path)
        super().put_new(path, data)


class OverwritingYetRefusing(Overwriting):
    """Reports the conflict, but only after it has replaced what was there."""

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        there = self.exists(path)
        super().put_new(path, data)
        if there:
            raise ConflictError("exists")


class Pretending(MemoryStore):
    """Answers success and keeps what was first."""

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        with suppress(ConflictError):
            super().put_new(path, data)


class Refusing(MemoryStore):
    """Says of everything that it exists."""

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        raise ConflictError("exists")


class SwappingAlways(MemoryStore):
    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        self.delete(path)
        self.put_new(path, data)


class SwappingNever(MemoryStore):
    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        raise ConfigError("this storage has no conditional replacement")


class Unsorted(MemoryStore):
    def list(
        self, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> tuple[Listed, ...]:
        return super().list(prefix, after=after, limit=limit)[::-1]


class Forgetful(MemoryStore):
    def get(self, path: str) -> Object | None:
        return None


def test_every_store_of_ours_passes(store: Store) -> None:
    """F9: what is supported must not be refused, and nothing of the probe is left."""
    probe(store, ENV)
    probe(store, ENV)
    assert store.list() == ()
    assert capabilities(store, ENV) == ALL
    assert store.list() == ()


@pytest.mark.parametrize("kind", [Overwriting, OverwritingYetRefusing, Pretending, Refusing])
def test_a_store_that_ignores_put_if_absent_is_refused_by_name(kind: type[MemoryStore]) -> None:
    """F9: scenario 24, two writers on such a store would overwrite each other unseen."""
    store = kind(ManualEnv(), name="careless")
    with pytest.raises(ConfigError, match="memory://careless ignores put-if-absent") as caught:
        probe(store, ManualEnv())
    assert caught.value.hint
    assert "Amazon S3" in caught.value.hint
    assert store.list() == (), "the probe cleans up when it refuses, too"
    assert not capabilities(store, ManualEnv()).put_if_absent
    assert store.list() == ()


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        (SwappingAlways, {"compare_and_swap"}),
        (SwappingNever, {"compare_and_swap"}),
        (Unsorted, {"sorted_listing"}),
        (Forgetful, {"read_after_write", "put_if_absent", "compare_and_swap"}),
    ],
)
def test_each_capability_is_told_apart(kind: type[MemoryStore], missing: set[str]) -> None:
    """A doctor that says yes to everything helps nobody."""
    found = capabilities(kind(ManualEnv()), ManualEnv())
    assert {name for name in Capabilities.__slots__ if not getattr(found, name)} == missing


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_lost_answer_surfaces_as_it_is(number: int, when: str) -> None:
    """F9: a store that is down is not a store that ignores conditions."""
    inner = MemoryStore(ManualEnv())
    store = FaultyStore(inner, fail_at(number, when))  # type: ignore[arg-type]
    with pytest.raises(UnavailableError, match="injected"):
        probe(store, ManualEnv())
    assert inner.list() == ()


def test_a_probe_that_cannot_clean_up_has_still_passed() -> None:
    """F9: what is left below `probe/` counts as nothing, so the store is not refused."""
    inner = MemoryStore(ManualEnv())
    probe(FaultyStore(inner, fail_at(4, "before")), ManualEnv())
    (left,) = inner.list()
    assert left.path.startswith(PROBE_PREFIX)


def test_a_put_sent_twice_by_the_client_below_is_accepted() -> None:
    """F9: a conflict with ourselves, after a lost answer, proves that conditions are honoured."""

    class SentTwice(MemoryStore):
        def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
            super().put_new(path, data)
            super().put_new(path, data)

    store = SentTwice(ManualEnv())
    probe(store, ManualEnv())
    assert capabilities(store, ManualEnv()) == ALL


@pytest.mark.parametrize("ask", [probe, capabilities])
def test_a_crash_at_any_call_leaves_objects_below_probe_only(
    ask: Callable[[Store, ManualEnv], object],
) -> None:
    """F9: the next open must not take them for a pipeline; so they have a place of their own."""
    sound = FaultyStore(MemoryStore(ManualEnv()))
    ask(sound, ManualEnv())
    for number in range(1, len(sound.calls) + 1):
        for when in ("before", "after"):
            inner = MemoryStore(ManualEnv())
            with pytest.raises(Crash):
                ask(FaultyStore(inner, crash_at(number, when)), ManualEnv())  # type: ignore[arg-type]
            assert all(item.path.startswith(PROBE_PREFIX) for item in inner.list())
            ask(inner, ManualEnv(seed=1))


def test_an_object_that_a_collector_deletes_during_a_probe_is_not_a_failure() -> None:
    """F9, F12: with a clock that is ahead it takes what is being looked at for a leftover."""
    store = MemoryStore(ManualEnv())
    deleted: list[str] = []

    def plan(call: Call) -> None:
        probed = [other.path for other in faulty.calls[:-1] if other.operation == "put_new"]
        if call.operation == "put_new" and call.path in probed and not deleted:
            store.delete(call.path)
            deleted.append(call.path)

    faulty = FaultyStore(store, plan)
    probe(faulty, ManualEnv())
    assert deleted
    assert store.list() == ()
