"""Writing rows to files (JSON lines, CSV and Parquet) in a form that the files source reads.

Values are written as in `lsm/json_rows.py`. In CSV, an empty field is NULL, and nested values are
JSON.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from stepwell.lsm.json_rows import base64_text
from stepwell.lsm.json_rows import json_lines as json_lines
from stepwell.lsm.json_rows import json_values as json_values


class FileFormat(Enum):
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def write_rows(rows: pa.Table, path: Path, format: FileFormat) -> None:
    if format is FileFormat.PARQUET:
        pq.write_table(rows, path, compression="zstd", write_page_checksum=True)
    elif format is FileFormat.CSV:
        arrow_csv.write_csv(as_texts(rows), path)
    else:
        with open(path, "w", encoding="utf-8") as file:
            for batch in rows.to_batches(max_chunksize=10_000):
                file.writelines(json_lines(pa.Table.from_batches([batch])))


def as_texts(rows: pa.Table) -> pa.Table:
    """The rows, with columns as strings where CSV cannot hold them otherwise."""
    columns = []
    for column in rows.columns:
        if pa.types.is_nested(column.type):
            values = [None if v == "null" else v for v in json_values(column)]
            column = pa.chunked_array([pa.array(values, pa.string())])
        elif pa.types.is_binary(column.type):
            values = [None if v is None else base64_text(v) for v in column.to_pylist()]
            column = pa.chunked_array([pa.array(values, pa.string())])
        columns.append(column)
    return pa.Table.from_arrays(columns, names=rows.column_names)
