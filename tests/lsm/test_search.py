"""Look-ups in runs that executors read: what the driver asks, what tasks answer, without Spark.

A task is a call in this process, and its cache a folder; the store is a directory.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.env import SystemEnv
from stepwell.errors import ConfigError, CorruptError
from stepwell.lsm import search as search_module
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.cache import Cache, CachePlace
from stepwell.lsm.index import ColumnRange, Indexes
from stepwell.lsm.lookup import LookedUpRows, SharedRows
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.row_lookup import RowReader, TooManyRowsError
from stepwell.lsm.run_file import RunFiles, parquet_bytes
from stepwell.lsm.search import ExecutorSearch, Hit, Located, OpenFiles, Wave
from stepwell.manifest.manifest import Run
from stepwell.manifest.run_object import write_run
from stepwell.store.address import address_of
from stepwell.store.local import LocalStore

TYPES = ("int", "string", "bigint")
SCHEMA = arrow_schema(TYPES)
Row = tuple[int | None, str | None, int, int]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 4) | st.none(),
        st.sampled_from(["a", "b", "c"]) | st.none(),
        st.integers(0, 99),
        st.sampled_from([-1, 1, 2]),
    ),
    max_size=9,
)


class RemoteRun(RunFiles):
    """A run that this process has no files of."""

    def __init__(self, located: Sequence[Located]) -> None:
        super().__init__((), sum(each.file.rows for each in located))
        self.located = tuple(located)

    @property
    def here(self) -> bool:
        return False


class Executors:
    """Runs waves in this process, as tasks that share nothing with it but the store."""

    count = 3

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(str(folder / "store"), SystemEnv())
        self.place = CachePlace(str(folder / "cache"))
        self.waves: list[Wave] = []
        self.too_large = False
        """Whether the hits of more than one question do not fit together."""
        self.search = ExecutorSearch(self._located, self, self.place)

    def stored(self, files: Sequence[list[Row]]) -> RemoteRun:
        """A stored run with these files."""
        written = [self.write(rows) for rows in files]
        return RemoteRun([Located(address_of(self.store), file) for file in written])

    def write(self, rows: list[Row]) -> Run:
        body = parquet_bytes(table(rows), (0,))
        return write_run(self.store, SystemEnv(), "t", body, len(rows))

    def _located(self, run: RunFiles) -> tuple[Located, ...]:
        assert isinstance(run, RemoteRun)
        return run.located

    def run(self, wave: Wave, slots: Sequence[int]) -> list[Hit] | None:
        if self.too_large and len(wave.searches) > 1:
            return None
        self.waves.append(wave)
        sent = pickle.loads(pickle.dumps(wave))
        # Tasks end in any order.
        order = slots if len(self.waves) % 2 else reversed(slots)
        return [pickle.loads(pickle.dumps(hit)) for slot in order for hit in sent([slot])]


@pytest.fixture
def executors(tmp_path: Path) -> Executors:
    return Executors(tmp_path)


def table(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * 4
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def relation(runs: Sequence[RunFiles], held: list[Row] | None = None, name: str = "t") -> Relation:
    parts = [Part(TYPES, run.rows, run=run) for run in runs]
    if held:
        parts.append(Part(TYPES, len(held), table(held)))
    return Relation(name, TYPES, (0,), parts)


def look_up(
    shared: SharedRows,
    stored: Relation,
    numbers: list[int | None] | None = None,
    texts: list[str | None] | None = None,
    most: int = 1000,
    needed: frozenset[int] | None = None,
) -> LookedUpRows | None:
    sought = {}
    if numbers is not None:
        sought[0] = pa.array(numbers, pa.int32())
    if texts is not None:
        sought[1] = pa.array(texts, pa.string())
    return shared.look_up(NOT_HERE, stored, sought, most, needed)


class NoIndexes(Indexes):
    """Fails if a run is looked up in this process."""

    def __init__(self) -> None:
        pass


NOT_HERE = NoIndexes()


def tuples(rows: pa.Table) -> list[Row]:
    return sorted(map(tuple, zip(*(c.to_pylist() for c in rows.columns), strict=True)), key=repr)


def shared_rows(executors: Executors, **settings: int) -> SharedRows:
    return SharedRows(elsewhere=executors.search, **settings)  # type: ignore[arg-type]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    runs=st.lists(st.lists(ROWS, min_size=1, max_size=3), min_size=1, max_size=2),
    held=ROWS,
    numbers=st.none() | st.lists(st.integers(0, 5) | st.none(), max_size=4, unique=True),
    texts=st.none() | st.lists(st.sampled_from(["a", "c", None]), max_size=3, unique=True),
)
def test_executors_find_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[list[list[Row]]],
    held: list[Row],
    numbers: list[int | None] | None,
    texts: list[str | None] | None,
) -> None:
    """S3: in several files of several runs and in memory, asked twice, with what was learned."""
    executors = Executors(tmp_path_factory.mktemp("search"))
    stored = relation([executors.stored(files) for files in runs], held)
    rows = [row for files in runs for file in files for row in file] + held
    expected = [
        row
        for row in rows
        if (numbers is None or row[0] in numbers) and (texts is None or row[1] in texts)
    ]
    for _ in range(2):  # The second time the ranges of the columns are known.
        found = look_up(shared_rows(executors), stored, numbers, texts)
        if numbers is None and texts is None:
            assert found is None, "a run is not read whole"
            return
        assert found is not None
        assert tuples(found.table(None)) == sorted(expected, key=repr)


def test_look_ups_that_are_noted_are_one_wave(executors: Executors) -> None:
    """X2: the look-ups of all views that are known at a time cost one job."""
    one = relation([executors.stored([[(1, "a", 10, 1)], [(2, "b", 20, 1)]])])
    two = relation([executors.stored([[(1, "x", 30, 1)]])], name="u")
    shared = shared_rows(executors)
    with shared.noting():
        assert look_up(shared, one, [1], needed=frozenset({0})) is None
        assert look_up(shared, one, [1], needed=frozenset({0, 1})) is None
        assert look_up(shared, one, [2], needed=frozenset({0, 2})) is None
        assert look_up(shared, two, [1, 7]) is None
    assert shared.missed == 4
    assert shared.ask_noted()
    assert len(executors.waves) == 1
    with shared.noting():
        found = [look_up(shared, one, [1]), look_up(shared, one, [2]), look_up(shared, two, [1, 7])]
    assert shared.missed == 0
    assert [tuples(rows.table(None)) for rows in found if rows is not None] == [
        [(1, "a", 10, 1)],
        [(2, "b", 20, 1)],
        [(1, "x", 30, 1)],
    ]
    assert not shared.ask_noted()
    assert len(executors.waves) == 1, "columns that another look-up noted were fetched as well"


def test_a_column_that_is_missing_is_fetched_for_the_same_rows(executors: Executors) -> None:
    """X2: the first view needs few columns; later ones must not see columns of other rows."""
    stored = relation(
        [
            executors.stored(
                [[(1, "a", 10, 1), (1, "b", 20, -1)], [(1, "c", 30, 1), (2, "d", 40, 1)]]
            )
        ],
        [(1, "e", 50, 1)],
    )
    shared = shared_rows(executors)
    found = look_up(shared, stored, [1], needed=frozenset({0}))
    assert found is not None
    few = found.table(frozenset({0}))
    assert few.column("c2").to_pylist() == [None] * 4
    assert len(executors.waves) == 1
    assert tuples(found.table(None)) == [
        (1, "a", 10, 1),
        (1, "b", 20, -1),
        (1, "c", 30, 1),
        (1, "e", 50, 1),
    ]
    assert len(executors.waves) == 2
    found.table(None)
    again = look_up(SharedRows(elsewhere=executors.search, columns=shared._needed), stored, [1])
    assert again is not None
    assert again.table(None).num_rows == 4
    assert len(executors.waves) == 3, "which columns are needed is known from then on"


def test_files_without_the_values_are_not_searched(executors: Executors) -> None:
    """X2: a change of new keys needs no job, once the ranges of the files are known."""
    stored = relation([executors.stored([[(1, "a", 10, 1)], [(5, "b", 20, 1), (9, "c", 30, 1)]])])
    for wanted, files in (([1], 2), ([7], 1), ([1], 1), ([10, 0], 0), ([None], 0), ([4], 0)):
        executors.waves.clear()
        found = look_up(shared_rows(executors), stored, wanted)  # type: ignore[arg-type]
        assert found is not None
        assert found.rows == (wanted == [1])
        assert sum(len(wave.files) for wave in executors.waves) == files
        assert len(executors.waves) == (files > 0), "no job if nothing can match"


def test_a_range_keeps_files_that_may_hold_a_value() -> None:
    """S3: a bound that is off by one, or a NULL that is not counted, would lose a row."""
    some, none = ColumnRange(3, 5, nulls=False), ColumnRange(None, None, nulls=True)
    for value, inside in ((2, False), (3, True), (5, True), (6, False), (None, False)):
        assert some.may_contain(pa.array([value], pa.int32())) is inside
        assert none.may_contain(pa.array([value], pa.int32())) is (value is None)
    assert ColumnRange(3, 5, nulls=True).may_contain(pa.array([9, None], pa.int64()))
    assert not some.may_contain(pa.array([], pa.int64()))


def test_a_look_up_of_too_many_rows_is_asked_once(executors: Executors) -> None:
    """The driver's memory is bounded by a setting, and no view repeats the job."""
    rows: list[Row] = [(1, "a", number, 1) for number in range(6)]
    stored = relation([executors.stored([rows[:3], rows[3:]])])
    shared = shared_rows(executors, fetched_rows_max=5)
    for _ in range(2):
        assert look_up(shared, stored, [1]) is None
    assert len(executors.waves) == 1
    assert look_up(shared_rows(executors, fetched_rows_max=6), stored, [1]) is not None
    assert look_up(shared_rows(executors, fetched_rows_max=9), stored, [1], most=5) is None
    executors.waves.clear()
    assert look_up(shared_rows(executors), stored, [1], most=-1) is None
    assert not executors.waves


