"""`stepwell inspect journal`: the entries of a journal as a table, corrupt ones included.

It reads what any reader would read, and continues where a reader would have to stop: an invalid
entry becomes a line that gives the reason, and the next entry is read anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stepwell.cli.addresses import nothing_here, open_existing_store, read_single
from stepwell.cli.entry import entry_json, show_entry
from stepwell.cli.screen import Row, Screen, count, plain, size, span
from stepwell.env import Env, SystemEnv
from stepwell.errors import CorruptError, InvalidError
from stepwell.journal import paths
from stepwell.journal.entry import Cursor, Recorded
from stepwell.journal.identity import Identity, check_identity, read_identity
from stepwell.journal.log import Log
from stepwell.manifest.manifest import Manifests, Stored
from stepwell.model import Epoch, Position
from stepwell.store.base import Store

T = TypeVar("T")

HEADINGS = (
    *(">position", ">epoch", "kind", ">transaction", ">step", "closes"),
    *("time", ">bytes", "inputs"),
)

RESTORE = "restore the object from a backup"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a journal; `position` is set if it concerns one entry."""

    message: str
    hint: str | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One object of the journal: its content, or the reason why it cannot be read."""

    position: int
    bytes: int
    content: dict[str, Any] | None
    problem: str | None = None
    unknown: bool = False
    """The object has a format that this version cannot read, which is not corruption."""


@dataclass(frozen=True, slots=True)
class View:
    """A journal as it was read."""

    uri: str
    identity: Identity | None
    manifest: Stored | None
    positions: tuple[int, ...]
    lines: tuple[Line, ...]
    problems: tuple[Problem, ...]

    @property
    def whole(self) -> bool:
        return not self.problems


def show(place: str, *, after: int | None, limit: int | None, json: bool) -> None:
    env, screen = SystemEnv(), Screen()
    single = read_single(place, env, "journal")
    if single is not None:
        show_entry(screen, single, json=json)
        return
    view = read_view(open_existing_store(place, env), env, after=after, limit=limit)
    if json:
        screen.json(as_json(view))
    else:
        render(screen, view)
    if not view.whole:
        first = view.problems[0]
        others = len(view.problems) - 1
        more = f" (and {count(others, 'more problem')})" if others else ""
        hint = first.hint or RESTORE
        raise CorruptError("the journal is damaged", first.message + more, hint=hint)


def read_view(
    store: Store, env: Env, *, after: int | None = None, limit: int | None = None
) -> View:
    """Read the entries after a position, or the last ones, and check them against the store."""
    # Names first, manifest second: then an entry that was garbage-collected before the listing is
    # below the replay position of the manifest.
    listed = {
        name.number: item.size
        for item in store.list(paths.JOURNAL)
        if (name := paths.parse(item.path)).kind == "entry" and name.number is not None
    }
    problems: list[Problem] = []
    manifests = Manifests(store, env)
    manifest = _noting(problems, manifests.latest)
    identity = _noting(problems, lambda: read_identity(store))
    boundary = _noting(problems, Log(store).trimmed) or 0
    if not listed and identity is None:
        raise _no_journal(store, manifest, problems)

    positions = tuple(sorted(listed))
    wanted = [number for number in positions if after is None or number > after]
    if limit is not None:
        wanted = wanted[-limit:] if after is None else wanted[:limit]
    lineage = manifest.manifest.lineage if manifest else identity.lineage if identity else None
    replay = manifest.manifest.replay if manifest else None
    walk = _Walk(Log(store, lineage), listed, replay, boundary)
    lines = [line for number in wanted if (line := walk.line(Position(number))) is not None]
    if manifest:
        problems += _belongs(store, identity, manifest)
        problems += _gaps(positions, max(boundary, manifest.manifest.replay.position))
    return View(
        uri=store.uri,
        identity=identity,
        manifest=manifest,
        positions=positions,
        lines=tuple(lines),
        problems=tuple(sorted(problems + walk.problems, key=lambda p: p.position or 0)),
    )


class _Walk:
    """Walks from entry to entry and checks each link of the chain that can be checked."""

    def __init__(
        self, log: Log, listed: dict[int, int], replay: Cursor | None, boundary: int
    ) -> None:
        self.problems: list[Problem] = []
        self._log = log
        self._listed = listed
        self._replay = replay
        self._boundary = boundary
        self._cursor: Cursor | None = None
        self._epoch = Epoch(0)
        self._started = False

    def line(self, position: Position) -> Line | None:
        """Return the line for a position; None if the entry was collected since the listing."""
        self._cursor = self._arrive(Position(position - 1))
        self._started = True
        if self._cursor is not None:
            self._epoch = max(self._epoch, self._cursor.epoch)
        try:
            found = self._log.read(position)
        except (CorruptError, InvalidError) as error:
            self._cursor = None
            return self._bad(position, None, error)
        if found is None:
            self._cursor = None
            return None
        try:
            found = self._pass(found)
        except CorruptError as error:
            self._cursor = Cursor(position, found.checksum, self._epoch)
            return self._bad(position, found, error)
        return Line(position, self._listed[position], entry_json(found))

    def _arrive(self, before: Position) -> Cursor | None:
        """Return the cursor right before a position, if the entry there is known."""
        if before == 0:
            return Cursor()
        if self._replay is not None and self._replay.position == before:
            return self._replay
        if self._started:
            known = self._cursor is not None and self._cursor.position == before
            return self._cursor if known else None
        return self._look_back(before) if before in self._listed else None

    def _look_back(self, before: Position) -> Cursor | None:
        """Read the entry before the first one shown, so that the first link is checked, too."""
        try:
            found = self._log.read(before)
        except (CorruptError, InvalidError):
            return None  # It is not among the requested entries.
        return None if found is None else Cursor(before, found.checksum, found.entry.epoch)

    def _pass(self, found: Recorded) -> Recorded:
        entry = found.entry
        position = entry.position
        # If the previous entry is not known, trust this entry's link to it.
        cursor = self._cursor or Cursor(Position(position - 1), entry.previous, self._epoch)
        self._epoch = max(self._epoch, entry.epoch)
        if position <= self._boundary:
            # Below the boundary a stalled writer may have filled a hole; no reader goes there.
            self._cursor = Cursor(position, found.checksum, self._epoch)
            return found
        self._cursor, passed = cursor.advance(found, self._log.full_name(position))
        if self._replay is not None and position == self._replay.position:
            if found.checksum != self._replay.checksum:
                raise CorruptError(
                    self._log.full_name(position),
                    f"is {found.checksum}, but the manifest has replayed {self._replay.checksum}",
                    field="checksum",
                )
            self._cursor = self._replay
        return passed

    def _bad(
        self, position: Position, found: Recorded | None, error: CorruptError | InvalidError
    ) -> Line:
        self.problems.append(Problem(error.message, error.hint, position))
        # The row already shows the position: keep only the reason.
        wrong = error.message.removeprefix(self._log.full_name(position)).lstrip(": ")
        content = entry_json(found) if found else None
        unknown = isinstance(error, InvalidError)
        return Line(position, self._listed[position], content, wrong, unknown)


def _noting(problems: list[Problem], read: Callable[[], T]) -> T | None:
    """Return the result of `read`; None, with the problem noted, if the data is not valid."""
    try:
        return read()
    except (CorruptError, InvalidError) as error:
        problems.append(Problem(error.message, error.hint))
        return None


def _belongs(store: Store, identity: Identity | None, manifest: Stored) -> list[Problem]:
    """Check that this is the journal that the manifest in the same store names."""
    problems: list[Problem] = []
    known = manifest.manifest
    _noting(
        problems,
        lambda: check_identity(
            store,
            identity,
            lineage=known.lineage,
            id=known.journal.id,
            closed=known.journal.closed,
        ),
    )
    return problems


def _gaps(positions: Sequence[int], trimmed: int) -> list[Problem]:
    """Report gaps in the positions above those that may be trimmed; a gap is lost data."""
    problems = []
    last = trimmed
    for number in positions:
        if number <= trimmed:
            continue
        if number > last + 1:
            problems.append(
                Problem(
                    f"no entry at position {span(range(last + 1, number))}, which was not replayed",
                    RESTORE,
                    number - 1,
                )
            )
        last = number
    return problems


def _no_journal(
    store: Store, manifest: Stored | None, problems: Sequence[Problem]
) -> InvalidError | CorruptError:
    if problems:
        return CorruptError(store.uri, f"no journal, and {problems[0].message}")
    if manifest is None:
        return nothing_here(store, "journal")
    journal = manifest.manifest.journal
    if journal.id is None:
        return InvalidError(f"{store.uri} is a pipeline whose journal has not been started")
    return InvalidError(
        f"{store.uri} holds no journal; its manifest names journal {journal.id}",
        hint="it was closed with nothing to replay, and may have been wiped"
        if journal.closed
        else "it is in another store: give the address of the journal store",
    )


def render(screen: Screen, view: View, *, keep: Sequence[int] | None = None) -> None:
    """Print a view; with `keep`, only the lines at these positions."""
    screen.facts(_facts(view))
    if view.lines:
        screen.line()
        screen.table(HEADINGS, rows(view.lines, keep))
    screen.line()
    screen.facts([("chain", _chain(view))])
    in_table = {line.position for line in view.lines if line.problem}
    for problem in view.problems:
        if problem.position not in in_table:
            screen.paragraph(plain(problem.message), first="  - ", style="red")


def rows(lines: Sequence[Line], keep: Sequence[int] | None = None) -> list[Row]:
    """Return the rows of the table. A row with a count stands for rows that are left out."""
    shown: list[Row] = []
    left_out = 0
    for line in lines:
        if keep is not None and line.position not in keep:
            left_out += 1
            continue
        if left_out:
            shown.append(_left_out(left_out))
            left_out = 0
        shown.append(_row(line))
    if left_out:
        shown.append(_left_out(left_out))
    return shown


def _left_out(number: int) -> Row:
    return Row(("...", "", f"{number:,} more", *[""] * (len(HEADINGS) - 4)), style="dim")


def _row(line: Line) -> Row:
    if line.content is None:
        kind = "UNKNOWN" if line.unknown else "DAMAGED"
        cells = (str(line.position), "?", kind, "", "", "", "", size(line.bytes))
        return Row(cells, plain(line.problem or ""), "red")
    entry = line.content
    step = entry["kind"] != "barrier"
    cells = (
        str(line.position),
        str(entry["epoch"]),
        entry["kind"] + (", void" if entry["void"] else ""),
        str(entry["transaction"]) if step else "",
        str(entry["step"]) if step else "",
        ("yes" if entry["closes"] else "no") if step else "",
        entry["time"][:19].replace("T", " "),
        size(line.bytes),
    )
    inputs = "; ".join(
        f"{plain(item['source'])} -> {plain(item['table'])}, {count(item['rows'], 'row')}"
        for item in entry["inputs"]
    )
    if line.problem:
        return Row(cells, plain(line.problem), "red")
    return Row(cells, inputs, "dim" if entry["void"] else "")


def _facts(view: View) -> list[tuple[str, str]]:
    facts = [("store", view.uri)]
    if view.identity:
        facts.append(("journal", f"{view.identity.id}, of pipeline {view.identity.lineage}"))
    facts.append(("entries", _extent(view)))
    if view.manifest:
        facts.append(("replay", _replay(view)))
    else:
        facts.append(("replay", "unknown: there is no readable manifest in this store"))
    return facts


def _extent(view: View) -> str:
    if not view.positions:
        return "none"
    extent = f"{len(view.positions):,}, at position {span(view.positions)}"
    if view.positions[-1] - view.positions[0] >= len(view.positions):
        extent += ", with gaps"
    left_out = len(view.positions) - len(view.lines)
    if not left_out:
        return extent
    shown = span([line.position for line in view.lines]) if view.lines else "none"
    return f"{extent}; read: {shown}. For the others: --all, or --after N --limit N"


def _replay(view: View) -> str:
    if view.manifest is None:
        return ""
    replay = view.manifest.manifest.replay.position
    waiting = sum(1 for number in view.positions if number > replay)
    follow = count(waiting, "entry follows", "entries follow") if waiting else "nothing follows"
    who = f"manifest {view.manifest.id}, epoch {view.manifest.epoch}"
    return f"starts after position {replay} ({who}); {follow}"


def _chain(view: View) -> str:
    if not view.whole:
        return f"NOT VERIFIED: {count(len(view.problems), 'problem')}"
    if not view.lines:
        return "nothing to check"
    return f"intact, position {span([line.position for line in view.lines])}"


def as_json(view: View) -> dict[str, Any]:
    replay = view.manifest.manifest.replay if view.manifest else None
    return {
        "store": view.uri,
        "journal": {"id": view.identity.id, "lineage": view.identity.lineage}
        if view.identity
        else None,
        "manifest": view.manifest and {"id": view.manifest.id, "epoch": view.manifest.epoch},
        "replay": replay and {"position": replay.position, "checksum": replay.checksum},
        "entries_in_store": len(view.positions),
        "position_first": view.positions[0] if view.positions else None,
        "position_last": view.positions[-1] if view.positions else None,
        "entries": [
            {"position": line.position, "bytes": line.bytes}
            | (line.content or {})
            | {"problem": line.problem}
            for line in view.lines
        ],
        "whole": view.whole,
        "problems": [
            {"position": p.position, "message": p.message, "hint": p.hint} for p in view.problems
        ],
    }
