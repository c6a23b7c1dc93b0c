"""Generated rows for demos and tests: deterministic for a seed, at a configurable rate.

Row number n depends only on the seed and n, so a position is a number and a reference is a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial

import pyarrow as pa
import xxhash

from stepwell.connectors.folding import fold_numbered
from stepwell.connectors.formats import operations_table
from stepwell.connectors.shape import Row, ShapeColumn, shape_of
from stepwell.engine.ports import Intake, Limits
from stepwell.env import Env
from stepwell.errors import ConfigError, ReplayMismatchError
from stepwell.lsm.arrow_types import numbers_of
from stepwell.plan.numbers import INTEGER_BITS
from stepwell.sql.statements import Table
from stepwell.store.sealed import Json

_FIRST_DAY = date(2026, 1, 1)
_FIRST_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DatagenSettings:
    seed: int = 0
    rate: float = 100.0
    """Rows per second; 0 means as many as fit into a step."""
    rows: int = 0
    """Total number of rows; 0 means unlimited."""
    keys: int = 0
    """Number of distinct keys, so that later rows replace earlier ones; 0 means all differ."""
    deletes: float = 0.0
    """The fraction of operations that are deletes, in a table with a key."""


class DatagenSource:
    """A source of generated rows, which need no storage."""

    def __init__(self, name: str, table: Table, env: Env, settings: DatagenSettings) -> None:
        self.name = name
        self.table = table.name
        self._env = env
        self._settings = settings
        self._shape = shape_of(table)
        self._began: tuple[float, int] | None = None
        if settings.deletes and not self._shape.key:
            raise ConfigError(f"source {name}: deletes need a table with a primary key")
        for column in self._shape.columns:
            if column.kind.name in ("array", "map", "struct") and not column.nullable:
                raise ConfigError(f"source {name}: values cannot be generated for {column.name}")

    def poll(self, after: Json, limits: Limits) -> Intake | None:
        start = 0 if after is None else int(after["next"])
        end = start + min(limits.rows_max, max(1, limits.bytes_max // 64))
        if self._settings.rows:
            end = min(end, self._settings.rows)
        if self._settings.rate:
            now = self._env.uptime()
            since, first = self._began = self._began or (now, start)
            # The first row is available at once.
            end = min(end, first + int((now - since) * self._settings.rate) + 1)
        return self._made(start, end) if end > start else None

    def read(self, reference: Json) -> Intake:
        if reference["settings"] != self._meaning():
            raise ReplayMismatchError(
                f"source {self.name} was created with other settings: {reference['settings']}",
                hint="give it the settings it had before",
            )
        return self._made(reference["start"], reference["end"])

    def close(self) -> None:
        """Nothing to release."""

    def _made(self, start: int, end: int) -> Intake:
        rows: list[Row] = []
        puts: list[bool] = []
        for number in range(start, end):
            put, row = self._row(number)
            rows.append(row)
            puts.append(put)
        operations = operations_table(rows, puts, self._shape, range(start, end))
        change, numbers = fold_numbered(self._shape, operations)
        reference = {"settings": self._meaning(), "start": start, "end": end}
        told = partial(_told, numbers)
        return Intake(
            self.name, self.table, change, end - start, {"next": end}, reference, deleted=told
        )

    def _meaning(self) -> Json:
        """The settings that determine the rows."""
        meaning = asdict(self._settings)
        return {name: meaning[name] for name in ("seed", "keys", "deletes")}

    def _row(self, number: int) -> tuple[bool, Row]:
        settings = self._settings
        key = self._chance("key", number) % settings.keys if settings.keys else number
        put = self._chance("delete", number) / 2**64 >= settings.deletes
        row: Row = []
        for place, column in enumerate(self._shape.columns):
            in_key = place in self._shape.key
            if not put and not in_key:
                row.append(None)
            elif in_key:
                row.append(_value(column, key, key))
            else:
                row.append(_value(column, self._chance(column.name, number), number))
        return put, row

    def _chance(self, what: str, number: int) -> int:
        return xxhash.xxh3_64_intdigest(f"{what}/{number}".encode(), seed=self._settings.seed)


def _told(numbers: pa.ChunkedArray, places: Sequence[int]) -> list[tuple[str, str | None]]:
    return [(f"row {numbers[place].as_py() + 1}", None) for place in places]


def _value(column: ShapeColumn, chance: int, number: int) -> object:
    """A value that differs whenever `chance` does, as far as the type allows."""
    kind = column.kind.name
    small = chance if chance == number else chance % 1000
    if kind in INTEGER_BITS:
        return small % 2 ** (INTEGER_BITS[kind] - 1)
    if kind == "decimal":
        precision, scale = numbers_of(column.kind)
        return Decimal(chance % 10 ** min(precision, 18 if chance == number else 5)).scaleb(-scale)
    if kind in ("float", "double"):
        return float(small) / (1 if chance == number else 8)
    if kind in ("string", "varchar", "char"):
        text = f"{column.name}-{small if chance == number else small % 100}"
        return text if kind == "string" else text[-numbers_of(column.kind)[0] :]
    if kind == "boolean":
        return chance % 2 == 1
    if kind == "date":
        return _FIRST_DAY + timedelta(days=small % 100_000)
    if kind in ("timestamp", "timestamp_ntz"):
        moment = _FIRST_MOMENT + timedelta(seconds=number % 10**9)
        return moment if kind == "timestamp" else moment.replace(tzinfo=None)
    if kind == "binary":
        return chance.to_bytes(8, "big")
    return None
