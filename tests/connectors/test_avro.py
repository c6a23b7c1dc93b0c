"""Avro values: decoding, encoding, schemas that are refused, and a registry that is killed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepwell.connectors.avro import BadSchemaError, read_schema
from stepwell.connectors.avro_messages import AvroEncoder
from stepwell.connectors.avro_records import AvroLayout, AvroSchemas
from stepwell.connectors.avro_registry import Registry, RegistryAddress
from stepwell.connectors.formats import Batch, ChangeFormat
from stepwell.connectors.kafka import Record
from stepwell.connectors.kafka_records import Found, Layout, RecordDecoder
from stepwell.connectors.shape import shape_of
from stepwell.connectors.values import Unfit
from stepwell.errors import InvalidError, UnavailableError
from tests.connectors.avro_values import encoded, logical, record
from tests.connectors.schema_registry import SchemaRegistry, framed, schema_registry
from tests.connectors.tables import rows, table

EVERY_TYPE = """CREATE TABLE t (
    id BIGINT PRIMARY KEY, ok BOOLEAN, small INT, f FLOAT, d DOUBLE, word STRING, raw BINARY,
    amount DECIMAL(12,2), exact DECIMAL(38,10), day DATE, ms TIMESTAMP, us TIMESTAMP,
    local TIMESTAMP_NTZ, ident STRING, kind STRING, hash BINARY, tags ARRAY<STRING>,
    counts MAP<STRING, BIGINT>, inner STRUCT<a: INT, at: DATE>)"""


EVERY_FIELD: dict[str, object] = {
    "id": "long",
    "ok": ["null", "boolean"],
    "small": "int",
    "f": "float",
    "d": "double",
    "word": ["string", "null"],
    "raw": "bytes",
    "amount": logical("bytes", "decimal", precision=12, scale=2),
    "exact": logical("fixed", "decimal", name="exact", size=16, precision=38, scale=10),
    "day": logical("int", "date"),
    "ms": logical("long", "timestamp-millis"),
    "us": logical("long", "timestamp-micros"),
    "local": logical("long", "local-timestamp-micros"),
    "ident": logical("string", "uuid"),
    "kind": {"type": "enum", "name": "kind", "symbols": ["A", "B"]},
    "hash": {"type": "fixed", "name": "hash", "size": 2},
    "tags": {"type": "array", "items": "string"},
    "counts": {"type": "map", "values": ["null", "long"]},
    "inner": [
        "null",
        {
            "type": "record",
            "name": "inner",
            "fields": [
                {"name": "a", "type": "int"},
                {"name": "at", "type": logical("int", "date")},
            ],
        },
    ],
}
EVERY_VALUE: dict[str, object] = {
    "id": 7,
    "ok": None,
    "small": -3,
    "f": 0.5,
    "d": 0.1,
    "word": "ä",
    "raw": b"\x00\xff",
    "amount": Decimal("-12.30"),
    "exact": Decimal("-9999999999999999999999999999.0123456789"),
    "day": date(1, 1, 1),
    "ms": datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    "us": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "local": datetime(1900, 1, 1, 0, 0, 0, 1),
    "ident": "00000000-0000-0000-0000-000000000001",
    "kind": "B",
    "hash": b"ab",
    "tags": ["x", ""],
    "counts": {"n": 2**62, "none": None},
    "inner": {"a": 1, "at": date(2024, 2, 29)},
}


def schemas(writer: object) -> AvroSchemas:
    """The schemas of a source without a registry."""
    return AvroSchemas("source s", AvroLayout(schema=(json.dumps(writer),)))


def decode(
    sql: str, writer: object, values: list[bytes], changes: ChangeFormat = ChangeFormat.ROWS
) -> Batch:
    given = schemas(writer)
    return decoder(sql, changes).decode(found_in(values), given.step())


def decoder(sql: str, changes: ChangeFormat = ChangeFormat.ROWS) -> RecordDecoder:
    return RecordDecoder("source s", shape_of(table(sql)), Layout(changes))


def found_in(values: list[bytes]) -> list[Found]:
    return [Found("t", 0, Record(at, None, None, v, None), True) for at, v in enumerate(values)]


def put(batch: Batch) -> list[tuple[object, ...]]:
    return [row[:-2] for row in rows(batch.operations)]


@pytest.mark.parametrize("count", [1, 40])
def test_every_type_of_avro_becomes_the_type_of_its_column(count: int) -> None:
    """J8: exactly, at the ends of the calendar too, one by one and column by column."""
    schema = record(EVERY_FIELD)
    batch = decode(EVERY_TYPE, schema, [encoded(schema, EVERY_VALUE)] * count)
    assert batch.bad == ()
    expected = {**EVERY_VALUE, "counts": list(EVERY_VALUE["counts"].items())}  # type: ignore[attr-defined]
    assert put(batch) == [tuple(expected.values())] * count


@pytest.mark.parametrize("count", [1, 40])
def test_columns_and_single_rows_are_decoded_alike(count: int) -> None:
    """Simple fields are decoded column by column, which must not change what is accepted."""
    names = [n for n in EVERY_FIELD if n not in ("tags", "counts", "inner")]
    columns = EVERY_TYPE.partition(", tags ")[0] + ")"
    schema = record({name: EVERY_FIELD[name] for name in names})
    value = {name: EVERY_VALUE[name] for name in names}
    assert read_schema((json.dumps(schema),)).columns() is not None
    late = {**value, "id": 8, "us": 2**62, "day": 0}  # fastavro writes numbers as they are.
    batch = decode(columns, schema, [encoded(schema, value), encoded(schema, late)] * count)
    assert put(batch) == [tuple(value.values())] * count
    assert {bad.reason for bad in batch.bad} == {
        f"the time {2**62} micros from 1970 is out of range"
    }
    assert [bad.where for bad in batch.bad] == [
        f"t [0], offset {n}" for n in range(1, 2 * count, 2)
    ]


@pytest.mark.parametrize(
    ("column", "kind", "value", "reason"),
    [
        ("INT", "long", 2**31, "x: 2147483648 is too large for INT"),
        ("STRING", "int", 1, "x: 1 is not a valid STRING"),
        ("STRING", "bytes", b"a", "x: b'a' is not a valid STRING"),
        ("BIGINT", "double", 1.5, "x: 1.5 is not a valid BIGINT"),
        ("DECIMAL(4,1)", EVERY_FIELD["amount"], Decimal("1.25"), "x: '1.25' has more than 1"),
        ("DATE", "int", 3, "x: 3 is not a valid DATE"),
        ("TIMESTAMP_NTZ", EVERY_FIELD["us"], 0, "has a time zone, and TIMESTAMP_NTZ has none"),
        ("BIGINT NOT NULL", ["null", "long"], None, "the column x is NULL"),
        ("BIGINT", EVERY_FIELD["day"], -800_000, "the date -800000 days from 1970 is out of range"),
    ],
)
@pytest.mark.parametrize("count", [1, 20])
def test_a_value_that_does_not_fit_its_column_is_a_dead_letter(
    column: str, kind: object, value: object, reason: str, count: int
) -> None:
    """J15: nothing is rounded, truncated or guessed."""
    schema = record({"x": kind})
    batch = decode(f"CREATE TABLE t (x {column})", schema, [encoded(schema, {"x": value})] * count)
    assert len(batch.bad) == count
    assert reason in batch.bad[0].reason


def test_decimals_keep_digits_beyond_their_schema() -> None:
    """A library that computes with the precision of the schema would round them silently."""
    small = record({"x": logical("bytes", "decimal", precision=3, scale=1)})
    raw = record({"x": "bytes"})
    value = encoded(raw, {"x": (123456).to_bytes(4, "big")})
    assert put(decode("CREATE TABLE t (x DECIMAL(9,1))", small, [value])) == [(Decimal("12345.6"),)]
    (bad,) = decode(
        "CREATE TABLE t (x DECIMAL(9,1))", small, [encoded(raw, {"x": b"\x7f" * 100_000})]
    ).bad
    assert "a decimal of 100000 bytes is too large" in bad.reason


def test_bytes_after_a_value_are_not_ignored() -> None:
    """J15: they show that the value was written with another schema."""
    short, long = record({"x": "long"}), record({"x": "long", "y": "long"})
    (bad,) = decode("CREATE TABLE t (x BIGINT)", short, [encoded(long, {"x": 1, "y": 2})]).bad
    assert bad.reason == "not a value of its Avro schema: 1 bytes are left over"


def test_uuids_of_sixteen_bytes_are_texts() -> None:
    """J8: as those that are texts already."""
    given = uuid.UUID(int=2**127 + 5)
    kind = logical("fixed", "uuid", name="u", size=16)
    plain = record({"x": {"type": "fixed", "name": "u", "size": 16}})
    value = encoded(plain, {"x": given.bytes})
    assert put(decode("CREATE TABLE t (x STRING)", record({"x": kind}), [value])) == [(str(given),)]


def test_operations_and_debezium_events() -> None:
    """J8: `_op` as in CSV; events with the types of Debezium's converter."""
    schema = record({"_op": "string", "id": "long", "word": "string"})
    values = [encoded(schema, {"_op": op, "id": n, "word": "w"}) for n, op in enumerate("idx")]
    words = "CREATE TABLE t (id BIGINT PRIMARY KEY, word STRING)"
    for count in (1, 20):
        batch = decode(words, schema, values * count, ChangeFormat.INSERT_DELETE)
        assert [row[:3] for row in rows(batch.operations)] == [
            (0, "w", True),
            (1, None, False),
        ] * count
        assert len(batch.bad) == count
    micros = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
    days = {"type": "int", "connect.name": "io.debezium.time.Date"}
    variable = {
        **record({"scale": "int", "value": "bytes"}, "VariableScaleDecimal"),
        "connect.name": "io.debezium.data.VariableScaleDecimal",
    }
    row = record({"id": "long", "at": micros, "day": days, "n": variable}, "Value")
    event = record(
        {"before": ["null", row], "after": ["null", "Value"], "op": "string"}, "Envelope"
    )
    sql = "CREATE TABLE t (id BIGINT PRIMARY KEY, at TIMESTAMP_NTZ, day DATE, n DECIMAL(9,3))"
    after = {"id": 1, "at": 1_500_000, "day": 1, "n": {"scale": 3, "value": b"\x04\xd2"}}
    value = encoded(event, {"before": None, "after": after, "op": "c"})
    told = (1, datetime(1970, 1, 1, 0, 0, 1, 500_000), date(1970, 1, 2), Decimal("1.234"))
    assert put(decode(sql, event, [value], ChangeFormat.DEBEZIUM)) == [told]


