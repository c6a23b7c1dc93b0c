"""Data tests: violations as views, counted, reported, diverted or refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.program import as_deployed
from stepwell.deploy.project import load_project
from stepwell.engine.events import Committed, Event
from stepwell.env import SystemEnv
from stepwell.errors import ConfigError, InvalidError
from stepwell.testing import Crash, FaultyStore, crash_at
from tests.deploy.conftest import SQL as PLAIN_SQL
from tests.deploy.conftest import YML as PLAIN_YML
from tests.deploy.conftest import Write
from tests.deploy.project_world import YML, Lab, lab
from tests.deploy.test_deploy_crash import copy_of

__all__ = ["lab"]

TESTS = """\
tests:
  customer_known: {view: revenue, not_null: customer}
  one_total: {view: revenue, unique: total}
  names: {table: orders, accepted_values: {customer: [ada, bob, eve]}}
  no_negative: {query: SELECT * FROM revenue WHERE total < 0}
"""


def violations(lab: Lab) -> dict[str, int]:
    """As the pipeline counts them; each count is compared with the rows of its view."""
    with lab.open() as pipeline:
        status = pipeline.status()
    counted = {test.name: test.violations for test in status.tests}
    for test in status.tests:
        assert lab.rows(test.view).total() == test.violations, test.name
    return counted


def deployed(lab: Lab, tests: str = TESTS) -> Lab:
    lab.write(yml=YML + tests)
    assert dict(lab.deploy().failed) == {}
    return lab


def test_violations_are_rows_of_a_view_and_come_and_go_with_the_data(lab: Lab) -> None:
    """A test deployed over data sees what is there; a corrected row is a violation no more."""
    deployed(lab)
    assert violations(lab) == {"customer_known": 0, "one_total": 0, "names": 0, "no_negative": 0}
    lab.push((5, "mallory", 40), (6, "dan", -7))
    assert violations(lab) == {"customer_known": 0, "one_total": 2, "names": 2, "no_negative": 1}
    assert lab.rows("one_total_violations") == Counter({("bob", 40): 1, ("mallory", 40): 1})
    assert lab.rows("names_violations") == Counter({(5, "mallory", 40): 1, (6, "dan", -7): 1})
    lab.push((5, "bob", 1), (6, "eve", 0))
    assert violations(lab) == {"customer_known": 0, "one_total": 0, "names": 0, "no_negative": 0}


def test_null_is_a_violation_of_not_null_only(lab: Lab) -> None:
    """As in SQL: NULL repeats nothing, and no list of values rejects it."""
    tests = """\
tests:
  known: {table: orders, not_null: [customer, amount]}
  once: {table: orders, unique: customer}
  names: {table: orders, accepted_values: {customer: [ada, bob, eve]}}
