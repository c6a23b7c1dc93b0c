"""Records in every change format become operations, or dead letters with a reason."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.connectors import json_lines
from stepwell.connectors.folding import fold_numbered
from stepwell.connectors.formats import Batch, ChangeFormat
from stepwell.connectors.json_lines import decode_json
from stepwell.connectors.shape import Shape, shape_of
from stepwell.lsm.dead_letter import CUT, TEXT_MAX
from tests.connectors.tables import NOTES, ORDERS, rows, table

ORDER = shape_of(table(ORDERS))
NOTE = shape_of(table(NOTES))
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)

PLACE = json_lines._Place(lambda line: f"line {line}", number_puts=False)


@pytest.fixture(params=["fast", "slow"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything must come out the same, whichever code a file is large enough for."""
    monkeypatch.setattr(json_lines, "_FEW_LINES", -1 if request.param == "fast" else 10**9)


def decode(text: str | bytes, shape: Shape = ORDER, changes: str = "rows") -> Batch:
    data = text.encode() if isinstance(text, str) else text
    return decode_json(data, shape, ChangeFormat(changes), name="a.json")


def put(batch: Batch, shape: Shape = ORDER) -> list[tuple[object, ...]]:
    return rows(fold_numbered(shape, batch.operations)[0].put)


def test_rows_are_read_with_their_types() -> None:
    """S2: a JSON number becomes exactly the decimal it shows."""
    batch = decode(
        '{"id":1,"customer":"ada","amount":0.1,"at":"2026-01-02T13:00:00+01:00"}\n'
        '{"ID":2,"amount":"1234567890.12","at":"2026-01-02 12:00:00"}\n'
    )
    assert batch.bad == ()
    assert put(batch) == [
        (1, "ada", Decimal("0.10"), NOON),
        (2, None, Decimal("1234567890.12"), NOON),
    ]


BAD_LINES = [
    ('{"id":1,"customer":"a', "not JSON: Unterminated string"),
    ('{"id":"1"}', "id: '1' is not a valid BIGINT"),
    ('{"id":true}', "id: True is not a valid BIGINT"),
    ('{"id":9223372036854775808}', "too large for BIGINT"),
    ('{"id":null}', "the column id is NULL"),
    ('{"customer":"a"}', "the column id is missing"),
    ('{"id":1,"amount":0.125}', "amount: '0.125' has more than 2 decimals"),
    ('{"id":1,"amount":99999999999}', "amount: '99999999999' is too large for DECIMAL(12,2)"),
    ('{"id":1,"amount":1e999999999}', "too large"),
    ('{"id":1,"amount":NaN}', "NaN is not JSON"),
    ('{"id":1,"at":"2026-02-30T00:00:00Z"}', "is not a valid TIMESTAMP"),
    ('{"id":1,"amount":"٣"}', "amount: '٣' is not a valid DECIMAL(12,2)"),
    ('{"id":1,"at":1767355200}', "at: 1767355200 is not a valid TIMESTAMP"),
    ('{"id":1,"customer":5}', "customer: 5 is not a valid STRING"),
    ('{"id":1,"customer":"\\ud800"}', "not valid Unicode"),
    ('{"id":1,"kustomer":"a"}', "orders has no column kustomer"),
    ('{"id":1} {"id":2}', "not JSON: Extra data"),
    ('{"id":1} null {"id":2}', "not JSON: Extra data"),
    ("null", "not an object"),
    ("[1]", "not an object"),
    ("7", "not an object"),
    ('{"id":' + "[" * 100_000 + "}", "not JSON"),
    ('{"id":' + "9" * 5_000 + "}", "not JSON"),
    (b'{"id":1,"customer":"\xff\xfe"}', "not UTF-8: byte 21 is 0xff"),
    (b'{"id":1,"customer":"' + b"x" * 10_000_000 + b'"}', "longer than 8388608"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_row_is_a_dead_letter_and_the_rest_continues(line: str | bytes, reason: str) -> None:
    """Scenario 90, J13: one bad row in the middle must not stop, shift or change its neighbours."""
    data = line.encode() if isinstance(line, str) else line
    batch = decode(b'{"id":7}\n' + data + b'\n{"id":8}\n')
    assert [row[0] for row in put(batch)] == [7, 8]
    assert batch.rows == 3
    (bad,) = batch.bad
    assert bad.where == "a.json, line 2"
    assert reason in bad.reason
    assert len(bad.text) <= TEXT_MAX
    assert bad.text.endswith(CUT) == (len(data.rstrip(b"\n").decode(errors="replace")) > TEXT_MAX)
    assert bad.text[:10] == data[:10].decode()


def test_unknown_columns_can_be_ignored() -> None:
    """Feeds grow columns; whether that is an error is for the user to say."""
    shape = shape_of(table(ORDERS), ignore_unknown=True)
    for line in ('{"id":1,"more":{"x":[1]}}', '{"id":1.0,"more":{"x":[1]}}'):
        assert put(decode(line, shape), shape) == [(1, None, None, None)]


def test_a_missing_column_takes_its_default_and_null_stays_null() -> None:
    """A default is for what was not said; NULL was said."""
    shape = shape_of(
        table("""CREATE TABLE t (id INT PRIMARY KEY, a STRING DEFAULT 'it''s', b DECIMAL(5,2)
        NOT NULL DEFAULT - 1.5, c DATE DEFAULT DATE '2026-01-02', d INT DEFAULT 1 + 1)""")
    )
    batch = decode('{"id":1,"d":0}\n{"id":2,"a":null,"c":null,"d":0}\n{"id":3}\n', shape)
    assert put(batch, shape) == [
        (1, "it's", Decimal("-1.50"), date(2026, 1, 2), 0),
        (2, None, Decimal("-1.50"), None, 0),
    ]
    assert "its default is not a literal: 1 + 1" in batch.bad[0].reason


NESTED = """CREATE TABLE t (id INT PRIMARY KEY, tags ARRAY<DATE>, m MAP<INT, DECIMAL(4,1)>,
    s STRUCT<a: BINARY, b: INT NOT NULL>, v VARCHAR(3), d DOUBLE, n TIMESTAMP_NTZ, k TINYINT)"""


def test_nested_values_and_rare_types() -> None:
    """S2: a column of any type a file can hold is read, all the way down."""
    shape = shape_of(table(NESTED))
    batch = decode(
        '{"id":1,"tags":["2026-01-02",null],"m":{"7":1.5},"s":{"A":"AP8=","b":2},"v":"äöü",'
        '"d":"NaN","n":"2026-01-02T03:04:05.1234567","k":-128}\n',
        shape,
    )
    (row,) = put(batch, shape)
    assert row[:5] == (
        1,
        [date(2026, 1, 2), None],
        [(7, Decimal("1.5"))],
        {"a": b"\x00\xff", "b": 2},
        "äöü",
    )
    assert str(row[5]) == "nan"
    assert row[6:] == (datetime(2026, 1, 2, 3, 4, 5, 123456), -128)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('"tags":["2026-13-01"]', "tags: '2026-13-01' is not a valid DATE"),
        ('"m":{"x":1}', "m: 'x' is not a valid INT"),
        ('"s":{"b":null}', "s: b is NULL"),
        ('"s":{"b":1,"c":2}', "s: the struct has no field c"),
        ('"s":{"b":1,"a":"*"}', "s: a: '*' is not Base64"),
        ('"v":"long"', "v: 4 characters are too long for VARCHAR(3)"),
        ('"n":"2026-01-02T03:04:05Z"', "has a time zone"),
        ('"k":128', "too large for TINYINT"),
        ('"d":1e400', "too large for DOUBLE"),
    ],
)
def test_what_does_not_fit_inside_a_value_is_named(value: str, reason: str) -> None:
    """J13: a dead letter must show which part is wrong."""
    batch = decode('{"id":1,' + value + "}\n", shape_of(table(NESTED)))
    assert [bad.reason for bad in batch.bad if reason in bad.reason] != []