def test_what_is_looked_up_ahead_is_bounded(executors: Executors) -> None:
    """A transaction with many views must not hold every row that any of them might need."""
    rows: list[Row] = [(number % 3, "a", number, 1) for number in range(9)]
    stored = relation([executors.stored([rows])])
    shared = shared_rows(executors, rows_max=2)
    with shared.noting():
        look_up(shared, stored, [0])
        look_up(shared, stored, [1])
    assert not shared.ask_noted(), "there are enough rows"
    for _ in range(2):
        found = look_up(shared, stored, [2])
        assert found is not None
        assert found.rows == 3
    assert len(executors.waves) == 3, "asked again, because it was not held"


def test_answers_that_do_not_fit_together_are_asked_one_by_one(executors: Executors) -> None:
    """A wave of many look-ups must not fail where each of them alone would not."""
    executors.too_large = True
    stored = relation([executors.stored([[(1, "a", 10, 1), (2, "b", 20, 1)]])])
    shared = shared_rows(executors)
    with shared.noting():
        look_up(shared, stored, [1])
        look_up(shared, stored, [2])
    shared.ask_noted()
    for number in (1, 2):
        found = look_up(shared, stored, [number])
        assert found is not None
        assert found.rows == 1


def test_rows_of_other_parts_are_looked_up_again(executors: Executors) -> None:
    """S3: an answer is that of the parts it was asked for."""
    stored = relation([executors.stored([[(1, "a", 10, 1)]])])
    shared = shared_rows(executors)
    with shared.noting():
        look_up(shared, stored, [1])
    shared.ask_noted()
    stored.parts = [*stored.parts, Part(TYPES, 2, run=executors.stored([[(1, "b", 20, 1)] * 2]))]
    found = look_up(shared, stored, [1])
    assert found is not None
    assert found.rows == 3


