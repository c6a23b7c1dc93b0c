"""Avro schemas and values for tests."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro


def logical(kind: str, word: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": word, **more}


def record(fields: dict[str, object], name: str = "row", **defaults: object) -> dict[str, Any]:
    made = [{"name": n, "type": kind} for n, kind in fields.items()]
    for item in made:
        if item["name"] in defaults:
            item["default"] = defaults[str(item["name"])]
    return {"type": "record", "name": name, "fields": made}


def encoded(schema: object, value: object) -> bytes:
    file = BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return file.getvalue()
