"""What a change of tables and views means for those that read them, column by column.

Two sets of resources, the deployed one and the wanted one, are written as `query/lineage` writes
them, with columns of tables under the names they have in the deployed one. A view whose texts are
equal in both gives the same answer, so what is stored for it is right as it is. Works on the text
alone, without Spark; whether Spark agrees is asked when it is deployed. A view that is not
understood counts as changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sqlglot.errors import SqlglotError

from stepwell.deploy.resources import Deployed, Resource, shown
from stepwell.deploy.table_change import TableChange, renames_done, table_change
from stepwell.errors import StepwellError
from stepwell.query.lineage import Columns, Lineage, Read, lineage, table_lineage
from stepwell.query.parse import catalog_of
from stepwell.query.reasons import Unsupported
from stepwell.query.statements import MaterializedView, Policy, Table, fold


@dataclass(frozen=True, slots=True)
class Compared:
    """A view in both sets."""

    before: Lineage | None
    now: Lineage | None

    @property
    def same_rows(self) -> bool:
        """Whether its answer is the same for certain, apart from the names of its columns."""
        return self.before is not None and self.now is not None and self.before.same_rows(self.now)

    @property
    def same_names(self) -> bool:
        return (
            self.before is not None and self.now is not None and self.before.names == self.now.names
        )


class Comparison:
    """The lineage of what is deployed beside that of what is wanted. Worked out as it is asked."""

    def __init__(self, deployed: Deployed, wanted: Deployed) -> None:
        self.changes = table_changes(deployed, wanted)
        before, now = known_columns(deployed, wanted, self.changes)
        self._before = _Side(deployed, before)
        self._now = _Side(wanted, now)

    def view(self, key: str) -> Compared:
        return Compared(self._before.find(key), self._now.find(key))

    def cause(self, key: str) -> tuple[Read, str] | None:
        """The changed column that a view reads, and why it counts; None: there is none to name."""
        compared = self.view(key)
        before = frozenset() if compared.before is None else compared.before.reads
        now = frozenset() if compared.now is None else compared.now.reads
        for table, change in self.changes.items():
            name = table.partition(".")[2]
            for column in change.added:
                if (name, fold(column.name)) in now:
                    why = f"it reads column {column.name} of {shown(table)}, which is new"
                    return (name, fold(column.name)), why
            for column in change.dropped:
                if (name, fold(column.name)) in before:
                    why = f"it reads column {column.name} of {shown(table)}, which is dropped"
                    return (name, fold(column.name)), why
            for old, new in change.retyped:
                if (name, fold(old.name)) in now:
                    why = (
                        f"it reads column {new.name} of {shown(table)}, whose type changes from "
                        f"{old.type} to {new.type}"
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
            self._known[key] = None  # A circle is not understood.
            resource = self.resources.get(key)
            self._known[key] = None if resource is None else self._made(resource)
        return self._known[key]

    def _made(self, resource: Resource) -> Lineage | None:
        try:
            statement = resource.statement()
            if isinstance(statement, Table):
                return table_lineage(statement, self.columns.get(fold(resource.name)))
            if isinstance(statement, MaterializedView) and statement.policy is Policy.FULL:
                return None  # Computed from its text, which Spark alone reads then.
            relations = {}
            for key in resource.reads:
                found = self.find(key)
                if found is None:
                    return None
                relations[key.partition(".")[2]] = found
            return _lineage(statement.query, statement.columns, tuple(relations.items()))
        except (Unsupported, SqlglotError, StepwellError, RecursionError):
            return None


@lru_cache(maxsize=1_000)
def _lineage(
    query: str, names: tuple[str, ...] | None, relations: tuple[tuple[str, Lineage], ...]
) -> Lineage:
    """A plan is made several times in a deploy."""
    catalog = catalog_of({name: made.names for name, made in relations}, {})
    return lineage(query, catalog, dict(relations), names)


def table_changes(deployed: Deployed, wanted: Deployed) -> dict[str, TableChange]:
    """Tables in both sets that differ, by key."""
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
    """What is to be known of tables that change, before and now; by their names in lower case."""
    called = called_before(deployed, wanted)
    before, now = {}, {}
    for key, change in changes.items():
        name = key.partition(".")[2]
        wider = frozenset(fold(old.name) for old, _ in change.retyped)
        before[name] = Columns(widened=wider)
        now[name] = Columns(called.get(key, {}), wider)
    return before, now


def called_before(deployed: Deployed, wanted: Deployed) -> dict[str, dict[str, str]]:
    """By table's key: what columns were called that a deploy renames, by their new names."""
    made = {}
    for key, new in wanted.items():
        old = deployed.get(key) if new.kind == "table" else None
        before = None if old is None else old.statement()
        if isinstance(before, Table):
            made[key] = renames_done(before, new.renames)
    return made
