"""What dead letters tell of a record: where it stood, and its own text, deletes included."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepwell.connectors.formats import ChangeFormat
from stepwell.connectors.push import read_pushed
from stepwell.connectors.registry import make_source
from stepwell.connectors.writing import FileFormat
from stepwell.engine.pipeline import Pipeline
from stepwell.engine.ports import Limits
from stepwell.engine.settings import Settings
from stepwell.execution.reference.executor import ReferenceExecutor
from stepwell.lsm.dead_letter import CUT, TEXT_MAX, BadRow, cut, own_text
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv
from tests.connectors.tables import table

KEYED = "CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING)"
BAG = "CREATE TABLE t (id BIGINT, name STRING)"
GONE = {KEYED: "delete of a key that is not there", BAG: "delete of a row that is not there"}

INSERT_DELETE = [
    '{"insert": {"id": 1, "name": "a"}}',
    '  { "delete": {"id": 1, "name": "a"} }',
    '{"delete": {"name": "a", "id": 1}}',
    "oops",
    "",
    '{"delete": {"id": 7, "name": "\\u00e9"}}',
    '{"insert": {"id": 1, "name": "b"}}',
    '{"delete": {"id": 8, "name": null}}',
]
DEBEZIUM = [
    '{"op": "c", "before": null, "after": {"id": 1, "name": "a"}}',
    '{"op": "d", "before": {"id": 1, "name": "a"}, "after": null, "ts_ms": 5}',
    '{"op": "d", "before": {"id": 1, "name": "a"}, "after": null, "ts_ms": 6}',
    "oops",
    "",
    '{"payload": {"op": "d", "before": {"id": 7, "name": "x"}, "after": null}}',
    '{"op": "c", "before": null, "after": {"id": 1, "name": "b"}}',
    '{"op": "d", "before": {"id": 8, "name": null}, "after": null}',
]
CSV = [
    "insert,1,a",
    "delete,1,a",
    "d,1,a",
    "oops,1,a",
    "",
    'delete,7,"x, ""y"""',
    "insert,1,b",
    "delete,8,",
]
REJECTED = (2, 3, 5, 7)
"""The places of records that are rejected, in each of these."""


def written(folder: Path, lines: list[str], name: str, head: str = "") -> None:
    text = head + "\n".join(lines) + "\n"
    data = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (folder / name).write_bytes(data)


def letters(
    folder: Path, sql: str, rows_max: int, options: dict[str, object]
) -> list[tuple[object, ...]]:
    """The dead letters of files in a folder: as they were taken in, and as replay gives them."""
    env, found = ManualEnv(), []
    store = MemoryStore(env)
    settings = Settings(limits=Limits(rows_max), checkpoint_every_s=1e9)
    for _ in range(2):
        source = make_source(
            "s", {"table": "t", "type": "files", **options}, table(sql), env, base=folder
        )
        pipeline = Pipeline(
            store,
            env,
            executor=lambda store, env: ReferenceExecutor(sql, store, env),
            sources=[source],
            settings=settings,
        )
        pipeline.run(once=True)
        found.append(pipeline.table("t$errors").to_pylist())
        # The handle is left as a crash would leave it, so that the next one replays.
    assert found[0] == found[1]
    names = ("source", "position", "reason", "text")
    return sorted((tuple(row[name] for name in names) for row in found[0]), key=repr)


@pytest.mark.parametrize("sql", [KEYED, BAG])
@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize(
    ("lines", "options", "name", "first"),
    [
        (INSERT_DELETE, {"format": "json", "changes": "insert_delete"}, ".json", 1),
        (INSERT_DELETE, {"format": "json", "changes": "insert_delete"}, ".json.gz", 1),
        (DEBEZIUM, {"format": "json", "changes": "debezium"}, ".json", 1),
        (CSV, {"format": "csv", "changes": "insert_delete"}, ".csv", 2),
        (CSV, {"format": "csv", "changes": "insert_delete"}, ".csv.gz", 2),
    ],
)
def test_a_rejected_delete_is_kept_with_the_text_of_its_own_line(
    tmp_path: Path,
    sql: str,
    copies: int,
    lines: list[str],
    options: dict[str, object],
    name: str,
    first: int,
) -> None:
    """J13: very bytes, the right line, whether read one by one or by columns, in any steps, and
    again in replay (J6).
    """
    head = "_op,id,name\n" if first == 2 else ""
    if copies > 1:  # Enough that they are decoded by columns.
        lines = [*lines[:3], *lines[5:]] * copies
    for letter in "ab":
        written(tmp_path, lines, f"{letter}{name}", head)
    splits = [letters(tmp_path, sql, n, {**options, "path": f"*{name}"}) for n in (3, 1000)]
    assert splits[0] == splits[1]
    found = {(row[1], row[3]) for row in splits[0]}
    assert {row[0] for row in splits[0]} == {"s"}
    if copies == 1:
        wanted = {
            (f"{letter}{name}, line {first + at}", lines[at]) for letter in "ab" for at in REJECTED
        }
        assert found - wanted == wanted - found
    missed = [row for row in splits[0] if row[2] == GONE[sql]]
    assert len(missed) >= 3 * copies
    for _, position, _, text in missed:
        number = int(str(position).rpartition(" ")[2])
        assert text == lines[number - first]


