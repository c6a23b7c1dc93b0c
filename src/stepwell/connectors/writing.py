"""Rows to files: JSON lines, CSV and Parquet, in a form that the files source reads again.

Decimals keep every digit, moments are in UTC, bytes are Base64; NaN and infinity, which JSON does
not know, are texts. In CSV an empty field is NULL, and what is nested is JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq


class FileFormat(Enum):
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def write_rows(rows: pa.Table, path: Path, format: FileFormat) -> None:
    if format is FileFormat.PARQUET:
        pq.write_table(rows, path, compression="zstd", write_page_checksum=True)
    elif format is FileFormat.CSV:
        arrow_csv.write_csv(as_texts(rows), path)
    else:
        with open(path, "w", encoding="utf-8") as file:
            for batch in rows.to_batches(max_chunksize=10_000):
                file.writelines(json_lines(pa.Table.from_batches([batch])))


def json_lines(rows: pa.Table) -> list[str]:
    """Each row as a line of JSON.

    >>> json_lines(pa.table({"a": ["x", None], "n": [1, 2]}))
    ['{"a":"x","n":1}\\n', '{"a":null,"n":2}\\n']
    """
    names = [json.dumps(name, ensure_ascii=False).replace("%", "%%") for name in rows.column_names]
    line = "{" + ",".join(f"{name}:%s" for name in names) + "}\n"
    columns = [json_values(column) for column in rows.columns]
    return [line % values for values in zip(*columns, strict=True)]


def json_values(column: pa.ChunkedArray) -> list[str]:
    """Each value as JSON."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return [v or "null" for v in column.cast(pa.string()).to_pylist()]
    if pa.types.is_timestamp(kind):
        texts = column.cast(pa.string()).to_pylist()
        return ["null" if v is None else f'"{v.replace(" ", "T", 1)}"' for v in texts]
    write = _writer(kind)
    return ["null" if value is None else write(value) for value in column.to_pylist()]


def as_texts(rows: pa.Table) -> pa.Table:
    """The same rows, with those columns as texts that CSV cannot hold otherwise."""
    columns = []
    for column in rows.columns:
        if pa.types.is_nested(column.type):
            values = [None if v == "null" else v for v in json_values(column)]
            column = pa.chunked_array([pa.array(values, pa.string())])
        elif pa.types.is_binary(column.type):
            values = [None if v is None else _base64(v) for v in column.to_pylist()]
            column = pa.chunked_array([pa.array(values, pa.string())])
        columns.append(column)
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _writer(kind: pa.DataType) -> Callable[[object], str]:
    """The function that writes values of a type, none of them None."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text
    if pa.types.is_floating(kind):
        return _floating
    if pa.types.is_binary(kind):
        return lambda value: f'"{_base64(value)}"'
    if pa.types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if pa.types.is_timestamp(kind):
        ending = "Z" if kind.tz else ""
        return lambda value: f'"{value.replace(tzinfo=None).isoformat()}{ending}"'  # type: ignore[attr-defined]
    if pa.types.is_list(kind):
        return _list(_maybe(_writer(kind.value_type)))
    if pa.types.is_map(kind):
        return _map(_maybe(_writer(kind.item_type)))
    if pa.types.is_struct(kind):
        return _struct({field.name: _maybe(_writer(field.type)) for field in kind})
    if pa.types.is_integer(kind):
        return str
    if pa.types.is_decimal(kind):
        return lambda value: f"{value:f}"
    return lambda value: _text(str(value))


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _floating(value: object) -> str:
    text = json.dumps(value)
    return text if text[-1].isdigit() else f'"{text}"'


def _base64(value: object) -> str:
    return base64.b64encode(value).decode()  # type: ignore[arg-type]


def _maybe(write: Callable[[object], str]) -> Callable[[object], str]:
    return lambda value: "null" if value is None else write(value)


def _list(item: Callable[[object], str]) -> Callable[[object], str]:
    return lambda value: "[" + ",".join(map(item, value)) + "]"  # type: ignore[call-overload]


def _map(item: Callable[[object], str]) -> Callable[[object], str]:
    def write(value: object) -> str:
        pairs = [f"{_text(str(name))}:{item(v)}" for name, v in value]  # type: ignore[attr-defined]
        return "{" + ",".join(pairs) + "}"

    return write


def _struct(fields: dict[str, Callable[[object], str]]) -> Callable[[object], str]:
    def write(value: object) -> str:
        pairs = [f"{_text(n)}:{item(value[n])}" for n, item in fields.items()]  # type: ignore[index]
        return "{" + ",".join(pairs) + "}"

    return write
