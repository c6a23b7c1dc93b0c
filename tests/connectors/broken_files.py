"""Files that are broken in ways drawn from a seed: what somebody's disk, program or malice leaves.

A case is a format, a compression, a change format, and bytes: good records, damaged here and there.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import random
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

EVERYTHING = """CREATE TABLE everything (
    id BIGINT NOT NULL PRIMARY KEY, word STRING, short VARCHAR(5), amount DECIMAL(12,2),
    at TIMESTAMP, day DATE, real DOUBLE, small SMALLINT, single FLOAT, yes BOOLEAN, data BINARY,
    list ARRAY<INT>, pairs MAP<STRING,INT>, both STRUCT<a:INT,b:STRING>, local TIMESTAMP_NTZ,
    fixed INT DEFAULT 7)"""
BAG = "CREATE TABLE everything (id BIGINT, word STRING, amount DECIMAL(12,2), at TIMESTAMP)"

_TOKENS = (
    *(b"\r", b"\n", b"\r\n", b"\0", b'"', b'""', b"'", b",", b";", b"\\", b"{", b"}", b"[", b"]"),
    *(b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xf4\x90\x80\x80"),
    *(b"1e9999999999999999999", b"-1e-9999999999999999999", b"1e400", b"1E+6", b"9" * 5_000),
    *(b"NaN", b"Infinity", b"-0", b"0x10", b"null", b"true", b"\\ud800", b'"\\udc00"', b"\\u0000"),
    *(b"[" * 3_000, b'{"a":' * 3_000, b'{"id":1}{"id":2}', b'{"id":1,"id":2}', b"_op", b"insert"),
    *(b"0000-00-00", b"9999-12-31T23:59:60Z", b"2026-01-01T00:00:00+99:99", b"2026-02-30"),
    *(b'"a\rb"', b"a\rb", b",,,,,,,,,,,,,,,,,,,,,", b"x" * 3_000, b"\t", b" ", b"==", b"////"),
    *(
        b'{"insert":{"id":1},"delete":{"id":1}}',
        b'{"insert":null}',
        b'{"payload":null}',
        b'"op":"u"',
    ),
)
_VALUES: tuple[object, ...] = (
    *(None, 0, 1, -1, 2**63, -(2**63), 10**30, 1.5, 1e300, "", "x", "1", "é", "😀", "\ud800", True),
    *("2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05.678", "true", "AAAA", "NaN", [1]),
    *(
        [],
        [None],
        ["x"],
        {},
        {"a": 1},
        {"a": 1, "b": "x"},
        {"a": {"b": []}},
        "12345678901.23",
        "0.125",
    ),
)
_COLUMNS = (
    *("id", "word", "short", "amount", "at", "day", "real", "small", "single", "yes", "data"),
    *("list", "pairs", "both", "local", "fixed", "ID", "unknown", "_op", ""),
)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    format: str
    changes: str
    table: str
    data: bytes


def draw(seed: int) -> Case:
    """The case of a seed."""
    chance = random.Random(seed)
    format = chance.choice(["json", "json", "csv", "csv", "parquet"])
    changes = chance.choice(["rows", "rows", "insert_delete", "debezium"])
    if format != "json" and changes == "debezium":
        changes = "rows"
    table = chance.choice([EVERYTHING, EVERYTHING, BAG])
    if format == "parquet":
        return Case("a.parquet", format, changes, table, _damaged(_parquet(chance), chance, 0.5))
    data = _json(chance, changes) if format == "json" else _csv(chance)
    data = _damaged(data, chance, 0.9)
    ending = chance.choice(["", "", ".gz", ".bz2", ".zst"])
    return Case(f"a.{format}{ending}", format, changes, table, _packed(data, ending, chance))


def draw_footer(seed: int) -> Case:
    """A Parquet file of which only the footer is damaged, as little as Arrow may not notice."""
    chance = random.Random(seed)
    table = chance.choice([EVERYTHING, BAG])
    made = bytearray(_parquet(chance))
    length = int.from_bytes(made[-8:-4], "little")
    for _ in range(chance.choice([1, 1, 2, 3])):
        at = chance.randrange(len(made) - 8 - length, len(made) - 8)
        made[at] = chance.choice([chance.randrange(256), made[at] ^ (1 << chance.randrange(8))])
    return Case("a.parquet", "parquet", "rows", table, bytes(made))


def _json(chance: random.Random, changes: str) -> bytes:
    lines = []
    for _ in range(chance.choice([0, 1, 3, 40])):
        record: object = _record(chance)
        if changes == "insert_delete":
            record = {chance.choice(["insert", "delete", "other"]): record}
        elif changes == "debezium":
            operation = chance.choice(["c", "u", "d", "r", "x", None])
            record = {"before": chance.choice([None, record]), "after": record, "op": operation}
            record = chance.choice([record, {"payload": record}])
        lines.append(json.dumps(record))
    return ("\n".join(lines) + chance.choice(["", "\n", "\r\n", "\n\n"])).encode()


def _record(chance: random.Random) -> dict[str, object]:
    record: dict[str, object] = {"id": chance.choice([1, 2, 3, None, "x", 1.0, 2**70])}
    for _ in range(chance.randrange(4)):
        record[chance.choice(_COLUMNS)] = chance.choice(_VALUES)
    return record


def _csv(chance: random.Random) -> bytes:
    header = ["id", *chance.sample(_COLUMNS[1:], chance.randrange(5))]
    lines = [",".join(header)]
    for _ in range(chance.choice([0, 1, 3, 40])):
        width = len(header) + chance.choice([0, 0, 0, 0, 1, -1])
        fields = [_field(chance) for _ in range(max(1, width))]
        lines.append(",".join(fields))
    return chance.choice(["\n", "\n", "\r\n"]).join([*lines, ""]).encode()


def _field(chance: random.Random) -> str:
    text = str(chance.choice(["1", "2", "3", "", "x", *map(str, _VALUES)]))
    text = text.encode("utf-8", "replace").decode()
    return chance.choice([text, '"' + text.replace('"', '""') + '"', text + '"', '"' + text])


def _parquet(chance: random.Random) -> bytes:
    count = chance.choice([0, 1, 7, 300])
    columns: dict[str, pa.Array] = {
        "id": pa.array([n % 100 for n in range(count)], chance.choice(_INTEGERS))
    }
    for name in chance.sample(_COLUMNS[1:-1], chance.randrange(6)):
        columns[name] = _column(chance, count)
    buffer = io.BytesIO()
    options = {"use_dictionary": chance.random() < 0.5, "row_group_size": chance.choice([3, 1_000])}
    compression = chance.choice(["none", "snappy", "zstd"])
    pq.write_table(pa.table(columns), buffer, compression=compression, **options)
    return buffer.getvalue()


_INTEGERS = (pa.int8(), pa.int16(), pa.int64(), pa.uint64(), pa.float64(), pa.decimal128(38, 2))


def _column(chance: random.Random, count: int) -> pa.Array:
    kind = chance.randrange(10)
    if kind == 0:  # Texts that are none.
        texts = [bytes(chance.choice([b"a", b"\xff", b"\xc0\x80", b"\0"])) for _ in range(count)]
        return pa.array(texts, pa.binary()).view(pa.string())
    if kind == 1:
        times = pa.array([chance.randrange(-(2**63), 2**63) for _ in range(count)], pa.int64())
        unit = chance.choice(["ms", "us", "ns"])
        return times.view(pa.timestamp(unit, chance.choice([None, "UTC"])))
    if kind == 2:
        days = [chance.randrange(-(2**31), 2**31) for _ in range(count)]
        return pa.array(days, pa.int32()).view(pa.date32())
    if kind == 3:
        return pa.array(
            [[1, None] * chance.randrange(3) for _ in range(count)], pa.list_(pa.int32())
        )
    if kind == 4:
        texts = [bytes(chance.choice([b"a", b"\xff"])) for _ in range(count)]
        return pa.array([[t] for t in texts], pa.list_(pa.binary())).cast(pa.list_(pa.binary()))
    if kind == 5:
        return pa.array([{"a": 1, "b": "x"} for _ in range(count)])
    if kind == 6:
        texts = pa.array([chance.choice(["a", None]) for _ in range(count)], pa.string())
        return texts.dictionary_encode()
    if kind == 7:
        return pa.array([chance.choice([0.5, float("nan"), 1e300]) for _ in range(count)])
    if kind == 8:
        return pa.array([chance.randrange(86_400) for _ in range(count)], pa.int32()).view(
            pa.time32("s")
        )
    return pa.nulls(count)


def _damaged(data: bytes, chance: random.Random, often: float) -> bytes:
    """The same bytes with some of them changed, added, taken away or doubled."""
    made = bytearray(data)
    while chance.random() < often:
        often *= 0.8
        at = chance.randrange(len(made) + 1)
        kind = chance.randrange(6)
        if kind == 0:
            made[at:at] = chance.choice(_TOKENS)
        elif kind == 1:
            made[at : at + chance.randrange(1, 20)] = b""
        elif kind == 2:
            made[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 3:
            del made[at:]
        elif kind == 4:
            made[at:at] = made[: chance.randrange(200)]
        else:
            length = chance.randrange(1, 5)
            made[at : at + length] = chance.choice(_TOKENS)[:length]
    return bytes(made)


def _packed(data: bytes, ending: str, chance: random.Random) -> bytes:
    if ending == ".gz":
        data = gzip.compress(data)
    elif ending == ".bz2":
        data = bz2.compress(data)
    elif ending == ".zst":
        data = pa.compress(data, "zstd", asbytes=True) if data else b""
    return _damaged(data, chance, 0.3) if ending else data