def test_a_rejected_delete_in_parquet_is_kept_as_json(tmp_path: Path) -> None:
    """J13: there is no text, so the row is written as one."""
    rows = pa.table({"_op": ["insert", "delete", "d"], "id": [1, 2, 3], "name": ["a", "b", None]})
    pq.write_table(rows, tmp_path / "a.parquet")
    options = {"format": "parquet", "changes": "insert_delete", "path": "*.parquet"}
    assert letters(tmp_path, KEYED, 10, options) == [
        ("s", "a.parquet, row 2", GONE[KEYED], '{"_op":"delete","id":2,"name":"b"}'),
        ("s", "a.parquet, row 3", GONE[KEYED], '{"_op":"d","id":3,"name":null}'),
    ]


def test_a_file_that_went_in_the_meantime_leaves_the_row_itself(tmp_path: Path) -> None:
    """J15: to tell of a row must not stop the others."""
    path = tmp_path / "a.json"
    path.write_text('{"delete": {"id": 7}}\n')
    options = {"table": "t", "type": "files", "format": "json", "changes": "insert_delete"}
    source = make_source(
        "s", {**options, "path": "*.json"}, table(KEYED), ManualEnv(), base=tmp_path
    )
    taken = source.poll(None, Limits())
    assert taken is not None
    assert taken.deleted is not None
    assert list(taken.deleted([0])) == [("a.json, line 1", '{"delete": {"id": 7}}')]
    path.unlink()
    assert list(taken.deleted([0])) == [("a.json, line 1", None)]


def pushed(sql: str, lines: list[str], name: str) -> list[dict[str, Any]]:
    env = ManualEnv()
    store = MemoryStore(env)

    def opened() -> Pipeline:
        return Pipeline(store, env, executor=lambda store, env: ReferenceExecutor(sql, store, env))

    pipeline = opened()
    text = "\n".join(lines).encode()
    for piece in read_pushed(
        io.BytesIO(text),
        table(sql),
        format=FileFormat.JSON,
        changes=ChangeFormat.INSERT_DELETE,
        name=name,
        limits=Limits(3),
    ):
        change = piece.change
        pipeline.push("t", change.put, delete=change.delete, discard=change.discard, bad=piece.bad)
    found: list[dict[str, Any]] = pipeline.table("t$errors").to_pylist()
    assert opened().table("t$errors").to_pylist() == found
    return found


@pytest.mark.parametrize("sql", [KEYED, BAG])
def test_a_pushed_delete_that_is_rejected_has_its_line_and_the_row_as_json(sql: str) -> None:
    """J8, J13: the journal holds the row and where it stood, so that replay gives the same."""
    found = {
        (row["source"], row["position"], row["text"]) for row in pushed(sql, INSERT_DELETE, "x")
    }
    rows = {
        at: json.loads(INSERT_DELETE[at])["delete"] if INSERT_DELETE[at] != "oops" else None
        for at in REJECTED
    }
    names = ["id"] if sql == KEYED else ["id", "name"]
    wanted = {
        (
            "push",
            f"x, line {at + 1}",
            "oops"
            if row is None
            else json.dumps(
                {name: row[name] for name in names}, ensure_ascii=False, separators=(",", ":")
            ),
        )
        for at, row in rows.items()
    }
    assert found == wanted


def test_a_text_that_was_cut_says_so() -> None:
    """J15: bounded in size, and nobody takes half a record for a whole one."""
    assert own_text(b"x" * TEXT_MAX) == "x" * TEXT_MAX
    assert own_text(b"x" * (TEXT_MAX + 1)) == "x" * (TEXT_MAX - len(CUT)) + CUT
    for character in ("\u00e9", "\u20ac", "\U0001f600"):
        text = own_text(("a" + character * TEXT_MAX).encode())
        assert text == "a" + character * (TEXT_MAX - len(CUT) - 1) + CUT
    assert own_text(b"\xff\xfea") == "\ufffd\ufffda"


def test_a_letter_is_the_same_when_it_comes_back_from_the_journal() -> None:
    """J6: half a character takes more room once it is written out; it is cut for good at once."""
    once = BadRow("a" * 6_000, "b" * 2_000, "\udc80" * TEXT_MAX)
    assert len(once.text) == TEXT_MAX
    assert once.text.endswith(CUT)
    assert BadRow(once.where, once.reason, once.text) == once
    assert cut(once.text, TEXT_MAX) == once.text
