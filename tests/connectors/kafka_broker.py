"""A real Kafka broker for the tests: one node, on the loopback interface, gone afterwards.

The jars come from Maven Central, once, by the Ivy that is shipped with pyspark, into a folder below
the user's cache. All processes of a test run share one broker. It belongs to a guardian process,
which accepts connections on a Unix socket and stops the broker when the last one has closed, also
if a test process is killed. A connection can ask the guardian to kill and to start the broker.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from stepwell.execution.java import find_java

VERSION = "4.3.1"
_HEAP = "256m"
_STARTS_S = 120.0


class UnreachableError(Exception):
    """The jars could not be fetched."""


@contextmanager
def broker(*, private: bool = False) -> Iterator[Broker]:
    """The broker of this test run; `private`: one for a test that kills it."""
    try:
        jars = fetch_jars()
    except UnreachableError as error:
        pytest.skip(f"no Kafka broker to test against: {error}")
    run = None if private else os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        folder = Path(tempfile.mkdtemp(prefix="stepwell-kafka-"))
    else:
        folder = Path(tempfile.gettempdir()) / f"stepwell-kafka-{run[:16]}"
        folder.mkdir(mode=0o700, exist_ok=True)
    with _connected(folder, jars) as made:
        yield made


class Broker:
    """A connection to the guardian of a broker."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("r")
        self.address = self._ask("address")

    def kill(self) -> None:
        """Kill the broker by SIGKILL."""
        self._ask("kill")

    def start(self) -> None:
        """Start the broker again, with the data it had, and wait until it answers."""
        self._ask("start")

    def _ask(self, request: str) -> str:
        self._connection.sendall(f"{request}\n".encode())
        answer = json.loads(self._answers.readline() or '{"error": "the guardian has died"}')
        assert "error" not in answer, answer["error"]
        return str(answer["address"])


@contextmanager
def _connected(folder: Path, jars: Path) -> Iterator[Broker]:
    with socket.socket(socket.AF_UNIX) as connection:
        with _locked(folder / "lock"):
            try:
                connection.connect(str(folder / "socket"))
            except OSError:
                _spawn_guardian(folder, jars)
                _connect(connection, folder)
        connection.settimeout(4 * _STARTS_S)
        made = Broker(connection)
        yield made
        made._answers.close()


def _spawn_guardian(folder: Path, jars: Path) -> None:
    """Start a guardian that outlives this process."""
    log = os.open(folder / "guardian.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.posix_spawn(
            sys.executable,
            [sys.executable, str(Path(__file__).resolve()), str(folder), str(jars)],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)],
            setsid=True,
        )
    finally:
        os.close(log)


def _connect(connection: socket.socket, folder: Path) -> None:
    until = time.monotonic() + 2 * _STARTS_S
    while True:
        try:
            connection.connect(str(folder / "socket"))
            return
        except OSError:
            assert time.monotonic() < until, (folder / "guardian.log").read_text(errors="replace")
            time.sleep(0.02)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Jars


def fetch_jars() -> Path:
    """The folder with the broker's jars, fetched if this machine does not have them yet."""
    # Not below $XDG_CACHE_HOME, which is another folder in each test run.
    folder = Path.home() / ".cache" / "stepwell-tests" / f"kafka-{VERSION}"
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            _fetch(folder)
    return folder


def fetch(organization: str, name: str, version: str) -> Path:
    """The folder with an artifact and what it depends on, fetched from Maven Central once."""
    folder = Path.home() / ".cache" / "stepwell-tests" / f"{name}-{version}"
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as made:
                _retrieve(Path(made), organization, name, version)
                os.rename(Path(made) / "jars", folder)
    return folder


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as made:
        _retrieve(Path(made), "org.apache.kafka", "kafka_2.13", VERSION)
        _format(Path(made))
        os.rename(Path(made) / "jars", folder)


