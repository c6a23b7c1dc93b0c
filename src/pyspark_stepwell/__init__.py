"""Read tables and views of a Stepwell pipeline in Spark: `spark.read.format("stepwell")`.

    spark.read.format("stepwell").option("relation", "revenue").load("s3://bucket/prefix")

Spark finds this package by its name, in every session whose Python has Stepwell installed. The
driver pins a transaction when the DataFrame is made, and every action on the DataFrame reads that
transaction. Executors read the run files. Nothing is claimed, so the pipeline continues.

Spark imports this module for every session that uses any Python data source, so it imports nothing
but pyspark before it is asked for rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from stepwell.deploy.reader import PinnedRelation, RelationReader
    from stepwell.execution.local.pushdown import Pushed
    from stepwell.execution.local.scan import RelationScan

WEIGHT, TRANSACTION = "_w", "_transaction"
_OPTIONS = {
    *("path", "relation", "target", "store", "columns"),
    *("transaction", "unflushed", "changes", "start"),
}


class DefaultSource(DataSource):
    """The data source `stepwell`. Spark looks for a class of this name."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._pinned: PinnedRelation | None = None

    @classmethod
    def name(cls) -> str:
        return "stepwell"

    def schema(self) -> str:
        """The columns of the relation. Pins the transaction that the DataFrame reads."""
        from stepwell.text import quote_name

        pinned = self._pin()
        columns = [pinned.columns[place] for place in pinned.scan.columns]
        if self._changes:
            columns += [(WEIGHT, "bigint"), (TRANSACTION, "bigint")]
        return ", ".join(f"{quote_name(name)} {kind}" for name, kind in columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._changes:
            raise _invalid(
                "changes are read by a stream: spark.readStream",
                "for the rows as of one transaction, leave the option changes out",
            )
        return RelationSourceReader(self._pin().select(schema.fieldNames()).scan, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if not self._changes:
            raise _invalid(
                "a stream reads changes, with the columns _w and _transaction",
                'add .option("changes", "true")',
            )
        if "transaction" in self.options:
            raise _invalid("the option transaction is for spark.read", 'use option("start", ...)')
        start = self.options.get("start", "beginning")
        if start not in ("beginning", "latest"):
            raise _invalid(f"start must be beginning or latest, not {start}")
        names = [name for name in schema.fieldNames() if name not in (WEIGHT, TRANSACTION)]
        return ChangesReader(self._relation, names, schema, start == "latest")

    @property
    def _changes(self) -> bool:
        value = str(self.options.get("changes", "false")).lower()
        if value not in ("true", "false"):
            raise _invalid(f"changes must be true or false, not {value}")
        return value == "true"

    def _relation(self) -> RelationReader:
        from stepwell.deploy.reader import RelationReader

        unknown = sorted({name.lower() for name in self.options} - _OPTIONS)
        if unknown:
            raise _invalid(
                f"unknown option {unknown[0]}", "there are: " + ", ".join(sorted(_OPTIONS))
            )
        for needed in ("path", "relation"):
            if needed not in self.options:
                raise _invalid(
                    f"no {needed} is given",
                    'spark.read.format("stepwell").option("relation", NAME).load(PROJECT_OR_STORE)',
                )
        return RelationReader(
            self.options["path"],
            self.options["relation"],
            target=self.options.get("target"),
            store=self.options.get("store"),
        )

    def _pin(self) -> PinnedRelation:
        if self._pinned is not None:
            return self._pinned
        relation = self._relation()
        unflushed = self.options.get("unflushed", "ignore")
        if unflushed not in ("ignore", "fail"):
            raise _invalid(f"unflushed must be ignore or fail, not {unflushed}")
        if "transaction" in self.options:
            try:
                pinned = relation.at(int(self.options["transaction"]))
            except ValueError:
                raise _invalid("transaction must be a number") from None
        else:
            pinned = relation.latest()
        if pinned.behind and unflushed == "fail":
            raise _invalid(
                f"{pinned.name} is flushed up to transaction {pinned.transaction}, and the "
                f"{pinned.behind} after it may have changed it",
                "stepwell checkpoint create flushes; or read the last flush: unflushed=ignore",
            )
        if "columns" in self.options:
            names = [name.strip() for name in self.options["columns"].split(",")]
            pinned = pinned.select(names)
        self._pinned = pinned
        return pinned


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, share: Any, scan: RelationScan | None = None) -> None:
        super().__init__(share)
        self.scan = scan
        """Of a stream, whose reader does not know it."""


class RelationSourceReader(DataSourceReader):
    """Reads the rows of one transaction."""

    def __init__(self, scan: RelationScan, schema: StructType) -> None:
        self.scan = scan
        self.schema = schema
        # Not a method: Spark refuses readers that override `pushFilters` unless the session
        # enables it, and a reader that the session would refuse is of no use to anybody.
        setattr(self, "pushFilters", _Pushdown(self))  # noqa: B010

    def partitions(self) -> list[InputPartition]:
        return [Part(share) for share in self.scan.shares()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's own partition, where there is none.
            return
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for table in self.scan.rows(partition.value):
            yield from table.rename_columns(schema.names).cast(schema).to_batches()


class _Pushdown:
    """Takes filters for a reader. Spark evaluates all of them again, on the rows that are left."""

    __func__ = staticmethod(DataSourceReader.pushFilters)
    """What Spark compares with the method of the base class."""

    def __init__(self, reader: RelationSourceReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        from dataclasses import replace

        scan = self._reader.scan
        found = [_pushed(item, scan) for item in filters]
        taken = tuple(item for item in found if item is not None)
        self._reader.scan = replace(scan, filters=(*scan.filters, *taken))
        return filters


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what changed from flush to flush, with weights.

    An offset is a transaction, and the version of the manifest that holds its state. A batch is the
    difference of two states, so a batch that is run again has the same rows.
    """

    def __init__(
        self,
        relation: Callable[[], RelationReader],
        names: list[str],
        schema: StructType,
        latest: bool,
    ) -> None:
        self._relation = relation
        self._names = names
        self._schema = schema
        self._from_latest = latest
        self._last: dict[str, Any] | None = None
        """The offset at which a stream with the trigger `availableNow` ends."""

    def __getstate__(self) -> dict[str, Any]:
        """Tasks read files only, and need no project."""
        return {"_schema": self._schema}

    def initialOffset(self) -> dict[str, Any]:
        return self._now() if self._from_latest else _offset(None)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        found = self._last or self._now()
        same = found["lineage"] in ("", start["lineage"])
        # Another pipeline in the same place is told by `partitions`, whatever its transaction is.
        return start if same and found["transaction"] <= start["transaction"] else found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start["transaction"] == end["transaction"]:
            return []
        new = self._at(end)
        if new is None:
            return []
        scan = new.since(self._at(start))
        return [Part(share, scan) for share in scan.shares()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if not isinstance(partition, Part) or partition.scan is None:
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for table in partition.scan.changes(partition.value):
            transaction = pa.repeat(pa.scalar(int(partition.scan.transaction)), table.num_rows)
            table = table.append_column(TRANSACTION, transaction)
            yield from table.rename_columns(schema.names).cast(schema).to_batches()

    def _now(self) -> dict[str, Any]:
        return _offset(self._relation().changed())

    def _at(self, offset: dict[str, Any]) -> PinnedRelation | None:
        if not offset["lineage"]:
            return None
        found = self._relation().version(
            offset["manifest"], offset["transaction"], offset["lineage"]
        )
        return found.select(self._names)


def _offset(pinned: PinnedRelation | None) -> dict[str, Any]:
    if pinned is None:
        return {"transaction": 0, "manifest": 0, "lineage": ""}
    return {
        "transaction": int(pinned.transaction),
        "manifest": pinned.manifest,
        "lineage": pinned.lineage,
    }


def _pushed(item: Filter, scan: RelationScan) -> Pushed | None:
    """Translate a Spark filter into a filter of the scan; None if only Spark can evaluate it."""
    from stepwell.execution.local.output import arrow_of
    from stepwell.execution.local.pushdown import Pushed, Test, supported

    tests: dict[type, Test] = {
        EqualTo: Test.EQUAL,
        EqualNullSafe: Test.SAME,
        GreaterThan: Test.GREATER,
        GreaterThanOrEqual: Test.GREATER_OR_EQUAL,
        LessThan: Test.LESS,
        LessThanOrEqual: Test.LESS_OR_EQUAL,
        In: Test.IN,
        IsNull: Test.NULL,
        IsNotNull: Test.NULL,
        StringStartsWith: Test.STARTS,
        StringEndsWith: Test.ENDS,
        StringContains: Test.CONTAINS,
    }
    child: Any = item.child if isinstance(item, Not) else item
    negated = isinstance(item, Not) != isinstance(child, IsNotNull)
    test, attribute = tests.get(type(child)), getattr(child, "attribute", None)
    if test is None or attribute is None or len(attribute) != 1:
        return None
    if attribute[0] not in scan.shown.columns:
        return None
    column = scan.shown.columns.index(attribute[0])
    values: tuple[Any, ...] = ()
    if test is not Test.NULL:
        values = tuple(child.value) if test is Test.IN else (child.value,)
    pushed = Pushed(column, test, values, negated)
    type_ = scan.shown.types[column]
    return pushed if supported(pushed, type_, arrow_of(type_)) else None


def _invalid(what: str, hint: str | None = None) -> Exception:
    from stepwell.errors import InvalidError

    return InvalidError(f"stepwell: {what}", hint=hint)
