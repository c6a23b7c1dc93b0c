"""Shadow build: the state of a new program, built while transactions continue.

    1 take a checkpoint       its files stay until the build is over
    2 load and build          load the runs that are kept, and build every fresh view
    3 follow the journal      replay the transactions that were committed since
    4 catch up                between two transactions: replay the rest, which is little

Nothing is written except the checkpoint, which expires after a day if a crash leaves it. If the
build fails, the swap builds the views itself while the pipeline stands still.
"""

from __future__ import annotations

from collections.abc import Callable

from stepwell.engine.events import Events
from stepwell.engine.program_swap import kept_runs
from stepwell.engine.push_keys import PushKeys
from stepwell.engine.replay import Replay
from stepwell.engine.sources import Sources
from stepwell.engine.swap_stages import ProgramChange
from stepwell.engine.transaction import State
from stepwell.engine.writer_session import WriterSession
from stepwell.errors import InvalidError
from stepwell.execution.executor import Executor
from stepwell.journal.log import JournalReader, Log
from stepwell.manifest.manifest import CheckpointRef, Manifest

KEEP_S = 86400.0


class ShadowBuild:
    """Builds an executor for a new program, and lets it follow the journal."""

    def __init__(
        self,
        executor: Executor,
        change: ProgramChange,
        manifest: Manifest,
        checkpoint: CheckpointRef,
        sources: Sources,
        log: Log,
        pushes: PushKeys,
        *,
        rows_max: int,
        building: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`manifest` holds the checkpoint. `sources` are those of the old program, and not shared:
        they are read from another thread. `pushes` is discarded: the pipeline has the keys.
        """
        self.executor = executor
        self.change = change
        self.checkpoint = checkpoint
        executor.load(kept_runs(manifest.runs, executor.relations(), change))
        executor.build(change.fresh, building)
        self._state = State(
            executor=executor,
            keys=executor.tables(),
            pushes=pushes,
            outboxes=(),
            events=Events(),
            transaction=manifest.transaction,
        )
        self._replay = Replay(self._state, sources, rows_max=rows_max)
        self._reader = JournalReader(log, manifest.replay)

    def follow(self) -> int:
        """Replay the entries that were appended since; return their number."""
        count = 0
        while entries := self._reader.poll():
            for recorded in entries:
                self._replay.feed(recorded)
            count += len(entries)
        return count

    def catch_up(self, session: WriterSession) -> None:
        """Replay up to the pipeline, which is between two transactions."""
        self.follow()
        self._replay.finish()
        if self._state.transaction != session.state.transaction:
            raise InvalidError(
                f"the journal ends at transaction {self._state.transaction}, but the pipeline is "
                f"at {session.state.transaction}"
            )
