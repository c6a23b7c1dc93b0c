"""Stored relations: runs of Parquet and change sets in memory, shown to Spark as tables.

A relation is the sum of its parts. A part is immutable: an Arrow table in this process, or a folder
of Parquet files. All parts have the columns c0, c1, ... and w, how often a row is there; rows of
several parts cancel out, and are summed up only by whoever needs them whole.

Small parts are folded into one now and then, so that a query never has many of them to read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from stepwell.errors import ensure

WEIGHT = "w"
_PARTS_MAX = 6
"""Parts in memory before they are folded into one. Each costs a plan node in every query."""


@dataclass(frozen=True, slots=True)
class Part:
    """One immutable piece of a relation."""

    frame: DataFrame
    rows: int
    table: pa.Table | None = None
    """The rows, if they are in memory."""
    path: Path | None = None


@dataclass(slots=True)
class Relation:
    """A stored relation of one pipeline."""

    name: str
    types: tuple[str, ...]
    key: tuple[int, ...]
    parts: list[Part] = field(default_factory=list)

    @property
    def schema(self) -> StructType:
        return schema_of(self.types)

    @property
    def rows(self) -> int:
        """How many rows its parts hold; more than the relation has, if some cancel out."""
        return sum(part.rows for part in self.parts)


class Relations:
    """All relations of a pipeline, and the names under which Spark finds them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._all: dict[str, Relation] = {}
        self._shown: dict[str, object] = {}

    def add(self, relation: Relation) -> None:
        self._all[relation.name] = relation

    def drop(self, name: str) -> None:
        self._all.pop(name, None)

    def __getitem__(self, name: str) -> Relation:
        return self._all[name]

    def __contains__(self, name: str) -> bool:
        return name in self._all

    def __iter__(self) -> object:
        return iter(self._all.values())

    def rows(self) -> dict[str, int]:
        return {name: relation.rows for name, relation in self._all.items()}

    def append(self, name: str, table: pa.Table) -> None:
        """Add a change set to a relation."""
        relation = self._all[name]
        if not table.num_rows:
            return
        # Queries differ in what they say cannot be NULL; stored it is all one.
        table = table.cast(arrow_schema(relation.types))
        part = Part(self.frame(table, relation.types), table.num_rows, table)
        parts = [*relation.parts, part]
        small = [p for p in parts if p.table is not None]
        if len(small) > _PARTS_MAX:
            folded = pa.concat_tables([p.table for p in small])
            rest = [p for p in parts if p.table is None]
            parts = [*rest, Part(self.frame(folded, relation.types), folded.num_rows, folded)]
        relation.parts = parts

    def append_files(self, name: str, path: Path, rows: int) -> None:
        """Add a folder of Parquet files to a relation."""
        relation = self._all[name]
        frame = self._spark.read.schema(relation.schema).parquet(str(path))
        relation.parts = [*relation.parts, Part(frame, rows, path=path)]

    def frame(self, table: pa.Table, types: Sequence[str]) -> DataFrame:
        """An Arrow table with these types and a weight, as a DataFrame."""
        return self._spark.createDataFrame(table, schema=schema_of(tuple(types)))

    def old(self, name: str) -> str:
        """The table that shows a relation as it is stored."""
        relation = self._all[name]
        shown = view_name(name, "old")
        version = tuple(id(part) for part in relation.parts)
        if self._shown.get(shown) != (version, relation.types):
            self._union(relation).createOrReplaceTempView(f"`{shown}`")
            self._shown[shown] = (version, relation.types)
        return f"`{shown}`"

    def show(self, name: str, table: pa.Table) -> str:
        """The table that shows a change set."""
        shown = view_name(name, "delta")
        relation = self._all.get(name)
        if relation is not None:
            frame = self.frame(table, relation.types)
        else:  # The result of a stage, whose types Arrow keeps.
            frame = self._spark.createDataFrame(table)
        frame.createOrReplaceTempView(f"`{shown}`")
        return f"`{shown}`"

    def show_empty(self, name: str, types: Sequence[str]) -> str:
        shown = view_name(name, "empty")
        if self._shown.get(shown) != tuple(types):
            self._empty(tuple(types)).createOrReplaceTempView(f"`{shown}`")
            self._shown[shown] = tuple(types)
        return f"`{shown}`"

    def _empty(self, types: tuple[str, ...]) -> DataFrame:
        columns = ", ".join(f"CAST(NULL AS {t}) AS c{i}" for i, t in enumerate(types))
        return self._spark.sql(f"SELECT {columns}, 1L AS w WHERE FALSE")

    def _union(self, relation: Relation) -> DataFrame:
        if not relation.parts:
            return self._empty(relation.types)
        frame = relation.parts[0].frame
        for part in relation.parts[1:]:
            frame = frame.unionAll(part.frame)
        return frame


def view_name(name: str, kind: str) -> str:
    """No table of a user is called like this: `$` is not allowed in their names."""
    return f"$stepwell${kind}${name}".replace("`", "``")


def stored_type(type_: str) -> str:
    """VARCHAR is stored as what Spark computes with: strings."""
    return re.sub(r"\bvarchar\(\d+\)", "string", type_)


def schema_table(types: Sequence[str]) -> pa.Table:
    """An empty change set."""
    return arrow_schema(tuple(types)).empty_table()


@lru_cache(maxsize=10_000)
def schema_of(types: tuple[str, ...]) -> StructType:
    """The schema of a part."""
    columns = [f"c{i} {kind}" for i, kind in enumerate(types)]
    schema = StructType.fromDDL(", ".join([*columns, f"{WEIGHT} BIGINT"]))
    ensure(isinstance(schema, StructType), "a list of columns is a struct")
    return cast(StructType, schema)


@lru_cache(maxsize=10_000)
def arrow_schema(types: tuple[str, ...]) -> pa.Schema:
    """The same for Arrow. Moments are kept in UTC, whatever a session shows them in."""
    return to_arrow_schema(schema_of(types), timezone="UTC")
