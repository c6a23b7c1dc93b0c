"""Explain how a view is maintained: the tree of each block, its rule, the backend that computes its
change, the stored relations, and the reason for any full recompute.

Columns have the names that users know (`column_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stepwell.plan.column_names import ColumnNames, Tracing, text_of
from stepwell.plan.expressions import Expr, equal
from stepwell.plan.nodes import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    Inner,
    Join,
    Leaf,
    Negate,
    Node,
    Project,
    Scan,
    SetOp,
    TopN,
    Union,
    Values,
    Window,
    children,
    walk,
)
from stepwell.plan.program import Block, Full, Groups, Program, Rows, Sums, Top
from stepwell.plan.reasons import Code, Reason

Json = object


@dataclass(frozen=True, slots=True)
class Line:
    """One operator and its indentation depth."""

    depth: int
    operator: str
    rule: str
    relation: str | None = None
    """The relation that it reads, if it is a scan."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """An index look-up: rows of a relation, by the values of some columns."""

    relation: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.relation} by ({', '.join(self.columns)})"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The backend that computes a change of some inputs."""

    changed: tuple[str, ...]
    """The inputs that change; empty for the view's output."""
    reason: str | None
    """Why it is Spark; None if it is the local backend."""

    @property
    def backend(self) -> str:
        return "local" if self.reason is None else "Spark"

    def __str__(self) -> str:
        return "local" if self.reason is None else f"Spark: {self.reason}"

    def to_json(self) -> Mapping[str, Json]:
        return {"changed": list(self.changed), "backend": self.backend, "reason": self.reason}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Chosen:
        return cls(tuple(item["changed"]), item["reason"])


@dataclass(frozen=True, slots=True)
class Backends:
    """The backends of a block, for a change of each input and of all of them."""

    chosen: tuple[Chosen, ...] = ()
    lookups: tuple[LookUp, ...] = ()
    """The look-ups of the local backend."""
    whole: tuple[str, ...] = ()
    """The stored relations that are read without a look-up. Spark reads them unless all of their
    rows are in memory."""
    recompute_rows: int = 0
    """Up to this many rows, Spark recomputes the block for a change that it would compute: the plan
    of the change is large (`cost.rows_to_recompute`)."""

    def __str__(self) -> str:
        distinct = list(dict.fromkeys(map(str, self.chosen)))
        if len(distinct) == 1:
            return distinct[0]
        groups = {
            text: [" and ".join(c.changed) for c in self.chosen if str(c) == text]
            for text in distinct
        }
        return "; ".join(f"{text} (change of {', '.join(of)})" for text, of in groups.items())


@dataclass(frozen=True, slots=True)
class Decided:
    """Which backend computes the changes of a view. Decided once, and stored with the program."""

    shown: Chosen
    """The backend that computes the view's change from that of its relation."""
    blocks: Mapping[str, Backends]
    """Those of each stored relation."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A relation stored for the view."""

    relation: str
    rule: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    reason: Reason | None
    backends: Backends
    needed: str = ""
    """Why it is stored; empty for the relation that the view shows."""


