"""Looking at a pipeline without taking it: the state as of its last transaction, read only.

The runs of the latest manifest are loaded, and what the journal holds above them is replayed in
memory. Nothing is claimed and nothing written, so whoever has the pipeline goes on undisturbed. If
its writer flushes and collects meanwhile, an object may be gone; then a newer manifest is there,
and the look begins again.
"""

from __future__ import annotations

from stepwell.deploy.pipeline import Answer, MakeExecutor, answer, check_one_query, make_executor
from stepwell.deploy.program import check_program
from stepwell.deploy.project import Project
from stepwell.engine.ports import Executor
from stepwell.engine.push_keys import PushKeys
from stepwell.engine.replay import Replay
from stepwell.engine.sources import Sources
from stepwell.engine.transaction import load_state
from stepwell.env import Env
from stepwell.errors import CorruptError, InvalidError
from stepwell.journal.identity import check_identity, read_identity
from stepwell.journal.log import JournalReader, Log
from stepwell.model import Transaction
from stepwell.state.manifest import Manifests, Stored
from stepwell.state.witness import check_witness

_TRIES = 5


class Look:
    """A pipeline as of one transaction."""

    def __init__(self, project: Project, transaction: Transaction, executor: Executor) -> None:
        self._project = project
        self.transaction = transaction
        self.executor = executor

    def ask(self, sql: str) -> Answer:
        check_one_query(sql)
        return Answer(self.transaction, answer(self._project, self.executor, sql))


def look(project: Project, env: Env, *, executor: MakeExecutor | None = None) -> Look:
    """Read the state of a project's pipeline. `InvalidError` if there is none yet."""
    manifests = Manifests(project.open_store(env), env)
    tries = 0
    while True:
        found = manifests.latest()
        if found is None:
            raise no_pipeline(project)
        manifests.check_ready(found.manifest)
        try:
            return _read(project, env, found, executor or make_executor)
        except CorruptError:
            newer = manifests.latest()
            tries += 1
            if newer is None or newer.id == found.id or tries >= _TRIES:
                raise


def no_pipeline(project: Project) -> InvalidError:
    return InvalidError(
        f"there is no pipeline in {project.store} yet", hint="stepwell run creates it"
    )


def _read(project: Project, env: Env, found: Stored, executor: MakeExecutor) -> Look:
    manifest, store = found.manifest, project.open_store(env)
    check_program(project, manifest.program)
    journal_store = project.open_journal_store(env) or store
    check_identity(
        journal_store,
        read_identity(journal_store),
        lineage=manifest.lineage,
        id=manifest.journal.id,
        closed=manifest.journal.closed,
    )
    log = Log(journal_store, manifest.lineage)
    latest = check_witness(Manifests(store, env), log, found)
    if latest.id > found.id:
        return _read(project, env, latest, executor)
    made = executor(project, None)(store, env)
    state = load_state(made, manifest, PushKeys(store, env))
    sources = Sources(project.make_sources(env), tuple(made.tables()), env)
    try:
        replay = Replay(state, sources, rows_max=project.sections.settings().replay_rows_max)
        reader = JournalReader(log, manifest.replay)
        while entries := reader.poll():
            for recorded in entries:
                replay.feed(recorded)
        # What a transaction that is still open took in does not count, so it is not applied.
        replay.finish()
    finally:
        for source in sources.all():
            source.close()
    return Look(project, state.transaction, made)
