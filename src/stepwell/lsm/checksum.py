"""A checksum of rows that is independent of row order, chunking and type width.

    value     64 bits: numbers as they are, text by XXH3-64, nested values from their parts
    row       two 64-bit lanes; each adds up the values, each mixed with its column's name
    rows      each lane adds up its rows, modulo 2^64; written as 32 hex digits

Checksums are sums, so equal rows do not cancel out (J5), and the checksum of a transaction is the
sum of the checksums of its steps. A row is mixed before it is added, so two rows that swap a value
change the sum.

Values that Spark calls equal have equal checksums (`values`). In addition, an INT equals a BIGINT,
a NULL column counts as a missing column, and column names are case-insensitive. Two lanes make an
accidental collision unlikely; they do not protect against forgery. The computation goes column by
column, over blocks of rows that fit into the processor's cache. Journals store checksums, so the
definition never changes: tests with known answers pin it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from stepwell.errors import InvalidError
from stepwell.lsm.values import one_form
from stepwell.model import NO_CHECKSUM, Checksum

_LANE = 1 << 64
_ODD = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LANES = (0x243F6A8885A308D3, 0x13198A2E03707344)
_U64 = pa.uint64()
_FEW = 20
_BLOCK = 8_192
_SAMPLE = 1_024
"""Number of texts that tell whether a column repeats them."""

Words = NDArray[np.uint64]


def checksum_rows(table: pa.Table, what: str = "put") -> Checksum:
    """The checksum of a table's rows. `what` is part of it: a put differs from a delete."""
    if not table.num_rows:
        return NO_CHECKSUM
    return _text([pc.sum(lane).as_py() for lane in row_hashes(table, what)])


def row_hashes(table: pa.Table, what: str = "put") -> list[pa.Array]:
    """Two 64-bit lanes for each row."""
    names = [name.lower() for name in table.column_names]
    columns = [_values(_whole(column)) for column in table.columns]
    if table.num_rows <= _FEW:
        return _few_row_hashes(names, columns, table.num_rows, what)
    words = [_words(column) for column in columns]
    hashes = np.empty((len(_LANES), table.num_rows), np.uint64)
    for place, lane in enumerate(_LANES):
        salts = [np.uint64(_salt(name, lane)) for name in names]
        first = np.uint64(_salt(what, lane))
        for begin in range(0, table.num_rows, _BLOCK):
            block = slice(begin, begin + _BLOCK)
            total = hashes[place, block]
            total[:] = first
            for salt, (values, is_null) in zip(salts, words, strict=True):
                spread = values[block] + salt
                mix_words(spread)
                if is_null is not None:
                    spread[is_null[block]] = 0
                total += spread
            mix_words(total)
    return [pa.array(lane) for lane in hashes]


def _words(values: pa.Array) -> tuple[Words, NDArray[np.bool_] | None]:
    """The values with NULL replaced by an arbitrary number, and the NULL mask."""
    if not values.null_count:
        return values.to_numpy(), None
    return values.fill_null(0).to_numpy(), values.is_null().to_numpy(zero_copy_only=False)


def mix_words(numbers: Words) -> None:
    """Spread every bit of each number over all of its bits, in place."""
    numbers *= np.uint64(_ODD)
    shifted = np.empty_like(numbers)
    for shift, factor in _MIX:
        np.right_shift(numbers, np.uint64(shift), out=shifted)
        numbers ^= shifted
        numbers *= np.uint64(factor)
    np.right_shift(numbers, np.uint64(31), out=shifted)
    numbers ^= shifted


def _few_row_hashes(
    names: list[str], columns: list[pa.Array], rows: int, what: str
) -> list[pa.Array]:
    """Like `row_hashes`, one number at a time: faster than Arrow for a few rows."""
    listed = [column.to_pylist() for column in columns]
    lanes = []
    for lane in _LANES:
        salts = [_salt(name, lane) for name in names]
        first = _salt(what, lane)
        lanes.append(
            [
                _mix(
                    first
                    + sum(
                        [
                            _mix(values[row] + salt)
                            for values, salt in zip(listed, salts, strict=True)
                            if values[row] is not None
                        ]
                    )
                )
                for row in range(rows)
            ]
        )
    return [pa.array(lane, _U64) for lane in lanes]


