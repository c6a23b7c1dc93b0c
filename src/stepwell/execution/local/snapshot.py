"""Answer simple queries from stored runs without Spark, exactly as Spark would.

A pipeline that is not running is a manifest and the runs it references. Starting Spark takes longer
than reading a few of them. Queries that `sql/simple` reads and `expressions` computes are answered
here:

    rows       of one table or view; several runs are consolidated first
    memory     the needed columns of at most ROWS_MAX rows, or of one file at a time
    order      NULLs as in Spark; equal ranks in any order, as in Spark
    names      of columns as in Spark: count(1), min(amount)

All other queries raise `NotSimple` or `CannotRunError`. This module does not import pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlglot import exp

from stepwell.execution.local.accumulate import WEIGHT
from stepwell.execution.local.expressions import certain
from stepwell.execution.local.output import Output, Rows, Shown, arrow_of
from stepwell.lsm.consolidate import consolidated
from stepwell.lsm.values import comparable
from stepwell.manifest.manifest import Run
from stepwell.plan.nodes import Project, Scan
from stepwell.sql.simple import Item, NotSimple, Order, SimpleQuery

ROWS_MAX = 1_000_000
"""Maximum number of rows in memory; with more, Spark, which uses all cores, is faster."""
FILE_BYTES_MAX = 256 * 1024 * 1024
_FLOATING = ("float", "double")
_STRAYS = 4
"""Rows held, as a multiple of the rows wanted, before those ranked too low are dropped."""

ReadRun = Callable[[Run], Any]
"""Returns the bytes of a run, with their checksum verified."""


def answer(query: SimpleQuery, shown: Shown, runs: Sequence[Run], read: ReadRun) -> pa.Table:
    """The answer, as Spark's `toArrow` would give it. Raises `NotSimple` or `CannotRunError`."""
    with certain():
        return _Answering(query, shown, runs, read).answer()