def test_the_table_is_the_reader_of_values() -> None:
    """J8: a field that is missing takes the column's default; one that is new is not dropped."""
    sql = "CREATE TABLE t (id BIGINT PRIMARY KEY, word STRING DEFAULT 'none')"
    old, new = record({"id": "int"}), record({"id": "long", "word": "string", "more": "int"})
    assert put(decode(sql, old, [encoded(old, {"id": 1})])) == [(1, "none")]
    (bad,) = decode(sql, new, [encoded(new, {"id": 1, "word": "a", "more": 2})]).bad
    assert bad.reason == "t has no column more"


READER = {
    **record(
        {
            "id": "long",
            "name": "string",
            "day": logical("int", "date"),
            "raw": "bytes",
            "amount": ["null", logical("bytes", "decimal", precision=9, scale=2)],
        },
        day=365,
        raw="\u00ff",
        amount=None,
    )
}
READER["fields"][1]["aliases"] = ["word"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    with schema_registry(tmp_path_factory.mktemp("registry"), "ada:secret") as made:
        yield made


def address(registry: SchemaRegistry) -> RegistryAddress:
    return RegistryAddress(registry.url, "ada", "secret", 5.0)


@pytest.mark.parametrize("count", [1, 20])
def test_values_are_resolved_to_a_reader_schema(registry: SchemaRegistry, count: int) -> None:
    """J8: aliases, promotions and defaults; a decimal of another scale is not misread."""
    layout = AvroLayout(address(registry), (json.dumps(READER),))
    sql = "CREATE TABLE t (id BIGINT, name STRING, day DATE, raw BINARY, amount DECIMAL(9,2))"
    writers = [
        record({"word": "string", "id": "int", "gone": {"type": "array", "items": "long"}}),
        record(
            {
                "id": "long",
                "name": "string",
                "amount": logical("bytes", "decimal", precision=9, scale=3),
            }
        ),
        record({"id": "string", "name": "string"}),
    ]
    told = [
        {"word": "a", "id": 1, "gone": [1, 2]},
        {"id": 2, "name": "b", "amount": Decimal("1.000")},
    ]
    told.append({"id": "3", "name": "c"})
    values = []
    for number, (writer, value) in enumerate(zip(writers, told, strict=True)):
        id = registry.add(f"evolved-{count}-{number}", writer)
        values.append(framed(id, encoded(writer, value)))
    given = AvroSchemas("source s", layout)
    batch = decoder(sql).decode(found_in(values * count), given.step())
    assert put(batch) == [(1, "a", date(1971, 1, 1), b"\xff", None)] * count
    reasons = {bad.reason for bad in batch.bad}
    assert len(batch.bad) == 2 * count
    assert "a decimal of scale 3 is not one of scale 2" in reasons
    assert any(reason.startswith("cannot be read with the given schema") for reason in reasons)


def node(items: object) -> dict[str, object]:
    return record({"x": {"type": "array", "items": items}})


def bomb(levels: int) -> dict[str, Any]:
    """A record whose values double with each level, and take no bytes."""
    kind: Any = "null"
    for level in range(levels):
        kind = record({"a": kind, "b": f"r{level - 1}" if level else "null"}, f"r{level}")
    return kind  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record({"next": ["null", "row"]}), "row is recursive"),
        (node("null"), "an array whose items hold values"),
        (node(record({"a": "null"}, "empty")), "an array whose items hold values"),
        (node({"type": "fixed", "name": "f", "size": 0}), "an array whose items hold values"),
        (node(record({"a": "int", "b": "null"}, "half")), "an array whose items hold values"),
        (
            node(["int", record({"a": "null", "b": "null"}, "two")]),
            "an array whose items hold values",
        ),
        (record({"x": {"type": "map", "values": bomb(2)}}), "a map whose items hold values"),
        (bomb(40), "more than 10000 types"),
        (record({"x": "strin"}), "UnknownType"),
        (record({"x": "int"}, x="no"), "Default value"),
        ({"type": "enum", "name": "e"}, "KeyError"),
        (7, "Error"),
    ],
)
def test_schemas_that_could_not_be_bounded_are_refused(schema: object, reason: str) -> None:
    """J15: a few bytes must neither fill the memory nor overflow the stack."""
    with pytest.raises(BadSchemaError, match=reason):
        read_schema((json.dumps(schema),))


