"""Column lineage: the table columns that a query reads, and how it uses them.

A query is written in a canonical form: one text for its rows (their existence and multiplicity) and
one for each result column. In these texts every column is expanded into its expression, down to
table columns with their types. An unused column therefore leaves no trace, however far it is passed
on, and two queries with equal texts give the same result over the same values, whatever else their
tables hold. Unequal texts prove nothing: the queries may still be equivalent.

`lineage` covers a query as declared, `bound` a compiled program with its stored relations. An
expression is `Unsupported` if it reads a column that its input does not have (a column of an outer
query), or `*` other than in COUNT(*): such a dependency would leave no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from stepwell.model import checksum
from stepwell.plan.expressions import DIALECT, Expr
from stepwell.plan.functions import IN_ANY_ORDER, name_of
from stepwell.plan.nodes import (
    Aggregate,
    Distinct,
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
from stepwell.plan.numbers import INTEGER_BITS
from stepwell.plan.program import (
    Block,
    Full,
    Groups,
    Program,
    Rows,
    Sums,
    Top,
    may_depend_on_order,
)
from stepwell.plan.prune import prune
from stepwell.plan.reasons import Code, Unsupported
from stepwell.plan.types import contains_floating, stored_type
from stepwell.sql.catalog import Catalog
from stepwell.sql.parse import parse_query, read
from stepwell.sql.statements import Table, fold
from stepwell.text import quote_name

_LONG = 160
"""Maximum length of a text before its checksum replaces it: a column may be used many times."""
_BY_OVER = frozenset(
    {"rank", "dense_rank", "percent_rank", "cume_dist", "row_number", "ntile", "lag", "lead"}
)
_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)

Read = tuple[str, str]
"""A table and one of its columns; an empty column name stands for the rows alone."""


@dataclass(frozen=True, slots=True)
class Value:
    """A canonical text, and the columns it depends on."""

    text: str
    reads: frozenset[Read] = frozenset()
    widened: str | None = None
    """For an integer column whose type is widened: the text without the type."""
    inputs: frozenset[Read] = frozenset()
    """Of `reads`, the columns that the values are computed from. The others decide which rows there
    are: conditions, joins, groupings. Empty for rows.
    """
    unchanged: bool = False
    """Whether the values are those of a table's column."""


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
        """Whether both give the same result, apart from column names."""
        mine = [self.rows.text, *(column.text for column in self.columns)]
        return mine == [other.rows.text, *(column.text for column in other.columns)]


@dataclass(frozen=True, slots=True)
class Bound:
    """A compiled view, as far as its stored rows depend on it."""

    text: str
    inexact: frozenset[str]
    """Other views whose stored values it reads and whose values may differ when they are recomputed
    with more columns: floating point, and everything that depends on row order.
    """


@dataclass(frozen=True, slots=True)
class Columns:
    """Facts needed to compare a table's columns; names are in lower case."""

    called: Mapping[str, str] = field(default_factory=dict)
    """Maps each renamed column to its former name, which identifies it."""
    widened: frozenset[str] = frozenset()
    """Columns, by their former names, whose type is widened."""


def table_lineage(table: Table, known: Columns | None = None) -> Lineage:
    name, known = fold(table.name), known or Columns()
    columns = []
    for column in table.columns:
        own = known.called.get(fold(column.name), fold(column.name))
        kind = stored_type(column.type)
        at = f"{quote_name(name)}.{quote_name(own)}"
        loose = f"{at} whole" if own in known.widened and kind in INTEGER_BITS else None
        read = frozenset({(name, own)})
        columns.append(Value(f"{at} {kind}", read, loose, read, unchanged=True))
    rows = Value(f"table {quote_name(name)}", frozenset({(name, "")}))
    return Lineage(rows, tuple(columns), tuple(column.name for column in table.columns))


def lineage(
    query: str,
    catalog: Catalog,
    relations: Mapping[str, Lineage],
    names: Sequence[str] | None = None,
) -> Lineage:
    """The lineage of a query; `relations` maps lower-case names to the relations it can name.

    Raises `Unsupported` if the query cannot be converted to algebra.
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
    """The maintenance of a view: equal for two programs with interchangeable stored relations.

    `programs` and `tables` are keyed by lower-case name. None if a view is recomputed from its
    text: only Spark knows what such a text reads.
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
    """The lineage of a stored relation."""
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
                by = (columns[ending.number], columns[ending.column])
                rows = _joined(f"ending {ending.descending}", rows, *by)
            return Lineage(rows, tuple(made))
        case Sums():
            below, columns = reader.node(block.input)
            keys = [columns[c] for c in block.keys]
            rows = _joined("sums", below, *keys)
            made = []
            for item in block.accumulators:
                parts = (item.argument, item.present)
                values = (Value("") if e is None else reader.value(e, columns) for e in parts)
                made.append(_joined(f"sum {item.type}", rows, *values))
            return Lineage(rows, (*keys, _joined("count", rows), *made))
        case Groups():
            below, columns = reader.node(block.input)
            keys = [columns[c] for c in block.keys]
            rows = _joined("groups", below, *keys)
            calls = [reader.value(call, columns) for _, call in block.calls]
            return Lineage(rows, (*keys, *(_joined("call", rows, value) for value in calls)))