def test_a_file_is_decoded_once_for_every_path_that_it_has(
    executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: a flush copies what executors wrote, and a restarted executor finds its cache."""
    rows: list[Row] = [(1, "a", 10, 1), (2, "b", 20, 1)]
    first = executors.stored([rows])
    assert look_up(shared_rows(executors), relation([first]), [1], ["a"]) is not None
    again = executors.stored([rows])
    assert again.located[0].file.path != first.located[0].file.path
    assert again.located[0].identity == first.located[0].identity
    monkeypatch.setattr(search_module, "_OPENED", {})
    monkeypatch.setattr(search_module, "open_parquet", None)
    monkeypatch.setattr(search_module, "read_checked", None)
    found = look_up(shared_rows(executors), relation([again]), [1], ["a"])
    assert found is not None
    assert tuples(found.table(None)) == [(1, "a", 10, 1)]


def test_a_file_of_other_contents_has_another_name(executors: Executors) -> None:
    """S3: an executor must not take the columns of one file for those of another."""
    one, other = executors.stored([[(1, "a", 10, 1)]]), executors.stored([[(1, "b", 10, 1)]])
    assert one.located[0].identity != other.located[0].identity
    found = [look_up(shared_rows(executors), relation([run]), [1]) for run in (one, other)]
    assert [tuples(r.table(None)) for r in found if r is not None] == [
        [(1, "a", 10, 1)],
        [(1, "b", 10, 1)],
    ]


def test_a_file_that_is_gone_or_damaged_is_an_error(executors: Executors) -> None:
    """K7: a flipped byte is never a wrong row, and rows of a missing file do not seem absent."""
    run = executors.stored([[(1, "a", 10, 1)] * 50])
    file = executors.store.uri.removeprefix("file://") + "/" + run.located[0].file.path
    body = Path(file).read_bytes()
    for at in range(0, len(body), max(1, len(body) // 12)):
        Path(file).write_bytes(body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :])
        cold = ExecutorSearch(executors._located, executors, CachePlace(f"{file}.{at}"))
        with pytest.raises(CorruptError, match="checksum"):
            look_up(SharedRows(elsewhere=cold), relation([run]), [1])
    Path(file).unlink()
    cold = ExecutorSearch(executors._located, executors, CachePlace(f"{file}.x"))
    with pytest.raises(ConfigError, match="does not see"):
        look_up(SharedRows(elsewhere=cold), relation([run]), [1])


def test_a_process_keeps_a_bounded_number_of_files_open(
    executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that lives for months must not map every file that there ever was."""
    monkeypatch.setattr(search_module, "FILES_OPEN_MAX", 2)
    opened = OpenFiles(executors.place)
    for number in range(5):
        [located] = executors.stored([[(number, "a", 10, 1)]]).located
        first = opened.index(located, TYPES)
        assert opened.index(located, TYPES) is first
    assert len(opened._files) == 2


def test_few_rows_are_not_looked_up_one_by_one(executors: Executors) -> None:
    """X2: a change of few rows that needs executors is computed by columns, in waves."""
    stored = relation([executors.stored([[(1, "a", 10, 1)]])], [(2, "b", 20, 1)])
    reader = RowReader(NOT_HERE, 100)
    for ask in (
        lambda: reader.look_up(stored, 0, [1], [1]),
        lambda: reader.count(stored, 0, [1]),
    ):
        with pytest.raises(TooManyRowsError):
            ask()
    assert not executors.waves


def test_an_index_of_the_driver_is_not_built_for_runs_elsewhere(
    executors: Executors, tmp_path: Path
) -> None:
    """A compacted run that executors wrote would be copied only to be indexed."""
    indexes = Indexes(Cache(tmp_path / "driver", SystemEnv()))
    indexes.build_like(executors.stored([[(1, "a", 10, 1)]]), [], SCHEMA)
    assert not indexes._known
