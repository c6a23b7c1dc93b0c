"""Which paths of a files source have one base folder, told from their text alone."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest

from stepwell.connectors.base_folder import base_folder, opaque, split_pattern

PROJECT = Path("/srv/project")
A, B = opaque("env:A"), opaque("file:b/*")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("data/*.json", "data/**/*.json"),
        ("data/*.json", "./data/*.csv"),
        ("data/*.json", "/srv/project/data/[ab].json"),
        ("data/*.json", "file:///srv/project/data/*.json"),
        ("data/*.json", "more/../data//*.json"),
        ("data/*.json", "data/one.json"),
        ("data/*/in/*.json", "data/*.json"),
        ("~/data/*.json", "~/data/**/*.json"),
        (f"{A}/*.json", f"{A}/**/*.json"),
        (f"{A}/in/*.json", f"{A}/./in/a.json"),
        (f"in/{A}/*.json", f"/srv/project/in/{A}/*.csv"),
    ],
)
def test_other_words_for_one_base_folder(one: str, other: str) -> None:
    """J5: the names below it stay what they are."""
    found = base_folder(one, PROJECT)
    assert found is not None
    assert found == base_folder(other, PROJECT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("data/one/*.json", "data/*/*.json"),
        ("data/one/*.json", "data/two/*.json"),
        ("data/one", "data/one/*.json"),
        ("data/*.json", "/data/*.json"),
        ("~/data/*.json", "data/*.json"),
        ("~/data/*.json", "./data/*.json"),
        (f"{A}/*.json", f"{B}/*.json"),
        (f"{A}/*.json", "*.json"),
        (f"{A}/*.json", f"/srv/project/{A}/*.json"),
        (f"{A}/*.json", f"{A}/in/*.json"),
    ],
)
def test_other_base_folders(one: str, other: str) -> None:
    """J5: a name below one is not the same file as below the other."""
    assert base_folder(one, PROJECT) != base_folder(other, PROJECT)


@pytest.mark.parametrize(
    "path", [A, f"{A}*.json", f"data/{A}*.json", f"{A}/../*.json", f"data/*/{A}", f"./{A}/*.json"]
)
def test_a_base_folder_that_a_reference_may_move_is_not_known(path: str) -> None:
    """J5: its value may hold slashes, `..` or a whole path."""
    assert base_folder(path, PROJECT) is None


VALUES = ("in", "/in", "a/b", "a*/b", "..", "../in", "x/../y", "in/")
PIECES = ("/", "*", "..", "in", ".", "<")


def test_equal_answers_mean_equal_base_folders_whatever_a_reference_holds() -> None:
    """J5: all short paths in pairs, with all these values in the place of the reference."""
    answers: dict[str, set[tuple[Path, ...]]] = {}
    for length in range(1, 6):
        for pieces in product(PIECES, repeat=length):
            text = "".join(pieces)
            if text.strip("/.") == "" or "..." in text:
                continue
            found = base_folder(text.replace("<", A), PROJECT)
            if found is None:
                assert "<" in text or os.path.normpath(PROJECT / text).strip("/") == ""
                continue
            real = tuple(
                split_pattern(str(PROJECT / text.replace("<", value)))[0] for value in VALUES
            )
            answers.setdefault(found, set()).add(real)
    assert len(answers) > 20
    assert [found for found, real in answers.items() if len(real) > 1] == []
