"""X3: which blocks of the TPC-H views run locally, what they look up, and why others do not."""

from __future__ import annotations

import json
import re

import pytest

from stepwell.plan.explain import Explained
from tests.workloads.tpch_explain import DOCUMENTS, TEXT, documents, explained, text


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
