"""A whole pipeline from a Kafka topic to Kafka topics, killed again and again."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from stepwell.connectors.registry import make_sink, make_source
from stepwell.env import SystemEnv
from stepwell.errors import ReplayMismatchError
from tests.connectors.kafka_broker import broker
from tests.connectors.kafka_topics import Topics
from tests.connectors.killed import Victims, open_pipeline, victims
from tests.connectors.sinks import Place
from tests.connectors.tables import table
from tests.connectors.test_end_to_end import SQL, expected, summed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "connectors" / "kafka.md"


def feed(topics: Topics, name: str, chance: random.Random) -> None:
    """More records, with updates, tombstones and a bad one in each partition."""
    for partition in range(2):
        records: list[tuple[str, str | None]] = []
        for _ in range(100):
            id = 2 * chance.randrange(100) + partition
            row = {"id": id, "customer": chance.choice("abc"), "amount": chance.randrange(999)}
            records.append((str(id), json.dumps(row) if chance.random() < 0.9 else None))
        topics.send(name, *records, ("1", "oops"), partition=partition)


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_a_pipeline_between_topics_delivers_each_row_once(
    kafka: str, tmp_path: Path, rounds: int
) -> None:
    """Scenario 84, J7, J8: killed anywhere, both sinks end up as the view."""
    chance = random.Random(7)

    def kill(process: Victims, given: dict[str, object]) -> None:
        numbers, delay_s = chance.choice([1, 2, 4]), chance.uniform(0, 0.2)
        process.kill("run", numbers, delay_s, checkpoint_every_s=0.5, **given)

    check_each_row_once(kafka, tmp_path, rounds, chance, kill)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 100])
def test_each_row_is_delivered_once_though_the_broker_is_killed_too(
    tmp_path: Path, rounds: int
) -> None:
    """Scenario 84, J7, J8: both processes die at any moment, and both come back."""
    chance = random.Random(11)
    with broker(private=True) as mortal, ThreadPoolExecutor(1) as thread:

        def restart(delay_s: float) -> None:
            time.sleep(delay_s)  # Not to wait for something: the moment of its death.
            mortal.kill()
            mortal.start()

        def kill(process: Victims, given: dict[str, object]) -> None:
            dies = rounds == 1 or chance.random() < 0.3
            death = thread.submit(restart, chance.uniform(0, 0.5)) if dies else None
            numbers, delay_s = chance.choice([1, 2, 4]), chance.uniform(0, 0.5)
            process.kill("run_through_outages", numbers, delay_s, checkpoint_every_s=0.5, **given)
            if death is not None:
                death.result()

        check_each_row_once(mortal.address, tmp_path, rounds, chance, kill)


def check_each_row_once(
    kafka: str,
    tmp_path: Path,
    rounds: int,
    chance: random.Random,
    kill: Callable[[Victims, dict[str, object]], None],
) -> None:
    """Feed a pipeline and kill it, round by round; then compare its sinks with its view."""
    topics, word = Topics(kafka), os.urandom(6).hex()
    name = topics.create(2)
    at = {"type": "kafka", "brokers": kafka}
    source = {**at, "table": "orders", "topic": name, "key": "id"}
    places = [
        Place("kafka", {**at, "topic": f"{word}-rows", "key": ["customer"]}, keyed=True),
        Place("kafka", {**at, "topic": f"{word}-log"}),
    ]
    sinks = {f"s{n}": {"view": "revenue", **place.options} for n, place in enumerate(places)}
    given = {"folder": str(tmp_path), "sql": SQL, "sources": {"in": source}, "sinks": sinks}
    with victims() as process:
        for _ in range(rounds):
            feed(topics, name, chance)
            kill(process, given)
    with open_pipeline(**given) as pipeline:  # type: ignore[arg-type]
        pipeline.run(once=True)
        assert pipeline.deliver()
        view = expected(pipeline.table("revenue").to_pylist())
        letters = Counter(row["text"] for row in pipeline.table("orders$errors").to_pylist())
    assert len(view) == 3
    assert letters["oops"] == 2 * rounds
    rows, log = (place.content() for place in places)
    assert Counter((c, f"{float(str(t)):.2f}", n) for c, t, n in rows.elements()) == view
    changes = Counter((w, c, f"{float(str(t)):.2f}", n, k) for w, c, t, n, k in log.elements())
    assert summed(changes) == view


def test_a_pipeline_whose_records_have_expired_is_not_replayed(kafka: str, tmp_path: Path) -> None:
    """J8: with offsets in the journal it stops and names them; with rows it does not need them."""
    topics, name = Topics(kafka), ""
    for journal in ("offsets", "rows"):
        name = topics.create(2)
        feed(topics, name, random.Random(1))
        source = {"type": "kafka", "brokers": kafka, "table": "orders", "topic": name, "key": "id"}
        sources = {"in": {**source, "journal": journal}}
        folder = tmp_path / journal
        folder.mkdir()
        given = {"folder": str(folder), "sql": SQL, "sources": sources, "sinks": {}}
        with victims() as process:
            process.kill("run", 3, 0, checkpoint_every_s=1000, **given)
        topics.expire(name, 20)
        if journal == "offsets":
            told = rf"transaction 1, source in: offsets 0 to \d+ of {name} \[0\] have expired"
            with pytest.raises(ReplayMismatchError, match=told):
                open_pipeline(**given)  # type: ignore[arg-type]
            continue
        with open_pipeline(**given) as pipeline:  # type: ignore[arg-type]
            pipeline.run(once=True)
            assert pipeline.table("orders").num_rows > 50


def test_the_examples_of_the_page_are_valid() -> None:
    """What is copied from the page must be accepted."""
    tables = {
        "orders": table("CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING)"),
        "clicks": table("CREATE TABLE clicks (url STRING, _topic STRING, _timestamp TIMESTAMP)"),
        "payments": table("CREATE TABLE payments (id BIGINT PRIMARY KEY, customer STRING)"),
    }
    made = 0
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL):
        project = yaml.safe_load(block)
        for name, options in project.get("sources", {}).items():
            make_source(name, options, tables[options["table"]], SystemEnv(), base=Path("."))
            made += 1
        for name, options in project.get("sinks", {}).items():
            make_sink(name, options, options["view"], SystemEnv(), base=Path("."))
            made += 1
    assert made == 6
