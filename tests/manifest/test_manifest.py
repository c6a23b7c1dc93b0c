"""The manifest: claims, commits, fences, damage."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from stepwell.errors import (
    BugError,
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    UnavailableError,
)
from stepwell.journal.entry import Cursor
from stepwell.manifest import invariants
from stepwell.manifest.manifest import (
    FORMAT,
    CheckpointRef,
    JournalRef,
    Manifest,
    Manifests,
    Parent,
    Pin,
    Place,
    Run,
    Status,
    from_json,
    to_json,
)
from stepwell.manifest.progress import (
    DeadLetters,
    Delivered,
    Progress,
    SinkAt,
    SourceAt,
    Undelivered,
)
from stepwell.manifest.timeline import Timeline
from stepwell.model import NO_CHECKSUM, Checksum, Claim, Epoch, Position, Transaction, checksum
from stepwell.store.memory import MemoryStore
from stepwell.store.sealed import Fields, seal, unseal
from stepwell.testing import Crash, FaultyStore, ManualEnv, crash_at, fail_at
from tests.pausing import PausingStore, Task

ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
OLD = "01ARZ3NDEKTSV4RRFFQ69G5FAU"
OTHER = "01BX5ZZKBKACTAV9WEVGEMMVRZ"
ENV = ManualEnv()
DAY = timedelta(days=1)


def held(number: int, lineage: str = ID) -> Delivered:
    return Delivered(lineage, OTHER, Transaction(number), Position(3), checksum([b"entry"]))


FULL = Manifest(
    lineage=ID,
    timelines=(Timeline(ID), Timeline(OTHER, Transaction(4), resumed=True)),
    claim=Claim(Epoch(7), "höst", 4711, ENV.now()),
    place=Place("file:///here", "12:34"),
    sinks_off=("old",),
    replay=Cursor(Position(9), checksum([b"nine"]), Epoch(6)),
    transaction=Transaction(12),
    journal=JournalRef(ID, closed=True),
    program={"views": ["a", {"b": None}]},
    runs=(Run("t", "runs/t/x.parquet", 10, 3, checksum([b"run"]), low=[1], high=["z", None]),),
    progress=Progress(
        sources=(SourceAt("files", {"file": "a.json", "line": 7}),),
        sinks=(
            SinkAt("out", held(11)),
            SinkAt("empty"),
        ),
        outbox=(Undelivered("out", held(12), "outbox/out/12.parquet", 9, checksum([b"o"])),),
        dead_letters=(DeadLetters("t", 2),),
    ),
    checkpoints=(
        CheckpointRef(
            ID, Transaction(5), ENV.now(), 99, checksum([b"c"]), "before", ENV.now() + DAY
        ),
    ),
    pins=(Pin(ID, "s3://bucket/clone", ID),),
    parent=Parent("file:///p", ID, ID, ID, ("out",)),
    floor=ID,
)


def advance(number: int = 1) -> object:
    return lambda m: replace(m, transaction=Transaction(m.transaction + number))


def begun(env: ManualEnv | None = None) -> tuple[MemoryStore, Manifests]:
    env = env or ManualEnv()
    store = MemoryStore(env)
    return store, Manifests(store, env)


def test_every_field_survives_being_stored() -> None:
    """K2: the picture that is read is the picture that was written."""
    data = seal(FORMAT, to_json(FULL))
    assert from_json(unseal(data, format=FORMAT, object="m")) == FULL


def test_a_manifest_from_before_there_were_transactions_is_read() -> None:
    """J12: what an earlier version wrote under the same format stays readable."""
    body = to_json(replace(FULL, progress=Progress()))
    assert "progress" not in body
    assert from_json(Fields(body, "m")).progress == Progress()


def test_every_flipped_or_cut_byte_of_a_stored_manifest_is_found() -> None:
    """K2: no damage of a manifest passes, and each is named by its object."""
    store, manifests = begun()
    manifests.begin()
    path = store.list("manifest/")[0].path
    good = store.get(path)
    assert good is not None
    for index in range(len(good.data)):
        for damaged in (
            good.data[:index],
            good.data[:index] + bytes([good.data[index] ^ 0x41]) + good.data[index + 1 :],
        ):
            store.delete(path)
            store.put_new(path, damaged)
            with pytest.raises((CorruptError, InvalidError)) as refused:
                manifests.latest()
            assert path in str(refused.value)


FREE = ("low", "high", "position")
"""Fields that hold any JSON. A replay's position is a number, and wrong ones are tried apart."""


