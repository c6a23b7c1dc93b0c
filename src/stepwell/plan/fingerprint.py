"""Structural hashes of plans: equal for plans that compute the same, up to the names of columns.

Names of columns are generated, so no two references to a table share one. A column therefore counts
by its position: that of the input that has it, and its position there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

from stepwell.plan.expressions import Expr
from stepwell.plan.identity import by_identity
from stepwell.plan.nodes import (
    Aggregate,
    Consolidate,
    Diff,
    Distinct,
    Filter,
    Generate,
    Inner,
    Item,
    Join,
    Keys,
    Leaf,
    Negate,
    Node,
    Project,
    Restrict,
    Scan,
    SetOp,
    TopN,
    Union,
    Values,
    Window,
    children,
)

_WORD = re.compile(r"\w+")


@by_identity
def fingerprint(node: Node) -> str:
    """The hash of a plan; columns of the result count by their positions."""
    inputs = children(node)
    parts = [type(node).__name__, *map(fingerprint, inputs), *_own(node, places(inputs))]
    return sha256(repr(parts).encode()).hexdigest()


def places(inputs: Iterable[Node]) -> dict[str, str]:
    """The column names of some nodes, each as the position of its node and its own.

    No expression contains the `#` outside of a text, or a number could be taken for a column.
    """
    named = (
        (column, f"#{i}.{place}")
        for i, node in enumerate(inputs)
        for place, column in enumerate(node.columns)
    )
    return dict(named)


def spelled(expr: Expr, known: Mapping[str, str]) -> str:
    """The text of an expression with its columns as positions.

    Generated names do not occur in the user's text, so a word that equals one is a column.
    """
    return _WORD.sub(lambda word: known.get(word[0], word[0]), expr.sql)


def _own(node: Node, known: Mapping[str, str]) -> list[object]:
    """What distinguishes a node from others of its kind over the same inputs."""
    match node:
        case Scan():
            return [node.relation, len(node.columns)]
        case Leaf():
            return [node.relation, len(node.columns), node.when]
        case Keys():
            return [known[column] for _, column in node.items]
        case Restrict():
            return [[(known[a], known[b]) for a, b in node.on]]
        case Values():
            return [[[expr.sql for expr in row] for row in node.rows]]
        case Filter():
            return [spelled(node.condition, known)]
        case Project():
            return _items(node.items, known)
        case Inner():
            return [spelled(condition, known) for condition in node.on]
        case Join():
            equal = [(known[a], known[b]) for a, b in node.equal]
            also = [spelled(condition, known) for condition in node.also]
            return [node.side, equal, node.null_safe, also]
        case Aggregate():
            return [[known[key] for key in node.keys], *_items(node.calls, known)]
        case Window():
            return [[known[name] for name in node.partition], *_items(node.calls, known)]
        case Generate():
            return [spelled(node.generator, known), node.outer, len(node.made)]
        case TopN():
            order = [(known[k.column], k.descending, k.nulls_first) for k in node.order]
            return [order, node.limit, node.offset]
        case SetOp():
            return [node.kind]
        case Union() | Distinct() | Negate() | Consolidate() | Diff():
            return []
        case _:
            return [id(node)]


def _items(items: Iterable[Item], known: Mapping[str, str]) -> list[object]:
    return [spelled(expr, known) for _, expr in items]
