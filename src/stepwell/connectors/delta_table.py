"""Delta tables as sources see them: the versions of the log, and the files that each one changes.

A version is a number. Its changes are the actions of its commit: the files of its change data feed
if it has any, or else the rows of removed and added files. Actions without `dataChange`, such as
those of OPTIMIZE, change no row. Features that change what a data file means are refused by name:
deletion vectors and column mapping.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs as arrow_fs

from stepwell.connectors.lake import WAY_OUT_UNREAD, LakeChange, LakeColumn, LakeFile
from stepwell.env import Env
from stepwell.errors import (
    ConfigError,
    InvalidError,
    ReplayMismatchError,
    StepwellError,
    UnavailableError,
)
from stepwell.sql.statements import fold
from stepwell.store.sealed import Json

try:
    import deltalake
    from deltalake import exceptions
    from deltalake.fs import DeltaStorageHandler
except ImportError as error:
    raise ConfigError(
        "a Delta table needs deltalake, which is not installed",
        hint="pip install 'stepwell[delta]'",
    ) from error

_READ_FEATURES = (
    # Deletion vectors and column mapping are refused where they are used, not where they are
    # allowed. Wider types are read as they are.
    *("deletionVectors", "columnMapping", "timestampNtz", "typeWidening", "v2Checkpoint"),
    *("vacuumProtocolCheck", "domainMetadata", "typeWidening-preview", "checkConstraints"),
)
_REFRESH_S = 10.0
"""How often the table is opened again while it has no new version: it may be another one."""


class DeltaLakeTable:
    """A Delta table on a disk or in an object store."""

    def __init__(self, source: str, env: Env, path: str, storage: Mapping[str, str]) -> None:
        self._what = f"source {source}"
        self._env = env
        self._path = path
        self._storage = dict(storage)
        self._files: arrow_fs.FileSystem | None = None
        self._table: deltalake.DeltaTable | None = None
        self._opened: float = 0

    def identity(self) -> str:
        with self._errors():
            table = self._table
            old = self._env.uptime() - self._opened >= _REFRESH_S
            if table is None or old or self._has(table.version() + 1):
                self._table = None
                self._table = table = self._checked(self._load(None))
                self._opened = self._env.uptime()
            return str(table.metadata().id)

    def latest(self) -> Json:
        return self._current().version()

    def next_version(self, at: Json) -> Json:
        latest = self._current().version()
        if at < latest:
            return at + 1
        if at > latest:
            raise ReplayMismatchError(
                f"{self._what}: the table at {self._path} ends at version {latest}, but was read "
                f"up to version {at}: its log was cut",
                hint="restore the table's log, or restore the pipeline from a checkpoint",
            )
        return None

    def behind(self, at: Json) -> int:
        latest = self._current().version()
        return max(0, latest - (-1 if at is None else at))

    def change(self, before: Json, version: Json) -> LakeChange:
        with self._errors():
            files = self._snapshot(version) if before is None else self._commit(version)
            return LakeChange(before, version, tuple(files))

    def columns(self, names: Sequence[str]) -> tuple[LakeColumn, ...]:
        given = {fold(field.name): field.name for field in self._current().schema().fields}
        missing = [name for name in names if fold(name) not in given]
        if missing:
            raise InvalidError(
                f"{self._what}: the table at {self._path} has no column {missing[0]}",
                hint="its columns are: " + ", ".join(given.values()),
            )
        return tuple(LakeColumn(given[fold(name)]) for name in names)

    def open(self, path: str) -> Any:
        return self._store().open_input_file(path)

    def field_ids(self, file: pa.Schema) -> dict[int, str] | None:
        return None

    def close(self) -> None:
        self._table = self._files = None

    # The log

    def _current(self) -> deltalake.DeltaTable:
        if self._table is None:
            self.identity()
        if self._table is None:
            raise UnavailableError(f"{self._what}: the table at {self._path} is not open")
        return self._table

    def _load(self, version: int | None) -> deltalake.DeltaTable:
        try:
            return deltalake.DeltaTable(
                self._path, version=version, storage_options=self._storage or None
            )
        except exceptions.TableNotFoundError as error:
            raise UnavailableError(
                f"{self._what}: there is no table at {self._path}",
                hint="create it, or correct the option path; it is looked for again",
            ) from error

    def _checked(self, table: deltalake.DeltaTable) -> deltalake.DeltaTable:
        features = set(table.protocol().reader_features or ())
        self._refuse(features - set(_READ_FEATURES), "the table feature")
        mode = str((table.metadata().configuration or {}).get("delta.columnMapping.mode", "none"))
        if mode != "none":
            raise self._unsupported(f"column mapping (delta.columnMapping.mode={mode})")
        return table

    def _refuse(self, features: set[str], what: str) -> None:
        if features:
            raise self._unsupported(f"{what} {', '.join(sorted(features))}")

    def _unsupported(self, feature: str, hint: str = "") -> InvalidError:
        return InvalidError(
            f"{self._what}: {feature} of the table at {self._path} is not supported",
            hint=hint or "rewrite the table without it: CREATE TABLE ... AS SELECT",
        )

    def _snapshot(self, version: int) -> list[LakeFile]:
        try:
            table = self._checked(self._load(version))
        except (exceptions.DeltaError, ValueError, OSError) as error:
            if isinstance(error, StepwellError):
                raise
            raise self._expired(version) from error
        vectors = table.deletion_vectors().read_all()
        if vectors.num_rows:
            raise self._vectors(version, vectors.column(0)[0].as_py())
        made = []
        # In the order in which files were added, as far as it is known.
        listed = pa.table(table.get_add_actions()).to_pylist()
        for action in sorted(listed, key=lambda a: (a["modification_time"], a["path"])):
            values = {name: _text(value) for name, value in action.get("partition", {}).items()}
            made.append(self._file(action["path"], values, action, retracts=False))
        return made

    def _commit(self, version: int) -> list[LakeFile]:
        try:
            with self._store().open_input_file(_log(version)) as opened:
                lines = opened.read().decode().splitlines()
        except FileNotFoundError:
            raise self._expired(version) from None
        actions = [json.loads(line) for line in lines if line.strip()]
        identity = self.identity()
        adds: list[dict[str, Any]] = []
        removes: list[dict[str, Any]] = []
        feed: list[dict[str, Any]] = []
        for action in actions:
            ((name, fields),) = action.items()
            if name == "metaData" and fields["id"] != identity:
                raise ReplayMismatchError(
                    f"{self._what}: version {version} of the table at {self._path} replaced the "
                    f"table: {fields['id']}, not {identity}",
                    hint="give the source a new table, which starts with a snapshot",
                )
            if name == "cdc":
                feed.append(fields)
            elif name in ("add", "remove") and fields.get("dataChange", True):
                if fields.get("deletionVector"):
                    raise self._vectors(version, fields["path"])
                (adds if name == "add" else removes).append(fields)
        if feed:
            return [self._fed(fields, retracts) for retracts in (True, False) for fields in feed]
        partitioned = bool(self._current().metadata().partition_columns)
        for fields in removes:
            if partitioned and fields.get("partitionValues") is None:
                raise self._unsupported(f"a removed file without its partition ({fields['path']})")
        made = [self._listed(fields, True) for fields in removes]
        made += [self._listed(fields, False) for fields in adds]
        return sorted(made, key=lambda file: (not file.retracts, file.path))

    def _listed(self, fields: Mapping[str, Any], retracts: bool) -> LakeFile:
        stats = json.loads(fields.get("stats") or "{}")
        numbers = {"size_bytes": fields.get("size"), "num_records": stats.get("numRecords")}
        return self._file(
            fields["path"], fields.get("partitionValues") or {}, numbers, retracts=retracts
        )

    def _fed(self, fields: Mapping[str, Any], retracts: bool) -> LakeFile:
        path, size = _decoded(fields["path"]), fields.get("size") or 0
        values = _partition(fields.get("partitionValues") or {})
        return LakeFile(path, retracts, values, is_feed=True, size=size)

    def _file(
        self,
        path: str,
        values: Mapping[str, str | None],
        numbers: Mapping[str, Any],
        *,
        retracts: bool,
    ) -> LakeFile:
        if "://" in path or path.startswith("/"):
            raise self._unsupported(f"a data file outside the table ({path}), a shallow clone")
        return LakeFile(
            _decoded(path),
            retracts,
            _partition(values),
            rows=numbers.get("num_records"),
            size=numbers.get("size_bytes") or 0,
        )

    def _vectors(self, version: int, path: str) -> InvalidError:
        name = str(path).rsplit("/", 1)[-1]
        return self._unsupported(
            f"the deletion vector of {name} in version {version}",
            "set delta.enableDeletionVectors to false and run REORG TABLE ... APPLY (PURGE)",
        )

    def _expired(self, version: int) -> ReplayMismatchError:
        return ReplayMismatchError(
            f"{self._what}: version {version} of the table at {self._path} is gone from its log "
            "and was not read as a whole yet",
            hint=WAY_OUT_UNREAD,
        )

    def _has(self, version: int) -> bool:
        found = self._store().get_file_info(_log(version))
        return bool(found.type != arrow_fs.FileType.NotFound)

    def _store(self) -> arrow_fs.FileSystem:
        if self._files is None:
            handler = DeltaStorageHandler(self._path, self._storage)
            self._files = arrow_fs.PyFileSystem(handler)
        return self._files

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except StepwellError:
            raise
        except (exceptions.DeltaError, OSError, ValueError, KeyError) as error:
            self._table = None
            raise UnavailableError(
                f"{self._what} cannot read the table at {self._path}: {error}",
                hint="check the path and its credentials",
            ) from error


def _log(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def _decoded(path: str) -> str:
    return urllib.parse.unquote(path)


def _partition(values: Mapping[str, str | None]) -> tuple[tuple[str, str | None], ...]:
    """Partition values as every engine reads them: an empty text in the log is NULL."""
    return tuple((name, value or None) for name, value in sorted(values.items()))


def _text(value: object) -> str | None:
    """A partition value as the log writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return value.isoformat() if isinstance(value, date) else str(value)
