"""`stepwell query`: the answer to one SELECT, as of a stated transaction.

The process that runs the pipeline answers; if there is none, the state is read without claiming the
pipeline. Either way no writer is disturbed.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa

from stepwell.cli.choices import QueryFormat
from stepwell.cli.pipeline_access import running
from stepwell.cli.progress import LongWork
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Row, Screen, count, plain
from stepwell.connectors.writing import as_texts, json_lines, json_values
from stepwell.deploy.describe import described
from stepwell.deploy.pipeline import check_one_query
from stepwell.deploy.project import Project
from stepwell.deploy.snapshot import Snapshot, query_latest
from stepwell.engine.answer import Answer
from stepwell.env import Env, SystemEnv


def show(where: ProjectOptions, sql: str, format: QueryFormat) -> None:
    env = SystemEnv()
    project = where.deployed(env, secrets=False)
    ask = Asker(project, env, where)
    transaction: int | None = None
    rows = described(project, sql, lambda query: ask(query).rows)
    if rows is None:
        check_one_query(sql)
        answer = ask(sql)
        rows, transaction = answer.rows, answer.transaction
    if where.json:
        _document(rows, transaction)
        return
    write(rows, format)
    as_of = "" if transaction is None else f" as of transaction {transaction}"
    print(f"{count(rows.num_rows, 'row')}{as_of}", file=sys.stderr)


class Asker:
    """Answers queries through the process that runs the pipeline, or from its store."""

    def __init__(self, project: Project, env: Env, where: ProjectOptions) -> None:
        self._project = project
        self._env = env
        self._where = where
        self._snapshot: Snapshot | None = None

    def __call__(self, sql: str) -> Answer:
        if self._snapshot is not None:
            return self._snapshot.query(sql)
        client = running(self._project, self._env, self._where.timeout_s)
        if client is not None:
            with client:
                return client.query(sql)
        answer, self._snapshot = query_latest(
            self._project, self._env, sql, self._starting, LongWork(self._env)
        )
        return answer

    def _starting(self, why: str) -> None:
        if not self._where.json:
            print(f"no process runs the pipeline, starting Spark ({why})", file=sys.stderr)


def _document(rows: pa.Table, transaction: int | None) -> None:
    """Print one JSON document; rows are formatted separately, because decimals keep every digit."""
    columns = json.dumps(rows.column_names, ensure_ascii=False)
    lines = ",\n".join(line.rstrip("\n") for line in json_lines(rows))
    number = json.dumps(transaction)
    print(f'{{"transaction": {number}, "columns": {columns}, "rows": [\n{lines}\n]}}')


def write(rows: pa.Table, format: QueryFormat) -> None:
    """Write rows to standard output."""
    if format is QueryFormat.ARROW:
        sys.stdout.flush()
        with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
            stream.write_table(rows)
    elif format is QueryFormat.CSV:
        import pyarrow.csv as arrow_csv

        sys.stdout.flush()
        arrow_csv.write_csv(as_texts(rows), sys.stdout.buffer)
        sys.stdout.buffer.flush()
    elif format is QueryFormat.JSON:
        for batch in rows.to_batches(max_chunksize=10_000):
            sys.stdout.writelines(json_lines(pa.Table.from_batches([batch])))
    else:
        _table(rows)


def _table(rows: pa.Table) -> None:
    if not rows.num_columns:
        return
    names = [
        (">" if _is_number(field.type) else "") + (plain(field.name) or " ")
        for field in rows.schema
    ]
    columns = [_cells(column) for column in rows.columns]
    Screen().table([*names, ""], [Row(cells) for cells in zip(*columns, strict=True)])


def _is_number(kind: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))


def _cells(column: pa.ChunkedArray) -> list[str]:
    texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if texts:
        return ["NULL" if value is None else plain(value) for value in column.to_pylist()]
    values = json_values(column)
    return ["NULL" if v == "null" else plain(v.removeprefix('"').removesuffix('"')) for v in values]
