"""Many operations on a table, one after another, as few that come to the same.

The same table, and the same deletes that find nothing. With a key: after the first operation on it
one knows whether the key is there, so only the first depends on what was there before:

    put, delete         discard          a row may have been there before, and need not have been
    delete, put         delete, put      the delete must find its row
    delete, delete      delete, delete   the second finds nothing: it stays, to be rejected
    put, delete, put    put              nothing was missed, and the row there is replaced anyway

A discard never is rejected; a delete after it always is.

Without a key, a delete takes back an equal row that was put before it, if one is left of those. If
none is, it needs a row that was there before all of them, and stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DISCARD, DELETE, PUT = 0, 1, 2
"""In the order in which a change does them."""


@dataclass(frozen=True, slots=True)
class Left:
    """The places of what is left of many operations: in the order in which they happened."""

    puts: pa.Array
    deletes: pa.Array
    discards: pa.Array


def fold_keyed(keys: pa.Array, kinds: pa.Array) -> Left:
    """What is left of operations on keys (any number for each, `DISCARD`, `DELETE` or `PUT`)."""
    order = pc.sort_indices(
        pa.table({"key": keys, "at": pa.array(range(len(keys)), pa.int64())}),
        sort_keys=[("key", "ascending"), ("at", "ascending")],
    )
    keys, kinds = keys.take(order), kinds.take(order)
    no = pa.array([False])
    same = pc.equal(keys[1:], keys[:-1])  # As the operation before.
    first = pc.invert(pa.concat_arrays([no, same]))
    last = pc.invert(pa.concat_arrays([same, no]))
    put, delete = pc.equal(kinds, PUT), pc.equal(kinds, DELETE)

    after_put = pc.and_not(pa.concat_arrays([no, put[:-1]]), first)
    deletes = pc.and_not(delete, after_put)
    # Of each key: where it begins and ends here, how many deletes stay, where the last row went.
    begins, ends = pc.indices_nonzero(first), pc.indices_nonzero(last)
    places = pa.array(range(len(keys)), pa.int64())
    so_far = pc.cumulative_sum(deletes.cast(pa.int64()))
    staying = pc.subtract(so_far.take(ends), so_far.take(begins))
    staying = pc.add(staying, deletes.take(begins).cast(pa.int64()))
    gone = pc.greater(staying, 0)
    discards = pc.and_not(pc.or_(gone, pc.invert(put.take(ends))), delete.take(begins))
    went = pc.cumulative_max(pc.if_else(put, pa.scalar(-1, pa.int64()), places)).take(ends)
    number = pc.subtract(pc.cumulative_sum(first.cast(pa.int64())), 1)
    puts = pc.and_(put, pc.greater(places, went.take(number)))

    def there(which: pa.Array) -> pa.Array:
        return order.filter(which).sort()

    return Left(there(puts), there(deletes), order.take(begins).filter(discards).sort())


def fold_bag(rows: pa.Array, kinds: pa.Array) -> Left:
    """What is left of puts and deletes of rows of a bag (numbers, equal for equal rows only)."""
    numbers = rows.to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    put = kinds.to_numpy(zero_copy_only=False)[order] == PUT
    begins = np.append(True, np.diff(numbers[order]) != 0)
    group = np.cumsum(begins) - 1
    ends = np.flatnonzero(np.append(begins[1:], True))
    # Of each row, after each operation: how many are there more than before all of them.
    change = np.where(put, 1, -1)
    so_far = np.cumsum(change)
    level = so_far - (so_far - change)[begins][group]
    # How few there were at the least, itself included; groups are kept apart by their height.
    height = group * (2 * len(numbers) + 2)
    least = np.minimum(np.minimum.accumulate(np.minimum(level, 0) - height) + height, 0)
    before = np.where(begins, 0, np.append(0, least[:-1]))
    deletes = ~put & (level < before)
    # As many puts as are more than the least; the last ones, since nobody tells them apart.
    staying = (level - least)[ends][group]
    puts_so_far = np.cumsum(put)
    puts = put & (puts_so_far[ends][group] - puts_so_far < staying)

    def there(which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
        return pa.array(np.sort(order[which]), pa.int64())

    return Left(there(puts), there(deletes), pa.array([], pa.int64()))
