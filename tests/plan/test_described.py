"""Descriptions of views: read as they were written, and never believed where they are damaged."""

from __future__ import annotations

import base64
import json
import random
import zlib

import pytest

from stepwell.errors import CorruptError
from stepwell.plan.described import (
    FORMAT,
    DescribedView,
    describe,
    read_description,
    readable,
)
from stepwell.plan.expressions import column, parse
from stepwell.plan.nodes import Filter, Inner, Project, Scan

OUTPUT = Project(
    Filter(Scan("v$1", ("a", "b")), parse("a > 0", "a")),
    (("x", column("b")), ("y", parse("a * 2", "a"))),
)
VIEWS = [
    DescribedView("V", ("X", "y"), ("int", "bigint"), OUTPUT, ("int", "int"), "text", {"a": [1]}),
    DescribedView("w", ("z",), ("string",), None, (), "ä", {}),
]


def test_a_description_is_read_as_it_was_written() -> None:
    assert read_description(describe(VIEWS), "m") == {"v": VIEWS[0], "w": VIEWS[1]}
    assert read_description(None, "m") == {}


def test_a_description_of_another_format_is_as_good_as_none() -> None:
    """An older version must not misread what a newer one wrote; it asks Spark."""
    body = json.dumps({"format": 99, "anything": 1}).encode()
    assert read_description(base64.b64encode(zlib.compress(body)).decode(), "m") == {}


def test_damage_is_never_taken_for_a_view() -> None:
    whole = describe(VIEWS)
    generator = random.Random(7)
    for _ in range(300):
        place = generator.randrange(len(whole))
        damaged = whole[:place] + generator.choice(["", "A", "!", "=="]) + whole[place + 1 :]
        try:
            found = read_description(damaged, "m")
        except CorruptError:
            continue
        assert list(found.values()) == VIEWS, "the last letters may hold bits that mean nothing"
    for content in (
        [],
        {},
        {"format": FORMAT},
        {"format": FORMAT, "views": [{}]},
        {"format": FORMAT, "views": 3},
    ):
        text = base64.b64encode(zlib.compress(json.dumps(content).encode())).decode()
        with pytest.raises(CorruptError):
            read_description(text, "m")


def test_only_filters_and_projections_over_one_relation_are_readable() -> None:
    assert readable(OUTPUT)
    assert not readable(Inner((Scan("a", ("x",)), Scan("b", ("y",)))))
