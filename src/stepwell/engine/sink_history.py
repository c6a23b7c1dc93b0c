"""Compare the mark that a sink holds with the marks that its pipeline sent it (J16).

The mark of a sink is one of these, or the pipeline stops:

    the mark the pipeline believes it holds             the sink is up to date with the manifest
    the mark of pending output                          a write succeeded, but its answer was lost
    the mark of an entry that is about to be replayed   it was delivered after the last flush

Marks are compared with the checksum of their entry. A number alone would let a copy of the
pipeline, or a pipeline restored from a backup, pass for this one: its transactions would count as
delivered, and be dropped.
"""

from __future__ import annotations

from stepwell.errors import InvalidError
from stepwell.journal.log import Log
from stepwell.manifest.progress import Delivered
from stepwell.manifest.timeline import Timelines, is_history
from stepwell.model import Transaction

_REMOVE = "drop its table, or remove its folder"
_RENAME = f"({_REMOVE}) and add it under another name, so that it receives the whole view"
_WHOLE = f"restore the sink; or empty it {_RENAME}"


def is_recorded(log: Log, mark: Delivered) -> bool:
    """Whether a mark names an entry of this journal that closes its transaction."""
    found = log.read(mark.position)
    return (
        found is not None
        and found.checksum == mark.entry
        and found.entry.draft.closes
        and found.entry.draft.transaction == mark.transaction
    )


def refuse_foreign(sink: str, lineage: str, found: Delivered | None) -> None:
    """Raise if a sink holds the output of another pipeline."""
    if found is not None and found.lineage != lineage:
        raise InvalidError(
            f"sink {sink} holds the output of another pipeline: expected lineage {lineage}, found "
            f"{found.lineage} at {found}",
            hint=(
                "a pipeline that was reset starts at transaction 1, which this sink would skip as "
                "already received. Empty the sink, or give this pipeline one of its own"
            ),
        )


def refuse_new(sink: str, found: Delivered) -> InvalidError:
    """The error for a sink that is new to the pipeline, but holds some of its output."""
    return InvalidError(
        f"sink {sink} holds {found} of this pipeline, but has not been part of it since",
        hint=f"empty the sink ({_REMOVE}): it then receives the whole view",
    )


def refusal(
    sink: str,
    found: Delivered | None,
    believed: Delivered | None,
    last: Transaction,
    timelines: Timelines,
) -> InvalidError:
    """The error that says why this pipeline cannot have caused a sink's mark.

    `last` is the last transaction that the pipeline had for this sink.
    """
    held = Transaction(0) if believed is None else believed.transaction
    if found is None or found.transaction < held:
        return InvalidError(
            f"sink {sink} held {believed}, and now reports {found or 'that it holds nothing'}: it "
            f"went back in time, and lost what it received since",
            hint=_WHOLE,
        )
    sent = "nothing" if believed is None else str(believed)
    if not is_history(timelines, found.timeline, found.transaction):
        return InvalidError(
            f"sink {sink} holds {found} of timeline {found.timeline}, which is not in the history "
            f"of this pipeline (timeline {timelines[-1].id}); the last it was sent from here is "
            f"{sent}: another copy of this pipeline writes to it, or this one was restored",
            hint="give each copy a sink of its own; " + _WHOLE,
        )
    if found.transaction > last:
        return InvalidError(
            f"sink {sink} holds {found}, but this pipeline's last one for it is {last}: the "
            "pipeline went back in time, or another writer is active",
            hint="`stepwell inspect manifest` shows who holds the pipeline. Restore the "
            f"pipeline's latest state; or empty the sink {_RENAME}",
        )
    return InvalidError(
        f"sink {sink} holds {found}, which this pipeline did not send; the last it was sent from "
        f"here is {sent}: it has the output of a copy of this pipeline",
        hint="give each copy a sink of its own; " + _WHOLE,
    )
