"""`stepwell demo`: run a demonstration, show it, and report whether the guarantees held."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from stepwell.cli import journal
from stepwell.cli.screen import Row, Screen, count
from stepwell.demo import crash, race
from stepwell.demo.crash import Story
from stepwell.demo.race import Finding, Writer
from stepwell.env import SystemEnv
from stepwell.journal import paths
from stepwell.model import Position
from stepwell.store.locate import open_store


def show_race(*, keep: bool, json: bool) -> bool:
    """Run the race, show it, and return whether the guarantees held."""
    env, screen = SystemEnv(), Screen()
    with _folder(keep) as directory:
        a, b = race.race(directory)
        store = open_store(directory, env)
        rows = race.read_rows(store, env)
        findings = race.judge(a, b, rows)
        view = journal.read_view(store, env)
        holds = view.whole and all(finding.holds for finding in findings)
        if json:
            screen.json(
                {
                    "holds": holds,
                    "findings": [asdict(finding) for finding in findings],
                    "writers": [asdict(a), asdict(b)],
                    "rows_in_journal": len(rows),
                    "journal": journal.as_json(view),
                    "directory": directory if keep else None,
                }
            )
        else:
            _tell_race(screen, a, b, view)
            _conclude(screen, findings, holds)
            _next_steps(screen, directory if keep else None)
        return holds


def show_crash(*, keep: bool, json: bool) -> bool:
    """Kill a pipeline, show its recovery, and return whether the guarantees held."""
    screen = Screen()
    with _folder(keep) as directory:
        if not json:
            screen.line("A pipeline is killed halfway, and run again.", "bold")
            screen.line()
        story = crash.act(Path(directory), SystemEnv())
        findings = crash.judge(story)
        holds = all(finding.holds for finding in findings)
        if json:
            screen.json(
                {
                    "holds": holds,
                    "findings": [asdict(finding) for finding in findings],
                    "killed_at": story.killed_at,
                    "transaction": story.transaction,
                    "view": [[name, str(total), n] for name, total, n in story.view],
                    "directory": directory if keep else None,
                }
            )
        else:
            _tell_crash(screen, story)
            _conclude(screen, findings, holds)
            if keep:
                screen.line()
                screen.line(f"The project was kept: stepwell -C {directory} status")
        return holds


@contextmanager
def _folder(keep: bool) -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="stepwell-demo-")
    try:
        yield directory
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _tell_race(screen: Screen, a: Writer, b: Writer, view: journal.View) -> None:
    """Print the story, then the journal."""
    screen.line("Two processes race for one pipeline in a local store.", "bold")
    screen.line()
    screen.paragraph(
        f"pid {a.pid} opened the pipeline (epoch {a.epoch}) and appended "
        f"{count(len(a.acknowledged), 'row')}, as fast as it could",
        first="A  ",
    )
    screen.paragraph(
        f"pid {b.pid} opened it in the meantime (epoch {b.epoch}): it took the next position with "
        f"a "
        f"barrier and replayed {count(b.replayed, 'row')}",
        first="B  ",
    )
    if a.fenced:
        screen.paragraph(f"was fenced when it tried to append row {a.fenced['row']}:", first="A  ")
        screen.paragraph(f"error: {a.fenced['message']}", indent=" " * 5)
        screen.paragraph(f"hint: {a.fenced['hint']}", indent=" " * 5)
    rows = count(len(b.acknowledged), "row")
    screen.paragraph(f"appended {rows} and closed the pipeline", first="B  ")
    screen.line()
    journal.render(screen, view, keep=_around_the_fence(view))


def _around_the_fence(view: journal.View) -> list[int]:
    """Return the positions worth showing: both ends, and where one writer follows the other."""
    positions = [line.position for line in view.lines]
    barriers = [
        line.position
        for line in view.lines
        if line.content is None or line.content["kind"] == "barrier"
    ]
    kept = set(positions[:3] + positions[-2:])
    for barrier in barriers:
        kept |= set(range(barrier - 2, barrier + 3))
    return sorted(kept)


def _conclude(screen: Screen, findings: list[Finding], holds: bool) -> None:
    screen.line()
    for finding in findings:
        label = "ok      " if finding.holds else "BROKEN  "
        screen.paragraph(finding.text, first=label, style="" if finding.holds else "red")
    screen.line()
    if holds:
        screen.line("Nothing was lost, and nothing was written twice.", "bold")
    else:
        screen.line(
            "A guarantee was violated. This is a bug in Stepwell: please report it.", "bold red"
        )


def _next_steps(screen: Screen, directory: str | None) -> None:
    screen.line()
    screen.line("Next:")
    if directory is None:
        steps = [("keep the store", "stepwell demo --keep")]
    else:
        steps = [
            ("every entry", f"stepwell inspect journal {directory}"),
            ("one entry", f"stepwell inspect journal {directory}/{paths.entry(Position(2))}"),
            ("who holds it", f"stepwell inspect manifest {directory}"),
            ("remove it", f"rm -r {directory}"),
        ]
    steps.append(("your machine", "stepwell doctor"))
    for what, command in steps:
        screen.line(f"  {what:<16}{command}")


def _tell_crash(screen: Screen, story: Story) -> None:
    screen.paragraph(
        f"{crash.FILES} files with {crash.ROWS} rows each, a transaction for each file; killed "
        f"when {count(story.killed_at, 'entry was', 'entries were')} in the journal; then run "
        f"again up to transaction {story.transaction}.",
    )
    screen.line()
    rows = [Row((name, f"{total:.2f}", f"{n}")) for name, total, n in story.view]
    screen.table(("customer", ">total", ">n", ""), rows)