def test_inserts_and_deletes_happen_in_order() -> None:
    """S2: the last change of a key wins, and a delete needs no more than the key."""
    batch = decode(
        '{"insert":{"id":1,"customer":"a"}}\n{"insert":{"id":2}}\n{"delete":{"id":1}}\n'
        '{"delete":{"id":3}}\n{"insert":{"id":3,"customer":"c"}}\n',
        changes="insert_delete",
    )
    change = fold_numbered(ORDER, batch.operations)[0]
    assert [row[:2] for row in rows(change.put)] == [(2, None), (3, "c")]
    assert rows(change.discard) == [(1,)]
    assert rows(change.delete) == [(3,)]


@pytest.mark.parametrize(
    "line", ['{"insert":{"id":1},"delete":{"id":1}}', "{}", '{"id":1}', '{"insert":null}', "null"]
)
def test_what_is_neither_an_insert_nor_a_delete_is_a_dead_letter(line: str) -> None:
    """J13: an operation nobody can tell must not be guessed."""
    batch = decode(f'{{"insert":{{"id":7}}}}\n{line}\n', changes="insert_delete")
    assert [row[0] for row in put(batch)] == [7]
    assert [bad.where for bad in batch.bad] == ["a.json, line 2"]


def event(operation: str, before: object = None, after: object = None, **more: object) -> object:
    return {"before": before, "after": after, "op": operation, "source": {"lsn": 1}, **more}


