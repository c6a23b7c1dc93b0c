"""Avro schemas, and decoding and encoding values with them.

Both are `fastavro`'s. Logical types are decoded here, exactly: no digit is rounded, and a value
that Spark cannot hold is refused. Bytes may be anything, so a schema is accepted only if no bytes
can make its values large. It must not be recursive: a deep value would overflow the stack, and
Spark has no such types either. No item of an array may hold values that take no bytes: a length of
a few bytes would fill the memory. And it must not have more than `_NODES_MAX` types, each counted
wherever it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any, NamedTuple

import pyarrow as pa

from stepwell.connectors.values import Unfit
from stepwell.errors import ConfigError
from stepwell.plan.numbers import DIGITS_MAX

try:
    from fastavro import parse_schema, schemaless_reader, schemaless_writer
    from fastavro import validate as check_value
    from fastavro.read import LOGICAL_READERS, SchemaResolutionError
    from fastavro.validation import ValidationError
except ImportError as error:
    raise ConfigError(
        "Avro needs fastavro, which is not installed", hint="pip install 'stepwell[kafka]'"
    ) from error

Texts = tuple[str, ...]
"""A schema as JSON, after those that it refers to."""

TEXT_MAX = 1 << 20
_DEPTH_MAX = 100
_NODES_MAX = 10_000
"""Types within a schema, with named types counted wherever they are used."""
_BITS_MAX = 512
"""Of the unscaled value of a decimal: far more than Spark holds."""
_PREFIX = "stepwell-"
"""Distinguishes our readers of logical types from those of `fastavro`, in its registry of them."""


class BadSchemaError(Exception):
    """The reason why a schema cannot be used."""


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema that was checked."""

    texts: Texts
    parsed: Any = field(repr=False, compare=False)
    """The schema for `fastavro`, with our names of logical types."""

    def decode(self, data: bytes, start: int = 0, reader: AvroSchema | None = None) -> object:
        """Decode the value that follows `start` up to the end; raises `Unfit` if it is invalid.

        With a reader's schema, the value is resolved to it, as Avro's specification says.
        """
        file = BytesIO(data)
        file.seek(start)
        try:
            value = schemaless_reader(file, self.parsed, None if reader is None else reader.parsed)
        except Unfit:
            raise
        except EOFError:
            raise Unfit("not a value of its Avro schema: it ends too early") from None
        except SchemaResolutionError as error:
            raise Unfit(f"cannot be read with the given schema: {error}") from None
        except Exception as error:  # noqa: BLE001 - the bytes may be anything
            told = f"{type(error).__name__}: {error}"
            raise Unfit(f"not a value of its Avro schema: {told}") from None
        left = len(data) - file.tell()
        if left:
            raise Unfit(f"not a value of its Avro schema: {left} bytes are left over")
        return value

    def columns(self) -> Mapping[str, pa.DataType] | None:
        """The fields of a record as Arrow types, if it is one and its fields are simple."""
        if not isinstance(self.parsed, dict) or self.parsed["type"] != "record":
            return None
        made = {item["name"]: _arrow_type(item["type"]) for item in self.parsed["fields"]}
        return None if None in made.values() else made

    def table(self, values: Sequence[object], types: Mapping[str, pa.DataType]) -> pa.Table | None:
        """Decoded records as columns of these types; None if a value does not fit its type."""
        rows: Any = values
        try:
            columns = [pa.array([row[name] for row in rows], kind) for name, kind in types.items()]
        except (pa.ArrowException, ValueError, TypeError, KeyError, ArithmeticError):
            return None
        return pa.Table.from_arrays(columns, names=list(types))


def read_schema(texts: Texts) -> AvroSchema:
    """Parse and check a schema; raises `BadSchemaError`."""
    named: dict[str, Any] = {}
    parsed: Any = None
    for text in texts:
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadSchemaError(f"it is not JSON: {error}") from None
        _check_depth(text, given)
        try:
            parsed = parse_schema(given, named_schemas=named)
        except Exception as error:  # noqa: BLE001 - fastavro raises what it likes on a bad schema
            raise BadSchemaError(f"{type(error).__name__}: {error}") from None
    try:
        made = parse_schema(_Checker(named).checked(parsed, ()).schema)
        if isinstance(made, dict):
            _decode_defaults(made, made["__named_schemas"])
        return AvroSchema(texts, made)
    except (KeyError, TypeError, ValueError) as error:
        raise BadSchemaError(f"{type(error).__name__}: {error}") from None


def parse_plain(text: str) -> Any:
    """Parse a schema for `encode`, with the logical types of `fastavro`."""
    return parse_schema(json.loads(text))


def encode(file: BytesIO, schema: Any, row: Mapping[str, object], *, checked: bool) -> None:
    """Append an encoded row. `checked`: with a schema that may not be one of such rows.

    Raises `ValueError` and others if the row does not fit.
    """
    if checked:
        try:
            check_value(row, schema, strict=True)
        except ValidationError as error:
            raise ValueError(", ".join(map(str, error.errors))) from None
    schemaless_writer(file, schema, row, strict=True)


