"""Rows that are pushed, from a stream or from Python."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepwell.connectors.formats import ChangeFormat
from stepwell.connectors.push import format_of, read_pushed
from stepwell.connectors.writing import FileFormat
from stepwell.engine.ports import Limits
from stepwell.errors import InvalidError
from tests.connectors.tables import ORDERS, rows, table

TABLE = table(ORDERS)


def test_a_stream_is_read_in_pieces() -> None:
    """J8: pushed rows are journaled with their data, so a piece must fit into an entry."""
    text = "".join(f'{{"id":{i}}}\n' for i in range(25)) + "oops\n"
    pieces = list(read_pushed(io.BytesIO(text.encode()), TABLE, limits=Limits(rows_max=10)))
    assert [piece.rows for piece in pieces] == [10, 10, 6]
    assert [row[0] for piece in pieces for row in rows(piece.change.put)] == list(range(25))
    assert [bad.where for piece in pieces for bad in piece.bad] == ["line 26"]


def test_csv_and_parquet_can_be_pushed() -> None:
    """S2: whatever a file source reads can be pushed, too."""
    csv = io.BytesIO(b"\xef\xbb\xbfid;customer\n1;a\n2;\n")
    (piece,) = read_pushed(csv, TABLE, format=FileFormat.CSV, delimiter=";", name="in.csv")
    assert [row[:2] for row in rows(piece.change.put)] == [(1, "a"), (2, None)]
    stream = io.BytesIO()
    pq.write_table(pa.table({"_op": ["insert", "delete"], "id": [1, 2]}), stream)
    stream.seek(0)
    changes = ChangeFormat.INSERT_DELETE
    (piece,) = read_pushed(stream, TABLE, format=FileFormat.PARQUET, changes=changes)
    assert rows(piece.change.delete) == [(2, "row 2")]


@pytest.mark.parametrize("format", [FileFormat.CSV, FileFormat.PARQUET])
def test_a_file_of_another_format_is_refused(format: FileFormat) -> None:
    """J13: a stream that nobody can read is one mistake, not a thousand dead letters."""
    with pytest.raises(InvalidError, match=r"in is not"):
        list(read_pushed(io.BytesIO(b"id,id\n"), TABLE, format=format, name="in"))


def test_the_format_follows_from_the_name() -> None:
    """The user should not have to say what orders.csv.gz is."""
    names = ["a.json", "a.jsonl", "a.csv.gz", "b.parquet", "c.ndjson.zst"]
    assert [format_of(name).value for name in names] == ["json", "json", "csv", "parquet", "json"]
    with pytest.raises(InvalidError, match="does not show its format"):
        format_of("a.txt")


def test_the_snippets_about_pushing_are_true() -> None:
    """A reader who follows the page must see what the page shows."""
    page = Path(__file__).resolve().parents[2] / "docs" / "connectors" / "push.md"
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(compile(snippet, str(page), "exec"), {})