class _Answering:
    def __init__(
        self, query: SimpleQuery, shown: Shown, runs: Sequence[Run], read: ReadRun
    ) -> None:
        self._query = query
        self._shown = shown
        self._read = read
        self._output = Output(shown)
        self._places = {name.lower(): i for i, name in enumerate(shown.columns)}
        if len(self._places) < len(shown.columns):
            raise NotSimple("columns whose names differ in case only")
        self._items = query.items or tuple(Item(name) for name in shown.columns)
        self._where = None if query.where is None else self._typed_condition(query.where)
        self._order = [self._sorted_by(order) for order in query.order]
        self._runs = [run for run in runs if run.relation == self._output.relation]
        if any(run.size > FILE_BYTES_MAX for run in self._runs):
            raise NotSimple("a large file")

    def answer(self) -> pa.Table:
        if self._query.aggregates:
            return self._aggregated()
        return self._selected()

    # Names in the query

    def _place(self, name: str) -> int:
        place = self._places.get(name.lower())
        if place is None:
            raise NotSimple(f"the column {name}")
        return place

    def _sorted_by(self, order: Order) -> tuple[int, Order]:
        """The column of the relation that an ORDER BY item refers to."""
        titles = [_title(item).lower() for item in self._items]
        if isinstance(order.by, int):
            if not 1 <= order.by <= len(self._items):
                raise NotSimple("ORDER BY a number")
            return self._place(self._items[order.by - 1].column or ""), order
        named = [self._items[i] for i, title in enumerate(titles) if title == order.by.lower()]
        meant = {self._place(item.column or "") for item in named}
        if order.by.lower() in self._places:
            meant.add(self._places[order.by.lower()])
        if len(meant) != 1 or len(named) > 1:
            raise NotSimple(f"ORDER BY {order.by}")
        return meant.pop(), order

    def _typed_condition(self, where: exp.Expr) -> exp.Expr:
        """The condition with strings cast to the date or timestamp they are compared with."""
        where = where.copy()
        for node in list(where.walk()):
            if isinstance(node, exp.Column):
                self._place(node.name)
            if isinstance(node, exp.Between):
                sides = [node.this, node.args["low"], node.args["high"]]
            elif isinstance(node, (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)):
                sides = [node.left, node.right]
            else:
                continue
            kinds = {
                self._shown.types[self._place(side.name)]
                for side in sides
                if isinstance(side, exp.Column)
            }
            if len(kinds) == 1 and kinds <= {"date", "timestamp"}:
                for side in sides:
                    if isinstance(side, exp.Literal) and side.is_string:
                        side.replace(exp.Cast(this=side.copy(), to=exp.DataType.build(min(kinds))))
        return where

    # Reading

    def _rows(self, needed: frozenset[int]) -> Iterator[Rows]:
        """The rows of the relation that satisfy WHERE, with the needed columns only."""
        used = (
            {self._place(c.name) for c in self._where.find_all(exp.Column)} if self._where else {}
        )
        columns = frozenset([*needed, *used])
        for table in self._tables(self._output.needs(columns)):
            rows = self._output.rows(table, columns)
            if self._where is not None:
                rows = rows.where(
                    self._output.expressions.mask_of(self._where, rows.columns, rows.count)
                )
            yield rows

    def _tables(self, places: Sequence[int]) -> Iterator[pa.Table]:
        """Tables of stored rows with positive weights, which together are the relation."""
        if not self._runs:
            yield self._schema(places).empty_table()
            return
        rows = sum(run.rows for run in self._runs)
        if rows > ROWS_MAX:
            if not all(_positive(self._load(run, [])) for run in self._runs):
                raise NotSimple("many rows, some of them retracted")
            for run in self._runs:
                yield self._load(run, places)
            return
        table = pa.concat_tables([self._load(run, places) for run in self._runs])
        if not _positive(table):
            # Some rows were retracted; only whole rows tell which ones.
            if not all(comparable(kind) or kind in _FLOATING for kind in self._shown.stored):
                raise NotSimple("rows that cannot be compared")
            every = list(range(len(self._shown.stored)))
            table = _summed(pa.concat_tables([self._load(run, every) for run in self._runs]))
            if not _positive(table):
                raise NotSimple("a row that does not exist")
        yield table

    def _load(self, run: Run, places: Sequence[int]) -> pa.Table:
        schema = self._schema(places)
        body = pa.BufferReader(self._read(run))
        # If the table's columns have changed since, the run holds the mapping.
        found = [place if run.columns is None else run.columns[place] for place in places]
        there = list(dict.fromkeys(f"c{place}" for place in found if place is not None))
        table = pq.read_table(body, columns=[*there, WEIGHT], page_checksum_verification=True)
        if set(table.column_names) != {*there, WEIGHT}:
            raise NotSimple(f"{run.path} has different columns")
        made = [
            pa.nulls(table.num_rows) if place is None else table.column(f"c{place}")
            for place in found
        ]
        return pa.table([*made, table.column(WEIGHT)], names=schema.names).cast(schema)

    def _schema(self, places: Sequence[int]) -> pa.Schema:
        fields = [pa.field(f"c{i}", arrow_of(self._shown.stored[i])) for i in places]
        return pa.schema([*fields, pa.field(WEIGHT, pa.int64())])

    # Answers

    def _aggregated(self) -> pa.Table:
        places = [None if i.column is None else self._place(i.column) for i in self._items]
        kinds = [None if place is None else self._shown.types[place] for place in places]
        for item, kind in zip(self._items, kinds, strict=True):
            if item.call != "COUNT" and not comparable(kind or ""):
                raise NotSimple(f"{item.call} of {kind}")
        counts = [0] * len(places)
        found: list[list[pa.Scalar]] = [[] for _ in places]
        for rows in self._counted(frozenset(p for p in places if p is not None)):
            for i, (item, place) in enumerate(zip(self._items, places, strict=True)):
                if place is None:
                    counts[i] += _sum(rows.weight)
                    continue
                data = rows.columns[self._shown.columns[place].lower()].column(rows.count)
                if item.call == "COUNT":
                    counts[i] += _sum(rows.weight.filter(pc.is_valid(data)))
                elif rows.count:
                    found[i].append((pc.min if item.call == "MIN" else pc.max)(data))
        arrays, fields = [], []
        for i, (item, kind) in enumerate(zip(self._items, kinds, strict=True)):
            counting = item.call == "COUNT"
            type_ = pa.int64() if counting else arrow_of(kind or "")
            value: Any = counts[i]
            if not counting:
                each = pa.array([scalar.as_py() for scalar in found[i]], type_)
                value = (pc.min if item.call == "MIN" else pc.max)(each).as_py()
            arrays.append(pa.array([value], type_))
            fields.append(pa.field(_title(item), type_, nullable=not counting))
        table = pa.table(arrays, schema=pa.schema(fields))
        limit = self._query.limit
        return table.slice(self._query.offset, 1 if limit is None else limit)

    def _counted(self, needed: frozenset[int]) -> Iterator[Rows]:
        """Like `_rows`, but a plain count needs only the weights, not consolidated rows."""
        output = self._shown.output
        while isinstance(output, Project):
            output = output.input
        if needed or self._where is not None or not isinstance(output, Scan):
            yield from self._rows(needed)
            return
        for run in self._runs:
            yield Rows({}, self._load(run, []).column(WEIGHT))

    def _selected(self) -> pa.Table:
        query = self._query
        places = [self._place(item.column or "") for item in self._items]
        for place in places:
            _check_plain(self._shown.types[place])
        last = None if query.limit is None else query.offset + query.limit
        kept: list[pa.Table] = []
        held = 0
        for rows in self._rows(frozenset([*places, *(place for place, _ in self._order)])):
            table = self._expanded(rows)
            kept.append(table)
            held += table.num_rows
            if last is not None and not self._order and held >= last:
                break
            if last is not None and held > _STRAYS * max(last, ROWS_MAX // 10):
                kept = [self._ranked(pa.concat_tables(kept)).slice(0, last)]
                held = kept[0].num_rows
            if held > ROWS_MAX:
                raise NotSimple("many rows")
        table = self._ranked(pa.concat_tables(kept))
        table = table.slice(query.offset, query.limit)
        fields = [
            pa.field(_title(item), arrow_of(self._shown.types[place]))
            for item, place in zip(self._items, places, strict=True)
        ]
        columns = [table.column(self._shown.columns[place].lower()) for place in places]
        return pa.table(columns, schema=pa.schema(fields))

    def _expanded(self, rows: Rows) -> pa.Table:
        """Repeat each row as often as its weight says."""
        columns = {name: value.column(rows.count) for name, value in rows.columns.items()}
        weights = rows.weight.to_numpy()
        # Cap the weight of a row at the number of rows requested: it may be a million.
        limit, offset = self._query.limit, self._query.offset
        most = ROWS_MAX if limit is None else max(ROWS_MAX, rows.count)
        weights = np.minimum(weights, most + 1 if limit is None else min(offset + limit, most + 1))
        if int(weights.sum()) > most:
            raise NotSimple("many rows")
        table = pa.table(columns)
        if (weights == 1).all():
            return table
        return table.take(pa.array(np.repeat(np.arange(rows.count), weights)))

    def _ranked(self, table: pa.Table) -> pa.Table:
        if not self._order or not table.num_rows:
            return table
        keys: list[tuple[str, str]] = []
        columns: dict[str, Any] = {}
        for number, (place, order) in enumerate(self._order):
            kind = self._shown.types[place]
            data = table.column(self._shown.columns[place].lower())
            if kind in _FLOATING:
                if pc.any(pc.is_nan(data)).as_py():
                    raise NotSimple("an order with NaN")
            elif not comparable(kind):
                raise NotSimple(f"an order by {kind}")
            if pa.types.is_boolean(data.type):
                data = data.cast(pa.int8())
            columns[f"n{number}"] = pc.is_null(data).cast(pa.int8())
            columns[f"v{number}"] = data
            keys.append((f"n{number}", "descending" if order.nulls_first else "ascending"))
            keys.append((f"v{number}", "descending" if order.descending else "ascending"))
        return table.take(pc.sort_indices(pa.table(columns), sort_keys=keys))


def _title(item: Item) -> str:
    """Spark's name for a column of the answer."""
    if item.alias is not None:
        return item.alias
    if item.call is None:
        return item.column or ""
    return f"{item.call.lower()}({item.column or 1})"


def _summed(table: pa.Table) -> pa.Table:
    """Consolidate the rows of several runs. Floating-point numbers are compared by their bits,
    after equal ones are given equal bits: one NaN, and zero without a sign."""
    names = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    kinds = {name: table.schema.field(name).type for name in names}
    for name in names:
        table = table.set_column(
            table.column_names.index(name), name, _bits(table.column(name).combine_chunks())
        )
    table = consolidated(table)
    for name in names:
        column = table.column(name).combine_chunks()
        numbers = column.fill_null(0).to_numpy().view(kinds[name].to_pandas_dtype())
        table = table.set_column(
            table.column_names.index(name), name, pa.array(numbers, mask=_nulls(column))
        )
    return table


def _bits(column: Any) -> pa.Array:
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False) + 0.0
    numbers = np.where(np.isnan(numbers), np.nan, numbers).astype(array.type.to_pandas_dtype())
    whole = np.int64 if pa.types.is_float64(array.type) else np.int32
    return pa.array(numbers.view(whole), mask=_nulls(array))


def _nulls(column: Any) -> Any:
    return column.is_null().to_numpy(zero_copy_only=False)


def _positive(table: pa.Table) -> bool:
    return not table.num_rows or pc.min(table.column(WEIGHT)).as_py() > 0


def _sum(weights: pa.ChunkedArray) -> int:
    return pc.sum(weights).as_py() or 0


def _check_plain(type_: str) -> None:
    if type_ not in _FLOATING and not comparable(type_):
        raise NotSimple(f"a value of type {type_}")