def _mix(number: int) -> int:
    """Spread every bit of a number over all of its bits."""
    number = number * _ODD % _LANE
    for shift, factor in _MIX:
        number = (number ^ (number >> shift)) * factor % _LANE
    return number ^ (number >> 31)


def add_checksums(checksums: Iterable[Checksum]) -> Checksum:
    """The checksum of the union of the rows."""
    high = low = 0
    for item in checksums:
        high += int(item[:16], 16)
        low += int(item[16:], 16)
    return _text([high, low])


def _text(lanes: list[int]) -> Checksum:
    return Checksum("".join(f"{lane % _LANE:016x}" for lane in lanes))


def _salted(values: pa.Array, salt: int) -> pa.Array:
    """Values mixed with a salt; NULL becomes 0, whatever the salt."""
    return _mixed(pc.add(values, pa.scalar(salt, _U64))).fill_null(0)


@lru_cache(maxsize=10_000)
def _salt(name: str, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(name.encode(), seed)


def _mixed(values: pa.Array) -> pa.Array:
    """`_mix` of each value; NULL stays NULL."""
    words, is_null = _words(values)
    mixed = words.copy()
    for begin in range(0, len(mixed), _BLOCK):
        mix_words(mixed[begin : begin + _BLOCK])
    return pa.array(mixed, mask=is_null)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def _values(array: pa.Array) -> pa.Array:
    """64 bits for each value; NULL stays NULL."""
    for holds, make in _KINDS:
        if holds(array.type):
            return make(array)
    raise InvalidError(f"rows with a column of type {array.type} are not supported")


def _integers(array: pa.Array) -> pa.Array:
    if array.type in (pa.int64(), _U64):
        return array.view(_U64)
    return array.cast(pa.int64()).view(_U64)


def _floats(array: pa.Array) -> pa.Array:
    if array.type != pa.float64():
        array = array.cast(pa.float32()).cast(pa.float64())
    return one_form(array).view(_U64)


def _decimals(array: pa.Array) -> pa.Array:
    """The unscaled digits: the scale belongs to the column type."""
    if not pa.types.is_decimal128(array.type):
        if pa.types.is_decimal256(array.type):
            return _texts(array.cast(pa.string()))
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    count, offset = len(array), array.offset
    _, digits = array.buffers()
    words = np.frombuffer(digits, np.uint64, 2 * count, 16 * offset)
    low, high = words[::2], words[1::2]
    # For numbers that fit into 64 bits the high word is only the sign and adds nothing.
    is_wide = high != (low.view(np.int64) >> 63).view(np.uint64)
    values = pa.array(np.ascontiguousarray(low))
    if is_wide.any():
        both = pc.add(_mixed(pa.array(np.ascontiguousarray(high))), _mixed(values))
        values = pc.if_else(pa.array(is_wide), both, values)
    if array.null_count:
        values = pc.if_else(array.is_valid(), values, pa.scalar(None, _U64))
    return values


def _moments(array: pa.Array) -> pa.Array:
    """Seconds, milliseconds and microseconds hash alike; nanoseconds hash differently."""
    unit = array.type.unit
    numbers = _plain(array)
    if unit == "ns":
        return _mixed(numbers.view(_U64))
    return pc.multiply(numbers, pa.scalar(_PER_US[unit], pa.int64())).view(_U64)


_PER_US = {"s": 1_000_000, "ms": 1_000, "us": 1}


def _plain(array: pa.Array) -> pa.Array:
    if pa.types.is_time32(array.type):
        return array.view(pa.int32()).cast(pa.int64())
    return array.view(pa.int64())


def _dates(array: pa.Array) -> pa.Array:
    return array.cast(pa.date32()).view(pa.int32()).cast(pa.int64()).view(_U64)


def _texts(array: pa.Array) -> pa.Array:
    if not pa.types.is_large_binary(array.type):
        array = array.cast(pa.large_string() if _is_text(array.type) else pa.large_binary())
        array = array.cast(pa.large_binary())
    if len(array) > _SAMPLE and _repeats(array.slice(0, _SAMPLE)):
        encoded = array.dictionary_encode()
        return _hashed(encoded.dictionary).take(encoded.indices)
    return _hashed(array)


def _repeats(texts: pa.Array) -> bool:
    """Whether texts occur often enough to hash each only once."""
    return bool(2 * pc.count_distinct(texts).as_py() < len(texts))


def _hashed(texts: pa.Array) -> pa.Array:
    hashed = [None if text is None else _hash(text) for text in texts.to_pylist()]
    return pa.array(hashed, _U64)


_hash = xxhash.xxh3_64_intdigest


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    )


