"""The traps of incremental SQL, each with at least one case in tests/sql_cases/*.sql.

A case lists the input and, by hand, the expected rows of a view. Besides, after every batch, each
view is compared with Spark's own answer, and its changes with the difference they made. The format
of the files is described in tests/sql_files.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from stepwell.errors import StepwellError
from stepwell.execution.spark.views import Change, Views
from tests.comparing import Compared, difference, difference_of_rows, rows_of
from tests.execution.following import assert_decisions_held
from tests.sql_files import (
    Apply,
    Case,
    Delete,
    Expect,
    ExpectChanges,
    ExpectRejected,
    ExpectRule,
    FormatError,
    Put,
    Session,
    all_cases,
    cases_in,
    query_for,
)

# The checklist: what each number stands for, and the files whose cases carry it.
TRAPS: dict[int, tuple[str, set[str]]] = {
    # Values
    1: ("NULL is one group key", {"nulls"}),
    2: ("a row with NULLs is cancelled by its delete", {"nulls"}),
    3: ("NULL join keys", {"nulls"}),
    4: ("keys of several columns, structs and arrays", {"nulls"}),
    5: ("NaN and infinities", {"floats"}),
    6: ("negative zero", {"floats"}),
    7: ("sums of floating point numbers under deletes", {"floats"}),
    8: ("precision and overflow of decimals", {"numbers"}),
    9: ("overflow of integers", {"numbers"}),
    10: ("a sum of which only NULL remains", {"numbers"}),
    11: ("strings: spaces, padding, collations", {"types"}),
    12: ("maps and variants", {"types"}),
    # Bags
    13: ("duplicate rows", {"bags"}),
    14: ("a projection that makes duplicates", {"bags"}),
    15: ("changes that cancel out", {"bags"}),
    16: ("several changes of one key", {"bags"}),
    17: ("deletes of what is not there", {"bags"}),
    18: ("empty batches", {"batches"}),
    19: ("batches that replace everything", {"batches"}),
    # Aggregates
    20: ("groups that vanish, HAVING", {"groups"}),
    21: ("aggregates over nothing", {"groups"}),
    22: ("averages", {"groups"}),
    23: ("minimum and maximum", {"groups", "nulls"}),
    24: ("distinct aggregates", {"aggregates", "lateral"}),
    25: ("FILTER, CASE, expressions over aggregates", {"groups"}),
    26: ("deviation, covariance", {"aggregates"}),
    27: ("aggregates that depend on order", {"aggregates"}),
    28: ("percentiles, sketches, Booleans, bits", {"aggregates"}),
    29: ("ROLLUP, CUBE, GROUPING SETS", {"nested"}),
    30: ("aggregates over aggregates, DISTINCT and joins", {"nested"}),
    # Joins and subqueries
    31: ("both sides of a join change", {"joins"}),
    32: ("one table in several places", {"joins"}),
    33: ("outer joins", {"lateral", "outer_joins"}),
    34: ("semi and anti joins", {"subqueries"}),
    35: ("NOT IN, and IN with three answers", {"subqueries"}),
    36: ("scalar subqueries", {"lateral", "subqueries"}),
    37: ("set operations", {"set_operations"}),
    38: ("cross, range, natural joins and USING", {"joins"}),
    # Order, time, names, life cycle
    39: ("window functions", {"windows"}),
    40: ("LIMIT", {"lateral", "windows"}),
    41: ("chance and the clock", {"time_and_session"}),
    42: ("settings of the session", {"time_and_session"}),
    43: ("names", {"names"}),
    44: ("types that meet", {"types"}),
    # Here as far as it shows without a journal: what a view or a batch names has to be there.
    45: ("sources that change their schema", {"chains"}),
    # Here as far as it shows without a crash: a batch that fails leaves no trace.
    46: ("failures are atomic", {"chains"}),
    47: ("views on views", {"chains"}),
    48: ("generators, LATERAL, functions of the user", {"generators", "lateral"}),
}
# Numbers without a case yet, each with the reason. It can only shrink.
NOT_YET: dict[int, str] = {}

CASES = all_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_view_holds_what_its_file_expects(spark: SparkSession, case: Case) -> None:
    """S3, S4: each of these has been wrong in some other engine."""
    with settings_kept(spark, case):
        for session in case.before:
            spark.sql(session.sql)
        if case.open_error is not None:
            with pytest.raises(StepwellError) as caught:
                Views.open(spark, case.sql)
            assert says(caught.value, case.open_error)
            return
        run(Views.open(spark, case.sql), case, rows_by_step(spark, case), spark)


def run(views: Any, case: Case, rows: dict[int, Any], spark: SparkSession) -> None:
    batch: dict[str, Change] = {}
    compared = Compared(views, case.stored)
    outcome = None
    for number, step in enumerate(case.steps):
        match step:
            case Put() | Delete():
                side = "put" if isinstance(step, Put) else "delete"
                sides = {"put": None, "delete": None, side: rows.get(number)}
                other = batch.get(step.table)
                if other is not None:
                    kept = "delete" if side == "put" else "put"
                    assert getattr(other, side) is None, f"{step} has a batch of its own"
                    sides[kept] = getattr(other, kept)
                batch[step.table] = Change(**sides)
            case Apply(error=None):
                outcome = compared.apply(batch)
                assert_decisions_held(outcome)
                batch = {}
            case Apply():
                before = {name: views.read(name) for name in case.tables}
                with pytest.raises(StepwellError) as caught:
                    views.apply(batch)
                assert says(caught.value, step.error)
                before |= {name: compared.read(name) for name in case.stored}
                for name, table in before.items():
                    assert not difference(views.read(name), table), f"{name} has changed"
                batch = {}
            case Expect():
                wrong = difference_of_rows(rows_of(compared.read(step.view)), rows.get(number, ()))
                assert not wrong, f"{case.place}: {step.view} after step {number}:\n{wrong}"
            case ExpectChanges():
                change = outcome.changes.get(step.view)
                found = [] if change is None else rows_of(change)
                wrong = difference_of_rows(found, rows.get(number, ()))
                assert not wrong, f"{case.place}: changes of {step.view}:\n{wrong}"
            case ExpectRejected():
                found = [item.row for item in outcome.rejected if item.table == step.table]
                wrong = difference_of_rows(found, rows.get(number, ()))
                assert not wrong, f"{case.place}: rejected by {step.table}:\n{wrong}"
            case ExpectRule():
                explained = views.explain(step.view)
                if step.reason is None:
                    assert not explained.recomputed, explained.reasons
                else:
                    assert explained.recomputed
                    assert step.reason in explained.reasons
            case Session():
                spark.sql(step.sql)


def says(error: Exception, texts: str) -> bool:
    """Whether the message holds one of the texts."""
    return any(text.lower() in str(error).lower() for text in texts.split(" | "))


def rows_by_step(spark: SparkSession, case: Case) -> dict[int, Any]:
    """The rows of all steps from one Spark job: tables of those that go in, lists of the others."""
    (found,) = spark.sql(query_for(case)).toArrow().to_batches()
    rows: dict[int, Any] = {}
    for name, column in zip(found.schema.names, found.columns, strict=True):
        if not name.startswith("s"):
            continue
        number = int(name[1:])
        if isinstance(case.steps[number], (Put, Delete)):
            rows[number] = pa.Table.from_struct_array(column.flatten())
        else:
            (value,) = column.to_pylist()
            rows[number] = [tuple(row.values()) for row in value.values()]
    return rows


@contextmanager
def settings_kept(spark: SparkSession, case: Case) -> Iterator[None]:
    """What a case sets in the session it must not leave to the next one."""
    sessions = [*case.before, *(step for step in case.steps if isinstance(step, Session))]
    words = [step.sql.split() for step in sessions]
    before = {key: spark.conf.get(key) for verb, key, *_ in words if verb == "SET"}
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


def test_every_trap_has_a_case() -> None:
    """S3: a trap left out is the one somebody falls into."""
    found: dict[int, set[str]] = {}
    for case in CASES:
        for trap in case.traps:
            found.setdefault(trap, set()).add(case.place.partition(".")[0])
    assert set(TRAPS) == set(range(1, 49))
    assert found == {n: files for n, (_, files) in TRAPS.items() if n not in NOT_YET}


def test_every_case_has_a_name_of_its_own() -> None:
    """Two cases of one name cannot be told apart in a report."""
    names = [case.id for case in CASES]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"b": ["x"]}), "a"),
        (pa.table({"a": pa.array([1], pa.int32()), "c": ["x"]}), "c"),
        (pa.table({"a": pa.array([1], pa.int32()), "b": ["x"], "c": ["x"]}), "c"),
        (pa.table({"a": ["one"], "b": ["x"]}), "a"),
        (pa.table({"a": pa.array([None], pa.int32()), "b": ["x"]}), "a"),
    ],
    ids=["key missing", "column renamed", "column added", "type changed", "null in key"],
)
def test_rows_that_do_not_fit_their_table_are_refused(
    spark: SparkSession, table: pa.Table, message: str
) -> None:
    """S3: trap 45. A source that changed its schema must not be taken for what it was."""
    views = Views.open(
        spark,
        "CREATE TABLE t (a INT PRIMARY KEY, b STRING);"
        "CREATE MATERIALIZED VIEW v AS SELECT COUNT(*) AS n, MAX(a) AS m FROM t;",
    )
    with pytest.raises(StepwellError) as caught:
        views.apply({"t": Change(put=table, delete=None)})
    assert message in str(caught.value)
    assert rows_of(views.read("v")) == [(0, None)]


def test_a_batch_for_a_table_that_is_not_there_is_refused(spark: SparkSession) -> None:
    """S3: trap 45. Rows for an unknown table must not vanish."""
    views = Views.open(
        spark, "CREATE TABLE t (a INT); CREATE MATERIALIZED VIEW v AS SELECT a FROM t;"
    )
    with pytest.raises(StepwellError) as caught:
        views.apply({"gone": Change(put=pa.table({"a": pa.array([1], pa.int32())}), delete=None)})
    assert "gone" in str(caught.value)


def test_a_python_function_is_used_as_it_says_it_is(spark: SparkSession) -> None:
    """S3: trap 48. A deterministic one is computed again; one that draws by chance is refused."""
    spark.udf.register("plus_one", lambda x: None if x is None else x + 1, "int")
    spark.udf.register("chance", udf(lambda x: x, "int").asNondeterministic())
    text = "CREATE TABLE t (k INT, x INT); CREATE MATERIALIZED VIEW v AS "
    opened = Views.open(spark, text + "SELECT k, SUM(plus_one(x)) AS s FROM t GROUP BY k;")
    views = Compared(opened, ["v"])
    ints = pa.int32()
    rows = pa.table({"k": pa.array([1, 1, 2], ints), "x": pa.array([1, None, 5], ints)})
    views.apply({"t": Change(put=rows, delete=None)})
    assert sorted(rows_of(views.read("v"))) == [(1, 2), (2, 6)]
    views.apply({"t": Change(put=None, delete=rows.slice(0, 1))})
    assert sorted(rows_of(views.read("v")), key=str) == [(1, None), (2, 6)]
    with pytest.raises(StepwellError) as caught:
        Views.open(spark, text + "SELECT chance(x) AS c FROM t;")
    assert "chance" in str(caught.value)


# The checks themselves, which must be able to fail


TINY = """
-- trap 13: a case
CREATE TABLE t (a INT, s STRING);
CREATE MATERIALIZED VIEW v AS SELECT a FROM t;
"""


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("-- put t\n(1, 'x')\n-- apply", "expects nothing"),
        ("-- exepct v\n(1)", "unknown directive"),
        ("-- put u\n(1)\n-- expect v\nnothing", "no table u"),
        ("-- put t\n(1)\n-- expect v\nnothing", "no such row"),
        ("-- expect w\n(1)", "no view w"),
        ("-- expect v\n1", "not a row"),
        ("-- expect v", "not a row"),
        ("-- apply\n(1)", "takes no rows"),
        ("-- expect v\n(1)\n-- expect error: x", "right after"),
        ("-- (1)\n-- expect v\n(1)", "neither"),
    ],
)
def test_a_case_that_says_nothing_is_refused(steps: str, message: str) -> None:
    """S3: a misspelt expectation would expect nothing, and pass forever."""
    with pytest.raises(FormatError) as caught:
        cases_in(TINY + steps, "tiny.sql")
    assert message in str(caught.value)


def test_rows_are_split_where_sql_would_split_them() -> None:
    """S3: a comma inside a text or a call is not a new value."""
    text = TINY + "-- put t\n(1, 'a,(b'), (array(1, 2)[0],\n 'it''s')\n-- expect v\n(1), (1)"
    (case,) = cases_in(text, "tiny.sql")
    assert case.steps == [
        Put("t", (("1", "'a,(b'"), ("array(1, 2)[0]", "'it''s'"))),
        Expect("v", (("1",), ("1",))),
    ]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("-- put t\n(1, 'x')\n-- apply\n-- expect v\n(2)", "missing: (2,)"),
        ("-- put t\n(1, 'x')\n-- apply\n-- expect v\nnothing", "too many: (1,)"),
        ("-- put t\n(1, 'x')\n-- apply\n-- expect changes v\n(1, 2)", "missing: (1, 2)"),
        ("-- put t\n(1, 'x')\n-- apply\n-- expect error: x\n", "DID NOT RAISE"),
        ("-- expect recompute TIME_DEPENDENT", ""),
    ],
)
def test_a_wrong_expectation_is_found(spark: SparkSession, steps: str, message: str) -> None:
    """S3: a runner that is always content proves nothing."""
    (case,) = cases_in(TINY + steps, "tiny.sql")
    with pytest.raises((AssertionError, pytest.fail.Exception)) as caught:
        run(Views.open(spark, case.sql), case, rows_by_step(spark, case), spark)
    assert message in str(caught.value)
