"""Tables of a lakehouse as sources see them: versions, and the data files that each one changes.

`delta_table` and `iceberg_table` implement `LakeTable`; `lake_rows` reads the rows of a version,
and `lake_source` cuts them into steps. Data files are immutable: a version retracts the rows of
files that it removes, and inserts the rows of files that it adds. Everything in a reference is made
of these values, so a step is read again from its data files alone, even if the table's log is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from stepwell.store.sealed import Json

WAY_OUT = (
    "restore the pipeline from a checkpoint (stepwell checkpoint list); for the future, keep files "
    "of the table longer than the pipeline may stand still"
)
WAY_OUT_UNREAD = (
    "the pipeline's table cannot be continued: give the source a new table, which starts with a "
    "snapshot; for the future, keep versions longer than the pipeline may stand still"
)


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of the table that a declared column is read from."""

    name: str
    id: int | None = None
    """Its field id, by which Iceberg finds it in files written under another name."""

    def to_json(self) -> Json:
        return [self.name, self.id]

    @classmethod
    def from_json(cls, fields: Json) -> LakeColumn:
        name, id = fields
        return cls(name, id)


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A data file whose rows a version inserts, or retracts."""

    path: str
    retracts: bool
    values: tuple[tuple[str, str | None], ...] = ()
    """Partition values, by column: they are not in the file."""
    is_feed: bool = False
    """Whether it is a file of a change data feed, whose column `_change_type` selects the rows."""
    rows: int | None = None
    """Number of rows in the file, if known."""
    size: int = 0

    def to_json(self) -> Json:
        return [self.path, "-" if self.retracts else "+", dict(self.values), self.is_feed]

    @classmethod
    def from_json(cls, fields: Json) -> LakeFile:
        path, sign, values, is_feed = fields
        return cls(path, sign == "-", tuple(values.items()), is_feed)


@dataclass(frozen=True, slots=True)
class LakeChange:
    """What a version changes: first the files that it retracts, then those that it inserts."""

    before: Json
    """The version before it; None if there is none, or if it is read as a snapshot."""
    version: Json
    files: tuple[LakeFile, ...]


class LakeTable(Protocol):
    """A table of a lakehouse. Versions are JSON, and only compared for equality."""

    def identity(self) -> str:
        """The id of the table, which another table under the same name does not have.

        Looks at the table; raises `UnavailableError` if there is none.
        """

    def latest(self) -> Json:
        """The newest version, as of `identity`; None if it has none yet."""

    def next_version(self, at: Json) -> Json:
        """The version that follows `at`, as of `identity`; None if there is none.

        Raises `ReplayMismatchError` if it is not known any more what follows.
        """

    def change(self, before: Json, version: Json) -> LakeChange:
        """What a version changes; without `before`, all files of the table at that version."""

    def columns(self, names: Sequence[str]) -> tuple[LakeColumn, ...]:
        """The columns of these names, as of `identity`; `InvalidError` if one does not exist."""

    def open(self, path: str) -> Any:
        """Open a data file for reading at any offset; raises `FileNotFoundError`."""

    def field_ids(self, file: pa.Schema) -> dict[int, str] | None:
        """The columns of a data file by field id; None if columns are found by name."""

    def behind(self, at: Json) -> int:
        """How many versions follow `at`, as of `identity`."""

    def close(self) -> None: ...
