"""Rows of a run whose table has other columns now: added since, dropped, or moved.

A run is written once. When columns of its table come, go or move, the manifest says of each column
which one of the file it is (`Run.columns`), and readers put them in their places. A column that the
file does not have is NULL. Rows are written in the new shape when runs are merged the next time.
"""

from __future__ import annotations

import pyarrow as pa

from stepwell.state.manifest import Run

Places = tuple[int | None, ...]


def reshaped(rows: pa.Table, places: Places | None) -> pa.Table:
    """The rows of a file, with its weights last, in the columns that the table has now."""
    if places is None:
        return rows
    found = [pa.nulls(rows.num_rows) if place is None else rows.column(place) for place in places]
    names = [f"c{i}" for i in range(len(places))]
    return pa.table([*found, rows.column(-1)], names=[*names, rows.column_names[-1]])


def reshaping(run: Run, places: Places) -> Places:
    """Where the columns are in a run, if the table had `places` of its columns in these places."""
    if run.columns is None:
        return places
    return tuple(None if place is None else run.columns[place] for place in places)