def _retrieve(made: Path, organization: str, name: str, version: str) -> None:
    ivy = next(_spark_jars().glob("ivy-*.jar"))
    command = [
        *(_java(), "-jar", str(ivy), "-cache", f"{made}/ivy", "-confs", "default"),
        *("-dependency", organization, name, version),
        *("-retrieve", f"{made}/jars/[artifact]-[revision].[ext]"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise UnreachableError("fetching its jars from Maven Central took too long") from None
    if done.returncode or not list(made.glob(f"jars/{name}-*.jar")):
        said = (done.stdout + done.stderr).strip().splitlines()
        raise UnreachableError(f"Ivy cannot fetch its jars: {' / '.join(said[-5:])}")


def _format(made: Path) -> None:
    """Format the storage of a broker once; every broker starts from a copy."""
    settings = made / "server.properties"
    settings.write_text(_settings(made / "jars" / "formatted", 9, 10))
    command = [
        *(_java(), "-cp", _classpath(made / "jars"), "kafka.tools.StorageTool", "format"),
        *("-t", "c3RlcHdlbGwtdGVzdHMtMA", "-c", str(settings)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def _classpath(jars: Path) -> str:
    """The jars, after those of pyspark with which the broker can write a log."""
    spark = _spark_jars()
    logging = [*spark.glob("slf4j-api-*.jar"), *spark.glob("log4j-slf4j2-impl-*.jar")]
    return ":".join([*map(str, logging), f"{jars}/*"])


def _spark_jars() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "jars"


def _java() -> str:
    return find_java(os.environ).program


# The guardian


def _settings(data: Path, port: int, controller: int) -> str:
    given = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": data,
        "num.partitions": 1,
        "auto.create.topics.enable": "false",
        "num.network.threads": 2,
        "num.io.threads": 2,
        "num.recovery.threads.per.data.dir": 1,
        "background.threads": 1,
        "log.segment.bytes": 1 << 20,
        "log.index.size.max.bytes": 1 << 16,
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "log.flush.offset.checkpoint.interval.ms": 1000,
        "log.initial.task.delay.ms": 500,
        "log.retention.check.interval.ms": 500,
        "log.cleaner.backoff.ms": 500,
        "file.delete.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    return "".join(f"{name}={value}\n" for name, value in given.items())


_LOG4J = """<Configuration status="WARN"><Appenders><Console name="out">
<PatternLayout pattern="%d %p %c{1}: %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""


class _Server:
    """The broker's process, in a folder."""

    def __init__(self, folder: Path, jars: Path) -> None:
        self._folder = folder
        self._jars = jars
        self._log: IO[bytes] = open(folder / "broker.log", "ab")  # noqa: SIM115 - closed at the end
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = _free_ports()
        shutil.copytree(jars / "formatted", folder / "data")
        (folder / "log4j2.xml").write_text(_LOG4J)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        self.kill()
        settings = self._folder / "server.properties"
        settings.write_text(_settings(self._folder / "data", *self._ports))
        self._process = subprocess.Popen(
            [
                *(_java(), f"-Xmx{_HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-XX:-UsePerfData", f"-Dlog4j2.configurationFile={self._folder}/log4j2.xml"),
                *("-cp", _classpath(self._jars), "kafka.Kafka", str(settings)),
            ],
            stdout=self._log,
            stderr=self._log,
            cwd=self._folder,
        )
        until = time.monotonic() + _STARTS_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                said = (self._folder / "broker.log").read_text(errors="replace")
                raise RuntimeError(f"the broker did not start: {said[-3000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._log.close()

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self._ports[0]), timeout=1).close()
            with suppress(KafkaException):
                given = {"bootstrap.servers": self.address, "log_level": 0}
                return bool(AdminClient(given).list_topics(timeout=2).brokers)
        return False


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def main(folder: Path, jars: Path) -> None:
    server, listening = _Server(folder, jars), socket.socket(socket.AF_UNIX)
    try:
        for left in range(3, 0, -1):
            try:
                server.start()
                break
            except RuntimeError:  # Another process may have taken a port in between.
                if left == 1:
                    raise
                server._ports = _free_ports()
        listening.bind(str(folder / "socket"))
        listening.listen()
        _serve(server, listening, folder)
    finally:
        server.close()
        listening.close()
    shutil.rmtree(folder, ignore_errors=True)


def _serve(server: _Server, listening: socket.socket, folder: Path) -> None:
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    clients = 0
    while True:
        for key, _ in selector.select():
            if key.fileobj is listening:
                connection, _ = listening.accept()
                selector.register(connection, selectors.EVENT_READ, connection.makefile("rw"))
                clients += 1
                continue
            request = _request(key.data)
            if request:
                _answer(key.data, server, request)
                continue
            selector.unregister(key.fileobj)
            key.data.close()
            key.fileobj.close()  # type: ignore[union-attr]
            clients -= 1
            if clients:
                continue
            with _locked(folder / "lock"):  # Nobody connects while this decides.
                listening.setblocking(False)
                with suppress(BlockingIOError):
                    connection, _ = listening.accept()
                    connection.setblocking(True)
                    selector.register(connection, selectors.EVENT_READ, connection.makefile("rw"))
                    clients = 1
                listening.setblocking(True)
                if not clients:
                    os.unlink(folder / "socket")
                    return


def _request(file: IO[str]) -> str:
    try:
        return file.readline().strip()
    except OSError:
        return ""


def _answer(file: IO[str], server: _Server, request: str) -> None:
    answer = {}
    try:
        if request != "address":
            getattr(server, request)()
        answer["address"] = server.address
    except RuntimeError as error:
        answer["error"] = str(error)
    with suppress(OSError):
        file.write(json.dumps(answer) + "\n")
        file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
