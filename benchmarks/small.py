"""What does a transaction of few rows cost, and where does its time go?

    .venv/bin/python benchmarks/small.py [--scale 0.1] [--changes 1,100,0.1%] [--profile]

The 22 views of TPC-H in this process, without a journal and without Spark: a transaction that asks
Spark for anything ends with an error. As many orders come as go, with their lines. Times are CPU
time of this process, which other work on the machine disturbs less than the clock; those of single
views are by the clock. The data is made once and kept in `.bench-data/`.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import _changes
import _local
import _tpch
from _measure import Table, say, workspace
from rivals import DATA, orders_of
from stepwell.lsm.change import Change

WARM_UP = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.1, help="TPC-H scale factor")
    parser.add_argument("--changes", default="1,100,0.1%", help="how many orders")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", action="store_true", help="the functions that take longest")
    arguments = parser.parse_args()
    files = _tpch.generate(DATA, arguments.scale)
    changes = _tpch.Changes(_tpch.load(DATA, arguments.scale))
    table = Table(
        f"TPC-H at scale {arguments.scale:g}: CPU milliseconds of a transaction, 22 views",
        ("orders in and out", "median", "least", "rows found", "slowest views, ms by the clock"),
    )
    with workspace() as folder:
        begin = time.process_time()
        views = _local.open_views(files, Path(folder))
        say(f"  opened in {time.process_time() - begin:.1f} s of CPU time")
        for size in arguments.changes.split(","):
            count = orders_of(size, changes.count("orders"))
            drawn = [_drawn(changes, count) for _ in range(WARM_UP + arguments.rounds)]
            for change in drawn[:WARM_UP]:
                views.apply(change)
            seconds, by_view = [], dict[str, list[float]]()
            profile = cProfile.Profile(time.process_time)
            for change in drawn[WARM_UP:]:
                begin = time.process_time()
                with profile if arguments.profile else nullcontext():
                    executed = views.apply(change)
                seconds.append(1000 * (time.process_time() - begin))
                for view, took in executed.seconds_of.items():
                    by_view.setdefault(view, []).append(1000 * took)
            slowest = sorted(((statistics.median(t), view) for view, t in by_view.items()))[-5:]
            shown = ", ".join(f"{view} {took:.1f}" for took, view in reversed(slowest))
            rows = sum(executed.rows_of.values())
            table.add(size, statistics.median(seconds), min(seconds), rows, shown)
            if arguments.profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    print(table)


def _drawn(changes: _tpch.Changes, count: int) -> dict[str, Change]:
    share = count / changes.count("orders")
    # First those that go, so that no order comes and goes at once.
    gone = changes.delete_orders(share)
    both = _changes.together(changes.new_orders(share), gone)
    return {table: Change(c.put, c.delete) for table, c in both.items()}


if __name__ == "__main__":
    main()
