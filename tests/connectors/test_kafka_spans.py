"""Where a range of offsets ends, told from what a consumer reports. No broker."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError

from stepwell.connectors.kafka import Address, Cluster, Fetched, Span

KEY = ("t", 0)


@dataclass(frozen=True)
class Reported:
    """A message of the client library, which a broker decides on: an end, or a record."""

    at: int
    is_end: bool = False

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self.is_end else None

    def topic(self) -> str:
        return KEY[0]

    def partition(self) -> int:
        return KEY[1]

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> None: ...

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> None: ...


def read(*reported: Reported, cluster: Cluster | None = None) -> tuple[Fetched, bool]:
    """What was read of the offsets 3 to 6, and whether that is all of them."""
    cluster = cluster or Cluster("source s", Address("localhost:1"))
    made, open = {KEY: Fetched(Span(*KEY, 3, 7), next=3)}, {KEY}
    cluster._sort(reported, made, open, False)
    return made[KEY], not open


def test_an_end_before_the_end_of_a_range_is_not_its_end() -> None:
    """Records would be skipped: a new leader may not know yet how far its followers are."""
    cluster = Cluster("source s", Address("localhost:1"))
    reported = (Reported(3), Reported(4), Reported(5, is_end=True))
    fetched, complete = read(*reported, cluster=cluster)
    assert (fetched.next, complete) == (5, False)
    assert "t [0] ends at 5, but had 7" in cluster.failed().message


@pytest.mark.parametrize(
    "last", [Reported(7, is_end=True), Reported(9, is_end=True), Reported(8), Reported(6)]
)
def test_a_range_is_read_once_nothing_can_come_before_its_end(last: Reported) -> None:
    """Offsets of markers, and of records that were aborted or compacted, are never reported."""
    fetched, complete = read(Reported(3), Reported(4), last)
    assert (fetched.next, complete) == (7, True)
    assert [record.offset for record in fetched.records] == [3, 4] + [6] * (last.at == 6)
