"""What the store tests share: every store, an S3 stand-in, and a server told what to answer."""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell.env import SystemEnv
from stepwell.store.base import Store
from stepwell.store.disk import RealDisk
from stepwell.store.local import LocalStore
from stepwell.store.memory import MemoryStore
from stepwell.store.objects import ObjectsStore
from stepwell.testing import ManualEnv, SimulatedDisk
from tests.store.http_stub import HASTY, OPTIONS, Stub

Open = Callable[[], Store]
"""Opens the same, at first empty, place as often as it is called: two handles, two processes."""

ENV = SystemEnv()
BUCKET = "stepwell-tests"
STANDIN = Path(__file__).with_name("s3_standin.py")


def memory(request: pytest.FixtureRequest) -> Open:
    store = MemoryStore(ENV)
    return lambda: store


def local(request: pytest.FixtureRequest) -> Open:
    root: Path = request.getfixturevalue("tmp_path")
    return lambda: LocalStore(f"{root}/store", ENV)


def local_named(request: pytest.FixtureRequest) -> Open:
    """As on systems that cannot stage a file without a name."""
    root: Path = request.getfixturevalue("tmp_path")
    return lambda: LocalStore(f"{root}/store", ENV, RealDisk(ENV, unnamed=False))


def local_simulated(request: pytest.FixtureRequest) -> Open:
    """On the disk that forgets what was not synced."""
    env = ManualEnv()
    disk = SimulatedDisk(env)
    return lambda: LocalStore("/simulated/store", env, disk)


def s3(request: pytest.FixtureRequest) -> Open:
    endpoint: str = request.getfixturevalue("s3_endpoint")
    prefix = f"tests/{ENV.new_id()}"
    return lambda: ObjectsStore("s3", BUCKET, prefix, ENV, HASTY, endpoint=endpoint, **OPTIONS)


# A new store is entered here, and the whole contract runs against it.
STORES = [memory, local, local_named, local_simulated, s3]
# The simulated disk is for one thread at a time.
SHARED_STORES = [memory, local, local_named, s3]


@pytest.fixture(params=STORES, ids=lambda make: make.__name__)
def opened(request: pytest.FixtureRequest) -> Open:
    found: Open = request.param(request)
    return found


@pytest.fixture
def store(opened: Open) -> Store:
    return opened()


@pytest.fixture(params=SHARED_STORES, ids=lambda make: make.__name__)
def shared(request: pytest.FixtureRequest) -> Open:
    """As `opened`, where several threads may write at once."""
    found: Open = request.param(request)
    return found


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of an S3 stand-in with one bucket in it."""
    command = [sys.executable, "-W", "ignore", str(STANDIN)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        port = process.stdout.readline().strip()
        assert port.isdigit(), f"the S3 stand-in did not start: run {' '.join(command)} to see why"
        endpoint = f"http://127.0.0.1:{port}"
        make_bucket = urllib.request.Request(f"{endpoint}/{BUCKET}", data=b"", method="PUT")
        urllib.request.urlopen(make_bucket).close()
        yield endpoint
        process.stdin.close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    thread = threading.Thread(target=stub.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield stub
    stub.released.set()
    stub.server.shutdown()
    stub.server.server_close()
    thread.join()
