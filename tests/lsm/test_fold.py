"""Several changes as one: what they do together is what they do one after another."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.engine.intakes import fold_intakes
from stepwell.engine.ports import Intake
from stepwell.errors import InvalidError
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.change import Change
from stepwell.lsm.dead_letter import BadRow
from stepwell.lsm.fold import fold_traced
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv

SQL = "CREATE TABLE k (id BIGINT PRIMARY KEY, v STRING); CREATE TABLE b (id BIGINT, v STRING);"
ROW = st.fixed_dictionaries({"id": st.integers(0, 2), "v": st.sampled_from(["x", "y", None])})
ROWS = st.lists(ROW, max_size=3)
CHANGE = st.tuples(ROWS, ROWS, ROWS)
SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})


def table(rows: list[dict[str, object]]) -> pa.Table | None:
    return pa.Table.from_pylist(rows, SCHEMA) if rows else None


@settings(max_examples=200, deadline=None)
@given(before=st.lists(ROW, max_size=4), parts=st.lists(CHANGE, min_size=2, max_size=4))
@pytest.mark.parametrize("name", ["k", "b"])
def test_folded_or_one_by_one_the_table_is_the_same(
    name: str,
    before: list[dict[str, object]],
    parts: list[tuple[list[dict[str, object]], ...]],
) -> None:
    """J2: steps of a transaction, and pushes that are committed together, keep their order; a
    delete finds nothing, or something, as it would have one by one (J13).
    """
    env = ManualEnv()
    changes = [
        Change(table(put), table(gone), table(away) if name == "k" else None)
        for put, gone, away in parts
    ]
    one_by_one, folded = (ReferenceExecutor(SQL, MemoryStore(env), env) for _ in range(2))
    for executor in (one_by_one, folded):
        executor.apply(executor.execute({name: Change(table(before))}, env.now()))
    for change in changes:
        one_by_one.apply(one_by_one.execute({name: change}, env.now()))
    whole = fold_traced(changes, folded.tables()[name]).change
    folded.apply(folded.execute({name: whole}, env.now()))
    assert folded.read(name).to_pylist() == one_by_one.read(name).to_pylist()
    missed = [executor.read(f"{name}$errors").to_pylist() for executor in (one_by_one, folded)]
    texts = [sorted((row["reason"], row["text"]) for row in rows) for rows in missed]
    if name == "k":  # Of a delete that is folded with others only the key is left.
        texts = [[(reason, json.loads(text)["id"]) for reason, text in rows] for rows in texts]
    assert texts[0] == texts[1]


def test_rows_with_columns_spelled_and_typed_apart_are_put_together() -> None:
    """J2: two people push to one table, each in their own way."""
    first = Change(pa.table({"ID": pa.array([1], pa.int32())}))
    second = Change(pa.table({"v": ["x"], "id": [2]}))
    folded = fold_traced([first, second], ("id",)).change
    assert folded.put.to_pylist() == [{"ID": 1, "v": None}, {"ID": 2, "v": "x"}]
    with pytest.raises(InvalidError, match="differ in the types"):
        fold_traced([first, Change(pa.table({"id": ["x"]}))], ("id",))
    with pytest.raises(InvalidError, match="column id of the key is missing"):
        fold_traced([first, Change(None, pa.table({"v": ["x"]}))], ("id",))


def test_only_a_key_can_be_discarded() -> None:
    """S2: of equal rows in a bag nobody could say how many may go."""
    intake = Intake("push", "b", Change(discard=table([{"id": 1}])), 1, None, None)
    with pytest.raises(InvalidError, match="b has no key, and only a key can be discarded"):
        fold_intakes([intake], {"b": ()})


def test_a_table_with_nothing_but_bad_rows_has_no_change() -> None:
    """J13: its dead letters are kept anyway, each with its source."""
    bad = BadRow("line 1", "not JSON", "{")
    intake = Intake("files", "k", Change(), 1, 1, "r", (bad,))
    assert fold_intakes([intake], {"k": ("id",)}) == {}
