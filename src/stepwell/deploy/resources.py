"""Resources of a project: tables, views, sources and sinks, as values that can be stored.

A resource is the same JSON in the manifest's program and in `resources.json`; design note 0015 has
its fields. A value from the environment or a file is stored as its reference, never as the value.
`deployed_project` is the other direction: from stored resources to a project that can be run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from stepwell.deploy.connections import Connection
from stepwell.deploy.data_tests import DECLARED_TEST, DeclaredTest
from stepwell.deploy.project import Project
from stepwell.deploy.references import Secret
from stepwell.deploy.sections import ExecutorName, SparkSection
from stepwell.errors import ConfigError, CorruptError, InvalidError
from stepwell.model import checksum
from stepwell.sql.settings import changes_meaning, meaning
from stepwell.sql.statements import Statement, Table, fold, parse_statements
from stepwell.store import records
from stepwell.store.records import Record, omitted, one
from stepwell.store.sealed import Fields, Json
from stepwell.text import Source, Tokens

Kind = Literal["table", "view", "source", "sink"]
KINDS: tuple[Kind, ...] = ("table", "view", "source", "sink")


@dataclass(frozen=True, slots=True)
class Resource:
    kind: Kind
    id: str
    """Empty until it is deployed."""
    name: str
    checksum: str
    """Checksum of the tokens of a statement, or of the options of a connection."""
    protected: bool
    reads: tuple[str, ...]
    """Keys of the resources that it needs."""
    text: str = ""
    """Statement of a table or view."""
    options: Mapping[str, Json] = field(default_factory=dict, repr=False)
    """Options of a source or sink, with references instead of secrets."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Spark settings that change the meaning of a view's query, if the project has any."""
    test: DeclaredTest | None = None
    """The data test of a view of violations."""
    renames: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Renamed columns of a table, from the new name to the old; in lower case."""

    @property
    def key(self) -> str:
        return key_of(self.kind, self.name)

    @property
    def relation(self) -> str:
        """Table that a source fills, or view that a sink follows."""
        return str(self.options["table" if self.kind == "source" else "view"])

    def statement(self) -> Statement:
        return _statement(f"the deployed {self.kind} {self.name}", self.text)

    def same(self, other: Resource | None) -> bool:
        """Return whether the resource is unchanged."""
        return other is not None and (self.checksum, self.protected, self.test) == (
            other.checksum,
            other.protected,
            other.test,
        )


Deployed = Mapping[str, Resource]


def key_of(kind: Kind, name: str) -> str:
    """Return the key of a resource. Names of relations are case-insensitive, others are not."""
    return f"{kind}.{fold(name) if kind in ('table', 'view') else name}"


def display_name(key: str) -> str:
    """Return the name of a resource in messages.

    >>> display_name("sink.revenue_out")
    'sink revenue_out'
    """
    return key.replace(".", " ", 1)


def resources_of(project: Project) -> dict[str, Resource]:
    """Return all resources that a project declares, in dependency order."""
    kinds: dict[str, Kind] = {
        fold(s.name): "table" if isinstance(s, Table) else "view" for s in project.statements
    }
    made: list[Resource] = []
    tests = {fold(test.violations): test for test in project.tests}
    chosen = meaning(project.sections.spark.conf)
    for statement in project.statements:
        name = fold(statement.name)
        settings = chosen if kinds[name] == "view" else {}
        read = project.reads.get(name, ())
        made.append(
            Resource(
                kinds[name],
                "",
                statement.name,
                _meant(statement_checksum(statement), settings),
                name in project.protected,
                tuple(key_of(kinds[other], other) for other in read),
                statement.source.part(statement.span),
                settings=settings,
                test=tests.get(name),
                renames=_renames(statement),
            )
        )
    for kind, connections in (("source", project.sources), ("sink", project.sinks)):
        of: Kind = "source" if kind == "source" else "sink"
        for item in connections:
            options = _stored(item.options)
            body = json.dumps(options, sort_keys=True, separators=(",", ":"))
            relation = fold(item.relation)
            made.append(
                Resource(
                    of,
                    "",
                    item.name,
                    checksum([body.encode()]),
                    item.name in project.protected,
                    (key_of(kinds[relation], relation),),
                    options=options,
                )
            )
    return {resource.key: resource for resource in made}


def _meant(text: str, settings: Mapping[str, str]) -> str:
    """Return the checksum of a statement under settings that change its meaning."""
    if not settings:
        return text
    return checksum([text.encode(), json.dumps(settings, sort_keys=True).encode()])


def _enforced(project: Project, resources: Deployed, *, leaving: bool) -> SparkSection:
    """Return the project's Spark settings, except those that views were deployed with."""
    spark = project.sections.spark
    free = {name: value for name, value in spark.conf.items() if not changes_meaning(name)}
    views = [resource for resource in resources.values() if resource.kind == "view"]
    for view in views[1:]:
        if view.settings != views[0].settings and not leaving:
            raise InvalidError(
                f"{views[0].name} and {view.name} were deployed with different settings of Spark",
                hint="deploy again, so that all views have the project's",
            )
    return replace(spark, conf={**free, **(views[0].settings if views else {})})


