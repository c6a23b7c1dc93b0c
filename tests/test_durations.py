"""Durations: one grammar wherever a user writes one, and the waits between attempts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from stepwell.cli.choices import seconds
from stepwell.connectors.options import Options
from stepwell.durations import backoff_s, parse_duration
from stepwell.errors import ConfigError
from stepwell.testing import ManualEnv


def by_option(text: str) -> float:
    return Options("source s", {"settle": text}, Path(".")).seconds("settle", "1s")


def by_command(text: str) -> float:
    return seconds("--timeout", text)


@pytest.mark.parametrize("read", [by_option, by_command])
@pytest.mark.parametrize(
    "text", ["1ms", "0s", "1.5s", "90m", "2h", "7d", "1", "1.5", "", "s", "1 s", "-1s", "1w"]
)
def test_every_reader_agrees_about_a_duration(read: Callable[[str], float], text: str) -> None:
    """The same text must not be a second in one place and a mistake in another."""
    expected = parse_duration(text)
    if expected is None:
        with pytest.raises((ConfigError, typer.BadParameter)):
            read(text)
    else:
        assert read(text) == expected


def test_a_bare_number_is_refused_with_its_remedy() -> None:
    """`1` may mean a second or a millisecond, so the message shows how to say which."""
    with pytest.raises(typer.BadParameter, match="write 60s, if seconds are meant"):
        by_command("60")
    with pytest.raises(ConfigError) as caught:
        by_option("60")
    assert caught.value.hint == "write 60s, if seconds are meant"


def test_backoff_doubles_up_to_its_limit_and_is_spread() -> None:
    """Without a limit an outage would leave a client waiting for hours after its end; without
    jitter all clients would come back at once.
    """
    env = ManualEnv()
    waits = [[backoff_s(failures, 1.0, 8.0, env) for _ in range(50)] for failures in range(6)]
    for drawn, most in zip(waits, [1, 2, 4, 8, 8, 8], strict=True):
        assert all(most / 2 <= wait <= most for wait in drawn)
        assert len(set(drawn)) > 1
    assert backoff_s(10_000, 1.0, 8.0, env) <= 8.0
