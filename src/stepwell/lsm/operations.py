"""Reduce a sequence of operations on a table to an equivalent shorter one.

Equivalent means the same table and the same rejected deletes. With a key, the first operation on a
key settles whether the key exists afterwards, so only the first depends on the previous state:

    put, delete         discard          the key may have existed before, or not
    delete, put         delete, put      the delete must match a row
    delete, delete      delete, delete   the second matches nothing: it stays, to be rejected
    put, delete, put    put              no delete missed, and the put replaces the row anyway

A discard is never rejected; a delete after it always is.

Without a key, a delete cancels an earlier put of an equal row, if one is left. Otherwise it must
match a row that existed before all operations, and stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DISCARD, DELETE, PUT = 0, 1, 2
"""In the order in which a change applies them."""


@dataclass(frozen=True, slots=True)
class Left:
    """Positions of the remaining operations, in their original order."""

    puts: pa.Array
    deletes: pa.Array
    discards: pa.Array


def fold_keyed(keys: pa.Array, kinds: pa.Array) -> Left:
    """The remaining operations (`keys`: any number for each key; `kinds`: DISCARD, DELETE, PUT)."""
    order = pc.sort_indices(
        pa.table({"key": keys, "at": pa.array(range(len(keys)), pa.int64())}),
        sort_keys=[("key", "ascending"), ("at", "ascending")],
    )
    keys, kinds = keys.take(order), kinds.take(order)
    no = pa.array([False])
    same = pc.equal(keys[1:], keys[:-1])  # Same key as the operation before.
    first = pc.invert(pa.concat_arrays([no, same]))
    last = pc.invert(pa.concat_arrays([same, no]))
    put, delete = pc.equal(kinds, PUT), pc.equal(kinds, DELETE)

    after_put = pc.and_not(pa.concat_arrays([no, put[:-1]]), first)
    deletes = pc.and_not(delete, after_put)
    # For each key: its first and last operation here, the number of deletes that stay, and the
    # position of its last removal.
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
    """The remaining puts and deletes of a bag (`rows`: numbers, equal exactly for equal rows)."""
    numbers = rows.to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    put = kinds.to_numpy(zero_copy_only=False)[order] == PUT
    begins = np.append(True, np.diff(numbers[order]) != 0)
    group = np.cumsum(begins) - 1
    ends = np.flatnonzero(np.append(begins[1:], True))
    # For each row, after each operation: the count relative to the initial count.
    change = np.where(put, 1, -1)
    so_far = np.cumsum(change)
    level = so_far - (so_far - change)[begins][group]
    # The running minimum, this operation included. The height offset keeps the groups apart.
    height = group * (2 * len(numbers) + 2)
    least = np.minimum(np.minimum.accumulate(np.minimum(level, 0) - height) + height, 0)
    before = np.where(begins, 0, np.append(0, least[:-1]))
    deletes = ~put & (level < before)
    # Keep as many puts as the final count exceeds the minimum: the last ones, as rows are equal.
    staying = (level - least)[ends][group]
    puts_so_far = np.cumsum(put)
    puts = put & (puts_so_far[ends][group] - puts_so_far < staying)

    def there(which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
        return pa.array(np.sort(order[which]), pa.int64())

    return Left(there(puts), there(deletes), pa.array([], pa.int64()))
