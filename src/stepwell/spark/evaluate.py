"""Plans of the algebra, run: as one Spark query each, over as few rows as can be.

A plan first meets what can be looked up and joined here (`query/reduce`, `flatten`). What is left
goes to Spark as SQL. If that is a few rows, Spark is told not to compile and not to spread them; a
result that may be large is written by Spark, and never passes through this process. One that was
taken for small is only fetched as far as it is: if it goes on, it is asked for again, and written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stepwell.query.algebra import Leaf, Names, Node, When, Window, walk
from stepwell.query.maintain import STAGE, Maintenance
from stepwell.query.order import Estimates
from stepwell.query.program import Block, may_depend_on_order
from stepwell.query.reduce import reduced
from stepwell.query.render import render
from stepwell.query.sums import Accumulator
from stepwell.spark.constants import constants
from stepwell.spark.exact import Computing, Unknown
from stepwell.spark.failures import translated
from stepwell.spark.finder import LookUps
from stepwell.spark.flatten import flattened
from stepwell.spark.index import Indexes
from stepwell.spark.linear import Linear, from_lookups
from stepwell.spark.relations import Part, Relations, arrow_schema, nothing, type_of
from stepwell.spark.row_order import in_fixed_order
from stepwell.spark.runs import WEIGHT

SMALL_ROWS_MAX = 50_000
"""So few rows Spark computes with sooner than it has made Java code and tasks for them."""
COLLECT_ROWS_MAX = 200_000
"""What may have more rows than this is written by Spark."""
COLLECT_GROUPS_MAX = 1_000_000
"""Groups are guessed high, and a row of sums is small: as a rule there are far fewer of them."""
ADDED = f"{STAGE}0"
"""What a change adds to sums."""
WRITTEN_ROWS = 10_000_000
"""What is said of a result of which is known only that it is larger than was thought."""
_ROW_OF_TASK = "(monotonically_increasing_id() & 8589934591)"
"""Which row of those that one task gives; the bits above are the task's number."""
_TOO_LARGE = "spark.driver.maxResultSize"
"""Named by Spark when it does not fetch a result, because it has too many bytes."""
_DECIMALS = (
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.legacy.literal.pickMinimumPrecision",
)
"""What says how many digits a result has."""
SQL_LENGTH_MAX = 100_000
"""Of a query that brings a block up to date. Spark was seen to take 4 to 7 s to make a plan of half
as much text. What would need more, as when all tables of a view with many joins change at once and
none of them can be looked into, is computed anew."""
TASK_ROWS = 3_000_000
"""Of a large relation, so many rows go to one task; it would have to sort more of them on disk."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    _PARTITIONS: "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    # Nothing has to be sent to where everything is already.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """How much a plan reads."""

    scanned: int = 0
    """Rows that Spark reads from files."""
    held: int = 0
    """Rows that are in memory."""

    @property
    def small(self) -> bool:
        return not self.scanned and self.held <= SMALL_ROWS_MAX


MUCH = Reading(held=SMALL_ROWS_MAX + 1)
"""When nobody knows."""


class TooLargeError(Exception):
    """A query that is not worth asking Spark for."""


class Evaluator:
    def __init__(
        self,
        spark: SparkSession,
        relations: Relations,
        indexes: Indexes,
        unique: Callable[[], Mapping[str, tuple[int, ...]]],
    ) -> None:
        self._spark = spark
        self._relations = relations
        self._indexes = indexes
        self._unique = unique
        # Of what maintenance adds to the nodes of a view, whose names begin with _c.
        self.names = Names(prefix="_m")
        usual = all(spark.conf.get(key, "true") == "true" for key in _DECIMALS)
        self._computing = Computing(constants(spark), decimals=usual)
        self._own = {key: spark.conf.get(key, None) for key in _SMALL}
        self._set = dict(self._own)
        """What was last set, so that it is not set again."""
        self._bounded = True
        self._in_order = False
        self.queries = 0
        self.rows_read = 0

    @property
    def jobs(self) -> int:
        """How many jobs this Spark has begun so far, whoever asked for them.

        The scheduler's own count: Spark's public ones run behind, as listeners do.
        """
        return int(self._spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())

    def maintenance(self, deltas: Mapping[str, Part]) -> Maintenance:
        return Maintenance(self.names, frozenset(deltas), self._estimates(deltas))

    def _estimates(self, deltas: Mapping[str, Part]) -> Estimates:
        return Estimates(
            self._relations.rows(),
            {name: delta.rows for name, delta in deltas.items()},
            self._unique(),
        )

    def table(
        self, deltas: Mapping[str, Part], lookups: LookUps | None = None
    ) -> Callable[[str, When], str]:
        def table(relation: str, when: When) -> str:
            if lookups is not None and relation in lookups.found:
                found = lookups.found[relation]
                part = found.old if when is When.OLD else found.delta
                if part is None:
                    return nothing(found.types)
                return self._relations.delta(f"{relation}${when.value}", part)
            if when is When.OLD:
                return self._relations.old(relation)
            delta = deltas.get(relation)
            if delta is None:
                return nothing(self._relations[relation].types)
            return self._relations.delta(relation, delta)

        return table

    def part(
        self, relation: str, node: Node, deltas: Mapping[str, Part], most: int | None = None
    ) -> Part:
        """Run a query and keep its result: columns c0, c1, ... and w.

        What may have more rows than `most` is written by Spark.
        """
        reduced = self.reduced(node, deltas)
        with suppress(Unknown):
            known = self._relations[relation].types if relation in self._relations else None
            table, types = self._linear(reduced[1]).changes(reduced[0], known)
            if known is not None:
                return self._relations.in_memory(relation, table)
            return Part(types, table.num_rows, table.cast(arrow_schema(types)))
        return self.part_of(relation, *reduced, deltas, most)

    def part_of(
        self,
        relation: str,
        node: Node,
        lookups: LookUps,
        reading: Reading,
        deltas: Mapping[str, Part],
        most: int | None = None,
    ) -> Part:
        """The same for a plan that has been reduced."""
        sql = render(node, self.table(deltas, lookups), single=reading.small).sql
        self.check_size(sql)
        return self.result(relation, sql, self.rows(node, deltas, lookups), most, reading)

    def added(
        self, node: Node, accumulators: Sequence[Accumulator], deltas: Mapping[str, Part]
    ) -> Part:
        """What a change adds to sums: the rows of `Accumulate`."""
        reduced = self.reduced(node, deltas)
        with suppress(Unknown):
            table, types = self._linear(reduced[1]).added(reduced[0], accumulators)
            return Part(types, table.num_rows, table)
        return self.part_of(ADDED, *reduced, deltas, COLLECT_GROUPS_MAX)

    def computed(self, node: Node, lookups: LookUps, types: tuple[str, ...]) -> pa.Table | None:
        """A change set of a relation with these types, if it can be computed here."""
        with suppress(Unknown):
            return self._linear(lookups).changes(node, types)[0]
        return None

    def shown(self, moved: Part, output: Node, types: tuple[str, ...]) -> pa.Table | None:
        """What a change of a stored relation changes in its view, if it can be computed here."""
        if moved.table is None:
            return None
        rows = (moved.table, moved.types)
        with suppress(Unknown):
            return Linear(lambda _: rows, self._computing).shown(output, types)
        return None

    def _linear(self, lookups: LookUps) -> Linear:
        return Linear(from_lookups(lookups), self._computing)

    def result(
        self,
        relation: str,
        sql: str,
        rows: float,
        most: int | None = None,
        reading: Reading = MUCH,
    ) -> Part:
        """What a query gives that may have so many rows."""
        most = most or COLLECT_ROWS_MAX
        if rows > most:
            return self.written(relation, sql, rows, reading)
        found = self._fetched(sql, most, reading)
        if found is None:
            return self.written(relation, sql, WRITTEN_ROWS, reading)
        frame, table = found
        table = table.rename_columns([*(f"c{i}" for i in range(table.num_columns - 1)), WEIGHT])
        if relation in self._relations:
            return self._relations.in_memory(relation, table)
        # A stage, whose types nobody has said.
        types = tuple(type_of(f.dataType) for f in frame.schema.fields[:-1])
        return Part(types, table.num_rows, table.cast(arrow_schema(types)))

    def reduced(self, node: Node, deltas: Mapping[str, Part]) -> tuple[Node, LookUps, Reading]:
        """A plan that reads little, if one can be made, and how much it reads."""
        lookups = LookUps(self._relations, self._indexes, deltas)
        node = flattened(reduced(node, lookups), lookups, self._linear(lookups))
        leaves = [leaf for leaf in walk(node) if isinstance(leaf, Leaf)]
        parts = [part for leaf in leaves for part in self._read(leaf, deltas, lookups)]
        scanned = sum(part.rows for part in parts if part.table is None)
        held = sum(part.rows for part in parts if part.table is not None)
        self.rows_read += lookups.rows_read + scanned
        return node, lookups, Reading(scanned, held)

    def _read(self, leaf: Leaf, deltas: Mapping[str, Part], lookups: LookUps) -> list[Part]:
        """The parts that a leaf reads."""
        if leaf.relation in lookups.found:
            found = lookups.found[leaf.relation]
            return [part for part in (found.old, found.delta) if part is not None]
        parts = [] if leaf.when is When.DELTA else list(self._relations[leaf.relation].parts)
        if leaf.when is not When.OLD and leaf.relation in deltas:
            parts.append(deltas[leaf.relation])
        return parts

    def check_size(self, sql: str) -> None:
        if self._bounded and len(sql) > SQL_LENGTH_MAX:
            raise TooLargeError

    @contextmanager
    def whatever_size(self) -> Iterator[None]:
        """Queries may be of any size, because there is no other way."""
        self._bounded = False
        try:
            yield
        finally:
            self._bounded = True

    @contextmanager
    def rows_in_order(self, block: Block) -> Iterator[None]:
        """What is asked of Spark for this block has one answer, in whichever order rows arrive."""
        before, self._in_order = self._in_order, may_depend_on_order(block)
        try:
            yield
        finally:
            self._in_order = before

    def _frame(self, sql: str) -> DataFrame:
        frame = self._spark.sql(sql)
        return in_fixed_order(frame) if self._in_order else frame

    def rows(self, node: Node, deltas: Mapping[str, Part], lookups: LookUps) -> float:
        """Roughly how many rows a node gives."""
        estimates = self._estimates(deltas)
        old = {n: f.old.rows if f.old else 0 for n, f in lookups.found.items()}
        new = {n: f.delta.rows if f.delta else 0 for n, f in lookups.found.items()}
        estimates = Estimates(
            {**estimates.rows, **old}, {**estimates.deltas, **new}, estimates.unique
        )
        # One row that comes into a window can move all others in it.
        windows = [estimates.total(n) for n in walk(node) if isinstance(n, Window)]
        return max([estimates.of(node), *windows])

    def written(self, relation: str, sql: str, rows: float, reading: Reading) -> Part:
        self.queries += 1
        self._prepare(reading, written=True)
        with translated():
            frame = self._frame(sql)
            if relation in self._relations or relation.startswith(STAGE):
                frame = frame.toDF(*(f"c{i}" for i in range(len(frame.columns) - 1)), WEIGHT)
            return self._relations.as_run(relation, frame, rows)

    def whole(self, sql: str) -> pa.Table:
        """A result in memory, however large it is: columns c0, c1, ... and w."""
        self.queries += 1
        self._prepare(MUCH)
        with translated():
            found = self._spark.sql(sql).toArrow()
        return found.rename_columns([*(f"c{i}" for i in range(found.num_columns - 1)), WEIGHT])

    def execute(self, sql: str, most: int, reading: Reading) -> pa.Table | None:
        """A result in memory; None if it has more than so many rows, which are not held then."""
        found = self._fetched(sql, most, reading)
        return None if found is None else found[1]

    def _fetched(self, sql: str, most: int, reading: Reading) -> tuple[DataFrame, pa.Table] | None:
        self.queries += 1
        self._prepare(reading)
        # Not LIMIT, for which Spark would bring all rows together in one task.
        capped = f"SELECT * FROM ({sql}) WHERE {_ROW_OF_TASK} <= {most}"
        with translated():
            frame = self._frame(capped)
            try:
                table = frame.toArrow()
            except (PySparkException, Py4JJavaError) as error:
                if _TOO_LARGE in str(error):
                    return None
                raise
        return (frame, table) if table.num_rows <= most else None

    def _prepare(self, reading: Reading, *, written: bool = False) -> None:
        """Few rows are done sooner by a plan that is neither compiled nor spread out, and many by
        one that is spread out further."""
        small = reading.small and not written
        settings: dict[str, str | None] = {**(_SMALL if small else self._own)}
        if not small:
            own = int(settings[_PARTITIONS] or 1)
            settings[_PARTITIONS] = str(max(own, math.ceil(reading.scanned / TASK_ROWS)))
        for key, value in settings.items():
            if self._set.get(key) != value:
                if value is None:
                    self._spark.conf.unset(key)
                else:
                    self._spark.conf.set(key, value)
        self._set = settings

    def usual(self) -> None:
        """The session as it was found."""
        self._prepare(MUCH)
