"""What `explain` says about the 22 views of TPC-H, as it is pinned in the files beside this one.

After a change that is meant, write them again and read the difference:

    python -m tests.workloads.tpch_explain
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import tests.workloads  # noqa: F401 - finds the folder of the benchmarks
from stepwell.deploy.graph import column_names
from stepwell.execution.local.offline import explain_offline
from stepwell.plan.explain import Explained
from stepwell.sql.statements import fold, parse_statements
from stepwell.text import Source

TEXT = Path(__file__).parent / "tpch_explain.txt"
DOCUMENTS = Path(__file__).parent / "tpch_explain.jsonl"


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


if __name__ == "__main__":
    found = explained()
    TEXT.write_text(text(found), encoding="utf-8")
    DOCUMENTS.write_text(documents(found), encoding="utf-8")
