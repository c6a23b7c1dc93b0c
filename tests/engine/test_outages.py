"""R1: a pipeline rides out minutes without its store, and ends as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from stepwell.engine.events import StoreAvailable, StoreUnavailable
from stepwell.engine.pipeline import Pipeline
from stepwell.errors import InvalidError, UnavailableError, UnknownOutcomeError
from stepwell.model import format_time
from stepwell.store.patient import PatientStore
from stepwell.store.retry import BRIEF_S, Retry
from stepwell.testing import Call, Fault, FaultyStore, ManualEnv, When
from tests.engine.doubles import SETTINGS, World, contents, order
from tests.engine.test_transaction_crash import outcome, uninterrupted, work, world

PATIENCE_S = 300.0
STRIDES = pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.slow)])


class DownFrom:
    """Down for the given seconds, from the n-th call on."""

    def __init__(self, env: ManualEnv, number: int, seconds: float, when: When) -> None:
        self._env = env
        self._number = number
        self._seconds = seconds
        self._when: When = when
        self._until: float | None = None

    def __call__(self, call: Call) -> Fault | None:
        if call.number < self._number:
            return None
        if self._until is None:
            self._until = self._env.uptime() + self._seconds
        return Fault("fail", self._when) if self._env.uptime() < self._until else None


def patient(made: World) -> FaultyStore:
    """Put patience between a world and its store; faults come in below."""
    faulty = FaultyStore(made.store)
    made.store = PatientStore(faulty, made.env, Retry(PATIENCE_S))
    return faulty


@STRIDES
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_through_an_outage_ends_as_one_without(stride: int, when: When) -> None:
    """Down for minutes from any call on: nothing is lost, doubled or even told as an error.

    Only closing does not wait, and may say that it could not flush.
    """
    expected, calls = uninterrupted()
    for number in range(1, calls, stride):
        made = world()
        patient(made).plan = DownFrom(made.env, number, PATIENCE_S - 10, when)
        pipeline = made.open()
        try:
            work(pipeline, [])
        except (UnavailableError, UnknownOutcomeError):
            with pytest.raises(InvalidError, match="was closed"):
                pipeline.deliver()
        assert outcome(made, SETTINGS) == expected, f"down from call {number} on"


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_outage_longer_than_the_patience_is_an_error(when: When) -> None:
    """F7, F11: a push that may be there has an unknown outcome; opening again tells which."""
    made = World()
    faulty = patient(made)
    pipeline = made.open()
    faulty.plan = DownFrom(made.env, len(faulty.calls) + 1, 10 * PATIENCE_S, when)
    began = made.env.uptime()
    with pytest.raises(UnknownOutcomeError):
        pipeline.push("orders", [order(1)])
    assert PATIENCE_S <= made.env.uptime() - began < PATIENCE_S + 10
    with pytest.raises(UnknownOutcomeError):
        pipeline.push("orders", [order(2)])
    pipeline.close()
    faulty.plan = None
    again = made.open()
    assert len(contents(again, "orders")) == (1 if when == "after" else 0)
    made.check(again)


class Waking(ManualEnv):
    """Does something while somebody waits, once it is time."""

    act: Callable[[], object] | None = None
    at_s = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.act is not None and self.uptime() >= self.at_s:
            act, self.act = self.act, None
            act()


def waking() -> tuple[World, Waking, FaultyStore, Pipeline]:
    """A pipeline whose store goes away with the next call, and stays away."""
    env = Waking()
    made = World(env=env)
    made.feeds = world().feeds
    faulty = patient(made)
    pipeline = made.open()
    faulty.plan = DownFrom(env, len(faulty.calls) + 1, 10 * PATIENCE_S, "before")
    return made, env, faulty, pipeline


def test_an_outage_is_an_event_and_is_in_the_status() -> None:
    """The status shows since when, until when, and why; the end is reported once."""
    made, env, faulty, pipeline = waking()
    began = env.now()
    seen = []

    def look() -> None:
        seen.append(pipeline.status().outages)
        faulty.plan = None

    env.act, env.at_s = look, env.uptime() + 100
    pipeline.push("orders", [order(1)])
    [[outage]] = seen
    assert (outage.store, outage.since) == (made.store.uri, format_time(began))
    assert "injected failure" in outage.error
    told = [e for e in made.events if isinstance(e, (StoreUnavailable, StoreAvailable))]
    assert [type(event) for event in told] == [StoreUnavailable, StoreAvailable]
    assert pipeline.status().outages == ()


def test_a_loop_that_is_stopped_does_not_wait_for_the_end_of_an_outage() -> None:
    """Ctrl-C: it ends within moments, with an error that is a claim; nothing is lost (F11)."""
    made, env, faulty, pipeline = waking()
    env.act, env.at_s = pipeline.stop, env.uptime() + 30
    began = env.uptime()
    with pytest.raises((UnavailableError, UnknownOutcomeError)):
        pipeline.run()
    assert env.uptime() - began < 30 + 2 * BRIEF_S
    began = env.uptime()
    close(pipeline)
    assert env.uptime() - began < 10 * BRIEF_S
    faulty.plan = None
    again = made.open()
    again.run(once=True)
    expected = world()
    reference = expected.open()
    reference.run(once=True)
    for relation in ("orders", "clicks", "revenue"):
        assert contents(again, relation) == contents(reference, relation)
    made.check(again)


def test_a_pipeline_is_closed_promptly_during_an_outage() -> None:
    """What is not flushed is in the journal."""
    made = World()
    faulty = patient(made)
    pipeline = made.open()
    pipeline.push("orders", [order(1)])
    faulty.plan = DownFrom(made.env, len(faulty.calls) + 1, 10 * PATIENCE_S, "before")
    began = made.env.uptime()
    close(pipeline)
    assert made.env.uptime() - began < 10 * BRIEF_S
    faulty.plan = None
    assert contents(made.open(), "orders") == [(1, "a", 1)]


def test_a_stopped_loop_leaves_a_patient_pipeline() -> None:
    """After `stop` a push may wait again: only what was asked to end is in a hurry."""
    made, env, faulty, pipeline = waking()
    faulty.plan = None
    pipeline.stop()
    pipeline.run()
    faulty.plan = DownFrom(env, len(faulty.calls) + 1, 60, "before")
    pipeline.push("orders", [order(50)])
    assert env.uptime() >= 60


def test_a_stop_without_a_loop_leaves_a_patient_pipeline() -> None:
    """A push waits as usual; the next loop ends at once, and does not wait for an outage."""
    made, env, faulty, pipeline = waking()
    pipeline.stop()
    faulty.plan = DownFrom(env, len(faulty.calls) + 1, 60, "before")
    pipeline.push("orders", [order(50)])
    assert env.uptime() >= 60
    faulty.plan = DownFrom(env, len(faulty.calls) + 1, 10 * PATIENCE_S, "before")
    began = env.uptime()
    with suppress(UnavailableError, UnknownOutcomeError):
        pipeline.run()
    assert env.uptime() - began < 10 * BRIEF_S
    assert not pipeline.stopping


def close(pipeline: Pipeline) -> None:
    """Close, whether or not it can say that everything is flushed."""
    with suppress(UnavailableError):
        pipeline.close()
