"""Pin a relation for processes that read its files themselves, such as the tasks of a Spark job.

    pin      the state to read: the last flush, or the flush or checkpoint of a given transaction
    scan     a value that other processes read from (`execution/local/scan`)

A pinned relation is a value. It reads the rows as of its transaction, whatever the writer does
meanwhile. It claims nothing and writes nothing, so garbage collection does not know of it: the
files of a superseded version stay for `gc.grace`, those of a checkpoint as long as the checkpoint.

Transactions after the last flush are in the journal. Applying them to views takes the
pipeline's own backends, so a pinned relation does not include them; `Pinned.behind` counts them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stepwell.deploy.open import project_to_read
from stepwell.deploy.pipeline import relation_named
from stepwell.deploy.program import as_deployed
from stepwell.deploy.snapshot import no_pipeline, pin_latest, shown_relation
from stepwell.engine.events import Events
from stepwell.env import Env, SystemEnv
from stepwell.errors import InvalidError, SnapshotExpiredError
from stepwell.execution.backend import CannotRunError
from stepwell.execution.local.output import Output, Shown
from stepwell.execution.local.scan import RelationScan
from stepwell.manifest.checkpoint import read_checkpoint
from stepwell.manifest.manifest import Manifest, Manifests, Stored
from stepwell.model import Transaction
from stepwell.plan.described import node_to_json
from stepwell.sql.simple import NotSimple
from stepwell.sql.statements import fold
from stepwell.store.address import address_at, address_of
from stepwell.text import did_you_mean


@dataclass(frozen=True, slots=True)
class PinnedRelation:
    """A table or view as of one transaction."""

    name: str
    lineage: str
    manifest: int
    """The version of the manifest; 0 for a checkpoint."""
    transaction: Transaction
    behind: int
    """Later transactions, not flushed yet, that may have changed the relation."""
    scan: RelationScan
    """Reads all columns."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Names and Spark types."""
        return tuple(zip(self.scan.shown.columns, self.scan.shown.types, strict=True))

    def select(self, names: Sequence[str]) -> PinnedRelation:
        """The same with these columns only, in this order."""
        known = self.scan.shown.columns
        places = []
        for name in names:
            found = [i for i, column in enumerate(known) if column == name]
            found = found or [i for i, column in enumerate(known) if fold(column) == fold(name)]
            if len(found) != 1:
                raise InvalidError(
                    f"{self.name} has no column {name}",
                    hint=did_you_mean(name, known) or "it has: " + ", ".join(known),
                )
            places.append(found[0])
        return replace(self, scan=replace(self.scan, columns=tuple(places)))

    def since(self, start: PinnedRelation | None) -> RelationScan:
        """What changed from another state to this one; without `start`, from an empty relation."""
        if start is None:
            return replace(self.scan, signs=(1,) * len(self.scan.runs))
        if not _same(start.scan.shown, self.scan.shown):
            raise InvalidError(
                f"{self.name} was redeployed between transaction {start.transaction} and "
                f"{self.transaction}, so its changes cannot be read from its files",
                hint="start a new stream, with a new checkpointLocation",
            )
        old, new = set(start.scan.runs), set(self.scan.runs)
        gone = [run for run in start.scan.runs if run not in new]
        come = [run for run in self.scan.runs if run not in old]
        signs = (-1,) * len(gone) + (1,) * len(come)
        addresses = {**start.scan.addresses, **self.scan.addresses}
        return replace(self.scan, runs=(*gone, *come), signs=signs, addresses=addresses)


def _same(one: Shown, other: Shown) -> bool:
    """Whether the columns, and the way they derive from stored rows, are the same."""
    return (one.columns, one.types, one.stored, node_to_json(one.output)) == (
        other.columns,
        other.types,
        other.stored,
        node_to_json(other.output),
    )


