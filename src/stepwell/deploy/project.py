"""A project: `stepwell.yml` and the `*.sql` files next to it, as typed and checked values.

    load_project(folder)  ->  Project: settings, statements in order, sources and sinks

Loading a project opens nothing and starts nothing, so it works offline (D10). Everything is
checked: keys, values, references, statements, names of relations and columns, and the options of
every source and sink, which the connector itself checks. The first mistake raises an error that
shows its position.

References are resolved here. Their values stay in memory: `Project` shows none of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepwell.connectors.registry import make_sink, make_source
from stepwell.deploy.connections import NAME, NAME_HINT, Connection, Connections
from stepwell.deploy.data_tests import DeclaredTest, with_tests
from stepwell.deploy.document import Node, read_document
from stepwell.deploy.graph import in_order
from stepwell.deploy.references import References, check_complete
from stepwell.deploy.sections import (
    Sections,
    check_shape,
    read_sections,
    with_store_mapping,
)
from stepwell.deploy.variables import resolved_variables
from stepwell.engine.ports import Expires, Sink, Source
from stepwell.engine.settings import Settings
from stepwell.env import Env
from stepwell.errors import ConfigError
from stepwell.manifest.manifest import Manifest, Manifests
from stepwell.sql.settings import has_usual_types
from stepwell.sql.statements import (
    MaterializedView,
    Statement,
    Table,
    View,
    fold,
    parse_statements,
)
from stepwell.store.base import Store
from stepwell.store.locate import open_store
from stepwell.store.retry import LOOK_S
from stepwell.text import Source as Text
from stepwell.text import did_you_mean

FILE = "stepwell.yml"


@dataclass(frozen=True, slots=True)
class Project:
    name: str
    folder: Path
    target: str | None
    store: str
    """An address, which never contains a secret; a path is absolute."""
    sections: Sections
    statements: tuple[Statement, ...]
    """In dependency order."""
    sql: str = field(repr=False)
    """All statements as one text, for an executor."""
    sql_name: str
    """Name of that text in messages."""
    sources: tuple[Connection, ...]
    sinks: tuple[Connection, ...]
    reads: Mapping[str, tuple[str, ...]] = field(repr=False)
    """The relations that each view names, all in lower case."""
    protected: frozenset[str]
    """Tables and views (in lower case), sources and sinks that must not be dropped."""
    references: References = field(repr=False, compare=False)
    tests: tuple[DeclaredTest, ...] = ()
    store_given: bool = False
    """Whether the store differs from the one in stepwell.yml."""
    patience_s: float = LOOK_S
    """Longest wait for a store that does not answer; the default suits processes that only read."""
    skip_expired: bool = False
    """Whether sources continue behind input that expired unread, and record the loss."""

    @property
    def tables(self) -> Mapping[str, Table]:
        return {s.name: s for s in self.statements if isinstance(s, Table)}

    @property
    def views(self) -> Mapping[str, View | MaterializedView]:
        return {s.name: s for s in self.statements if not isinstance(s, Table)}

    def table(self, name: str) -> Table:
        """Return a table by its name, in any case."""
        for table in self.tables.values():
            if fold(table.name) == fold(name):
                return table
        hint = did_you_mean(name, self.tables) or "tables are: " + ", ".join(self.tables)
        raise ConfigError(f"there is no table {name}", hint=hint)

    def view(self, name: str) -> MaterializedView:
        """Return a materialized view by its name, in any case."""
        stored = [view for view in self.views.values() if isinstance(view, MaterializedView)]
        for view in stored:
            if fold(view.name) == fold(name):
                return view
        names = [view.name for view in stored]
        every = "materialized views are: " + (", ".join(names) or "none")
        for other in self.statements:
            if fold(other.name) == fold(name):
                kind = "a table" if isinstance(other, Table) else "a view that is not stored"
                over = [view.name for view in stored if fold(name) in self.reads_of(view.name)]
                hint = f"materialized views that read it are: {', '.join(over)}" if over else every
                raise ConfigError(
                    f"{other.name} is {kind}, not a materialized view",
                    hint=f"{hint}; stepwell query 'SELECT * FROM {other.name}' shows its rows",
                )
        hint = did_you_mean(name, names) or every
        raise ConfigError(f"there is no materialized view {name}", hint=hint)

    def reads_of(self, view: str) -> set[str]:
        """Return all relations that a view reads, directly or indirectly, in lower case."""
        reached: set[str] = set()
        todo = [fold(view)]
        while todo:
            new = set(self.reads.get(todo.pop(), ())) - reached
            reached |= new
            todo += new
        return reached

    def settings(self) -> Settings:
        """Return the engine's settings for this project."""
        tests = tuple(test.for_engine() for test in self.tests)
        return replace(self.sections.settings(), tests=tests)

    def make_sources(self, env: Env) -> list[Source]:
        """Make new sources each time; the pipeline opened with them closes them."""
        for item in self.sources:
            check_complete(item.options)
        made = [
            make_source(item.name, item.options, self.table(item.relation), env, base=self.folder)
            for item in self.sources
        ]
        for source in made:
            if self.skip_expired and isinstance(source, Expires):
                source.skip_expired()
        return made

    def make_sinks(self, env: Env) -> list[Sink]:
        """Make all sinks except those that are off."""
        off = self.sinks_off(env)
        attached = [item for item in self.sinks if item.name not in off]
        for item in attached:
            check_complete(item.options)
        return [
            make_sink(item.name, item.options, item.relation, env, base=self.folder)
            for item in attached
        ]

    @property
    def types_checked(self) -> bool:
        """Whether the types of expressions were checked without Spark."""
        return has_usual_types(self.sections.spark.conf)

    def sinks_off(self, env: Env) -> tuple[str, ...]:
        """Return the sinks that are off: in a clone its parent's, in a copy its original's."""
        manifest = self._manifest(env) if self.sinks else None
        if manifest is None:
            return ()
        off = {*manifest.sinks_off, *(manifest.parent.sinks if manifest.parent else ())}
        return tuple(item.name for item in self.sinks if item.name in off)

    def patient(self) -> Project:
        """Return the project for a writer, which waits for stores as stepwell.yml says."""
        return replace(self, patience_s=self.sections.store.patience_s)

    def open_store(self, env: Env) -> Store:
        return open_store(self.store, env, patience_s=self.patience_s)

    def open_journal_store(self, env: Env) -> Store | None:
        """Open the store of the journal; None if the journal is in the same store as the state.

        The journal store of stepwell.yml belongs to the store of stepwell.yml. A clone in another
        store does not inherit it (C3): its manifest says where its journal is.
        """
        address = self.sections.journal.store
        manifest = self._manifest(env) if self.store_given else None
        if manifest is not None and manifest.parent is not None:
            address = manifest.journal.store
        if address is None:
            return None
        return open_store(_absolute(self.folder, address), env, patience_s=self.patience_s)

    def _manifest(self, env: Env) -> Manifest | None:
        found = Manifests(self.open_store(env), env).latest()
        return None if found is None else found.manifest


