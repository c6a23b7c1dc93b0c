"""A REST catalog for tests: a small server in front of a catalog in SQLite.

It serves what a sink and a source ask for. Faults can be switched on: a commit whose answer is
lost, and one that is refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table

_STATUS = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409,
    CommitFailedException: 409,
}


_ABSENT = {"location": None, "partition-spec": None, "write-order": None}


class RestCatalog:
    """The server, as a test sees it."""

    def __init__(self, folder: Path) -> None:
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
        self._behind = {"type": "sql", "uri": uri, "warehouse": warehouse}
        self._lock = threading.Lock()
        self.requests: list[str] = []
        self.fault: str | None = None
        """`lost`: the next commit takes place and is answered with 500. `late`: it is refused."""
        self.uri = ""

    def answer(self, method: str, path: str, body: Any) -> Any:
        self.requests.append(f"{method} {path}")
        parts = path.strip("/").split("/")[1:]
        with self._lock:
            catalog = load_catalog("default", **self._behind)
            try:
                if parts == ["config"]:
                    return {"defaults": {}, "overrides": {}}
                if parts == ["namespaces"]:
                    catalog.create_namespace(tuple(body["namespace"]))
                    return {"namespace": body["namespace"], "properties": {}}
                namespace = parts[1]
                if parts[2:] == ["tables"]:
                    return loaded(create(catalog, namespace, body))
                name = f"{namespace}.{parts[3]}"
                if method == "GET":
                    return loaded(catalog.load_table(name))
                return self._commit(catalog, name, body)
            finally:
                catalog.close()

    def _commit(self, catalog: Any, name: str, body: Any) -> Any:
        fault, self.fault = self.fault, None
        if fault == "late":
            raise CommitFailedException("another commit was faster")
        request = CommitTableRequest.model_validate(body)
        catalog.commit_table(catalog.load_table(name), request.requirements, request.updates)
        if fault == "lost":
            raise RuntimeError("the answer is lost")
        return loaded(catalog.load_table(name))


def create(catalog: Any, namespace: str, body: Any) -> Table:
    request = CreateTableRequest.model_validate(_ABSENT | body)
    made: Table = catalog.create_table(
        f"{namespace}.{request.name}", request.table_schema, properties=request.properties
    )
    return made


def loaded(table: Table) -> Any:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


@contextmanager
def rest_catalog(folder: Path) -> Iterator[RestCatalog]:
    made = RestCatalog(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            try:
                status, answer = 200, made.answer(self.command, urlsplit(self.path).path, body)
            except Exception as error:  # noqa: BLE001 - an answer like any other
                status = _STATUS.get(type(error), 500)
                kind = type(error).__name__
                answer = {"error": {"message": str(error), "type": kind, "code": status}}
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *given: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    made.uri = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield made
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
