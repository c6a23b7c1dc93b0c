"""The checks of `stepwell doctor --cluster`: is every executor of the cluster fit for a pipeline?

Spark is started with the settings of the project. Every executor reports on its machine
(`execution/machine`), reads an object that the driver has written, and writes one that the driver
reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stepwell.cli.checks import Check, Status
from stepwell.env import Env
from stepwell.errors import StepwellError
from stepwell.execution.machine import TOKEN, Machine, versions
from stepwell.store.address import address_of
from stepwell.store.base import Store

if TYPE_CHECKING:
    from stepwell.deploy.project import Project

SKEW_WARNING_S, SKEW_MAX_S = 5.0, 3600.0
"""Ids contain the time, and garbage collection compares their age with hours."""
FREE_MIN = 10 * 2**30
SAME = ("stepwell", "pyspark")
"""Packages whose version must be the driver's. Of others, the first two numbers should be."""


def examine_cluster(project: Project, store: Store, where: str, env: Env) -> Iterator[Check]:
    """Start Spark, and check all executors. `store` is one of our own, at `where`."""
    # Imported late: only this needs pyspark.
    from stepwell.execution.spark.machines import machines
    from stepwell.execution.spark.session import SessionSettings, on_this_machine, open_session

    section = project.sections.spark
    settings = SessionSettings(
        section.master, "stepwell doctor", section.conf, None, section.driver_memory
    )
    token = env.new_id().encode()
    try:
        spark = open_session(settings)
        if on_this_machine(spark):
            yield Check("workers", Status.OK, f"{section.master}: this process is the only one")
            return
        address = address_of(store)
        store.put_new(TOKEN, token)
        before = env.now().timestamp()
        found, there = machines(spark, address, token)
        after = env.now().timestamp()
    except StepwellError as error:
        fix = error.hint or "see docs/guides/cluster.md: what workers need"
        yield Check("workers", Status.MISSING, error.message, fix)
        return
    yield check_workers(found, there)
    yield check_pythons(found, sys.version_info[:3])
    yield check_packages(found, versions())
    unseen = [m for m in found if m.wrote is not None and store.get(m.wrote) is None]
    yield check_reach(found, unseen, where)
    yield check_clocks(found, before, after)
    yield check_disks(found)


def check_workers(found: Sequence[Machine], there: int) -> Check:
    hosts = sorted({machine.host for machine in found})
    detail = f"{_count(len(found), 'executor')} on {', '.join(hosts[:5])}"
    if len(hosts) > 5:
        detail += f" and {len(hosts) - 5} more"
    if len(found) < there:
        return Check(
            "workers",
            Status.WARNING,
            f"{detail}; {there - len(found)} more took no task, and were not checked",
            "try again when the cluster is idle",
        )
    return Check("workers", Status.OK, detail)


def check_pythons(found: Sequence[Machine], here: tuple[int, int, int]) -> Check:
    other = [machine for machine in found if machine.python[:2] != here[:2]]
    if other:
        return Check(
            "python",
            Status.MISSING,
            f"{_named(other)}: {_dotted(other[0].python)}, but the driver has {_dotted(here)}",
            "install it there, and name it: spark: {conf: {spark.pyspark.python: ...}}",
        )
    return Check("python", Status.OK, f"{_dotted(here[:2])} on every executor, as here")


def check_packages(found: Sequence[Machine], here: dict[str, str]) -> Check:
    warnings = []
    for machine in found:
        for name, version in here.items():
            there = machine.packages.get(name)
            exact = name in SAME
            if there is None or (exact and there != version):
                what = "not installed" if there is None else there
                return Check(
                    "packages",
                    Status.MISSING,
                    f"{machine.host}: {name} is {what}, but the driver has {version}",
                    f'on every worker: python -m pip install "{name}=={version}"',
                )
            if there.split(".")[:2] != version.split(".")[:2]:
                warnings.append(f"{machine.host}: {name} {there}, here {version}")
    if warnings:
        return Check(
            "packages",
            Status.WARNING,
            "; ".join(warnings[:3]),
            "install the same versions everywhere",
        )
    detail = ", ".join(f"{name} {version}" for name, version in here.items())
    return Check("packages", Status.OK, f"{detail} on every executor")


def check_reach(found: Sequence[Machine], unseen: Sequence[Machine], uri: str) -> Check:
    failed = [machine for machine in found if machine.store_error is not None]
    if failed:
        why = f"{_named(failed)} cannot use {uri}: {failed[0].store_error}"
    elif unseen:
        why = f"{_named(unseen)}: the driver does not see what they have written to {uri}"
    else:
        return Check("reach", Status.OK, f"every executor reads and writes {uri}")
    fix = "workers need the network, the credentials and, for a directory, the file system"
    return Check("reach", Status.MISSING, why, f"{fix} of the store: docs/guides/cluster.md")


def check_clocks(found: Sequence[Machine], before: float, after: float) -> Check:
    """Their clocks, which were read between these times of the driver's."""
    skews = [(max(before - m.time_s, m.time_s - after, 0.0), m) for m in found]
    worst, machine = max(skews, key=lambda item: item[0], default=(0.0, None))
    if machine is None or worst < SKEW_WARNING_S:
        return Check("clock", Status.OK, f"all within {SKEW_WARNING_S:.0f} s of this one")
    status = Status.WARNING if worst < SKEW_MAX_S else Status.MISSING
    return Check(
        "clock",
        status,
        f"the clock of {machine.host} differs by {worst:,.0f} s from this one",
        "synchronise the clocks of all machines (NTP)",
    )


def check_disks(found: Sequence[Machine]) -> Check:
    least = min(found, key=lambda machine: machine.free_bytes, default=None)
    if least is None:
        return Check("disk", Status.WARNING, "no executor reported its disk")
    detail = f"at least {least.free_bytes / 2**30:,.1f} GiB free ({least.host}: {least.folder})"
    if least.free_bytes < FREE_MIN:
        return Check(
            "disk",
            Status.WARNING,
            detail,
            "sorts and shuffles that exceed memory, and cached columns, need more: "
            "spark: {conf: {spark.local.dir: ...}}",
        )
    return Check("disk", Status.OK, detail)


def _named(machines: Sequence[Machine]) -> str:
    hosts = sorted({machine.host for machine in machines})
    return ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
