"""Connections of an endpoint: their phases, and the threads that serve them.

One thread accepts connections and watches all idle ones, so an idle connection costs no thread. A
worker thread reads and answers each request. Workers are reused, and there are never more than
`WORKERS_MAX`. No client is locked out for long: if there are too many idle connections, the one
that has been idle longest is closed, and a worker that reads from a stalled peer is freed for the
next client.

While a request is worked on, the accepting thread sends a heartbeat every second. When file
descriptors, memory or threads run out, the endpoint closes idle connections and tries again;
exhaustion must never end the endpoint.
"""

from __future__ import annotations

import errno
import select
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import pyarrow as pa

from stepwell import threads
from stepwell.endpoint.wire import (
    REQUEST_BYTES_MAX,
    ConnectionLost,
    Header,
    Message,
    encode,
    error_json,
    receive,
    send,
)
from stepwell.env import Env
from stepwell.errors import StepwellError, UnavailableError

WORKERS_MAX = 64
IDLE_MAX = 256
BEAT_S = 1.0
_READ_S_MAX = 10.0
"""Longest silence of a peer in the middle of a request."""
_SEND_S_MAX = 60.0
_STALLED_S = 2.0
"""A peer that has been read from for this long is cut off if all workers are busy."""
_WORKER_IDLE_S = 10.0
_PAUSE_S = 0.2
_RESTARTS = 3
_SHORT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

Phase = Literal["idle", "reading", "working", "answering", "waiting"]
"""`waiting`: a worker keeps the connection between two requests of an open transaction."""