def _check_depth(text: str, given: object) -> None:
    if len(text) > TEXT_MAX:
        raise BadSchemaError(f"its {len(text)} characters are more than {TEXT_MAX}")
    level, depth = [given], 0
    while level:
        depth += 1
        if depth > 4 * _DEPTH_MAX:
            raise BadSchemaError("it is nested too deeply")
        inner = [
            item.values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, (dict, list))
        ]
        level = [part for items in inner for part in items]


class _Checked(NamedTuple):
    schema: Any
    nodes: int
    empties: int
    """How many values within a value take no bytes at all."""


class _Checker:
    """Rewrites a schema to one that does not depend on others, with our logical types."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._done: dict[str, _Checked] = {}

    def checked(self, schema: Any, path: tuple[str, ...], depth: int = 0) -> _Checked:
        made = self._type(schema, path, depth + 1)
        if made.nodes > _NODES_MAX or depth > _DEPTH_MAX:
            raise BadSchemaError(f"it has more than {_NODES_MAX} types, or is nested too deeply")
        return made

    def _type(self, schema: Any, path: tuple[str, ...], depth: int) -> _Checked:
        if isinstance(schema, list):
            parts = [self.checked(part, path, depth) for part in schema]
            # The byte that says which type it is pays for one of them.
            empties = max((part.empties for part in parts), default=1) - 1
            nodes = 1 + sum(part.nodes for part in parts)
            return _Checked([part.schema for part in parts], nodes, max(0, empties))
        if isinstance(schema, str):
            return self._name(schema, path, depth)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.checked(kind, path, depth)
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(schema, path, depth)
        if kind == "array":
            items = self.checked(schema["items"], path, depth)
            if items.empties:
                raise BadSchemaError("it has an array whose items hold values that take no bytes")
            return _Checked({"type": kind, "items": items.schema}, 1 + items.nodes, 0)
        if kind == "map":
            values = self.checked(schema["values"], path, depth)
            if values.empties > 1:  # A key takes a byte.
                raise BadSchemaError("it has a map whose items hold values that take no bytes")
            return _Checked({"type": kind, "values": values.schema}, 1 + values.nodes, 0)
        if kind in self._named:
            return self._name(kind, path, depth)
        return _Checked({"type": kind, **_logical(schema)}, 1, int(kind == "null"))

    def _name(self, name: str, path: tuple[str, ...], depth: int) -> _Checked:
        if name in path:
            raise BadSchemaError(f"{name} is recursive, which no column can hold")
        if name in self._named:
            return self._define(self._named[name], path, depth)
        return _Checked(name, 1, int(name == "null"))

    def _define(self, schema: Any, path: tuple[str, ...], depth: int) -> _Checked:
        """A named type: its definition the first time, then its name."""
        name = schema["name"]
        if name in path:
            raise BadSchemaError(f"{name} is recursive, which no column can hold")
        if name in self._done:
            return self._done[name]
        kind = "record" if schema["type"] == "error" else schema["type"]
        made: dict[str, Any] = {"type": kind, "name": name, **_logical(schema)}
        made |= {word: schema[word] for word in ("aliases", "doc") if word in schema}
        nodes, empties = 1, 0
        if kind == "enum":
            made |= {word: schema[word] for word in ("symbols", "default") if word in schema}
        elif kind == "fixed":
            made["size"] = schema["size"]
            empties = int(not schema["size"])
        else:
            fields = []
            empties = int(not schema["fields"])
            for item in schema["fields"]:
                inner = self.checked(item["type"], (*path, name), depth)
                nodes += inner.nodes
                empties += inner.empties
                fields.append({**item, "type": inner.schema})
            made["fields"] = fields
        self._done[name] = _Checked(name, nodes, empties)
        return _Checked(made, nodes, empties)


def _logical(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The logical type that we read, under our name; other ones are left out."""
    kind = schema["type"]
    # What Debezium's and Kafka Connect's converters say goes beyond Avro's types.
    connect = _CONNECT.get(str(schema.get("connect.name")))
    for word in (connect, schema.get("logicalType")):
        if f"{kind}-{_PREFIX}{word}" not in _READERS:
            continue
        made: dict[str, Any] = {"logicalType": f"{_PREFIX}{word}"}
        if word == "decimal":
            scale, precision = schema.get("scale", 0), schema.get("precision", 0)
            if type(scale) is not int or type(precision) is not int or not 0 <= scale <= precision:
                continue
            made |= {"scale": scale, "precision": precision}
        return made
    return {}


_CONNECT = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.time.NanoTimestamp": "local-timestamp-nanos",
    "io.debezium.data.VariableScaleDecimal": "variable-decimal",
    "org.apache.kafka.connect.data.Timestamp": "local-timestamp-millis",
}


# Defaults of a reader's schema


