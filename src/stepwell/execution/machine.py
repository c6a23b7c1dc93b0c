"""What an executor's Python process reports about its machine, for `stepwell doctor --cluster`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from stepwell.env import SystemEnv
from stepwell.errors import StepwellError
from stepwell.store.address import Address, open_address

PACKAGES = ("stepwell", "pyspark", "pyarrow", "xxhash", "obstore")
TOKEN = "token"
"""The object that the driver has written, which every executor reads."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One executor, as its Python sees it."""

    host: str
    process: int
    """The process that starts the executor's Python workers."""
    python: tuple[int, int, int]
    packages: Mapping[str, str]
    """Their versions; packages that are not installed are left out."""
    time_s: float
    """Its clock."""
    free_bytes: int
    folder: str
    """The folder for temporary files, of which that is the free space."""
    wrote: str | None = None
    """The object that it has written to the store."""
    store_error: str | None = None
    """Why it cannot use the store."""

    @property
    def executor(self) -> tuple[str, int]:
        return self.host, self.process


def report(address: Address, token: bytes) -> Machine:
    """Report on the machine of this process, and read and write the store."""
    env = SystemEnv()
    wrote, error = None, None
    try:
        store = open_address(address, env)
        found = store.get(TOKEN)
        if found is None or bytes(found.data) != token:
            error = "it does not see what the driver has written there"
        else:
            path = f"from/{env.new_id()}"
            store.put_new(path, token)
            wrote = path
    except (StepwellError, OSError) as raised:
        error = str(getattr(raised, "message", raised))
    folder = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
    return Machine(
        env.host,
        os.getppid(),
        sys.version_info[:3],
        versions(),
        env.now().timestamp(),
        shutil.disk_usage(folder).free if os.path.isdir(folder) else 0,
        folder,
        wrote,
        error,
    )


def versions() -> dict[str, str]:
    """The versions of the packages that matter, as far as they are installed here."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
