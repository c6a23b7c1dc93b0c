"""PostgreSQL: a sink that keeps a table equal to a view by its key, or appends its changes.

Rows and mark are one database transaction. `stepwell_sinks`, in the same schema as the table, holds
the mark of the last transaction for each table. One statement compares it with the mark that the
engine expects and replaces it (`_move`): of two writers, the second waits for the first to end,
compares again, and finds another mark. The table is created in the transaction that first fills it.

The mark is locked from `_move` to the end of the transaction, so rows are sent to the server before
it. If a writer stalls in between, because its machine sleeps, the server disconnects it after a
minute, so that its successor does not wait forever.

Several transactions can form one database transaction, under the mark of the last; in a log of
changes each row keeps its own transaction number.

A crash before COMMIT leaves nothing. If the answer to a COMMIT is lost, `last` tells the outcome.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.csv as arrow_csv

from stepwell.connectors.delivery import (
    Numbered,
    TableMode,
    change_log,
    check_changes,
    check_held,
    latest_by_key,
)
from stepwell.connectors.writing import json_values
from stepwell.engine.evolution import columns_before
from stepwell.engine.ports import Delivered
from stepwell.errors import ConfigError, ConflictError, InvalidError, UnavailableError
from stepwell.lsm.change import WEIGHT
from stepwell.manifest.progress import MARK
from stepwell.model import Checksum, Position, Transaction
from stepwell.plan.numbers import Width, common_width, value_width

try:
    import psycopg
    from psycopg import conninfo, sql
except ImportError as error:
    raise ConfigError(
        "a PostgreSQL sink needs psycopg, which is not installed",
        hint="pip install 'stepwell[postgres]'",
    ) from error

PROGRESS = "stepwell_sinks"
TRANSACTION = "_transaction"
_TYPES = {
    "bool": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "large_string": "text",
    "binary": "bytea",
    "date32[day]": "date",
    "timestamp[us]": "timestamp",
    "timestamp[us, tz=UTC]": "timestamptz",
    "duration[us]": "interval",
}
_SPELLED = {"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone"}
"""Types that PostgreSQL displays under another name."""
_INTEGERS = {"smallint": "smallint", "integer": "int", "bigint": "bigint"}
"""The Spark types with the same values, from the narrowest to the widest."""
_NULLS_NOT_DISTINCT = 150_000
"""The first PostgreSQL version with unique indexes that allow only one NULL."""


_PATIENCE = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


_WAITS_MS = {"lock_timeout": 10_000, "idle_in_transaction_session_timeout": 60_000}
"""How long a write waits for another write, and the server for a silent client."""


class PostgresSink:
    """A table of a PostgreSQL database."""

    def __init__(
        self,
        name: str,
        view: str,
        *,
        dsn: str,
        table: str,
        schema: str = "public",
        mode: TableMode,
        key: tuple[str, ...] = (),
        timeout_s: int = 10,
    ) -> None:
        self.name = name
        self.view = view
        self._schema = schema
        self._table = table
        self._mode = mode
        self._key = key
        if (mode is TableMode.TABLE) != bool(key):
            raise ConfigError(
                f"sink {name}: "
                + ("mode: table needs a key" if not key else "mode: changes has no key"),
                hint=(
                    "name the columns that identify the view's rows: key: [id]; if there are "
                    "none, use mode: changes"
                ),
            )
        try:
            given = conninfo.conninfo_to_dict(dsn)
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"sink {name}: option dsn cannot be read: {error}") from error
        given.setdefault("connect_timeout", timeout_s)
        # A server that disappeared silently must not block a sink for hours.
        for name, value in _PATIENCE.items():
            given.setdefault(name, value)
        self._dsn = conninfo.make_conninfo("", **given)
        # For messages; never includes the password.
        self._shown = f"{given.get('dbname', '')} on {given.get('host', 'localhost')}"
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def last(self) -> Delivered | None:
        with self._transaction() as cursor:
            return self._held(cursor) if self._made(cursor, PROGRESS) else None

    coalesces = True

    def write(self, previous: Delivered | None, mark: Delivered, change: pa.Table) -> None:
        self.write_together(previous, [(mark, change)])

    def write_together(self, previous: Delivered | None, changes: Numbered) -> None:
        mark = check_changes(self.name, previous, changes)
        change = changes[0][1]
        with self._transaction() as cursor:
            cursor.execute(
                "SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) "
                "AS waits (name, value)",
                [list(_WAITS_MS), [str(value) for value in _WAITS_MS.values()]],
            )
            if not self._made(cursor, PROGRESS):
                self._make_progress(cursor)
            if previous is None:
                self._forget(cursor)
                self._move(cursor, previous, mark)
                self._make_table(cursor, change)
            elif not self._made(cursor, self._table):
                check_held(self.name, self._held(cursor), previous, mark)
            before = None if previous is None else columns_before(change)
            if before is not None:
                # Move the mark first: a late writer must not alter anything.
                self._move(cursor, previous, mark)
                self._alter_table(cursor, before, change)
            if self._mode is TableMode.CHANGES:
                self._copy(cursor, self._named(self._table), change_log(changes, TRANSACTION))
                apply: list[sql.Composed] = []
            else:
                apply = self._stage_rows(cursor, changes)
            if previous is not None and before is None:
                self._move(cursor, previous, mark)
            for command in apply:
                cursor.execute(command)

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    @property
    def _target(self) -> str:
        return f"{self._schema}.{self._table}"

    def _named(self, table: str) -> sql.Identifier:
        return sql.Identifier(self._schema, table)

    # Progress

    def _made(self, cursor: psycopg.Cursor[tuple[object, ...]], table: str) -> bool:
        cursor.execute(
            "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
            [self._schema, table],
        )
        return cursor.fetchone() is not None

    def _make_progress(self, cursor: psycopg.Cursor[tuple[object, ...]]) -> None:
        # Two concurrent statements may collide even with IF NOT EXISTS, so serialize them.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [PROGRESS])
        schema = sql.Identifier(self._schema)
        cursor.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", [self._schema])
        if cursor.fetchone() is None:
            cursor.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        cursor.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (target text PRIMARY KEY, sink text NOT NULL, "
                "lineage text NOT NULL, timeline text NOT NULL, transaction bigint NOT NULL, "
                "position bigint NOT NULL, entry text NOT NULL, "
                "written timestamptz NOT NULL DEFAULT now())"
            ).format(self._named(PROGRESS))
        )

    def _held(self, cursor: psycopg.Cursor[tuple[object, ...]]) -> Delivered | None:
        command = "SELECT sink, lineage, timeline, transaction, position, entry FROM {}"
        try:
            cursor.execute(
                sql.SQL(command + " WHERE target = %s").format(self._named(PROGRESS)), [self._table]
            )
        except psycopg.errors.UndefinedColumn as error:
            raise InvalidError(
                f"sink {self.name}: {self._schema}.{PROGRESS} was created by an earlier version",
                hint="drop it and the tables it names, and give the sinks other names: they then "
                "receive the whole views",
            ) from error
        found = cursor.fetchone()
        if found is None or not self._made(cursor, self._table):
            return None
        sink, lineage, timeline, transaction, position, entry = map(str, found)
        if sink != self.name:
            raise InvalidError(
                f"sink {self.name}: the table {self._target} belongs to sink {sink}",
                hint=f"two sinks cannot share a table; if {sink} no longer exists, drop the table",
            )
        number, place = Transaction(int(transaction)), Position(int(position))
        return Delivered(lineage, timeline, number, place, Checksum(entry))

    def _forget(self, cursor: psycopg.Cursor[tuple[object, ...]]) -> None:
        """Remove a mark whose table was dropped, because it describes nothing any more.

        Both were created in one transaction, so a mark seen before its table was found missing is
        stale. Only that mark is removed, not one that another writer has put there since.
        """
        table = self._named(PROGRESS)
        which = sql.SQL(" FROM {} WHERE target = %s").format(table)
        cursor.execute(sql.SQL("SELECT written") + which, [self._table])
        found = cursor.fetchone()
        if found is not None and not self._made(cursor, self._table):
            cursor.execute(
                sql.SQL("DELETE") + which + sql.SQL(" AND written = %s"), [self._table, found[0]]
            )

    def _move(
        self,
        cursor: psycopg.Cursor[tuple[object, ...]],
        previous: Delivered | None,
        mark: Delivered,
    ) -> None:
        """Replace the mark if the engine expects it; otherwise raise an error that names it.

        The row stays locked until this transaction ends. Another writer's statement waits for that,
        and then compares with the committed mark.
        """
        fields: dict[str, object] = {"target": self._table, "sink": self.name}
        given = {**fields, **MARK.write(mark)}
        columns = [sql.Identifier(name) for name in given]
        values = [sql.Literal(value) for value in given.values()]
        table = self._named(PROGRESS)
        if previous is None:
            command = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING").format(
                table, sql.SQL(", ").join(columns), sql.SQL(", ").join(values)
            )
        else:
            same = {**fields, **MARK.write(previous)}
            del same["timeline"]  # The entry identifies the history for certain.
            command = sql.SQL("UPDATE {} SET ({}, written) = ({}, now()) WHERE {}").format(
                table,
                sql.SQL(", ").join(columns),
                sql.SQL(", ").join(values),
                sql.SQL(" AND ").join(
                    sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value))
                    for name, value in same.items()
                ),
            )
        cursor.execute(command)
        if cursor.rowcount != 1:
            check_held(self.name, self._held(cursor), previous, mark)
            raise ConflictError(f"sink {self.name} was changed by another writer just now")

    # Rows

    def _make_table(self, cursor: psycopg.Cursor[tuple[object, ...]], change: pa.Table) -> None:
        if self._made(cursor, self._table):
            raise InvalidError(
                f"sink {self.name}: there is a table {self._target} that Stepwell did not create",
                hint="choose another table, or drop this one",
            )
        columns = [_column(field) for field in list(change.schema)[:-1]]
        if self._mode is TableMode.CHANGES:
            for name in (WEIGHT, TRANSACTION):
                columns.append(sql.SQL("{} bigint NOT NULL").format(sql.Identifier(name)))
        else:
            version = cursor.connection.info.server_version
            nulls = "NULLS NOT DISTINCT " if version >= _NULLS_NOT_DISTINCT else ""
            key = sql.SQL(", ").join(map(sql.Identifier, self._key))
            columns.append(sql.SQL("UNIQUE " + nulls + "({})").format(key))
        cursor.execute(
            sql.SQL("CREATE TABLE {} ({})").format(
                self._named(self._table), sql.SQL(", ").join(columns)
            )
        )

    def _alter_table(
        self,
        cursor: psycopg.Cursor[tuple[object, ...]],
        before: tuple[str, ...],
        change: pa.Table,
    ) -> None:
        """Give the table the columns that the view has from this transaction on.

        A log of changes keeps the columns that the view lost, for the changes that have them; the
        view may gain such a column again.
        """
        cursor.execute(
            "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) "
            "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s "
            "AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped",
            [self._schema, self._table],
        )
        found = {str(name): str(kind) for name, kind in cursor.fetchall()}
        actions = []
        for field in list(change.schema)[:-1]:
            column, kind = sql.Identifier(field.name), _kind(field)
            if field.name not in found:
                actions.append(sql.SQL("ADD COLUMN {} " + kind).format(column))
                continue
            there = found[field.name]
            common = _common_kind(there, kind)
            if field.name not in before:
                self._check_gained(field.name, there, kind, common)
            if common is not None and common != there:
                actions.append(sql.SQL("ALTER COLUMN {} TYPE " + common).format(column))
        if self._mode is TableMode.TABLE:
            lost = [name for name in before if name in found and name not in change.column_names]
            actions += [sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)) for name in lost]
        if actions:
            table = self._named(self._table)
            cursor.execute(sql.SQL("ALTER TABLE {} ").format(table) + sql.SQL(", ").join(actions))

    def _check_gained(self, name: str, there: str, kind: str, common: str | None) -> None:
        """Refuse to take over an existing column of the table for a column that the view gains."""
        rename = f"ALTER TABLE {self._target} RENAME COLUMN {name} TO ..."
        if self._mode is TableMode.TABLE:
            raise InvalidError(
                f"sink {self.name}: the view {self.view} gains the column {name}, and the table "
                f"{self._target} has a column of that name that Stepwell did not create",
                hint=f"rename it ({rename}) or drop it, and run again",
            )
        if common is None:
            raise InvalidError(
                f"sink {self.name}: column {name} of {self._target} is {there}, and the view "
                f"{self.view} gains it as {kind}",
                hint=f"rename it ({rename}), and run again: the log then gets a new one",
            )

    def _stage_rows(
        self, cursor: psycopg.Cursor[tuple[object, ...]], changes: Numbered
    ) -> list[sql.Composed]:
        """Send the rows to temporary tables; returns the commands that apply them."""
        apply = []
        put, gone = latest_by_key(self.name, self.view, self._key, changes)
        gone = gone.select(list(self._key))
        version = cursor.connection.info.server_version
        nulls = any(put.column(name).null_count for name in self._key)
        if nulls and version < _NULLS_NOT_DISTINCT:
            raise InvalidError(
                f"sink {self.name}: a key of the view {self.view} is NULL, which PostgreSQL "
                "before 15 cannot keep unique",
                hint="filter such rows in the view, or upgrade the database",
            )
        target, names = self._named(self._table), put.column_names
        if gone.num_rows:
            self._stage(cursor, "stepwell_gone", target, gone)
            apply.append(self._delete(target, "="))
            if any(gone.column(name).null_count for name in self._key):
                # This form also matches NULLs, but uses no index.
                apply.append(self._delete(target, "IS NOT DISTINCT FROM"))
        if put.num_rows:
            self._stage(cursor, "stepwell_put", target, put)
            columns = sql.SQL(", ").join(map(sql.Identifier, names))
            rest = [name for name in names if name not in self._key]
            sets = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(n)) for n in rest]
            action = sql.SQL("DO UPDATE SET ") + sql.SQL(", ").join(sets)
            apply.append(
                sql.SQL(
                    "INSERT INTO {} ({}) SELECT {} FROM pg_temp.stepwell_put ON CONFLICT ({}) {}"
                ).format(
                    target,
                    columns,
                    columns,
                    sql.SQL(", ").join(map(sql.Identifier, self._key)),
                    action if rest else sql.SQL("DO NOTHING"),
                )
            )
        return apply

    def _delete(self, target: sql.Identifier, equals: str) -> sql.Composed:
        same = [
            sql.SQL("t.{0} " + equals + " s.{0}").format(sql.Identifier(name)) for name in self._key
        ]
        return sql.SQL("DELETE FROM {} t USING pg_temp.stepwell_gone s WHERE {}").format(
            target, sql.SQL(" AND ").join(same)
        )

    def _stage(
        self,
        cursor: psycopg.Cursor[tuple[object, ...]],
        name: str,
        target: sql.Identifier,
        rows: pa.Table,
    ) -> None:
        """Copy rows to a table that is dropped at the end of the transaction."""
        staged = sql.Identifier("pg_temp", name)
        columns = sql.SQL(", ").join(map(sql.Identifier, rows.column_names))
        cursor.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA"
            ).format(sql.Identifier(name), columns, target)
        )
        self._copy(cursor, staged, rows)
        cursor.execute(sql.SQL("ANALYZE {}").format(staged))

    def _copy(
        self,
        cursor: psycopg.Cursor[tuple[object, ...]],
        target: sql.Identifier,
        rows: pa.Table,
    ) -> None:
        columns = sql.SQL(", ").join(map(sql.Identifier, rows.column_names))
        command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(target, columns)
        with cursor.copy(command) as copy:
            for batch in rows.to_batches(max_chunksize=50_000):
                buffer = io.BytesIO()
                options = arrow_csv.WriteOptions(include_header=False)
                arrow_csv.write_csv(
                    _as_csv(pa.Table.from_batches([batch])), buffer, write_options=options
                )
                copy.write(buffer.getvalue())

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Cursor[tuple[object, ...]]]:
        """A database transaction, with errors classified by what the caller must do."""
        try:
            if self._connection is None or self._connection.closed:
                # Statements name tables that are created each time, so none is prepared.
                self._connection = psycopg.connect(self._dsn, prepare_threshold=None)
            with self._connection.transaction(), self._connection.cursor() as cursor:
                yield cursor
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            self.close()
            raise UnavailableError(
                f"sink {self.name} cannot reach {self._shown}: {_first_line(error)}",
                hint="check that the server runs and that dsn is right",
            ) from error
        except psycopg.Error as error:
            self.close()
            raise InvalidError(
                f"sink {self.name}: {self._shown} refuses the rows of the view {self.view}: "
                f"{_first_line(error)}",
                hint=f"compare the columns of {self._target} with those of the view",
            ) from error


def _column(field: pa.Field) -> sql.Composed:
    return sql.SQL("{} " + _kind(field)).format(sql.Identifier(field.name))


def _kind(field: pa.Field) -> str:
    """The PostgreSQL type of a column."""
    if pa.types.is_decimal(field.type):
        return f"numeric({field.type.precision},{field.type.scale})"
    return "jsonb" if pa.types.is_nested(field.type) else _TYPES.get(str(field.type), "text")


def _common_kind(found: str, wanted: str) -> str | None:
    """The column type that holds the values of both types; None if there is none."""
    wanted = _SPELLED.get(wanted, wanted)
    if found == wanted:
        return found
    if found in _INTEGERS and wanted in _INTEGERS:
        return max(found, wanted, key=list(_INTEGERS).index)
    if {found, wanted} == {"real", "double precision"}:
        return "double precision"
    one, other = _width(found), _width(wanted)
    if other is not None and found == "numeric":
        return found
    if one is None or other is None:
        return None
    precision, scale = common_width(one, other)
    return f"numeric({precision},{scale})"


def _width(kind: str) -> Width | None:
    """The precision and scale of an exact numeric type; None for any other."""
    return value_width(_INTEGERS.get(kind) or kind.replace("numeric", "decimal"))


def _as_csv(rows: pa.Table) -> pa.Table:
    """The rows, with columns as strings where CSV cannot hold them as PostgreSQL reads them."""
    columns = []
    for column in rows.columns:
        texts: list[str | None] | None = None
        if pa.types.is_nested(column.type):
            texts = [None if text == "null" else text for text in json_values(column)]
        elif pa.types.is_binary(column.type):
            texts = [None if v is None else "\\x" + v.hex() for v in column.to_pylist()]
        elif pa.types.is_duration(column.type):
            numbers = column.cast(pa.int64()).to_pylist()
            texts = [None if n is None else f"{n} microseconds" for n in numbers]
        columns.append(column if texts is None else pa.array(texts, pa.string()))
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
