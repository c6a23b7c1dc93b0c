"""Column lineage: which columns of which tables a query reads, and what it makes of them.

A query is written in a canonical form: a text for its rows (which there are, and how often) and one
for each column of its result. Columns stand in those texts as what they are computed from, down to
columns of tables with their types. So a column that nothing asks for leaves no trace, wherever it
is passed on, and two queries with equal texts give the same answer over the same values, whatever
else their tables hold. Unequal texts say nothing: the queries may still mean the same.

`lineage` is of a query as it is declared, `bound` of a compiled program with what is stored for it.
A name of a column that the compiler made stands nowhere else in the text of a view (`Names`), so
texts can be rewritten word by word. An expression is `Unsupported` if it reads a column that is not
among those of its input (one of a query around it), or `*` other than in COUNT(*): what it depends
on would leave no trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum

from sqlglot import exp
from sqlglot.errors import SqlglotError

from stepwell.model import checksum
from stepwell.query.algebra import (
    Aggregate,
    Distinct,
    Expr,
    Filter,
    Generate,
    Inner,
    Join,
    Keys,
    Negate,
    Node,
    Project,
    Scan,
    SetOp,
    Side,
    TopN,
    Union,
    Values,
    Window,
)
from stepwell.query.conditions import parse_scalar
from stepwell.query.functions import IN_ANY_ORDER, name_of
from stepwell.query.parse import parse_query, read
from stepwell.query.program import (
    Block,
    Full,
    Groups,
    Program,
    Rows,
    Sums,
    Top,
    may_depend_on_order,
)
from stepwell.query.prune import prune
from stepwell.query.reasons import Code, Unsupported
from stepwell.query.select import Catalog
from stepwell.query.statements import Table, fold
from stepwell.query.types import contains_floating, stored_type

_LONG = 160
"""Characters of a text before its checksum stands for it: a column may be used many times."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_BY_OVER = frozenset(
    {"rank", "dense_rank", "percent_rank", "cume_dist", "row_number", "ntile", "lag", "lead"}
)
_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)

Read = tuple[str, str]
"""A table and one of its columns; an empty name for its rows alone."""


@dataclass(frozen=True, slots=True)
class Value:
    """A canonical text, and the columns it depends on."""

    text: str
    reads: frozenset[Read] = frozenset()
    widened: str | None = None
    """Of a column of whole numbers whose type becomes wider: the text that leaves the type out."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """A relation: its rows, and its columns in order with their names."""

    rows: Value
    columns: tuple[Value, ...]
    names: tuple[str, ...] = ()

    @property
    def reads(self) -> frozenset[Read]:
        return self.rows.reads.union(*(column.reads for column in self.columns))

    def same_rows(self, other: Lineage) -> bool:
        """Whether both give the same answer, apart from the names of its columns."""
        mine = [self.rows.text, *(column.text for column in self.columns)]
        return mine == [other.rows.text, *(column.text for column in other.columns)]


@dataclass(frozen=True, slots=True)
class Bound:
    """A compiled view, as far as its stored rows depend on it."""

    text: str
    inexact: frozenset[str]
    """Other views whose stored values it reads, and whose values may come out differently when
    they are computed again with more columns: floating point, and whatever depends on an order.
    """


@dataclass(frozen=True, slots=True)
class Columns:
    """What is to be known of a table's columns to compare them; names are in lower case."""

    called: Mapping[str, str] = field(default_factory=dict)
    """Columns that had another name before, which tells them."""
    widened: frozenset[str] = frozenset()
    """Columns, by the names they had, whose type becomes wider."""


def table_lineage(table: Table, known: Columns | None = None) -> Lineage:
    name, known = fold(table.name), known or Columns()
    columns = []
    for column in table.columns:
        own = known.called.get(fold(column.name), fold(column.name))
        kind = stored_type(column.type)
        at = f"{_quoted(name)}.{_quoted(own)}"
        loose = f"{at} whole" if own in known.widened and kind in _WHOLE else None
        columns.append(Value(f"{at} {kind}", frozenset({(name, own)}), loose))
    rows = Value(f"table {_quoted(name)}", frozenset({(name, "")}))
    return Lineage(rows, tuple(columns), tuple(column.name for column in table.columns))


def lineage(
    query: str,
    catalog: Catalog,
    relations: Mapping[str, Lineage],
    names: Sequence[str] | None = None,
) -> Lineage:
    """The lineage of a query; `relations` are what it can name, in lower case.

    `Unsupported` if the query is not understood.
    """
    parsed = parse_query(query, catalog)
    tree = read(query, catalog)
    _check_stars(tree)
    found = tuple(names or (item.alias_or_name for item in tree.selects))
    reader = _Reader(lambda relation: relations[fold(relation)])
    try:
        rows, columns = reader.node(prune(parsed.node))
    except KeyError as error:
        raise Unsupported(Code.PARSE_MISMATCH, f"the column {error.args[0]}") from error
    return Lineage(rows, tuple(columns[c] for c in parsed.node.columns), found)


