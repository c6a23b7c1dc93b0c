"""What a manifest says of a run: one immutable file of one relation, wherever it lies."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stepwell.model import Checksum
from stepwell.store.sealed import Fields, Json


@dataclass(frozen=True, slots=True)
class Run:
    """One immutable file of one relation. The key range lets a reader skip it."""

    relation: str
    path: str
    size: int
    rows: int
    checksum: Checksum
    low: Json = None
    high: Json = None
    root: str | None = None
    """The store it lies in, where that is another pipeline's: a clone's parent, or its parent."""
    group: str | None = None
    """What the files of one run have in common, where it has several."""
    columns: tuple[int | None, ...] | None = None
    """For each column of the relation which one of the file it is, None where the file has none
    and it is NULL; where the table's columns have changed since the file was written.
    """


def run_to_json(run: Run) -> dict[str, Json]:
    """As it is stored; `run_from_json` is its inverse."""
    # Not asdict(), which copies every key range deeply.
    body = {item.name: getattr(run, item.name) for item in fields(run)}
    for name in ("root", "group", "columns"):
        if body[name] is None:
            del body[name]
    return body if run.columns is None else {**body, "columns": list(run.columns)}


def run_from_json(run: Fields) -> Run:
    return Run(
        relation=run.text("relation"),
        path=run.text("path"),
        size=run.number("size"),
        rows=run.number("rows"),
        checksum=Checksum(run.checksum("checksum")),
        low=run.any("low"),
        high=run.any("high"),
        root=run.text("root") if "root" in run.names() else None,
        group=run.id("group") if "group" in run.names() else None,
        columns=_places(run) if "columns" in run.names() else None,
    )


def _places(body: Fields) -> tuple[int | None, ...]:
    found = body.any("columns")
    if not isinstance(found, list) or not all(
        place is None or (type(place) is int and place >= 0) for place in found
    ):
        raise body.wrong("columns", "a list of places and nulls")
    return tuple(found)
