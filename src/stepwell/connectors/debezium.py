"""Debezium change events, translated into puts and deletes.

An event is `{"before": row, "after": row, "op": "c" | "r" | "u" | "d"}`, alone or as the `payload`
next to a `schema`. A tombstone (null) adds nothing to the delete before it. With a schema, the
numbers that encode dates, times and decimals are decoded. Without one, only dates are, because a
bare number does not tell its unit.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal

from stepwell.connectors.shape import Row, Shape
from stepwell.connectors.values import Unfit, shown

PUTS = ("c", "r")
"""Created, and read during the initial snapshot."""
_DAY_ZERO = date(1970, 1, 1)
_MOMENT_ZERO = datetime(1970, 1, 1)
_UNITS = {
    "io.debezium.time.Timestamp": 1_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1_000_000,
    "io.debezium.time.NanoTimestamp": 1_000_000_000,
}
_DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"


def debezium_operations(event: object, shape: Shape) -> list[tuple[bool, Row]]:
    """The operations of an event, in order: True with a row to put, False with a row to delete."""
    schema: object = None
    if isinstance(event, Mapping) and "payload" in event:
        schema, event = event.get("schema"), event["payload"]
    if event is None:
        return []
    if not isinstance(event, Mapping) or "op" not in event:
        raise Unfit("not a Debezium event: it has no op")
    operation = event["op"]
    if operation == "m":  # A logical message in the database's log, not a row.
        return []

    def row(side: str, *, put: bool) -> tuple[bool, Row]:
        record = event.get(side)
        if not isinstance(record, Mapping):
            raise Unfit(f"the event has op {operation}, but no {side}")
        return put, shape.row_of(_meant(record, schema, side, shape), put=put)

    if operation in PUTS:
        return [row("after", put=True)]
    if operation == "d":
        return [row("before", put=False)]
    if operation == "u":
        if event.get("before") is not None:
            before, after = row("before", put=False), row("after", put=True)
            # If the key is unchanged, put the new row only: the old one may be missing, because the
            # table may have started after it was inserted.
            keeps = shape.key and all(before[1][place] == after[1][place] for place in shape.key)
            return [after] if keeps else [before, after]
        if not shape.key:
            raise Unfit("an update of a table without a key must contain the row before")
        return [row("after", put=True)]
    raise Unfit(f"op {shown(operation)} is not supported")


def _meant(
    record: Mapping[str, object], schema: object, side: str, shape: Shape
) -> Mapping[str, object]:
    """The record with encoded numbers replaced by the values they stand for."""
    fields = _fields(schema, side)
    made: dict[str, object] = {}
    for name, value in record.items():
        field = fields.get(name)
        try:
            made[name] = value if field is None else _value(value, field)
        except (ValueError, OverflowError, TypeError, binascii.Error):
            raise Unfit(f"{name}: {shown(value)} does not match the event's schema") from None
        place = shape.places.get(name.lower())
        if place is not None and type(made[name]) is int:
            made[name] = _counted(made[name], shape.columns[place].kind.name, name)
    return made


def _counted(value: object, kind: str, name: str) -> object:
    if kind == "date" and isinstance(value, int):
        try:
            return _DAY_ZERO + timedelta(days=value)
        except OverflowError:
            raise Unfit(f"{name}: {value} days are out of range") from None
    if kind in ("timestamp", "timestamp_ntz"):
        raise Unfit(
            f"{name}: the number {value} is not a valid timestamp in an event without a schema"
        )
    return value


def _fields(schema: object, side: str) -> dict[str, Mapping[str, object]]:
    """The schema of an event for the columns of one of its rows."""
    for part in _listed(schema):
        if part.get("field") == side:
            return {str(field.get("field")): field for field in _listed(part)}
    return {}


def _listed(schema: object) -> list[Mapping[str, object]]:
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    return [f for f in fields if isinstance(f, Mapping)] if isinstance(fields, list) else []


def _value(value: object, field: Mapping[str, object]) -> object:
    name = field.get("name")
    if value is None or not isinstance(name, str):
        return value
    if name in _DATES and isinstance(value, int):
        return _DAY_ZERO + timedelta(days=value)
    if name in _UNITS and isinstance(value, int):
        return _MOMENT_ZERO + timedelta(microseconds=value * 1_000_000 // _UNITS[name])
    if name == _DECIMAL and isinstance(value, str):
        parameters = field.get("parameters")
        scale = parameters.get("scale", 0) if isinstance(parameters, Mapping) else 0
        return _decimal(value, int(scale))
    if name == _VARIABLE_DECIMAL and isinstance(value, Mapping):
        return _decimal(value.get("value"), int(value.get("scale", 0)))
    return value


def _decimal(value: object, scale: int) -> Decimal:
    """Decode base64 of the unscaled value, a signed big-endian integer."""
    if not isinstance(value, str) or abs(scale) > 100:
        raise ValueError("not a decimal")
    number = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
