"""Many operations on the keys of a table, one after another, as few that come to the same.

The same table, and the same deletes that find nothing. After the first operation on a key it is
known whether the key is there, so only the first depends on what was there before:

    put, delete         discard          a row may have been there before, and need not have been
    delete, put         delete, put      the delete must find its row
    delete, delete      delete, delete   the second finds nothing: it stays, to be rejected
    put, delete, put    put              nothing was missed, and the row there is replaced anyway

A discard never is rejected; a delete after it always is.
"""

from __future__ import annotations

from dataclasses import dataclass

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