"""
    deployed(lab, tests)
    with lab.open() as pipeline:
        pipeline.push("orders", [{"id": 8, "customer": None}, {"id": 9, "customer": None}])
    assert violations(lab) == {"known": 2, "once": 2, "names": 0}
    assert lab.rows("once_violations").keys() == {(1, "ada", 5), (2, "ada", 25)}


def test_the_plan_after_a_deploy_with_tests_is_empty(lab: Lab) -> None:
    """D7: what tests add is deployed, and removed with them."""
    deployed(lab)
    assert lab.is_settled()
    lab.write()
    assert set(lab.actions().values()) == {"delete"}
    lab.deploy()
    assert lab.is_settled()
    assert not [name for name in lab.manifest_views() if name.endswith("_violations")]
    assert lab.manifest().progress.violations == ()


def test_a_failing_test_refuses_the_transaction_and_nothing_of_it_stays(lab: Lab) -> None:
    """A gate stands before the commit point: no row, no journal entry, no output."""
    deployed(
        lab,
        "tests:\n  positive: {query: SELECT * FROM revenue WHERE total < 0, on_violation: fail}\n",
    )
    before = lab.manifest().transaction
    with lab.open() as pipeline:
        with pytest.raises(InvalidError, match="data test positive fails: 1 violation: customer="):
            pipeline.push("orders", [{"id": 7, "customer": "dan", "amount": -1}])
        assert pipeline.transaction_number == before
        with pipeline.transaction() as transaction:
            transaction.push("orders", [{"id": 7, "customer": "dan", "amount": -1}])
            transaction.push("orders", [{"id": 8, "customer": "dan", "amount": 2}])
        pipeline.push("orders", [{"id": 9, "customer": "bob", "amount": 1}])
    assert lab.rows("revenue")[("dan", 1)] == 1, "only the whole transaction counts"
    assert violations(lab) == {"positive": 0}
    assert lab.sink() == lab.rows("revenue")


def test_an_explicit_transaction_that_violates_is_rolled_back(lab: Lab) -> None:
    """J10: its steps are in the journal, and its abort as well; the next one goes through."""
    deployed(lab, "tests:\n  known: {table: orders, not_null: customer, on_violation: fail}\n")
    with lab.open() as pipeline:
        with (
            pytest.raises(InvalidError, match="data test known fails"),
            pipeline.transaction() as t,
        ):
            t.push("orders", [{"id": 7, "customer": "dan", "amount": 1}])
            t.push("orders", [{"id": 8, "customer": None, "amount": 2}])
        pipeline.push("orders", [{"id": 9, "customer": "bob", "amount": 1}])
    assert {row[0] for row in lab.rows("orders")} == {1, 2, 3, 4, 9}


def test_violations_that_were_there_do_not_stop_a_pipeline(lab: Lab) -> None:
    """A gate deployed over bad data looks at what is added, or nothing could be corrected."""
    lab.push((5, "dan", -3), (6, "eli", -4))
    deployed(
        lab,
        "tests:\n  positive: {query: SELECT * FROM revenue WHERE total < 0, on_violation: fail}\n",
    )
    assert violations(lab) == {"positive": 2}
    lab.push((7, "fay", 1))
    lab.push((5, "dan", -1))
    assert violations(lab) == {"positive": 2}, "a violation that changes is not a new one"
    with lab.open() as pipeline, pytest.raises(InvalidError, match="data test positive fails"):
        pipeline.push("orders", [{"id": 8, "customer": "gus", "amount": -1}])
    lab.push((5, "dan", 3))
    assert violations(lab) == {"positive": 1}


def test_replay_passes_no_gate(lab: Lab) -> None:
    """What is recorded was accepted under the tests of its time; a new gate does not undo it."""
    deployed(lab, "tests:\n  positive: {query: SELECT * FROM revenue WHERE total < 0}\n")
    with pytest.raises(Crash), lab.open() as pipeline:
        pipeline.push("orders", [{"id": 7, "customer": "dan", "amount": -1}])
        raise Crash
    strict = YML + (
        "tests:\n  positive: {query: SELECT * FROM revenue WHERE total < 0, on_violation: fail}\n"
    )
    lab.write(yml=strict)
    assert lab.actions() == {"view.positive_violations": "update"}
    lab.deploy()
    assert violations(lab) == {"positive": 1}
    with lab.open() as pipeline, pytest.raises(InvalidError, match="data test positive"):
        pipeline.push("orders", [{"id": 8, "customer": "eli", "amount": -1}])


def test_another_policy_rebuilds_nothing(lab: Lab) -> None:
    """The rows of the view are the same, so no run is written for it."""
    deployed(lab)
    runs = lab.manifest().runs
    lab.write(yml=YML + TESTS.replace("total < 0}", "total < 0, on_violation: fail}"))
    (step,) = lab.plan().changes
    assert (step.key, step.action.value) == ("view.no_negative_violations", "update")
    assert step.reason == "on_violation changes from warn to fail"
    lab.deploy()
    assert lab.manifest().runs == runs
    assert lab.is_settled()


def test_dead_letters_of_a_view_are_the_rows_that_violate(lab: Lab) -> None:
    """The view, its readers and its sink never see them; corrected, they get in."""
    tests = """\
