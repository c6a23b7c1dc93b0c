"""What the engine asks of every executor. Subclass it with a `factory` fixture and run it.

    class TestMine(ExecutorContract):
        @pytest.fixture
        def factory(self) -> ExecutorFactory: ...

The factory must give an executor over `CONTRACT_SQL`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from stepwell.errors import InvalidError, StepwellError
from stepwell.execution.executor import Executed, Executor, ExecutorFactory
from stepwell.lsm.change import WEIGHT, Change, Rejected
from stepwell.lsm.dead_letter import Letter
from stepwell.lsm.fold import fold_traced
from stepwell.manifest.manifest import Run
from stepwell.model import checksum
from stepwell.store.base import Store
from stepwell.store.memory import SHARED, MemoryStore
from stepwell.testing import ManualEnv

CONTRACT_SQL = """
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount BIGINT);
CREATE TABLE clicks (customer STRING, page STRING);
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW visits AS
  SELECT customer, COUNT(*) AS n FROM clicks GROUP BY customer;
"""
ORDERS = pa.schema({"id": pa.int64(), "customer": pa.string(), "amount": pa.int64()})
CLICKS = pa.schema({"customer": pa.string(), "page": pa.string()})

Row = tuple[object, ...]


def orders(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ORDERS.names, row, strict=True)) for row in rows], ORDERS)


def clicks(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(CLICKS.names, row, strict=True)) for row in rows], CLICKS)


def ids(*keys: int) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64())})


class ExecutorContract:
    @pytest.fixture
    def env(self) -> ManualEnv:
        return ManualEnv()

    @pytest.fixture
    def store(self, env: ManualEnv) -> MemoryStore:
        return MemoryStore(env)

    @pytest.fixture
    def executor(self, factory: ExecutorFactory, store: MemoryStore, env: ManualEnv) -> Executor:
        made = factory(store, env)
        made.load(())
        return made

    def test_it_names_its_tables_and_their_keys(self, executor: Executor) -> None:
        """S2: how changes are put together depends on them."""
        assert dict(executor.tables()) == {"orders": ("id",), "clicks": ()}

    def test_nothing_changes_before_it_is_kept(self, executor: Executor, env: ManualEnv) -> None:
        """J3: what is not recorded has not happened."""
        executed = run(executor, env, {"orders": Change(orders((1, "a", 5)))}, keep=False)
        assert found(executed, "revenue") == [(("a", 5, 1), 1)]
        assert rows(executor, "orders") == []
        assert rows(executor, "revenue") == []
        executor.apply(executed)
        assert rows(executor, "revenue") == [("a", 5, 1)]

    def test_the_change_of_a_view_has_weights_and_only_views_that_changed_are_named(
        self, executor: Executor, env: ManualEnv
    ) -> None:
        """J7: empty changes send nothing."""
        run(executor, env, {"orders": Change(orders((1, "a", 5), (2, "a", 6)))})
        executed = run(executor, env, {"orders": Change(orders((2, "b", 6)))})
        assert found(executed, "revenue") == [
            (("a", 5, 1), 1),
            (("a", 11, 2), -1),
            (("b", 6, 1), 1),
        ]
        assert executed.changes["revenue"].column_names == ["customer", "total", "n", WEIGHT]
        assert "visits" not in executed.changes
        again = run(executor, env, {"orders": Change(orders((2, "b", 6)))})
        assert not [view for view, change in again.changes.items() if change.num_rows]

    def test_a_key_is_replaced_deleted_and_put_again(
        self, executor: Executor, env: ManualEnv
    ) -> None:
        """S2: deletes come before puts, and the last put of a key wins."""
        run(executor, env, {"orders": Change(orders((1, "a", 1), (2, "b", 2), (1, "a", 3)))})
        assert rows(executor, "orders") == [(1, "a", 3), (2, "b", 2)]
        run(executor, env, {"orders": Change(orders((2, "c", 4)), ids(1, 2))})
        assert rows(executor, "orders") == [(2, "c", 4)]

    def test_a_bag_counts_equal_rows(self, executor: Executor, env: ManualEnv) -> None:
        """S2: a delete takes one of them away."""
        run(executor, env, {"clicks": Change(clicks(("a", "/"), ("a", "/"), ("a", None)))})
        run(executor, env, {"clicks": Change(None, clicks(("a", "/"), ("a", None)))})
        assert rows(executor, "clicks") == [("a", "/")]
        assert rows(executor, "visits") == [("a", 1)]

    def test_a_delete_must_find_its_key_and_a_discard_need_not(
        self, executor: Executor, env: ManualEnv
    ) -> None:
        """J13: discards come first, and the second delete of a key finds nothing."""
        run(executor, env, {"orders": Change(orders((1, "a", 1), (2, "b", 2)))})
        change = Change(orders((3, "c", 3)), ids(2, 2, 3, 1), ids(1, 4))
        executed = run(executor, env, {"orders": change})
        assert sorted(tuple(r.row) for r in executed.rejected) == [(1,), (2,), (3,)]
        assert rows(executor, "orders") == [(3, "c", 3)]
        assert rows(executor, "revenue") == [("c", 3, 1)]
        with pytest.raises(InvalidError, match="clicks has no key"):
            run(executor, env, {"clicks": Change(discard=clicks(("a", "/")))})

    @pytest.mark.parametrize("seed", range(4))
    def test_however_operations_are_split_they_come_to_the_same(
        self, executor: Executor, env: ManualEnv, seed: int
    ) -> None:
        """J2, J13: the table, its views and its dead letters are those of one row at a time."""
        random = Random(seed)
        kept: dict[object, Row] = {}
        pages: Counter[Row] = Counter()
        missed: Counter[tuple[str, Row]] = Counter()
        for _ in range(4):
            parts: dict[str, list[Change]] = {"orders": [], "clicks": []}
            for _ in range(random.randint(1, 12)):
                put = random.random() < 0.5
                key = random.randint(1, 3)
                row = (key, random.choice("ab"), random.randint(1, 9))
                if put:
                    kept[key] = row
                elif kept.pop(key, None) is None:
                    missed["orders", (key,)] += 1
                parts["orders"].append(Change(orders(row)) if put else Change(None, ids(key)))
                click = (random.choice("ab"), "/")
                if put:
                    pages[click] += 1
                elif pages[click]:
                    pages[click] -= 1
                else:
                    missed["clicks", click] += 1
                gone = clicks(click)
                parts["clicks"].append(Change(gone) if put else Change(None, gone))
            keys = executor.tables()
            folded = {table: fold_traced(some, keys[table]).change for table, some in parts.items()}
            missed.subtract((r.table, tuple(r.row)) for r in run(executor, env, folded).rejected)
        assert rows(executor, "orders") == sorted(kept.values())
        assert rows(executor, "clicks") == sorted(pages.elements())
        assert rows(executor, "visits") == sorted(Counter(c for c, _ in pages.elements()).items())
        assert not +missed
        assert not -missed

    def test_equal_dead_letters_are_counted(
        self, factory: ExecutorFactory, executor: Executor, store: MemoryStore, env: ManualEnv
    ) -> None:
        """J13: a delete that misses twice is two letters, however they are stored."""
        run(executor, env, {"orders": Change(orders((1, "a", 1)), ids(8, 8, 9))})
        run(executor, env, {"orders": Change(None, ids(8))})
        for _ in range(2):
            assert executor.read("orders$errors").num_rows == 4
            executor.on_flushed(executor.flush())
            executor.compact()
        runs = executor.flush()
        again = factory(store, env)
        again.load(runs)
        assert again.read("orders$errors").num_rows == 4

    def test_compacting_leaves_one_run_of_each_relation(
        self, factory: ExecutorFactory, executor: Executor, store: MemoryStore, env: ManualEnv
    ) -> None:
        """K5: the state is the same, what came and went is no more, and loading gives it again."""
        for id in range(1, 5):
            run(executor, env, {"orders": Change(orders((id, "ab"[id % 2], id), (9, "a", id)))})
            executor.on_flushed(executor.flush())
        run(executor, env, {"orders": Change(None, ids(9))})
        before = state(executor)
        executor.compact()
        runs = executor.flush()
        executor.on_flushed(runs)
        names = [item.relation for item in runs]
        assert len(names) == len(set(names))
        assert sum(item.rows for item in runs if item.relation == "orders") == 4
        assert state(executor) == before
        again = factory(store, env)
        again.load(runs)
        assert state(again) == before
        run(again, env, {"orders": Change(orders((7, "z", 7)), ids(1))})
        assert rows(again, "orders") == [(2, "a", 2), (3, "b", 3), (4, "a", 4), (7, "z", 7)]

    def another(self, store: Store, env: ManualEnv) -> Store:
        """A store of the same kind, somewhere else."""
        return MemoryStore(env, "clone")

    def test_compacting_makes_a_parents_files_a_clones_own(
        self, factory: ExecutorFactory, executor: Executor, store: MemoryStore, env: ManualEnv
    ) -> None:
        """C7, scenario 58: only if it is asked for, since it copies (C5)."""
        run(executor, env, {"orders": Change(orders((1, "a", 1), (2, "b", 2)))})
        runs = executor.flush()
        before = state(executor)
        SHARED[store.uri] = store
        clone = self.another(store, env)
        try:
            again = factory(clone, env)
            theirs = tuple(replace(item, root=store.uri) for item in runs)
            again.load(theirs)
            again.compact()
            assert again.flush() == theirs
            again.on_flushed(theirs)
            again.compact(own=True)
            own = again.flush()
            again.on_flushed(own)
            assert {item.root for item in own} == {None}
            assert all(clone.exists(item.path) for item in own)
            assert state(again) == before
        finally:
            del SHARED[store.uri]
        last = factory(clone, env)
        last.load(own)
        assert state(last) == before

    def test_bad_rows_are_kept_with_their_source(self, executor: Executor, env: ManualEnv) -> None:
        """J13: together with what the executor rejects itself."""
        bad = letter(env, "a.json, line 7", "not JSON")
        missed = letter(env, "b.json, line 1", "not there")
        given: list[Rejected] = []

        def letters(rejected: Sequence[Rejected]) -> dict[str, list[Letter]]:
            given.extend(rejected)
            return {"orders": [bad, missed]}

        change = Change(orders((1, "a", 1)), ids(1, 99))
        executed = executor.execute({"orders": change}, env.now(), letters)
        executor.apply(executed)
        assert rows(executor, "orders") == [(1, "a", 1)]
        assert tuple(given) == executed.rejected
        assert [(r.table, r.part, r.at) for r in given] == [
            ("orders", "delete", 0),
            ("orders", "delete", 1),
        ]
        found = executor.read("orders$errors").to_pylist()
        assert sorted(found, key=str) == sorted((row._asdict() for row in (bad, missed)), key=str)
        assert executor.read("clicks$errors").num_rows == 0

    def test_runs_hold_the_whole_state(
        self, factory: ExecutorFactory, executor: Executor, store: MemoryStore, env: ManualEnv
    ) -> None:
        """K1: each is a file with its size and checksum, and a fresh executor goes on from them."""
        runs: Sequence[Run] = ()
        for number in range(12):
            change = {
                "orders": Change(
                    orders((number % 5, "a", number)), ids(3) if number == 9 else None
                ),
                "clicks": Change(clicks(("a", str(number)))),
            }
            bad = {"clicks": [letter(env, str(number), "not JSON")]}
            executor.apply(executor.execute(change, env.now(), lambda rejected, bad=bad: bad))
            runs = executor.flush()
            executor.on_flushed(runs)
            assert executor.unflushed_bytes() == 0
        for item in runs:
            stored = store.get(item.path)
            assert stored is not None
            assert (len(stored.data), checksum([stored.data])) == (item.size, item.checksum)
        fresh = factory(store, env)
        fresh.load(runs)
        assert state(fresh) == state(executor)
        more = {"orders": Change(orders((77, "z", 1)))}
        assert found(run(fresh, env, more), "revenue") == found(run(executor, env, more), "revenue")
        assert state(fresh) == state(executor)

    def test_a_flush_that_was_not_committed_is_made_again(
        self, factory: ExecutorFactory, executor: Executor, store: MemoryStore, env: ManualEnv
    ) -> None:
        """K1: until it is told otherwise the executor counts everything as unflushed."""
        run(executor, env, {"orders": Change(orders((1, "a", 1)))})
        executor.flush()
        assert executor.unflushed_bytes() > 0
        run(executor, env, {"orders": Change(orders((2, "b", 1)))})
        runs = executor.flush()
        fresh = factory(store, env)
        fresh.load(runs)
        assert state(fresh) == state(executor)

    def test_loading_forgets_what_was_there(
        self, factory: ExecutorFactory, executor: Executor, store: MemoryStore, env: ManualEnv
    ) -> None:
        """K1: the state is that of the runs, and nothing else."""
        empty = state(executor)
        run(executor, env, {"orders": Change(orders((1, "a", 1)))})
        executor.load(())
        assert state(executor) == empty
        assert executor.unflushed_bytes() == 0

    def test_an_execution_that_fails_leaves_everything_as_it_was(
        self, executor: Executor, env: ManualEnv
    ) -> None:
        """K1: the next one computes over the same state."""
        run(executor, env, {"orders": Change(orders((1, "a", 2**62)))})
        before = state(executor)
        with pytest.raises(StepwellError):
            run(executor, env, {"orders": Change(orders((2, "a", 2**62)))})
        with pytest.raises(InvalidError):
            run(executor, env, {"orders": Change(pa.table({"nonsense": [1]}))})
        assert state(executor) == before
        run(executor, env, {"orders": Change(orders((2, "b", 1)))})
        assert len(rows(executor, "orders")) == 2

    def test_queries_see_tables_and_views(self, executor: Executor, env: ManualEnv) -> None:
        """S1: as they are now."""
        run(executor, env, {"orders": Change(orders((1, "a", 5), (2, "b", 6)))})
        sql = "SELECT r.customer, o.id FROM revenue r JOIN orders o ON r.customer = o.customer"
        assert sorted(tuple(row.values()) for row in executor.query(sql).to_pylist()) == [
            ("a", 1),
            ("b", 2),
        ]
        with pytest.raises(InvalidError):
            executor.read("nowhere")

    def test_queries_see_dead_letters(self, executor: Executor, env: ManualEnv) -> None:
        """J13: they are a relation like any other."""
        bad = {
            "orders": [letter(env, str(n), reason) for n, reason in ((1, "a"), (2, "b"), (3, "c"))]
        }
        change = Change(orders((1, "b", 5)), ids(9))
        executor.apply(executor.execute({"orders": change}, env.now(), lambda rejected: bad))
        counted = executor.query("SELECT COUNT(*) AS n FROM `orders$errors`").to_pylist()
        assert counted == [{"n": 3}]
        sql = "SELECT e.position FROM orders o JOIN `Orders$errors` e ON e.reason = o.customer"
        assert executor.query(sql).to_pylist() == [{"position": "2"}]
        assert executor.query("SELECT time, `transaction` FROM `orders$errors`").num_rows == 3
        assert executor.query("SELECT * FROM `clicks$errors`").num_rows == 0


def letter(env: ManualEnv, position: str, reason: str) -> Letter:
    return Letter(env.now(), 7, "files", position, reason, "{")


def run(
    executor: Executor, env: ManualEnv, changes: Mapping[str, Change], *, keep: bool = True
) -> Executed:
    executed = executor.execute(changes, env.now())
    if keep:
        executor.apply(executed)
    return executed


def found(executed: Executed, view: str) -> list[tuple[Row, int]]:
    change = executed.changes.get(view)
    if change is None:
        return []
    names = [name for name in change.column_names if name != WEIGHT]
    return sorted((tuple(row[name] for name in names), row[WEIGHT]) for row in change.to_pylist())


def rows(executor: Executor, relation: str) -> list[Row]:
    return sorted((tuple(row.values()) for row in executor.read(relation).to_pylist()), key=repr)


def state(executor: Executor) -> dict[str, list[Row]]:
    relations = ("orders", "clicks", "revenue", "visits", "orders$errors", "clicks$errors")
    return {relation: rows(executor, relation) for relation in relations}