def bound(
    view: str, programs: Mapping[str, Program], tables: Mapping[str, Lineage]
) -> Bound | None:
    """How a view is kept: equal for two programs whose stored relations are interchangeable.

    `programs` and `tables` are by name in lower case. None: a view is recomputed from its text, of
    which only Spark knows what it reads.
    """
    owners = {block.relation: p for p in programs.values() for block in p.blocks}
    blocks = {block.relation: block for p in programs.values() for block in p.blocks}
    known: dict[str, Lineage] = {}
    inexact: set[str] = set()

    def find(relation: str) -> Lineage:
        if relation not in blocks:
            return tables[fold(relation)]
        owner = owners[relation]
        if fold(owner.view) != fold(view) and _is_inexact(owner):
            inexact.add(fold(owner.view))
        if relation not in known:
            known[relation] = _block(blocks[relation], find)
        return known[relation]

    program = programs[fold(view)]
    parts: list[str] = []
    try:
        for block in program.blocks:
            stored = find(block.relation)
            kinds = ",".join(item.type for item in block.fields)
            number = block.relation.rpartition("$")[2]
            parts += [type(block).__name__, number, kinds, str(block.key), stored.rows.text]
            parts += [column.text for column in stored.columns]
            if isinstance(block, Groups) and may_depend_on_order(block):
                parts += [_order_of(block, find)]
        rows, columns = _Reader(find, ordered=True).node(program.output)
    except (Unsupported, KeyError):
        return None
    parts += [rows.text, *(columns[c].text for c in program.output.columns), *program.types]
    return Bound(_digest("\0".join(parts)), frozenset(inexact))


def _is_inexact(program: Program) -> bool:
    floating = any(contains_floating(f.type) for block in program.blocks for f in block.fields)
    return floating or any(map(may_depend_on_order, program.blocks))


def _block(block: Block, find: Callable[[str], Lineage]) -> Lineage:
    """A stored relation, as the rows it holds."""
    reader = _Reader(find, ordered=True)
    match block:
        case Full():
            raise Unsupported(Code.PARSE_MISMATCH, "recomputed from its text")
        case Rows() | Top():
            rows, columns = reader.node(block.input)
            made = [columns[c] for c in block.input.columns]
            again = getattr(block, "again", None)
            if again is not None:
                rows = _joined("again", rows, *(columns[c] for c in again))
            ending = getattr(block, "ending", None)
            if ending is not None:
                rows = _joined("ending", rows, reader.text(ending, columns))
            return Lineage(rows, tuple(made))
        case Sums():
            below, columns = reader.node(block.input)
            keys = [columns[c] for c in block.keys]
            rows = _joined("sums", below, *keys)
            made = []
            for item in block.accumulators:
                parts = [item.argument or "", item.present or ""]
                values = (reader.text(part, columns) for part in parts)
                made.append(_joined(f"sum {item.type}", rows, *values))
            return Lineage(rows, (*keys, _joined("count", rows), *made))
        case Groups():
            below, columns = reader.node(block.input)
            keys = [columns[c] for c in block.keys]
            rows = _joined("groups", below, *keys)
            calls = [reader.text(call, columns) for _, call in block.calls]
            return Lineage(rows, (*keys, *(_joined("call", rows, value) for value in calls)))


def _order_of(block: Groups, find: Callable[[str], Lineage]) -> str:
    """The columns by which Spark can put the rows of a block in order, as they come."""
    _, columns = _Reader(find, ordered=True).node(block.input)
    return _joined("order", *(columns[c] for c in block.input.columns)).text


_Values = dict[str, Value]


