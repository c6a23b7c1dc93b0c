"""A schema registry for the tests: an HTTP server in a process of its own, which can be killed.

It is a stand-in that speaks the part of Confluent's API that clients use to read and to register
schemas; compatibility is checked in one respect only, that a new field has a default. Its schemas
are lines of a file, so a registry that is started again has those of the one that was killed.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

TYPE = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """A registry, as a test uses it."""

    def __init__(self, folder: Path, credentials: str = "") -> None:
        self._file = folder / "schemas.jsonl"
        self._credentials = credentials
        self._process: subprocess.Popen[str] | None = None
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server, on the port it had."""
        command = [sys.executable, "-m", __name__, str(self._file), str(self._port)]
        self._process = subprocess.Popen(
            [*command, self._credentials],
            cwd=Path(__file__).resolve().parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """Kill the server by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def add(self, subject: str, schema: object, **more: object) -> int:
        """Register a schema; `more` are its type and its references."""
        body = json.dumps({"schema": json.dumps(schema), **more}).encode()
        url = f"{self.url}/subjects/{subject}/versions"
        headers = {"Content-Type": TYPE}
        if self._credentials:
            headers["Authorization"] = basic(self._credentials)
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return int(json.loads(answer.read())["id"])

    def subjects(self) -> dict[str, list[Any]]:
        """The schemas of each subject, in order."""
        made: dict[str, list[Any]] = {}
        for line in self._file.read_text().splitlines():
            item = json.loads(line)
            made.setdefault(item["subject"], []).append(json.loads(item["schema"]))
        return made

    def forget(self) -> None:
        """Lose all schemas."""
        self.kill()
        self._file.write_text("")
        self.start()


@contextmanager
def schema_registry(folder: Path, credentials: str = "") -> Iterator[SchemaRegistry]:
    made = SchemaRegistry(folder, credentials)
    try:
        yield made
    finally:
        made.kill()


def framed(id: int, value: bytes) -> bytes:
    """A value as serializers that use a registry write it."""
    return b"\0" + id.to_bytes(4, "big") + value


def basic(credentials: str) -> str:
    return "Basic " + base64.b64encode(credentials.encode()).decode()


# The server


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        if not self._allowed():
            return
        if parts[0] not in ("schemas", "subjects"):
            self._answer(404, {"error": "Not Found"})
            return
        found = [item for item in self.server.items() if self._matches(item, parts)]
        if not found:
            code = 40403 if parts[0] == "schemas" else 40402
            self._answer(404, {"error_code": code, "message": "not found"})
        else:
            told = {"schema": found[0]["schema"], "id": found[0]["id"]}
            told |= {
                name: found[0][name] for name in ("schemaType", "references") if found[0][name]
            }
            self._answer(200, told)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        subject = unquote(self.path.split("/")[2])
        if not self._allowed():
            return
        items = self.server.items()
        own = [item for item in items if item["subject"] == subject]
        for item in own:
            if item["schema"] == body["schema"]:
                self._answer(200, {"id": item["id"]})
                return
        if own and not compatible(json.loads(own[-1]["schema"]), json.loads(body["schema"])):
            told = "Schema being registered is incompatible with an earlier schema"
            self._answer(409, {"error_code": 409, "message": told})
            return
        made = {
            "id": max((item["id"] for item in items), default=0) + 1,
            "subject": subject,
            "version": len(own) + 1,
            "schema": body["schema"],
            "schemaType": body.get("schemaType"),
            "references": body.get("references"),
        }
        with open(self.server.file, "a") as file:
            file.write(json.dumps(made) + "\n")
        self._answer(200, {"id": made["id"]})

    def _matches(self, item: dict[str, Any], parts: list[str]) -> bool:
        if parts[:2] == ["schemas", "ids"]:
            return str(item["id"]) == parts[2]
        return [item["subject"], str(item["version"])] == [unquote(parts[1]), parts[3]]

    def _allowed(self) -> bool:
        wanted = self.server.credentials
        if wanted and self.headers.get("Authorization") != basic(wanted):
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
            return False
        return True

    def _answer(self, code: int, told: object) -> None:
        data = json.dumps(told).encode()
        self.send_response(code)
        self.send_header("Content-Type", TYPE)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def __init__(self, file: Path, port: int, credentials: str) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.file = file
        self.credentials = credentials

    def items(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


def compatible(old: Any, new: Any) -> bool:
    """Whether every field that is new has a default, for two records."""
    if not isinstance(old, dict) or "fields" not in old:
        return True
    before = {item["name"]: item["type"] for item in old["fields"]}
    return all(
        item["type"] == before[item["name"]] if item["name"] in before else "default" in item
        for item in new["fields"]
    )


def main(file: Path, port: int, credentials: str) -> None:
    file.touch()
    server = _Server(file, port, credentials)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