def _order_of(block: Groups, find: Callable[[str], Lineage]) -> str:
    """The input columns of a block, in order: Spark may sort its rows by them."""
    _, columns = _Reader(find, ordered=True).node(block.input)
    return _joined("order", *(columns[c] for c in block.input.columns)).text


_Values = dict[str, Value]


class _Reader:
    """Writes nodes in canonical form. Each occurrence of a relation gets its own number."""

    def __init__(self, find: Callable[[str], Lineage], *, ordered: bool = False) -> None:
        self._find = find
        self._ordered = ordered
        """Whether column order matters where rows are sorted by all columns."""
        self._count = 0

    def node(self, node: Node) -> tuple[Value, _Values]:
        match node:
            case Scan():
                self._count += 1
                found, at = self._find(node.relation), self._count
                return _numbered(at, found, node.columns)
            case Values():
                self._count += 1
                given = ", ".join(expr.sql for row in node.rows for expr in row)
                rows = Value(f"{self._count}:{len(node.columns)}:{_digest(given)}")
                return rows, {c: Value(f"{rows.text}.{i}") for i, c in enumerate(node.columns)}
            case Filter():
                rows, columns = self.node(node.input)
                return _rows("filter", rows, self.value(node.condition, columns)), columns
            case Project():
                rows, columns = self.node(node.input)
                return rows, {name: self.value(item, columns) for name, item in node.items}
            case Inner():
                return self._inner(node)
            case Join():
                return self._join(node)
            case Aggregate():
                below, columns = self.node(node.input)
                keys = {key: columns[key] for key in node.keys}
                rows = _rows("aggregate", below, *keys.values())
                calls = {n: _joined("call", rows, self.value(c, columns)) for n, c in node.calls}
                return rows, {**keys, **calls}
            case Distinct():
                rows, columns = self.node(node.input)
                return _rows("distinct", rows, *(columns[c] for c in node.columns)), columns
            case SetOp():
                return self._set_operation(node)
            case Union():
                sides = [(child, *self.node(child)) for child in node.inputs]
                rows = _rows("union", *(rows for _, rows, _ in sides))
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
                    over = _rows("over", rows, *([] if _says_its_order(call) else order))
                    made[name] = _joined("window", over, self.value(call, columns))
                return rows, {**columns, **made}
            case Generate():
                below, columns = self.node(node.input)
                generator = self.value(node.generator, columns)
                rows = _rows(f"generate {node.outer}", below, generator)
                made = {
                    name: replace(_joined(f"made {i}", rows), inputs=generator.inputs)
                    for i, name in enumerate(node.made)
                }
                return rows, {**columns, **made}
            case TopN():
                rows, columns = self.node(node.input)
                order = [
                    _joined(f"sorted {key.descending} {key.nulls_first}", columns[key.column])
                    for key in node.order
                ]
                return _rows(f"top {node.limit} {node.offset}", rows, *order), columns
            case Negate():
                rows, columns = self.node(node.input)
                return _rows("negate", rows), columns
            case Keys():
                below, columns = self.node(node.input)
                made = {name: columns[c] for name, c in node.items}
                return _rows("keys", below, *made.values()), made
            case _:
                raise Unsupported(Code.UNSUPPORTED_OPERATOR, type(node).__name__)

    def value(self, expr: Expr, columns: Mapping[str, Value]) -> Value:
        """The text of an expression over its columns. `Unsupported` if it reads anything else."""
        _check_reads(expr, columns)
        if expr.column is not None:
            return columns[expr.column]
        reads, inputs = set[Read](), set[Read]()
        loose = _loose(expr, columns)
        tree = expr.tree.copy()
        for part in list(tree.find_all(exp.Column)):
            own = part.parts[0]
            found = columns.get(own.name)
            if found is not None:
                reads.update(found.reads)
                inputs.update(found.inputs)
                text = found.widened if own.name in loose else found.text
                own.replace(exp.to_identifier(f"{{{text}}}", quoted=True))
        text = _short(tree.sql(dialect=DIALECT))
        return Value(text, frozenset(reads), inputs=frozenset(inputs))

    def _inner(self, node: Inner) -> tuple[Value, _Values]:
        inputs = [self.node(child) for child in node.inputs]
        columns = {name: value for _, made in inputs for name, value in made.items()}
        on = sorted((self.value(item, columns) for item in node.on), key=lambda item: item.text)
        return _rows("inner", *(rows for rows, _ in inputs), _joined("on", *on)), columns

    def _join(self, node: Join) -> tuple[Value, _Values]:
        left_rows, left = self.node(node.left)
        right_rows, right = self.node(node.right)
        both = {**left, **right}
        pairs = [_joined("=", left[a], right[b]) for a, b in node.equal]
        also = [self.value(item, both) for item in node.also]
        kind = f"{node.side.value} {node.null_safe}"
        rows = _rows(kind, left_rows, right_rows, _joined("on", *pairs, *also))
        if node.side in (Side.SEMI, Side.ANTI):
            return rows, left
        # A column that is NULL without a match differs from its own expression.
        maybe = {name: _joined("maybe", rows, value) for name, value in right.items()}
        if node.side is Side.FULL:
            left = {name: _joined("maybe", rows, value) for name, value in left.items()}
        return rows, {**left, **maybe}

    def _set_operation(self, node: SetOp) -> tuple[Value, _Values]:
        sides = []
        for child in (node.left, node.right):
            rows, columns = self.node(child)
            sides.append((_rows("side", rows, *(columns[c] for c in child.columns)), columns))
        rows = _rows(node.kind.value, *(side for side, _ in sides))
        made = {}
        for place, name in enumerate(node.columns):
            each = (sides[0][1][node.left.columns[place]], sides[1][1][node.right.columns[place]])
            made[name] = _joined("of", *each)
        return rows, made


