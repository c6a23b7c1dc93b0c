"""What the benchmarks share: a directory to work in, timing in turns, statistics, tables.

A machine is never quiet, and a disk is slower in one minute than in the next. So the
compared sides are timed operation by operation, in turns, in a new random order each round: a slow
minute then affects all of them, and the ratio holds even where the absolute figures do not.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

Key = TypeVar("Key")
Action = Callable[[int], None]
"""One operation to be timed; it is given the number of the round."""

_ROOT = Path(__file__).resolve().parent.parent / ".bench"
_RESAMPLES = 400


@contextmanager
def workspace() -> Iterator[Path]:
    """A directory on the disk of the repository (`/tmp` may be another one), removed afterwards.

    One for a whole run, and away from those of earlier runs: ext4 is slow to make a file where
    others were deleted within the last minutes, which would be taken for the disk's own speed.
    """
    _ROOT.mkdir(exist_ok=True)
    _spread(_ROOT)
    ignore = _ROOT / ".gitignore"
    ignore.write_text("*\n")
    try:
        with tempfile.TemporaryDirectory(dir=_ROOT) as name:
            yield Path(name)
    finally:
        # Another run may use the directory; then it removes it.
        if {path.name for path in _ROOT.iterdir()} == {ignore.name}:
            shutil.rmtree(_ROOT, ignore_errors=True)


def _spread(directory: Path) -> None:
    """Ask ext4 to put each directory in here into another part of the disk (`chattr +T`)."""
    flags = array("L", [0])
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Other file systems refuse, and need not be asked.
        with suppress(OSError):
            fcntl.ioctl(fd, _GET_FLAGS, flags)
            flags[0] |= _TOP_DIRECTORY
            fcntl.ioctl(fd, _SET_FLAGS, flags)
    finally:
        os.close(fd)


# Of <linux/fs.h>.
_GET_FLAGS, _SET_FLAGS, _TOP_DIRECTORY = 0x80086601, 0x40086602, 0x00020000


def settle() -> None:
    """Let the disk finish what was left to it, so that the next section does not pay for it."""
    os.sync()


def machine() -> str:
    """What kind of machine this is, without naming it, and how busy it was.

    On a busy machine all wait for their turn on a core, in steps of milliseconds: ratios then come
    out near 1, and say nothing.
    """
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"{os.cpu_count()} cores, {pages / 2**30:.0f} GiB, {_file_system()}, "
        f"{platform.system()} {platform.machine()}, Python {python}; "
        f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()}"
    )


def _file_system() -> str:
    """The kind of file system the repository is on, where the system tells."""
    here = str(_ROOT.parent)
    found = ("", "unknown file system")
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, kind, *_ = line.split()
            inside = here == point or here.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(found[0]):
                found = (point, kind)
    return found[1]


def timed(action: Callable[[], object]) -> float:
    """Seconds that one call took."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def in_turns(
    actions: Mapping[Key, Action],
    rounds: int,
    *,
    warm_up: int = 3,
    seed: int = 1,
    in_a_row: int = 1,
    before: Callable[[], None] = lambda: None,
) -> dict[Key, Times]:
    """Time each action, so often in a row, once a round, in a random order.

    The first rounds are done, not counted; nor is what is done before each action.
    """
    order = list(actions)
    shuffler = random.Random(seed)
    seconds: dict[Key, list[float]] = {name: [] for name in actions}
    for number in range(warm_up + rounds):
        shuffler.shuffle(order)
        for name in order:
            action = actions[name]
            for index in range(in_a_row):
                before()
                begin = time.perf_counter()
                action(number * in_a_row + index)
                end = time.perf_counter()
                if number >= warm_up:
                    seconds[name].append(end - begin)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one action, round by round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seconds)

    @property
    def per_second(self) -> float:
        """Over all rounds, the slow ones included."""
        return 1 / self.mean

    def percentile(self, percent: float) -> float:
        """The nearest rank: a time that was measured, not one between two."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How fast ours is against a baseline: baseline time / our time. 1 is as fast.

    `low` and `high` hold 95 % of what the median's ratio is when the rounds are drawn again, with
    replacement: how much of it is luck.
    """

    by_median: float
    by_mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.by_median:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(baseline: Times, ours: Times) -> Ratio:
    draw = random.Random(1)
    pairs = list(zip(baseline.seconds, ours.seconds, strict=True))
    drawn = []
    for _ in range(_RESAMPLES):
        sample = draw.choices(pairs, k=len(pairs))
        theirs, own = zip(*sample, strict=True)
        drawn.append(statistics.median(theirs) / statistics.median(own))
    drawn.sort()
    return Ratio(
        baseline.median / ours.median,
        baseline.mean / ours.mean,
        drawn[int(_RESAMPLES * 0.025)],
        drawn[int(_RESAMPLES * 0.975)],
    )


@dataclass(slots=True)
class Table:
    """Rows under a title, printed as Markdown or kept as values."""

    title: str
    columns: Sequence[str]
    note: str = ""
    rows: list[tuple[object, ...]] = field(default_factory=list)

    def add(self, *values: object) -> None:
        self.rows.append(values)

    def __str__(self) -> str:
        cells = [tuple(self.columns), *(tuple(_cell(value) for value in row) for row in self.rows)]
        widths = [max(len(row[index]) for row in cells) for index in range(len(self.columns))]
        lines = [
            "| "
            + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
            + " |"
            for row in cells
        ]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        head = [f"**{self.title}**", *([self.note] if self.note else []), ""]
        return "\n".join([*head, *lines, ""])

    def to_json(self) -> dict[str, object]:
        rows = [
            {
                column: value if isinstance(value, (int, float, type(None))) else str(value)
                for column, value in zip(self.columns, row, strict=True)
            }
            for row in self.rows
        ]
        return {"title": self.title, "note": self.note, "rows": rows}


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return (
        f"{value:.3g}" if abs(value) < 1 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    )


def section_parser(about: str, sections: Iterable[str]) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds: seconds, not minutes")
    parser.add_argument("--only", choices=list(sections), help="one section")
    parser.add_argument("--json", action="store_true", help="the tables as JSON")
    return parser


def show_sections(
    arguments: argparse.Namespace,
    sections: Iterable[str],
    make: Callable[[str], list[Table]],
) -> None:
    """Run one section after another, and show what each came to."""
    say(machine())
    tables: list[Table] = []
    for name in [arguments.only] if arguments.only else list(sections):
        say(f"{name} ...")
        made = make(name)
        settle()
        tables += made
        if not arguments.json:
            print_tables(made, as_json=False)
    if arguments.json:
        print_tables(tables, as_json=True)
    else:
        print(machine())


def print_tables(tables: Sequence[Table], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([table.to_json() for table in tables], indent=2))
    else:
        for table in tables:
            print(table, flush=True)


def say(text: str) -> None:
    """Progress, on stderr: stdout is for the tables."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
