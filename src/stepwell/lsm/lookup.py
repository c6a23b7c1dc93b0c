"""Look up the stored rows of a relation by column values, and share them within a transaction.

Several views need the same rows: the lines of the changed orders, the customers of these orders.
Look-ups of the same values in the same parts of a relation are one look-up, and each column of its
rows is read once. Parts and values never change, so a result stays valid for as long as the
relation has the same parts. `SharedRows` holds results for the length of a transaction.

Runs that are not in this process are looked up `Elsewhere`, in one job for several look-ups: inside
of `SharedRows.noting`, look-ups without an answer are only noted, and `ask_noted` asks them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from stepwell.errors import UnavailableError, ensure
from stepwell.lsm.arrow_types import arrow_schema
from stepwell.lsm.column_memo import ColumnMemo
from stepwell.lsm.index import Indexes, RunIndex, ascending, ordered
from stepwell.lsm.part import Part, Places, Relation, Sought
from stepwell.lsm.profiler import Profiler
from stepwell.lsm.run_file import RunFiles

SHARED_ROWS_MAX = 2_000_000
"""Results with more rows in all are not shared."""
_FEW_ROWS = 1000
"""With so few rows left, looking up another column costs more than reading the rows."""


@dataclass(frozen=True, slots=True)
class Question:
    """A look-up in runs that are not in this process."""

    types: tuple[str, ...]
    """The types of the relation's columns."""
    runs: tuple[RunFiles, ...]
    sought: Sought
    columns: frozenset[int]
    """The columns to return, besides the weight."""
    rows_max: int


class Elsewhere(Protocol):
    """Looks up rows where the runs are."""

    def ask(self, questions: Sequence[Question]) -> list[pa.Table | None]:
        """For each question the rows, with its columns in order and the weight; None if there are
        more than it allows. The same question has the same rows in the same order, whatever columns
        it asks for."""


class _RowsElsewhere:
    """The answer to a question. Columns that it lacks are asked for when they are needed."""

    def __init__(self, elsewhere: Elsewhere, question: Question, table: pa.Table) -> None:
        self._elsewhere = elsewhere
        self._question = question
        self._table = table
        self.rows: int = table.num_rows

    def require(self, columns: frozenset[int]) -> None:
        if not self.rows or columns <= self._question.columns:
            return
        more = replace(self._question, columns=self._question.columns | columns)
        [found] = self._elsewhere.ask([more])
        if found is None:
            # Wider rows did not fit together; those that are missing may.
            missing = replace(self._question, columns=columns - self._question.columns)
            [found] = self._elsewhere.ask([missing])
            if found is None:
                raise UnavailableError(
                    "the rows that a change joins with are too large to be fetched from executors",
                    hint="nothing was changed. Raise spark.driver.maxResultSize under spark: conf: "
                    "in stepwell.yml",
                )
            names = self._table.column_names[:-1]
            for name in names:
                found = found.append_column(name, self._table.column(name))
        ensure(found.num_rows == self.rows, "a question always has the same rows")
        self._question, self._table = more, found

    def column(self, name: str, kind: pa.DataType) -> list[pa.Array]:
        if not self.rows:
            return []
        return list(self._table.column(name).cast(kind).chunks)


