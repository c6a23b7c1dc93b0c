"""The effect of changed tables and views on the views that read them, column by column.

The deployed and the wanted set of resources are each written in the form of `sql/lineage`, with the
columns of tables under their names in the deployed set. A view whose texts are equal in both sets
has the same result, so its stored rows stay valid. This works on the text alone, without Spark;
Spark confirms it during the deploy. A view that cannot be analyzed counts as changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sqlglot.errors import SqlglotError

from stepwell.deploy.resources import Deployed, Resource, display_name
from stepwell.deploy.table_change import TableChange, renames_done, table_change
from stepwell.errors import StepwellError
from stepwell.plan.reasons import Unsupported
from stepwell.sql.catalog import catalog_of
from stepwell.sql.lineage import Columns, Lineage, Read, lineage, table_lineage
from stepwell.sql.statements import MaterializedView, Policy, Table, fold


@dataclass(frozen=True, slots=True)
class Compared:
    """The lineage of one view in both sets."""

    before: Lineage | None
    now: Lineage | None

    @property
    def same_rows(self) -> bool:
        """Whether its result is certainly the same, apart from the names of its columns."""
        return self.before is not None and self.now is not None and self.before.same_rows(self.now)

    @property
    def same_names(self) -> bool:
        return (
            self.before is not None and self.now is not None and self.before.names == self.now.names
        )


class Comparison:
    """Lineage of the deployed and the wanted resources. Computed on demand."""

    def __init__(self, deployed: Deployed, wanted: Deployed) -> None:
        self.changes = table_changes(deployed, wanted)
        before, now = known_columns(deployed, wanted, self.changes)
        self._before = _Side(deployed, before)
        self._now = _Side(wanted, now)

    def view(self, key: str) -> Compared:
        return Compared(self._before.find(key), self._now.find(key))

    def cause(self, key: str) -> tuple[Read, str] | None:
        """Return the changed column that a view reads, and the reason; None if there is none."""
        compared = self.view(key)
        before = frozenset() if compared.before is None else compared.before.reads
        now = frozenset() if compared.now is None else compared.now.reads
        for table, change in self.changes.items():
            name = table.partition(".")[2]
            for column in change.added:
                if (name, fold(column.name)) in now:
                    why = f"it reads column {column.name} of {display_name(table)}, which is new"
                    return (name, fold(column.name)), why
            for column in change.dropped:
                if (name, fold(column.name)) in before:
                    why = (
                        f"it reads column {column.name} of {display_name(table)}, which is dropped"
                    )
                    return (name, fold(column.name)), why
            for old, new in change.retyped:
                if (name, fold(old.name)) in now:
                    why = (
                        f"it reads column {new.name} of {display_name(table)}, whose type changes "
                        f"from {old.type} to {new.type}"
                    )
                    return (name, fold(new.name)), why
        return None


@dataclass(slots=True)
class _Side:
    """One set of resources."""

    resources: Deployed
    columns: Mapping[str, Columns]
    _known: dict[str, Lineage | None] = field(default_factory=dict)

    def find(self, key: str) -> Lineage | None:
        if key not in self._known:
            self._known[key] = None  # A cycle is not supported.
            resource = self.resources.get(key)
            self._known[key] = None if resource is None else self._made(resource)
        return self._known[key]

    def _made(self, resource: Resource) -> Lineage | None:
        try:
            statement = resource.statement()
            if isinstance(statement, Table):
                return table_lineage(statement, self.columns.get(fold(resource.name)))
            if isinstance(statement, MaterializedView) and statement.policy is Policy.FULL:
                return None  # Recomputed from its text, which only Spark reads.
            relations = {}
            for key in resource.reads:
                found = self.find(key)
                if found is None:
                    return None
                relations[key.partition(".")[2]] = found
            return _lineage(statement.query, statement.columns, tuple(relations.items()))
        except (Unsupported, SqlglotError, StepwellError, RecursionError):
            return None


def lineages(resources: Deployed) -> dict[str, Lineage]:
    """Return the lineage of every table and view, by key, as far as it is known."""
    side = _Side(resources, {})
    found = {key: side.find(key) for key in resources if key.startswith(("table.", "view."))}
    return {key: lineage for key, lineage in found.items() if lineage is not None}


@lru_cache(maxsize=1_000)
def _lineage(
    query: str, names: tuple[str, ...] | None, relations: tuple[tuple[str, Lineage], ...]
) -> Lineage:
    """Compute a lineage. Cached, because a deploy makes its plan several times."""
    catalog = catalog_of({name: made.names for name, made in relations}, {})
    return lineage(query, catalog, dict(relations), names)


def table_changes(deployed: Deployed, wanted: Deployed) -> dict[str, TableChange]:
    """Return the tables in both sets that differ, by key."""
    made = {}
    for key, new in wanted.items():
        old = deployed.get(key)
        if new.kind == "table" and old is not None and old.checksum != new.checksum:
            before, now = old.statement(), new.statement()
            if isinstance(before, Table) and isinstance(now, Table):
                made[key] = table_change(before, now, new.renames)
    return made


def known_columns(
    deployed: Deployed, wanted: Deployed, changes: Mapping[str, TableChange]
) -> tuple[dict[str, Columns], dict[str, Columns]]:
    """Describe the columns of changed tables, before and now, by table name in lower case."""
    called = called_before(deployed, wanted)
    before, now = {}, {}
    for key, change in changes.items():
        name = key.partition(".")[2]
        wider = frozenset(fold(old.name) for old, _ in change.retyped)
        before[name] = Columns(widened=wider)
        now[name] = Columns(called.get(key, {}), wider)
    return before, now


def called_before(deployed: Deployed, wanted: Deployed) -> dict[str, dict[str, str]]:
    """For each table's key, map the new names of columns that a deploy renames to the old ones."""
    made = {}
    for key, new in wanted.items():
        old = deployed.get(key) if new.kind == "table" else None
        before = None if old is None else old.statement()
        if isinstance(before, Table):
            made[key] = renames_done(before, new.renames)
    return made