def _structs(array: pa.Array) -> pa.Array:
    total = pa.repeat(pa.scalar(1, _U64), len(array))
    for index in range(array.type.num_fields):
        name = array.type.field(index).name.lower()
        part = _values(pc.struct_field(array, index))
        total = pc.add(total, _salted(part, _salt(name, 0)))
    return pc.if_else(array.is_valid(), _mixed(total), pa.scalar(None, _U64))


def _lists(array: pa.Array, ordered: bool = True) -> pa.Array:
    """The sum of the elements, each mixed with its position in the list, plus the length."""
    lengths = pc.list_value_length(array).cast(_U64).fill_null(0)
    parents = pc.list_parent_indices(array)
    elements = pc.add(_values(array.flatten()).fill_null(0), pa.scalar(1, _U64))
    if ordered:
        starts = pc.subtract(pc.cumulative_sum(lengths), lengths).take(parents)
        places = pc.subtract(pa.array(range(len(elements)), _U64), starts)
        elements = pc.add(elements, _mixed(pc.add(places, pa.scalar(1, _U64))))
    table = pa.table({"list": parents.cast(pa.int64()), "value": _mixed(elements)})
    summed = table.group_by("list").aggregate([("value", "sum")])
    places = pc.index_in(
        pa.array(range(len(array)), pa.int64()), summed.column("list").combine_chunks()
    )
    totals = summed.column("value_sum").combine_chunks().take(places).fill_null(0)
    return pc.if_else(
        array.is_valid(), _mixed(pc.add(totals, _mixed(lengths))), pa.scalar(None, _U64)
    )


def _fixed_lists(array: pa.Array) -> pa.Array:
    return _lists(array.cast(pa.large_list(array.type.value_type)))


def _maps(array: pa.Array) -> pa.Array:
    """A map, hashed as a list of pairs whose order does not matter."""
    # Rebuilt as a list, because some Arrow functions crash the process when given a map.
    pairs = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    validity = array.is_valid()
    offsets = pc.if_else(validity, array.offsets[:-1], pa.scalar(None, pa.int32()))
    ends = pa.concat_arrays([offsets, array.offsets[-1:]])
    return _lists(pa.ListArray.from_arrays(ends, pairs), ordered=False)


_KINDS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (pa.types.is_integer, _integers),
    (_is_text, _texts),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (lambda t: pa.types.is_timestamp(t) or pa.types.is_duration(t), _moments),
    (pa.types.is_time, _moments),
    (pa.types.is_date, _dates),
    (pa.types.is_boolean, lambda array: array.cast(pa.int64()).view(_U64)),
    (pa.types.is_null, lambda array: pa.nulls(len(array), _U64)),
    (pa.types.is_binary, _texts),
    (pa.types.is_large_binary, _texts),
    (pa.types.is_fixed_size_binary, _texts),
    (pa.types.is_binary_view, _texts),
    (pa.types.is_dictionary, lambda array: _values(array.dictionary_decode())),
    (pa.types.is_struct, _structs),
    (pa.types.is_map, _maps),
    (pa.types.is_list, _lists),
    (pa.types.is_large_list, _lists),
    (pa.types.is_fixed_size_list, _fixed_lists),
)