class RelationReader:
    """Pins states of one relation of a pipeline. Fences no writer, and writes nothing."""

    def __init__(
        self,
        project: str | os.PathLike[str],
        relation: str,
        *,
        target: str | None = None,
        store: str | None = None,
        env: Env | None = None,
    ) -> None:
        self._env = env or SystemEnv()
        self._project = project_to_read(project, self._env, target=target, store=store)
        if self._project.sections.executor != "spark":
            raise InvalidError(
                f"{self._project.store} was made with the executor "
                f"{self._project.sections.executor}, whose files only that executor reads"
            )
        self._store = self._project.open_store(self._env)
        self._manifests = Manifests(self._store, self._env)
        self.name = relation_named(self._project, relation)

    def latest(self) -> PinnedRelation:
        """The relation as of the last flush."""
        return next(self._latest(empty=False))

    def changed(self) -> PinnedRelation | None:
        """The same; None if the pipeline has stored no rows yet, so that nothing has changed."""
        return next(self._latest(empty=True), None)

    def at(self, transaction: int) -> PinnedRelation:
        """The relation as of a transaction; `InvalidError` if no such state is kept."""
        latest = self._latest_version()
        known: dict[int, None] = {}
        for found in self._kept(latest):
            if found.manifest.transaction == transaction:
                pinned = self._pin(found.manifest, found.id, 0)
                if self._whole(pinned):
                    return pinned
            known[int(found.manifest.transaction)] = None
        raise InvalidError(
            f"{self._store.uri} does not keep its state as of transaction {transaction}",
            hint="these can be read: "
            + ", ".join(str(number) for number in sorted(known) if number != transaction)
            + "; a checkpoint keeps one: stepwell checkpoint create",
        )

    def version(self, manifest: int, transaction: int, lineage: str) -> PinnedRelation:
        """The relation as of a transaction that was pinned earlier."""
        latest = self._latest_version()
        if latest.manifest.lineage != lineage:
            raise InvalidError(
                f"{self._store.uri} now holds the pipeline {latest.manifest.lineage}; the stream "
                f"read {lineage}",
                hint="start a new stream, with a new checkpointLocation",
            )
        found = self._manifests.read(manifest) if manifest else None
        if found is not None and found.manifest.transaction == transaction:
            return self._pin(found.manifest, found.id, 0)
        try:
            return self.at(transaction)
        except InvalidError as error:
            raise SnapshotExpiredError(
                f"the state of {self.name} as of transaction {transaction} is no longer kept in "
                f"{self._store.uri}, so the changes since then are unknown",
                hint="start a new stream, with a new checkpointLocation; gc.grace says how long a "
                "stream may be stopped",
                not_applied=True,
            ) from error

    def _latest(self, *, empty: bool) -> Iterator[PinnedRelation]:
        pinned = pin_latest(self._project, self._env, Events())
        manifest = pinned.manifest
        if empty and not manifest.runs:
            return
        found = self._pin(manifest, pinned.stored.id, 0)
        if pinned.changed & self._tables(manifest):
            found = replace(found, behind=pinned.transaction - manifest.transaction)
        yield found

    def _latest_version(self) -> Stored:
        found = self._manifests.latest()
        if found is None:
            raise no_pipeline(self._project, self._env)
        return found

    def _kept(self, latest: Stored) -> Iterator[Stored]:
        """The states that are kept, newest first; then checkpoints."""
        yield latest
        for id in sorted(self._manifests.ids(), reverse=True):
            if id < latest.id and (found := self._manifests.read(id)) is not None:
                yield found
        for ref in latest.manifest.checkpoints:
            yield Stored(0, read_checkpoint(self._store, ref.id, ref).state)

    def _whole(self, pinned: PinnedRelation) -> bool:
        """Whether the files are still there: those of an old version may have been collected."""
        own = [run.path for run in pinned.scan.runs if run.root is None]
        return all(map(self._store.exists, own))

    def _pin(self, manifest: Manifest, id: int, behind: int) -> PinnedRelation:
        self._manifests.check_ready(manifest)
        shown, _ = self._shown(manifest)
        relation = Output(shown).relation
        runs = tuple(run for run in manifest.runs if run.relation == relation)
        roots = {run.root for run in runs}
        scan = RelationScan(
            self.name,
            shown,
            manifest.transaction,
            {
                None: address_of(self._store),
                **{root: address_at(root) for root in roots if root is not None},
            },
            runs,
            tuple(range(len(shown.columns))),
            prefer=self._key(),
        )
        scan.check()
        return PinnedRelation(self.name, manifest.lineage, id, manifest.transaction, behind, scan)

    def _tables(self, manifest: Manifest) -> set[str]:
        return self._shown(manifest)[1]

    def _shown(self, manifest: Manifest) -> tuple[Shown, set[str]]:
        project = as_deployed(self._project, manifest.program)
        try:
            return shown_relation(project, manifest, fold(self.name))
        except (NotSimple, CannotRunError) as why:
            if not manifest.runs:
                raise InvalidError(
                    f"the pipeline in {self._store.uri} has not stored any rows yet",
                    hint="read again after its first flush: stepwell checkpoint create flushes",
                ) from why
            raise InvalidError(
                f"{self.name} has no files to read, because Spark computes it when it is read",
                hint=f"use stepwell.read(project).to_spark(spark, {self.name!r})",
            ) from why

    def _key(self) -> tuple[int, ...]:
        """The columns by which the runs of a table are sorted; views have theirs first."""
        for table in self._project.tables.values():
            if table.name == self.name:
                names = [fold(column.name) for column in table.columns]
                return tuple(names.index(fold(column)) for column in table.key)
        return ()
