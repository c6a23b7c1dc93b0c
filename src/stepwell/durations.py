"""Durations: the one grammar for user input, the text in messages, and backoff.

Settings, connector options and command options all take a number with a unit. A bare number is
rejected because it could mean seconds or milliseconds.
"""

from __future__ import annotations

import re

from stepwell.env import Env

EXAMPLES = "500ms, 60s, 5m, 2h or 7d"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)


def parse_duration(text: object) -> float | None:
    """The duration in seconds, or None if `text` is not a duration.

    >>> parse_duration("500ms"), parse_duration("7d"), parse_duration("60")
    (0.5, 604800.0, None)
    """
    found = _DURATION.fullmatch(str(text))
    return None if found is None else float(found[1]) * _SECONDS[found[2]]


def unit_hint(text: object) -> str | None:
    """A hint on how to write a bare number as a duration; None if `text` is not a bare number.

    >>> unit_hint(60), unit_hint("soon")
    ('write 60s, if seconds are meant', None)
    """
    bare = re.fullmatch(r"\d+(?:\.\d+)?", str(text), re.ASCII)
    return f"write {text}s, if seconds are meant" if bare else None


def duration_text(seconds: float) -> str:
    """Format a duration for people, rounded.

    >>> duration_text(0.25), duration_text(42.4), duration_text(300), duration_text(5400)
    ('0.2s', '42s', '5m', '1h30m')
    """
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "m"), (rest if not hours else 0, "s")]
    return "".join(f"{number}{unit}" for number, unit in parts if number)


def backoff_s(failures: int, first_s: float, longest_s: float, env: Env) -> float:
    """The time to wait before the next attempt, after `failures` earlier ones.

    The wait doubles with each failure up to `longest_s`. Jitter removes up to half of it, so that
    clients which failed together do not retry together.
    """
    return min(longest_s, first_s * 2.0 ** min(failures, 60)) * (0.5 + env.jitter() / 2)
