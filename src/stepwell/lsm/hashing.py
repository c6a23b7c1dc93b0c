"""Vectorized 64-bit hashes of column values, for indexes.

Equal values have equal hashes, whatever array holds them. Callers verify hits by value, so a hash
collision costs time but never returns a wrong row. NULL has no hash: drop NULLs first.

The cache stores hashes, so a change to this file requires a new `cache.VERSION`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from stepwell.lsm.checksum import mix_words

Words = np.ndarray[Any, np.dtype[np.uint64]]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_WORD = 8
_LONG = 32 * _WORD
"""Longer texts are hashed one by one."""


def hash_values(values: pa.Array) -> Words:
    """A hash for each value. The array must not contain NULL."""
    kind = values.type
    if pa.types.is_decimal128(kind):
        words = _fixed(values, 2)
        return _mixed(words[:, 0] + _mixed(words[:, 1]))
    if pa.types.is_boolean(kind):
        return _mixed(np.asarray(values).astype(np.uint64))
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _texts(values, np.int64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(values, np.int32)
    return _mixed(numbers(values).astype(np.int64).view(np.uint64))


def numbers(values: pa.Array) -> np.ndarray[Any, Any]:
    """Values without NULL, as integers in the same order."""
    if pa.types.is_date32(values.type):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    found: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False)
    return found


def _fixed(values: pa.Array, words: int) -> Words:
    """The 64-bit words of fixed-width values, one row per value."""
    data = values.buffers()[1]
    first = values.offset * words
    flat = np.frombuffer(data, np.uint64)[first : first + len(values) * words]
    return flat.reshape(len(values), words)


def _texts(values: pa.Array, offset_type: type[np.signedinteger[Any]]) -> Words:
    """The sum of each text's mixed words, the last one masked, and of its mixed length."""
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], offset_type)[values.offset :][: count + 1]
    starts = offsets[:-1].astype(np.int64)
    lengths = offsets[1:].astype(np.int64) - starts
    hashes = _mixed(lengths.astype(np.uint64))
    data = values.buffers()[2]
    if data is None or not count:
        return hashes
    raw = np.frombuffer(data, np.uint8)
    short = lengths <= _LONG
    # The last words are read from a padded copy, so that no read passes the end of the buffer.
    safe = max(0, len(raw) - _WORD)
    end = np.zeros(2 * _WORD, np.uint8)
    end[: len(raw) - safe] = raw[safe:]
    words = _words_at(raw, safe)
    rest = _words_at(end, _WORD)
    longest = int(lengths[short].max(initial=0))
    rows = np.flatnonzero(short & (lengths > 0))
    for number, begin in enumerate(range(0, longest, _WORD)):
        rows = rows[lengths[rows] > begin]
        at = starts[rows] + begin
        near = at >= safe
        word = np.empty(len(rows), np.uint64)
        word[~near] = words[at[~near]]
        word[near] = rest[at[near] - safe]
        left = lengths[rows] - begin
        cut = left < _WORD
        word[cut] &= (np.uint64(1) << (left[cut].astype(np.uint64) * np.uint64(8))) - np.uint64(1)
        with np.errstate(over="ignore"):
            word += np.uint64(number + 1) * _ODD
            hashes[rows] += _mixed(word)
    for row in np.flatnonzero(~short).tolist():
        text = raw[starts[row] : starts[row] + lengths[row]].tobytes()
        hashes[row] = np.uint64(xxhash.xxh3_64_intdigest(text))
    return _mixed(hashes)


def _words_at(raw: np.ndarray[Any, np.dtype[np.uint8]], count: int) -> Words:
    """The 8-byte word that starts at each of the first `count` bytes."""
    if not count:
        return np.empty(0, np.uint64)
    words: Words = np.ndarray((count,), "<u8", raw, strides=(1,))
    return words


def _mixed(numbers: Words) -> Words:
    mixed = numbers.copy()
    mix_words(mixed)
    return mixed
