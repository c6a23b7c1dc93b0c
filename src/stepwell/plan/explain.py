"""Explain how a view is maintained: the tree of each block, its rule, the stored relations, and the
reason for any full recompute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stepwell.plan.expressions import Expr, equal
from stepwell.plan.nodes import (
    Filter,
    Generate,
    Inner,
    Join,
    Leaf,
    Negate,
    Node,
    Project,
    Scan,
    TopN,
    Union,
    Values,
    Window,
    children,
)
from stepwell.plan.program import Block, Full, Groups, Program, Rows, Sums, Top
from stepwell.plan.reasons import Reason

Json = object


@dataclass(frozen=True, slots=True)
class Line:
    """One operator and its indentation depth."""

    depth: int
    operator: str
    rule: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A relation stored for the view."""

    relation: str
    rule: str
    key: tuple[str, ...]
    columns: int
    lines: tuple[Line, ...]
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Explained:
    view: str
    blocks: tuple[Stored, ...]
    output: tuple[Line, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(b.reason.code.value for b in self.blocks if b.reason is not None)

    @property
    def recomputed(self) -> bool:
        return bool(self.reasons)

    def __str__(self) -> str:
        text = [f"{self.view}"]
        for line in self.output:
            text.append(f"  {'  ' * line.depth}{line.operator}")
        for block in self.blocks:
            key = f", key ({', '.join(block.key)})" if block.key else ""
            text.append(f"{block.relation}: rule {block.rule}{key}")
            if block.reason is not None:
                text.append(f"  {block.reason}")
                text.append(f"  change: {block.reason.advice}")
            for line in block.lines:
                rule = f"  [rule {line.rule}]" if line.rule else ""
                text.append(f"  {'  ' * line.depth}{line.operator}{rule}")
        return "\n".join(text)

    def to_json(self) -> Mapping[str, Json]:
        return {
            "view": self.view,
            "recomputed": self.recomputed,
            "reasons": list(self.reasons),
            "relations": [
                {
                    "name": block.relation,
                    "rule": block.rule,
                    "key": list(block.key),
                    "reason": None
                    if block.reason is None
                    else {
                        "code": block.reason.code.value,
                        "detail": block.reason.detail,
                        "change": block.reason.advice,
                    },
                    "tree": [
                        {"depth": line.depth, "operator": line.operator, "rule": line.rule}
                        for line in block.lines
                    ],
                }
                for block in self.blocks
            ],
        }


def explain(program: Program, names: Mapping[str, tuple[str, ...]]) -> Explained:
    """Explain a program; `names` maps each table to its column names as users know them."""
    return Explained(
        program.view,
        tuple(_stored(block) for block in program.blocks),
        tuple(_lines(program.output, 0)),
    )


def _stored(block: Block) -> Stored:
    match block:
        case Sums():
            calls = [f"sum {a.argument.sql}" if a.argument else "count" for a in block.accumulators]
            top = Line(0, f"accumulate by ({', '.join(block.keys)}) {', '.join(calls)}", "3")
            key, reason = block.keys, None
            lines = (top, *_lines(block.input, 1))
        case Groups():
            calls = [expr.sql for _, expr in block.calls]
            top = Line(0, f"aggregate by ({', '.join(block.keys)}) {', '.join(calls)}", "2")
            key, reason = block.keys, None
            lines = (top, *_lines(block.input, 1))
        case Rows() | Top():
            key, reason = (block.again or () if isinstance(block, Rows) else ()), None
            lines = tuple(_lines(block.input, 0))
        case Full():
            key, reason, lines = (), block.reason, ()
    return Stored(block.relation, block.rule, key, len(block.fields), lines, reason)


def _lines(node: Node, depth: int) -> Iterator[Line]:
    yield Line(depth, _operator(node), _rule(node))
    for child in children(node):
        yield from _lines(child, depth + 1)


def _operator(node: Node) -> str:
    match node:
        case Scan() | Leaf():
            return f"scan {node.relation}"
        case Values():
            return "values"
        case Filter():
            return f"filter {node.condition.sql}"
        case Project():
            made = [f"{e.sql} AS {n}" for n, e in node.items if e.column != n]
            return f"project {', '.join(made) or ', '.join(node.columns)}"
        case Inner():
            return f"join on {_all(node.on)}" if node.on else "cross join"
        case Join():
            pairs = tuple(equal(a, b) for a, b in node.equal)
            return f"{node.side.value} join on {_all((*pairs, *node.also))}"
        case Union():
            return "union all"
        case Negate():
            return "less"
        case Window():
            return f"window {', '.join(e.sql for _, e in node.calls)}"
        case Generate():
            return f"generate {node.generator.sql}"
        case TopN():
            return f"first {node.limit} by {', '.join(key.sql for key in node.order)}"
        case _:
            return type(node).__name__.lower()


def _rule(node: Node) -> str:
    match node:
        case Filter() | Project() | Inner() | Union() | Generate() | Negate():
            return "1"
        case Window() | Join() | TopN():
            return "2"
        case _:
            return ""


def _all(conditions: tuple[Expr, ...]) -> str:
    return " AND ".join(condition.sql for condition in conditions)
