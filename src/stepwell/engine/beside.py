"""A new program's state, built beside the old one while transactions go on.

    1 a checkpoint            of the pipeline as it is; its files stay until this is over
    2 load and build          the runs that stay, and every fresh view, from that checkpoint
    3 follow the journal      what was committed meanwhile, fed through the same replay as ever
    4 catch up                between two transactions: the rest, which is little

Nothing is written but the checkpoint, which goes by itself after a day if a crash leaves it. If
anything fails here, the change is made the plain way, with the pipeline standing still.
"""

from __future__ import annotations

from collections.abc import Callable

from stepwell.engine.change import ProgramChange, kept_runs
from stepwell.engine.core import Core
from stepwell.engine.events import Events
from stepwell.engine.ports import Executor
from stepwell.engine.push_keys import PushKeys
from stepwell.engine.replay import Replay
from stepwell.engine.sources import Sources
from stepwell.engine.transaction import State
from stepwell.errors import InvalidError
from stepwell.journal.log import JournalReader, Log
from stepwell.state.manifest import CheckpointRef, Manifest

KEEP_S = 86400.0


class Beside:
    """An executor on its way to where the pipeline is."""

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
        """`manifest` is the one that holds the checkpoint. `sources` are those of the old program,
        and nobody else's: they are read from another thread. `pushes` is of no use to anybody:
        the pipeline knows the keys.
        """
        self.executor = executor
        self.change = change
        self.checkpoint = checkpoint
        executor.load(kept_runs(manifest.runs, executor.relations(), change))
        for view in change.fresh:
            building(view)
            executor.build(view)
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
        """Feed what has been committed since; how many entries there were."""
        count = 0
        while entries := self._reader.poll():
            for recorded in entries:
                self._replay.feed(recorded)
            count += len(entries)
        return count

    def catch_up(self, core: Core) -> None:
        """Be where the pipeline is, which stands between two transactions."""
        self.follow()
        self._replay.finish()
        if self._state.transaction != core.state.transaction:
            raise InvalidError(
                f"the journal leads to transaction {self._state.transaction}, and the pipeline is "
                f"at {core.state.transaction}"
            )
