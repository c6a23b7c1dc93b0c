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
from stepwell.store.patient import PatientStore
from stepwell.store.retry import Retry
from stepwell.testing import ManualEnv, SimulatedDisk
from tests.store.http_stub import HASTY, OPTIONS, SECRET, Stub
from tests.store.real_s3 import MISSING, program, serving

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


def real_s3(request: pytest.FixtureRequest) -> Open:
    """On a server that people use, where it has been built. It resets a connection now and then, so
    the store waits for it, as it does in a pipeline."""
    endpoint: str = request.getfixturevalue("real_s3_endpoint")
    prefix = f"tests/{ENV.new_id()}"

    def opened() -> Store:
        made = ObjectsStore("s3", BUCKET, prefix, ENV, HASTY, endpoint=endpoint, **OPTIONS)
        return PatientStore(made, ENV, Retry(60))

    return opened


# A new store is entered here, and the whole contract runs against it.
STORES = [memory, local, local_named, local_simulated, s3, real_s3]
# The simulated disk is for one thread at a time.
SHARED_STORES = [memory, local, local_named, s3, real_s3]


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


@pytest.fixture(scope="session")
def real_s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real S3 server with one bucket in it."""
    versitygw = program()
    if versitygw is None:
        pytest.skip(MISSING)
    folder = tmp_path_factory.mktemp("s3")
    key = str(OPTIONS["access_key_id"])
    with serving(versitygw, folder, key, SECRET, BUCKET) as endpoint:
        yield endpoint


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
