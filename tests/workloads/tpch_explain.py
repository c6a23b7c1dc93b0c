"""What `explain` says about the 22 views of TPC-H, and what small changes of them cost.

Both are pinned in files beside this one. After a change that is meant, write them again and read
the difference; the costs need Spark:

    python -m tests.workloads.tpch_explain [--costs]
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tests.workloads  # noqa: F401 - finds the folder of the benchmarks
from stepwell.deploy.graph import column_names
from stepwell.execution.local.offline import explain_offline
from stepwell.plan.explain import Explained
from stepwell.sql.statements import fold, parse_statements
from stepwell.text import Source

if TYPE_CHECKING:
    from stepwell.execution.spark.views import Views

TEXT = Path(__file__).parent / "tpch_explain.txt"
DOCUMENTS = Path(__file__).parent / "tpch_explain.jsonl"
COSTS = Path(__file__).parent / "tpch_costs.json"
SCALE = 0.01


def sql() -> str:
    import _tpch
    from _changes import views

    schema = (_tpch.SQL / "schema.sql").read_text(encoding="utf-8")
    return "\n".join([schema, *views(_tpch.SQL).values()])


def explained() -> list[Explained]:
    """The views as explained without Spark. Raises `CannotRunError` if one is not known."""
    statements = parse_statements(Source("tpch.sql", sql()))
    by_name = {fold(statement.name): statement for statement in statements}
    found = explain_offline(statements, lambda name: column_names(name, by_name.get))
    for view in found.values():
        if not isinstance(view, Explained):
            raise view
    return [view for view in found.values() if isinstance(view, Explained)]


def text(views: Iterable[Explained]) -> str:
    return "\n\n".join(map(str, views)) + "\n"


def documents(views: Iterable[Explained]) -> str:
    """One JSON document per line and view."""
    lines = (json.dumps(view.to_json(), separators=(",", ":")) for view in views)
    return "\n".join(lines) + "\n"


def costs(views: Views, changes: Any) -> dict[str, dict[str, dict[str, int]]]:
    """Spark queries and stored rows read by each view that takes any, for some small changes."""
    from stepwell.lsm.change import Change

    drawn = {
        "new orders": lambda: changes.new_orders(0.001),
        "deleted orders": lambda: changes.delete_orders(0.001),
        "every table": lambda: changes.mixed(20),
    }
    found = {}
    for name, draw in drawn.items():
        outcome = views.apply({t: Change(c.put, c.delete) for t, c in draw().items()})
        if outcome.rejected or outcome.recomputed:
            raise AssertionError(f"{name}: {outcome}")
        found[name] = {"queries": _some(outcome.queries_of), "rows": _some(outcome.rows_of)}
    return found


def _some(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _write_costs() -> None:
    import _tpch
    from stepwell.execution.spark.session import open_session
    from stepwell.execution.spark.views import Views
    from tests.execution.conftest import SETTINGS

    with tempfile.TemporaryDirectory() as name:
        _tpch.generate(Path(name), SCALE)
        tables = _tpch.load(Path(name), SCALE)
        views = Views.open(open_session(SETTINGS), sql(), tables=tables)
        found = costs(views, _tpch.Changes(tables, 1))
    COSTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    views = explained()
    TEXT.write_text(text(views), encoding="utf-8")
    DOCUMENTS.write_text(documents(views), encoding="utf-8")
    if "--costs" in sys.argv[1:]:
        _write_costs()
