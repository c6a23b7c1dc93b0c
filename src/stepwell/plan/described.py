"""Descriptions of views, stored next to the runs that hold their rows.

Runs hold rows without their meaning. A description records the columns of a view, how its rows
derive from the stored ones, and how it is maintained, so `query` and `explain` need not compile the
view again. The writer of the runs writes the description in the same commit, so it always matches.

The description is also where the decisions on backends are stored (`Decided`). They are made when a
program is deployed, and read when the pipeline is opened. They depend on what the local backend
computes in this version of the code, which has a number: decisions with another number are made
again when the pipeline is opened, and stored by the next flush.

A description is stored as base64 of deflated JSON: it is written with every manifest and rarely
read.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot.errors import SqlglotError

from stepwell.errors import CorruptError
from stepwell.plan.explain import Decided, Explained
from stepwell.plan.expressions import parse
from stepwell.plan.nodes import Filter, Node, Project, Scan

FORMAT = 4
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
    explained: Explained
    """The output of `explain`, with the backends that were decided on."""


@dataclass(frozen=True, slots=True)
class Description:
    """What is stored about the views of a pipeline."""

    support: int = 0
    """The version of the local backend for which the backends were decided; 0 if there are none."""
    views: Mapping[str, DescribedView] = field(default_factory=dict)
    """By lower-case name."""

    def explained(self, support: int) -> dict[str, Explained]:
        """How views are maintained, if it was decided for this version of the local backend."""
        if support != self.support:
            return {}
        return {name: view.explained for name, view in self.views.items()}

    def decided(self, support: int) -> dict[str, Decided]:
        """The decisions for this version of the local backend, by lower-case name of the view."""
        return {name: explained.decided for name, explained in self.explained(support).items()}


def describe(views: Iterable[DescribedView], support: int) -> str:
    """Write a description; `support` is the version of the local backend."""
    content = [
        {
            "name": view.name,
            "columns": view.columns,
            "types": view.types,
            "output": None if view.output is None else node_to_json(view.output),
            "stored": view.stored,
            "explained": view.explained.to_json(),
        }
        for view in views
    ]
    whole = {"format": FORMAT, "support": support, "views": content}
    body = json.dumps(whole, ensure_ascii=False)
    return base64.b64encode(zlib.compress(body.encode())).decode("ascii")


def read_description(text: str | None, where: str) -> Description:
    """The description of the views; empty without one in this format."""
    if text is None:
        return Description()
    try:
        content = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
        if content["format"] != FORMAT:
            return Description()
        support = int(content["support"])
        views = [
            DescribedView(
                str(item["name"]),
                tuple(item["columns"]),
                tuple(item["types"]),
                None if item["output"] is None else node_from_json(item["output"]),
                tuple(item["stored"]),
                Explained.from_json(item["explained"]),
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
    return Description(support, {view.name.lower(): view for view in views})


def with_kept(new: str | None, old: str | None, kept: Mapping[str, str], where: str) -> str | None:
    """A new description together with the old one of views that are not in it.

    `kept` are the names of these views, by the lower-case name. They are left out if the backends
    were decided by another version; then they are decided when the pipeline is opened.
    """
    if new is None or not kept:
        return new
    first, before = read_description(new, where), read_description(old, where)
    if first.support != before.support:
        return new
    others = (replace(view, name=kept[name]) for name, view in before.views.items() if name in kept)
    return describe([*others, *first.views.values()], first.support)


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
