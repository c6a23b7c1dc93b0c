"""Rows a few at a time, and what turns one picture of a view into another.

A view may be larger than memory. What reads all of one takes it in pieces. The difference of two
pictures is worked out on a local disk, if there are many rows:

    <folder>/<n>.arrow      rows of both pictures, by their hash: equal rows are in the same file
    <folder>/gone.arrow     what is to go
    <folder>/come.arrow     what is to come

One of the numbered files at a time is summed up in memory, and the result is mapped from its files.
A crash leaves the folder behind, in the directory for temporary files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.engine.checksum import row_hashes
from stepwell.engine.ports import WEIGHT, Pieces
from stepwell.errors import InvalidError

_FILES_MAX = 256


class Difference:
    """A change set that may be large: rows that go, and rows that come."""

    def __init__(self, gone: pa.Table, come: pa.Table) -> None:
        self._gone = gone
        self._come = come

    @property
    def rows(self) -> int:
        return int(self._gone.num_rows + self._come.num_rows)

    def parts(self, rows_max: int) -> Iterator[pa.Table]:
        """The rows, so many at a time; what goes comes first, or a key would go that just came."""
        if self.rows <= rows_max:
            yield from [pa.concat_tables([self._gone, self._come])] if self.rows else []
            return
        for table in (self._gone, self._come):
            for start in range(0, table.num_rows, rows_max):
                yield table.slice(start, rows_max)

    def count(self, rows_max: int) -> int:
        """How many parts there are."""
        if self.rows <= rows_max:
            return min(1, self.rows)
        return sum(-(-table.num_rows // rows_max) for table in (self._gone, self._come))


def in_parts(pieces: Iterable[pa.Table], rows_max: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly so many, but for the last."""
    waiting: list[pa.Table] = []
    rows = 0
    for piece in pieces:
        while piece.num_rows:
            taken = piece.slice(0, rows_max - rows)
            piece = piece.slice(taken.num_rows)
            waiting.append(taken)
            rows += taken.num_rows
            if rows == rows_max:
                yield pa.concat_tables(waiting)
                waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def weighted(rows: pa.Table, weight: int) -> pa.Table:
    """Rows as a change set."""
    return rows.append_column(WEIGHT, pa.repeat(pa.scalar(weight, pa.int64()), rows.num_rows))


def difference(before: Pieces, after: Pieces, rows_max: int) -> Difference:
    """What turns one picture of a view into another; about so many rows are in memory."""
    # One of them may know a type that the other, without rows, does not.
    schema = pa.unify_schemas([before.schema, after.schema], promote_options="permissive")
    for field in schema:
        if pa.types.is_decimal256(field.type):
            raise InvalidError(
                f"column {field.name} was {before.schema.field(field.name).type} and is "
                f"{after.schema.field(field.name).type} now, and no decimal holds the values of "
                "both",
                hint="keep its type, or give the column another name",
            )
    rows = (
        weighted(piece.cast(schema), weight)
        for picture, weight in ((before, -1), (after, 1))
        for piece in picture.pieces
    )
    change = schema.append(pa.field(WEIGHT, pa.int64()))
    if before.rows + after.rows <= rows_max:
        return Difference(*_split(summed(pa.concat_tables([change.empty_table(), *rows]))))
    files = min(_FILES_MAX, 2 * (before.rows + after.rows) // rows_max + 1)
    with tempfile.TemporaryDirectory(prefix="stepwell-difference-") as folder:
        root = Path(folder)
        _scatter(rows, change, root, files)
        with ExitStack() as stack:
            gone, come = (
                stack.enter_context(pa.ipc.new_file(str(root / f"{name}.arrow"), change))
                for name in ("gone", "come")
            )
            for number in range(files):
                for writer, part in zip((gone, come), _split(_gathered(root, number)), strict=True):
                    writer.write_table(part, max_chunksize=rows_max)
        # What is mapped stays readable without a name, and takes no space once it is let go.
        return Difference(_mapped(root / "gone.arrow"), _mapped(root / "come.arrow"))


def _scatter(rows: Iterable[pa.Table], schema: pa.Schema, root: Path, files: int) -> None:
    with ExitStack() as stack:
        writers = [
            stack.enter_context(pa.ipc.new_file(str(root / f"{number}.arrow"), schema))
            for number in range(files)
        ]
        for piece in rows:
            hashes = row_hashes(piece.drop_columns([WEIGHT]))[0].to_numpy(zero_copy_only=False)
            where = hashes % np.uint64(files)
            for number in np.unique(where):
                writers[number].write_table(piece.filter(pa.array(where == number)))


def _gathered(root: Path, number: int) -> pa.Table:
    """What the rows of one file come to.

    They are summed up whenever as many wait as are left of those before, so that no row is looked
    at often, and never much more is held than is left.
    """
    path = root / f"{number}.arrow"
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        found, waiting, rows = reader.schema.empty_table(), [], 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            waiting.append(pa.Table.from_batches([batch]))
            rows += batch.num_rows
            if rows > found.num_rows or number + 1 == reader.num_record_batches:
                found, waiting, rows = summed(pa.concat_tables([found, *waiting])), [], 0
    path.unlink()
    return found


def summed(rows: pa.Table) -> pa.Table:
    """Equal rows as one, with the sum of their weights; none whose sum is 0."""
    one, two = row_hashes(rows.drop_columns([WEIGHT]))
    number = pa.array(np.arange(rows.num_rows))
    known = pa.table([one, two, rows.column(WEIGHT), number], ["a", "b", "w", "n"])
    summed = known.group_by(["a", "b"]).aggregate([("w", "sum"), ("n", "min")])
    summed = summed.filter(pc.not_equal(summed["w_sum"], 0)).sort_by("n_min")
    whole = rows.drop_columns([WEIGHT]).take(summed["n_min"])
    return whole.append_column(WEIGHT, summed["w_sum"])


def _split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    goes = pc.less(rows.column(WEIGHT), 0)
    return rows.filter(goes), rows.filter(pc.invert(goes))


def _mapped(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()
