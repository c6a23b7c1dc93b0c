"""What does a transaction of few rows cost, and where does its time go?

    .venv/bin/python benchmarks/small.py [--scale 0.1] [--changes 1,100,0.1%] [--columns]
                                         [--duckdb] [--profile]

The 22 views of TPC-H in this process, without a journal and without Spark: a transaction that asks
Spark for anything ends with an error. As many orders come as go, with their lines. Times are CPU
time of this process, which other work on the machine disturbs less than the clock; those of single
views are by the clock. The data is made once and kept in `.bench-data/`.

`--columns` runs no plan row by row, for comparison. With `--duckdb`, DuckDB recomputes the views
that the change touches in turns with us, on the same change: how many times as long it takes, as a
geometric mean over these views (line 1), and with the difference that a sink needs (line 2).
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import _changes
import _local
import _rivals
import _tpch
from _measure import Table, say, workspace
from rivals import DATA, orders_of
from stepwell.execution.limits import QueryLimits
from stepwell.lsm.change import Change

WARM_UP = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.1, help="TPC-H scale factor")
    parser.add_argument("--changes", default="1,100,0.1%", help="how many orders")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--columns", action="store_true", help="run no plan row by row")
    parser.add_argument("--duckdb", action="store_true", help="in turns with DuckDB")
    parser.add_argument("--profile", action="store_true", help="the functions that take longest")
    arguments = parser.parse_args()
    files = _tpch.generate(DATA, arguments.scale)
    changes = _tpch.Changes(_tpch.load(DATA, arguments.scale))
    table = Table(
        f"TPC-H at scale {arguments.scale:g}: CPU milliseconds of a transaction, 22 views",
        (
            "orders in and out",
            "median",
            "least",
            "rows found",
            *(("DuckDB line 1, times", "line 2, times") if arguments.duckdb else ()),
            "slowest views, ms by the clock",
        ),
    )
    limits = QueryLimits(row_changes_max=-1) if arguments.columns else None
    with workspace() as folder:
        begin = time.process_time()
        views = _local.open_views(files, Path(folder), limits)
        say(f"  opened in {time.process_time() - begin:.1f} s of CPU time")
        rival = None
        if arguments.duckdb:
            rival = _rivals.DuckDB(files, Path(folder) / "duckdb")
            rival.open()
        for size in arguments.changes.split(","):
            count = orders_of(size, changes.count("orders"))
            drawn = [_drawn(changes, count) for _ in range(WARM_UP + arguments.rounds)]
            for change in drawn[:WARM_UP]:
                views.apply(change)
                _recomputed(rival, change, Path(folder))
            seconds, by_view = [], dict[str, list[float]]()
            theirs: list[_rivals.Applied] = []
            profile = cProfile.Profile(time.process_time)
            for change in drawn[WARM_UP:]:
                begin = time.process_time()
                with profile if arguments.profile else nullcontext():
                    executed = views.apply(change)
                seconds.append(1000 * (time.process_time() - begin))
                for view, took in executed.seconds_of.items():
                    by_view.setdefault(view, []).append(1000 * took)
                theirs += _recomputed(rival, change, Path(folder))
            slowest = sorted(((statistics.median(t), view) for view, t in by_view.items()))[-5:]
            shown = ", ".join(f"{view} {took:.1f}" for took, view in reversed(slowest))
            rows = sum(executed.rows_of.values())
            times = _times_as_long(by_view, theirs)
            table.add(size, statistics.median(seconds), min(seconds), rows, *times, shown)
            if arguments.profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    print(table)


def _recomputed(
    rival: _rivals.DuckDB | None, change: dict[str, Change], folder: Path
) -> list[_rivals.Applied]:
    """The same change, by the rival if there is one."""
    if rival is None:
        return []
    with TemporaryDirectory(dir=folder) as name:
        return [rival.apply(_rivals.write_change(Path(name) / "change", change))]


def _times_as_long(
    ours: Mapping[str, Sequence[float]], theirs: Sequence[_rivals.Applied]
) -> Sequence[float]:
    """The rival's time by ours, without the difference and with it: geometric means."""
    if not theirs:
        return ()
    ratios: tuple[list[float], list[float]] = ([], [])
    for view in _rivals.TOUCHED:
        mine = statistics.median(ours[view]) / 1000
        ratios[0].append(statistics.median(applied.views[view] for applied in theirs) / mine)
        both = statistics.median(applied.with_difference[view] for applied in theirs)
        ratios[1].append(both / mine)
    return [statistics.geometric_mean(each) for each in ratios]


def _drawn(changes: _tpch.Changes, count: int) -> dict[str, Change]:
    share = count / changes.count("orders")
    # First those that go, so that no order comes and goes at once.
    gone = changes.delete_orders(share)
    both = _changes.together(changes.new_orders(share), gone)
    return {table: Change(c.put, c.delete) for table, c in both.items()}


if __name__ == "__main__":
    main()
