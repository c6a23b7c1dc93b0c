"""One of the two writers of `stepwell demo`: a process of its own, which reports in JSON lines.

It says `ready`, and opens the pipeline when it is told for the first time, by a line on standard
input, how many rows to append. When there are no more such lines, it closes the pipeline. A row is
reported once `append` has returned, and not before: from then on it must never be lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa

from stepwell.engine.open import open_writer
from stepwell.env import SystemEnv
from stepwell.errors import FencedError
from stepwell.journal.entry import Draft, Input, Kind, Recorded
from stepwell.model import Transaction, checksum
from stepwell.store.locate import open_store

SOURCE, TABLE = "demo", "orders"


def run(directory: str, name: str) -> None:
    env = SystemEnv()
    store = open_store(directory, env)
    say("ready")
    rows = rows_wanted()
    if next(rows, None) is None:
        return  # Whoever started us has gone.
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
    """The numbers of the rows to append: 0 when the first line is there, then 1, 2, 3 ..."""
    number = 0
    for line in sys.stdin:
        if not number:
            yield 0
        for _ in range(int(line)):
            number += 1
            yield number


def say(event: str, **details: object) -> None:
    print(json.dumps({"event": event, **details}), flush=True)


def encode(name: str, number: int) -> bytes:
    """One row as an Arrow IPC stream."""
    batch = pa.RecordBatch.from_pydict({"writer": [name], "row": [number]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def decode(item: Input) -> list[tuple[str, int]]:
    """The rows of an input, in order."""
    with pa.ipc.open_stream(pa.py_buffer(item.data)) as reader:
        return [(row["writer"], row["row"]) for row in reader.read_all().to_pylist()]
