"""A stand-in for S3 on the loopback address.

Run as a program it prints its port and serves until its standard input ends, so that it cannot
outlive the tests that started it, however they end.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class OneAtATime:
    """moto looks for a key and then writes it, without a lock; S3 does both in one step."""

    def __init__(self, inner: Callable[..., Iterable[bytes]]) -> None:
        self._inner = inner
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._lock:
            return list(self._inner(environ, start_response))


class Quiet(WSGIRequestHandler):
    def log(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
