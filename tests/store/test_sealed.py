"""Sealed JSON: damage is found, formats are told apart, fields are read by type."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import CorruptError, InvalidError
from stepwell.store.sealed import Fields, seal, unseal

FORMAT = "stepwell-test/1"
WHERE = "memory://test/thing.json"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text().filter(lambda k: k not in ("format", "checksum")), values))
def test_what_was_sealed_comes_back(fields: dict[str, object]) -> None:
    """K2: any JSON value survives, and any JSON reader can read the object."""
    data = seal(FORMAT, fields)
    read = unseal(data, format=FORMAT, object=WHERE)
    assert {name: read.any(name) for name in fields} == fields
    assert json.loads(data)["format"] == FORMAT


def assert_refused(data: bytes) -> None:
    with pytest.raises((CorruptError, InvalidError)) as refused:
        unseal(data, format=FORMAT, object=WHERE)
    assert WHERE in str(refused.value)


def test_every_flipped_byte_is_found() -> None:
    """K2: no byte of a sealed object can change unnoticed."""
    data = seal(FORMAT, {"a": 1, "b": [None, "ü"]})
    for index in range(len(data)):
        for mask in (0x01, 0x20, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[index] ^= mask
            assert_refused(bytes(damaged))


def test_every_cut_is_found() -> None:
    """K2: an object cut off anywhere, or with bytes added, is refused by name."""
    data = seal(FORMAT, {"a": 1})
    for length in range(len(data)):
        assert_refused(data[:length])
    assert_refused(data + b"\n")
    assert_refused(b" " + data)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"null", b"[]", b'{"checksum":"', b'{"checksum":null}', b"\xff\xfe"]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    """K2: nothing but a sealed object is taken for one."""
    assert_refused(data)


def test_deeply_nested_json_under_a_right_seal_is_an_error_not_a_crash() -> None:
    """K2: not even the parser's own limits end in a traceback."""
    from stepwell.model import checksum

    body = b'","format":"stepwell-test/1","a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    assert_refused(b'{"checksum":"' + checksum([body]).encode() + body)


def test_another_version_is_refused_with_both_versions_named() -> None:
    """J12: a later or earlier format is told apart from damage, in both directions."""
    for found, advice in (("stepwell-test/2", "upgrade"), ("stepwell-test/0", "wrote it")):
        with pytest.raises(InvalidError) as refused:
            unseal(seal(found, {}), format=FORMAT, object=WHERE)
        assert f"format {found[-1]}" in str(refused.value)
        assert "reads format 1" in str(refused.value)
        assert advice in str(refused.value)


def test_another_kind_of_object_is_corrupt() -> None:
    """K2: two objects swapped by a person are noticed by their kind."""
    with pytest.raises(CorruptError) as refused:
        unseal(seal("stepwell-other/1", {}), format=FORMAT, object=WHERE)
    assert refused.value.field == "format"


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (Fields.text, 1),
        (Fields.flag, 1),
        (Fields.number, True),
        (Fields.number, "1"),
        (Fields.number, -1),
        (Fields.number, 1.0),
        (Fields.time, "yesterday"),
        (Fields.time, 5),
        (Fields.id, "not-a-ulid"),
        (Fields.checksum, "0"),
        (Fields.child, []),
        (Fields.children, {}),
        (Fields.children, [1]),
    ],
)
def test_a_field_of_the_wrong_type_is_named(read: object, value: object) -> None:
    """K2: wrong types name object and field, also deep inside."""
    fields = Fields({"outer": {"inner": value}}, WHERE).child("outer")
    with pytest.raises(CorruptError) as refused:
        read(fields, "inner")  # type: ignore[operator]
    assert refused.value.object == WHERE
    assert (refused.value.field or "").startswith("outer.inner")
    with pytest.raises(CorruptError) as refused:
        read(fields, "absent")  # type: ignore[operator]
    assert "missing" in str(refused.value)
