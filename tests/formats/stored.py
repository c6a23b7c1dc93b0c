"""A stored pipeline: a zip archive of stores and files, unpacked for one test.

    parent/      a pipeline: deployed, flushed, with a checkpoint, an outbox and a tail to replay
    clone/       a clone of it that reads the parent's runs
    deploying/   another pipeline, whose deploy was killed: its lease and its log are there
    project/     what lies in the project's folder: the input, the output of a sink
    plan.json    a plan that was kept by `plan --out`

The stores lie in memory under the addresses `memory://parent` and so on, because a clone stores the
address of its parent, and a folder of this machine would be another one elsewhere.
"""

from __future__ import annotations

import ast
import json
import os
import re
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stepwell
from stepwell.deploy.program import FORMAT as PROGRAM_FORMAT
from stepwell.store.base import Store
from stepwell.store.memory import SHARED, MemoryStore
from stepwell.testing import ManualEnv

FOLDER = Path(__file__).resolve().parent / "stored"
PACKAGE = Path(stepwell.__file__).resolve().parent
STORES = ("parent", "clone", "deploying")
MTIME = 1767225600
"""Files of an input have this time whenever they are unpacked: positions may hold it."""

YML = """\
name: orders
store: memory://{store}
sources:
  order_files: {{table: orders, type: files, path: data/*.json, format: json}}
sinks:
  out: {{view: revenue, type: files, path: out, format: json}}
  down: {{view: visits, type: files, path: down, format: json}}
"""
SQL = """\
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer STRING, amount DECIMAL(12,2));
CREATE TABLE clicks (customer STRING, page STRING, at TIMESTAMP, weight DOUBLE);
CREATE VIEW big AS SELECT * FROM orders WHERE amount > 10;
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW visits AS SELECT customer, COUNT(*) AS n FROM clicks GROUP BY customer;
CREATE MATERIALIZED VIEW whales AS SELECT customer, COUNT(*) AS n FROM big GROUP BY customer;
"""
CHANGED = SQL.replace("SUM(amount) AS total", "MAX(amount) AS total")
RELATIONS = ("orders", "clicks", "revenue", "visits", "whales", "orders$errors", "clicks$errors")

Rows = dict[str, list[list[Any]]]


@dataclass(frozen=True, slots=True)
class Stored:
    """An archive, unpacked: its stores by name, the folder of its project, its plan."""

    stores: dict[str, MemoryStore]
    project: Path
    plan: bytes
    expected: dict[str, Rows]
    """The rows of every relation of the parent and of the clone."""


def archives() -> list[Path]:
    return sorted(FOLDER.glob("*.zip"))


def unpack(archive: Path, folder: Path, env: ManualEnv) -> Stored:
    """Put the stores under their addresses, and the files into `folder`."""
    stores: dict[str, dict[str, bytes]] = {name: {} for name in STORES}
    plan = b""
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            top, _, path = info.filename.partition("/")
            data = opened.read(info)
            if top in stores:
                stores[top][path] = data
            elif top == "project":
                write_file(folder / path, data)
            else:
                plan = data
    made = {name: put_store(name, objects, env) for name, objects in stores.items()}
    expected = json.loads(archive.with_suffix(".json").read_text(encoding="utf-8"))
    return Stored(made, folder, plan, expected)


def pack(archive: Path, stores: dict[str, dict[str, bytes]], project: Path, plan: bytes) -> None:
    """Write an archive; the same contents give the same bytes."""
    files = {
        f"{name}/{path}": data for name, objects in stores.items() for path, data in objects.items()
    }
    for path in project.rglob("*"):
        if path.is_file():
            files[f"project/{path.relative_to(project)}"] = path.read_bytes()
    files["plan.json"] = plan
    archive.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for name in sorted(files):
            opened.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)


def put_store(name: str, objects: dict[str, bytes], env: ManualEnv) -> MemoryStore:
    """A store with these objects, which can be opened as `memory://<name>`."""
    store = MemoryStore(env, name)
    for path, data in objects.items():
        store.put_new(path, data)
    SHARED[store.uri] = store
    return store


def objects(store: Store) -> dict[str, bytes]:
    """All that a store holds."""
    found = {item.path: store.get(item.path) for item in store.list()}
    return {path: item.data for path, item in found.items() if item is not None}


def write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (MTIME, MTIME))


def formats_in_code() -> set[str]:
    """Every `stepwell-<what>/<version>` that the package writes, and the program's number."""
    found = {f"program/{PROGRAM_FORMAT}"}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"^stepwell-[a-z-]+/\d+$", node.value))
    return found


def formats_in(archive: Path) -> set[str]:
    """Every format that an object of an archive says it has."""
    found: set[str] = set()
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            data = opened.read(info)
            found |= {item.decode() for item in re.findall(rb"\bstepwell-[a-z-]+/\d+\b", data)}
            if info.filename.startswith("parent/manifest/"):
                program = json.loads(data)["body"]["program"]
                if program is not None:
                    found.add(f"program/{program['format']}")
    return found


def sink_rows(folder: Path) -> Counter[tuple[Any, ...]]:
    """What the folders of a files sink add up to."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for part in sorted(folder.glob("*/part.json")):
        for line in part.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            rows[tuple(v for key, v in values.items() if key != "_w")] += values["_w"]
    return rows
