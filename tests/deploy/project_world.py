"""A project in a folder whose store is in memory and fails on demand, with its results."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from stepwell.deploy.apply import Deployment, deploy, plan_project
from stepwell.deploy.pipeline import ProjectPipeline
from stepwell.deploy.plan import Action, Plan
from stepwell.deploy.program import as_deployed
from stepwell.deploy.project import Project, load_project
from stepwell.deploy.snapshot import take_snapshot
from stepwell.deploy.state_file import read_state
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.store.base import Store
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv

YML = """\
name: orders
store: ./state
sinks:
  out: {view: revenue, type: files, path: out, format: json}
"""
SQL = """\
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING, amount BIGINT);
CREATE TABLE clicks (customer STRING, page STRING);
CREATE VIEW big AS SELECT * FROM orders WHERE amount > 10;
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW visits AS SELECT customer, COUNT(*) AS n FROM clicks GROUP BY customer;
CREATE MATERIALIZED VIEW whales AS SELECT customer, COUNT(*) AS n FROM big GROUP BY customer;
"""
CHANGED = SQL.replace("SUM(amount) AS total", "MAX(amount) AS total")
ORDERS = [(1, "ada", 5), (2, "ada", 25), (3, "bob", 40), (4, "eve", 1)]
Row = tuple[object, ...]


class Lab:
    """One pipeline: its project can be rewritten, its store can be replaced by a faulty one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.env = ManualEnv()
        self.inner: Store = MemoryStore(self.env)
        self.store: Store = self.inner
        self._project: Project | None = None
        self._monkeypatch = monkeypatch
        self.take_store_back()
        self.write()

    def take_store_back(self) -> None:
        """Projects lead to the store of the lab that was made last, or asked for this last."""
        self._monkeypatch.setattr(Project, "open_store", lambda project, env: self.store)

    def files(self) -> tuple[Path, Path]:
        return self.folder / "pipeline.sql", self.folder / "stepwell.yml"

    def manifest_views(self) -> set[str]:
        """Those that are stored."""
        found = self.manifest().program["resources"].values()
        return {item["name"] for item in found if "MATERIALIZED" in item.get("text", "")}

    def rows_by_name(self, relation: str) -> list[dict[str, object]]:
        program = self.manifest().program
        table = take_snapshot(as_deployed(self.project(), program), self.env).table(relation)
        return list(table.to_pylist())

    def write(self, sql: str = SQL, yml: str = YML) -> None:
        self.folder.mkdir(exist_ok=True)
        self._project = None
        (self.folder / "stepwell.yml").write_text(yml, encoding="utf-8")
        (self.folder / "pipeline.sql").write_text(sql, encoding="utf-8")

    def project(self) -> Project:
        """Read again only when it was written: thousands of crashes begin with it."""
        if self._project is None:
            self._project = load_project(self.folder, self.env)
        return self._project

    def plan(self) -> Plan:
        return plan_project(self.project(), self.env)

    def actions(self) -> dict[str, str]:
        return {step.key: step.action.value for step in self.plan().changes}

    def deploy(self, *, approve: bool = True, **more: object) -> Deployment:
        return deploy(self.project(), self.env, approve=lambda plan: approve, **more)  # type: ignore[arg-type]

    def open(self) -> ProjectPipeline:
        """As `run` opens it: what is deployed."""
        program = self.manifest().program
        return ProjectPipeline(as_deployed(self.project(), program), self.env)

    def push(self, *rows: tuple[int, str, int]) -> None:
        with self.open() as pipeline:
            for id, customer, amount in rows:
                pipeline.push("orders", [{"id": id, "customer": customer, "amount": amount}])

    def run(self) -> None:
        """Whatever waits for sinks is delivered."""
        with self.open() as pipeline:
            pipeline.run(once=True)

    def rows(self, relation: str) -> Counter[Row]:
        program = self.manifest().program
        table = take_snapshot(as_deployed(self.project(), program), self.env).table(relation)
        return Counter(tuple(row.values()) for row in table.to_pylist())

    def sink(self, name: str = "out") -> Counter[Row]:
        """What the files of a sink add up to; nothing goes that did not come."""
        rows: Counter[Row] = Counter()
        for part in sorted((self.folder / name).glob("*/part.json")):
            for line in part.read_text(encoding="utf-8").splitlines():
                values = json.loads(line)
                rows[tuple(v for key, v in values.items() if key != "_w")] += values["_w"]
            assert min(rows.values(), default=0) >= 0, f"{part} takes back what was not there"
        return +rows

    def batches(self, name: str = "out") -> list[str]:
        return sorted(path.parent.name for path in (self.folder / name).glob("*/part.json"))

    def manifest(self) -> Manifest:
        found = Manifests(self.store, self.env).latest()
        assert found is not None
        return found.manifest

    @property
    def serial(self) -> int:
        return read_state(self.inner).serial

    def is_settled(self) -> bool:
        """The record says what the manifest says, and there is nothing left to do."""
        state = read_state(self.inner)
        same = dict(state.resources) == dict(self.manifest().program["resources"])
        unchanged = all(step.action is Action.UNCHANGED for step in self.plan().steps)
        return same and unchanged


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Deployed, with a few orders in it, and its sink up to date."""
    made = Lab(tmp_path / "project", monkeypatch)
    made.deploy()
    made.push(*ORDERS)
    made.run()
    return made