def _decode_defaults(schema: Any, named: Mapping[str, Any]) -> None:
    """Replace the defaults of all fields, which `fastavro` returns as they are, by their values."""
    records = [part for part in named.values() if part["type"] == "record"]
    values = [
        [
            (item, _default(item["type"], item["default"], named))
            for item in part["fields"]
            if "default" in item
        ]
        for part in records
    ]
    for item, value in (pair for pairs in values for pair in pairs):
        item["default"] = value


def _default(schema: Any, given: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        # Before Avro 1.12, only values of the first type were allowed.
        schema = next((p for p in schema if (p == "null") == (given is None)), schema[0])
    if isinstance(schema, str):
        if schema not in named:
            return given.encode("latin-1") if schema == "bytes" else given
        schema = named[schema]
    kind, value = schema["type"], given
    if kind in ("bytes", "fixed"):
        value = given.encode("latin-1")
    elif kind == "array":
        value = [_default(schema["items"], item, named) for item in given]
    elif kind == "map":
        value = {name: _default(schema["values"], item, named) for name, item in given.items()}
    elif kind == "record":
        parts = {item["name"]: item.get("default") for item in schema["fields"]} | given
        value = {
            item["name"]: _default(item["type"], parts[item["name"]], named)
            for item in schema["fields"]
        }
    read = _READERS.get(f"{kind}-{schema.get('logicalType')}")
    try:
        return value if read is None else read(value, schema, None)
    except Unfit as unfit:
        raise BadSchemaError(f"the default {given!r}: {unfit}") from None


# Logical types

_DAY_ZERO = date(1970, 1, 1)
_MOMENT_ZERO = datetime(1970, 1, 1)
_PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


def _decimal(data: bytes, writer: Any, reader: Any) -> Decimal:
    if isinstance(reader, dict) and _scale(reader) != _scale(writer):
        raise Unfit(f"a decimal of scale {_scale(writer)} is not one of scale {_scale(reader)}")
    return _unscaled(data, writer["scale"])


def _scale(schema: Any) -> object:
    return schema.get("scale")


def _unscaled(data: bytes, scale: int) -> Decimal:
    number = int.from_bytes(data, "big", signed=True)
    if number.bit_length() > _BITS_MAX:
        raise Unfit(f"a decimal of {len(data)} bytes is too large")
    # Written as digits, because arithmetic rounds to the precision of a context.
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _variable_decimal(value: Any, writer: Any, reader: Any) -> Decimal:
    scale, data = value.get("scale"), value.get("value")
    if type(scale) is not int or abs(scale) > 100 or not isinstance(data, bytes):
        raise Unfit("not a decimal with a scale of its own")
    return _unscaled(data, scale)


def _date(days: int, writer: Any, reader: Any) -> date:
    try:
        return _DAY_ZERO + timedelta(days=days)
    except OverflowError:
        raise Unfit(f"the date {days} days from 1970 is out of range") from None


def _moments(unit: str, zero: datetime) -> Callable[[int, Any, Any], datetime]:
    per_second = _PER_SECOND[unit]

    def read(count: int, writer: Any, reader: Any) -> datetime:
        try:
            # Digits beyond microseconds are dropped, as Spark does.
            return zero + timedelta(microseconds=count * 1_000_000 // per_second)
        except OverflowError:
            raise Unfit(f"the time {count} {unit} from 1970 is out of range") from None

    return read


def _uuid(data: bytes, writer: Any, reader: Any) -> str:
    if len(data) != 16:
        raise Unfit(f"a UUID of {len(data)} bytes")
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


_READERS: dict[str, Callable[[Any, Any, Any], object]] = {
    f"bytes-{_PREFIX}decimal": _decimal,
    f"fixed-{_PREFIX}decimal": _decimal,
    f"record-{_PREFIX}variable-decimal": _variable_decimal,
    f"int-{_PREFIX}date": _date,
    f"fixed-{_PREFIX}uuid": _uuid,
}
for _unit in _PER_SECOND:
    _READERS |= {
        f"long-{_PREFIX}timestamp-{_unit}": _moments(_unit, _MOMENT_ZERO.replace(tzinfo=UTC)),
        f"long-{_PREFIX}local-timestamp-{_unit}": _moments(_unit, _MOMENT_ZERO),
    }
LOGICAL_READERS.update(_READERS)

_ARROW = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}


def _arrow_type(schema: Any) -> pa.DataType | None:
    """The type of a field, which may also be null; None if it is not simple."""
    if isinstance(schema, list):
        rest = [part for part in schema if part not in ("null", {"type": "null"})]
        return _arrow_type(rest[0]) if len(rest) == 1 and rest[0] not in ([], "null") else None
    if isinstance(schema, str):
        return _ARROW.get(schema)
    word = schema.get("logicalType", "").removeprefix(_PREFIX)
    if word == "decimal":
        precision = schema["precision"]
        return pa.decimal128(precision, schema["scale"]) if precision <= DIGITS_MAX else None
    if word == "date":
        return pa.date32()
    if word == "uuid":
        return pa.string()
    if word:
        zone = None if word.startswith("local-") else "UTC"
        return None if schema["type"] == "record" else pa.timestamp("us", zone)
    return _ARROW.get(schema["type"])
