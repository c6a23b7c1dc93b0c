"""What an executor tells of its views, recorded with the runs that hold them.

Runs are rows without a meaning. A description says which columns a view has, how its rows follow
from those that are stored, and how it is kept; so `query` and `explain` need not compile it again.
It is written by whoever writes the runs, in the same commit, and so always fits them.

Stored as one text, base64 of deflated JSON: it is written with every manifest, and read seldom.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stepwell.errors import CorruptError
from stepwell.query.algebra import Expr, Filter, Node, Project, Scan

FORMAT = 1
"""The next, when a description means something else. One of another format is as good as none."""


@dataclass(frozen=True, slots=True)
class DescribedView:
    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    output: Node | None
    """Filters and projections over one stored relation; None: it takes Spark to read the view."""
    stored: tuple[str, ...]
    """The types of that relation."""
    text: str
    explained: Mapping[str, Any]
    """What `explain` says of it, for a person and as JSON."""


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
    """Every view by its name in lower case; none where nothing is recorded that we can read."""
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
    except (binascii.Error, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            where, f"expected a description: {error!r}", field="described"
        ) from error
    return {view.name.lower(): view for view in views}


def readable(node: Node) -> bool:
    """Whether an output is nothing but filters and projections over one stored relation."""
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
        return Filter(below, Expr(sql, frozenset(columns)))
    items = [(name, Expr(sql, frozenset(used))) for name, sql, used in content["project"]]
    return Project(below, tuple(items))
