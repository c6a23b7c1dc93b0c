"""Where the endpoint of a pipeline is: a Unix socket whose name follows from the store's address.

    <temporary directory>/stepwell-<user>/<checksum of the address>.sock
    <temporary directory>/stepwell-<user>/<checksum of the address>.lock

The directory belongs to the user and is closed to all others (0700), which is what guards the
endpoint: whoever can connect could also open the store's files. It is checked each time, because
anybody may make a directory of that name first. A process that was killed leaves its socket, to
which nobody can connect; the next one replaces it. Of several that start at once the one that locks
the other file has the endpoint; the system frees that lock with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path

from stepwell.errors import UnavailableError
from stepwell.model import checksum


def socket_path(store_uri: str) -> Path:
    """The socket of the pipeline in a store. Touches nothing."""
    scheme, _, path = store_uri.partition("://")
    # The same directory by another name, through a link, is the same pipeline.
    address = f"file://{os.path.realpath(path)}" if scheme == "file" else store_uri
    folder = Path(tempfile.gettempdir()) / f"stepwell-{os.getuid()}"
    # A socket's whole path has to fit into about 100 bytes.
    return folder / f"{checksum([address.encode()])[:20]}.sock"


def make_folder(path: Path) -> None:
    """Make the folder of a socket, for this user alone."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    check_folder(path)


def check_folder(path: Path) -> None:
    """Raise if the folder of a socket is not this user's alone."""
    folder = path.parent
    found = os.lstat(folder)
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or found.st_mode & 0o077:
        raise UnavailableError(
            f"{folder} must be a directory of this user that nobody else can enter",
            hint=f"remove it, or set TMPDIR to another place: rm -r {folder}",
            not_applied=True,
        )


def take_lock(path: Path, *, force: bool) -> int | None:
    """Lock the endpoint at a path; a descriptor to close, or None if another process has it.

    `force` is for whoever has taken the pipeline over from a process that still has the lock.
    """
    lock = path.with_suffix(".lock")
    name = lock.with_suffix(f".lock-{os.getpid()}") if force else lock
    while True:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if force:
                os.replace(name, lock)
                return descriptor
            # Perhaps it was replaced between the two calls, and another one counts now.
            if os.stat(name).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        os.close(descriptor)
