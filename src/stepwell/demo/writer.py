"""One of the two writers of `stepwell demo`: a separate process that reports in JSON lines.

The writer reports `ready`. Each line on standard input gives a number of rows to append; the first
line makes the writer open the pipeline. At the end of the input it closes the pipeline. It reports
a row only after `append` has returned: from then on the row must never be lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import pyarrow as pa

from stepwell.engine.open import open_writer
from stepwell.env import SystemEnv
from stepwell.errors import FencedError
from stepwell.journal.entry import Draft, Input, Kind, Recorded
from stepwell.model import Transaction, checksum
from stepwell.store.locate import open_store

SOURCE, TABLE = "demo", "orders"


def run(directory: str, name: str, report: Callable[[str], None]) -> None:
    """Append rows until the input ends; `report` is called with one line of JSON at a time."""

    def say(event: str, **details: object) -> None:
        report(json.dumps({"event": event, **details}))

    env = SystemEnv()
    store = open_store(directory, env)
    say("ready")
    rows = rows_wanted()
    if next(rows, None) is None:
        return  # The parent process has gone.
    replayed: list[Recorded] = []
    writer = open_writer(store, env, replay=replayed.append)
    say("opened", epoch=writer.epoch, pid=env.pid, replayed=len(replayed))
    transaction = replayed[-1].entry.draft.transaction if replayed else 0
    for number in rows:
        transaction += 1
        data = encode(name, number)
        item = Input(SOURCE, TABLE, rows=1, checksum=checksum([data]), data=data)
        draft = Draft(Kind.STEP, Transaction(transaction), 0, True, env.now(), (item,))
        try:
            recorded = writer.append(draft)
        except FencedError as error:
            say("fenced", row=number, message=error.message, hint=error.hint)
            return
        say("acknowledged", row=number, position=recorded.entry.position)
    writer.close()
    say("closed")


def rows_wanted() -> Iterator[int]:
    """Yield the numbers of the rows to append: 0 after the first line is read, then 1, 2, 3 ..."""
    number = 0
    for line in sys.stdin:
        if not number:
            yield 0
        for _ in range(int(line)):
            number += 1
            yield number


def encode(name: str, number: int) -> bytes:
    """Encode one row as an Arrow IPC stream."""
    batch = pa.RecordBatch.from_pydict({"writer": [name], "row": [number]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def decode(item: Input) -> list[tuple[str, int]]:
    """Decode the rows of an input, in order."""
    with pa.ipc.open_stream(pa.py_buffer(item.data)) as reader:
        return [(row["writer"], row["row"]) for row in reader.read_all().to_pylist()]