def deployed_project(
    project: Project, resources: Deployed, executor: str, *, leaving: bool = False
) -> Project:
    """Return the project with these resources and its own settings.

    With `leaving`, the project is about to be changed: a source or sink with unresolvable
    references gets no options. Otherwise it could not be removed together with its secret.
    """
    ordered = in_order(resources)
    # Statements that equal those in the project's files are taken from there: messages point there.
    written = {statement.name: statement for statement in project.statements}
    deployed = [r.statement() for r in ordered if r.kind in ("table", "view")]
    statements = tuple(
        written[made.name] if made == written.get(made.name) else made for made in deployed
    )
    connections: dict[str, list[Connection]] = {"source": [], "sink": []}
    for resource in ordered:
        if resource.kind in connections:
            try:
                options = project.references.resolve_stored(
                    resource.options, display_name(resource.key)
                )
            except ConfigError:
                if not leaving:
                    raise
                options = {"type": resource.options["type"]}
            item = Connection(resource.name, resource.relation, str(options["type"]), options)
            connections[resource.kind].append(item)
    if executor not in ("spark", project.sections.executor):
        raise InvalidError(
            f"{project.store} was made with the executor {executor}, which is only for tests",
            hint="give another store (`--store`), and let it ingest everything again",
        )
    kind: ExecutorName = "spark" if executor == "spark" else "reference"
    return replace(
        project,
        sections=replace(
            project.sections, executor=kind, spark=_enforced(project, resources, leaving=leaving)
        ),
        statements=statements,
        sql="".join(f"{r.text};\n\n" for r in ordered if r.kind in ("table", "view")),
        sql_name="the deployed statements",
        reads={
            fold(r.name): tuple(key.partition(".")[2] for key in r.reads)
            for r in ordered
            if r.kind == "view"
        },
        protected=frozenset(_protected_names(ordered)),
        sources=tuple(connections["source"]),
        sinks=tuple(connections["sink"]),
        tests=tuple(resource.test for resource in ordered if resource.test is not None),
    )


def in_order(resources: Deployed) -> tuple[Resource, ...]:
    """Return the resources in dependency order, otherwise tables and views first, as given."""
    placed: dict[str, Resource] = {}

    def place(key: str) -> None:
        if key in placed or key not in resources:
            return
        for other in resources[key].reads:
            place(other)
        placed[key] = resources[key]

    for kind in KINDS:
        for key, resource in resources.items():
            if resource.kind == kind:
                place(key)
    return tuple(placed.values())


