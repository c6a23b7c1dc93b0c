"""Rows as JSON. Decimals keep every digit, timestamps are in UTC, bytes are Base64. NaN and
infinity, which JSON lacks, are strings."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pyarrow as pa


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


def json_row(rows: pa.Table, at: int, length_max: int) -> str:
    """One row as JSON. Never fails: a value that cannot be read is described.

    Columns beyond `length_max` characters are omitted.
    """
    made: list[str] = []
    size = 0
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        made.append(f"{_text(name)}:{_any_value(column.slice(at, 1))}")
        size += len(made[-1])
        if size > length_max:
            break
    return "{" + ",".join(made) + "}"


def json_object(record: object) -> str:
    """A Python value as JSON. Never fails: values that JSON lacks become strings."""
    try:
        return json.dumps(record, ensure_ascii=False, default=str, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return repr(record)


def _any_value(column: pa.ChunkedArray) -> str:
    try:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return json_values(column)[0]
    except UnicodeDecodeError as error:
        return _text(error.object.decode(errors="replace"))
    except Exception as error:  # noqa: BLE001 - a dead letter must be written in any case
        try:
            return _text(str(column.cast(pa.string())[0].as_py()))
        except Exception:  # noqa: BLE001 - such as a date outside the calendar
            return _text(f"<{type(error).__name__}>")


def _writer(kind: pa.DataType) -> Callable[[object], str]:
    """The function that writes non-NULL values of a type."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text
    if pa.types.is_floating(kind):
        return _floating
    if pa.types.is_binary(kind):
        return lambda value: f'"{base64_text(value)}"'
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


def base64_text(value: object) -> str:
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
