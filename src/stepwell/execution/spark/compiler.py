"""Spark's part in compiling a view: how it reads the text, and the resulting types.

Spark determines names, types and determinism. The query as Stepwell understood it is given to Spark
too, and must result in the same plan. If it does not, the view is recomputed from the user's text,
which is always correct.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stepwell.errors import SqlError
from stepwell.execution.spark.failures import place_in, why_not_analysed
from stepwell.execution.spark.frames import nothing, type_of
from stepwell.execution.spark.read_only import RefusedError, read_only
from stepwell.execution.spark.row_order import OrderDependentError, in_fixed_order
from stepwell.execution.spark.session import activated
from stepwell.lsm.part import Relation
from stepwell.lsm.relations import Relations
from stepwell.plan import functions
from stepwell.plan.lower import Lowering
from stepwell.plan.nodes import Aggregate, Node, Scan, When
from stepwell.plan.program import Block, Field, Full, Groups, Program, may_depend_on_order
from stepwell.plan.reasons import Code, Reason, Unsupported
from stepwell.plan.render import render
from stepwell.plan.shape import typed
from stepwell.plan.types import why_not_kept
from stepwell.plan.typing import INPUT, Typing
from stepwell.sql.catalog import Catalog
from stepwell.sql.parse import Parsed, parse_query
from stepwell.sql.statements import MaterializedView, Policy, View
from stepwell.text import Source

_MOMENT = re.compile(r"""['"]\s*(now|today|tomorrow|yesterday)\b""", re.IGNORECASE)
_OF_TIME = ("date", "timestamp", "timestamp_ltz", "timestamp_ntz")
_CAST_MOMENT = re.compile(
    r"(cast\(\s*(now|today|tomorrow|yesterday)\b[^#()]* as (date|timestamp)"
    r"|(to_date|to_timestamp\w*)\(\s*(now|today|tomorrow|yesterday)\b[^#])",
    re.IGNORECASE,
)
"""The text of such a cast in a plan, where a column would have a number."""

_NAMES_COLUMNS = "org.apache.spark.sql.execution.planmerging.MergeSubplans"
"""A rule of the Spark optimizer whose plans contain column names as values."""


@dataclass(frozen=True, slots=True)
class Analysed:
    """Spark's analysis of the query of a view."""

    frame: DataFrame
    columns: tuple[str, ...]
    types: tuple[str, ...]
    relations: frozenset[str]
    """The relations it may read."""


class Compiler:
    def __init__(self, spark: SparkSession, relations: Relations) -> None:
        self._spark = spark
        self._relations = relations
        self._declared: dict[str, tuple[str, ...]] = {}

    def declare(self, view: str, types: tuple[str, ...]) -> None:
        """Declare the types of a materialized view that later views may read."""
        self._declared[view] = types

    def analyse(self, view: View | MaterializedView, relations: Collection[str]) -> Analysed:
        """Have Spark analyse a view; errors point into the user's text.

        `relations` are those it may read: tables, and the views declared before it.
        """
        try:
            frame = read_only(self._spark, view.query, relations)
            schema = frame.schema
        except RefusedError as error:
            at = view.query_span.start + (error.offset or 0)
            raise view.source.error(at, f"{view.name}: {error.message}", hint=error.hint) from error
        except (PySparkException, Py4JJavaError) as error:
            raise _in_text(view, error) from error
        columns = tuple(field.name for field in schema)
        if view.columns is not None:
            if len(view.columns) != len(columns):
                raise view.source.error(
                    view.span.start,
                    f"{view.name} names {len(view.columns)} columns, its query has {len(columns)}",
                )
            columns = view.columns
        self._refuse_moments(view, frame)
        folded = [c.lower() for c in columns]
        for column in columns:
            if folded.count(column.lower()) > 1:
                raise view.source.error(
                    view.query_span.start,
                    f"{view.name} has two columns called {column}",
                    hint="give one of them another name with AS",
                )
        types = tuple(type_of(f.dataType) for f in schema)
        return Analysed(frame, columns, types, frozenset(relations))

    def compile(
        self,
        view: MaterializedView,
        analysed: Analysed,
        catalog: Catalog,
        unique: Mapping[str, tuple[int, ...]],
        reads: frozenset[str],
        views: Mapping[str, Node],
    ) -> Program:
        """The program that maintains a view."""
        self._refuse_unstable(view, analysed)
        self._refuse_types(view, analysed)
        reason: Reason | None = None
        if view.policy is Policy.FULL:
            reason = Reason(Code.POLICY_FULL, "the view declares REFRESH POLICY FULL")
        else:
            try:
                parsed = parse_query(view.query, catalog, share=True)
                self.compare(view.query, parsed.forms, analysed)
                try:
                    return self._lower(view, parsed, analysed, unique, views)
                except Unsupported:
                    if not parsed.shared:
                        raise
                # Rows of a shared query that cannot be stored may be of no use elsewhere.
                parsed = parse_query(view.query, catalog)
                return self._lower(view, parsed, analysed, unique, views)
            except Unsupported as unsupported:
                reason = unsupported.reason
        if view.policy is Policy.INCREMENTAL:
            raise view.source.error(
                view.query_span.start,
                f"{view.name} cannot be maintained incrementally: {reason}",
                hint=f"{reason.advice}, or write REFRESH POLICY AUTO",
            )
        self._refuse_order(view, analysed)
        # Number 0, which no block has: state of one refresh mode must not be taken for the other's.
        full = Full(f"{view.name}$0", tuple(map(Field, analysed.types)), view.query, reads, reason)
        output = Scan(full.relation, tuple(f"o{i}" for i in range(len(analysed.types))))
        return Program(view.name, analysed.columns, analysed.types, (full,), output)

    def _lower(
        self,
        view: MaterializedView,
        parsed: Parsed,
        analysed: Analysed,
        unique: Mapping[str, tuple[int, ...]],
        views: Mapping[str, Node],
    ) -> Program:
        ansi = self._spark.conf.get("spark.sql.ansi.enabled") == "true"
        made: list[str] = []

        def types(node: Node) -> tuple[str, ...]:
            for block in lowering.blocks[len(made) :]:
                kinds = tuple(f.type for f in block.fields)
                self._relations.add(Relation(block.relation, kinds, block.key))
                made.append(block.relation)
            return typing.of(node)

        typing = Typing(self._types_of, self._ask)
        lowering = Lowering(
            view.name,
            parsed.names,
            types,
            ansi=ansi,
            unique=unique,
            views=views,
            shared=parsed.shared,
        )
        try:
            for grouped in parsed.grouped:
                lowering.check(*grouped)
            output = lowering.view(parsed.node)
            found = types(output)
            if found != analysed.types:
                raise Unsupported(
                    Code.PARSE_MISMATCH, f"columns would be {found}, Spark says {analysed.types}"
                )
            for block in lowering.blocks:
                for stored in block.fields:
                    if why_not_kept(stored.type) is not None:
                        raise Unsupported(
                            Code.UNSUPPORTED_TYPE,
                            f"a value of type {stored.type.upper()} would have to be stored",
                        )
            self._check_blocks(lowering.blocks, typing)
        except PySparkException as error:
            raise Unsupported(Code.PARSE_MISMATCH, str(error).split("\n")[0][:200]) from error
        finally:
            for relation in made:
                self._relations.drop(relation)
        shown = typed(output, dict(zip(output.columns, found, strict=True)))
        return Program(view.name, analysed.columns, found, tuple(lowering.blocks), shown)

    def _types_of(self, relation: str) -> tuple[str, ...]:
        if relation in self._relations:
            return self._relations[relation].types
        return self._declared[relation]

    def _ask(self, node: Node, inputs: Sequence[tuple[str, ...]] = ()) -> tuple[str, ...]:
        """The types of a node's columns, by Spark's analysis of its SQL over empty tables."""
        schema = self._empty(node, inputs).schema
        return tuple(type_of(field.dataType) for field in schema.fields[: len(node.columns)])

    def _empty(self, node: Node, inputs: Sequence[tuple[str, ...]] = ()) -> DataFrame:
        known = {f"{INPUT}{i}": types for i, types in enumerate(inputs)}

        def table(relation: str, when: When) -> str:
            return nothing(known[relation] if relation in known else self._types_of(relation))

        return self._spark.sql(render(node, table).sql)

    def _check_blocks(self, blocks: Sequence[Block], typing: Typing) -> None:
        """Check that Spark analyses every block, as a whole, to the types that were derived.

        J6: also check that every order-dependent operation can be given a fixed row order.
        """
        for block in blocks:
            if isinstance(block, Full):
                continue
            node = block.input
            if isinstance(block, Groups):
                node = Aggregate(node, block.keys, block.calls)
            frame = self._empty(node)
            fields = frame.schema.fields[: len(node.columns)]
            found = tuple(type_of(field.dataType) for field in fields)
            if found != typing.of(node):
                raise Unsupported(
                    Code.PARSE_MISMATCH, f"types would be {typing.of(node)}, Spark says {found}"
                )
            if not may_depend_on_order(block):
                continue
            try:
                in_fixed_order(frame)
            except OrderDependentError as error:
                raise Unsupported(Code.UNSUPPORTED_OPERATOR, str(error)) from error

    def _refuse_types(self, view: MaterializedView, analysed: Analysed) -> None:
        """Reject types that cannot be stored and compared, because rows are retracted by value."""
        for column, type_ in zip(analysed.columns, analysed.types, strict=True):
            refused = why_not_kept(type_)
            if refused is not None:
                raise view.source.error(
                    view.query_span.start,
                    f"{view.name} is stored, but its column {column} is {type_.upper()}, "
                    f"{refused.why} ({Code.UNSUPPORTED_TYPE.value})",
                    hint=f"select {refused.select}",
                )

    def _refuse_moments(self, view: View | MaterializedView, frame: DataFrame) -> None:
        """J11: reject strings that Spark resolves to the current time, as in `DATE 'today'`."""
        tokens = Source("query", view.query).tokens()
        before = ["", *(token.text.lower() for token in tokens)]
        texts = [
            (token, word)
            for token, word in zip(tokens, before, strict=False)
            if token.kind == "string" and _MOMENT.match(token.text)
        ]
        if not texts:
            return
        with self._comparable():
            plan = frame._jdf.queryExecution().analyzed().toString()
        for token, word in texts:
            if word in _OF_TIME or _CAST_MOMENT.search(plan):
                raise view.source.error(
                    view.query_span.start + token.start,
                    f"{view.name} reads the clock through a text that Spark interprets as a time",
                    hint="write current_date() or now(), whose time is recorded",
                )

    def _refuse_unstable(self, view: MaterializedView, analysed: Analysed) -> None:
        """J11: reject queries whose result would differ when replayed."""
        plan = analysed.frame._jdf.queryExecution().analyzed()
        if not plan.deterministic():
            raise view.source.error(
                view.query_span.start,
                f"{view.name} is stored, but its query gives a different answer each time it runs",
                hint=(
                    "leave out rand(), uuid() and the like, or compute the value where the row is "
                    "created and store it in a column; a function of your own must be deterministic"
                ),
            )
        from sqlglot import parse_one
        from sqlglot.errors import SqlglotError

        try:
            found = functions.unstable(parse_one(view.query, dialect="spark"))
        except SqlglotError:
            return
        if found is not None:
            raise view.source.error(
                view.query_span.start,
                f"{view.name} is stored, but {found}() depends on where and when it runs",
                hint="compute the value where the row is created, and store it in a column",
            )

    def _refuse_order(self, view: MaterializedView, analysed: Analysed) -> None:
        """J6: a recomputed view must not depend on the arrangement of its rows."""
        try:
            in_fixed_order(analysed.frame, signs=True)
        except OrderDependentError as error:
            raise view.source.error(
                view.query_span.start,
                f"{view.name} is stored, but contains {error} ({Code.NON_DETERMINISTIC.value})",
                hint="write the subquery as a join or as a view of its own; or cast what it adds "
                "up to DECIMAL, and give lists and first values an order",
            ) from error

    def compare(self, text: str, forms: tuple[str, ...], analysed: Analysed) -> None:
        """Check that Spark plans one form of our reading of the query like the user's text."""
        for form in forms:
            unlike = self._unlike(text, form, analysed)
            if unlike is None:
                return
        raise Unsupported(Code.PARSE_MISMATCH, unlike or "there is nothing to read")

    def _unlike(self, text: str, form: str, analysed: Analysed) -> str | None:
        """Why Spark reads two texts differently; None if it does not.

        The answer must be the same whenever a pipeline is opened. Spark plans several distinct
        aggregates in an order that varies, so they are compared without the word DISTINCT.
        """
        theirs = analysed.frame
        (without, here), (form_without, there) = map(without_distinct, (text, form))
        if max(here, there) > 1 and here != there:
            return f"DISTINCT is read {there} times"
        try:
            with self._comparable():
                if here > 1:
                    theirs = read_only(self._spark, without, analysed.relations)
                    form = form_without
                mine = read_only(self._spark, form, analysed.relations)
                plans = [frame._jdf.queryExecution().optimizedPlan() for frame in (mine, theirs)]
                same = _same(*plans)
        except (PySparkException, Py4JJavaError, RefusedError) as error:
            return str(error).split("\n")[0][:200]
        return None if same else "Spark parses the query differently"

    @contextmanager
    def _comparable(self) -> Iterator[None]:
        """Make plans comparable: without the rule that uses the user's column names, and in full.

        Spark then writes all columns of a plan, not only the first 25. The active session decides.
        """
        settings = {
            "spark.sql.debug.maxToStringFields": "1000000",
            "spark.sql.optimizer.excludedRules": _NAMES_COLUMNS,
        }
        before = {key: self._spark.conf.get(key, None) for key in settings}
        for key, value in settings.items():
            self._spark.conf.set(key, value)
        try:
            with activated(self._spark):
                yield
        finally:
            for key, old in before.items():
                if old is None:
                    self._spark.conf.unset(key)
                else:
                    self._spark.conf.set(key, old)


def without_distinct(text: str) -> tuple[str, int]:
    """A query without the word DISTINCT at the start of an argument list, and how often it was."""
    tokens = Source("query", text).tokens()
    found = [
        token
        for before, token in pairwise(tokens)
        if before.text == "(" and token.kind == "word" and token.text.upper() == "DISTINCT"
    ]
    for token in reversed(found):
        text = text[: token.start] + text[token.end :]
    return text, len(found)


def _same(mine: Any, theirs: Any) -> bool:
    """Whether two plans are the same. Spark does not recognize a plan with IN or EXISTS in a value,
    not even as equal to itself."""
    return mine.sameResult(theirs) or (
        _outline(mine) == _outline(theirs) and _tables(mine) == _tables(theirs)
    )


def _outline(plan: Any) -> str:
    """The text of a plan, its ids numbered by first occurrence. A comma join equals a CROSS JOIN.

    Column names are written in lower case before their ids.
    """
    order: dict[str, str] = {}
    text = plan.toString().replace("Join Cross", "Join Inner")
    text = re.sub(r"\b\w+(?=#\d)", lambda name: name[0].lower(), text)
    ids = r"#\d+|\b_common_expr_\d+"
    return re.sub(ids, lambda id: order.setdefault(id[0], f"#{len(order)}"), text)


def _tables(plan: Any) -> list[list[int]]:
    """The tables that a plan and its subqueries read, as numbers, in order."""
    others = plan.subqueriesAll()
    found = []
    for one in (plan, *(others.apply(i) for i in range(others.size()))):
        leaves = one.collectLeaves()
        each = [leaves.apply(i) for i in range(leaves.size())]
        found.append([leaf.rdd().id() for leaf in each if leaf.nodeName() == "LogicalRDD"])
    return found


def _in_text(view: View | MaterializedView, error: Exception) -> SqlError:
    """Spark's error, at its position in the user's file."""
    start = view.query_span.start + place_in(view.query, error)
    return view.source.error(start, f"{view.name}: {why_not_analysed(error)}.")