@pytest.mark.parametrize("items", [["null", "int"], record({"a": ["null", "string"]}, "nullable")])
def test_items_that_may_be_null_are_accepted(items: object) -> None:
    """The rule must not refuse what everyone writes."""
    schema = node(items)
    assert read_schema((json.dumps(schema),)).decode(encoded(schema, {"x": []})) == {"x": []}
    nulls = record({"x": {"type": "map", "values": "null"}})
    assert read_schema((json.dumps(nulls),)).decode(encoded(nulls, {"x": {"a": None}}))


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"type":' * 500 + '"int"' + "}" * 500])
def test_texts_that_are_not_schemas_are_refused(text: str) -> None:
    """A registry is not trusted more than a record."""
    with pytest.raises(BadSchemaError):
        read_schema((text,))


FUZZED = record({name: EVERY_FIELD[name] for name in EVERY_FIELD})
FLAT = record({name: EVERY_FIELD[name] for name in ("id", "ok", "word", "amount", "day", "us")})
WHOLE = encoded(FUZZED, EVERY_VALUE)


@pytest.mark.parametrize("schema", [FUZZED, FLAT], ids=["every type", "flat"])
@settings(max_examples=40)
@given(
    values=st.lists(
        st.one_of(
            st.none(),
            st.binary(max_size=40),
            st.tuples(st.integers(0, len(WHOLE)), st.binary(max_size=3)).map(
                lambda cut: WHOLE[: cut[0]] + cut[1] + WHOLE[cut[0] :]
            ),
        ),
        max_size=8,
    ),
    repeated=st.booleans(),
)
@example(values=[b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"], repeated=True)
@example(values=[b"\xff" * 30, b"", WHOLE], repeated=True)
def test_any_bytes_become_rows_or_dead_letters(
    schema: dict[str, Any], values: list[bytes | None], repeated: bool
) -> None:
    """J15: decoding never raises, and does not depend on the records around a record."""
    made, given = decoder(EVERY_TYPE), schemas(schema)
    values = values * 20 if repeated else values
    found = [Found("t", 0, Record(at, None, None, v, None), True) for at, v in enumerate(values)]
    batch = made.decode(found, given.step())
    alone = [made.decode([item], given.step()) for item in found]
    width = len(rows(batch.operations)[0]) - 1 if batch.operations.num_rows else 0
    one = [row[:width] for each in alone for row in rows(each.operations)]
    assert repr([row[:width] for row in rows(batch.operations)]) == repr(one)
    assert len(batch.bad) + len(one) == len(found) == batch.rows
    assert sorted((bad.where, bad.text) for bad in batch.bad) == sorted(
        (bad.where, bad.text) for each in alone for bad in each.bad
    )


def test_a_record_that_is_too_long_is_not_decoded() -> None:
    """J15: 8 MiB, as for every format; its text is cut."""
    schema = record({"x": "bytes"})
    value = encoded(schema, {"x": b"\x00" * (8 << 20)})
    (bad,) = decode("CREATE TABLE t (x BINARY)", schema, [value]).bad
    assert "is longer than 8388608" in bad.reason
    assert len(bad.text) <= 10_000


def test_the_schemas_of_a_step_are_recorded_and_replayed(registry: SchemaRegistry) -> None:
    """J5, J8: replay decodes with the same schemas, whatever has become of the registry."""
    words = "CREATE TABLE t (id BIGINT, word STRING)"
    inner = record({"word": "string"}, "shared.inner")
    outer = record({"id": "long", "word": "string"}, "outer")
    refers = record({"id": "long", "word": ["null", "shared.inner"]}, "refers")
    registry.add("shared", inner)
    references = [{"name": "shared.inner", "subject": "shared", "version": 1}]
    ids = [registry.add("outer", outer), registry.add("refers", refers, references=references)]
    proto = registry.add("proto", "message x {}", schemaType="PROTOBUF")
    values = [framed(ids[0], encoded(outer, {"id": n, "word": "w"})) for n in range(20)]
    full = record({"id": "long", "word": ["null", inner]}, "refers")
    values.append(framed(ids[1], encoded(full, {"id": 21, "word": None})))
    values += [framed(proto, b""), framed(9_999, b""), b"{}", b"\0\0"]
    given = AvroSchemas("source s", AvroLayout(address(registry)))
    step = given.step()
    batch = decoder(words).decode(found_in(values), step)
    assert put(batch) == [*((n, "w") for n in range(20)), (21, None)]
    assert [bad.reason for bad in batch.bad] == [
        f"schema {proto} of the registry is PROTOBUF, not Avro",
        "the registry has no schema 9999",
        *["not a zero byte and the id of a schema, as with a registry"] * 2,
    ]
    recorded = json.loads(json.dumps(step.to_json()))
    assert set(recorded["schemas"]) == set(map(str, ids))
    assert len(recorded["schemas"][str(ids[1])]) == 2
    registry.kill()
    try:
        replayed = AvroSchemas("source s", AvroLayout()).replayed(recorded)
        again = decoder(words).decode(found_in(values), replayed)
        assert again.operations.equals(batch.operations)
        assert again.bad == batch.bad
        fresh = AvroSchemas("source s", AvroLayout(address(registry)))
        with pytest.raises(UnavailableError, match=r"source s cannot use the registry http://127"):
            decoder(words).decode(found_in(values), fresh.step())
    finally:
        registry.start()
    assert decoder(words).decode(found_in(values), fresh.step()).bad == batch.bad


def test_a_registry_that_refuses_is_not_blamed_on_records(registry: SchemaRegistry) -> None:
    """J15: wrong credentials, or an address that is not a registry, must not empty a topic."""
    url = registry.url
    for wrong, reason in (
        (RegistryAddress(url, "ada", "wrong"), "it answers 401: Unauthorized"),
        (RegistryAddress("http://127.0.0.1:1"), "refused"),
        (RegistryAddress(f"{url}/elsewhere", "ada", "secret"), "it answers 404: Not Found"),
    ):
        with pytest.raises(UnavailableError, match=reason) as caught:
            Registry("source s", wrong).schema(1)
        assert "secret" not in str(caught.value)
    with pytest.raises(Unfit, match="the registry has no schema 777"):
        Registry("source s", address(registry)).schema(777)


ROWS = pa.table(
    {
        "id": pa.array([1, None], pa.int64()),
        "tiny": pa.array([-128, 127], pa.int8()),
        "ok": pa.array([True, None]),
        "f": pa.array([0.5, None], pa.float32()),
        "d": pa.array([0.1, float("inf")]),
        "word": pa.array(["ä", None]),
        "raw": pa.array([b"\xff", None]),
        "amount": pa.array([Decimal("-0.10"), None], pa.decimal128(38, 2)),
        "day": pa.array([date(1, 1, 1), date(9999, 12, 31)]),
        "at": pa.array(
            [datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        "local": pa.array([datetime(1, 1, 1, 0, 0, 0, 1), None], pa.timestamp("us")),
        "tags": pa.array([["a", None], None], pa.list_(pa.string())),
        "counts": pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array(
            [{"m": [("x", [{"a": 1}])]}, None],
            pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.int32())]))))]),
        ),
    }
)
ROWS_SQL = """CREATE TABLE t (id BIGINT, tiny TINYINT, ok BOOLEAN, f FLOAT, d DOUBLE, word STRING,
    raw BINARY, amount DECIMAL(38,2), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ,
    tags ARRAY<STRING>, counts MAP<STRING,BIGINT>,
    deep STRUCT<m: MAP<STRING, ARRAY<STRUCT<a: INT>>>>)"""