def spots(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    found = [path] if path else []
    for key, child in children:
        if not (path == () and key in ("program", "parent")) and key not in FREE:
            found += spots(child, (*path, key))
    return found


MAY_BE_NULL = [
    ("journal", "id"),
    ("place", "mark"),
    ("checkpoints", 0, "name"),
    ("checkpoints", 0, "expires"),
    ("parent",),
    ("parent", "pin"),
    ("progress", "sinks", 0, "held"),
    ("progress", "sinks", 1, "held"),
]
MAY_BE_ABSENT = [("progress",), ("floor",), ("sinks_off",), ("timelines", 1, "resumed")]
"""As in a pipeline that has taken nothing in yet."""


def test_any_field_missing_or_of_a_wrong_type_is_named() -> None:
    """K2: malformed metadata under a right seal names object and field: never a traceback or a
    default.
    """
    import json

    whole = json.loads(json.dumps(to_json(FULL)))
    assert len(spots(whole)) > 30
    for spot in spots(whole):
        for damage in ("drop", object, [], "x", -1, {}, 1.5):
            body = json.loads(json.dumps(whole))
            holder = body
            for key in spot[:-1]:
                holder = holder[key]
            if damage == "drop":
                if isinstance(holder, list):
                    continue
                del holder[spot[-1]]
            else:
                holder[spot[-1]] = None if damage is object else damage
            if type(damage) is type(_at(whole, spot)) and damage != -1:
                continue  # Of the right type: another value, not damage.
            if spot in MAY_BE_NULL and damage is object:
                continue
            if spot in MAY_BE_ABSENT and damage == "drop":
                continue
            with pytest.raises(CorruptError) as corrupt:
                from_json(Fields(body, "the-object"))
            assert corrupt.value.object == "the-object"
            assert corrupt.value.field


def _at(value: object, spot: tuple[object, ...]) -> object:
    for key in spot:
        value = value[key]  # type: ignore[index]
    return value


def test_an_unknown_format_is_refused_with_both_versions_named() -> None:
    """J12: a manifest of a later version stops everything, and says which version is needed."""
    store, manifests = begun()
    content = {"id": 1, "epoch": 1, "put_id": ID, "body": {}}
    store.put_new("manifest/00000000000000000001.json", seal("stepwell-manifest/6", content))
    with pytest.raises(InvalidError) as refused:
        manifests.latest()
    assert "format 6" in str(refused.value)
    assert "reads format 5" in str(refused.value)


def test_claims_count_up_one_by_one() -> None:
    """F6: a new pipeline starts at epoch 1, and each opening takes the next."""
    _, manifests = begun()
    assert manifests.begin().claim.epoch == 1
    assert [manifests.claim().claim.epoch for _ in range(3)] == [2, 3, 4]


def test_of_concurrent_claims_exactly_one_wins_each_epoch() -> None:
    """F6: however two claims are interleaved, no epoch is held by both."""
    steps = Task(lambda: begun_claim(MemoryStore(ManualEnv()))).run().steps
    for pause in range(steps + 1):
        store = MemoryStore(ManualEnv())
        Manifests(store, ManualEnv()).begin()
        first, second = (Task(lambda s=store, n=n: claim_on(s, n)) for n in (1, 2))
        first.run(pause)
        second.run()
        first.run()
        epochs = {first.result.claim.epoch, second.result.claim.epoch}
        assert epochs == {2, 3}


def claim_on(store: MemoryStore, seed: int) -> object:
    return Manifests(PausingStore(store), ManualEnv(seed)).claim()


def begun_claim(store: MemoryStore) -> object:
    Manifests(store, ManualEnv()).begin()
    return claim_on(store, 1)


def test_two_that_begin_a_pipeline_at_once_do_not_both_own_it() -> None:
    """F6: the second of two beginners is told, and builds upon the first."""
    _, manifests = begun()
    manifests.begin()
    with pytest.raises(ConflictError):
        manifests.begin()


def test_a_version_bumped_by_a_non_claimant_is_built_upon() -> None:
    """F6: somebody's pin, committed between our read and commit, is neither lost nor a fence."""
    store, manifests = begun()
    holder = manifests.begin()
    stale = manifests.latest()
    assert stale is not None
    pin = Pin(ID, "clone", ID)
    bumped = replace(stale.manifest, pins=(pin,))
    manifests.create(stale.id + 1, bumped)
    assert holder.commit(advance(), "test").manifest.pins == (pin,)
    assert manifests.claim(found=stale).current.manifest.pins == (pin,)


def test_an_equal_epoch_passes_the_check_a_lower_one_is_fenced() -> None:
    """F6: the check passes while the epoch is ours, and fails with who took over once it is not."""
    store, manifests = begun(ManualEnv(host="first"))
    holder = manifests.begin()
    holder.check("nothing")
    holder.commit(advance(), "test")
    holder.check("nothing")
    Manifests(store, ManualEnv(host="second", pid=42)).claim()
    before = store.list()
    for act in (
        lambda: holder.check("entry 5 was not written"),
        lambda: holder.commit(advance(), "flush"),
    ):
        with pytest.raises(FencedError) as fenced:
            act()
        assert (fenced.value.epoch, fenced.value.host, fenced.value.pid) == (2, "second", 42)
        assert "2026-01-01T00:00:00" in str(fenced.value)
        assert "hint:" in str(fenced.value)
    assert store.list() == before, "a fenced writer commits nothing"


def test_a_store_that_went_back_in_time_stops_hard() -> None:
    """F6: a stored epoch below ours means a store rolled back: nothing more is written."""
    store, manifests = begun()
    manifests.begin()
    saved = {item.path: store.get(item.path) for item in store.list()}
    holder = manifests.claim()
    holder.commit(advance(), "test")
    for item in store.list():
        if item.path not in saved:
            store.delete(item.path)
    before = store.list()
    for act in (lambda: holder.check("x"), lambda: holder.commit(advance(), "x")):
        with pytest.raises(CorruptError) as corrupt:
            act()
        assert "back in time" in str(corrupt.value)
    assert store.list() == before


@pytest.mark.parametrize("status", [Status.INCOMPLETE, Status.DELETING])
def test_a_pipeline_that_is_not_ready_is_refused_and_no_epoch_minted(status: Status) -> None:
    """F6: an unfinished clone and a pipeline being destroyed are told apart, and stay untouched."""
    store, manifests = begun()
    first = manifests.begin().current
    manifests.create(2, replace(first.manifest, status=status))
    before = store.list()
    with pytest.raises(InvalidError) as refused:
        manifests.claim()
    assert ("clone" if status is Status.INCOMPLETE else "destroy") in str(refused.value)
    assert store.list() == before


def test_a_commit_whose_answer_was_lost_is_applied_once() -> None:
    """F7: a commit applied but reported failed is recognised, not applied on top of itself."""
    calls = FaultyStore(MemoryStore(ManualEnv()))
    Manifests(calls, ManualEnv()).begin().commit(advance(), "test")
    for number in range(1, len(calls.calls) + 1):
        operations = [call.operation for call in calls.calls[number - 2 : number]]
        if "put_new" not in operations:
            continue  # Before anything was written: an error, and nothing else.
        for when in ("before", "after"):
            store = MemoryStore(ManualEnv())
            manifests = Manifests(FaultyStore(store, fail_at(number, when)), ManualEnv())
            manifests.begin().commit(advance(), "test")
            latest = Manifests(store, ManualEnv()).latest()
            assert latest is not None
            assert (latest.id, latest.manifest.transaction) == (2, 1)


def test_a_crash_anywhere_in_a_commit_leaves_it_made_or_not() -> None:
    """F1: a commit that was cut short is whole or absent, and the next claim builds upon it."""
    watched = FaultyStore(MemoryStore(ManualEnv()))
    Manifests(watched, ManualEnv()).begin().commit(advance(), "test")
    outcomes = set()
    for number in range(1, len(watched.calls) + 1):
        for when in ("before", "after"):
            store = MemoryStore(ManualEnv())
            with pytest.raises(Crash):
                faulty = FaultyStore(store, crash_at(number, when))
                Manifests(faulty, ManualEnv()).begin().commit(advance(), "test")
            latest = Manifests(store, ManualEnv()).latest()
            outcomes.add(None if latest is None else latest.manifest.transaction)
            if latest is not None:
                assert Manifests(store, ManualEnv()).claim().claim.epoch == 2
    assert outcomes == {None, 0, 1}


RULES = {
    "same_lineage": {"lineage": "01BX5ZZKBKACTAV9WEVGEMMVRZ"},
    "same_claim": {"claim": Claim(Epoch(8), "x", 1, ENV.now())},
    "replay_moves_forward": {"replay": Cursor(Position(8), NO_CHECKSUM, Epoch(6))},
    "transaction_moves_forward": {"transaction": Transaction(11)},
    "replay_epoch_is_known": {"replay": Cursor(Position(10), NO_CHECKSUM, Epoch(8))},
    "journal_is_attached_before_use": {
        "journal": JournalRef(None),
        "replay": Cursor(Position(10), NO_CHECKSUM, Epoch(7)),
    },
    "runs_are_distinct": {"runs": FULL.runs * 2},
    "sources_and_sinks_are_distinct": {
        "progress": replace(FULL.progress, sources=FULL.progress.sources * 2)
    },
    "sinks_move_forward": {"progress": replace(FULL.progress, sinks=(SinkAt("out", held(10)),))},
    "outbox_holds_what_is_undelivered": {
        "progress": replace(FULL.progress, sinks=(SinkAt("out", held(12)),))
    },
    "marks_are_of_this_pipeline": {"progress": Progress(sinks=(SinkAt("out", held(13, OTHER)),))},
    "checkpoints_are_distinct": {"checkpoints": FULL.checkpoints * 2},
    "timelines_only_grow": {"timelines": (Timeline(ID),)},
    "floor_moves_forward": {"floor": OLD},
    "checkpoints_are_born_above_the_floor": {
        "checkpoints": (replace(FULL.checkpoints[0], id=OLD),)
    },
    "files_are_born_above_the_floor": {
        "runs": (*FULL.runs, replace(FULL.runs[0], path=f"runs/t/{OLD}.parquet")),
    },
    "pins_name_what_is_there": {"pins": (Pin(OTHER, "s3://bucket/clone", OTHER),)},
    "pins_are_distinct": {"pins": FULL.pins * 2},
}


@pytest.mark.parametrize("rule", RULES)
def test_a_commit_that_breaks_a_rule_is_stopped_before_it_is_stored(rule: str) -> None:
    """F6: every invariant of the manifest is checked before the create, and named when broken."""
    with pytest.raises(BugError) as broken:
        invariants.check_commit(FULL, replace(FULL, **RULES[rule]))
    assert rule in str(broken.value)
    invariants.check_commit(FULL, FULL)


def test_the_same_position_cannot_get_another_checksum() -> None:
    """F6: a replay position that stays must stay the same entry, or the chain behind it is cut."""
    with pytest.raises(BugError):
        other = replace(FULL.replay, checksum=Checksum("1" * 32))
        invariants.check_commit(FULL, replace(FULL, replay=other))


def test_a_claim_changes_the_claim_and_nothing_else() -> None:
    """F6: a claim is made before the journal was read, so it may not move anything."""
    good = replace(FULL, claim=Claim(Epoch(8), "x", 1, ENV.now()))
    invariants.check_claim(FULL, good)
    for bad in (
        FULL,
        replace(FULL, claim=Claim(Epoch(9), "x", 1, ENV.now())),
        replace(good, transaction=Transaction(13)),
    ):
        with pytest.raises(BugError):
            invariants.check_claim(FULL, bad)


def test_every_rule_is_proven_here() -> None:
    """F6: a rule without a test that breaks it may be no rule."""
    assert set(RULES) == {rule.__name__ for rule in invariants._ALWAYS} | {
        "same_claim",
        "files_are_born_above_the_floor",
    }


def test_a_manifest_that_could_not_be_read_again_is_never_stored() -> None:
    """K2: one bad value, stored, would make the pipeline unopenable for good."""
    store, manifests = begun()
    holder = manifests.begin()
    before = store.list()
    for bad in (
        {"runs": (Run("t", "p", 1, 1, Checksum("abc")),)},
        {"runs": (Run("t", "p", -1, 1, checksum([])),)},
        {"program": {"a": {1, 2}}},
        {"program": (1, 2)},
        {"transaction": 1.5},
    ):
        with pytest.raises(BugError):
            holder.commit(lambda m, bad=bad: replace(m, **bad), "bad")
    assert store.list() == before
    holder.commit(advance(), "good")


def test_an_epoch_claimed_a_second_time_stops_the_first_holder() -> None:
    """F6: after a rollback somebody may hold our very epoch; its manifest is not ours."""
    store, manifests = begun(ManualEnv(host="first"))
    holder = manifests.begin()
    store.delete("manifest/00000000000000000001.json")
    other = Manifests(store, ManualEnv(1, host="second")).begin()
    other.commit(advance(), "x")
    for act in (lambda: holder.check("x"), lambda: holder.commit(advance(), "x")):
        with pytest.raises(CorruptError) as corrupt:
            act()
        assert "back in time" in str(corrupt.value)


def test_an_amendment_takes_no_epoch_and_the_holder_builds_upon_it() -> None:
    """F6: a clone pins its parent while the parent's writer goes on; neither change is lost."""
    store, manifests = begun()
    holder = manifests.begin()
    pin = Pin(ID, "clone", ID)
    holder.commit(lambda m: replace(m, checkpoints=FULL.checkpoints), "checkpoint")
    amended = manifests.amend(lambda m: replace(m, pins=(pin,)), "pin")
    assert amended.epoch == 1
    assert holder.commit(advance(), "flush").manifest.pins == (pin,)
    with pytest.raises(BugError):
        manifests.amend(lambda m: replace(m, transaction=Transaction(-1)), "bad")
    with pytest.raises(InvalidError):
        Manifests(MemoryStore(ManualEnv()), ManualEnv()).amend(lambda m: m, "nothing there")


def test_a_commit_that_was_never_sent_leaves_nothing_under_way() -> None:
    """F7: a failure before the create is not an unknown outcome; the holder can commit again."""
    store = MemoryStore(ManualEnv())
    holder = Manifests(store, ManualEnv()).begin()
    faulty = FaultyStore(store, fail_at(2, "before"))
    holder._manifests = Manifests(faulty, ManualEnv())
    with pytest.raises(UnavailableError):
        holder.commit(advance(), "test")
    assert [call.operation for call in faulty.calls] == ["list", "get"]
    assert not holder.under_way
    assert holder.commit(advance(), "test").manifest.transaction == 1
