"""Input as a journal entry records it: by reference, or with its data.

    reference   {"position": ..., "reference": ...}   the position of the source afterwards, and
                                                      the reference from which it reads the same
                                                      rows again (J8); also "names", if it took any
    data        Arrow IPC streams one after another, each with `part` in its schema metadata:
                put, delete, discard, bad; only those that hold rows. An optional last column
                `$position` of delete has the position of each record

Pushed rows have no position. If they came with a key, `reference` is the key with a digest of the
push: {"key": ..., "digest": ...}. The key of an explicit transaction is in the entry that closes
it, in a line without input. The position is recorded next to the reference, so that replaying the
journal restores the position of every source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from stepwell.engine.bulk import BulkReader
from stepwell.engine.ports import Intake, Source, Told
from stepwell.engine.push_keys import PushKey
from stepwell.errors import CorruptError, InvalidError, ReplayMismatchError
from stepwell.journal.entry import Input
from stepwell.lsm.change import Change
from stepwell.lsm.checksum import add_checksums, checksum_rows
from stepwell.lsm.dead_letter import BadRow
from stepwell.model import NO_CHECKSUM, Checksum, checksum, is_checksum
from stepwell.store.sealed import Json

PUSHED = "push"
"""The source name under which pushed rows are recorded."""

POSITION = "$position"
"""An optional last column of pushed deletes, with the position of each record. No column of a
table can have this name.
"""

_PART = b"part"
_BAD = pa.schema(
    [
        pa.field("where", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)


def input_line(intake: Intake) -> Input:
    """The line of the journal entry that records an intake."""
    sums = _sums(intake)
    reference: str | None = None
    if intake.source != PUSHED:
        names = {"names": intake.names} if intake.names else {}
        position = {"position": intake.position, "reference": intake.reference}
        reference = _dumps({**position, **names})
    elif intake.key is not None:
        digest = _digest(intake, sums)
        reference = _dumps({"key": intake.key, "digest": digest})
    return Input(
        source=intake.source,
        table=intake.table,
        rows=intake.rows,
        checksum=add_checksums([sum for _, _, sum in sums]),
        reference=reference,
        data=encode_rows(intake) if intake.reference is None else None,
    )


def digest_of(intake: Intake) -> Checksum:
    """The digest of a push: equal for the same rows of the same table, in any order."""
    return _digest(intake, _sums(intake))


def key_line(key: PushKey) -> Input:
    """The line that records the key of an explicit transaction."""
    reference = _dumps({"key": key.key, "digest": key.digest})
    return Input(PUSHED, "", 0, NO_CHECKSUM, reference)


def recorded_key(item: Input) -> PushKey | None:
    """The key in a line; None if it has none."""
    if item.source != PUSHED or item.reference is None:
        return None
    found = _loads(item, "key", "digest")
    key, digest = found["key"], found["digest"]
    if not isinstance(key, str) or not isinstance(digest, str) or not is_checksum(digest):
        raise CorruptError("the entry's key of a push", "expected two texts", field="reference")
    return PushKey(key, Checksum(digest))


def read_again(item: Input, source: Source | None, bulk: BulkReader | None = None) -> Intake:
    """Read recorded input again, from the entry or from the source. Not compared yet.

    `bulk` is given if its rows need not be folded with others.
    """
    if item.data is not None:
        change, bad = decode_data(item.data, f"the data of source {item.source}")
        position, names = _standing(item)
        change, deleted = split_positions(change)
        source_table = item.source, item.table
        return Intake(*source_table, change, item.rows, position, None, bad, deleted, names)
    if source is None:
        raise ReplayMismatchError(
            f"source {item.source} of table {item.table} is recorded in the journal, but the "
            "pipeline has no such source",
            hint="add the source again until the pipeline has been opened and flushed once",
        )
    reference = _loads(item, "position", "reference")["reference"]
    staged = None if bulk is None else bulk.again(source, reference)
    intake = source.read(reference) if staged is None else staged
    # The recorded position and names count: the source may not know them any more.
    position, names = _standing(item)
    return replace(intake, source=item.source, table=item.table, position=position, names=names)


def _standing(item: Input) -> tuple[Json, tuple[str, ...]]:
    """The recorded position of the source, and the names it took."""
    if item.source == PUSHED or item.reference is None:
        return None, ()
    recorded = _loads(item, "position", "reference")
    return recorded["position"], tuple(recorded.get("names", ()))


def split_positions(change: Change) -> tuple[Change, Told | None]:
    """A change without the column `$position`, and a function that describes its deletes."""
    rows = change.delete
    if rows is None or not rows.num_columns or rows.column_names[-1] != POSITION:
        return change, None
    positions = rows.column(POSITION)

    def told(places: Sequence[int]) -> list[tuple[str, str | None]]:
        return [(str(positions[place].as_py() or ""), None) for place in places]

    return replace(change, delete=rows.drop_columns([POSITION])), told


def checksum_intake(intake: Intake) -> Checksum:
    """The checksum of all input rows. A discarded row counts as a deleted one."""
    return add_checksums([sum for _, _, sum in _sums(intake)])


def _sums(intake: Intake) -> list[tuple[str, int, Checksum]]:
    """The name of every part, its number of rows and their checksum."""
    sums = [
        (what, rows.num_rows, checksum_rows(rows, "delete" if what == "discard" else what))
        for what, rows in _parts(intake)
    ]
    staged = intake.change.staged
    return sums if staged is None else [("put", staged.rows, staged.checksum), *sums]


def _digest(intake: Intake, sums: Iterable[tuple[str, int, Checksum]]) -> Checksum:
    """Of bad rows only the text counts: their file may have been renamed since."""
    good = [[what, rows, sum] for what, rows, sum in sums if what != "bad"]
    texts = sorted(_sound(item.text) for item in intake.bad)
    return checksum([_dumps([intake.table.lower(), good, texts]).encode()])


def encode_rows(intake: Intake) -> bytes:
    """Encode the rows as Arrow IPC streams."""
    out = pa.BufferOutputStream()
    for what, rows in _parts(intake):
        if what == "delete" and intake.deleted is not None:
            positions = [where for where, _ in intake.deleted(range(rows.num_rows))]
            rows = rows.append_column(POSITION, pa.array(positions, pa.string()))
        metadata = {**(rows.schema.metadata or {}), _PART: what.encode()}
        with pa.ipc.new_stream(out, rows.schema.with_metadata(metadata)) as stream:
            stream.write_table(rows)
    return bytes(out.getvalue().to_pybytes())


def decode_data(data: object, object: str) -> tuple[Change, tuple[BadRow, ...]]:
    """The inverse of `encode_rows`."""
    buffer = pa.py_buffer(data)
    reader = pa.BufferReader(buffer)
    parts: dict[str, pa.Table] = {}
    try:
        while reader.tell() < buffer.size:
            rows = pa.ipc.open_stream(reader).read_all()
            metadata = dict(rows.schema.metadata or {})
            what = metadata.pop(_PART, b"").decode()
            if what not in ("put", "delete", "discard", "bad") or what in parts:
                raise CorruptError(object, f"holds a part {what!r}", field="data")
            parts[what] = rows.replace_schema_metadata(metadata or None)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise CorruptError(object, f"not Arrow IPC streams: {error}", field="data") from error
    bad = tuple(BadRow(**row) for row in parts["bad"].to_pylist()) if "bad" in parts else ()
    return Change(parts.get("put"), parts.get("delete"), parts.get("discard")), bad


def _parts(intake: Intake) -> list[tuple[str, pa.Table]]:
    bad = None
    if intake.bad:
        rows = [
            {"where": _sound(b.where), "reason": _sound(b.reason), "text": _sound(b.text)}
            for b in intake.bad
        ]
        bad = pa.Table.from_pylist(rows, _BAD)
    change = intake.change
    parts = [("put", change.put), ("delete", change.delete), ("discard", change.discard)]
    parts.append(("bad", bad))
    return [(what, rows) for what, rows in parts if rows is not None and rows.num_rows]


def _sound(text: str) -> str:
    """Replace lone surrogates, which a broken file may contain and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _dumps(value: Json) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"a source's position and reference must be JSON: {error}") from error


def _loads(item: Input, *names: str) -> dict[str, Json]:
    where = f"the entry's input from source {item.source}"
    try:
        found = json.loads(item.reference or "")
    except ValueError as error:
        raise CorruptError(where, f"not JSON: {error}", field="reference") from error
    allowed = {*names, "names"} if "position" in names else {*names}
    if not isinstance(found, dict) or not set(names) <= set(found) <= allowed:
        raise CorruptError(where, f"expected {' and '.join(names)}", field="reference")
    taken = found.get("names", [])
    if not isinstance(taken, list) or not all(isinstance(name, str) for name in taken):
        raise CorruptError(where, "expected a list of names", field="reference")
    return found
