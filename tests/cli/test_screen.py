"""Tables that fit the terminal, and lines that stay whole in a pipe."""

from __future__ import annotations

import pytest

from stepwell.cli.screen import Row, Screen

ROWS = [
    Row(("1", "1", "barrier"), ""),
    Row(("20", "1", "step"), "orders_api -> orders, 3 rows"),
]


def shown(capsys: pytest.CaptureFixture[str], width: int | None) -> list[str]:
    screen = Screen()
    screen.width = width
    screen.table((">position", ">epoch", "kind", "inputs"), ROWS)
    return capsys.readouterr().out.splitlines()


def test_a_row_is_one_line_where_there_is_room(capsys: pytest.CaptureFixture[str]) -> None:
    """`grep` and `awk` work on lines."""
    expected = [
        "position  epoch  kind     inputs",
        "       1      1  barrier",
        "      20      1  step     orders_api -> orders, 3 rows",
    ]
    assert shown(capsys, None) == expected
    assert shown(capsys, 60) == expected


def test_what_does_not_fit_goes_below_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    """A row broken by the terminal destroys the columns of all."""
    lines = shown(capsys, 44)
    assert lines == [
        "position  epoch  kind",
        "       1      1  barrier",
        "      20      1  step",
        "                 orders_api -> orders, 3",
        "                 rows",
    ]


def test_a_long_word_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a path cannot be copied."""
    screen = Screen()
    screen.width = 40
    path = "file:///" + "x" * 50
    screen.facts([("store", path), ("entries", "many of them, in fact more than fit here")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"store    {path}"
    assert lines[1:] == ["entries  many of them, in fact more than", "         fit here"]


def test_colour_is_only_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape codes in a file are noise."""
    Screen().line("wrong", "red")
    assert capsys.readouterr().out == "wrong\n"
