"""Restore an open pipeline: the state of an earlier transaction becomes that of the next one.

Sinks receive the difference. All of it is one commit: a crash leaves the pipeline as it was, or
restored.
"""

from __future__ import annotations

from contextlib import ExitStack

from stepwell.engine.restore_request import RestorePoint, RestoreRequest, choose, replay_to
from stepwell.engine.transaction import load_state
from stepwell.engine.writer_session import WriterSession
from stepwell.errors import UnknownOutcomeError
from stepwell.lsm.sorted_runs import run_reader
from stepwell.lsm.table_diff import difference
from stepwell.manifest.manifest import CheckpointRef
from stepwell.manifest.timeline import Timeline
from stepwell.model import Transaction


def choose_point(session: WriterSession, request: RestoreRequest) -> RestorePoint:
    """Find the restore point that a request asks for."""
    session.reach_boundary()
    return choose(request, session.store, session.log, session.manifest, session.env)


def rewind(session: WriterSession, point: RestorePoint) -> CheckpointRef:
    """Restore a session to a restore point, and return the checkpoint of the restored state.

    If this raises, the session may be unusable, and the pipeline has to be opened again.
    """
    session.reach_boundary()
    state, rows_max = session.state, session.settings.outbox.part_rows_max
    log = session.log
    session.background.end()
    begin, executor = point.checkpoint.state, session.new_executor()
    read = run_reader(session.store, session.env)
    past = load_state(executor, begin, session.push_keys(begin), tests=state.tests, read=read)
    replay_to(point, past, session.sources, log, session.settings.replay_rows_max)
    try:
        with ExitStack() as stack:
            differences = []
            for outbox in state.outboxes:
                stack.enter_context(outbox.hold_back())
                view = outbox.sink.view
                was, now = (x.pieces(view, rows_max) for x in (state.executor, past.executor))
                differences.append(difference(was, now, rows_max))
            counts = [change.count(rows_max) for change in differences]
            number = Transaction(state.transaction + max([1, *counts]))
            state.diverged = Timeline(session.env.new_id(), state.transaction)
            for outbox, change, count in zip(state.outboxes, differences, counts, strict=True):
                outbox.diverge(state.diverged)
                outbox.offer_parts(number, change.parts(rows_max), count, session.tip)
            state.executor, state.origin = past.executor, point.checkpoint
            # The keys of the pushes that are undone go with their rows.
            state.pushes = past.pushes
            state.positions, state.dead_letters = past.positions, past.dead_letters
            state.violations, state.taken = past.violations, past.taken
            state.transaction = number
            ref = session.checkpointer.checkpoint()
    except BaseException as error:
        state.broken = UnknownOutcomeError(
            f"the pipeline was not restored: {getattr(error, 'message', error)}",
            hint="open the pipeline again: it is as it was, or restored",
        )
        raise
    session.delivery.deliver_briefly()
    return ref
