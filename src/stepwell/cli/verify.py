"""`stepwell verify`: check that everything is there and as it was written. Only reads."""

from __future__ import annotations

import sys
from dataclasses import asdict

from stepwell.cli.project_options import ProjectOptions
from stepwell.cli.screen import Screen, count, plain, size
from stepwell.deploy.verify import verify_deployed
from stepwell.env import SystemEnv
from stepwell.manifest.verify import Report, verify


def show(where: ProjectOptions, *, deep: bool) -> bool:
    """Print the report; return whether there are no findings."""
    env, screen = SystemEnv(), Screen()
    project = where.project(env, secrets=False)
    store = project.open_store(env)
    report = verify(
        store,
        env,
        journal_store=project.open_journal_store(env),
        deep=deep,
        progress=_bar if sys.stderr.isatty() and not where.json else lambda done, total: None,
    )
    report = verify_deployed(store, env, report)
    if where.json:
        screen.json(
            {"store": project.store, "deep": deep, "ok": not report.findings, **asdict(report)}
        )
    else:
        _render(screen, report, deep)
    return not report.findings


def _bar(done: int, total: int) -> None:
    end = "\n" if done >= total else ""
    print(f"\r{size(done)} of {size(total)}", end=end, file=sys.stderr, flush=True)


def _render(screen: Screen, report: Report, deep: bool) -> None:
    for finding in report.findings:
        screen.line(plain(finding.object), "bold")
        screen.facts(
            [
                ("what", plain(finding.what)),
                ("matters", finding.matters),
                ("repair", finding.repair),
            ],
            indent="  ",
        )
    if report.findings:
        screen.line(f"{count(len(report.findings), 'finding')}, manifest {report.version}")
        return
    looked = f"{count(report.objects, 'object')} of manifest {report.version}"
    if deep:
        screen.line(f"No damage found: {looked}, {size(report.bytes_read)} of contents compared.")
    else:
        screen.line(f"No damage found: {looked}. Contents are compared by stepwell verify --deep")
