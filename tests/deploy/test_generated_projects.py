"""Whatever a project says: deployed, its plan is empty; changed, it is what a new one would be."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stepwell.deploy.destroy import destroy
from stepwell.deploy.plan import Action, make_plan
from stepwell.deploy.project import load_project
from stepwell.deploy.resources import (
    deployed_project,
    resources_from_json,
    resources_of,
    resources_to_json,
)
from stepwell.env import SystemEnv
from stepwell.errors import InvalidError
from stepwell.store.memory import MemoryStore
from stepwell.testing import Crash, FaultyStore, crash_at
from tests.deploy.project_world import ORDERS, Lab, lab

__all__ = ["lab"]
ROOT = Path(__file__).resolve().parent.parent.parent
PROJECTS = sorted(
    path.parent
    for folder in ("examples", "src/stepwell/cli/templates")
    for path in (ROOT / folder).glob("*/stepwell.yml")
    if any(path.parent.glob("*.sql"))
)
TABLES = {
    "orders": [
        "id BIGINT PRIMARY KEY, customer STRING, amount BIGINT",
        "id BIGINT PRIMARY KEY, customer STRING, amount BIGINT, note STRING",
        "id BIGINT PRIMARY KEY, amount BIGINT, customer STRING, n INT DEFAULT 4",
    ],
    "clicks": ["customer STRING, page STRING", "customer STRING, page STRING, at TIMESTAMP"],
}
VIEWS = [
    "SELECT customer, SUM(amount) AS n FROM orders GROUP BY customer",
    "SELECT customer, MAX(amount) AS n FROM orders GROUP BY customer",
    "SELECT customer, amount AS n FROM orders WHERE amount > 3",
    "SELECT customer, COUNT(*) AS n FROM clicks GROUP BY customer",
    "SELECT customer, n FROM {before} WHERE n > 1",
    "SELECT customer, SUM(n) AS n FROM {before} GROUP BY customer",
    "SELECT o.customer, o.id AS n FROM orders o JOIN clicks c ON o.customer = c.customer",
]


def generated(draw: random.Random, places: dict[str, str]) -> tuple[str, str]:
    """A project of two tables, some views, and sinks at some of them.

    `places` says where each sink writes: one that comes back writes to a new place.
    """
    sql = [f"CREATE TABLE {name} ({draw.choice(ways)});" for name, ways in TABLES.items()]
    stored: list[str] = []
    names = draw.sample(["a", "b", "c", "d", "e"], draw.randint(1, 5))
    known: list[str] = []
    for name in names:
        query = draw.choice([v for v in VIEWS if known or "{before}" not in v])
        kind = draw.choice(["VIEW", "MATERIALIZED VIEW", "MATERIALIZED VIEW"])
        before = draw.choice(known) if known else ""
        sql.append(f"CREATE {kind} {name} AS {query.format(before=before)};")
        known.append(name)
        if kind != "VIEW":
            stored.append(name)
    followed = {view for view in stored if draw.random() < 0.5}
    for view in set(places) - followed:
        del places[view]
    for view in followed:
        places.setdefault(view, f"out-{view}-{draw.random()}")
    sinks = [
        f"  to_{view}: {{view: {view}, type: files, path: {places[view]}, format: json}}"
        for view in sorted(followed)
    ]
    yml = "name: p\nstore: ./state\n"
    draw.shuffle(sql)
    return "\n".join(sql) + "\n", yml + ("sinks:\n" + "\n".join(sinks) + "\n" if sinks else "")


@pytest.mark.parametrize("seed", range(12))
def test_a_generated_project_changed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """D7, D11: after each deploy the plan is empty, and views are what their queries say."""
    draw = random.Random(seed)
    lab = Lab(tmp_path / "project", monkeypatch)
    deployed = 0
    places: dict[str, str] = {}
    for step in range(6):
        before = dict(places)
        lab.write(*generated(draw, places))
        if lab.plan().refusals:
            with pytest.raises(InvalidError, match="this cannot be deployed"):
                lab.deploy()
            places = before
            continue
        done = lab.deploy()
        deployed += 1
        assert not done.failed, done.failed
        assert lab.is_settled()
        lab.push(*((id + 10 * step, name, n) for id, name, n in ORDERS))
        lab.run()
        views = [v for v in lab.project().views if v in lab.manifest_views()]
        found = {view: lab.rows(view) for view in views}
        orders = lab.rows_by_name("orders")
        fresh = Lab(tmp_path / f"fresh-{step}", monkeypatch)
        # The same rows pushed into a new pipeline of the same project.
        fresh.write(*(path.read_text(encoding="utf-8") for path in lab.files()))
        fresh.deploy()
        with fresh.open() as pipeline:
            pipeline.push("orders", orders)
        assert {view: fresh.rows(view) for view in views} == found
        for sink in lab.project().sinks:
            assert lab.sink(places[sink.relation]) == found[sink.relation], sink
        lab.take_store_back()
    assert deployed


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda path: path.name)
def test_an_example_that_was_deployed_needs_no_deploy(folder: Path) -> None:
    """D7: what is stored and read again is what the files say."""
    project = load_project(folder, SystemEnv())
    wanted = resources_of(project)
    stored = resources_from_json(resources_to_json(wanted), "here")
    executor = project.sections.executor
    plan = make_plan("", stored, wanted, executor=executor, deployed_executor=executor)
    assert {step.action for step in plan.steps} == {Action.UNCHANGED}
    again = resources_of(deployed_project(project, stored, executor))
    assert again == wanted


def test_a_destroy_killed_at_every_store_call_is_finished_by_the_next(lab: Lab) -> None:
    """D9: ordered and resumable; afterwards there is nothing to do, and a new one can begin."""
    start = {item.path: lab.inner.get(item.path) for item in lab.inner.list()}
    number = 0
    while True:
        number += 1
        lab.inner = MemoryStore(lab.env)
        for path, found in start.items():
            assert found is not None
            lab.inner.put_new(path, found.data)
        lab.store = FaultyStore(lab.inner, crash_at(number, "after"))
        try:
            gone(lab)
        except Crash:
            pass
        else:
            break
        lab.store = lab.inner
        lab.env.advance(60)
        gone(lab)
        assert not lab.inner.list()
        assert gone(lab) == 0, "destroy again: nothing to do"
    lab.store = lab.inner
    lab.deploy()
    assert lab.serial == 1


def gone(lab: Lab) -> int:
    done = destroy(
        lab.project(),
        lab.env,
        approve=lambda plan: True,
        wait_s=60,
        running=lambda claim: False,
    )
    return done.objects
