"""One journal entry, as text or as JSON, down to the first rows of its data."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from stepwell.cli.addresses import Single
from stepwell.cli.screen import Row, Screen, count, plain, size
from stepwell.errors import CorruptError
from stepwell.journal.codec import decode
from stepwell.journal.entry import Input, Recorded
from stepwell.model import Bytes, format_time

ROWS_SHOWN = 10


def entry_json(recorded: Recorded) -> dict[str, Any]:
    """Return everything but the data itself."""
    entry, draft = recorded.entry, recorded.entry.draft
    return {
        "epoch": entry.epoch,
        "kind": draft.kind.value,
        "void": recorded.void,
        "transaction": draft.transaction,
        "step": draft.step,
        "closes": draft.closes,
        "time": format_time(draft.time),
        "lineage": entry.lineage,
        "put_id": entry.put_id,
        "previous": entry.previous,
        "checksum": recorded.checksum,
        "inputs": [_input_json(item) for item in draft.inputs],
    }


def _input_json(item: Input) -> dict[str, Any]:
    return {
        "source": item.source,
        "table": item.table,
        "rows": item.rows,
        "checksum": item.checksum,
        "reference": _parsed(item.reference),
        "data_bytes": None if item.data is None else len(item.data),
    }


def _parsed(reference: str | None) -> Any:
    """Parse a reference. It is JSON by convention; any other text is returned as it is."""
    if reference is None:
        return None
    try:
        return json.loads(reference)
    except ValueError:
        return reference


def show_entry(screen: Screen, single: Single, *, json: bool) -> None:
    entry, checksum = decode(single.data, single.where)
    if single.number is not None and entry.position != single.number:
        raise CorruptError(
            single.where, f"holds the entry of position {entry.position}", field="position"
        )
    content = {
        "object": single.where,
        "bytes": len(single.data),
        "position": entry.position,
        **entry_json(Recorded(entry, checksum)),
    }
    # Whether it is void depends on the entries before it, which were not read.
    del content["void"]
    for shown, item in zip(content["inputs"], entry.draft.inputs, strict=True):
        shown["data"] = None if item.data is None else preview(item.data)
    if json:
        screen.json(content)
    else:
        _render(screen, content)


def preview(data: Bytes) -> dict[str, Any]:
    """Return the schema and the first rows of an Arrow IPC stream; `problem` if it is not one."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            rows: list[dict[str, Any]] = []
            for batch in reader:
                # The checksum vouches for the bytes, not for the program that made them.
                batch.validate(full=True)
                rows += batch.slice(0, ROWS_SHOWN - len(rows)).to_pylist()
                if len(rows) >= ROWS_SHOWN:
                    break
            schema = [{"name": field.name, "type": str(field.type)} for field in reader.schema]
    except (pa.ArrowException, OSError, ValueError) as error:
        return {"problem": f"not an Arrow IPC stream: {error}"}
    return {"schema": schema, "first_rows": rows}


def _render(screen: Screen, content: dict[str, Any]) -> None:
    names = ("position", "epoch", "kind", "transaction", "step", "closes", "time", "lineage")
    facts = [("entry", content["object"]), ("size", size(content["bytes"]))]
    facts += [(name, _text(content[name])) for name in names]
    facts.append(("put id", content["put_id"]))
    facts += [(name, content[name]) for name in ("previous", "checksum")]
    screen.facts(facts)
    if not content["inputs"]:
        screen.line()
        screen.line("It has no inputs.")
    for item in content["inputs"]:
        screen.line()
        screen.line(f"{plain(item['source'])} -> {plain(item['table'])}", "bold")
        details = [("rows", f"{item['rows']:,}"), ("checksum", item["checksum"])]
        if item["reference"] is not None:
            details.append(("reference", plain(json.dumps(item["reference"], ensure_ascii=False))))
        if item["data"] is not None:
            details.append(("data", _data(item)))
        screen.facts(details, indent="  ")
        if item["data"] and item["data"].get("first_rows"):
            _render_rows(screen, item)


def _data(item: dict[str, Any]) -> str:
    data = item["data"]
    if "problem" in data:
        return f"{size(item['data_bytes'])}, {data['problem']}"
    columns = ", ".join(f"{plain(field['name'])} {field['type']}" for field in data["schema"])
    return f"{size(item['data_bytes'])}, Arrow IPC stream: {columns}"


def _render_rows(screen: Screen, item: dict[str, Any]) -> None:
    rows = item["data"]["first_rows"]
    names = [field["name"] for field in item["data"]["schema"]]
    cells = [tuple(_cell(row[name]) for name in names) for row in rows]
    screen.line()
    # The last column may be long, so it is the one that is wrapped.
    screen.table(
        [*(plain(name) for name in names[:-1]), plain(names[-1])],
        [Row(values[:-1], values[-1]) for values in cells],
    )
    if item["rows"] > len(rows):
        screen.line(f"... {count(item['rows'] - len(rows), 'more row')}", "dim")


def _cell(value: Any) -> str:
    return "" if value is None else plain(str(value))


def _text(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
