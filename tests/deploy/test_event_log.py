"""Events become log records that say which pipeline, epoch and transaction they are about."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import get_args

import pytest

import stepwell
from stepwell.engine.event_log import EventLog, level_of, message_of
from stepwell.engine.events import Committed, Event, Events, Flushed, SinkFailed, all_of
from stepwell.errors import InvalidError
from stepwell.model import Transaction
from tests.deploy.conftest import Write
from tests.engine.test_metrics import example

ROW = {"id": 1, "customer": "ada", "amount": 5}


def test_every_record_names_pipeline_epoch_and_transaction(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    """A line that does not say which pipeline it is about is of no use where several run."""
    caplog.set_level(logging.DEBUG, logger="stepwell")
    folder = write()
    with stepwell.open(folder) as pipeline:
        pipeline.push("orders", [ROW])
        with pytest.raises(InvalidError), pipeline.transaction() as aborted:
            aborted.push("orders", [{**ROW, "id": 2}])
            raise InvalidError("enough")
        epoch = pipeline.status().epoch
    records = [record for record in caplog.records if record.name == "stepwell.pipeline"]
    found = {record.__dict__["event"]: record.__dict__ for record in records}
    assert {"Opened", "Committed", "RolledBack", "Checkpointed", "Flushed"} <= set(found)
    assert {fields["pipeline"] for fields in found.values()} == {"orders"}
    committed = found["Committed"]
    assert (committed["epoch"], committed["transaction"]) == (epoch, 1)
    assert committed["levelname"] == "INFO"
    assert committed["details"]["rows"] == 1
    assert found["RolledBack"]["transaction"] == 2
    assert found["OpeningAt"]["epoch"] is None, "it is not ours yet"


def test_rejected_rows_are_a_warning(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    """J13: rows that went to the dead letters want somebody to look at them."""
    caplog.set_level(logging.WARNING, logger="stepwell")
    with stepwell.open(write()) as pipeline:
        pipeline.push("orders", [ROW, {"id": "x", "customer": "ada", "amount": 1}])
    (record,) = caplog.records
    assert "1 rejected" in record.getMessage()


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_every_event_has_a_level_and_a_message(kind: type[Event]) -> None:
    """An event that nobody has thought of would silence the log: a listener that raises is cut."""
    event = example(kind)
    assert level_of(event) in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
    assert message_of(event) != kind.__name__


def test_a_sink_that_stops_the_pipeline_is_an_error() -> None:
    """Trying again is of no use, so somebody has to act."""
    failed = SinkFailed("out", Transaction(1), 1, "no", 1.0, stops=False)
    assert level_of(failed) == logging.WARNING
    assert level_of(SinkFailed("out", Transaction(1), 1, "no", 1.0, stops=True)) == logging.ERROR


def test_nothing_is_formatted_for_a_level_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that nobody reads must not cost what a transaction costs."""

    def formatted(event: Event) -> str:
        raise AssertionError("a message was made")

    monkeypatch.setattr("stepwell.engine.event_log.message_of", formatted)
    monkeypatch.setattr(logging.getLogger("stepwell"), "level", logging.ERROR)
    logging.getLogger("stepwell.pipeline")._cache.clear()  # type: ignore[attr-defined]
    try:
        EventLog("orders")(example(Committed))
        EventLog("orders")(example(Flushed))
    finally:
        logging.getLogger("stepwell.pipeline")._cache.clear()  # type: ignore[attr-defined]


def test_of_several_listeners_one_that_raises_is_cut_alone() -> None:
    """A broken progress bar must not end the log, nor the other way round."""
    heard: list[str] = []

    def broken(event: Event) -> None:
        heard.append("broken")
        raise ValueError("no terminal")

    both = Events(all_of(broken, None, lambda event: heard.append("whole")))
    both.emit(example(Flushed))
    both.emit(example(Flushed))
    assert heard == ["broken", "whole", "whole"]
    assert not Events(all_of(None)).heard, "nobody listens"


def test_a_library_is_silent_by_default(write: Write) -> None:
    """An application that has not configured logging must not find lines of ours in its output."""
    folder = write()
    code = (
        "import sys, stepwell\n"
        "with stepwell.open(sys.argv[1]) as pipeline:\n"
        "    pipeline.push('orders', [{'id': 1, 'customer': 'a', 'amount': 1},\n"
        "                             {'id': 'x', 'customer': 'a', 'amount': 1}])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