@dataclass(frozen=True, slots=True)
class Explained:
    view: str
    blocks: tuple[Stored, ...]
    output: tuple[Line, ...]
    shown: Chosen
    """See `Decided`."""
    rows: Mapping[str, int] | None = None
    """The number of rows of each relation, if the pipeline is open. Rows that are retracted in a
    newer run count until compaction."""
    count: Callable[[], Mapping[str, int]] | None = field(default=None, compare=False, repr=False)
    """Returns the current number of rows of each relation of an open pipeline."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(b.reason.code.value for b in self.blocks if b.reason is not None)

    @property
    def recomputed(self) -> bool:
        return bool(self.reasons)

    @property
    def decided(self) -> Decided:
        return Decided(self.shown, {block.relation: block.backends for block in self.blocks})

    def counted(self) -> Explained:
        """The same with the current row counts, if the pipeline is open."""
        return self if self.count is None else replace(self, rows=dict(self.count()))

    def __str__(self) -> str:
        text = [self.view, f"  backend: {self.shown}"]
        text += [self._text(line) for line in self.output]
        for block in self.blocks:
            key = f", key ({', '.join(block.key)})" if block.key else ""
            text.append(f"{block.relation}: rule {block.rule}{key}{self._rows(block.relation)}")
            if block.reason is not None:
                text.append(f"  {block.reason}")
                text.append(f"  change: {block.reason.advice}")
            text.append(f"  backend: {block.backends}")
            text += [f"  looks up: {lookup}" for lookup in block.backends.lookups]
            if block.backends.whole:
                text.append(f"  reads whole: {', '.join(block.backends.whole)}")
            if block.backends.recompute_rows:
                most = f"{block.backends.recompute_rows:,}"
                by = "recomputed by Spark with policy AUTO"
                text.append(f"  {by}: while it reads at most {most} rows")
            if block.needed:
                text.append(f"  hidden: {block.needed}")
            text.append(f"  stores: {', '.join(block.columns) or 'nothing but its rows'}")
            text += [self._text(line) for line in block.lines]
        return "\n".join(text)

    def _text(self, line: Line) -> str:
        rule = f"  [rule {line.rule}]" if line.rule else ""
        rows = "" if line.relation is None else self._rows(line.relation)
        return f"  {'  ' * line.depth}{line.operator}{rows}{rule}"

    def _rows(self, relation: str) -> str:
        if self.rows is None or relation not in self.rows:
            return ""
        number = self.rows[relation]
        return f", {number:,} row{'' if number == 1 else 's'}"

    def to_json(self) -> Mapping[str, Json]:
        return {
            "view": self.view,
            "recomputed": self.recomputed,
            "reasons": list(self.reasons),
            "backend": self.shown.backend,
            "backend_reason": self.shown.reason,
            "output": [self._line(line) for line in self.output],
            "relations": [self._block(block) for block in self.blocks],
        }

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Explained:
        """The inverse of `to_json`, without row counts."""
        return cls(
            str(item["view"]),
            tuple(_stored_from_json(block) for block in item["relations"]),
            tuple(map(_line_from_json, item["output"])),
            Chosen((), item["backend_reason"]),
        )

    def _block(self, block: Stored) -> Mapping[str, Json]:
        reason = block.reason
        return {
            "name": block.relation,
            "rule": block.rule,
            "key": list(block.key),
            "columns": list(block.columns),
            "rows": None if self.rows is None else self.rows.get(block.relation),
            "backends": [chosen.to_json() for chosen in block.backends.chosen],
            "lookups": [
                {"relation": lookup.relation, "columns": list(lookup.columns)}
                for lookup in block.backends.lookups
            ],
            "whole": list(block.backends.whole),
            "recompute_rows": block.backends.recompute_rows,
            "needed": block.needed,
            "reason": None
            if reason is None
            else {"code": reason.code.value, "detail": reason.detail, "change": reason.advice},
            "tree": [self._line(line) for line in block.lines],
        }

    def _line(self, line: Line) -> Mapping[str, Json]:
        made: dict[str, Json] = {
            "depth": line.depth,
            "operator": line.operator,
            "rule": line.rule,
        }
        if line.relation is not None:
            made["relation"] = line.relation
            made["rows"] = None if self.rows is None else self.rows.get(line.relation)
        return made


def _stored_from_json(item: Mapping[str, Any]) -> Stored:
    why = item["reason"]
    return Stored(
        str(item["name"]),
        str(item["rule"]),
        tuple(item["key"]),
        tuple(item["columns"]),
        tuple(map(_line_from_json, item["tree"])),
        None if why is None else Reason(Code(why["code"]), str(why["detail"])),
        Backends(
            tuple(map(Chosen.from_json, item["backends"])),
            tuple(LookUp(at["relation"], tuple(at["columns"])) for at in item["lookups"]),
            tuple(item["whole"]),
            int(item["recompute_rows"]),
        ),
        str(item["needed"]),
    )


def _line_from_json(item: Mapping[str, Any]) -> Line:
    return Line(int(item["depth"]), str(item["operator"]), str(item["rule"]), item.get("relation"))


def explain(program: Program, names: ColumnNames, decided: Decided) -> Explained:
    """Explain a program, for which it was decided what its backends are."""
    tracing = Tracing(names, program.output, view=program)
    output = _lines(program.output, 0, tracing, program.columns)
    backends = decided.blocks
    return Explained(
        program.view,
        tuple(_stored(program, block, names, backends[block.relation]) for block in program.blocks),
        tuple(replace(line, rule="") for line in output),
        decided.shown,
    )


def _stored(program: Program, block: Block, names: ColumnNames, backends: Backends) -> Stored:
    columns = names.texts(block.relation, len(block.fields))
    key = tuple(columns[place] for place in block.key)
    if isinstance(block, Full):
        return Stored(block.relation, block.rule, key, columns, (), block.reason, backends)
    needed = "" if block is program.shown else _needed(program, block)
    tracing = Tracing(names, block.input, view=program)
    match block:
        case Sums():
            known = tracing.of(block.input)
            calls = [text_of(tracing.accumulator(a, known)) for a in block.accumulators]
            by = ", ".join(tracing.texts(block.keys, block.input))
            top = [Line(0, f"accumulate by ({by}) {', '.join(calls)}".rstrip(), "3")]
        case Groups():
            calls = [tracing.text(call, block.input) for _, call in block.calls]
            by = ", ".join(tracing.texts(block.keys, block.input))
            top = [Line(0, f"aggregate by ({by}) {', '.join(calls)}".rstrip(), "2")]
        case Rows() | Top():
            top = []
    lines = (*top, *_lines(block.input, len(top), tracing))
    return Stored(block.relation, block.rule, key, columns, lines, None, backends, needed)


def _needed(program: Program, block: Sums | Groups | Rows | Top) -> str:
    """Why a relation that the view does not show is stored."""
    inputs = [other.input for other in program.blocks if not isinstance(other, Full)]
    scans = (n for node in (*inputs, program.output) for n in walk(node) if isinstance(n, Scan))
    readers = sum(scan.relation == block.relation for scan in scans)
    often = "" if readers < 2 else f", read {readers} times"
    match block:
        case Sums(accumulators=()):
            return f"the number of equal rows decides which rows come and go{often}"
        case Sums():
            return f"a change is added to the sums of its groups{often}"
        case Groups():
            return f"groups that change are compared with their old rows{often}"
        case Top():
            return f"the first rows are compared with the ones before{often}"
        case Rows():
            if readers > 1:
                return f"{readers} parts of the query read it"
            return "an operator above may need any of its rows"


def _lines(node: Node, depth: int, tracing: Tracing, given: tuple[str, ...] = ()) -> Iterator[Line]:
    """The operators of a plan; `given` are the user's names for the columns of the first."""
    relation = node.relation if isinstance(node, Scan | Leaf) else None
    yield Line(depth, _operator(node, tracing, given), _rule(node), relation)
    for child in children(node):
        yield from _lines(child, depth + 1, tracing, given if isinstance(node, Filter) else ())