def needed(resources: Deployed, views: Iterable[str]) -> dict[str, Resource]:
    """Return the resources needed to compute these views: every table, and the views they read."""
    reached: set[str] = set()
    todo = list(views)
    while todo:
        key = todo.pop()
        if key in resources and key not in reached:
            reached.add(key)
            todo += resources[key].reads
    return {key: r for key, r in resources.items() if r.kind == "table" or key in reached}


def dependants(resources: Deployed, keys: set[str]) -> set[str]:
    """Return the resources that need one of these, directly or not, without these themselves."""
    reached = set(keys)
    for resource in in_order(resources):
        if reached & set(resource.reads):
            reached.add(resource.key)
    return reached - keys


def resources_to_json(resources: Deployed) -> dict[str, Json]:
    return {resource.key: to_json(resource) for resource in in_order(resources)}


def resources_from_json(content: Json, where: str) -> dict[str, Resource]:
    if not isinstance(content, dict):
        raise CorruptError(where, "expected the resources of a program", field="resources")
    return {key: from_json(key, item, where) for key, item in content.items()}


def to_json(resource: Resource) -> dict[str, Json]:
    return _record(resource.kind).write(resource)


def from_json(key: str, item: Json, where: str) -> Resource:
    for kind in KINDS:
        if key.startswith(f"{kind}."):
            return _record(kind).read(Fields(item, where, f"resources.{key}"), kind=kind)
    raise CorruptError(where, f"{key} is not a valid resource", field="resources")


def _record(kind: Kind) -> Record[Resource]:
    return _STATEMENT if kind in ("table", "view") else _CONNECTION


_COMMON = {
    "id": records.text,
    "name": records.text,
    "checksum": records.text,
    "protected": records.flag,
    "reads": records.names,
}
_STATEMENT = Record(
    Resource,
    without=("kind", "options"),
    **_COMMON,
    text=records.text,
    settings=omitted(records.texts),
    test=omitted(one(DECLARED_TEST)),
    renames=omitted(records.texts),
)
_CONNECTION = Record(
    Resource,
    without=("kind", "text", "settings", "test", "renames"),
    **_COMMON,
    options=records.Kind(Fields.any, dict),
)


def statement_checksum(statement: Statement) -> str:
    """Compute the checksum of a statement's tokens: comments and white space may change.

    The old name of a renamed column is left out: the clause may stay in the file after the
    deploy.
    """
    text = statement.source.part(statement.span)
    if isinstance(statement, Table):
        for column in reversed(statement.columns):
            if column.renamed is not None:
                start = column.renamed.span.start - statement.span.start
                end = column.renamed.span.end - statement.span.start
                text = f"{text[:start]} {text[end:]}"
    return tokens_checksum(text)


def _renames(statement: Statement) -> dict[str, str]:
    if not isinstance(statement, Table):
        return {}
    return {fold(c.name): fold(c.renamed.name) for c in statement.columns if c.renamed is not None}


def tokens_checksum(text: str) -> str:
    return checksum(_parts(text))


def _parts(text: str) -> Iterator[bytes]:
    tokens = Tokens(Source("", text))
    while (token := tokens.take()).kind != "end":
        # Prefixed with its length, so that no two lists of tokens give the same bytes.
        body = token.text.encode()
        yield f"{token.kind} {len(body)} ".encode() + body


@lru_cache(maxsize=10_000)
def _statement(name: str, text: str) -> Statement:
    (statement,) = parse_statements(Source(name, text))
    return statement


def _protected_names(resources: tuple[Resource, ...]) -> Iterator[str]:
    for resource in resources:
        if resource.protected:
            relation = resource.kind in ("table", "view")
            yield fold(resource.name) if relation else resource.name


def _stored(value: Any) -> Any:
    """Return options for storage: a secret becomes its reference, and a plain `${` is escaped."""
    if isinstance(value, Mapping):
        return {str(key): _stored(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_stored(item) for item in value]
    if isinstance(value, Secret):
        return value.reference
    return value.replace("${", "$${") if isinstance(value, str) else value
