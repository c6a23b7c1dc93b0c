"""Rows in pieces, and the difference between two snapshots of a view.

A view may be larger than memory, so code that reads a whole view reads it in pieces. The difference
between two large snapshots is computed on a local disk:

    <folder>/<n>.arrow      rows of both snapshots by hash: equal rows are in the same file
    <folder>/gone.arrow     retractions
    <folder>/come.arrow     insertions

The numbered files are consolidated in memory, one at a time. The result is mapped from its files. A
crash leaves the folder behind, in the directory for temporary files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepwell.errors import InvalidError
from stepwell.lsm.change import WEIGHT
from stepwell.lsm.checksum import row_hashes

_FILES_MAX = 256


@dataclass(frozen=True, slots=True)
class Pieces:
    """The rows of a relation, iterated once, with one piece in memory at a time."""

    schema: pa.Schema
    rows: int
    pieces: Iterable[pa.Table]
    inferred: bool = False
    """Whether the types were inferred from the rows, and not from the statement."""


class Difference:
    """A change set that may be large: retractions and insertions."""

    def __init__(self, gone: pa.Table, come: pa.Table) -> None:
        self._gone = gone
        self._come = come

    @property
    def rows(self) -> int:
        return int(self._gone.num_rows + self._come.num_rows)

    def parts(self, rows_max: int) -> Iterator[pa.Table]:
        """The rows in tables of at most `rows_max`. Retractions come first, or the diff could
        delete a key it has just inserted."""
        if self.rows <= rows_max:
            yield from [pa.concat_tables([self._gone, self._come])] if self.rows else []
            return
        for table in (self._gone, self._come):
            for start in range(0, table.num_rows, rows_max):
                yield table.slice(start, rows_max)

    def count(self, rows_max: int) -> int:
        """The number of parts."""
        if self.rows <= rows_max:
            return min(1, self.rows)
        return sum(-(-table.num_rows // rows_max) for table in (self._gone, self._come))


def in_parts(pieces: Iterable[pa.Table], rows_max: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `rows_max` rows, except the last."""
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
    """The change set between two snapshots of a view; holds about `rows_max` rows in memory."""
    # A snapshot without rows may lack a type that the other has.
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
        # A mapped file stays readable after its deletion, and takes no space once it is unmapped.
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
    """Consolidate the rows of one file.

    Pending rows are consolidated whenever they outnumber the consolidated rows. So no row is
    processed often, and memory holds little more than the result.
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
    """Consolidated rows: equal rows merged, their weights summed, zeros dropped."""
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
