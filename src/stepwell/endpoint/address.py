"""Location of a pipeline's endpoint: a Unix socket named after the store's address.

    <temporary directory>/stepwell-<user>/<checksum of the address>.sock
    <temporary directory>/stepwell-<user>/<checksum of the address>.lock

The directory belongs to the user and is closed to all others (0700). This guards the endpoint: a
process that can connect could also open the store's files. The directory is checked each time,
because any user may create a directory of that name first. A killed process leaves its socket
behind, which refuses connections; the next process replaces it. If several processes start at once,
the one that locks the other file owns the endpoint. The system releases that lock when the process
ends, however it ends.
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
    """Return the path of the socket of the pipeline in a store. Touches nothing."""
    scheme, _, path = store_uri.partition("://")
    # A link to the directory leads to the same pipeline.
    address = f"file://{os.path.realpath(path)}" if scheme == "file" else store_uri
    folder = Path(tempfile.gettempdir()) / f"stepwell-{os.getuid()}"
    # The whole path of a socket has to fit into about 100 bytes.
    return folder / f"{checksum([address.encode()])[:20]}.sock"


def make_folder(path: Path) -> None:
    """Create the folder of a socket, accessible to this user only."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    check_folder(path)


def check_folder(path: Path) -> None:
    """Raise if the folder of a socket is accessible to other users."""
    folder = path.parent
    found = os.lstat(folder)
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or found.st_mode & 0o077:
        raise UnavailableError(
            f"{folder} must be a directory of this user that no other user can enter",
            hint=f"remove it, or set TMPDIR to another directory: rm -r {folder}",
            not_applied=True,
        )


def take_lock(path: Path, *, force: bool) -> int | None:
    """Lock the endpoint at a path; return a descriptor to close, or None if another process has it.

    `force` is for a process that has taken the pipeline over from one that still holds the lock.
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
            # The file may have been replaced between the two calls; then the new one counts.
            if os.stat(name).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        os.close(descriptor)
