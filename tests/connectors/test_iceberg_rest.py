"""Iceberg by a REST catalog: the same tables, and commits whose outcome is not known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.connectors.registry import make_sink, make_source
from stepwell.engine.ports import Sink, Source
from stepwell.errors import UnavailableError
from stepwell.testing import ManualEnv
from tests.connectors.iceberg_rest import RestCatalog, rest_catalog
from tests.connectors.sinks import alone, in_turn, mark
from tests.connectors.tables import rows, table
from tests.connectors.test_delta_source import everything

TABLE = "CREATE TABLE t (customer STRING PRIMARY KEY, total DECIMAL(12,2), n BIGINT)"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestCatalog]:
    monkeypatch.setattr(os, "fsync", lambda opened: None)
    with rest_catalog(tmp_path) as made:
        yield made


def at(catalog: RestCatalog) -> dict[str, object]:
    return {"identifier": "shop.revenue", "catalog": {"type": "rest", "uri": catalog.uri}}


def sink(catalog: RestCatalog) -> Sink:
    options = {"view": "v", "type": "iceberg", "key": "customer", **at(catalog)}
    return make_sink("out", options, "v", ManualEnv(), base=Path("."))


def source(catalog: RestCatalog) -> Source:
    options = {"table": "t", "type": "iceberg", **at(catalog)}
    return make_source("in", options, table(TABLE), ManualEnv(), base=Path("."))


def test_a_source_reads_what_a_sink_writes(catalog: RestCatalog) -> None:
    """J7, S2: by the protocol of REST catalogs, a table is the same table."""
    made, held = sink(catalog), None
    assert made.last() is None
    for number in range(1, 9):
        made.write(held, mark(number), alone(number))
        held = mark(number)
    assert sink(catalog).last() == mark(8)
    taken = everything(source(catalog))
    assert [row[2] for step in taken for row in rows(step.change.put)] == list(range(1, 9))
    made.close()


def test_a_commit_whose_answer_is_lost_is_found(catalog: RestCatalog) -> None:
    """Scenario 84, J7: it has taken place; its files must stay, and its rows not come twice."""
    made = sink(catalog)
    made.write(None, mark(1), in_turn(1))
    catalog.fault = "lost"
    with pytest.raises(UnavailableError, match="the answer is lost"):
        made.write(mark(1), mark(2), in_turn(2))
    assert made.last() == mark(2)
    made.write(mark(2), mark(3), in_turn(3))
    (step,) = everything(source(catalog))
    assert sorted(row[2] for row in rows(step.change.put)) == [1, 2, 3]
    made.close()


def test_a_commit_that_is_refused_is_written_again(catalog: RestCatalog) -> None:
    """J7: nothing was written, and the library does not repeat it by itself."""
    made = sink(catalog)
    made.write(None, mark(1), in_turn(1))
    before = len(catalog.requests)
    catalog.fault = "late"
    with pytest.raises(UnavailableError, match="another writer changed"):
        made.write(mark(1), mark(2), in_turn(2))
    commits = [line for line in catalog.requests[before:] if line.startswith("POST")]
    assert len(commits) == 1
    assert made.last() == mark(1)
    made.write(mark(1), mark(2), in_turn(2))
    (step,) = everything(source(catalog))
    assert len(rows(step.change.put)) == 2
    made.close()
