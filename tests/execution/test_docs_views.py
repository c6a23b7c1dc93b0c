"""The page about views is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stepwell.plan.reasons import Code
from tests.execution import conftest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "views.md"


def test_the_snippet_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """S1: what a newcomer copies first has to work."""
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    opened = 'open_session(SessionSettings(master="local[2]"))'
    assert opened in snippet
    # A process has one Spark; the tests have theirs already.
    exec(snippet.replace(opened, "open_session(SETTINGS)"), {"SETTINGS": conftest.SETTINGS})
    printed = capsys.readouterr().out
    assert "'customer': 'ada'" in printed
    assert "rule 3 sums" in printed


def test_every_reason_given_is_documented() -> None:
    """S3: a code that explain prints and nobody explains helps nobody."""
    page = PAGE.read_text(encoding="utf-8")
    later = {Code.DEFINITION_CHANGED}
    for code in set(Code) - later:
        assert f"`{code.value}`" in page
