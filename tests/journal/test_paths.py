"""Object names: formatted and parsed by one file, safe for every user's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.journal import paths
from stepwell.model import Position, Transaction
from stepwell.store.base import check_path

ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@given(st.integers(0, 10**19))
def test_numbers_sort_as_they_count(number: int) -> None:
    assert paths.entry(Position(number)) < paths.entry(Position(number + 1))
    assert paths.parse(paths.entry(Position(number))) == paths.Name("entry", number=number)
    assert paths.parse(paths.manifest(number)) == paths.Name("manifest", number=number)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_name_of_a_relation_stays_inside_its_folder_and_comes_back(name: str) -> None:
    """K2: dots, slashes, spaces, unicode: no name can leave the prefix or hide a file."""
    if len(name.encode()) > 60:
        return  # Long names have a test of their own.
    run = check_path(paths.run(name, ID))
    assert paths.parse(run) == paths.Name("run", owner=name, id=ID)
    outbox = check_path(paths.outbox(name, Transaction(7), ID))
    assert paths.parse(outbox) == paths.Name("outbox", owner=name, number=7, id=ID)


def test_a_long_name_fits_into_a_file_system_and_stays_distinct() -> None:
    """K2: 255 bytes is all there is; two names that differ at their end must not share a folder."""
    names = ["日本" * 100, "日本" * 100 + "x", "a" * 201, "a" * 199 + "~b", "~"]
    runs = [paths.run(name, ID) for name in names]
    assert len(set(runs)) == len(runs)
    for run in runs:
        assert max(len(segment.encode()) for segment in check_path(run).split("/")) < 240
        assert paths.parse(run).kind == "run"
    assert paths.parse(runs[0]).owner is None
    assert paths.parse(runs[-1]).owner == "~"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "manifest/1.json",
        "manifest/00000000000000000001.txt",
        "journal/00000000000000000001.parquet",
        "journal/sub/00000000000000000001.arrow",
        "runs/t/not-a-ulid.parquet",
        "runs/01ARZ3NDEKTSV4RRFFQ69G5FAV.parquet",
        "checkpoints/01ARZ3NDEKTSV4RRFFQ69G5FAV.json.bak",
        "holiday/photo.jpg",
    ],
)
def test_what_we_did_not_name_is_unknown(path: str) -> None:
    """K2: an unknown file is never taken for one of ours, and so never deleted."""
    assert paths.parse(path).kind == "unknown"


def test_single_objects_have_their_names() -> None:
    assert paths.parse(paths.IDENTITY).kind == "identity"
    assert paths.parse(paths.BOUNDARY).kind == "boundary"
    assert paths.parse(f"probe/{ID}").kind == "probe"
    assert paths.parse(paths.checkpoint(ID)) == paths.Name("checkpoint", id=ID)
