"""The datasets of a project for OpenLineage: what its sources read, and what it writes.

Names follow the naming conventions of OpenLineage, so that the same file, topic or table has the
same name in the events of other programs. Names hold no credentials. A table that no source fills,
and every materialized view, is a dataset below the pipeline's store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from stepwell.deploy.connections import Connection
from stepwell.deploy.lineage import lineages
from stepwell.deploy.project import Project
from stepwell.deploy.resources import key_of, resources_of
from stepwell.endpoint.open_lineage import (
    ColumnRead,
    Dataset,
    Datasets,
    DescribedColumn,
    DescribedDataset,
)
from stepwell.plan.described import read_description
from stepwell.sql.lineage import Lineage, Read
from stepwell.sql.statements import MaterializedView, Table, fold

_PORTS = {"postgres": 5432, "kafka": 9092}


def datasets_of(project: Project, described: str | None) -> Datasets:
    """The datasets of a deployed project; `described` is the description in its manifest."""
    views = [view for view in project.views.values() if isinstance(view, MaterializedView)]
    sources = {fold(table): _filling(project, table) for table in project.tables}
    found = lineages(resources_of(project))
    typed = read_description(described, "the manifest").views
    named = {fold(table.name): table for table in project.tables.values()}
    inputs = {
        dataset: DescribedDataset(dataset, _columns(table))
        for name, table in named.items()
        for dataset in sources[name]
    }
    outputs = []
    for view in views:
        known = typed.get(fold(view.name))
        lineage = found.get(key_of("view", view.name))
        types = {} if known is None else dict(zip(known.columns, known.types, strict=True))
        names = view.columns or () if lineage is None else lineage.names
        columns = _traced(names or tuple(types), types, lineage, named, sources)
        rows = () if lineage is None else tuple(_reads(lineage.rows.reads, named, sources))
        traced = lineage is not None
        at = _stored(project.store, view.name)
        outputs.append(DescribedDataset(at, columns, rows, traced))
        for sink in project.sinks:
            if fold(sink.relation) == fold(view.name):
                for at in _places(sink, project):
                    outputs.append(DescribedDataset(at, columns, rows, traced, sink.name))
    return Datasets(tuple(inputs.values()), tuple(outputs))


def _filling(project: Project, table: str) -> tuple[Dataset, ...]:
    """The datasets that fill a table; the table itself, if rows are only pushed to it."""
    made = [
        dataset
        for source in project.sources
        if fold(source.relation) == fold(table)
        for dataset in _places(source, project)
    ]
    return tuple(dict.fromkeys(made)) or (_stored(project.store, table),)


def _columns(table: Table) -> tuple[DescribedColumn, ...]:
    return tuple(DescribedColumn(column.name, column.type) for column in table.columns)


def _traced(
    names: Iterable[str],
    types: Mapping[str, str],
    lineage: Lineage | None,
    tables: Mapping[str, Table],
    sources: Mapping[str, tuple[Dataset, ...]],
) -> tuple[DescribedColumn, ...]:
    made = []
    for place, name in enumerate(names):
        reads: tuple[ColumnRead, ...] = ()
        passed_on = False
        if lineage is not None:
            value = lineage.columns[place]
            reads = tuple(_reads(value.inputs, tables, sources))
            passed_on = value.unchanged
        made.append(DescribedColumn(name, types.get(name), reads, passed_on))
    return tuple(made)


def _reads(
    reads: Iterable[Read],
    tables: Mapping[str, Table],
    sources: Mapping[str, tuple[Dataset, ...]],
) -> Iterator[ColumnRead]:
    """The columns of datasets that columns of tables come from."""
    for table, column in sorted(reads):
        spelled = {fold(item.name): item.name for item in tables[table].columns}
        for dataset in sources[table]:
            if column:  # Otherwise it depends on the number of rows alone.
                yield ColumnRead(dataset, spelled[column])


def _stored(store: str, relation: str) -> Dataset:
    """A relation of a pipeline, below its store."""
    place = _at(store)
    return Dataset(place.namespace, f"{place.name.rstrip('/')}/{relation}")


def _places(connection: Connection, project: Project) -> tuple[Dataset, ...]:
    """What a source reads, or a sink writes."""
    options = connection.options
    match connection.type:
        case "files" | "delta":
            path = str(options["path"])
            if "://" not in path:
                path = os.path.normpath(project.folder / os.path.expanduser(path))
            return (_at(path),)
        case "kafka":
            first = _names(options["brokers"])[0]
            broker = first if ":" in first else f"{first}:{_PORTS['kafka']}"
            return tuple(Dataset(f"kafka://{broker}", name) for name in _names(options["topic"]))
        case "iceberg":
            catalog = options.get("catalog")
            given = catalog if isinstance(catalog, Mapping) else {}
            where = _at(str(given.get("warehouse") or given.get("uri") or "iceberg://catalog"))
            namespace = where.namespace + (f":{where.name}" if where.name else "")
            return (Dataset(namespace, str(options["identifier"])),)
        case "postgres":
            server, database = _postgres(str(options["dsn"]))
            table = f"{options.get('schema', 'public')}.{options.get('table', connection.relation)}"
            return (Dataset(server, f"{database}.{table}"),)
        case other:
            return (Dataset("stepwell", f"{other}/{connection.name}"),)


def _names(given: object) -> list[str]:
    every = given if isinstance(given, list | tuple) else str(given).split(",")
    return [str(name).strip() for name in every]


def _at(address: str) -> Dataset:
    """A directory, or a prefix of a bucket.

    >>> _at("/data/in/*.json")
    Dataset(namespace='file', name='/data/in/*.json')
    >>> _at("s3://key:secret@acme/orders")
    Dataset(namespace='s3://acme', name='orders')
    """
    if "://" not in address or address.startswith("file://"):
        return Dataset("file", address.removeprefix("file://"))
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return Dataset(f"{parts.scheme}://{host}", parts.path.strip("/"))


def _postgres(dsn: str) -> tuple[str, str]:
    """The server and the database of a connection string, which may hold a password.

    >>> _postgres("postgresql://me:secret@db.acme.com/sales"), _postgres("host=db dbname=sales")
    (('postgres://db.acme.com:5432', 'sales'), ('postgres://db:5432', 'sales'))
    """
    if "://" in dsn:
        parts = urlsplit(dsn)
        host, port, database = parts.hostname, parts.port, parts.path.strip("/")
    else:
        given = dict(re.findall(r"(\w+)\s*=\s*'?([^'\s]+)", dsn))
        host, database = given.get("host"), given.get("dbname", "")
        port = int(given["port"]) if given.get("port", "").isdigit() else None
    return f"postgres://{host or 'localhost'}:{port or _PORTS['postgres']}", database or "postgres"