class Connection:
    """One peer. The phase determines which thread may use the socket."""

    def __init__(self, peer: socket.socket, at: float) -> None:
        self.socket = peer
        self.since = at
        """Start of the current phase."""
        self.phase: Phase = "idle"
        self._lock = threading.Lock()

    def enter(self, phase: Phase, at: float) -> None:
        with self._lock:
            self.phase, self.since = phase, at

    def send(self, header: Header, tables: Sequence[pa.Table | None] = ()) -> None:
        """Send an answer; no heartbeat is sent from here on, so none can interleave with it."""
        with self._lock:
            self.phase = "answering"
        self.socket.settimeout(_SEND_S_MAX)
        send(self.socket, header, tables)

    def beat(self, message: bytes) -> None:
        """Send a heartbeat; never blocks."""
        with self._lock:
            if self.phase != "working":
                return
            with suppress(OSError, ValueError):
                writable = select.select([], [self.socket], [], 0)[1]
                if writable and self.socket.send(message) != len(message):
                    self.cut()  # The peer would take a partial message for the start of the answer.

    def cut(self) -> None:
        """Shut the socket down, whichever thread uses it: its next read or write fails."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self.socket.close()


class Connections:
    """Serves a listener until closed. Workers call `answer` once for each request."""

    def __init__(
        self,
        listen: Callable[[socket.socket | None], socket.socket],
        env: Env,
        answer: Callable[[Connection, Message], None],
        beat: Callable[[], Header],
        failed: threads.Failed,
    ) -> None:
        """`listen(None)` creates the listener.

        `listen(listener)` returns the same listener, or a new one if its path was removed.
        """
        self._listen = listen
        self._listener = listen(None)
        self._env = env
        self._answer = answer
        self._beat = beat
        self._failed = failed
        self._ending = threading.Event()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._lock = threading.Condition()
        self._idle: dict[Connection, None] = {}
        """Ordered by the time they became idle. Used by the accepting thread only."""
        self._returned: deque[Connection] = deque()
        self._jobs: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        self.workers = 0
        self._free = 0
        self._beaten = env.uptime()
        # Created once: a process that has run out of descriptors could not create another.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threads.start(
            "stepwell-endpoint", self._run, failed=failed, restarts=_RESTARTS
        )

    @property
    def count(self) -> int:
        return len(self._idle) + len(self._busy) + len(self._returned)

    @property
    def ending(self) -> bool:
        return self._ending.is_set()

    def stop(self) -> None:
        """Stop accepting connections and reading requests."""
        self._ending.set()
        self._wake()

    def close(self, wait_s: float) -> None:
        """Stop, and wait up to `wait_s` for answers in progress."""
        self.stop()
        self._thread.join()
        self._selector.close()
        self._listener.close()
        with self._lock:
            self._lock.notify_all()
            for connection in self._busy:
                with suppress(OSError):
                    # A reader sees the end of the stream; answers can still be sent.
                    connection.socket.shutdown(socket.SHUT_RD)
            self._lock.wait_for(lambda: not self._busy, wait_s)
        for connection in (*self._idle, *self._returned):
            connection.close()
        self._waker.close()
        self._woken.close()

    # The accepting thread

    def _run(self) -> None:
        while not self.ending:
            for key, _ in self._selector.select(BEAT_S / 2):
                if isinstance(key.data, Connection):
                    self._selector.unregister(key.data.socket)
                    self._idle.pop(key.data, None)
                    self._hand_over(key.data)
                elif key.fileobj is self._woken:
                    with suppress(BlockingIOError):
                        self._woken.recv(4096)
                else:
                    self._accept()
            while self._returned:
                self._watch(self._returned.popleft())
            self._tick()

    def _accept(self) -> None:
        for _ in range(WORKERS_MAX):
            try:
                peer, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _SHORT_OF:
                    # The client stays in the backlog and is accepted once there is room again.
                    self._drop_silent()
                    self._ending.wait(_PAUSE_S)
                elif error.errno not in (errno.ECONNABORTED, errno.EAGAIN, errno.EINTR):
                    raise
                return
            if len(self._idle) >= IDLE_MAX:
                self._drop_silent()
            self._watch(Connection(peer, self._env.uptime()))

    def _watch(self, connection: Connection) -> None:
        connection.enter("idle", self._env.uptime())
        self._idle[connection] = None
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _drop_silent(self) -> None:
        for connection in self._idle:
            del self._idle[connection]
            self._selector.unregister(connection.socket)
            connection.close()
            return

    def _hand_over(self, connection: Connection) -> None:
        with self._lock:
            connection.enter("reading", self._env.uptime())
            self._jobs.append(connection)
            self._busy.add(connection)
            if self._free >= len(self._jobs):
                self._lock.notify()
                return
            if self.workers < WORKERS_MAX and self._hire():
                return
            stalled = [
                other
                for other in self._busy
                if other.phase == "reading"
                and other not in self._jobs
                and self._env.uptime() - other.since >= _STALLED_S
            ]
            if stalled:
                min(stalled, key=lambda other: other.since).cut()
                return  # The worker of the connection just cut takes the next job.
            self._jobs.remove(connection)
            self._busy.discard(connection)
        self._refuse(connection)

    def _hire(self) -> bool:
        try:
            threads.start("stepwell-request", self._work, failed=self._worker_failed)
        except RuntimeError:
            return self.workers > 0  # No more threads to be had; an existing worker will take it.
        self.workers += 1
        return True

    def _refuse(self, connection: Connection) -> None:
        error = UnavailableError(
            f"the process that runs the pipeline is already serving {WORKERS_MAX} requests",
            hint="try again in a moment",
            not_applied=True,
        )
        with suppress(ConnectionLost, OSError, StepwellError):
            connection.socket.settimeout(0.1)
            connection.socket.recv(65536)
            send(connection.socket, {"error": error_json(error)})
        connection.close()

    def _tick(self) -> None:
        now = self._env.uptime()
        if now - self._beaten < BEAT_S:
            return
        self._beaten = now
        message = encode(self._beat())
        with self._lock:
            busy = list(self._busy)
        for connection in busy:
            connection.beat(message)
        listener = self._listen(self._listener)
        if listener is not self._listener:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = listener
            self._selector.register(listener, selectors.EVENT_READ)

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            self._waker.send(b"\0")

    # Workers

    def _work(self) -> None:
        answered: Connection | None = None
        while True:
            with self._lock:
                # Count this worker as free before its peer can send again, or another one would be
                # hired.
                self._free += 1
                if answered is not None:
                    self._busy.discard(answered)
                    self._returned.append(answered)
                    self._lock.notify_all()
                    self._wake()
                self._lock.wait_for(lambda: self._jobs or self.ending, _WORKER_IDLE_S)
                self._free -= 1
                if not self._jobs:
                    self.workers -= 1
                    return
                connection = self._jobs.popleft()
            again = False
            try:
                again = self._serve(connection)
            finally:
                if not again:
                    with self._lock:
                        self._busy.discard(connection)
                        self._lock.notify_all()
                    connection.close()
            answered = connection if again else None

    def _worker_failed(self, error: BaseException) -> None:
        with self._lock:
            self.workers -= 1
        self._failed(error)

    def _serve(self, connection: Connection) -> bool:
        """Read a request and answer it; return whether another one may follow."""
        try:
            connection.socket.settimeout(_READ_S_MAX)
            request = receive(connection.socket, REQUEST_BYTES_MAX)
        except Exception:  # noqa: BLE001 - whatever a peer sends, only its connection ends
            return False
        connection.enter("working", self._env.uptime())
        try:
            self._answer(connection, request)
        except Exception:  # noqa: BLE001 - the peer hung up or is out of reach: only this ends
            return False
        return not self.ending
