"""A real S3 server for tests: versitygw, which is built from source by `make real-s3`.

The stand-in for S3 answers one request at a time. This server is one that people use: it takes
requests in parallel, and honours conditions under races. It is not needed to run the tests: where
the program is missing, the tests that want it say so, and are skipped.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VERSION = "v1.8.0"
# Not below $XDG_CACHE_HOME, which is another folder in each test run.
FOLDER = Path.home() / ".cache" / "stepwell-tests" / f"versitygw-{VERSION}"
MISSING = (
    f"no versitygw {VERSION} in {FOLDER}: make real-s3 builds it, which takes Go and a network"
)
_START_S = 60.0
# It ends when its standard input does, so it cannot outlive the tests, however they end.
_UNTIL_INPUT_ENDS = '"$@" & read _; kill $!'


def program() -> Path | None:
    """The server, if it has been built."""
    found = Path(os.environ.get("STEPWELL_VERSITYGW", FOLDER / "versitygw"))
    return found if os.access(found, os.X_OK) else None


@contextmanager
def serving(versitygw: Path, folder: Path, key: str, secret: str, bucket: str) -> Iterator[str]:
    """The address of a server whose objects are in a folder, with one bucket in it."""
    for each in ("objects", "metadata"):
        (folder / each).mkdir()
    (folder / "objects" / bucket).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = [str(versitygw), "--quiet", "--port", f"127.0.0.1:{port}", "--region", "us-east-1"]
    server += ["--access", key, "--secret", secret]
    # Extended attributes, where it would keep the metadata, are not to be had everywhere.
    server += ["posix", "--sidecar", str(folder / "metadata"), str(folder / "objects")]
    with subprocess.Popen(
        ["sh", "-c", _UNTIL_INPUT_ENDS, "versitygw", *server],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]


def _wait_for(port: int) -> None:
    until = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
            return
        except urllib.error.HTTPError:
            return  # It answers, if only that a request must be signed.
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
