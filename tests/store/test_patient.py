"""R1: a store that does not answer for a while is waited for; other errors are reported at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from stepwell.errors import ConflictError, UnavailableError, UnknownOutcomeError
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.store.patient import PatientStore, impatient, patience_of
from stepwell.store.retry import BRIEF_S, TELL_S, Outage, Patience, Recovery, Retry
from stepwell.testing import Call, Fault, FaultyStore, ManualEnv, When, fail_at

PATIENCE_S = 300.0
CALLS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("there"),
    "get_range": lambda store: store.get_range("there", 0, 1),
    "exists": lambda store: store.exists("there"),
    "list": lambda store: store.list(""),
    "put_new": lambda store: store.put_new("new", b"x"),
    "replace_if": lambda store: store.replace_if("there", b"y", _tag(store)),
    "delete": lambda store: store.delete("there"),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


def _tag(store: Store) -> str:
    found = MemoryStore.get(_memory(store), "there")
    assert found is not None
    return found.etag


def _memory(store: Store) -> MemoryStore:
    while not isinstance(store, MemoryStore):
        store = store.inner  # type: ignore[attr-defined]
    return store


class Down:
    """A plan of faults: down for the given seconds from now on."""

    def __init__(self, env: ManualEnv, seconds: float, when: When = "before") -> None:
        self._env = env
        self._until = env.uptime() + seconds
        self._when: When = when

    def __call__(self, call: Call) -> Fault | None:
        return Fault("fail", self._when) if self._env.uptime() < self._until else None


def opened(
    seconds: float = 0.0, when: When = "before", patience_s: float = PATIENCE_S
) -> tuple[ManualEnv, FaultyStore, PatientStore]:
    """A store with one object, which is down for a while, and what is patient with it."""
    env = ManualEnv()
    memory = MemoryStore(env)
    memory.put_new("there", b"x")
    faulty = FaultyStore(memory, Down(env, seconds, when))
    return env, faulty, PatientStore(faulty, env, Retry(patience_s))


@every_call
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_outage_of_minutes_is_ridden_out_by_every_call(
    call: Callable[[Store], object], when: When
) -> None:
    """Also a write of which every attempt lands and every answer is lost: it is ours."""
    expected = call(opened()[2])
    env, faulty, store = opened(PATIENCE_S - 10, when)
    assert call(store) == expected
    assert env.uptime() >= PATIENCE_S - 10
    assert 60 < len(faulty.calls) < 120  # Bounded by time; pauses have grown to seconds.
    assert store.patience.outage is None
    made = {path: data for path, (data, _, _) in _memory(store)._objects.items()}
    without = opened()[2]
    call(without)
    assert made == {path: data for path, (data, _, _) in _memory(without)._objects.items()}


@every_call
def test_an_outage_longer_than_the_patience_is_an_error(call: Callable[[Store], object]) -> None:
    """The error says how long it was tried, and is raised as soon as the time is up."""
    env, _, store = opened(10 * PATIENCE_S)
    with pytest.raises(UnavailableError, match=r"tried \d+ times in 5m") as caught:
        call(store)
    assert PATIENCE_S <= env.uptime() < PATIENCE_S + 1
    assert not caught.value.not_applied
    assert store.patience.outage is None


def test_a_write_that_was_lost_to_another_is_a_conflict_after_an_outage() -> None:
    """F7: the same path with other bytes is somebody else's, whatever became of our attempts."""
    env, faulty, store = opened()

    def plan(call: Call) -> Fault | None:
        if call.number == 1:
            return Fault("fail", "before")
        if call.number == 2:
            _memory(store).put_new("new", b"another's")
        return None

    faulty.plan = plan
    with pytest.raises(ConflictError):
        store.put_new("new", b"ours")
    found = store.get("new")
    assert found is not None
    assert found.data == b"another's"


def test_a_conflict_without_doubt_is_told_without_looking() -> None:
    """The same bytes from another writer are not our success."""
    _, faulty, store = opened()
    with pytest.raises(ConflictError):
        store.put_new("there", b"x")
    assert [call.operation for call in faulty.calls] == ["put_new"]


@every_call
def test_an_error_that_is_not_an_outage_is_reported_at_once(
    call: Callable[[Store], object],
) -> None:
    """A wrong bucket name or refused credentials: nobody should wait five minutes for that."""
    env, faulty, store = opened()

    def refuse(number: Call) -> Fault | None:
        raise UnavailableError("403 Forbidden", lasting=True, hint="check the credentials")

    faulty.plan = refuse
    with pytest.raises(UnavailableError) as caught:
        call(store)
    assert env.uptime() <= BRIEF_S
    assert caught.value.hint == "check the credentials"
    assert caught.value.lasting


def test_an_outage_that_becomes_a_refusal_ends_at_once() -> None:
    """Credentials that lapse during an outage do not come back with the storage."""
    env, faulty, store = opened(60)
    down = faulty.plan
    assert down is not None

    def plan(call: Call) -> Fault | None:
        if down(call) is not None:
            return Fault("fail")
        raise UnavailableError("403 Forbidden", lasting=True)

    faulty.plan = plan
    with pytest.raises(UnavailableError, match="403"):
        store.get("there")
    assert env.uptime() < 60 + 6


