"""Fixtures for connectors: a database, and one place for each type of sink."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.connectors import database, kafka_broker
from tests.connectors.sinks import Place

NUMBERS = count(1)
PLACES = [
    *("files-json", "files-csv", "files-parquet"),
    *("files-json-bulk", "files-csv-bulk", "files-parquet-bulk"),
    *("delta-key", "delta-bag", "delta-changes", "postgres-key", "postgres-changes"),
    *("iceberg-key", "iceberg-changes", "kafka-key", "kafka-changes"),
]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with database.server() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The address of a Kafka broker."""
    with kafka_broker.broker() as broker:
        yield broker.address


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each type of sink, empty."""
    return make_place(request.param, request, tmp_path)


def make_place(word: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    if word.endswith("-bulk"):
        place = make_place(word.removesuffix("-bulk"), request, folder)
        return replace(place, options={**place.options, "_bulk": True})
    kind, _, mode = word.partition("-")
    if word == "files-coalesce":
        files = {"type": kind, "path": str(folder / "out"), "format": "json", "coalesce": True}
        return Place(kind, dict(files), keyed=True)
    if kind == "files":
        options = {"type": kind, "path": str(folder / "out"), "format": mode}
        return Place(kind, dict(options))
    if kind == "kafka":
        at = {"brokers": request.getfixturevalue("kafka"), "topic": f"s-{os.urandom(6).hex()}"}
        by_key = {"key": ["customer"]} if mode == "key" else {}
        return Place(kind, {"type": kind, **at, **by_key}, keyed=mode == "key")
    given: dict[str, object] = {"type": kind, "mode": "changes" if mode == "changes" else "table"}
    if mode == "key":
        given["key"] = ["customer"]
    if kind == "delta":
        return Place(kind, {**given, "path": str(folder / "out")}, keyed=mode != "changes")
    if kind == "iceberg":
        folder.mkdir(exist_ok=True)
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        catalog["warehouse"] = f"file://{folder}/warehouse"
        at = {"identifier": "shop.revenue", "catalog": catalog}
        return Place(kind, {**given, **at}, keyed=mode == "key")
    given |= {"dsn": request.getfixturevalue("postgres"), "table": f"revenue {next(NUMBERS)}"}
    return Place(kind, given, keyed=mode == "key")
