"""What the engine may expect of every source, whatever it reads from."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as IcebergTable

from stepwell.connectors.registry import make_source
from stepwell.engine.ports import Intake, Limits, Source
from stepwell.testing import ManualEnv
from tests.connectors.following import Following
from tests.connectors.tables import Keyed, rows, table

NUMBERS = table("CREATE TABLE numbers (id BIGINT PRIMARY KEY, word STRING)")
COUNT = 1_000


if TYPE_CHECKING:
    from tests.connectors.kafka_topics import Topics


@dataclass(frozen=True)
class Case:
    """A source with `COUNT` rows in it, all with different keys, and perhaps bad ones."""

    make: Callable[[], Source]
    bad: int = 0


def made(folder: Path, **options: object) -> Case:
    given = {"table": "numbers", **options}
    return Case(lambda: Following(make_source("s", given, NUMBERS, ManualEnv(), base=folder)))


def chunks() -> list[list[dict[str, object]]]:
    every = [{"id": i, "word": f"w{i}"} for i in range(COUNT)]
    return [every[:1], every[1:400], every[400:401], every[401:]]


def write_json(folder: Path, ending: str, pack: Callable[[bytes], bytes]) -> Case:
    for number, part in enumerate(chunks()):
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{number}.json{ending}").write_bytes(pack(lines.encode()))
    return made(folder, type="files", path="*.json*", format="json")


def plain_json(folder: Path) -> Case:
    return write_json(folder, "", lambda data: data)


def bad_json(folder: Path) -> Case:
    case = plain_json(folder)
    for number in range(3):
        (folder / f"{number}x.json").write_text('{"id":1\n{"id":null}\n')
    return replace(case, bad=6)


def gz_json(folder: Path) -> Case:
    return write_json(folder, ".gz", gzip.compress)


def bz2_json(folder: Path) -> Case:
    return write_json(folder, ".bz2", bz2.compress)


def zstd_json(folder: Path) -> Case:
    return write_json(folder, ".zst", lambda d: bytes(pa.Codec("zstd").compress(d, asbytes=True)))


def csv(folder: Path) -> Case:
    for number, part in enumerate(chunks()):
        arrow_csv.write_csv(pa.Table.from_pylist(part), folder / f"{number}.csv")
    return made(folder, type="files", path=".", format="csv")


def parquet(folder: Path) -> Case:
    for number, part in enumerate(chunks()):
        rows = pa.Table.from_pylist(part)
        pq.write_table(rows, folder / f"{number}.parquet", row_group_size=150)
    return made(folder, type="files", path="*.parquet", format="parquet")


def datagen(folder: Path) -> Case:
    return made(folder, type="datagen", rows=COUNT, rate=0, seed=7)


def delta_snapshot(folder: Path) -> Case:
    """Files in the order in which they were added."""
    for part in chunks():
        write_deltalake(folder / "table", pa.Table.from_pylist(part), mode="append")
    return made(folder, type="delta", path="table")


def delta_versions(folder: Path) -> Case:
    """A version for each part, after a snapshot of nothing."""
    DeltaTable.create(folder / "table", pa.schema([("id", pa.int64()), ("word", pa.string())]))
    case = made(folder, type="delta", path="table")
    first = case.make().poll(None, Limits())
    assert isinstance(first, Intake)
    delta_snapshot(folder)
    return replace(case, make=lambda: After(case.make(), first.position))


def iceberg_snapshot(folder: Path) -> Case:
    for part in chunks():
        shop(folder).append(pa.Table.from_pylist(part))
    return made(folder, type="iceberg", identifier="shop.numbers", catalog=catalog_at(folder))


def iceberg_versions(folder: Path) -> Case:
    """A snapshot for each part, after one of nothing."""
    shop(folder).append(pa.Table.from_pylist(chunks()[0]).slice(0, 0))
    case = made(folder, type="iceberg", identifier="shop.numbers", catalog=catalog_at(folder))
    first = case.make().poll(None, Limits())
    assert isinstance(first, Intake)
    iceberg_snapshot(folder)
    return replace(case, make=lambda: After(case.make(), first.position))


def catalog_at(folder: Path) -> dict[str, str]:
    uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    return {"type": "sql", "uri": uri, "warehouse": warehouse}


def shop(folder: Path) -> IcebergTable:
    catalog = load_catalog("default", **catalog_at(folder))
    catalog.create_namespace_if_not_exists("shop")
    schema = pa.schema([("id", pa.int64()), ("word", pa.string())])
    return catalog.create_table_if_not_exists("shop.numbers", schema)


class After:
    """A source that starts at a position instead of nothing."""

    def __init__(self, source: Source, start: object) -> None:
        self._source, self._start = source, start

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def poll(self, after: object, limits: Limits) -> object:
        return self._source.poll(self._start if after is None else after, limits)


CASES = [
    *(plain_json, bad_json, gz_json, bz2_json, zstd_json, csv, parquet, datagen),
    *(delta_snapshot, delta_versions, iceberg_snapshot, iceberg_versions),
]


def kafka_json(topics: Topics) -> Case:
    """Three partitions, and three bad records."""
    name = topics.create(3)
    for number, part in enumerate([chunks()[0] + chunks()[1], chunks()[2], chunks()[3]]):
        values = [json.dumps(row) for row in part]
        topics.send(name, *values, '{"id":1', partition=number)
    return replace(read_kafka(topics, name), bad=3)


def kafka_csv(topics: Topics) -> Case:
    name = topics.create()
    topics.send(name, *(f"{row['id']},{row['word']}" for part in chunks() for row in part))
    return read_kafka(topics, name, format="csv")


def kafka_avro(topics: Topics) -> Case:
    """Bare values of a given schema."""
    from tests.connectors.avro_values import encoded, record  # Needs an optional package.

    schema = record({"id": "long", "word": ["null", "string"]})
    name = topics.create()
    topics.send(name, *(encoded(schema, row) for part in chunks() for row in part))
    return read_kafka(topics, name, format="avro", schema=schema)


def kafka_rows(topics: Topics) -> Case:
    """A transactional topic: offsets have gaps."""
    name = topics.create()
    given = [(True, [json.dumps(row) for row in part]) for part in chunks()]
    lost = (False, ['{"id":-1}'] * 300)
    topics.send_in_transactions(name, [lost, *given[:2], lost, *given[2:], lost])
    return read_kafka(topics, name)


def read_kafka(topics: Topics, name: str, **options: object) -> Case:
    given = {"type": "kafka", "brokers": topics.brokers, "topic": name, **options}
    return made(Path("."), **given)


KAFKA = [kafka_json, kafka_csv, kafka_avro, kafka_rows]


@pytest.fixture(params=[*CASES, *KAFKA], ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    if request.param in KAFKA:
        from tests.connectors.kafka_topics import Topics

        made: Case = request.param(Topics(request.getfixturevalue("kafka")))
        return made
    make: Callable[[Path], Case] = request.param
    return make(tmp_path)


def everything(source: Source, limits: Limits, after: object = None) -> list[Intake]:
    taken: list[Intake] = []
    while (step := source.poll(after, limits)) is not None:
        taken.append(step)
        after = step.position
    return taken


def keys(steps: list[Intake]) -> list[object]:
    return [row[0] for step in steps for row in rows(step.change.put)]


def same(one: Intake, other: Intake) -> bool:
    return (
        rows(one.change.put) == rows(other.change.put)
        and rows(one.change.delete) == rows(other.change.delete)
        and (one.rows, one.bad) == (other.rows, other.bad)
    )


@pytest.mark.parametrize("rows_max", [1, 7, 100, 10_000])
def test_every_row_comes_once_however_small_the_steps(case: Case, rows_max: int) -> None:
    """J8: where a step ends must not lose a row, give one twice, or change the order."""
    steps = everything(case.make(), Limits(rows_max=rows_max))
    assert keys(steps) == list(range(COUNT))
    assert sum(step.rows for step in steps) == COUNT + case.bad
    assert sum(len(step.bad) for step in steps) == case.bad
    assert max(step.rows for step in steps) <= rows_max


def test_steps_are_bounded_by_bytes(case: Case) -> None:
    """J8: a step that does not fit into memory would stop the pipeline for good."""
    steps = everything(case.make(), Limits(bytes_max=2_000))
    assert keys(steps) == list(range(COUNT))
    assert len(steps) > 3


@pytest.mark.parametrize("rows_max", [7, 333])
def test_what_was_taken_is_read_again_by_another_process(case: Case, rows_max: int) -> None:
    """J8: replay must see what the first run saw, from the reference alone, as JSON."""
    steps = everything(case.make(), Limits(rows_max=rows_max))
    fresh = case.make()
    for step in steps:
        assert same(fresh.read(json.loads(json.dumps(step.reference))), step)
    for step in reversed(steps[-5:]):
        assert same(fresh.read(step.reference), step)
    fresh.close()


@pytest.mark.parametrize("rows_max", [90, 333])
def test_another_process_continues_where_one_stopped(case: Case, rows_max: int) -> None:
    """J8: a position is JSON; it, and the names that were taken, are all that a new process has."""
    steps: list[Intake] = []
    after: object = None
    while True:
        source = case.make()
        step = source.poll(after, Limits(rows_max=rows_max))
        source.close()
        if step is None:
            break
        steps.append(step)
        after = json.loads(json.dumps(step.position))
    assert keys(steps) == list(range(COUNT))


def test_a_step_that_was_not_recorded_is_given_again(case: Case) -> None:
    """J8: the source moves on when the engine says so, not when it was asked."""
    source = case.make()
    after: object = None
    for _ in range(4):
        first = source.poll(after, Limits(rows_max=120))
        again = source.poll(after, Limits(rows_max=120))
        assert first is not None
        assert again is not None
        assert same(first, again)
        assert first.position == again.position
        after = first.position


def test_rows_applied_step_by_step_are_the_table(case: Case) -> None:
    """S2: the changes of all steps together are the rows of the source."""
    whole, split = Keyed((0,)), Keyed((0,))
    for step in everything(case.make(), Limits()):
        whole.apply(step.change)
    for step in everything(case.make(), Limits(rows_max=13)):
        split.apply(step.change)
    assert whole.rows == split.rows
    assert len(whole.rows) == COUNT