class _Reader:
    """Writes nodes in canonical form. Relations are numbered as they come: each is read apart."""

    def __init__(self, find: Callable[[str], Lineage], *, ordered: bool = False) -> None:
        self._find = find
        self._ordered = ordered
        """Whether the order of columns counts where rows are put in order by them."""
        self._count = 0

    def node(self, node: Node) -> tuple[Value, _Values]:
        match node:
            case Scan():
                self._count += 1
                found, at = self._find(node.relation), self._count
                return _numbered(at, found, node.columns)
            case Values():
                self._count += 1
                rows = Value(f"{self._count}:{_digest(node.sql)}")
                return rows, {c: Value(f"{rows.text}.{i}") for i, c in enumerate(node.columns)}
            case Filter():
                rows, columns = self.node(node.input)
                return _joined("filter", rows, self.text(node.condition, columns)), columns
            case Project():
                rows, columns = self.node(node.input)
                return rows, {name: self.text(item, columns) for name, item in node.items}
            case Inner():
                return self._inner(node)
            case Join():
                return self._join(node)
            case Aggregate():
                below, columns = self.node(node.input)
                keys = {key: columns[key] for key in node.keys}
                rows = _joined("aggregate", below, *keys.values())
                calls = {n: _joined("call", rows, self.text(c, columns)) for n, c in node.calls}
                return rows, {**keys, **calls}
            case Distinct():
                rows, columns = self.node(node.input)
                return _joined("distinct", rows, *(columns[c] for c in node.columns)), columns
            case SetOp():
                return self._set_operation(node)
            case Union():
                sides = [(child, *self.node(child)) for child in node.inputs]
                rows = _joined("union", *(rows for _, rows, _ in sides))
                made = {}
                for place, name in enumerate(node.columns):
                    each = (columns[child.columns[place]] for child, _, columns in sides)
                    made[name] = _joined("of", *each)
                return rows, made
            case Window():
                rows, columns = self.node(node.input)
                order = [columns[c] for c in node.input.columns] if self._ordered else []
                made = {}
                for name, call in node.calls:
                    over = _joined("over", rows, *([] if _says_its_order(call) else order))
                    made[name] = _joined("window", over, self.text(call, columns))
                return rows, {**columns, **made}
            case Generate():
                below, columns = self.node(node.input)
                generator = self.text(node.generator, columns)
                rows = _joined(f"generate {node.outer}", below, generator)
                made = {n: _joined(f"made {i}", rows) for i, n in enumerate(node.made)}
                return rows, {**columns, **made}
            case TopN():
                rows, columns = self.node(node.input)
                order = [
                    _joined(direction, columns[by])
                    for by, _, direction in (item.partition(" ") for item in node.order)
                ]
                return _joined(f"top {node.limit} {node.offset}", rows, *order), columns
            case Negate():
                rows, columns = self.node(node.input)
                return _joined("negate", rows), columns
            case Keys():
                below, columns = self.node(node.input)
                made = {name: columns[c] for name, c in node.items}
                return _joined("keys", below, *made.values()), made
            case _:
                raise Unsupported(Code.UNSUPPORTED_OPERATOR, type(node).__name__)

    def text(self, value: object, columns: Mapping[str, Value]) -> Value:
        """An expression, or anything made of expressions, over what its columns are.

        `Unsupported` if it reads anything else.
        """
        for item in _expressions(value):
            _check_reads(item, columns)
        reads: set[Read] = set()
        loose = _loose(value, columns) if isinstance(value, Expr) else frozenset()

        def visit(word: re.Match[str]) -> str:
            found = columns.get(word[0])
            if found is None:
                return word[0]
            reads.update(found.reads)
            return f"{{{found.widened if word[0] in loose else found.text}}}"

        if isinstance(value, Expr) and value.column is not None:
            return columns[value.column]
        made = _WORD.sub(visit, _plain(value))
        return Value(_short(made), frozenset(reads))

    def _inner(self, node: Inner) -> tuple[Value, _Values]:
        inputs = [self.node(child) for child in node.inputs]
        columns = {name: value for _, made in inputs for name, value in made.items()}
        on = sorted((self.text(item, columns) for item in node.on), key=lambda item: item.text)
        return _joined("inner", *(rows for rows, _ in inputs), _joined("on", *on)), columns

    def _join(self, node: Join) -> tuple[Value, _Values]:
        left_rows, left = self.node(node.left)
        right_rows, right = self.node(node.right)
        both = {**left, **right}
        pairs = [_joined("=", left[a], right[b]) for a, b in node.equal]
        also = [self.text(item, both) for item in node.also]
        kind = f"{node.side.value} {node.null_safe}"
        rows = _joined(kind, left_rows, right_rows, _joined("on", *pairs, *also))
        if node.side in (Side.SEMI, Side.ANTI):
            return rows, left
        # What is NULL for want of a match is not the expression of it.
        maybe = {name: _joined("maybe", rows, value) for name, value in right.items()}
        if node.side is Side.FULL:
            left = {name: _joined("maybe", rows, value) for name, value in left.items()}
        return rows, {**left, **maybe}

    def _set_operation(self, node: SetOp) -> tuple[Value, _Values]:
        sides = []
        for child in (node.left, node.right):
            rows, columns = self.node(child)
            sides.append((_joined("side", rows, *(columns[c] for c in child.columns)), columns))
        rows = _joined(node.kind.value, *(side for side, _ in sides))
        made = {}
        for place, name in enumerate(node.columns):
            each = (sides[0][1][node.left.columns[place]], sides[1][1][node.right.columns[place]])
            made[name] = _joined("of", *each)
        return rows, made