class LookedUpRows:
    """The rows of a look-up. Columns are read when they are first needed."""

    def __init__(
        self, schema: pa.Schema, parts: Sequence[Part], profiler: Profiler | None = None
    ) -> None:
        self._schema = schema
        self._profiler = profiler or Profiler()
        self._parts = tuple(parts)
        """Held, because columns may be read from their runs later."""
        self._memory: list[tuple[Part, Places]] = []
        self._found: list[tuple[RunIndex, Places]] = []
        self._elsewhere: _RowsElsewhere | None = None
        self._columns: dict[int, pa.ChunkedArray] = {}
        self._tables: dict[frozenset[int] | None, pa.Table] = {}
        self.rows = 0

    def add_elsewhere(self, rows: _RowsElsewhere) -> None:
        self._elsewhere = rows
        self.rows += rows.rows

    def add_part(self, part: Part, places: Places) -> None:
        if len(places):
            self._memory.append((part, places))
            self.rows += len(places)

    def add_places(self, index: RunIndex, places: Places) -> None:
        if len(places):
            self._found.append((index, places))
            self.rows += len(places)

    def table(self, columns: frozenset[int] | None) -> pa.Table:
        """The rows, with these columns and the weight. Other columns are NULL."""
        known = self._tables.get(columns)
        if known is None:
            before = self._profiler.enter("look-ups")
            try:
                known = self._tables[columns] = self._table(columns)
            finally:
                self._profiler.enter(before)
        return known

    def _table(self, columns: frozenset[int] | None) -> pa.Table:
        last = len(self._schema) - 1
        if self._elsewhere is not None:
            every = frozenset(range(last))
            self._elsewhere.require(every if columns is None else columns & every)
        empty = {kind: pa.nulls(self.rows, kind) for kind in set(self._schema.types)}
        made = [
            self._column(i) if columns is None or i in columns or i == last else empty[field.type]
            for i, field in enumerate(self._schema)
        ]
        return pa.table(made, schema=self._schema)

    def _column(self, place: int) -> pa.ChunkedArray:
        known = self._columns.get(place)
        if known is None:
            kind = self._schema.field(place).type
            chunks = [_taken(part.array(place), places, kind) for part, places in self._memory]
            chunks += [_taken(i.column(place), places, kind) for i, places in self._found]
            if self._elsewhere is not None:
                chunks += self._elsewhere.column(self._schema.field(place).name, kind)
            known = self._columns[place] = pa.chunked_array(chunks, kind)
        return known


def _taken(column: pa.Array, places: Places, kind: pa.DataType) -> pa.Array:
    if len(places) == len(column):
        found = column
    else:
        found = column.take(pa.array(places))
    return found if found.type == kind else found.cast(kind)


