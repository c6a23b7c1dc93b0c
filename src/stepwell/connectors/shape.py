"""The shape of a table's rows: its columns with their Arrow types, key and defaults.

A shape is created once per source from the table's declaration. Only `row_of` defines what a record
must hold; the vectorized `columns.py` accepts nothing that `row_of` would not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stepwell.connectors.values import Unfit, fit, read_text
from stepwell.lsm.arrow_types import arrow_type
from stepwell.plan.types import SparkType, parse_type
from stepwell.sql.statements import Table, fold
from stepwell.text import string_value

Row = list[object]


@dataclass(frozen=True, slots=True)
class ShapeColumn:
    name: str
    kind: SparkType
    arrow: pa.DataType
    nullable: bool
    default: str | None

    def missing(self) -> object:
        """The value of this column in a row that omits it."""
        value = None if self.default is None else _literal(self.default, self)
        if value is None and not self.nullable:
            raise Unfit(f"the column {self.name} is missing")
        return value


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as a source sees it."""

    table: str
    columns: tuple[ShapeColumn, ...]
    key: tuple[int, ...]
    places: Mapping[str, int]
    """The index of each column, by its name in the form in which names are compared."""
    ignore_unknown: bool
    schema: pa.Schema

    def wanted(self, put: bool) -> Sequence[int]:
        """The columns that an operation needs: a delete by key only needs the key."""
        return range(len(self.columns)) if put or not self.key else self.key

    def row_of(self, record: object, *, put: bool = True) -> Row:
        """The row in a record; raises `Unfit` if it is invalid. Unneeded columns are None.

        A missing column takes its default; a null is NULL.
        """
        if not isinstance(record, Mapping):
            raise Unfit("not an object with the columns of a row")
        given: dict[int, object] = {}
        for name, value in record.items():
            place = self.places.get(fold(str(name)))
            if place is not None:
                given[place] = value
            elif not self.ignore_unknown:
                raise Unfit(f"{self.table} has no column {name}")
        row: Row = [None] * len(self.columns)
        for place in self.wanted(put):
            row[place] = self._value(self.columns[place], given, place)
        return row

    def _value(self, column: ShapeColumn, given: Mapping[int, object], place: int) -> object:
        if place not in given:
            return column.missing()
        value = given[place]
        try:
            if isinstance(value, Text):
                made = read_text(value.text, column.kind)
            else:
                made = fit(value, column.kind)
        except Unfit as unfit:
            raise Unfit(f"{column.name}: {unfit}") from None
        if made is None and not column.nullable:
            raise Unfit(f"the column {column.name} is NULL")
        return made


@dataclass(frozen=True, slots=True)
class Text:
    """A value of which only the text is known, such as a field of a CSV file."""

    text: str


def shape_of(table: Table, *, ignore_unknown: bool = False) -> Shape:
    """The shape of a declared table; raises `ConfigError` if a column's type is not supported."""
    columns = []
    for column in table.columns:
        kind = parse_type(column.type)
        columns.append(
            ShapeColumn(column.name, kind, arrow_type(kind), column.nullable, column.default)
        )
    places = {fold(column.name): i for i, column in enumerate(columns)}
    schema = pa.schema([pa.field(c.name, c.arrow) for c in columns])
    key = tuple(places[fold(name)] for name in table.key)
    return Shape(table.name, tuple(columns), key, places, ignore_unknown, schema)


_TYPED_LITERAL = re.compile(r"(?i)(?:date|timestamp|timestamp_ntz)\s*(?=['\"])")
_QUOTED = re.compile(r"(?s)'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"")


def _literal(text: str, column: ShapeColumn) -> object:
    """The value of a DEFAULT literal. Only Spark could compute any other expression."""
    text = _TYPED_LITERAL.sub("", text.strip())
    if text.upper() == "NULL":
        return None
    try:
        if _QUOTED.fullmatch(text):
            return read_text(string_value(text), column.kind)
        if column.kind.name not in ("string", "varchar", "char", "binary"):
            return read_text(text.replace(" ", ""), column.kind)
    except Unfit:
        pass
    raise Unfit(f"the column {column.name} is missing, and its default is not a literal: {text}")
