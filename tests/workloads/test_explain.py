"""Which blocks of the TPC-H views run locally, what they look up, and why others do not."""

from __future__ import annotations

import json
import re
from itertools import combinations as combinations_of

import pytest

from stepwell.deploy.graph import column_names
from stepwell.execution.local.offline import Prediction
from stepwell.plan.explain import Explained
from stepwell.plan.nodes import relations
from stepwell.plan.program import Full
from stepwell.sql.statements import fold, parse_statements
from stepwell.text import Source
from tests.workloads.tpch_explain import DOCUMENTS, TEXT, documents, explained, sql, text


@pytest.fixture(scope="module")
def views() -> list[Explained]:
    return explained()


def test_explain_of_tpch_is_pinned(views: list[Explained]) -> None:
    """A block that moves to another backend shows up here; `tpch_explain` writes the files."""
    assert text(views) == TEXT.read_text(encoding="utf-8")
    assert documents(views) == DOCUMENTS.read_text(encoding="utf-8")


def test_explain_of_tpch_shows_no_column_of_ours(views: list[Explained]) -> None:
    assert len(views) == 22
    assert re.findall(r"\b_[cm]_*\d+", text(views)) == []


def test_the_text_of_tpch_says_what_the_document_says(views: list[Explained]) -> None:
    for line, view in zip(documents(views).splitlines(), views, strict=True):
        document = json.loads(line)
        for block in document["relations"]:
            assert block["backends"], "every block has a backend"
            for lookup in block["lookups"]:
                assert f"looks up: {lookup['relation']} by ({', '.join(lookup['columns'])})" in str(
                    view
                )
            for chosen in block["backends"]:
                assert (chosen["backend"] == "local") is (chosen["reason"] is None)


def test_a_combination_of_changes_runs_where_its_parts_run() -> None:
    """A transaction decides nothing. It derives the backend from each input and from all."""
    statements = parse_statements(Source("tpch.sql", sql()))
    by_name = {fold(statement.name): statement for statement in statements}
    prediction = Prediction(lambda name: column_names(name, by_name.get))
    prediction.all(statements)
    combinations = 0
    for block in (block for program in prediction.programs for block in program.blocks):
        assert not isinstance(block, Full)
        inputs = sorted(relations(block.input))
        if 2 < len(inputs) <= 4:
            for changed in combinations_of(inputs, 2):
                derived = prediction.decisions.support(block, changed)
                decided = prediction.decisions.for_change(block, frozenset(changed)).support
                assert type(derived) is type(decided), f"{block.relation}: {changed}"
                combinations += 1
    assert combinations > 20