def test_a_write_that_resolves_itself_sees_every_attempt() -> None:
    """F7, F11: inside of `run` the store retries nothing, or the writer would not know."""
    _, faulty, store = opened()
    faulty.plan = fail_at(1, "after")
    seen: list[str] = []

    def put() -> str:
        try:
            store.put_new("new", b"x")
        except UnavailableError:
            seen.append("doubt")
            raise
        except ConflictError:
            seen.append("conflict")
        return "ours"

    assert store.patience.run(put, lambda: "unknown") == "ours"
    assert seen == ["doubt", "conflict"]


def test_the_end_of_patience_is_an_unknown_outcome_unless_nothing_was_applied() -> None:
    """F7: a write that may be there is never called not written."""
    env = ManualEnv()

    def doubtful() -> None:
        raise UnavailableError("no answer")

    def certain() -> None:
        raise UnavailableError("refused", not_applied=True)

    with pytest.raises(UnknownOutcomeError, match=r"new may be there: tried .* no answer"):
        Patience(env, Retry(5)).run(doubtful, lambda: "new may be there")
    with pytest.raises(UnavailableError) as caught:
        Patience(env, Retry(5)).run(certain, lambda: "new may be there")
    assert caught.value.not_applied


def test_an_outage_is_told_once_and_its_end_once() -> None:
    """A listener is told since when and until when, and not of every attempt."""
    env, _, store = opened(60)
    told: list[Outage | Recovery] = []
    store.patience.listener = told.append
    began = env.now()
    store.list("")
    store.get("there")
    outage, over = told
    assert isinstance(outage, Outage)
    assert isinstance(over, Recovery)
    assert (outage.store, outage.since) == (store.uri, began)
    assert abs(outage.until - (began + timedelta(seconds=PATIENCE_S))) < timedelta(seconds=1)
    assert "injected failure" in outage.error
    assert 60 <= over.after_s < 70


def test_a_hiccup_is_not_told() -> None:
    """One request that failed and succeeded is nobody's concern."""
    _, faulty, store = opened(TELL_S / 2)
    told: list[Outage | Recovery] = []
    store.patience.listener = told.append
    store.get("there")
    assert len(faulty.calls) > 1
    assert told == []


def test_an_outage_that_was_not_survived_is_not_called_over() -> None:
    env, _, store = opened(10 * PATIENCE_S)
    told: list[Outage | Recovery] = []
    store.patience.listener = told.append
    with pytest.raises(UnavailableError):
        store.get("there")
    assert [type(item) for item in told] == [Outage]
    with pytest.raises(UnavailableError):
        store.get("there")
    assert [type(item) for item in told] == [Outage, Outage]


class Hurried(ManualEnv):
    """Somebody is asked to end while a call waits."""

    act: Callable[[], None] | None = None
    at_s = 20.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.act is not None and self.uptime() >= self.at_s:
            self.act()


def test_a_process_that_is_asked_to_end_does_not_wait_for_an_outage() -> None:
    """Ctrl-C in the middle of a pause, and every call after it."""
    env = Hurried()
    memory = MemoryStore(env)
    store = PatientStore(FaultyStore(memory, lambda call: Fault("fail")), env, Retry(PATIENCE_S))
    env.act = store.patience.hurry
    with pytest.raises(UnavailableError):
        store.get("there")
    assert env.uptime() < env.at_s + BRIEF_S + 1
    began = env.uptime()
    with pytest.raises(UnavailableError):
        store.list("")
    assert env.uptime() < began + BRIEF_S + 1
    env.act = None
    store.patience.relax()
    began = env.uptime()
    with pytest.raises(UnavailableError):
        store.list("")
    assert env.uptime() >= began + PATIENCE_S


def test_an_outage_lasts_as_long_as_any_call_waits() -> None:
    """Reads that succeed next to writes that fail would tell of an end every few seconds."""
    env = ManualEnv()
    patience = Patience(env, Retry(PATIENCE_S), "s3://acme")
    told: list[Outage | Recovery] = []
    patience.listener = told.append
    inner: list[str] = []

    def read() -> str:
        """Fails once, then succeeds, in another thread."""
        if not inner:
            inner.append("failed")
            raise UnavailableError("read")
        return "read"

    def write() -> str:
        if env.uptime() < 30:
            if env.uptime() > 10:
                inner.clear()
                thread = threading.Thread(target=lambda: patience.run(read))
                thread.start()
                thread.join()
            raise UnavailableError("write")
        assert patience.outage is not None
        assert patience.outage.error == "write"
        return "written"

    assert patience.run(write) == "written"
    assert [type(item) for item in told] == [Outage, Recovery]


def test_a_caller_with_its_own_retries_is_given_the_store_without_patience() -> None:
    env, faulty, store = opened(60)
    with pytest.raises(UnavailableError):
        impatient(store).get("there")
    assert (env.uptime(), len(faulty.calls)) == (0, 1)
    assert patience_of(store, env) is store.patience
    assert patience_of(faulty, env, Retry(7)).retry.patience_s == 7
