"""A process whose children write to a sink until they are killed.

It reads `<first transaction> <milliseconds>` from standard input, forks a child that writes one
transaction after another, kills it that long after its first write began, and answers with the last
transaction the child began. Forking saves the time it takes to import everything.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from stepwell.model import Transaction
from tests.connectors.sinks import LINEAGE, Place, in_turn


def main() -> None:
    place = eval(sys.argv[1], {"Place": Place})
    assert isinstance(place, Place)
    for line in sys.stdin:
        first, delay_ms = line.split()
        print(run(place, int(first), float(delay_ms) / 1000), flush=True)


def run(place: Place, first: int, delay_s: float) -> int:
    """The last transaction a child began before it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        write(place, first, writing)
    os.close(writing)
    begun = os.read(reading, 8)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while block := os.read(reading, 1 << 16):
        begun += block
    os.close(reading)
    assert begun, "the child failed before it wrote anything"
    return int.from_bytes(begun[-8:], "big")


def write(place: Place, first: int, told: int) -> None:
    """Write until killed, telling each transaction before it is written."""
    try:
        sink = place.make()
        sink.last()
        for number in range(first, first + 1_000_000):
            change = in_turn(number)
            os.write(told, number.to_bytes(8, "big"))
            sink.write(LINEAGE, Transaction(number), change)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
