"""Read runs written before their table's columns were added, dropped or moved.

A run is written once. When columns of its table are added, dropped or moved, the manifest maps each
column to a column of the file (`Run.columns`), and readers rearrange them. A column that the file
lacks is NULL. The next compaction writes the rows in the new shape.
"""

from __future__ import annotations

import pyarrow as pa

from stepwell.manifest.manifest import Run

Places = tuple[int | None, ...]


def reshaped(rows: pa.Table, places: Places | None) -> pa.Table:
    """The rows of a file, weights last, rearranged into the table's current columns."""
    if places is None:
        return rows
    found = [pa.nulls(rows.num_rows) if place is None else rows.column(place) for place in places]
    names = [f"c{i}" for i in range(len(places))]
    return pa.table([*found, rows.column(-1)], names=[*names, rows.column_names[-1]])


def reshaping(run: Run, places: Places) -> Places:
    """Compose a table's column mapping with the run's own mapping."""
    if run.columns is None:
        return places
    return tuple(None if place is None else run.columns[place] for place in places)
