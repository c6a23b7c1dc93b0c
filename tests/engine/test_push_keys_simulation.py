"""Lives of a pipeline whose pushes all have keys, by seed: whatever happens, each is in once.

Rows go into a table without a key, so that a row taken twice shows. A life pushes, repeats, dies at
any call of the store, is told that calls failed, flushes, merges, trims its journal, goes back, and
goes on in a clone. What is expected is a model of a few lines.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from stepwell.engine import pipeline as engine_pipeline
from stepwell.engine import push_keys
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.restore_request import RestorePoint
from stepwell.engine.writer_session import WriterSession
from stepwell.errors import CheckpointMissing, InvalidError, StepwellError
from stepwell.manifest.clone import clone
from stepwell.manifest.gc import Collector, Settings
from stepwell.manifest.manifest import Manifests
from stepwell.manifest.timeline import Timelines
from stepwell.store.memory import SHARED, MemoryStore
from stepwell.testing import Call, Crash, Fault, FaultyStore, ManualEnv
from tests.engine.doubles import SETTINGS, World, click, contents

LIVES = 12
KEYS = [f"key {number}" for number in range(12)]
KEEP_S = 4000.0
AT_ONCE = Settings(grace_s=0, journal_keep_s=0, barriers_kept=0)


@dataclass
class Life:
    seed: int
    happened: Counter[str] = field(default_factory=Counter)
    answers: dict[str, int] = field(default_factory=dict)
    """The transaction of every key that was acknowledged and is not undone."""
    acknowledged: set[tuple[str, int]] = field(default_factory=set)
    """Every answer, also of transactions that are undone: a later restore can bring them back."""
    restores: dict[int, int] = field(default_factory=dict)
    """The first transaction of each restore, and the transaction that it restored."""
    sent: dict[str, float] = field(default_factory=dict)
    """When each key was first sent. A push can be recorded long before a repetition acknowledges
    it, and its key expires `push.keep` after it was recorded."""
    clones: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.env = ManualEnv(self.seed)
        self.world = World(self.env)
        self.world.views = {"visits": "visits"}
        self.world.store = SHARED["memory://life0"] = MemoryStore(self.env, "life0")
        self.settings = replace(
            SETTINGS,
            push_keep_s=KEEP_S,
            checkpoint_every_s=self.random.choice([30.0, 1e9]),
            collect=AT_ONCE,
        )

    def run(self) -> Life:
        for _ in range(self.random.randint(3, 7)):
            self.process()
        with self.open() as last:
            self.check(last)
            for key in KEYS:
                self.push(last, key)
            self.check(last)
            missing = set(KEYS) - {row[1] for row in contents(last, "clicks")}
            assert not missing, f"{missing} were pushed or skipped, and have no row"
            self.world.check(last)
        return self

    def open(self, faulty: FaultyStore | None = None) -> Pipeline:
        return self.world.open(faulty, self.settings, strike=False)

    def process(self) -> None:
        """One process, from its opening to its end, however it ends."""
        left, fails = self.random.randint(5, 150), self.random.random() < 0.4

        def plan(call: object) -> Fault | None:
            nonlocal left
            left -= 1
            when = self.random.choice(("before", "after"))
            if left == 0:
                return Fault("crash", when)
            return Fault("fail", when) if fails and self.random.random() < 0.03 else None

        try:
            pipeline = self.open(FaultyStore(self.world.store, plan))
            self.env.advance(1)
            for _ in range(self.random.randint(1, 25)):
                self.act(pipeline)
            if self.random.random() < 0.5:
                pipeline.close()
        except Crash:
            self.happened["crash"] += 1
        except StepwellError as error:
            self.happened[type(error).__name__] += 1
        with self.open() as pipeline:
            self.check(pipeline)
        if self.random.random() < 0.3:
            self.go_on_in_a_clone()

    def act(self, pipeline: Pipeline) -> None:
        acts: list[tuple[int, Callable[[Pipeline], object]]] = [
            (12, lambda pipeline: self.push(pipeline, self.random.choice(KEYS))),
            (3, lambda pipeline: self.transaction(pipeline, self.random.choice(KEYS))),
            (3, self.push_otherwise),
            (3, Pipeline.flush),
            (2, Pipeline.checkpoint),
            (1, Pipeline.compact),
            (1, self.collect),
            (2, self.restore),
            (2, lambda pipeline: self.env.advance(self.random.choice([10, 900]))),
        ]
        weights = [weight for weight, _ in acts]
        self.random.choices([act for _, act in acts], weights)[0](pipeline)

    def push(self, pipeline: Pipeline, key: str) -> None:
        """The first time or again; rows are in a key's own page."""
        if self.expired(pipeline, key):
            return
        self.sent.setdefault(key, self.env.uptime())
        self.answered(key, int(pipeline.push("clicks", [click("a", key)], key=key)))

    def transaction(self, pipeline: Pipeline, page: str) -> None:
        """An explicit transaction that leaves no row, with a key that no push has."""
        key = f"{page} together"
        if self.expired(pipeline, key):
            return
        self.sent.setdefault(key, self.env.uptime())
        try:
            with pipeline.transaction(key=key) as transaction:
                transaction.push("clicks", [click("together", page)])
                transaction.push("clicks", delete=[click("together", page)])
                number = int(transaction.commit())
        except InvalidError as error:
            raise AssertionError(f"{key} was pushed in one way only: {error}") from error
        self.answered(key, number)

    def answered(self, key: str, number: int) -> None:
        if key in self.answers:
            self.happened["repeated"] += 1
            assert self.answers[key] == number, f"{key} was {self.answers[key]}, now {number}"
        self.answers[key] = number
        self.acknowledged.add((key, number))

    def push_otherwise(self, pipeline: Pipeline) -> None:
        """Other rows under a key that was acknowledged are refused."""
        known = [key for key in self.answers if key in KEYS and not self.expired(pipeline, key)]
        if not known:
            return
        with pytest.raises(InvalidError, match="used before"):
            pipeline.push("clicks", [click("other")], key=self.random.choice(known))
        self.happened["refused"] += 1

    def expired(self, pipeline: Pipeline, key: str) -> bool:
        """Whether a key may have expired, or soon will: its row would be taken again.

        A key whose row is not there is new, however long ago it was sent.
        """
        if self.env.uptime() - self.sent.get(key, self.env.uptime()) <= KEEP_S - 100:
            return False
        return key not in KEYS or any(row[1] == key for row in contents(pipeline, "clicks"))

    def restore(self, pipeline: Pipeline) -> None:
        last = int(pipeline.transaction_number)
        self.restore_to(pipeline, self.random.randint(max(0, last - 8), last))

    def restore_to(self, pipeline: Pipeline, goal: int) -> None:
        before = len(self.timelines())
        try:
            pipeline.restore(transaction=goal)
        except CheckpointMissing:
            self.happened["not restored"] += 1
        finally:
            # Also where it was killed: it is done, or it is not.
            timelines = self.timelines()
            if len(timelines) > before:
                self.happened["restored"] += 1
                self.restores[timelines[-1].since + 1] = goal
                history = self.history(goal)
                self.answers = {key: at for key, at in sorted(self.acknowledged) if at in history}

    def history(self, transaction: int) -> set[int]:
        """The transactions whose rows a transaction's state has, unless they were deleted.

        Restored to 4 and then to 11, a pipeline lacks transaction 9 if 10 was the first restore.
        """
        found = set()
        while transaction > 0:
            found.add(transaction)
            transaction = self.restores.get(transaction, transaction - 1)
        return found

    def timelines(self) -> Timelines:
        found = Manifests(self.world.store, self.env).latest()
        return found.manifest.timelines if found else ()

    def collect(self, pipeline: Pipeline) -> None:
        Collector(self.world.store, self.env, settings=AT_ONCE).collect()

    def go_on_in_a_clone(self) -> None:
        self.clones += 1
        self.happened["cloned"] += 1
        name = f"life{self.clones}"
        store = SHARED[f"memory://{name}"] = MemoryStore(self.env, name)
        clone(self.world.store, store, self.env, copy=self.random.random() < 0.5)
        self.world.store = store
        self.world.shelves = {}
        self.world.views = {f"visits of {name}": "visits"}

    def check(self, pipeline: Pipeline) -> None:
        """Every row at most once; what was acknowledged, exactly once."""
        pages = Counter(row[1] for row in contents(pipeline, "clicks"))
        for key in KEYS:
            assert pages[key] <= 1, f"{key} is in {pages[key]} times"
            assert key not in self.answers or pages[key] == 1, f"{key} is lost"
        assert set(pages) <= set(KEYS), pages


