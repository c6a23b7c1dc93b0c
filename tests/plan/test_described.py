"""Descriptions of views: read as they were written, and never believed where they are damaged."""

from __future__ import annotations

import base64
import json
import random
import zlib
from dataclasses import replace

import pytest

from stepwell.errors import CorruptError
from stepwell.plan.described import (
    FORMAT,
    DescribedView,
    Description,
    describe,
    read_description,
    readable,
    with_kept,
)
from stepwell.plan.explain import Backends, Chosen, Explained, Line, LookUp, Stored
from stepwell.plan.expressions import column, parse
from stepwell.plan.nodes import Filter, Inner, Project, Scan
from stepwell.plan.reasons import Code, Reason

OUTPUT = Project(
    Filter(Scan("v$1", ("a", "b")), parse("a > 0", "a")),
    (("x", column("b")), ("y", parse("a * 2", "a"))),
)
BACKENDS = Backends(
    (Chosen(("t",), None), Chosen(("ä", "t"), "upper() has no local kernel")),
    (LookUp("t", ("a", "b")),),
    ("ä",),
)
V = Explained(
    "V",
    (
        Stored("V$1", "3 sums", ("a",), ("a", "b"), (Line(1, "scan t", "", "t"),), None, BACKENDS),
        Stored("V$2", "5 recomputed", (), ("c",), (), Reason(Code.POLICY_FULL, "so"), Backends()),
    ),
    (Line(0, "project a", "1"),),
    Chosen((), "explode has no local kernel"),
)
W = Explained("w", (), (), Chosen((), None))
VIEWS = [
    DescribedView("V", ("X", "y"), ("int", "bigint"), OUTPUT, ("int", "int"), V),
    DescribedView("w", ("z",), ("string",), None, (), W),
]


def test_a_description_is_read_as_it_was_written() -> None:
    found = read_description(describe(VIEWS, 7), "m")
    assert found == Description(7, {"v": VIEWS[0], "w": VIEWS[1]})
    assert str(found.views["v"].explained) == str(V)
    assert read_description(None, "m").views == {}


def test_decisions_hold_for_one_version_of_the_local_backend() -> None:
    """X3: what another version computes locally, this one may not be able to compute."""
    found = read_description(describe(VIEWS, 7), "m")
    assert found.decided(7)["v"].blocks["V$1"] == BACKENDS
    assert found.explained(7) == {"v": V, "w": W}
    assert found.decided(8) == found.explained(8) == {}


def test_views_that_a_deploy_leaves_alone_keep_their_description() -> None:
    """A deploy compiles only the views that change; `explain` must still know the others."""
    new, old = describe(VIEWS[:1], 7), describe(VIEWS, 7)
    found = read_description(with_kept(new, old, {"w": "W"}, "m"), "m").views
    assert found == {"v": VIEWS[0], "w": replace(VIEWS[1], name="W")}
    assert with_kept(new, old, {}, "m") == new
    assert with_kept(new, describe(VIEWS, 6), {"w": "W"}, "m") == new, "it is decided on again"
    assert with_kept(new, None, {"w": "W"}, "m") == new
    assert with_kept(None, old, {"w": "W"}, "m") is None


def test_a_description_of_another_format_is_as_good_as_none() -> None:
    """An older version must not misread what a newer one wrote; it asks Spark."""
    body = json.dumps({"format": 99, "anything": 1}).encode()
    found = read_description(base64.b64encode(zlib.compress(body)).decode(), "m")
    assert found == Description()


def test_damage_is_never_taken_for_a_view() -> None:
    whole = describe(VIEWS, 7)
    generator = random.Random(7)
    for _ in range(300):
        place = generator.randrange(len(whole))
        damaged = whole[:place] + generator.choice(["", "A", "!", "=="]) + whole[place + 1 :]
        try:
            found = read_description(damaged, "m")
        except CorruptError:
            continue
        assert list(found.views.values()) == VIEWS, (
            "the last letters may hold bits that mean nothing"
        )
    for content in (
        [],
        {},
        {"format": FORMAT},
        {"format": FORMAT, "views": [{}]},
        {"format": FORMAT, "views": []},
        {"format": FORMAT, "support": 1, "views": 3},
    ):
        text = base64.b64encode(zlib.compress(json.dumps(content).encode())).decode()
        with pytest.raises(CorruptError):
            read_description(text, "m")


def test_only_filters_and_projections_over_one_relation_are_readable() -> None:
    assert readable(OUTPUT)
    assert not readable(Inner((Scan("a", ("x",)), Scan("b", ("y",)))))
