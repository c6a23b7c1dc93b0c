"""Made-up rows: the same for the same seed, and no faster than asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.connectors.registry import make_source
from stepwell.engine.ports import Limits, Source
from stepwell.errors import ReplayMismatchError
from stepwell.testing import ManualEnv
from tests.connectors.tables import Keyed, rows, table

WIDE = table("""CREATE TABLE t (id BIGINT PRIMARY KEY, a TINYINT, b SMALLINT, c INT, d DECIMAL(9,2),
    e FLOAT, f DOUBLE, g STRING, h VARCHAR(4), i BOOLEAN, j DATE, k TIMESTAMP, l TIMESTAMP_NTZ,
    m BINARY, n ARRAY<INT>)""")


def source(env: ManualEnv | None = None, **options: object) -> Source:
    given = {"table": "t", "type": "datagen", "rate": 0, **options}
    return make_source("s", given, WIDE, env or ManualEnv(), base=Path("."))


def test_every_type_is_made_and_differs() -> None:
    """A demo whose columns are all alike shows nothing."""
    taken = source(rows=1000).poll(None, Limits())
    assert taken is not None
    assert taken.change.put is not None
    for name in taken.change.put.column_names[:-1]:
        column = taken.change.put.column(name)
        assert column.null_count == 0
        assert len(set(column.to_pylist())) > 1, name


def test_rows_depend_on_the_seed_and_nothing_else() -> None:
    """J8: a reference is a range, so the range must give the same rows forever."""
    first, again, other = (source(seed=s, rows=50).poll(None, Limits()) for s in (1, 1, 2))
    assert first is not None
    assert again is not None
    assert other is not None
    assert rows(first.change.put) == rows(again.change.put)
    assert rows(first.change.put) != rows(other.change.put)
    assert rows(first.change.put)[7][:4] == (7, 69, 36, 683)
    with pytest.raises(ReplayMismatchError, match="other settings"):
        source(seed=2).read(first.reference)


def test_a_rate_is_kept() -> None:
    """A source without a limit would drown all other output."""
    env = ManualEnv()
    limited, after, counts = source(env, rate=10), None, []
    for _ in range(5):
        taken = limited.poll(after, Limits())
        counts.append(0 if taken is None else taken.rows)
        after = after if taken is None else taken.position
        env.advance(0.25)
    assert counts == [1, 2, 3, 2, 3]


def test_keys_repeat_and_rows_are_deleted() -> None:
    """S2: updates and deletes are what a pipeline is about."""
    made, split = Keyed((0,)), Keyed((0,))
    taken = source(rows=2000, keys=20, deletes=0.4).poll(None, Limits())
    assert taken is not None
    made.apply(taken.change)
    assert taken.change.delete is not None
    assert 0 < len(made.rows) < 20
    after = None
    s = source(rows=2000, keys=20, deletes=0.4)
    while (step := s.poll(after, Limits(rows_max=7))) is not None:
        split.apply(step.change)
        after = step.position
    assert split.rows == made.rows
