"""An executor in plain Python: tables are counters, and views are always recomputed.

It stands in for Spark in tests and simulations. Its results must be easy to trust, so nothing in it
is incremental: after every transaction it evaluates each view over the tables, and the change set
is the difference. Its storage is that of the other executors (`lsm/storage`), and `load` sums the
runs. Views are not stored, because tables determine them.

How a change is applied to a table (`_normalise`) and which values are equal (`spark_values.clean`)
are written a second time here, in plain Python, on purpose: tests compare this executor with the
others, which share `local/table_changes` and `lsm/values`, and would not see a mistake in code that
all of them share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import pyarrow as pa
from sqlglot import exp

from stepwell.env import Env
from stepwell.errors import InvalidError
from stepwell.execution.executor import Executed, Report, Starting, not_reported
from stepwell.execution.reference.bags import Bag, Row, minus, plus, present
from stepwell.execution.reference.evaluate import evaluate
from stepwell.execution.reference.spark_values import clean
from stepwell.lsm.arrow_types import arrow_schema, arrow_type
from stepwell.lsm.change import WEIGHT, Change, PartName, Rejected
from stepwell.lsm.dead_letter import ERRORS, LETTER, LETTER_TYPES, Letters, letters_of
from stepwell.lsm.fold import check_discards
from stepwell.lsm.folder_runs import FolderRuns
from stepwell.lsm.limits import MemoryLimits
from stepwell.lsm.part import Part, Relation
from stepwell.lsm.relations import Relations
from stepwell.lsm.scratch import Scratch
from stepwell.lsm.storage import RelationStorage
from stepwell.lsm.table_diff import Pieces
from stepwell.lsm.tiering import like_sized
from stepwell.manifest.manifest import Run
from stepwell.plan.nodes import Node
from stepwell.plan.reasons import about
from stepwell.plan.types import parse_type, stored_type
from stepwell.sql.catalog import Catalog, catalog_of
from stepwell.sql.lineage import Bound, Columns
from stepwell.sql.parse import parse_query, read
from stepwell.sql.statements import MaterializedView, Table, View, parse_statements
from stepwell.store.base import Store
from stepwell.text import Source as Text


@dataclass(frozen=True, slots=True)
class _Pending:
    """The change of the tables, and the new contents of the views."""

    deltas: Mapping[str, Bag]
    views: Mapping[str, Bag]


class ReferenceExecutor:
    """Implements `Executor`. Not safe to use from several threads."""

    def __init__(
        self, sql: str, store: Store, env: Env, limits: MemoryLimits | None = None
    ) -> None:
        self._program = _compile(sql)
        runs = FolderRuns(Scratch("stepwell-reference-"), env)
        self._relations = Relations(runs, limits=limits)
        for table in self._program.tables.values():
            for relation in _stored_relations(table):
                self._relations.add(relation)
        # By their number alone: tests write few rows, and need relations of several runs.
        self._storage = RelationStorage(self._relations, runs, store, env, tiering=like_sized)
        self._rows: dict[str, Bag] = {}
        self._views: dict[str, Bag] = {}
        self._report: Report = not_reported
        self.load(())

    def tables(self) -> Mapping[str, tuple[str, ...]]:
        return {table.name: table.key for table in self._program.tables.values()}

    # Computing

    def report_to(self, report: Report) -> None:
        """Report progress to this function from now on."""
        self._report = report

    def execute(
        self,
        changes: Mapping[str, Change],
        time: datetime,
        letters: Letters | None = None,
    ) -> Executed:
        deltas: dict[str, Bag] = {}
        rejected: list[Rejected] = []
        for name, change in changes.items():
            table = self._table(name)
            delta, refused = _normalise(table, change, self._rows[table.name])
            deltas[table.name] = delta
            rejected += refused
        for name, told in (letters or letters_of(changes, time))(rejected).items():
            errors = deltas.setdefault(self._table(name).name + ERRORS, Counter())
            errors.update(tuple(map(_value, letter)) for letter in told)
        views = self._evaluate(
            {n: plus(rows, deltas.get(n, Counter())) for n, rows in self._rows.items()}
        )
        moved = {name: plus(rows, minus(self._views[name])) for name, rows in views.items()}
        return Executed(
            changes={name: self._change(name, change) for name, change in moved.items() if change},
            rejected=tuple(rejected),
            recomputed=tuple(name for name, change in moved.items() if change),
            pending=_Pending(deltas, views),
        )

    def apply(self, executed: Executed) -> None:
        pending = executed.pending
        if not isinstance(pending, _Pending):
            raise InvalidError("this was executed by another executor")
        self._storage.end_flush()
        for name, delta in pending.deltas.items():
            self._add(name, delta)
        self._views = dict(pending.views)

    def _add(self, name: str, delta: Bag) -> None:
        if delta:
            self._rows[name] = plus(self._rows[name], delta)
            rows = _weighted_rows(self._relations[name].types, delta)
            self._relations.append(name, self._relations.taken_in(name, rows))

    def _evaluate(self, rows: Mapping[str, Bag]) -> dict[str, Bag]:
        relations = dict(rows)
        for number, (name, view) in enumerate(self._program.views.items(), 1):
            with about(name):
                relations[name] = Counter(evaluate(view.node, relations))
            self._report("computing", number, len(self._program.views), "view")
        return {name: relations[name] for name in self._program.views}

    def _change(self, view: str, change: Bag) -> pa.Table:
        columns = self._program.views[view].columns
        rows = sorted(change.items(), key=lambda item: (repr(item[0]), item[1]))
        table = _arrow(columns, [row for row, _ in rows], None)
        return table.append_column(WEIGHT, pa.array([weight for _, weight in rows], pa.int64()))

    def _table(self, name: str) -> Table:
        for table in self._program.tables.values():
            if table.name.lower() == name.lower():
                return table
        raise InvalidError(f"there is no table {name}")

    # Storing

    def unflushed_bytes(self) -> int:
        return self._storage.unflushed_bytes()

    def background_task(self) -> None:
        return None

    def id_floor(self) -> str | None:
        return None

    def compact(self, *, own: bool = False) -> None:
        self._storage.compact(own=own, report=self._report)

    def flush(self) -> tuple[Run, ...]:
        return self._storage.flush()

    def described(self) -> None:
        """Return None: only tables are stored, without transformation."""

    def on_flushed(self, runs: Sequence[Run]) -> None:
        self._storage.on_flushed()

    def load(self, runs: Sequence[Run], described: str | None = None) -> None:
        self._storage.load(runs, self._report)
        self._rows = {relation.name: self._bag(relation.parts) for relation in self._relations}
        self._views = self._evaluate(self._rows)

    def _bag(self, parts: Sequence[Part]) -> Bag:
        bag: Bag = Counter()
        for part in parts:
            *columns, weights = self._relations.table(part).columns
            for row, weight in zip(_rows(columns), weights.to_pylist(), strict=True):
                bag[row] += weight
        return present(bag)

    def relations(self) -> Mapping[str, str]:
        return {n: t for t in self._program.tables for n in (t, t + ERRORS)}

    def build(self, views: Sequence[str], starting: Starting = lambda view: None) -> None:
        """Only tell: views are not stored, and `load` has computed them all."""
        for view in views:
            starting(view)

    def fill(self, table: str, rows: pa.Table) -> tuple[Rejected, ...]:
        name = self._table(table).name
        delta, rejected = _normalise(self._table(table), Change(put=rows), self._rows[name])
        self._add(name, delta)
        self._views = self._evaluate(self._rows)
        return tuple(rejected)

    def bound(self, view: str, tables: Mapping[str, Columns]) -> Bound | None:
        """Always the same answer: views are not stored, so no stored state can be wrong."""
        return Bound("recomputed", frozenset())

    # Reading

    def read(self, relation: str) -> pa.Table:
        for name, rows in (*self._rows.items(), *self._views.items()):
            if name.lower() == relation.lower():
                columns, types = self._columns(name)
                listed = sorted(rows.elements(), key=repr)
                return _arrow(columns, listed, types)
        raise InvalidError(f"there is no table or view {relation}")

    def pieces(self, relation: str, rows_max: int) -> Pieces:
        table = self.read(relation)
        starts = range(0, table.num_rows, rows_max)
        slices = [table.slice(start, rows_max) for start in starts]
        inferred = relation.lower() in {view.lower() for view in self._program.views}
        return Pieces(table.schema, table.num_rows, slices, inferred)

    def query(self, sql: str) -> pa.Table:
        letters = {table + ERRORS: LETTER for table in self._program.tables}
        catalog = {**self._program.catalog, **catalog_of(letters, {})}
        parsed = parse_query(sql, catalog)
        found = Counter(evaluate(parsed.node, {**self._rows, **self._views}))
        names = [item.alias_or_name for item in read(sql, catalog).selects]
        return _arrow(tuple(names), sorted(found.elements(), key=repr), None)

    def _columns(self, name: str) -> tuple[tuple[str, ...], tuple[pa.DataType, ...] | None]:
        if name in self._program.views:
            return self._program.views[name].columns, None
        if name.endswith(ERRORS):
            return LETTER, tuple(map(_arrow_type, LETTER_TYPES))
        table = self._program.tables[name]
        return tuple(c.name for c in table.columns), _types(table)


# Compilation


@dataclass(frozen=True, slots=True)
class _View:
    node: Node
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Program:
    tables: Mapping[str, Table]
    views: Mapping[str, _View]
    catalog: Catalog


@lru_cache(maxsize=100)
def _compile(sql: str) -> _Program:
    tables: dict[str, Table] = {}
    views: dict[str, _View] = {}
    stored: dict[str, list[str]] = {}
    defined: dict[str, tuple[exp.Query, tuple[str, ...]]] = {}
    catalog = catalog_of({}, {})
    for statement in parse_statements(Text("pipeline.sql", sql)):
        with about(statement.name):
            if isinstance(statement, Table):
                tables[statement.name] = statement
                stored[statement.name] = [column.name for column in statement.columns]
            else:
                tree = read(statement.query, catalog)
                names = statement.columns or tuple(item.alias_or_name for item in tree.selects)
                if isinstance(statement, View):
                    defined[statement.name] = (tree, names)
                elif isinstance(statement, MaterializedView):
                    node = parse_query(statement.query, catalog).node
                    views[statement.name] = _View(node, names)
                    stored[statement.name] = list(names)
        catalog = catalog_of(stored, defined)
    return _Program(tables, views, catalog)


def _stored_relations(table: Table) -> tuple[Relation, Relation]:
    names = [column.name.lower() for column in table.columns]
    types = tuple(stored_type(column.type) for column in table.columns)
    key = tuple(names.index(name.lower()) for name in table.key)
    return Relation(table.name, types, key), Relation(table.name + ERRORS, LETTER_TYPES, ())


# Incoming rows


def _normalise(table: Table, change: Change, there: Bag) -> tuple[Bag, list[Rejected]]:
    """The change set of a table for a change, and the rejected rows."""
    rejected: list[Rejected] = []
    delta: Bag = Counter()
    columns = tuple(column.name for column in table.columns)
    key = [columns.index(name) for name in table.key]
    by_key = {tuple(row[i] for i in key): row for row in there} if key else {}
    check_discards(table.name, key, change)
    for _, row in _given(table, change, "discard", table.key, rejected):
        old = by_key.pop(row, None)
        if old is not None:
            delta[old] -= 1
    for at, row in _given(table, change, "delete", table.key or columns, rejected):
        if key:
            old = by_key.pop(row, None)
        else:
            old = row if there[row] + delta[row] > 0 else None
        if old is None:
            what = "key" if key else "row"
            reason = f"delete of a {what} that is not there"
            rejected.append(Rejected(table.name, row, reason, "delete", at))
        else:
            delta[old] -= 1
    for _, row in _given(table, change, "put", columns, rejected):
        if key:
            old = by_key.get(tuple(row[i] for i in key))
            if old is not None:
                delta[old] -= 1
            by_key[tuple(row[i] for i in key)] = row
        delta[row] += 1
    return plus(delta, Counter()), rejected


def _given(
    table: Table,
    change: Change,
    part: PartName,
    wanted: tuple[str, ...],
    rejected: list[Rejected],
) -> list[tuple[int, Row]]:
    """The rows of a part with their positions, restricted to the wanted columns and typed. Rows
    that do not fit are rejected one by one (J13)."""
    rows: pa.Table | None = getattr(change, part)
    if rows is None or not rows.num_rows:
        return []
    places = {name.lower(): place for place, name in enumerate(rows.column_names)}
    unknown = set(places) - {column.name.lower() for column in table.columns}
    if unknown:
        raise InvalidError(
            f"{table.name} has no column {min(unknown)}",
            hint="its columns are: " + ", ".join(column.name for column in table.columns),
        )
    declared = {column.name: column for column in table.columns}
    made = []
    for name in wanted:
        place = places.get(name.lower())
        values = [None] * rows.num_rows if place is None else rows.column(place).to_pylist()
        made.append(values)
    taken = []
    for at, raw in enumerate(zip(*made, strict=True)):
        row: list[object] = []
        for name, value in zip(wanted, raw, strict=True):
            column = declared[name]
            if value is None and not column.nullable:
                rejected.append(Rejected(table.name, raw, f"{name} is NULL", part, at))
                break
            try:
                row.append(_fit(value, column.type))
            except (pa.ArrowException, ValueError, TypeError) as error:
                reason = f"{name} is not {column.type}: {error}"
                rejected.append(Rejected(table.name, raw, reason, part, at))
                break
        else:
            taken.append((at, clean(tuple(row))))
    return taken


def _fit(value: object, type_: str) -> object:
    if value is None:
        return None
    return _value(pa.scalar(value, _arrow_type(type_)).as_py())


# Conversion to Arrow and back


def _types(table: Table) -> tuple[pa.DataType, ...]:
    return tuple(_arrow_type(column.type) for column in table.columns)


def _arrow_type(type_: str) -> pa.DataType:
    found = parse_type(type_)
    if any(part.name in ("map", "struct") for part in found.walk()):
        raise InvalidError(f"the reference executor does not know the type {found}")
    return arrow_type(found)


def _arrow(
    columns: tuple[str, ...], rows: Sequence[Row], types: tuple[pa.DataType, ...] | None
) -> pa.Table:
    arrays = []
    for place in range(len(columns)):
        values = [_plain(row[place]) for row in rows]
        arrays.append(pa.array(values, None if types is None else types[place]))
    return pa.table(arrays, names=list(columns))


def _weighted_rows(types: tuple[str, ...], rows: Bag) -> pa.Table:
    """A bag as rows of a stored relation with columns of these types."""
    schema = arrow_schema(types)
    columns = [*zip(*rows, strict=True), tuple(rows.values())]
    arrays = [
        pa.array(map(_plain, values), field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _rows(columns: Sequence[pa.ChunkedArray]) -> list[Row]:
    values = [[_value(value) for value in column.to_pylist()] for column in columns]
    return [clean(row) for row in zip(*values, strict=True)]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _value(value: object) -> object:
    """The reference backend represents timestamps without a time zone, in UTC."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value