def _operator(node: Node, tracing: Tracing, given: tuple[str, ...]) -> str:
    match node:
        case Scan() | Leaf():
            alias = tracing.alias(node)
            return f"scan {node.relation}" + ("" if alias == node.relation else f" AS {alias}")
        case Values():
            return "values"
        case Filter():
            return f"filter {tracing.text(node.condition, node.input)}"
        case Project():
            items = [tracing.text(expr, node.input) for _, expr in node.items]
            if given:
                items = [t if t == n else f"{t} AS {n}" for t, n in zip(items, given, strict=True)]
            else:
                unnamed = zip(items, node.columns, tracing.texts(node.columns, node), strict=True)
                items = [f"{t} AS {n}" if known == n != t else t for t, n, known in unnamed]
            return f"project {', '.join(items)}"
        case Inner():
            return f"join on {_all(node.on, node, tracing)}" if node.on else "cross join"
        case Join():
            pairs = tuple(equal(a, b, null_safe=node.null_safe) for a, b in node.equal)
            return f"{node.side.value} join on {_all((*pairs, *node.also), node, tracing)}"
        case Aggregate():
            calls = [tracing.text(call, node.input) for _, call in node.calls]
            by = ", ".join(tracing.texts(node.keys, node.input))
            return f"aggregate by ({by}) {', '.join(calls)}".rstrip()
        case Distinct():
            return "distinct"
        case SetOp():
            return node.kind.value
        case Union():
            return "union all"
        case Negate():
            return "less"
        case Window():
            return f"window {', '.join(tracing.text(e, node.input) for _, e in node.calls)}"
        case Generate():
            made = f" AS {', '.join(node.made)}" if len(node.made) > 1 else ""
            return f"generate {tracing.text(node.generator, node.input)}{made}"
        case TopN():
            order = ", ".join(tracing.sort_key(key, node.input) for key in node.order)
            number = "all" if node.limit is None else node.limit
            return f"first {number} by {order}"
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


def _all(conditions: tuple[Expr, ...], node: Inner | Join, tracing: Tracing) -> str:
    """Conjuncts over the columns of all inputs of a join."""
    known = {name: tree for side in children(node) for name, tree in tracing.of(side).items()}
    return " AND ".join(text_of(tracing.conjunct(c, known)) for c in conditions)
