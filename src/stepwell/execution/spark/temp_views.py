"""Tables and views as temporary views under their own names, while Spark answers a text.

Each temporary view of our session is recreated for every text that names it. Tables and views that
a text does not name are not refreshed, so the session may show them in an earlier state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from stepwell.execution.spark.evaluate import Evaluator
from stepwell.execution.spark.frames import Frames
from stepwell.lsm.part import Part
from stepwell.lsm.relations import Relations
from stepwell.plan.nodes import Leaf, Node, When
from stepwell.plan.program import Program
from stepwell.plan.render import bag
from stepwell.sql.clock import at_time
from stepwell.sql.statements import Table, View
from stepwell.text import Source, Token, quote_name, unquote_name


class TempViews:
    def __init__(
        self, spark: SparkSession, relations: Relations, frames: Frames, evaluator: Evaluator
    ) -> None:
        self._spark = spark
        self._relations = relations
        self._frames = frames
        self._evaluator = evaluator
        self.tables: dict[str, Table] = {}
        self.views: dict[str, Program | View] = {}
        """In the order in which they were declared."""
        self.defined: dict[str, tuple[View, tuple[str, ...]]] = {}
        """Views that are not stored, with the names of their columns."""

    def empty(self, name: str, columns: Sequence[str], types: tuple[str, ...]) -> None:
        """Register a table or view without its rows.

        Spark must not know that it is empty, or it would plan queries with different meanings
        alike, as an empty result.
        """
        typed = zip(columns, types, strict=True)
        items = ", ".join(f"{quoted(column)} {kind}" for column, kind in typed)
        schema = self._spark._jsparkSession.parseDataType(StructType.fromDDL(items).json())
        rows = self._spark.sparkContext._jsc.emptyRDD()
        frame = DataFrame(self._spark._jsparkSession.createDataFrame(rows, schema), self._spark)
        frame.createOrReplaceTempView(quoted(name))

    def named_in(self, text: str, time: datetime, deltas: Mapping[str, Part]) -> None:
        """Register the tables and views that a text names, as they are after the changes."""
        self._evaluator.usual()
        named = self._names(text)
        for table in (table for name, table in self.tables.items() if name in named):
            plain = self._frames.plain_rows(self._relations[table.name], deltas.get(table.name))
            if plain is not None:
                plain.toDF(*titles(table)).createOrReplaceTempView(quoted(table.name))
                continue
            columns = self._evaluator.names.several(len(table.columns))
            when = When.NEW if table.name in deltas else When.OLD
            self.rows(table.name, Leaf(table.name, columns, when), titles(table), deltas)
        for name, made in self.views.items():
            if name not in named:
                continue
            if isinstance(made, Program):
                node = self._evaluator.after(made.output, deltas)
                self.rows(made.view, node, made.columns, deltas)
            else:
                view, columns = self.defined[name]
                frame = self._spark.sql(at_time(view.query, time)).toDF(*columns)
                frame.createOrReplaceTempView(quoted(view.name))

    def rows(
        self, name: str, node: Node, columns: Sequence[str], deltas: Mapping[str, Part]
    ) -> None:
        frame = self._spark.sql(bag(node, self._evaluator.table(deltas)))
        frame.toDF(*columns).createOrReplaceTempView(quoted(name))

    def _names(self, text: str) -> set[str]:
        """The tables and views that a text may name, directly or through views."""
        named: set[str] = set()
        texts = [text]
        for text in texts:
            words = {spelled(token) for token in Source("query", text).tokens()}
            # IDENTIFIER() turns any text into a name, so any table or view may be meant.
            every = "identifier" in words
            for name in {*self.tables, *self.views} - named:
                if every or name in words:
                    named.add(name)
                    if name in self.defined:
                        texts.append(self.defined[name][0].query)
        return named


def spelled(token: Token) -> str:
    """The name that a token may be, in lower case. A setting makes names of texts in quotes."""
    text = token.text[1:-1] if token.kind == "string" else unquote_name(token.text)
    return text.lower()


def titles(table: Table) -> list[str]:
    return [column.name for column in table.columns]


quoted = quote_name