def _numbered(at: int, found: Lineage, names: Sequence[str]) -> tuple[Value, _Values]:
    """A relation as it is read in one place."""
    made = {
        name: Value(
            f"{at}:{value.text}",
            value.reads,
            None if value.widened is None else f"{at}:{value.widened}",
        )
        for name, value in zip(names, found.columns, strict=True)
    }
    return Value(f"{at}:{found.rows.text}", found.rows.reads), made


def _joined(kind: str, *parts: Value) -> Value:
    reads: frozenset[Read] = frozenset().union(*(part.reads for part in parts))
    return Value(_short(f"{kind}({'; '.join(part.text for part in parts)})"), reads)


def _expressions(value: object) -> Iterator[Expr]:
    """The expressions in a value made of some."""
    if isinstance(value, Expr):
        yield value
    elif is_dataclass(value):
        for item in fields(value):
            yield from _expressions(getattr(value, item.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from _expressions(part)


def _check_reads(value: Expr, columns: Mapping[str, Value]) -> None:
    """`Unsupported` if an expression reads anything but these columns, each by its name."""
    missing = value.columns - columns.keys()
    if missing:
        raise Unsupported(Code.PARSE_MISMATCH, f"the column {min(missing)}")
    if value.column is not None:
        return
    try:
        tree = parse_scalar(value.sql)
    except SqlglotError as error:
        raise Unsupported(Code.PARSE_MISMATCH, value.sql) from error
    _check_stars(tree)
    for column in tree.find_all(exp.Column):
        own = column.parts[0].name  # The others are fields of it.
        if own not in columns and not _is_variable(column, own):
            raise Unsupported(Code.PARSE_MISMATCH, f"the column {own}")


def _check_stars(tree: exp.Expr) -> None:
    """`Unsupported` if a function reads all columns there are; those of SELECT are written out."""
    for star in tree.find_all(exp.Star):
        call = star.parent
        if isinstance(call, exp.Select):
            continue
        if not (isinstance(call, exp.Count) and call.this is star and not call.expressions):
            raise Unsupported(Code.PARSE_MISMATCH, "* as an argument")


def _is_variable(column: exp.Column, name: str) -> bool:
    """Whether a name is that of a variable of a lambda around it."""
    inside = column.find_ancestor(exp.Lambda)
    while inside is not None:
        if fold(name) in {fold(variable.name) for variable in inside.expressions}:
            return True
        inside = inside.find_ancestor(exp.Lambda)
    return False


def _says_its_order(call: Expr) -> bool:
    """Whether a window function gives the same in whichever order its rows come: it minds none, or
    all of it stands in its OVER.
    """
    function = parse_scalar(call.sql)
    while isinstance(function, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        function = function.this
    return name_of(function) in _BY_OVER | IN_ANY_ORDER


def _loose(value: Expr, columns: Mapping[str, Value]) -> frozenset[str]:
    """Columns whose width makes no difference to an expression: only their values do."""
    wider = [name for name in value.columns if name in columns and columns[name].widened]
    if not wider:
        return frozenset()
    named: dict[str, list[exp.Column]] = {name: [] for name in wider}
    for column in parse_scalar(value.sql).find_all(exp.Column):
        if column.name in named:
            named[column.name].append(column)
    return frozenset(
        name for name, found in named.items() if found and all(map(_of_any_width, found))
    )


def _of_any_width(column: exp.Column) -> bool:
    """Whether a whole number is counted, or compared with others that are written out.

    Not whether it is summed up: what is stored for a sum depends on the type.
    """
    own: exp.Expr = column
    while isinstance(own.parent, exp.Paren):
        own = own.parent
    parent = own.parent
    if isinstance(parent, exp.Count):
        return not parent.expressions and parent.this is own
    if isinstance(parent, exp.Is):
        return isinstance(parent.expression, exp.Null)
    if isinstance(parent, exp.Between):
        return all(_is_whole(parent.args.get(side)) for side in ("low", "high"))
    if isinstance(parent, exp.In):
        listed = parent.expressions
        return parent.this is own and bool(listed) and all(map(_is_whole, listed))
    if isinstance(parent, _COMPARED):
        return _is_whole(parent.expression if parent.this is own else parent.this)
    return False


def _is_whole(node: object) -> bool:
    if isinstance(node, exp.Neg):
        node = node.this
    return isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit()


def _plain(value: object) -> str:
    """An expression, or a value made of some, as text."""
    if isinstance(value, Expr):
        return value.sql
    if isinstance(value, Enum):
        return str(value.value)
    if is_dataclass(value):
        inside = (_plain(getattr(value, item.name)) for item in fields(value))
        return f"({'; '.join(inside)})"
    if isinstance(value, tuple):
        return f"({'; '.join(map(_plain, value))})"
    return str(value)


def _short(text: str) -> str:
    return text if len(text) <= _LONG else _digest(text)


def _digest(text: str) -> str:
    return f"#{checksum([text.encode()])}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
