"""What came in, as it stands in a journal entry: by reference, or with its data.

    reference   {"position": ..., "reference": ...}   where the source stands afterwards, and from
                                                      what it reads the same rows again (J8);
                                                      "names" too, if it took things by name
    data        Arrow IPC streams one after another, each with `part` in its schema's metadata:
                put, delete, discard, bad; only those that hold rows. A last column `$position`
                of delete says where each record stood, if that is known

Rows that were pushed have no position. If they came with a key, `reference` is that, with a digest
of the push: {"key": ..., "digest": ...}. The key of an explicit transaction stands in the entry
that closes it, in a line that takes nothing in. The position stands beside the reference, so that
replaying the journal is enough to know where every source is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from stepwell.engine.checksum import add_checksums, checksum_rows
from stepwell.engine.ports import BadRow, Change, Source, Taken, Told
from stepwell.engine.push_keys import PushKey
from stepwell.errors import CorruptError, InvalidError, ReplayMismatchError
from stepwell.journal.entry import Input
from stepwell.model import NO_CHECKSUM, Checksum, checksum, is_checksum
from stepwell.store.sealed import Json

PUSHED = "push"
"""The name under which rows are recorded that came by `push` and not from a source."""

POSITION = "$position"
"""A last column that rows to be deleted may have when they are pushed: where each record stood. No
column of a table can have such a name.
"""

_PART = b"part"
_BAD = pa.schema(
    [
        pa.field("where", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Intake:
    """What one source, or one push, gave to a step."""

    source: str
    table: str
    taken: Taken
    key: str | None = None
    """Given with a push, so that it can be repeated."""

    def record(self) -> Input:
        """The line of the journal entry for it."""
        taken, sums = self.taken, _sums(self.taken)
        reference: str | None = None
        if self.source != PUSHED:
            names = {"names": taken.names} if taken.names else {}
            position = {"position": taken.position, "reference": taken.reference}
            reference = _dumps({**position, **names})
        elif self.key is not None:
            digest = _digest(self.table, taken, sums)
            reference = _dumps({"key": self.key, "digest": digest})
        return Input(
            source=self.source,
            table=self.table,
            rows=taken.rows,
            checksum=add_checksums([sum for _, _, sum in sums]),
            reference=reference,
            data=encode_taken(taken) if taken.reference is None else None,
        )


def digest_of(intake: Intake) -> Checksum:
    """The digest of a push: the same for the same rows in the same table, in any order."""
    return _digest(intake.table, intake.taken, _sums(intake.taken))


def key_line(key: PushKey) -> Input:
    """The line that records the key of an explicit transaction."""
    reference = _dumps({"key": key.key, "digest": key.digest})
    return Input(PUSHED, "", 0, NO_CHECKSUM, reference)


def recorded_key(item: Input) -> PushKey | None:
    """The key in a line; None: it has none."""
    if item.source != PUSHED or item.reference is None:
        return None
    found = _loads(item, "key", "digest")
    key, digest = found["key"], found["digest"]
    if not isinstance(key, str) or not isinstance(digest, str) or not is_checksum(digest):
        raise CorruptError("the entry's key of a push", "expected two texts", field="reference")
    return PushKey(key, Checksum(digest))


def read_again(item: Input, source: Source | None) -> Intake:
    """What was recorded, from the entry itself or from the source. Not compared yet."""
    if item.data is not None:
        change, bad = decode_data(item.data, f"the data of source {item.source}")
        position, names = _standing(item)
        change, deleted = split_positions(change)
        taken = Taken(change, item.rows, position, None, bad, deleted, names)
        return Intake(item.source, item.table, taken)
    if source is None:
        raise ReplayMismatchError(
            f"source {item.source} of table {item.table} is recorded in the journal, but the "
            "pipeline has no such source",
            hint="put the source back until the pipeline has been opened and flushed once",
        )
    taken = source.read(_loads(item, "position", "reference")["reference"])
    # Where the source stood is recorded, too: it may not know any more.
    position, names = _standing(item)
    return Intake(item.source, item.table, replace(taken, position=position, names=names))


def _standing(item: Input) -> tuple[Json, tuple[str, ...]]:
    """Where the source stands after what was recorded, and the names that it took."""
    if item.source == PUSHED or item.reference is None:
        return None, ()
    recorded = _loads(item, "position", "reference")
    return recorded["position"], tuple(recorded.get("names", ()))


def split_positions(change: Change) -> tuple[Change, Told | None]:
    """A change without the column `$position`, and what that column tells."""
    rows = change.delete
    if rows is None or not rows.num_columns or rows.column_names[-1] != POSITION:
        return change, None
    positions = rows.column(POSITION)

    def told(places: Sequence[int]) -> list[tuple[str, str | None]]:
        return [(str(positions[place].as_py() or ""), None) for place in places]

    return replace(change, delete=rows.drop_columns([POSITION])), told


def checksum_taken(taken: Taken) -> Checksum:
    """Of all rows that came in, whatever is done with them.

    A row that is discarded came in as one that is deleted, and counts as such.
    """
    return add_checksums([sum for _, _, sum in _sums(taken)])


def _sums(taken: Taken) -> list[tuple[str, int, Checksum]]:
    """Of every part its name, its rows and their checksum."""
    return [
        (what, rows.num_rows, checksum_rows(rows, "delete" if what == "discard" else what))
        for what, rows in _parts(taken)
    ]


def _digest(table: str, taken: Taken, sums: Iterable[tuple[str, int, Checksum]]) -> Checksum:
    """Of rows that cannot be read only their text counts: a file may have another name by now."""
    good = [[what, rows, sum] for what, rows, sum in sums if what != "bad"]
    texts = sorted(_sound(item.text) for item in taken.bad)
    return checksum([_dumps([table.lower(), good, texts]).encode()])


def encode_taken(taken: Taken) -> bytes:
    """The rows as Arrow IPC streams."""
    out = pa.BufferOutputStream()
    for what, rows in _parts(taken):
        if what == "delete" and taken.deleted is not None:
            positions = [where for where, _ in taken.deleted(range(rows.num_rows))]
            rows = rows.append_column(POSITION, pa.array(positions, pa.string()))
        metadata = {**(rows.schema.metadata or {}), _PART: what.encode()}
        with pa.ipc.new_stream(out, rows.schema.with_metadata(metadata)) as stream:
            stream.write_table(rows)
    return bytes(out.getvalue().to_pybytes())


def decode_data(data: object, object: str) -> tuple[Change, tuple[BadRow, ...]]:
    """The inverse of `encode_taken`."""
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


def _parts(taken: Taken) -> list[tuple[str, pa.Table]]:
    bad = None
    if taken.bad:
        rows = [
            {"where": _sound(b.where), "reason": _sound(b.reason), "text": _sound(b.text)}
            for b in taken.bad
        ]
        bad = pa.Table.from_pylist(rows, _BAD)
    change = taken.change
    parts = [("put", change.put), ("delete", change.delete), ("discard", change.discard)]
    parts.append(("bad", bad))
    return [(what, rows) for what, rows in parts if rows is not None and rows.num_rows]


def _sound(text: str) -> str:
    """Half a character, as a broken file may hold, cannot be written as UTF-8."""
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