@pytest.fixture(autouse=True)
def _stores() -> Iterator[None]:
    yield
    SHARED.clear()


def live(seed: int) -> Life:
    try:
        return Life(seed).run()
    except (AssertionError, StepwellError, pytest.fail.Exception) as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    finally:
        SHARED.clear()


def test_whatever_happens_a_push_with_a_key_is_taken_once() -> None:
    """J14: crashes, failures, flushes, merges, trimming, restores, clones, in any order."""
    seen: Counter[str] = Counter()
    for seed in range(LIVES):
        seen += live(seed).happened
    for what in ("crash", "repeated", "refused", "restored", "cloned"):
        assert seen[what] > 3, f"{what}: a simulation in which nothing happens proves nothing"


@pytest.mark.slow
def test_whatever_happens_in_many_lives() -> None:
    """J14: the same for more seeds."""
    for seed in range(1000, 1000 + int(os.environ.get("STEPWELL_SIM_SEEDS", "3000")) // 5):
        live(seed)


def test_the_model_lets_each_key_expire_by_itself() -> None:
    """J14: a key skipped because another has expired is never pushed, and its row is missed."""
    life = Life(0)
    with life.open() as pipeline:
        life.transaction(pipeline, "key 0")
        life.push(pipeline, "key 10")
        life.env.advance(KEEP_S)
        life.push(pipeline, "key 0")
        life.push(pipeline, "key 1")
        assert {"key 0", "key 1"} <= set(life.answers)
        life.check(pipeline)


def test_the_model_lets_a_key_expire_by_the_time_it_was_recorded() -> None:
    """J14: a key acknowledged long after it was recorded expires before the model expects it."""
    life = Life(0)

    def plan(call: Call) -> Fault | None:
        recorded = call.operation == "put_new" and call.path.startswith("journal/")
        return Fault("crash", "after") if recorded else None

    faulty = FaultyStore(life.world.store)
    pipeline = life.open(faulty)
    faulty.plan = plan
    with pytest.raises(Crash):
        life.push(pipeline, "key 0")
    life.env.advance(900)
    with life.open() as pipeline:
        life.check(pipeline)
        life.push(pipeline, "key 0")
        life.env.advance(KEEP_S - 500)
        life.push(pipeline, "key 0")
        life.check(pipeline)


def test_the_model_follows_restores_to_states_before_and_after_others() -> None:
    """J14: by their numbers alone, keys are expected that an earlier restore has undone."""
    life = Life(0)
    with life.open() as pipeline:
        life.push(pipeline, "key 0")
        life.push(pipeline, "key 1")
        for goal, keys in ((1, {"key 0"}), (2, {"key 0", "key 1"}), (3, {"key 0"})):
            life.restore_to(pipeline, goal)
            assert pipeline.transaction_number == goal + 2
            assert set(life.answers) == keys, f"restored to {goal}"
            life.check(pipeline)


def plant_keys_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """J14 broken: every push is new."""
    patch.setattr(push_keys.PushKeys, "find", lambda self, key, now: None)


def plant_keys_are_not_flushed(patch: pytest.MonkeyPatch) -> None:
    """J14 broken: the replay position passes keys that no run holds."""
    patch.setattr(push_keys.PushKeys, "flush", lambda self: ())


def plant_keys_outlive_a_restore(patch: pytest.MonkeyPatch) -> None:
    """J14 broken: a key is known whose rows were undone."""
    original = engine_pipeline.rewind

    def rewind(session: WriterSession, point: RestorePoint) -> object:
        fresh = dict(session.state.pushes._fresh)
        found = original(session, point)
        session.state.pushes._fresh.update(fresh)
        return found

    patch.setattr(engine_pipeline, "rewind", rewind)


@pytest.mark.parametrize(
    "plant",
    [
        plant_keys_are_not_checked,
        plant_keys_are_not_flushed,
        plant_keys_outlive_a_restore,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """J14: a simulator that finds nothing may be blind: some seed must find each of these."""
    plant(monkeypatch)
    for seed in range(200):
        try:
            live(seed)
        except AssertionError:
            return
    pytest.fail(f"{plant.__name__} was not found")
