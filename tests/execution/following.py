"""A random case, followed: every view is what Spark and the reference say, after every batch.

What Spark answers for all views of a case, and what is stored for them, comes out of one query:
rows as arrays of texts, which are read back by the kind of their columns.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession

from stepwell.errors import InvalidError, SqlError, StepwellError, UserCodeError
from stepwell.execution.backend import Fallback
from stepwell.execution.executor import Executed
from stepwell.execution.reference.evaluate import Bag, bag, evaluate
from stepwell.execution.spark.views import Change, Views
from stepwell.plan.nodes import Node
from stepwell.plan.reasons import Unsupported
from stepwell.sql.catalog import Catalog, catalog_of
from stepwell.sql.parse import parse_query, read
from tests.comparing import difference_of_rows, plain, rows_of
from tests.execution import conftest
from tests.random_views.case import Case, Row, View
from tests.random_views.kinds import (
    ARRAY,
    BIGINT,
    BOOLEAN,
    DATE,
    DECIMAL,
    DOUBLE,
    INT,
    NOISY,
    REAL,
    STRING,
)

# A handful of rows is not worth two tasks for each step of a query.
SETTINGS = replace(
    conftest.SETTINGS,
    conf={**conftest.SETTINGS.conf, "spark.sql.leafNodeDefaultParallelism": "1"},
    shuffle_partitions=1,
)
# Spark 4.3 loses a column of some queries with a scalar subquery; then nobody can say what the view
# should hold.
SPARK_FAILS = "key not found"
ORDER_DECIDES = "depends on the order of rows"
SMALLER_TRIES = 30


class WrongViewError(AssertionError):
    def __init__(self, view: str, message: str) -> None:
        super().__init__(message)
        self.view = view


@dataclass(slots=True)
class Followed:
    """What was compared."""

    views: int = 0
    answers: int = 0
    """Of Spark, one per view and batch."""
    reference: int = 0
    """Views that the reference answered for as well."""
    not_by_reference: Counter[str] = field(default_factory=Counter)
    """Why it did not, for the others."""
    left_out: int = 0
    """Views that are refused, by Spark or by us."""

    def add(self, other: Followed) -> None:
        self.views += other.views
        self.answers += other.answers
        self.reference += other.reference
        self.not_by_reference += other.not_by_reference
        self.left_out += other.left_out


def assert_decisions_held(outcome: Executed) -> None:
    """Plans that were decided to run locally did (X3)."""
    refused = [v for v, why in outcome.fallbacks_of.items() if Fallback.REFUSED in why]
    assert not refused, refused


def follow(spark: SparkSession, case: Case, ways: Mapping[str, Any] | None = None) -> Followed:
    """Follow a case through its batches, then through the same changes cut otherwise.

    `ways` are arguments of `Views.open`: how plans are run.
    """
    ways = {"settings": SETTINGS, **(ways or {})}
    before = {n: c.put for n, c in case.changes(case.before, Change).items()}
    followed = Followed()
    while True:
        try:
            views = Views.open(spark, case.sql, tables=before, **ways)
            break
        except (UserCodeError, SqlError) as error:
            case = without_what_cannot_be_opened(spark, case, before, error)
            followed.left_out += 1
    first = {relation.name: list(relation.parts) for relation in views.stored}
    reference = Reference(case)
    done = [case.before]
    # Of empty tables little can be said that is not said again after the first batch.
    begin = now = answers(views, case, recomputed=case.loaded)
    reference.compare(case, done, now)
    for batch in case.steps:
        outcome = views.apply(case.changes(batch, Change))
        assert not outcome.rejected, "every row that is deleted was there"
        assert_decisions_held(outcome)
        done.append(batch)
        moved = {v.name: led_to(v, now[v.name], outcome.changes) for v in case.stored}
        now = answers(views, case)
        for view, rows in moved.items():
            identical(view, "before, plus its changes,", rows, now[view])
        reference.compare(case, done, now)
    for relation in views.stored:
        relation.parts = first[relation.name]
    moved = begin
    for batch in case.cut_otherwise():
        outcome = views.apply(case.changes(batch, Change))
        assert_decisions_held(outcome)
        moved = {v.name: led_to(v, moved[v.name], outcome.changes) for v in case.stored}
    for view, rows in moved.items():
        identical(view, "with its changes cut otherwise", rows, now[view])
    for view, rows in answers(views, case, recomputed=False).items():
        identical(view, "as it is stored, with its changes cut otherwise,", rows, now[view])
    followed.views = len(case.stored)
    followed.answers = len(case.stored) * (1 + len(case.steps))
    followed.reference = len(reference.nodes)
    followed.not_by_reference = reference.why_not
    return followed


def without_what_cannot_be_opened(
    spark: SparkSession, case: Case, before: Mapping[str, Any], error: StepwellError
) -> Case:
    """The case without the first view that may be refused; anything else is raised."""
    if not may_be_refused(error):
        raise error
    for view in case.views:
        try:
            Views.open(spark, case.only(view.name).sql, tables=before, settings=SETTINGS)
        except (UserCodeError, SqlError) as another:
            if not may_be_refused(another):
                raise
            needed = {v.name for v in case.views if view in case.only(v.name).views}
            left = tuple(v for v in case.views if v.name not in needed)
            return replace(case, views=left)
    raise error


def may_be_refused(error: StepwellError) -> bool:
    """Spark itself fails to plan the view, or its answer could not be the same at every replay."""
    return SPARK_FAILS in str(error) or ORDER_DECIDES in str(error)


# What Spark says


def answers(views: Views, case: Case, *, recomputed: bool = True) -> dict[str, list[Row]]:
    """The rows of every view, which are the same as stored and as recomputed by Spark."""
    try:
        return answers_at_once(views, case.stored, recomputed)
    except UserCodeError:
        # Spark 4.3 loses a CTE of some queries when they are parts of a larger one.
        found: dict[str, list[Row]] = {}
        for view in case.stored:
            try:
                found |= answers_at_once(views, [view], recomputed)
            except UserCodeError as error:
                if SPARK_FAILS not in str(error):
                    raise
                found |= answers_at_once(views, [view], recomputed=False)
        return found


def answers_at_once(views: Views, asked: Sequence[View], recomputed: bool) -> dict[str, list[Row]]:
    parts = []
    for view in asked:
        names = ", ".join(f"c{i}" for i in range(len(view.columns)))
        texts = ", ".join(
            f"to_json(c{i})" if column.kind == ARRAY else f"CAST(c{i} AS STRING)"
            for i, column in enumerate(view.columns)
        )
        sources = {"kept": view.name} | ({"spark": f"({view.query})"} if recomputed else {})
        for who, source in sources.items():
            parts.append(
                f"SELECT '{view.name}' AS view, '{who}' AS who, array({texts}) AS texts "
                f"FROM {source} AS q({names})"
            )
    found: dict[tuple[str, str], list[Row]] = {}
    kinds = {view.name: [column.kind for column in view.columns] for view in asked}
    for view, who, texts in rows_of(views.query("\nUNION ALL ".join(parts))):
        row = tuple(value_of(text, kind) for text, kind in zip(texts, kinds[view], strict=True))
        found.setdefault((view, who), []).append(row)
    made = {}
    for view in asked:
        made[view.name] = found.get((view.name, "kept"), [])
        if recomputed:
            agree(
                view.name, "as it is stored", made[view.name], found.get((view.name, "spark"), [])
            )
    return made


def value_of(text: str | None, kind: str) -> Any:
    return None if text is None else READ[kind](text)


READ: dict[str, Callable[[str], Any]] = {
    INT: int,
    BIGINT: int,
    DECIMAL: Decimal,
    DOUBLE: float,
    REAL: float,
    NOISY: float,
    STRING: str,
    DATE: datetime.date.fromisoformat,
    BOOLEAN: "true".__eq__,
    ARRAY: json.loads,
}


def led_to(view: View, rows: Iterable[Row], changes: Mapping[str, Any]) -> list[Row]:
    """The rows of a view after the change that a transaction says it made."""
    counted = Counter(tuple(plain(value) for value in row) for row in rows)
    change = changes.get(view.name)
    for *values, weight in [] if change is None else rows_of(change):
        counted[tuple(plain(value) for value in values)] += weight
    gone = [row for row, weight in counted.items() if weight < 0]
    if gone:
        raise WrongViewError(
            view.name, f"the changes of {view.name} take out what was not there: {gone}"
        )
    return list(counted.elements())


def identical(view: str, what: str, found: Iterable[Row], expected: Iterable[Row]) -> None:
    """J6: the same rows bit by bit, whichever way led to them."""
    have, want = (Counter(tuple(map(plain, row)) for row in rows) for rows in (found, expected))
    if have != want:
        raise WrongViewError(view, f"{view} {what} has {have - want} and lacks {want - have}")


def agree(view: str, what: str, found: Iterable[Row], expected: Iterable[Row]) -> None:
    wrong = difference_of_rows(found, expected)
    if wrong:
        raise WrongViewError(view, f"{view} {what} is not what Spark computes:\n{wrong}")


# What the reference says


class Reference:
    """The views of a case by `execution/reference/evaluate`, as far as it knows what they call."""

    def __init__(self, case: Case) -> None:
        self.nodes: dict[str, Node] = {}
        self.why_not: Counter[str] = Counter()
        catalog = catalog_of({t.name: list(t.columns) for t in case.tables}, {})
        for view in case.views:
            names = [column.name for column in view.columns]
            try:
                if view.stored:
                    self.nodes[view.name] = parse_query(view.query, catalog).node
            except Unsupported as error:
                self.why_not[error.reason.code.value] += 1
            catalog = {**catalog, **known(view, names, catalog)}

    def compare(self, case: Case, batches: Sequence[Any], now: Mapping[str, list[Row]]) -> None:
        relations: dict[str, Bag] = {
            name: bag(content.rows) for name, content in case.contents(batches).items()
        }
        relations |= {name: bag(rows) for name, rows in now.items()}
        for name, node in list(self.nodes.items()):
            try:
                rows = evaluate(node, relations)
            except InvalidError as error:
                self.why_not[str(error)] += 1
                del self.nodes[name]
                continue
            wrong = difference_of_rows(Counter(rows).elements(), now[name])
            if wrong:
                raise WrongViewError(
                    name, f"the reference, for {name}, is not what Spark says:\n{wrong}"
                )


def known(view: View, names: Sequence[str], catalog: Catalog) -> Catalog:
    if view.stored:
        return catalog_of({view.name: names}, {})
    try:
        return catalog_of({}, {view.name: (read(view.query, catalog), names)})
    except Unsupported:
        return {}


# What fails


def smallest(
    spark: SparkSession,
    case: Case,
    error: Exception,
    ways: Mapping[str, Any] | None = None,
) -> tuple[Case, Exception]:
    """A case that fails as well, with one view and few rows if there is one, and how it fails."""

    def failure(smaller: Case) -> Exception | None:
        try:
            follow(spark, smaller, ways)
        except Exception as found:  # noqa: BLE001 - whatever it is, it is to be told
            return found if type(found) is type(error) else None
        return None

    wrong = [error.view] if isinstance(error, WrongViewError) else [v.name for v in case.stored]
    for name in wrong:
        found = failure(case.only(name))
        if found is not None:
            case, error = case.only(name), found
            break
    else:
        return case, error
    tries = SMALLER_TRIES
    for number, batch in enumerate(case.batches):
        for table, rows in batch.items():
            for row in rows.put:
                if not tries:
                    return case, error
                tries -= 1
                smaller = case.without(number, table, row)
                found = failure(smaller)
                if found is not None:
                    case, error = smaller, found
    return case, error
