"""Make query results independent of row order: feed order-dependent operators in a fixed order.

Spark adds floating-point numbers, collects lists and breaks ties in the order in which rows happen
to arrive. That order depends on the number of tasks and on which of them finishes first, so a
replay would give other values than were sent (J6). This module makes every stored result a function
of the bag of rows alone: it searches the analysed plan for operators that depend on row order, and
gives them a total order.

    Aggregate   one task has all rows of a group, sorted by all columns that the aggregate reads
    Window      one task has all rows of a partition, sorted as it asks, then by all columns
    Sort        all columns break ties, so that LIMIT and OFFSET above it have one answer
    Limit       without an order: sorted by all columns

Spark preserves the order. It replaces the hash aggregate over sorted rows by a sort aggregate
(`REQUIRED`), which adds rows in the order in which they arrive, and needs no second sort or
exchange for a window. Functions whose result does not depend on the order (COUNT, MIN, sums of
integers and decimals) are left alone, and so is a plan that has no others.

`f(DISTINCT x)` next to such functions would be computed from rows that Spark exchanges once more.
So the first row of each x is marked, and f is computed over marked rows.

Zeros of either sign are equal, but are still sorted by their sign, because their text shows it.

Not supported: order-dependent functions in a subquery that Spark computes separately, or next to a
key that has no order (MAP), and TABLESAMPLE. See docs/design/0019-one-order-of-rows.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stepwell.errors import NotApplicable
from stepwell.plan.functions import IN_ANY_ORDER

REQUIRED = {"spark.sql.execution.replaceHashWithSortAgg": "true"}
"""Settings without which an aggregate may not process its rows in the order of arrival."""

_BY_PEERS = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
"""Window functions with the same result for all rows that the ORDER BY does not distinguish."""
_EXACT = frozenset({"byte", "short", "integer", "long"})
_ONE_ROW_AFTER_ANOTHER = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail"})
_PASSES_ON = frozenset({"Project", "SubqueryAlias", "View", "LocalLimit", "Offset"})
"""Operators that may stand between a limit and its sort."""
_CALL = "AggregateExpression"
_COLUMN = "AttributeReference"
_JSON = {
    # Every value must have a text of its own.
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


class OrderDependentError(NotApplicable):
    """A query whose result cannot be made independent of row order; the message names the cause."""


def in_fixed_order(frame: DataFrame, *, signs: bool = False) -> DataFrame:
    """The same query with one answer. Raises `OrderDependentError` if it cannot have one.

    `signs`: whether an expression over a minimum or maximum may show the sign of a zero. In our own
    plans it cannot: such a number is stored first, without its sign.
    """
    spark = frame.sparkSession
    plan = frame._jdf.queryExecution().analyzed()
    ordered = _Catalyst(spark, signs).ordered(plan)
    if ordered is plan:
        return frame
    dataset = _java(spark._jvm).classic.Dataset
    return DataFrame(dataset.ofRows(spark._jsparkSession, ordered), spark)


class _Package:
    """A Java package. The gateway searches all jars for a name, so each name is looked up once."""

    def __init__(self, package: Any) -> None:
        self._package = package
        self._found: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = getattr(self._package, name)
        return self._found[name]

    def object(self, name: str) -> Any:
        """A Scala object."""
        key = f"{name}.MODULE$"
        if key not in self._found:
            self._found[key] = getattr(getattr(self._package, f"{name}$"), "MODULE$")
        return self._found[key]


class _Java:
    """The classes and objects used, in one Java."""

    def __init__(self, jvm: Any) -> None:
        sql = jvm.org.apache.spark.sql
        self.classic = _Package(sql.classic)
        self.plans = _Package(sql.catalyst.plans.logical)
        self.expressions = _Package(sql.catalyst.expressions)
        self.aggregates = _Package(sql.catalyst.expressions.aggregate)
        self.types = _Package(sql.types)
        self.normalising = _Package(sql.catalyst.optimizer).object("NormalizeFloatingNumbers")
        self.lists = jvm.java.util.ArrayList
        self.some = jvm.scala.Some
        self.none = jvm.scala.Option.empty()
        self.utils = jvm.PythonUtils


@lru_cache(maxsize=1)
def _java(jvm: Any) -> _Java:
    return _Java(jvm)


class _Catalyst:
    """Reads and builds nodes of logical plans."""

    def __init__(self, spark: SparkSession, signs: bool) -> None:
        self._signs = signs
        self._java = _java(spark._jvm)
        self._plans, self._expressions = self._java.plans, self._java.expressions
        self._normalising = self._java.normalising
        self._none = self._java.none

    def ordered(self, plan: Any) -> Any:
        """The plan with one answer; the same object if it already has one."""
        for inside in _each(plan.subqueriesAll()):
            self._check(inside)
        return self._rewritten(plan)

    def _check(self, plan: Any) -> None:
        """Reject a subquery whose answer depends on row order."""
        for child in _each(plan.children()):
            self._check(child)
        one = plan.nodeName() not in _ONE_ROW_AFTER_ANOTHER or _is_determined(plan)
        if not one or (plan.nodeName() != "Sort" and self._changed(plan) is not plan):
            raise OrderDependentError("a subquery whose answer depends on the order of rows")

    def _rewritten(self, plan: Any) -> Any:
        before = list(_each(plan.children()))
        after = [self._rewritten(child) for child in before]
        if any(new is not old for new, old in zip(after, before, strict=True)):
            plan = plan.withNewChildren(self._seq(after))
        if plan.nodeName() in _ONE_ROW_AFTER_ANOTHER and not _is_sorted(plan.child()):
            child = self._sort(self._seq([]), plan.child(), everywhere=True)
            return plan.withNewChildren(self._seq([child]))
        return self._changed(plan)

    def _changed(self, plan: Any) -> Any:
        match plan.nodeName():
            case "Aggregate":
                return self._aggregate(plan)
            case "Window":
                return self._window(plan)
            case "Sort" if getattr(plan, "global")():
                return self._sort(plan.order(), plan.child(), everywhere=True)
            case "Sample":
                raise OrderDependentError("TABLESAMPLE, which takes other rows each time")
        return plan

    # Aggregates

    def _aggregate(self, plan: Any) -> Any:
        results = list(_each(plan.aggregateExpressions()))
        calls = [call for result in results for call in _calls(result)]
        if all(map(self._in_any_order, calls)):
            return plan
        child, keys, replaced = self._keys(plan)
        # The columns of the calls in the order in which the calls name them. Not by their names or
        # numbers, which differ between plans of the same aggregate.
        read = _columns(results, child)
        for call in calls:
            test = list(_each(call.filter().toList()))
            if call.isDistinct():
                child, mark = self._marked(child, keys, call, read)
                test = [self._expressions.And(test[0], mark) if test else mark]
            replaced.append((call, self._plain(call, test)))
        results = [self._result(result, replaced) for result in results]
        rows = self._sort(self._ascend(keys), self._gathered(keys, child), read)
        return self._plans.Aggregate(self._seq(keys), self._seq(results), rows, plan.hint())

    def _keys(self, plan: Any) -> tuple[Any, list[Any], list[tuple[Any, Any]]]:
        """The keys of an aggregate as input columns, and the replacement of each in the results.

        Spark groups floating-point numbers by a normalized value, for which it would exchange rows
        once more. They are grouped by their texts instead, which are equal if the numbers are.
        """
        child, keys, made, replaced = plan.child(), [], [], []
        for key in _each(plan.groupingExpressions()):
            if not self._is_orderable(key):
                raise OrderDependentError(
                    f"a key of type {key.dataType().sql()} next to a function that depends on the "
                    f"order of rows"
                )
            floating = self._normalising.needNormalize(key.dataType())
            if not floating and _is_column(key):
                keys.append(key)
                continue
            value = self._as_text(self._normalising.normalize(key)) if floating else key
            alias = self._alias(value, "key")
            made.append(alias)
            keys.append(alias.toAttribute())
            if floating:
                value = self._normalising.normalize(key)
                least = self._java.aggregates.Min(value).toAggregateExpression()
                replaced.append((key, least))
            else:
                replaced.append((key, keys[-1]))
        if made:
            child = self._plans.Project(self._seq([*_each(child.output()), *made]), child)
        return child, keys, replaced

    def _marked(self, child: Any, keys: list[Any], call: Any, read: list[Any]) -> tuple[Any, Any]:
        """A condition that is true for the first row of each group and each value of the call."""
        of = [*keys, *_each(call.aggregateFunction().children()), *_each(call.filter().toList())]
        # listagg gives the order of its values as one of its children.
        of = [part.child() if part.nodeName() == "SortOrder" else part for part in of]
        of = [part for part in of if not part.foldable()]
        order = self._ascend(self._sort_keys(read))
        frames = self._expressions
        frame = frames.SpecifiedWindowFrame(
            self._expressions.object("RowFrame"),
            self._expressions.object("UnboundedPreceding"),
            self._expressions.object("CurrentRow"),
        )
        definition = frames.WindowSpecDefinition(self._seq(of), order, frame)
        number = frames.WindowExpression(frames.RowNumber(), definition)
        alias = self._alias(number, "number")
        window = self._plans.Window(self._seq([alias]), self._seq(of), order, child, self._none)
        return window, self._expressions.EqualTo(alias.toAttribute(), self._literal(1))

    def _plain(self, call: Any, test: list[Any]) -> Any:
        """A call without DISTINCT over the rows that pass a test, or over all rows.

        Spark averages integers by adding them up as floating-point numbers, but assumes that the
        result does not depend on order. So they are cast to floating point first.
        """
        function = call.aggregateFunction()
        if function.nodeName() == "Average" and function.child().dataType().typeName() in _EXACT:
            double = self._java.types.object("DoubleType")
            value = self._expressions.Cast(function.child(), double, self._java.some("UTC"))
            function = function.withNewChildren(self._seq([value]))
        given = self._java.some(test[0]) if test else self._none
        return self._java.aggregates.AggregateExpression(
            function, call.mode(), False, given, call.resultId()
        )

    # Windows

    def _window(self, plan: Any) -> Any:
        if all(map(self._by_peers, _each(plan.windowExpressions()))):
            return plan
        keys = [self._normalising.normalize(key) for key in _each(plan.partitionSpec())]
        order = [*_each(self._ascend(keys)), *_each(plan.orderSpec())]
        rows = self._sort(self._seq(order), self._gathered(keys, plan.child()))
        return self._plans.Window(
            plan.windowExpressions(), self._seq(keys), plan.orderSpec(), rows, plan.hint()
        )

    # Row order

    def _gathered(self, keys: list[Any], child: Any) -> Any:
        """All rows with the same keys in one task."""
        if not keys:
            return self._plans.Repartition(1, True, child)
        return self._plans.RepartitionByExpression(self._seq(keys), child, self._none, self._none)

    def _sort(
        self,
        order: Any,
        child: Any,
        columns: Iterable[Any] | None = None,
        *,
        everywhere: bool = False,
    ) -> Any:
        """Sort rows by an order, and then by columns: by default, all of them."""
        columns = _each(child.output()) if columns is None else columns
        more = self._ascend(self._sort_keys(columns))
        both = self._seq([*_each(order), *_each(more)])
        return self._plans.Sort(both, everywhere, child, self._none)

    def _ascend(self, keys: Iterable[Any]) -> Any:
        make, nothing = self._expressions.SortOrder, self._seq([])
        how = self._expressions.object("Ascending"), self._expressions.object("NullsFirst")
        return self._seq([make(key, *how, nothing) for key in keys])

    def _sort_keys(self, columns: Iterable[Any]) -> Iterator[Any]:
        """Sort keys that tie only for rows that are identical, bit by bit, in these columns."""
        for column in columns:
            kind = column.dataType()
            if not self._is_orderable(column):
                yield self._as_text(column)
                continue
            yield column
            if kind.typeName() in ("double", "float"):
                zero = self._expressions.Cast(self._literal(0), kind, self._none)
                texts = self._java.types.object("StringType")
                is_zero = self._expressions.EqualTo(column, zero)
                nothing = self._literal_null(texts)
                yield self._expressions.If(is_zero, self._as_text(column), nothing)
            elif self._normalising.needNormalize(kind):
                yield self._as_text(column)

    def _is_orderable(self, value: Any) -> bool:
        return bool(self._expressions.object("OrderUtils").isOrderable(value.dataType()))

    def _as_text(self, value: Any) -> Any:
        """A text that is different for every value of a type."""
        zone = self._java.some("UTC")
        if value.dataType().typeName() in ("struct", "array", "map"):
            options = self._java.utils.toScalaMap(_JSON)
            if value.dataType().typeName() == "map":
                # As a list of entries: the text of a map omits entries without a value.
                value = self._expressions.MapEntries(value)
            return self._expressions.StructsToJson(options, value, zone)
        texts = self._java.types.object("StringType")
        return self._expressions.Cast(value, texts, zone)

    def _literal(self, value: object) -> Any:
        return self._expressions.object("Literal").apply(value)

    def _literal_null(self, kind: Any) -> Any:
        return self._expressions.object("Literal").create(None, kind)

    # Order dependence

    def _in_any_order(self, call: Any) -> bool:
        """Whether the result of an aggregate function is independent of row order."""
        function = call.aggregateFunction()
        name = function.prettyName()
        if name in ("sum", "avg"):
            kind = str(function.child().dataType().typeName())
            # The average of integers is computed from their floating-point sum.
            return kind.startswith(("decimal", "interval")) or (name == "sum" and kind in _EXACT)
        if name in ("min", "max") and self._signs:
            return not self._normalising.needNormalize(function.child().dataType())
        return name in IN_ANY_ORDER

    def _by_peers(self, expression: Any) -> bool:
        """Whether a window function gives the same result for any arrangement of tied rows."""
        window = expression.child()
        function, frame = window.windowFunction(), window.windowSpec().frameSpecification()
        if function.nodeName() in _BY_PEERS:
            return True
        if function.nodeName() != _CALL or not self._in_any_order(function):
            return False
        whole = "unboundedpreceding", "unboundedfollowing"
        bounds = frame.lower().toString(), frame.upper().toString()
        ends = [str(bound).startswith(end) for bound, end in zip(bounds, whole, strict=True)]
        return str(frame.frameType().toString()) == "RangeFrame" or all(ends)

    # Expressions

    def _result(self, result: Any, replaced: list[tuple[Any, Any]]) -> Any:
        """A result column of an aggregate with parts replaced. It keeps its id."""
        new = self._replaced(result, replaced)
        if new is not result and _is_column(result):
            return self._alias(new, result.name(), result.exprId())
        return new

    def _replaced(self, expression: Any, replaced: list[tuple[Any, Any]]) -> Any:
        for old, new in replaced:
            if expression.semanticEquals(old):
                return new
        if expression.nodeName() == _CALL:
            return expression
        before = list(_each(expression.children()))
        after = [self._replaced(child, replaced) for child in before]
        if all(new is old for new, old in zip(after, before, strict=True)):
            return expression
        return expression.withNewChildren(self._seq(after))

    def _alias(self, value: Any, name: str, id: Any = None) -> Any:
        nothing = self._seq([])
        id = self._expressions.object("NamedExpression").newExprId() if id is None else id
        return self._expressions.Alias(value, name, id, nothing, self._none, nothing)

    def _seq(self, parts: Iterable[Any]) -> Any:
        made = self._java.lists()
        for part in parts:
            made.add(part)
        return self._java.utils.toSeq(made)


def _is_sorted(plan: Any) -> bool:
    """Whether the rows of a plan are sorted, in an order that a limit above it respects."""
    found = _beneath(plan)
    return bool(found.nodeName() == "Sort" and getattr(found, "global")())


def _is_determined(limit: Any) -> bool:
    """Whether a limit in a subquery has one answer: by its order, or because all rows are equal."""
    output = list(_each(limit.output()))
    found = _beneath(limit.child())
    if found.nodeName() == "Project" and all(map(_is_constant, _each(found.projectList()))):
        return True
    if found.nodeName() != "Sort" or not getattr(found, "global")():
        return False
    by = [item.child() for item in _each(found.order())]
    return all(any(column.semanticEquals(key) for key in by) for column in output)


def _beneath(plan: Any) -> Any:
    """The plan whose rows a limit cuts: below the operators that pass rows on unchanged."""
    while plan.nodeName() in _PASSES_ON:
        if plan.nodeName() == "Project" and all(map(_is_constant, _each(plan.projectList()))):
            break
        plan = plan.children().apply(0)
    return plan


def _is_constant(item: Any) -> bool:
    return bool(item.foldable() or (item.nodeName() == "Alias" and item.child().foldable()))


def _calls(expression: Any) -> Iterator[Any]:
    """The aggregate functions that an expression calls."""
    if expression.nodeName() == _CALL:
        yield expression
        return
    for child in _each(expression.children()):
        yield from _calls(child)


def _columns(expressions: Iterable[Any], child: Any) -> list[Any]:
    """The columns of an input that expressions read, in the order in which they name them."""
    known = {column.exprId().id(): column for column in _each(child.output())}
    found: dict[int, Any] = {}

    def visit(expression: Any) -> None:
        if _is_column(expression):
            id = expression.exprId().id()
            if id in known:
                found.setdefault(id, known[id])
        for part in _each(expression.children()):
            visit(part)

    for expression in expressions:
        visit(expression)
    return list(found.values())


def _is_column(expression: Any) -> bool:
    return bool(expression.nodeName() == _COLUMN)


def _each(parts: Any) -> Iterator[Any]:
    for i in range(parts.size()):
        yield parts.apply(i)