@pytest.mark.parametrize("wrapped", [False, True])
def test_debezium_events(wrapped: bool) -> None:
    """S2: created, read, updated and deleted rows, with or without the envelope's envelope."""
    events: list[object] = [
        event("c", None, {"id": 1, "customer": "a"}),
        event("r", None, {"id": 2}),
        event("u", {"id": 1, "customer": "a"}, {"id": 1, "customer": "b"}),
        event("d", {"id": 2}),
        event("u", {"id": 1, "customer": "b"}, {"id": 5, "customer": "moved"}),
        event("u", None, {"id": 6, "customer": "no before"}),
        event("u", {"id": 7}, {"id": 7, "customer": "not there yet"}),
        event("u", {"id": 8}, {"id": 9}),
    ]
    lines = [json.dumps({"payload": e} if wrapped else e) for e in events]
    for extra in ([], ["null", '{"payload":null}', json.dumps(event("m"))]):
        batch = decode("\n".join([*lines, *extra]), changes="debezium")
        assert batch.bad == ()
        change = fold_numbered(ORDER, batch.operations)[0]
        assert [row[:2] for row in rows(change.put)] == [
            (5, "moved"),
            (6, "no before"),
            (7, "not there yet"),
            (9, None),
        ]
        assert sorted(rows(change.discard)) == [(1,), (2,)]
        assert rows(change.delete) == [(8,)]


def test_debezium_numbers_are_read_by_their_schema() -> None:
    """S2: days, microseconds and unscaled digits mean what the event's own schema says."""
    shape = shape_of(
        table(
            "CREATE TABLE t (id INT PRIMARY KEY, d DATE, t TIMESTAMP, u TIMESTAMP, n DECIMAL(9,2))"
        )
    )
    fields = [
        {"field": "d", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "t", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "u", "type": "int64", "name": "io.debezium.time.Timestamp"},
        {
            "field": "n",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
        },
    ]
    row = {
        "id": 1,
        "d": 20455,
        "t": 1767355200000001,
        "u": 1767355200001,
        "n": base64.b64encode((-1234).to_bytes(3, "big", signed=True)).decode(),
    }
    schema = {"fields": [{"field": "after", "fields": fields}]}
    line = json.dumps({"schema": schema, "payload": event("c", None, row)})
    (made,) = put(decode(line, shape, "debezium"), shape)
    assert made == (
        1,
        date(2026, 1, 2),
        NOON.replace(microsecond=1),
        NOON.replace(microsecond=1000),
        Decimal("-12.34"),
    )
    without = json.dumps(event("c", None, {"id": 1, "d": 20455}))
    assert put(decode(without, shape, "debezium"), shape)[0][1] == date(2026, 1, 2)
    unclear = json.dumps(event("c", None, {"id": 1, "t": 1767355200}))
    assert "not a valid timestamp" in decode(unclear, shape, "debezium").bad[0].reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (event("t"), "op 't' is not supported"),
        (event("c"), "op c, but no after"),
        (event("d"), "op d, but no before"),
        (event("u", None, {"word": "a"}), "without a key must contain the row before"),
        ({"after": {"word": "a"}}, "it has no op"),
        (event("c", None, {"wort": "a"}), "notes has no column wort"),
    ],
)
def test_a_debezium_event_that_makes_no_sense_is_a_dead_letter(line: object, reason: str) -> None:
    """J13: half an event must not be applied."""
    good = json.dumps(event("c", None, {"word": "w"}))
    batch = decode(f"{good}\n{json.dumps(line)}\n{good}\n", NOTE, "debezium")
    assert put(batch, NOTE) == [("w", None)] * 2
    assert reason in batch.bad[0].reason


SNIPPETS = st.sampled_from(
    [
        *('{"id":1}', '{"id":2,"customer":"b"}', '{"id":2.0}', '{"ID":3}', '{"id":null}', "{}"),
        *('{"id":4,"amount":1.5}', '{"id":4,"amount":1e1}', '{"id":5,"amount":123456789012}'),
        *('{"id":6,"at":"2026-01-02"}', '{"id":6,"at":"2026-01-02T03:04:05Z"}', "null", "", "  "),
        *('{"id":1}}', '{"id":1} null', '{"insert":{"id":1}}', '{"delete":{"id":1}}', "\r", "["),
        *('{"before":null,"after":{"id":1},"op":"c"}', '{"before":{"id":1},"op":"d"}', '"', "}"),
        *('{"op":"u","before":{"id":1},"after":{"id":2}}', '{"payload":{"op":"m"}}', '{"id":1'),
        *('{"id":7,"customer":"ä"}', '{"id":1,"id":2}', '{"id":8,"customer":{"x":1}}', "\ufeff"),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SNIPPETS, max_size=6), st.sampled_from(ChangeFormat), st.booleans())
def test_the_fast_way_and_the_slow_way_agree(
    lines: list[str], changes: ChangeFormat, ignore: bool
) -> None:
    """What a file says must not depend on which code reads it, or on its neighbours."""
    for declared in (ORDERS, ORDERS.replace("PRIMARY KEY", "")):
        shape = shape_of(table(declared), ignore_unknown=ignore)
        data = "\n".join(lines).encode()
        slow = json_lines._decode_slowly(data, shape, changes, PLACE, 1)
        fast = json_lines._decode_fast(data, shape, changes, PLACE, 1) or slow
        assert rows(fast.operations) == rows(slow.operations)
        assert (fast.rows, fast.bad) == (slow.rows, slow.bad)
