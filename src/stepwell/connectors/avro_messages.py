"""Encoding rows as Avro for Kafka: with a schema made from their columns, or with a given one.

A schema is made once for all rows with the same columns: a record of nullable fields with default
null, so that later columns are a compatible change. With a registry it is registered before the
first row is encoded, and each value begins with a zero byte and four bytes of its id. Encoding the
same rows gives the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa

from stepwell.connectors.avro import BadSchemaError, Texts, encode, parse_plain
from stepwell.connectors.avro_registry import Registry
from stepwell.connectors.kafka_messages import TRANSACTION
from stepwell.errors import InvalidError
from stepwell.lsm.arrow_types import spark_type
from stepwell.lsm.change import WEIGHT

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_NAME = re.compile(r"[^A-Za-z0-9_]")
_REQUIRED = (WEIGHT, TRANSACTION)


class AvroEncoder:
    """Encodes rows as values, or as keys. It is an `Encode` of `kafka_messages.py`."""

    def __init__(
        self, sink: str, record: str, subject: str, registry: Registry | None, given: Texts | None
    ) -> None:
        """`record` names the record of a schema that is made."""
        self._sink = sink
        self._record = _NOT_NAME.sub("_", record) or "row"
        self._subject = subject
        self._registry = registry
        self._given = given
        self._made: tuple[pa.Schema, bytes, Any] | None = None
        """The columns of the last rows, with the head of their values and the parsed schema."""

    def __call__(self, rows: pa.Table) -> Sequence[bytes]:
        head, parsed = self._schema(rows.schema)
        names, columns = rows.column_names, [_values(column) for column in rows.columns]
        checked = self._given is not None
        made: list[bytes] = []
        for values in zip(*columns, strict=True):
            file = BytesIO()
            file.write(head)
            try:
                encode(file, parsed, dict(zip(names, values, strict=True)), checked=checked)
            except (ValueError, TypeError, OverflowError, KeyError, ArithmeticError) as error:
                raise InvalidError(
                    f"sink {self._sink}: a row does not fit its Avro schema: {error}",
                    hint="change the option schema, or convert the column in the view",
                ) from error
            made.append(file.getvalue())
        return made

    def _schema(self, columns: pa.Schema) -> tuple[bytes, Any]:
        if self._made is None or not self._made[0].equals(columns):
            text = self._text_for(columns)
            head = b""
            if self._registry is not None:
                head = b"\0" + self._registry.register(self._subject, text).to_bytes(4, "big")
            self._made = (columns, head, parse_plain(text))
        return self._made[1:]

    def _text_for(self, columns: pa.Schema) -> str:
        if self._given is not None:
            self._check_given(columns)
            return self._given[-1]
        try:
            made = _record(self._record, columns)
        except BadSchemaError as error:
            raise InvalidError(
                f"sink {self._sink}: {error}",
                hint="give it another name or type in the view, or use format: json",
            ) from None
        return json.dumps(made, separators=(",", ":"))

    def _check_given(self, columns: pa.Schema) -> None:
        """Check that no column is dropped, and that no field would be missing."""
        given = json.loads((self._given or ("{}",))[-1])
        fields = {item["name"]: item for item in given.get("fields", [])}
        more = [name for name in columns.names if name not in fields]
        less = [name for name in fields if name not in columns.names]
        told = None
        if more:
            told = f"the Avro schema has no field {more[0]}, which is a column of the view"
        elif less:
            told = f"the view has no column {less[0]}, which is a field of the Avro schema"
        if told is not None:
            raise InvalidError(
                f"sink {self._sink}: {told}", hint="change the option schema or the view"
            )


def _record(name: str, fields: Sequence[pa.Field]) -> dict[str, Any]:
    made = []
    for item in fields:
        if not _NAME.fullmatch(item.name):
            raise BadSchemaError(f"the column {item.name} does not have a valid name in Avro")
        kind = _type_of(item.type, f"{name}_{item.name}", item.name)
        if item.name in _REQUIRED:
            made.append({"name": item.name, "type": kind})
        else:
            made.append({"name": item.name, "type": ["null", kind], "default": None})
    return {"type": "record", "name": name, "fields": made}


def _type_of(kind: pa.DataType, name: str, column: str) -> Any:
    types = pa.types
    if types.is_decimal(kind):
        logical = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **logical}
    if types.is_timestamp(kind):
        word = "timestamp-micros" if kind.tz else "local-timestamp-micros"
        return {"type": "long", "logicalType": word}
    if types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_list(kind):
        return {"type": "array", "items": ["null", _type_of(kind.value_type, name, column)]}
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _type_of(kind.item_type, name, column)]}
    if types.is_struct(kind):
        return _record(name, list(kind))
    found = _TYPES.get(kind)
    if found is None:
        raise BadSchemaError(
            f"the column {column} is a {spark_type(kind).upper()}, which Avro does not have"
        )
    return found


_TYPES = {
    pa.bool_(): "boolean",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), "int"),
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
}


# Values


def _values(column: pa.ChunkedArray) -> list[Any]:
    found: list[Any] = column.to_pylist()
    convert = _conversion(column.type)
    return found if convert is None else [None if v is None else convert(v) for v in found]


def _conversion(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """The conversion of a value for `fastavro`; None if it needs none: only maps do."""
    types = pa.types
    if types.is_map(kind):
        inner = _conversion(kind.item_type)
        return lambda pairs: {name: _maybe(inner, item) for name, item in pairs}
    if types.is_list(kind):
        inner = _conversion(kind.value_type)
        return None if inner is None else lambda items: [_maybe(inner, item) for item in items]
    if types.is_struct(kind):
        parts = {part.name: _conversion(part.type) for part in kind}
        if not any(parts.values()):
            return None
        return lambda row: {name: _maybe(parts[name], item) for name, item in row.items()}
    return None


def _maybe(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)