def load_project(
    folder: str | Path,
    env: Env,
    *,
    target: str | None = None,
    store: str | None = None,
    environ: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    secrets: bool = True,
) -> Project:
    """Read and check a project. `store` overrides the one that the project names.

    `variables` come from the command line; `variables.py` describes the precedence. Without
    `secrets`, the options of a source or sink may refer to a missing environment variable or file:
    then they are not checked, and making that source or sink is an error.
    """
    folder = Path(os.path.abspath(Path(folder).expanduser()))
    root = read_document(_find(folder), FILE).mapping(FILE)
    check_shape(root)
    entries = _with_target(root, target)
    declared = entries["variables"].mapping("variables") if "variables" in entries else {}
    environ = os.environ if environ is None else environ
    found = resolved_variables(declared, folder, environ, variables or {})
    references = References(folder, environ, found, required=secrets)
    sections = read_sections(entries, references)
    name = _project_name(root)
    address = _store(folder, entries, references, store, env)
    _check_journal_store(folder, entries, sections, env)
    texts = _sql_files(folder)
    tested = with_tests(entries.get("tests"), _statements(texts))
    ordered = in_order(tested.statements, types=has_usual_types(sections.spark.conf))
    statements = ordered.statements
    sql, sql_name = _joined(texts, statements)
    connections = Connections(folder, env, references, statements)
    sources = connections.sources(entries.get("sources"))
    sinks = connections.sinks(entries.get("sinks"))
    names = [*(fold(s.name) for s in statements), *(item.name for item in (*sources, *sinks))]
    return Project(
        name=name,
        folder=folder,
        target=target,
        store=address,
        sections=sections,
        statements=statements,
        sql=sql,
        sql_name=sql_name,
        sources=sources,
        sinks=sinks,
        reads=ordered.reads,
        protected=_protected(entries.get("protect"), names),
        references=references,
        tests=tested.tests,
        store_given=store is not None,
    )


def _protected(node: Node | None, names: list[str]) -> frozenset[str]:
    if node is None or node.content is None:
        return frozenset()
    if not isinstance(node.content, tuple):
        raise node.error(
            f"protect must be a list of names, found {node.shown}",
            hint="protect: [orders, revenue]",
        )
    found = set()
    for item in node.content:
        name = str(item.content)
        known = name if name in names else fold(name)
        if known not in names:
            hint = did_you_mean(name, names) or "names are: " + ", ".join(names)
            message = f"protect: there is no table, view, source or sink {name}"
            raise item.error(message, hint=hint)
        found.add(known)
    return frozenset(found)


def _find(folder: Path) -> Path:
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", hint="stepwell init creates a project")
    path = folder / FILE
    if path.is_file():
        return path
    other = folder / "stepwell.yaml"
    if other.is_file():
        raise ConfigError(f"{folder} has stepwell.yaml, and no {FILE}", hint=f"mv {other} {path}")
    raise ConfigError(
        f"there is no {FILE} in {folder}",
        hint="stepwell init creates a project; stepwell -C DIR uses one in another folder",
    )


