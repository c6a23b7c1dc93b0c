"""Descriptions of views, stored next to the runs that hold their rows.

Runs hold rows without their meaning. A description records the columns of a view, how its rows
derive from the stored ones, and how it is maintained, so `query` and `explain` need not compile the
view again. The writer of the runs writes the description in the same commit, so it always matches.

A description is stored as base64 of deflated JSON: it is written with every manifest and rarely
read.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot.errors import SqlglotError

from stepwell.errors import CorruptError
from stepwell.plan.expressions import parse
from stepwell.plan.nodes import Filter, Node, Project, Scan

FORMAT = 2
"""Increment when the meaning of a description changes. Other formats are ignored."""


@dataclass(frozen=True, slots=True)
class DescribedView:
    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    output: Node | None
    """Filters and projections over one stored relation; None if reading the view needs Spark."""
    stored: tuple[str, ...]
    """The column types of that relation."""
    text: str
    explained: Mapping[str, Any]
    """The output of `explain` as JSON; `text` is the same for a person."""


def describe(views: Iterable[DescribedView]) -> str:
    content = [
        {
            "name": view.name,
            "columns": view.columns,
            "types": view.types,
            "output": None if view.output is None else node_to_json(view.output),
            "stored": view.stored,
            "text": view.text,
            "explained": view.explained,
        }
        for view in views
    ]
    body = json.dumps({"format": FORMAT, "views": content}, ensure_ascii=False)
    return base64.b64encode(zlib.compress(body.encode())).decode("ascii")


def read_description(text: str | None, where: str) -> dict[str, DescribedView]:
    """The described views by lower-case name; empty without a description in this format."""
    if text is None:
        return {}
    try:
        content = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
        if content["format"] != FORMAT:
            return {}
        views = [
            DescribedView(
                str(item["name"]),
                tuple(item["columns"]),
                tuple(item["types"]),
                None if item["output"] is None else node_from_json(item["output"]),
                tuple(item["stored"]),
                str(item["text"]),
                dict(item["explained"]),
            )
            for item in content["views"]
        ]
    except (
        binascii.Error,
        zlib.error,
        SqlglotError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise CorruptError(
            where, f"expected a description: {error!r}", field="described"
        ) from error
    return {view.name.lower(): view for view in views}


def readable(node: Node) -> bool:
    """Whether an output consists only of filters and projections over one stored relation."""
    while isinstance(node, Filter | Project):
        node = node.input
    return isinstance(node, Scan)


def node_to_json(node: Node) -> dict[str, Any]:
    match node:
        case Filter():
            condition = [node.condition.sql, sorted(node.condition.columns)]
            return {"filter": condition, "input": node_to_json(node.input)}
        case Project():
            items = [[name, expr.sql, sorted(expr.columns)] for name, expr in node.items]
            return {"project": items, "input": node_to_json(node.input)}
        case Scan():
            return {"scan": node.relation, "columns": list(node.columns)}
        case _:
            raise TypeError(f"{type(node).__name__} is not described")


def node_from_json(content: Mapping[str, Any]) -> Node:
    if "scan" in content:
        return Scan(str(content["scan"]), tuple(content["columns"]))
    below = node_from_json(content["input"])
    if "filter" in content:
        sql, columns = content["filter"]
        return Filter(below, parse(sql, columns))
    items = [(name, parse(sql, used)) for name, sql, used in content["project"]]
    return Project(below, tuple(items))
