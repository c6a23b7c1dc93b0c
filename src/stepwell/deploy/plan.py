"""The plan: what a deploy would do to each resource, the reason, the cost, and the data lost.

A plan is a value, made without side effects from two sets of resources and a few counts. `plan`
shows it, `deploy` carries it out, `--out` saves it, and tests inspect it. A materialized view is
rebuilt if its query or a column that it reads has changed (`lineage.py`). If its result cannot have
changed, it is re-bound: compiled against the relations it reads now, with its stored rows kept.
This also applies through plain views: they are compiled into their readers, and a key that only the
compiler needs passes through them. A view that none of this affects is unchanged.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from stepwell.connectors.evolving import is_evolving, named_evolution, names_refusal
from stepwell.deploy.graph import column_names
from stepwell.deploy.lineage import Comparison
from stepwell.deploy.renames import likely_rename
from stepwell.deploy.resources import (
    Deployed,
    Resource,
    dependants,
    display_name,
    in_order,
    resources_from_json,
    resources_to_json,
    tokens_checksum,
)
from stepwell.deploy.source_location import path_refusal
from stepwell.engine.swap_stages import Stage, stage_to_json
from stepwell.errors import ConfigError, InvalidError, without_secrets
from stepwell.manifest.manifest import Manifest
from stepwell.model import checksum
from stepwell.sql.statements import MaterializedView, Statement, Table, View, fold
from stepwell.store.sealed import Json, seal, unseal

FORMAT = "stepwell-plan/1"
_PLACE = frozenset({"type", "path", "table", "schema", "topic"})
"""Options of a sink that determine its location; at another location the sink starts over."""
_HARMLESS = frozenset(
    {"dsn", "timeout", "storage", "coalesce", "evolve", "brokers", "config", "partitions"}
)
"""Options of a sink that determine how it is reached and how it continues."""


class Action(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    REBUILD = "rebuild"
    REBIND = "rebind"
    """Compiled again; its stored rows are kept."""
    DELETE = "delete"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Facts:
    """Counts from the latest manifest that a plan uses."""

    rows: Mapping[str, int] = field(default_factory=dict)
    """Estimated rows by relation, in lower case: rows of several runs may cancel out."""
    undelivered: Mapping[str, int] = field(default_factory=dict)
    """Number of transactions that wait for each sink."""
    begun: frozenset[str] = frozenset()
    """Sinks that hold output."""
    taken: frozenset[str] = frozenset()
    """Sources that have read input."""

    @classmethod
    def of(cls, manifest: Manifest | None) -> Facts:
        rows: dict[str, int] = {}
        waiting: dict[str, int] = {}
        if manifest is not None:
            for run in manifest.runs:
                name = run.relation.lower()
                rows[name] = rows.get(name, 0) + run.rows
            # A large transaction is several files.
            for sink, _ in {(item.sink, item.mark) for item in manifest.progress.outbox}:
                waiting[sink] = waiting.get(sink, 0) + 1
        if manifest is None:
            return cls(rows, waiting)
        begun = frozenset(at.name for at in manifest.progress.sinks)
        taken = frozenset(at.name for at in manifest.progress.sources if at.position is not None)
        return cls(rows, waiting, begun, taken)


@dataclass(frozen=True, slots=True)
class Step:
    """The action on one resource."""

    key: str
    action: Action
    reason: str = ""
    difference: tuple[str, ...] = ()
    """Lines of a text difference."""
    work: Mapping[str, int] = field(default_factory=dict)
    """Estimated rows that are read to compute it, by table or view."""
    lost: str | None = None
    refused: str | None = None
    cause: str | None = None
    """The column that causes a rebuild of the view, as `table.column`."""
    hint: str | None = None

    def to_json(self) -> dict[str, Json]:
        return {
            "resource": self.key,
            "action": self.action.value,
            "reason": self.reason,
            "difference": list(self.difference),
            "reads_rows": dict(self.work),
            "lost": self.lost,
            "refused": self.refused,
            "cause": self.cause,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    store: str
    executor: str
    before: str
    """Fingerprint of the deployed resources: a saved plan is valid for these only."""
    steps: tuple[Step, ...]
    """Deletions first, readers before what they read; then the others in dependency order."""
    wanted: Deployed = field(repr=False)
    refusal: str | None = None
    """The reason why the whole plan is refused, whatever the steps say."""
    stages: tuple[Stage, ...] = ()
    """The stages of the engine's program swap; empty for a first deploy (`planned_stages`)."""

    @property
    def changes(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.action is not Action.UNCHANGED)

    @property
    def lost(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.lost is not None)

    @property
    def refused(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.refused is not None)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Every reason why the plan is refused."""
        steps = (f"{display_name(step.key)}: {step.refused}" for step in self.refused)
        return (*([] if self.refusal is None else [self.refusal]), *steps)

    def check(self, done: str = "deployed") -> None:
        """Raise `InvalidError` with every reason if a part of the plan is refused."""
        if self.refusals:
            raise InvalidError(
                f"this cannot be {done}:\n" + "\n".join(f"  {why}" for why in self.refusals),
                hint="nothing was changed",
            )

    def to_json(self) -> dict[str, Json]:
        counts = {a.value: sum(s.action is a for s in self.steps) for a in Action}
        return {
            "store": self.store,
            "changes": len(self.changes),
            "counts": counts,
            "refused": list(self.refusals),
            "steps": [step.to_json() for step in self.steps],
            "stages": [stage_to_json(stage) for stage in self.stages],
        }

    def encode(self) -> bytes:
        """Encode the plan for `--out`. It contains no secrets."""
        wanted = resources_to_json(self.wanted)
        steps = [step.to_json() for step in self.steps]
        head = {"store": self.store, "executor": self.executor, "before": self.before}
        return seal(FORMAT, {**head, "steps": steps, "wanted": wanted})


def decode_plan(data: bytes, name: str) -> tuple[str, str, str, dict[str, Resource]]:
    """Return the store, the executor, the fingerprint it was made for, and the wanted resources."""
    fields = unseal(data, format=FORMAT, object=name)
    wanted = resources_from_json(fields.any("wanted"), name)
    return fields.text("store"), fields.text("executor"), fields.text("before"), wanted


def fingerprint(deployed: Deployed, executor: str) -> str:
    body = json.dumps([executor, resources_to_json(deployed)], sort_keys=True)
    return checksum([body.encode()])


def make_plan(
    store: str,
    deployed: Deployed,
    wanted: Deployed,
    *,
    executor: str,
    deployed_executor: str = "",
    facts: Facts | None = None,
    folder: Path = Path("/"),
) -> Plan:
    """Make a plan. Pure: equal arguments give equal plans. Relative paths start at `folder`."""
    steps = _Planner(deployed, wanted, facts or Facts(), folder).steps()
    refusal = None
    if deployed and deployed_executor != executor:
        refusal = (
            f"it was made with the executor {deployed_executor}, which stores other relations than "
            f"{executor}; give another store, and let it ingest everything again"
        )
    before = fingerprint(deployed, deployed_executor)
    return Plan(store, executor, before, steps, wanted, refusal)


def destroy_plan(store: str, deployed: Deployed, executor: str, facts: Facts) -> Plan:
    """Plan the deletion of every resource."""
    plan = make_plan(
        store, deployed, {}, executor=executor, deployed_executor=executor, facts=facts
    )
    steps = tuple(replace(step, reason="with the pipeline") for step in plan.steps)
    return replace(plan, steps=steps)


class _Planner:
    def __init__(self, deployed: Deployed, wanted: Deployed, facts: Facts, folder: Path) -> None:
        self._deployed = deployed
        self._wanted = wanted
        self._facts = facts
        self._folder = folder
        self._compared = Comparison(deployed, wanted)
        self._moved: dict[str, str] = {}
        """Relations whose result changes, with the change in words."""
        self._touched: dict[str, str] = {}
        """Plain views with the same result over a changed relation, with the change in words.

        A view compiled over them may be stored in another way.
        """

    def steps(self) -> tuple[Step, ...]:
        gone = {key: r for key, r in self._deployed.items() if key not in self._wanted}
        deleted = [self._deleted(resource) for resource in reversed(in_order(gone))]
        made = []
        for resource in in_order(self._wanted):
            old = self._deployed.get(resource.key)
            step = self._created(resource) if old is None else self._changed(old, resource)
            made.append(step)
        return (*deleted, *made)

    # Deletions

    def _deleted(self, resource: Resource) -> Step:
        lost: str | None = None
        reason = "it is no longer in the project"
        if resource.kind == "table":
            rows = self._rows(resource.name)
            if rows:
                lost = f"about {rows:,} rows of table {resource.name}"
        elif resource.kind == "sink":
            waiting = self._facts.undelivered.get(resource.name, 0)
            if waiting:
                lost = f"{waiting:,} transactions that sink {resource.name} has not received"
        refused = None
        if resource.protected:
            refused = (
                "it is protected; remove it from protect: and deploy that first, then remove it"
            )
        return Step(resource.key, Action.DELETE, reason, lost=lost, refused=refused)

    # Creations

    def _created(self, resource: Resource) -> Step:
        self._moved[resource.key] = "is new"
        reason = "it is not deployed yet"
        work: dict[str, int] = {}
        if resource.kind == "view":
            before = self._renamed(resource)
            if before is not None:
                reason = f"it is {before} under another name"
            if self._is_stored(resource):
                work = self._work(resource)
        elif resource.kind == "sink":
            reason = "it is not deployed yet; it receives the whole view first"
        return Step(resource.key, Action.CREATE, reason, work=work)

    # Changes

    def _changed(self, old: Resource, new: Resource) -> Step:
        if new.kind == "table":
            return self._table(old, new)
        if new.kind == "view":
            return self._view(old, new)
        return self._source(old, new) if new.kind == "source" else self._sink(old, new)

    def _table(self, old: Resource, new: Resource) -> Step:
        if old.checksum == new.checksum:
            return self._kept(old, new)
        before, now = old.statement(), new.statement()
        if not isinstance(before, Table) or not isinstance(now, Table):
            raise InvalidError(f"{display_name(new.key)} is not a table")
        change = self._compared.changes[new.key]
        lost: str | None = None
        rows = self._rows(new.name)
        refused = change.refused
        if change.dropped and rows:
            names = ", ".join(column.name for column in change.dropped)
            lost = f"the values of {names} in about {rows:,} rows of table {new.name}"
            if old.protected:
                refused = refused or "it is protected, and values of its columns would be lost"
        if change.columns or change.key:
            self._moved[new.key] = (
                "has different columns" if change.columns else "has a different key"
            )
        work = {new.name: rows} if change.rewrites and rows else {}
        return Step(
            new.key,
            Action.UPDATE,
            str(change),
            _difference(old.text, new.text),
            work,
            lost,
            refused,
            hint=likely_rename(now, change),
        )

    def _view(self, old: Resource, new: Resource) -> Step:
        stored = self._is_stored(new)
        difference: tuple[str, ...] = ()
        reason, cause = "", None
        if old.checksum != new.checksum:
            difference = _difference(old.text, new.text)
        changed = _meaning(old) != _meaning(new)
        moved = next((k for k in new.reads if k in self._moved or k not in self._deployed), None)
        moved = moved or next((k for k in new.reads if k in self._touched), None)
        if changed or moved is not None:
            compared = self._compared.view(new.key)
            followed = any(
                r.kind == "sink" and r.reads == (new.key,) and key in self._deployed
                for key, r in self._wanted.items()
            )
            # A sink has its own rules for renamed columns; they apply when it receives a
            # difference.
            renamed = not (compared.same_names and self._same_spelling(old, new, changed))
            if _alike(old, new) and compared.same_rows and not (renamed and followed):
                if renamed:
                    self._moved[new.key] = "has different column names"
                if stored:
                    return Step(new.key, Action.REBIND, self._rebound(moved), difference)
                self._touched[new.key] = (
                    "is only reworded" if moved is None else self._change_below(moved)
                )
                return self._in_other_words(old, new, difference)
            reason, cause = self._otherwise(old, new, moved if not changed else None)
            self._moved[new.key] = "is recomputed" if stored else "is computed differently"
        if reason and stored:
            work = self._work(new)
            return Step(new.key, Action.REBUILD, reason, difference, work, cause=cause)
        if reason and difference:
            return Step(new.key, Action.UPDATE, reason, difference)
        return self._in_other_words(old, new, difference)

    def _same_spelling(self, old: Resource, new: Resource, changed: bool) -> bool:
        """Return whether the columns of a view are spelled as before.

        If the text does not tell the columns, only an unchanged text counts as the same
        spelling.
        """
        before = column_names(old.name, _finder(self._deployed))
        now = column_names(new.name, _finder(self._wanted))
        return before == now and not (before is None and changed)

    def _in_other_words(self, old: Resource, new: Resource, difference: tuple[str, ...]) -> Step:
        if difference:
            return Step(new.key, Action.UPDATE, "it is only reworded", difference)
        return self._kept(old, new)

    def _rebound(self, moved: str | None) -> str:
        if moved is None or moved not in self._deployed:
            return "its query is only reworded; its rows stay"
        return f"it reads no changed column of {display_name(moved)}; its rows stay"

    def _otherwise(self, old: Resource, new: Resource, moved: str | None) -> tuple[str, str | None]:
        """Return why the result of a view changes, and the column that causes it."""
        if moved is None:
            same = old.settings == new.settings
            return "its query changed" if same else "settings it was computed with changed", None
        found = self._compared.cause(new.key)
        if found is not None:
            (table, column), why = found
            return why, f"{table}.{column}"
        return f"it {self._change_below(moved)}", None

    def _change_below(self, key: str) -> str:
        what = self._moved.get(key) or self._touched.get(key, "is new")
        return f"reads {display_name(key)}, which {what}"

    def _source(self, old: Resource, new: Resource) -> Step:
        if old.checksum == new.checksum:
            return self._kept(old, new)
        changed = _changed_options(old, new)
        refused = None
        if new.name in self._facts.taken:
            refused = path_refusal(old, new, self._folder)
        for name in ("table", "type"):
            if name in changed:
                refused = (
                    f"its {name} changes, but it has read its input so far by the old one; give "
                    f"the new source another name"
                )
        reason = f"{', '.join(changed)} changed; it continues from its position"
        return Step(new.key, Action.UPDATE, reason, _options(old, new), refused=refused)

    def _sink(self, old: Resource, new: Resource) -> Step:
        view = new.reads[0]
        if old.checksum == new.checksum:
            if view in self._moved:
                evolves, refused = self._other_columns(old, new)
                reason = (
                    f"{display_name(view)} {self._moved[view]}; {evolves}it receives the difference"
                )
                return Step(new.key, Action.UPDATE, reason, refused=refused)
            return self._kept(old, new)
        changed = _changed_options(old, new)
        difference = _options(old, new)
        named = ", ".join(changed)
        if _PLACE & set(changed):
            reason = f"{named} changed; it starts over there, with the whole view"
            waiting = self._facts.undelivered.get(new.name, 0)
            lost = f"{waiting:,} transactions not sent to the old location" if waiting else None
            return Step(new.key, Action.REBUILD, reason, difference, lost=lost)
        left = set(changed) - _HARMLESS - {"view"}
        refused = None
        if left:
            refused = (
                f"{', '.join(sorted(left))} changed, which does not match its output so far; give "
                f"the new sink another name and another location"
            )
        reason = f"{named} changed"
        if "view" in changed or view in self._moved:
            evolves, why = self._other_columns(old, new)
            what = f"the difference between {new.relation} and {old.relation}"
            reason += f"; {evolves}it receives {what if 'view' in changed else 'the difference'}"
            refused = refused or why
        return Step(new.key, Action.UPDATE, reason, difference, refused=refused)

    def _other_columns(self, old: Resource, new: Resource) -> tuple[str, str | None]:
        """Say how a sink that holds output follows a view with other columns, or why it cannot.

        Facts that the text does not tell (types, names that Spark generates) are checked during the
        deploy.
        """
        if new.name not in self._facts.begun:
            return "", None
        before = column_names(old.relation, _finder(self._deployed))
        now = column_names(new.relation, _finder(self._wanted))
        if before is None or now is None or before == now:
            return "", None
        hint = "give the sink another name and another location: it then starts with the whole view"
        if is_evolving(new.options):
            why = names_refusal(new.options, before, now)
            if why is not None:
                return "", f"it cannot follow {new.relation}: {why}; {hint}"
            how = str(named_evolution(before, now)) or "its columns in another order"
            return f"it evolves: {how}; ", None
        return "", (
            f"{new.relation} has other columns than what it has received so far: "
            f"{', '.join(before)} before, {', '.join(now)} now; set evolve: true on the sink, and "
            f"it follows; or {hint}"
        )

    def _kept(self, old: Resource, new: Resource) -> Step:
        if old.protected != new.protected:
            reason = "it is protected from now on" if new.protected else "it is not protected now"
            return Step(new.key, Action.UPDATE, reason)
        if old.test is not None and new.test is not None and old.test != new.test:
            policies = old.test.on_violation, new.test.on_violation
            reason = "on_violation changes from {} to {}".format(*policies)
            return Step(new.key, Action.UPDATE, reason)
        return Step(new.key, Action.UNCHANGED)

    # Look-ups

    def _rows(self, relation: str) -> int:
        return self._facts.rows.get(fold(relation), 0)

    def _is_stored(self, view: Resource) -> bool:
        return isinstance(view.statement(), MaterializedView)

    def _work(self, view: Resource) -> dict[str, int]:
        """Return the rows of the tables and stored views it reads, also through plain views."""
        work: dict[str, int] = {}
        left = list(view.reads)
        while left:
            key = left.pop()
            read = self._wanted.get(key)
            if read is None or read.name in work:
                continue
            if read.kind == "table" or self._is_stored(read):
                work[read.name] = self._rows(read.name)
            else:
                left += read.reads
        return dict(sorted(work.items()))

    def _renamed(self, new: Resource) -> str | None:
        meaning = _meaning(new)
        for key, old in self._deployed.items():
            if key not in self._wanted and old.kind == "view" and _meaning(old) == meaning:
                return old.name
        return None


def _finder(resources: Deployed) -> Callable[[str], Statement | None]:
    def find(name: str) -> Statement | None:
        for kind in ("table", "view"):
            resource = resources.get(f"{kind}.{name}")
            if resource is not None:
                return resource.statement()
        return None

    return find


def fresh_views(plan: Plan) -> tuple[str, ...]:
    """Return the materialized views that are computed from scratch, in order."""
    return tuple(
        plan.wanted[step.key].name
        for step in plan.steps
        if step.key.startswith("view.")
        and step.action in (Action.CREATE, Action.REBUILD)
        and isinstance(plan.wanted[step.key].statement(), MaterializedView)
    )


def without(plan_wanted: Deployed, deployed: Deployed, failed: set[str]) -> dict[str, Resource]:
    """Return the wanted resources, with failed ones and their dependants as they are deployed.

    Raises `ConfigError` if the result is inconsistent.
    """
    out = failed | dependants(plan_wanted, failed)
    left = {key: r for key, r in plan_wanted.items() if key not in out}
    back = {key: deployed[key] for key in out if key in deployed}
    # Resources that the old ones need must stay as they were, or the old ones change their meaning.
    todo = [key for r in back.values() for key in r.reads]
    while todo:
        key = todo.pop()
        if key in back or (key in left and left[key].same(deployed.get(key))):
            continue
        if key in left and key in deployed:
            # A resource that was to change stays as it is if a reader cannot follow.
            again = {key} | dependants(plan_wanted, {key})
            return without(plan_wanted, deployed, failed | again)
        if key in deployed:
            back[key] = deployed[key]
            todo += deployed[key].reads
            continue
        raise ConfigError(f"{display_name(key)} is read by a deployed view, but does not exist")
    # A name stays in use if its view was to become a table, or the other way round, and failed.
    names = {fold(r.name) for r in back.values() if r.kind in ("table", "view")}
    taken = {
        key
        for key, r in left.items()
        if r.kind in ("table", "view") and key not in back and fold(r.name) in names
    }
    return without(plan_wanted, deployed, failed | taken) if taken else {**left, **back}


def _meaning(view: Resource) -> tuple[object, ...]:
    """Return the parts of a view that determine its rows; its name and its comment do not."""
    statement = view.statement()
    if isinstance(statement, Table):
        return ("table", "", None, None, ())
    policy = statement.policy if isinstance(statement, MaterializedView) else None
    kind = View if isinstance(statement, View) else MaterializedView
    settings = tuple(sorted(view.settings.items()))
    return kind, tokens_checksum(statement.query), statement.columns, policy, settings


def _alike(old: Resource, new: Resource) -> bool:
    """Return whether two views differ only in the text of their queries and in names."""
    kind, _, _, policy, settings = _meaning(old)
    return (kind, policy, settings) == (_meaning(new)[0], *_meaning(new)[3:])


def _changed_options(old: Resource, new: Resource) -> list[str]:
    names = sorted({*old.options, *new.options})
    return [name for name in names if old.options.get(name) != new.options.get(name)]


def _options(old: Resource, new: Resource) -> tuple[str, ...]:
    def lines(resource: Resource) -> str:
        shown = (f"{k}: {json.dumps(v)}" for k, v in sorted(resource.options.items()))
        return "\n".join(map(without_secrets, shown))

    return _difference(lines(old), lines(new))


def _difference(old: str, new: str) -> tuple[str, ...]:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2)
    return tuple(line for line in lines if not line.startswith(("---", "+++", "@@")))