tests:
  small: {view: revenue, accepted_values: {customer: [ada, bob, eve]}, on_violation: dead_letter}
  once: {view: revenue, unique: total, on_violation: dead_letter}
"""
    before = lab.rows("revenue")
    deployed(lab, tests)
    lab.run()
    assert lab.rows("revenue") == before == lab.sink()
    lab.push((5, "mallory", 40), (6, "eve", 29))
    assert lab.rows("revenue_unchecked") == Counter(
        {("ada", 30): 1, ("bob", 40): 1, ("eve", 30): 1, ("mallory", 40): 1}
    )
    assert lab.rows("small_violations") == Counter({("mallory", 40): 1})
    assert lab.rows("once_violations").keys() == lab.rows("revenue_unchecked").keys()
    assert lab.rows("revenue") == Counter() == lab.sink()
    lab.push((6, "eve", 0), (5, "bob", 0))
    assert violations(lab) == {"small": 0, "once": 0}
    assert lab.rows("revenue") == before == lab.sink()


def test_counts_survive_a_crash_at_every_store_call(lab: Lab) -> None:
    """K1: after any crash the count of each test is the number of rows in its view."""
    lab.write(yml=YML.partition("sinks:")[0] + TESTS)
    lab.deploy()
    start = copy_of(lab.inner)
    number = 0
    while True:
        number += 1
        lab.inner = copy_of(start)
        lab.store = FaultyStore(lab.inner, crash_at(number, "after"))
        try:
            with lab.open() as pipeline:
                pipeline.push("orders", [{"id": 5, "customer": "mallory", "amount": 40}])
                pipeline.flush()
                pipeline.push("orders", [{"id": 6, "customer": "dan", "amount": -7}])
        except Crash:
            lab.store = lab.inner
            assert violations(lab)["names"] in (0, 1, 2)
        else:
            break
    lab.store = lab.inner
    assert violations(lab) == {"customer_known": 0, "one_total": 2, "names": 2, "no_negative": 1}
    assert number > 15


def test_a_restore_goes_back_to_the_counts_of_its_time(lab: Lab) -> None:
    """The count belongs to the state, as the rows do."""
    deployed(lab)
    with lab.open() as pipeline:
        kept = pipeline.checkpoint("before")
        pipeline.push("orders", [{"id": 5, "customer": "mallory", "amount": 40}])
        assert kept is not None
        pipeline.restore(checkpoint="before")
        assert {t.name: t.violations for t in pipeline.status().tests}["names"] == 0
    assert violations(lab)["names"] == 0


def test_what_a_transaction_adds_is_told_in_its_event(lab: Lab) -> None:
    """`warn` is of use only if somebody hears it."""
    deployed(lab)
    heard: list[Event] = []
    project = as_deployed(lab.project(), lab.manifest().program)
    with ProjectPipeline(project, lab.env, listener=heard.append) as pipeline:
        pipeline.push("orders", [{"id": 6, "customer": "dan", "amount": -7}])
        pipeline.push("orders", [{"id": 6, "customer": "dan", "amount": -7}])
        pipeline.push("orders", [{"id": 6, "customer": "eve", "amount": 1}])
    told = [event.violations for event in heard if isinstance(event, Committed)]
    assert [{item.test: item.added for item in items} for items in told] == [
        {"names": 1, "no_negative": 1},
        {},
        {},
    ]


@pytest.mark.parametrize(
    ("test", "told", "hint"),
    [
        ("a: {not_null: id}", "names neither a view nor a table", "add view: NAME"),
        ("a: {view: revenue}", "must have one of not_null, unique", "not_null: COLUMN"),
        ("a: {view: revenue, not_null: a, unique: b}", "found not_null and unique", ""),
        ("a: {view: revenue, not_null: custmer}", "has no column custmer", "did you mean customer"),
        (
            "a: {view: revenu, not_null: customer}",
            "there is no view revenu",
            "did you mean revenue",
        ),
        ("a: {view: orders, not_null: id}", "there is no view orders", "write table:"),
        ("a: {view: revenue, table: orders, unique: id}", "a view and a table", "keep one"),
        ("a: {view: revenue, unique: []}", "unique must name a column", "unique: [id]"),
        ("a: {view: revenue, uniqe: total}", "has no key uniqe", "did you mean unique"),
        ("a: {view: revenue, unique: total, on_violation: stop}", "must be warn or", ""),
        (
            "a: {query: SELECT 1, on_violation: dead_letter}",
            "not those of one view",
            "warn or fail",
        ),
        (
            "a: {table: orders, not_null: id, on_violation: dead_letter}",
            "orders is a table",
            "NOT NULL",
        ),
        ("a: {table: orders, accepted_values: {customer: [1]}}", "cannot be compared", "quotes"),
        ("a: {table: orders, accepted_values: {id: [1, x]}}", "must be a list of", ""),
        (
            "a: {table: orders, accepted_values: {customer: ['${env:X}']}}",
            "contains a reference",
            "",
        ),
        ("a-b: {view: revenue, unique: total}", "cannot be the name", "letters, digits and _"),
        ("a: {query: SELECT * FROM nothing}", "reads nothing, which is not a table", ""),
        ("revenue: {view: revenue, unique: total}\n  Revenue: {query: SELECT 1}", "another", ""),
    ],
)
def test_a_mistake_in_a_test_is_shown_where_it_stands(
    write: Write, test: str, told: str, hint: str
) -> None:
    """D10: offline, with file and line, and what was meant."""
    folder = write(PLAIN_YML + f"tests:\n  {test}\n", PLAIN_SQL)
    with pytest.raises((ConfigError, InvalidError)) as caught:
        load_project(folder, SystemEnv())
    assert told in str(caught.value)
    assert "stepwell.yml" in str(caught.value)
    assert hint in str(caught.value.hint or caught.value)


def test_a_name_that_is_taken_is_refused(write: Write) -> None:
    """A test's view must not stand in for one of the project's."""
    sql = PLAIN_SQL + "CREATE VIEW a_violations AS SELECT * FROM orders;\n"
    folder = write(PLAIN_YML + "tests:\n  a: {view: revenue, unique: total}\n", sql)
    with pytest.raises(
        ConfigError, match="creates a view a_violations, which the project declares"
    ):
        load_project(folder, SystemEnv())


def test_a_mistake_in_a_diverted_view_keeps_its_line(write: Write) -> None:
    """The view is declared under another name; messages still point into the user's file."""
    sql = PLAIN_SQL.replace("SUM(amount)", "SUM(amont)")
    tests = "tests:\n  a: {view: revenue, unique: total, on_violation: dead_letter}\n"
    with pytest.raises(InvalidError) as caught:
        load_project(write(PLAIN_YML + tests, sql), SystemEnv())
    assert "pipeline.sql:4" in str(caught.value)


def test_all_forms_are_legal_together(write: Write, tmp_path: Path) -> None:
    """The statements of every form parse, and read what they should."""
    tests = """\
tests:
  a: {view: revenue, unique: [customer, total], on_violation: dead_letter}
  b: {view: revenue, not_null: [customer, total], on_violation: dead_letter}
  c: {view: big, accepted_values: {id: [1, 2], customer: [it's, 'b\\c']}}
  d: {query: "SELECT customer FROM a_violations;"}
"""
    project = load_project(write(PLAIN_YML + tests, PLAIN_SQL), SystemEnv())
    assert project.reads["a_violations"] == ("revenue_unchecked",)
    assert project.reads["revenue"] == ("revenue_unchecked",)
    assert project.reads["c_violations"] == ("big",)
    assert project.reads["d_violations"] == ("a_violations",)
    assert [test.rule for test in project.tests] == [
        "unique(customer, total)",
        "not_null(customer, total)",
        "accepted_values(id: 1, 2; customer: 'it\\'s', 'b\\\\c')",
        "query",
    ]
