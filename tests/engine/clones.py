"""Pipelines and their clones, in stores that can be opened by their address."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from stepwell.engine.pipeline import Pipeline
from stepwell.engine.settings import Settings
from stepwell.manifest.clone import Cloned, clone
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.model import Claim, Epoch
from stepwell.store.base import Store
from stepwell.store.memory import SHARED, MemoryStore
from stepwell.testing import ManualEnv
from tests.engine.doubles import SETTINGS, Feed, World, click, contents, everything, order

State = dict[str, list[tuple[object, ...]]]
THEN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Family:
    """Pipelines of one program, each in a store of its own."""

    env: ManualEnv = field(default_factory=ManualEnv)
    worlds: dict[str, World] = field(default_factory=dict)

    def store(self, name: str) -> MemoryStore:
        """The store of that name, in the process's list of those with an address."""
        uri = f"memory://{name}"
        if uri not in SHARED:
            SHARED[uri] = MemoryStore(self.env, name)
        found = SHARED[uri]
        assert isinstance(found, MemoryStore)
        return found

    def close(self) -> None:
        SHARED.clear()

    def open(
        self, name: str, *, journal: str | None = None, settings: Settings = SETTINGS
    ) -> Pipeline:
        """Open one, with its own sinks; its sources give what those of the first give."""
        world = self.worlds.setdefault(name, World(self.env))
        world.store = self.store(name)
        if name != "parent":
            world.feeds = self.worlds["parent"].feeds
            world.views = {f"{name}_revenue": "revenue"}
        journal_store = None if journal is None else self.store(journal)
        return world.open(settings=settings, journal_store=journal_store)

    def parent(self, journal: str | None = None) -> Pipeline:
        """A pipeline with runs, a checkpoint, and entries in the journal that no run holds."""
        self.worlds["parent"] = World(self.env)
        self.worlds["parent"].feeds = {
            "files": Feed("orders").put(order(1, "a", 5), order(2, "b", 6), order(3, "c", 1)),
            "socket": Feed("clicks", again=False).put(click("a", "/x"), click("b", "/x")),
        }
        pipeline = self.open("parent", journal=journal)
        pipeline.run(once=True)
        pipeline.checkpoint("first")
        pipeline.push("orders", [order(10, "a", 1)])
        pipeline.push("clicks", [click("c", "/y")])
        return pipeline

    def clone(
        self,
        name: str = "clone",
        source: str = "parent",
        *,
        at: Store | None = None,
        of: Store | None = None,
        env: ManualEnv | None = None,
        journal: str | None = None,
        source_journal: str | None = None,
        **options: Any,
    ) -> Cloned:
        return clone(
            of or self.store(source),
            at or self.store(name),
            env or self.env,
            source_journal=None if source_journal is None else self.store(source_journal),
            journal_store=None if journal is None else self.store(journal),
            **options,
        )

    def manifest(self, name: str) -> Manifest:
        found = Manifests(self.store(name), self.env).latest()
        assert found is not None
        return found.manifest

    def state(self, name: str, **options: Any) -> State:
        """All relations of a pipeline that is opened again."""
        pipeline = self.open(name, **options)
        self.worlds[name].check(pipeline)
        found = everything(pipeline)
        pipeline.close()
        return found


def alike(manifest: Manifest) -> Manifest:
    """A clone's manifest without what is another's each time: ids and times."""
    parent = manifest.parent
    assert parent is not None
    return replace(
        manifest,
        lineage="",
        timelines=(),
        claim=Claim(Epoch(manifest.claim.epoch), "", 0, THEN),
        journal=replace(manifest.journal, id=manifest.journal.id and ""),
        parent=replace(parent, checkpoint="", pin=parent.pin and ""),
    )


def ids_of(pipeline: Pipeline) -> list[object]:
    return [row[0] for row in contents(pipeline, "orders")]