def _with_target(root: Mapping[str, Node], target: str | None) -> Mapping[str, Node]:
    """Return the project's entries for a target: those of the target win, mapping by mapping."""
    targets = root["targets"].mapping("targets") if "targets" in root else {}
    entries = with_store_mapping({k: node for k, node in root.items() if k != "targets"})
    if target is None:
        return entries
    if target not in targets:
        hint = did_you_mean(target, targets) or (
            "targets are: " + ", ".join(targets) if targets else f"{FILE} has no targets"
        )
        raise ConfigError(f"there is no target {target}", hint=hint)
    return _merged(entries, with_store_mapping(targets[target].mapping(f"target {target}")))


def _merged(below: Mapping[str, Node], above: Mapping[str, Node]) -> dict[str, Node]:
    merged = dict(below)
    for name, node in above.items():
        old = merged.get(name)
        if old is None or not isinstance(old.content, Mapping):
            merged[name] = node
        elif isinstance(node.content, Mapping):
            both = _merged(old.content, node.content)
            merged[name] = Node(both, node.source, node.span, node.key)
        else:
            merged[name] = node
    return merged


def _project_name(root: Mapping[str, Node]) -> str:
    node = root.get("name")
    if node is None:
        raise ConfigError(f"{FILE} has no name", hint="add a line: name: orders")
    if not isinstance(node.content, str) or not NAME.fullmatch(node.content):
        raise node.error(f"name must be a name, found {node.shown}", hint=NAME_HINT)
    return node.content


def _store(
    folder: Path,
    entries: Mapping[str, Node],
    references: References,
    given: str | None,
    env: Env,
) -> str:
    if given is not None:
        address = _absolute(Path.cwd(), given)
        open_store(address, env)
        return address
    section = entries.get("store")
    if section is None:
        raise ConfigError(
            f"{FILE} has no store", hint="add a line: store: ./state (or s3://bucket/prefix)"
        )
    node = section.mapping("store").get("address")
    if node is None:
        hint = "store: ./state, or store: {address: ./state, patience: 5m}"
        raise section.error("store must be an address, found none", hint=hint)
    value = references.scalar(node)
    if not isinstance(value, str) or not value:
        raise node.error(f"store must be an address, found {node.shown}", hint="store: ./state")
    address = _absolute(folder, str(value))
    _placed(node, references, lambda: open_store(address, env))
    return address


def _check_journal_store(
    folder: Path, entries: Mapping[str, Node], sections: Sections, env: Env
) -> None:
    address = sections.journal.store
    if address is not None:
        node = entries["journal"].mapping("journal")["store"]
        _placed(node, None, lambda: open_store(_absolute(folder, address), env))


def _absolute(folder: Path, address: str) -> str:
    if "://" in address or re.match(r"[a-z0-9]{2,}:/", address):
        return address
    return os.path.normpath(folder / Path(address).expanduser())


def _sql_files(folder: Path) -> list[Text]:
    texts = []
    for path in sorted(folder.glob("*.sql")):
        if path.name.startswith((".", "_")):
            continue
        try:
            texts.append(Text(path.name, path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"{path.name} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path.name} is not UTF-8: {error}") from error
    if not texts:
        raise ConfigError(
            f"{folder} holds no *.sql file",
            hint="write one: CREATE TABLE ..., CREATE MATERIALIZED VIEW ... AS SELECT ...",
        )
    return texts


def _statements(texts: list[Text]) -> list[Statement]:
    seen: dict[str, Statement] = {}
    for text in texts:
        for statement in parse_statements(text):
            first = seen.setdefault(fold(statement.name), statement)
            if first is not statement:
                line, _ = first.source.place(first.name_span.start)
                raise text.error_at(
                    statement.name_span,
                    f"{statement.name} is declared twice, first in {first.source.name}:{line}",
                    hint="tables and views share one namespace, and names are case-insensitive",
                )
    if not any(isinstance(statement, Table) for statement in seen.values()):
        raise ConfigError(
            f"{texts[0].name} declares no table", hint="a pipeline begins with CREATE TABLE"
        )
    return list(seen.values())


def _joined(texts: list[Text], statements: tuple[Statement, ...]) -> tuple[str, str]:
    """Join the statements for the executor. A single file is kept as it is, so that lines match."""
    if len(texts) == 1:
        starts = [statement.span.start for statement in statements]
        if starts == sorted(starts):
            return texts[0].text, texts[0].name
    parts = [statement.source.part(statement.span) for statement in statements]
    return ";\n\n".join(parts) + ";\n", "the project's statements"


def _placed(node: Node, references: References | None, make: Callable[[], object]) -> None:
    try:
        make()
    except ConfigError as error:
        message = references.redact(error.message) if references else error.message
        raise node.error(message, hint=error.hint) from error
