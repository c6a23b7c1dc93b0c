"""Renamed columns, which keep their values: declared in the file, or on the command line.

    amount DECIMAL(12,2) RENAMED FROM total         stepwell deploy --rename orders.total=amount

Without either, a missing column and a new one are two different columns. A rename that was already
deployed has no effect, so the clause may stay in the file. A rename that does not match the
deployed table is refused before anything is changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from stepwell.deploy.project import Project
from stepwell.deploy.resources import Deployed, Resource, key_of
from stepwell.deploy.table_change import TableChange, wrong_renames
from stepwell.errors import ConfigError
from stepwell.sql.statements import Column, Table, fold
from stepwell.text import did_you_mean, unquote_name

_OPTION = re.compile(r"([^.=]+)\.([^.=]+)=([^.=]+)")


def with_renames(wanted: Deployed, options: Sequence[str]) -> dict[str, Resource]:
    """Add renames such as `orders.total=amount` from the command line to the wanted resources."""
    made = dict(wanted)
    for option in options:
        found = _OPTION.fullmatch(option.strip())
        if found is None:
            raise ConfigError(
                f"--rename {option} is not a rename",
                hint="write TABLE.OLD=NEW, as in --rename orders.total=amount",
            )
        name, old, new = (unquote_name(part.strip()) for part in found.groups())
        resource = made.get(key_of("table", name))
        table = None if resource is None else resource.statement()
        if resource is None or not isinstance(table, Table):
            tables = [r.name for r in made.values() if r.kind == "table"]
            hint = did_you_mean(name, tables) or f"the tables are: {', '.join(tables)}"
            raise ConfigError(f"--rename {option}: the project has no table {name}", hint=hint)
        columns = {fold(column.name): column.name for column in table.columns}
        if fold(new) not in columns:
            hint = did_you_mean(new, columns.values()) or "declare the column under its new name"
            raise ConfigError(
                f"--rename {option}: table {table.name} of the project has no column {new}",
                hint=hint,
            )
        if fold(old) in columns:
            raise ConfigError(
                f"--rename {option}: {old} is still a column of table {table.name}",
                hint=f"declare {new} in the place of {old}",
            )
        renames = dict(resource.renames)
        declared = renames.get(fold(new), fold(old))
        others = [other for other, was in renames.items() if was == fold(old) != other != fold(new)]
        if declared != fold(old) or others:
            raise ConfigError(
                f"--rename {option} contradicts another rename of table {table.name}",
                hint="leave one of them out",
            )
        renames[fold(new)] = fold(old)
        made[resource.key] = replace(resource, renames=renames)
    return made


def check_renames(project: Project, deployed: Deployed, wanted: Deployed) -> None:
    """Reject renames that do not match the deployed tables, at their position in the file."""
    for statement in project.statements:
        key = key_of("table", statement.name)
        old, new = deployed.get(key), wanted.get(key)
        before = None if old is None else old.statement()
        if not isinstance(statement, Table) or not isinstance(before, Table) or new is None:
            continue
        for problem, name, hint in wrong_renames(before, statement, new.renames):
            (column,) = (c for c in statement.columns if fold(c.name) == name)
            if column.renamed is None:
                raise ConfigError(f"--rename: {problem}", hint=hint)
            raise statement.source.error_at(column.renamed.name_span, problem, hint=hint)


def likely_rename(table: Table, change: TableChange) -> str | None:
    """Return a hint if a dropped column and a new one may be the same."""
    pairs = [
        (old, new)
        for old in change.dropped
        for new in change.added
        if _alike(old, new) and new.default is None
    ]
    if len(pairs) != 1:
        return None
    old, new = pairs[0]
    return (
        f"if {new.name} is {old.name} under another name, write {new.name} {new.type.upper()} "
        f"RENAMED FROM {old.name}, or add --rename {table.name}.{old.name}={new.name}: its values "
        "are kept then"
    )


def _alike(old: Column, new: Column) -> bool:
    return old.type == new.type and not (old.nullable and not new.nullable)