def _numbered(at: int, found: Lineage, names: Sequence[str]) -> tuple[Value, _Values]:
    """One numbered occurrence of a relation."""
    made = {
        name: Value(
            f"{at}:{value.text}",
            value.reads,
            None if value.widened is None else f"{at}:{value.widened}",
            value.inputs,
            value.unchanged,
        )
        for name, value in zip(names, found.columns, strict=True)
    }
    return Value(f"{at}:{found.rows.text}", found.rows.reads), made


def _joined(kind: str, *parts: Value) -> Value:
    reads: frozenset[Read] = frozenset().union(*(part.reads for part in parts))
    inputs: frozenset[Read] = frozenset().union(*(part.inputs for part in parts))
    return Value(_short(f"{kind}({'; '.join(part.text for part in parts)})"), reads, inputs=inputs)


def _rows(kind: str, *parts: Value) -> Value:
    """The rows that parts decide on."""
    return replace(_joined(kind, *parts), inputs=frozenset())


def _check_reads(value: Expr, columns: Mapping[str, Value]) -> None:
    """Raise `Unsupported` if an expression reads anything but these columns, by name."""
    missing = value.columns - columns.keys()
    if missing:
        raise Unsupported(Code.PARSE_MISMATCH, f"the column {min(missing)}")
    if value.column is not None:
        return
    _check_stars(value.tree)
    for column in value.tree.find_all(exp.Column):
        own = column.parts[0].name  # The other parts are fields of it.
        if own not in columns and not _is_variable(column, own):
            raise Unsupported(Code.PARSE_MISMATCH, f"the column {own}")


def _check_stars(tree: exp.Expr) -> None:
    """Raise `Unsupported` if a function takes `*`; in a SELECT list it is already expanded."""
    for star in tree.find_all(exp.Star):
        call = star.parent
        if isinstance(call, exp.Select):
            continue
        if not (isinstance(call, exp.Count) and call.this is star and not call.expressions):
            raise Unsupported(Code.PARSE_MISMATCH, "* as an argument")


def _is_variable(column: exp.Column, name: str) -> bool:
    """Whether a name is a parameter of an enclosing lambda."""
    inside = column.find_ancestor(exp.Lambda)
    while inside is not None:
        if fold(name) in {fold(variable.name) for variable in inside.expressions}:
            return True
        inside = inside.find_ancestor(exp.Lambda)
    return False


def _says_its_order(call: Expr) -> bool:
    """Whether the result of a window function is independent of the order of its input: it ignores
    the order, or its OVER clause determines it completely.
    """
    function = call.tree
    while isinstance(function, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        function = function.this
    return name_of(function) in _BY_OVER | IN_ANY_ORDER


def _loose(value: Expr, columns: Mapping[str, Value]) -> frozenset[str]:
    """Columns of which an expression depends on the values only, not on the integer width."""
    wider = [name for name in value.columns if name in columns and columns[name].widened]
    if not wider:
        return frozenset()
    named: dict[str, list[exp.Column]] = {name: [] for name in wider}
    for column in value.tree.find_all(exp.Column):
        if column.name in named:
            named[column.name].append(column)
    return frozenset(
        name for name, found in named.items() if found and all(map(_of_any_width, found))
    )


def _of_any_width(column: exp.Column) -> bool:
    """Whether an integer column is counted, or compared with literals.

    A sum does not qualify: its stored accumulator depends on the type.
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


def _short(text: str) -> str:
    return text if len(text) <= _LONG else _digest(text)


def _digest(text: str) -> str:
    return f"#{checksum([text.encode()])}"
