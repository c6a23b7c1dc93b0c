"""Write the stored pipeline of this version with today's code: `make formats`.

There is one for each version of the package. Until a version is released, its pipeline is replaced;
those of released versions stay as they are for good. Review the diff of the file next to the
archive, which holds the expected rows, before you commit it.
"""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import stepwell
from stepwell.deploy.apply import deploy, plan_project
from stepwell.deploy.last_error import note_error
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.project import Project, load_project
from stepwell.engine.events import Committed
from stepwell.errors import InvalidError
from stepwell.journal import paths
from stepwell.manifest.clone import clone
from stepwell.manifest.gc import Collector, Settings
from stepwell.store.memory import SHARED
from stepwell.testing import Crash, FaultyStore, ManualEnv, crash_at, reference_executor
from tests.formats.stored import (
    CHANGED,
    FOLDER,
    RELATIONS,
    SQL,
    YML,
    Rows,
    objects,
    pack,
    put_store,
    write_file,
)

ORDERS = """\
{"id": 1, "customer": "ada", "amount": "5.00"}
{"id": 2, "customer": "ada", "amount": "25.50"}
{"id": 3, "customer": "bob", "amount": "40"}
{"id": "x"}
{"id": 4, "customer": null, "amount": "1.25"}
"""
LATER = '{"id": 5, "customer": "eve", "amount": "11.00"}\n'


def main() -> None:
    archive = FOLDER / f"{stepwell.__version__}.zip"
    with tempfile.TemporaryDirectory() as temporary, reference_executor():
        expected = generate(archive, Path(temporary))
    lines = json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True)
    archive.with_suffix(".json").write_text(lines + "\n", encoding="utf-8")
    print(f"wrote {archive.name}, {archive.stat().st_size:,} bytes")


def generate(archive: Path, folder: Path) -> dict[str, Rows]:
    env = ManualEnv()
    try:
        put_store("parent", {}, env)
        project = write_project(folder / "project", "parent", env)
        snapshot, rows = build_parent(project, env)
        # Cloned while the parent's journal has a tail, which goes with the clone.
        parent, child = put_store("parent", snapshot, env), put_store("clone", {}, env)
        clone(parent, child, env)
        note_error(parent, env, InvalidError("a row cannot be accepted", hint="correct it"))
        stores = {"parent": objects(parent), "clone": objects(child)}
        write_file(project.folder / "pipeline.sql", CHANGED.encode())
        plan = plan_project(load_project(project.folder, env), env).encode()
        write_file(project.folder / "pipeline.sql", SQL.encode())
        stores["deploying"] = killed_deploy(folder / "deploying", env)
        pack(archive, stores, project.folder, plan)
    finally:
        SHARED.clear()
    return {"parent": rows, "clone": rows}


def write_project(folder: Path, store: str, env: ManualEnv, sql: str = SQL) -> Project:
    write_file(folder / "stepwell.yml", YML.format(store=store).encode())
    write_file(folder / "pipeline.sql", sql.encode())
    return load_project(folder, env)


def build_parent(project: Project, env: ManualEnv) -> tuple[dict[str, bytes], Rows]:
    """What a pipeline leaves that is killed with a tail in its journal, and the rows it had."""
    write_file(project.folder / "data" / "a.json", ORDERS.encode())
    deploy(project, env, approve=lambda plan: True)
    with ProjectPipeline(project, env) as pipeline:
        pipeline.push("clicks", [click("ada", 0.1), click("bob", 0.2)])
        pipeline.run(once=True)
        pipeline.checkpoint("first")
    env.advance(60)
    # A file where the folder of a sink should be: its output has to wait, in files of the outbox.
    (project.folder / "down").rename(project.folder / "kept")
    write_file(project.folder / "down", b"")
    with ProjectPipeline(project, env) as pipeline:
        pipeline.push("clicks", [click("ada", 0.3)], key="third")
    # Trims the journal, and leaves its notes about barriers.
    at_once = Settings(grace_s=0, journal_keep_s=0)
    Collector(SHARED["memory://parent"], env, settings=at_once).collect()
    snapshots: list[dict[str, bytes]] = []

    def listen(event: object) -> None:
        if isinstance(event, Committed):
            snapshots.append(objects(SHARED["memory://parent"]))

    pipeline = ProjectPipeline(project, env, listener=listen)
    pipeline.push("orders", [order(3, "bob", "41.00")])
    pipeline.push("orders", delete=[{"id": 1}, {"id": 77}])
    with pipeline.transaction(key="zoë") as transaction:
        transaction.push("orders", [order(6, "zoë", "0.01")])
        transaction.push("clicks", [click("zoë", 1e300)])
    write_file(project.folder / "data" / "b.json", LATER.encode())
    pipeline.run(once=True)
    (project.folder / "down").unlink()
    (project.folder / "kept").rename(project.folder / "down")
    return snapshots[-1], rows_of(pipeline)


def killed_deploy(folder: Path, env: ManualEnv) -> dict[str, bytes]:
    """What a deploy leaves that is killed when its log holds what it is about to do."""
    store = put_store("deploying", {}, env)
    project = write_project(folder, "deploying", env)
    deploy(project, env, approve=lambda plan: True)
    before = objects(store)
    write_project(folder, "deploying", env, CHANGED)
    for number in range(1, 1000):
        inner = put_store("deploying", before, env)
        SHARED["memory://deploying"] = FaultyStore(inner, crash_at(number, "after"))
        try:
            deploy(load_project(folder, env), env, approve=lambda plan: True)
        except Crash:
            found = objects(inner)
            if paths.deploy_log(1) in found:
                return found
    raise RuntimeError("no deploy was stopped with a log")


def order(id: int, customer: str, amount: str) -> dict[str, Any]:
    return {"id": id, "customer": customer, "amount": Decimal(amount)}


def click(customer: str, weight: float) -> dict[str, Any]:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    return {"customer": customer, "page": "/", "at": at, "weight": weight}


def rows_of(pipeline: Any) -> Rows:
    """The rows of every relation, sorted, as JSON has them."""
    found: Rows = {}
    for relation in RELATIONS:
        rows = [list(row.values()) for row in pipeline.table(relation).to_pylist()]
        found[relation] = sorted(json.loads(json.dumps(rows, default=str)), key=str)
    return found


if __name__ == "__main__":
    main()
