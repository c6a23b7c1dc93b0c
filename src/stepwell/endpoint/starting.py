"""Announce a `run` that is starting, before it can be reached at its endpoint.

    <temporary directory>/stepwell-<user>/<checksum of the project's folder>.starting

Importing what a pipeline needs takes most of a second of CPU time. A push that was started right
after a `run`, as in a script, could otherwise look for its endpoint too early, and claim the
pipeline first. So `run` holds a shared lock on this file from its first moment until its endpoint
answers, and a command that would open the pipeline itself waits until the lock is free. The system
releases it when the process ends, however it ends.

It only decides who is first: a claim is safe without it. Therefore nothing here fails, and no
process waits longer than `WAIT_S_MAX`.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepwell.endpoint.address import make_folder
from stepwell.env import Env
from stepwell.errors import StepwellError
from stepwell.model import checksum

WAIT_S_MAX = 30.0
_LOOK_S = 0.05
_TRIES = 1000


class Announcement:
    """Held while a `run` of a project is starting."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._locked = -1
        with suppress(OSError, StepwellError):
            path = _path(folder)
            make_folder(path)
            self._locked = _open(path)
            for _ in range(_TRIES):
                # A process that looks has it locked for some microseconds.
                with suppress(BlockingIOError):
                    fcntl.flock(self._locked, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break

    def __enter__(self) -> Announcement:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The process can be reached, or has given up."""
        locked, self._locked = self._locked, -1
        if locked >= 0:
            os.close(locked)


def is_starting(folder: str | os.PathLike[str]) -> bool:
    """Return whether a `run` of this project has announced itself and cannot be reached yet."""
    with suppress(OSError), _opened(_path(folder)) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def wait_for_starting(
    folder: str | os.PathLike[str], env: Env, timeout_s: float, say: Callable[[str], object]
) -> None:
    """Wait until every `run` that is starting in this folder can be reached, or has ended."""
    until = env.uptime() + min(timeout_s, WAIT_S_MAX)
    said = False
    while is_starting(folder) and env.uptime() < until:
        if not said:
            say("waiting for a process that is starting to run the pipeline")
            said = True
        env.sleep(_LOOK_S)


def _path(folder: str | os.PathLike[str]) -> Path:
    # A link to the folder leads to the same project.
    name = checksum([b"project", os.fsencode(os.path.realpath(folder))])[:20]
    return Path(tempfile.gettempdir()) / f"stepwell-{os.getuid()}" / f"{name}.starting"


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    # Not created: without the file, no process has announced itself.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
