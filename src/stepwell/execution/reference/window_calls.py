"""Spark SQL window calls on rows: compiles a call with its OVER clause to a function of rows.

Rows that the ORDER BY does not distinguish keep the order in which they are given. So a caller that
passes them in a fixed order gets a fixed answer where Spark's is open. ROWS frames may have any
bounds. RANGE frames support only UNBOUNDED and CURRENT ROW, which includes the peers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from sqlglot import exp

from stepwell.execution.reference.aggregates import FOLDS, Arguments, Call, Fold, read
from stepwell.execution.reference.row_order import order_of
from stepwell.execution.reference.scalar import Row, code, constant, written
from stepwell.execution.reference.spark_values import Value, clean, unknown
from stepwell.plan.expressions import Expr


@dataclass(frozen=True, slots=True)
class Partition:
    """The sorted rows of a partition; `places` numbers the groups of peers from 0."""

    rows: Sequence[Row]
    places: Sequence[int]

    @property
    def size(self) -> int:
        return len(self.rows)

    def first_peer(self, index: int) -> int:
        return bisect_left(self.places, self.places[index])

    def after_peers(self, index: int) -> int:
        return bisect_right(self.places, self.places[index])


Compute: TypeAlias = Callable[[Partition], "list[Value]"]
Bound: TypeAlias = Callable[[Partition, int], int]


@lru_cache(maxsize=4096)
def window(expr: Expr) -> Callable[[Sequence[Row]], list[Value]]:
    """A value for each of the rows, in the order of the rows.

    >>> from stepwell.plan.expressions import SortKey, row_number
    >>> window(row_number([SortKey("_c1", descending=True)]))([{"_c1": 1}, {"_c1": 2}])
    [2, 1]
    """
    node = expr.tree
    if not isinstance(node, exp.Window) or node.args.get("alias") or node.args.get("first"):
        raise unknown(f"the window call {expr.sql}")
    partition_by = [code(key) for key in node.args.get("partition_by") or ()]
    clause = node.args.get("order")
    order = order_of(clause.expressions if clause else ())
    compute = _computation(read(node.this), node.args.get("spec"), ordered=clause is not None)

    def run(rows: Sequence[Row]) -> list[Value]:
        partitions: dict[Arguments, list[int]] = {}
        for index, row in enumerate(rows):
            partitions.setdefault(tuple(key(row) for key in partition_by), []).append(index)
        values: list[Value] = [None] * len(rows)
        for members in partitions.values():
            arranged = order.arrange(members, rows.__getitem__)
            partition = _partition([rows[index] for index in arranged], order.place)
            for index, value in zip(arranged, compute(partition), strict=True):
                values[index] = clean(value)
        return values

    return run


def _partition(rows: Sequence[Row], place: Callable[[Row], Any]) -> Partition:
    places: list[int] = []
    last = None
    for row in rows:
        here = place(row)
        places.append(places[-1] + (here != last) if places else 0)
        last = here
    return Partition(rows, places)


def _computation(call: Call, frame: exp.Expr | None, *, ordered: bool) -> Compute:
    if call.name in POSITIONS:
        return POSITIONS[call.name](call)
    start, end = _bounds(frame, ordered)
    if call.name in IN_ORDER:
        pick = IN_ORDER[call.name](call)
    elif call.name in FOLDS:
        pick = FOLDS[call.name]
    else:
        raise unknown(f"the window function {call.text}")

    def compute(partition: Partition) -> list[Value]:
        spans = [(start(partition, i), end(partition, i)) for i in range(partition.size)]
        return [pick(call.arguments(partition.rows[max(0, a) : max(0, b)])) for a, b in spans]

    return compute


# Frames: from the row at the first bound (inclusive) to the row at the second (exclusive)


def _bounds(frame: exp.Expr | None, ordered: bool) -> tuple[Bound, Bound]:
    if frame is None:
        return _start, Partition.after_peers if ordered else _end
    if frame.args.get("exclude"):
        raise unknown(written(frame))
    end = frame.args.get("end") or "CURRENT ROW"
    return (
        _bound(frame, frame.args["start"], frame.args.get("start_side"), past=0),
        _bound(frame, end, frame.args.get("end_side"), past=1),
    )


def _bound(frame: exp.Expr, at: Any, side: str | None, *, past: int) -> Bound:
    """One bound of a frame. `past` is 1 for the end, which lies after the row it names."""
    if at == "UNBOUNDED":
        return _start if side == "PRECEDING" else _end
    rows = frame.args["kind"] == "ROWS"
    if at == "CURRENT ROW" and rows:
        return lambda partition, index: index + past
    if at == "CURRENT ROW" and frame.args["kind"] == "RANGE":
        return Partition.after_peers if past else Partition.first_peer
    if not rows or isinstance(at, str):
        raise unknown(f"the frame {written(frame)}")
    distance = constant(at) * (-1 if side == "PRECEDING" else 1)
    return lambda partition, index: index + distance + past


def _start(partition: Partition, index: int) -> int:
    return 0


def _end(partition: Partition, index: int) -> int:
    return partition.size


# Calls that depend on the order within the frame, unlike the aggregate of the same name


def _nth(call: Call, place: Callable[[Sequence[Value]], Value]) -> Fold:
    """A value by its position in the frame."""

    def pick(frame: list[Arguments]) -> Value:
        values = [given[0] for given in frame]
        return place([v for v in values if v is not None] if call.ignore_nulls else values)

    return pick


def _first(call: Call) -> Fold:
    return _nth(call, lambda values: values[0] if values else None)


def _last(call: Call) -> Fold:
    return _nth(call, lambda values: values[-1] if values else None)


def _nth_value(call: Call) -> Fold:
    wanted = constant(call.operands[1])
    return _nth(call, lambda values: values[wanted - 1] if wanted <= len(values) else None)


def _collected(call: Call) -> Fold:
    return lambda frame: tuple(given[0] for given in frame if given[0] is not None)


# Calls that depend on the position of a row in its partition


def _each(value: Callable[[Partition, int], Value]) -> Callable[[Call], Compute]:
    """A value that depends only on the position of the row."""
    return lambda call: lambda partition: [value(partition, i) for i in range(partition.size)]


def _percent_rank(partition: Partition, index: int) -> float:
    return partition.first_peer(index) / (partition.size - 1) if partition.size > 1 else 0.0


def _ntile(call: Call) -> Compute:
    """NTILE: if the rows do not divide evenly, the first buckets get one row more."""
    count = constant(call.operands[0])

    def compute(partition: Partition) -> list[Value]:
        size, longer = divmod(partition.size, count)
        sizes = [size + (bucket < longer) for bucket in range(count)]
        return [bucket + 1 for bucket, rows in enumerate(sizes) for _ in range(rows)]

    return compute


def _lag(call: Call) -> Compute:
    return _shifted(call, -1)


def _lead(call: Call) -> Compute:
    return _shifted(call, 1)


def _shifted(call: Call, direction: int) -> Compute:
    """LAG and LEAD: the value some rows away, or else the default, evaluated on the row itself."""
    run, *options = call.codes
    distance = direction * (constant(call.operands[1]) if options else 1)
    default = options[1] if len(options) > 1 else code(exp.Null())

    def compute(partition: Partition) -> list[Value]:
        values = [run(row) for row in partition.rows]
        found = []
        for index, row in enumerate(partition.rows):
            way = _way(values, index, distance, call.ignore_nulls)
            found.append(way[abs(distance)] if abs(distance) < len(way) else default(row))
        return found

    return compute


def _way(values: list[Value], index: int, distance: int, ignore_nulls: bool) -> list[Value]:
    """The values from a row on in the direction of `distance`, the row itself first."""
    ahead = values[index + 1 :] if distance > 0 else values[:index][::-1]
    kept = [value for value in ahead if value is not None] if ignore_nulls else ahead
    return [values[index], *kept]


POSITIONS: dict[str, Callable[[Call], Compute]] = {
    "rownumber": _each(lambda partition, index: index + 1),
    "rank": _each(lambda partition, index: partition.first_peer(index) + 1),
    "denserank": _each(lambda partition, index: partition.places[index] + 1),
    "percentrank": _each(_percent_rank),
    "cumedist": _each(lambda partition, index: partition.after_peers(index) / partition.size),
    "ntile": _ntile,
    "lag": _lag,
    "lead": _lead,
}

IN_ORDER: dict[str, Callable[[Call], Fold]] = {
    "first": _first,
    "firstvalue": _first,
    "anyvalue": _first,
    "last": _last,
    "lastvalue": _last,
    "nthvalue": _nth_value,
    "arrayagg": _collected,
}
