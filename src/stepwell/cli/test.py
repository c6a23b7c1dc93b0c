"""`stepwell test`: check whether the data passes its tests. The exit code tells.

The pipeline maintains the number of violations of every test. A process that runs the pipeline is
asked for them. For a stopped pipeline they are in the manifest, unless the journal holds later
transactions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.cli.choices import QueryFormat
from stepwell.cli.pipeline_access import latest, running
from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.query import Asker, write
from stepwell.cli.screen import Row, Screen, count
from stepwell.connectors.writing import json_lines
from stepwell.deploy.data_tests import DECLARED_TEST, DeclaredTest
from stepwell.deploy.project import Project
from stepwell.deploy.snapshot import no_pipeline
from stepwell.endpoint.client import Client
from stepwell.engine.answer import Answer
from stepwell.env import Env, SystemEnv
from stepwell.errors import ConfigError
from stepwell.journal.log import Log
from stepwell.model import Transaction
from stepwell.text import did_you_mean, quote_name


@dataclass(frozen=True, slots=True)
class Counted:
    """Violations by the view that holds them, as of a transaction."""

    transaction: Transaction
    violations: Mapping[str, int]


def show(where: ProjectOptions, names: Sequence[str] | None, rows: int) -> int:
    """Print the tests and their results; return the exit code."""
    env = SystemEnv()
    project = where.deployed(env, secrets=False)
    tests = _chosen(project, names or ())
    state = _State(project, env, where)
    counted = state.counted(tests)
    failing = [test for test in tests if counted.violations[test.violations]]
    samples = {
        test.name: state.ask(f"SELECT * FROM {quote_name(test.violations)} LIMIT {rows}")
        for test in failing
        if rows
    }
    if where.json:
        _document(tests, counted, samples)
    else:
        _render(tests, counted, samples)
    return 1 if failing else 0


def _chosen(project: Project, names: Sequence[str]) -> list[DeclaredTest]:
    if not project.tests:
        raise ConfigError(
            f"{project.name} has no data tests",
            hint="add some to stepwell.yml and deploy them: "
            "tests: {known: {view: NAME, not_null: COLUMN}}",
        )
    by_name = {test.name: test for test in project.tests}
    for name in names:
        if name not in by_name:
            hint = did_you_mean(name, by_name) or "tests are: " + ", ".join(by_name)
            raise ConfigError(f"there is no data test {name}", hint=hint)
    return [by_name[name] for name in names] if names else list(project.tests)


class _State:
    """Counts and rows of violations, from the process that runs the pipeline or from its store."""

    def __init__(self, project: Project, env: Env, where: ProjectOptions) -> None:
        self._project = project
        self._env = env
        self._timeout_s = where.timeout_s
        self.ask = Asker(project, env, where)

    def counted(self, tests: Sequence[DeclaredTest]) -> Counted:
        client = running(self._project, self._env, self._timeout_s)
        stored = self._stored() if client is None else _live(client)
        if stored is not None and all(test.violations in stored.violations for test in tests):
            return stored
        found = {}
        transaction = Transaction(0)
        for test in tests:
            answer = self.ask(f"SELECT COUNT(*) AS n FROM {quote_name(test.violations)}")
            found[test.violations] = int(answer.rows.column(0)[0].as_py())
            transaction = answer.transaction
        return Counted(transaction, found)

    def _stored(self) -> Counted | None:
        """Return the counts in the manifest; None if the journal holds later transactions."""
        found = latest(self._project, self._env)
        if found is None:
            raise no_pipeline(self._project, self._env)
        manifest = found.manifest
        store = self._project.open_journal_store(self._env) or self._project.open_store(self._env)
        last = Log(store, manifest.lineage).last(manifest.replay.position)
        if last > manifest.replay.position:
            return None
        counts = {item.view: item.rows for item in manifest.progress.violations}
        return Counted(manifest.transaction, counts)


def _live(client: Client) -> Counted | None:
    with client:
        status: Mapping[str, Any] = client.status()
    if "tests" not in status:
        return None  # The pipeline is still opening; a query waits for that.
    counts = {item["view"]: int(item["violations"]) for item in status["tests"]}
    return Counted(Transaction(status["transaction"]), counts)


def _render(tests: Sequence[DeclaredTest], counted: Counted, samples: Mapping[str, Answer]) -> None:
    screen = Screen()
    rows = []
    for test in tests:
        number = counted.violations[test.violations]
        verdict = f"fails, see {test.violations}" if number else "passes"
        cells = (test.name, test.relation or "", test.rule, test.on_violation, f"{number:,}")
        rows.append(Row(cells, verdict))
    headings = ["test", "of", "rule", "on violation", ">violations", "result"]
    screen.table(headings, rows)
    for name, answer in samples.items():
        screen.line()
        screen.line(f"{name}:")
        write(answer.rows, QueryFormat.TABLE)
    sys.stdout.flush()
    failing = sum(1 for test in tests if counted.violations[test.violations])
    passing = count(len(tests) - failing, "test passes", "tests pass")
    failed = f", {count(failing, 'test fails', 'tests fail')}" if failing else ""
    print(f"{passing}{failed} as of transaction {counted.transaction}", file=sys.stderr)


def _document(
    tests: Sequence[DeclaredTest], counted: Counted, samples: Mapping[str, Answer]
) -> None:
    """Print one JSON document; rows are formatted separately, because decimals keep every digit."""
    items = []
    for test in tests:
        body = {**DECLARED_TEST.write(test), "violations": counted.violations[test.violations]}
        text = json.dumps({**body, "view": test.violations}, ensure_ascii=False)
        if test.name in samples:
            lines = ", ".join(line.rstrip("\n") for line in json_lines(samples[test.name].rows))
            text = f'{text[:-1]}, "rows": [{lines}]}}'
        items.append(text)
    listed = ",\n".join(items)
    print(f'{{"transaction": {counted.transaction}, "tests": [\n{listed}\n]}}')