class SharedRows:
    """The results of the look-ups of one transaction."""

    def __init__(
        self,
        rows_max: int = SHARED_ROWS_MAX,
        profiler: Profiler | None = None,
        elsewhere: Elsewhere | None = None,
        fetched_rows_max: int | None = None,
        columns: dict[str, frozenset[int]] | None = None,
    ) -> None:
        """`profiler` counts the rows that are read, and those that an earlier look-up has read.

        `elsewhere` looks up runs that are not in this process, up to `fetched_rows_max` rows.
        `columns` are those that any look-up of a relation has needed, which is remembered for the
        next transaction: so that look-ups for different columns share one answer.
        """
        self._rows_max = rows_max
        self._elsewhere = elsewhere
        self._fetched_rows_max = fetched_rows_max
        self._needed = {} if columns is None else columns
        self._known: dict[str, _Results] = {}
        self._profiler = profiler or Profiler()
        self.memo = ColumnMemo()
        """What was computed from columns of these rows."""
        self._noting = False
        self._noted: dict[tuple[str, _Key], Question] = {}
        self.missed = 0
        """Look-ups that were noted, or had been noted before."""

    @property
    def noting_look_ups(self) -> bool:
        return self._noting

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note the look-ups in this block that have to be asked elsewhere, and return None."""
        self._noting = True
        try:
            yield
        finally:
            self._noting = False

    def ask_noted(self) -> bool:
        """Ask for what was noted, all at once. Returns whether to look further ahead: not if there
        was nothing to ask, or if as many rows are held as may be."""
        noted, self._noted = self._noted, {}
        self.missed = 0
        if not noted or self._elsewhere is None:
            return False
        # Columns that another look-up has noted for the same relation may be needed here, too.
        questions = [
            replace(question, columns=question.columns | self._needed[name])
            for (name, _), question in noted.items()
        ]
        answers = self._elsewhere.ask(questions)
        for (name, key), question, table in zip(noted, questions, answers, strict=True):
            self._known[name].answers[key] = self._answer(question, table)
        return self._held_elsewhere() <= self._rows_max

    def _held_elsewhere(self) -> int:
        """The number of rows that were found elsewhere and are held."""
        answers = (answer for known in self._known.values() for answer in known.answers.values())
        return sum(answer.rows for answer in answers if isinstance(answer, _RowsElsewhere))

    def look_up(
        self,
        indexes: Indexes,
        relation: Relation,
        sought: Sought,
        most: int,
        needed: frozenset[int] | None = None,
    ) -> LookedUpRows | None:
        """The stored rows that have one of the values in each column.

        None if there are more than `most`, or if they are not in memory and have no index.
        `needed`: the columns that will be read, by default all; others can be read later.
        """
        before = self._profiler.enter("look-ups")
        try:
            return self._shared(indexes, relation, sought, most, needed)
        finally:
            self._profiler.enter(before)

    def _shared(
        self,
        indexes: Indexes,
        relation: Relation,
        sought: Sought,
        most: int,
        needed: frozenset[int] | None,
    ) -> LookedUpRows | None:
        results = self._known.get(relation.name)
        if results is None or not results.of(relation):
            results = self._known[relation.name] = _Results(tuple(relation.parts))
        key = tuple((place, _digest(sought[place])) for place in sorted(sought))
        known = results.by_values.get(key)
        if known is not None:
            self._profiler.rows_shared += known.rows
            return known if known.rows <= most else None
        there: _RowsElsewhere | None = None
        if _runs_elsewhere(relation):
            if not sought or most < 0:
                return None
            answer = self._found_elsewhere(results, key, relation, sought, most, needed)
            if not isinstance(answer, _RowsElsewhere):
                return None
            there = answer
        result = _look_up(indexes, relation, sought, most, self._profiler, there)
        if result is not None:
            self._profiler.rows_fetched += result.rows
            if sum(r.rows for r in self._known.values()) + result.rows <= self._rows_max:
                results.by_values[key] = result
                results.rows += result.rows
        return result

    def _found_elsewhere(
        self,
        results: _Results,
        key: _Key,
        relation: Relation,
        sought: Sought,
        most: int,
        needed: frozenset[int] | None,
    ) -> _RowsElsewhere | int | None:
        """The rows in runs that are not in this process; None or a number if there are none yet,
        or too many."""
        name = relation.name
        every = frozenset(range(len(relation.types)))
        self._needed[name] = self._needed.get(name, frozenset()) | (
            every if needed is None else needed & every
        )
        limit = most if self._fetched_rows_max is None else min(most, self._fetched_rows_max)
        known = results.answers.get(key)
        if isinstance(known, _RowsElsewhere) or (known is not None and limit <= known):
            return known
        runs = tuple(_runs_elsewhere(relation))
        question = Question(relation.types, runs, sought, self._needed[name], limit)
        if self._noting:
            self.missed += 1
            noted = self._noted.get((name, key))
            if noted is None or noted.rows_max < limit:
                self._noted[name, key] = question
            return None
        ensure(self._elsewhere is not None, "runs elsewhere are looked up there")
        [table] = self._elsewhere.ask([question])  # type: ignore[union-attr]
        answer = self._answer(question, table)
        rows = answer.rows if isinstance(answer, _RowsElsewhere) else 0
        if self._held_elsewhere() + rows <= self._rows_max:
            results.answers[key] = answer
        return answer

    def _answer(self, question: Question, table: pa.Table | None) -> _RowsElsewhere | int:
        if table is None or self._elsewhere is None:
            return question.rows_max
        return _RowsElsewhere(self._elsewhere, question, table)


_Key: TypeAlias = "tuple[tuple[int, tuple[int, int, bytes]], ...]"


def _runs_elsewhere(relation: Relation) -> list[RunFiles]:
    parts = (part for part in relation.parts if part.table is None)
    return [part.run for part in parts if part.run is not None and not part.run.here]


@dataclass(slots=True)
class _Results:
    """The results of look-ups in one relation, while it has these parts."""

    parts: tuple[Part, ...]
    by_values: dict[_Key, LookedUpRows] = field(default_factory=dict)
    answers: dict[_Key, _RowsElsewhere | int] = field(default_factory=dict)
    """What was found in runs elsewhere, or a number that it exceeds."""
    rows: int = 0

    def of(self, relation: Relation) -> bool:
        same = len(self.parts) == len(relation.parts)
        return same and all(map(is_, self.parts, relation.parts))


def _look_up(
    indexes: Indexes,
    relation: Relation,
    sought: Sought,
    most: int,
    profiler: Profiler,
    elsewhere: _RowsElsewhere | None = None,
) -> LookedUpRows | None:
    schema = arrow_schema(relation.types)
    result = LookedUpRows(schema, relation.parts, profiler)
    if elsewhere is not None:
        result.add_elsewhere(elsewhere)
    for part in relation.parts:
        if part.table is not None:
            result.add_part(part, part.find(sought))
        elif part.run is None or not sought:
            return None
        elif part.run.here:
            index = indexes.of(part.run, schema)
            places = places_in(index, schema, sought, most)
            if places is None:
                return None
            result.add_places(index, places)
        if result.rows > most:
            return None
    return result


def places_in(index: RunIndex, schema: pa.Schema, sought: Sought, most: int) -> Places | None:
    """The positions of the rows of a run that have such values; None if there are too many."""
    places: Places | None = None
    # Start with columns that are indexed already, where counting is nearly free, and with
    # selective ones, after which the others hardly remove any more rows.
    counts = {place: index.count(place, values) for place, values in sought.items()}
    many = {place: index.guess(place) if n is None else n for place, n in counts.items()}
    exact: set[int] = set()
    for place in sorted(sought, key=lambda p: (counts[p] is None, many[p])):
        if places is not None and (len(places) <= _FEW_ROWS or many[place] > 10 * len(places)):
            break
        found = index.find(place, sought[place], most)
        if found is not None:
            places = found if places is None else np.intersect1d(places, found, assume_unique=True)
            if ordered(schema.field(place).type):
                exact.add(place)
    if places is None or not len(places):
        return places
    # Test all columns in the end, because one part may retract rows of another.
    for place, values in sought.items():
        if place not in exact and len(places):
            column = index.column(place).take(pa.array(places))
            mask = pc.is_in(column, value_set=values.cast(column.type))
            places = places[mask.to_numpy(zero_copy_only=False)]
    return places


def distinct(column: pa.ChunkedArray) -> pa.Array:
    """The distinct values of a column. Integers, dates and timestamps are sorted."""
    if ordered(column.type) and not column.null_count:
        whole = pa.int32() if column.type.bit_width == 32 else pa.int64()
        numbers = column if pa.types.is_integer(column.type) else column.cast(whole)
        return pa.array(_each_once(numbers.to_numpy())).cast(column.type)
    found = pc.unique(column)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _each_once(numbers: Places) -> Places:
    """The distinct numbers, ascending. NumPy's `unique` hashes them first, which takes longer."""
    numbers = ascending(numbers)
    kept = np.ones(len(numbers), dtype=bool)
    np.not_equal(numbers[1:], numbers[:-1], out=kept[1:])
    return numbers[kept]


def _digest(values: pa.Array) -> tuple[int, int, bytes]:
    """Equal digests mean equal arrays. Equal sets of values may have different digests."""
    state = xxhash.xxh3_128()
    for buffer in values.buffers():
        if buffer is not None:
            state.update(memoryview(buffer))
    return len(values), values.offset, state.digest()