def test_encoded_rows_are_decoded_as_they_were(registry: SchemaRegistry) -> None:
    """J7: every type of a view, in its own schema, exactly."""
    made = AvroEncoder("out", "a view", "rows-value", Registry("sink out", address(registry)), None)
    values = list(made(ROWS))
    assert values == made(ROWS)
    (schema,) = registry.subjects()["rows-value"]
    assert schema["name"] == "a_view"
    batch = decoder(ROWS_SQL).decode(
        found_in(values), AvroSchemas("source s", AvroLayout(address(registry))).step()
    )
    assert batch.bad == ()
    assert put(batch) == rows(ROWS)
    more = ROWS.append_column("z", pa.array([1, 2], pa.int32()))
    made(more)
    assert len(registry.subjects()["rows-value"]) == 2
    with pytest.raises(InvalidError, match="refuses the schema: it answers 409"):
        made(ROWS.set_column(0, "id", pa.array(["x", "y"])))


def test_columns_that_avro_does_not_have_are_named() -> None:
    """J7: with the way out, instead of a value that means something else."""
    made = AvroEncoder("out", "v", "s", None, None)
    with pytest.raises(InvalidError, match=r"the column sum\(x\) does not have a valid name"):
        made(pa.table({"sum(x)": [1]}))
    with pytest.raises(InvalidError, match="the column k is a MAP<BIGINT,STRING>, which Avro"):
        made(pa.table({"k": pa.array([[(1, "a")]], pa.map_(pa.int64(), pa.string()))}))


def test_a_given_schema_must_hold_all_columns() -> None:
    """J7: neither a column nor a digit is dropped silently."""
    schema = record({"id": "long", "x": ["null", EVERY_FIELD["amount"]]}, x=None)
    given = (json.dumps(schema),)
    made = AvroEncoder("out", "v", "s", None, given)
    fits = pa.table({"id": [1], "x": pa.array([Decimal("1.50")], pa.decimal128(9, 2))})
    (value,) = made(fits)
    assert value == encoded(schema, {"id": 1, "x": Decimal("1.50")})
    for columns, reason in (
        ({"id": [1]}, "the view has no column x"),
        ({"id": [1], "x": [None], "y": [2]}, "the Avro schema has no field y"),
        (
            {"id": pa.array([None], pa.int64()), "x": fits["x"]},
            "a row does not fit its Avro schema",
        ),
        ({"id": [2**40], "x": pa.array([Decimal("1.505")])}, "a row does not fit its Avro schema"),
    ):
        with pytest.raises(InvalidError, match=reason):
            made(pa.table(columns))
