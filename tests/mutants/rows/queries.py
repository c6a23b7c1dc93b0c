"""Queries that do more than ask."""

from __future__ import annotations

from tests.mutants.table import Mutant

_REFUSED = "tests/execution/test_read_only.py::test_a_query_that_would_do_more_than_ask_is_refused"

MUTANTS = [
    Mutant(
        name="names are looked up before the parsed plan is checked",
        file="execution/spark/read_only.py",
        old="    _check_parsed(spark, nodes(spark, parsed), known)\n",
        new="",
        tests=(_REFUSED,),
    ),
    Mutant(
        name="the analysed plan is not checked",
        file="execution/spark/read_only.py",
        old="    _check_analysed(nodes(spark, frame._jdf.queryExecution().analyzed()), known)\n",
        new="",
        tests=(_REFUSED,),
    ),
    Mutant(
        name="variables of the environment are put into queries",
        file="sql/settings.py",
        old='    SUBSTITUTE: "false",\n',
        new="",
        tests=("tests/execution/test_read_only.py::test_nothing_is_put_into_a_query_from_outside",),
    ),
]
