"""A client of schema registries that speak Confluent's API: schemas by id, and registering one.

If the registry says that a schema does not exist, the record is invalid that names it. Any other
failure says nothing about a record: `UnavailableError`, and the registry is asked again later.
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from stepwell.connectors.avro import TEXT_MAX, Texts
from stepwell.connectors.options import Options
from stepwell.connectors.values import Unfit
from stepwell.errors import InvalidError, StepwellError, UnavailableError

_JSON = "application/vnd.schemaregistry.v1+json"
_NO_SCHEMA = 40403
_REFERENCES_MAX = 100


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    url: str
    username: str = ""
    password: str = field(default="", repr=False)
    timeout_s: float = 10.0


def registry_address(options: Options) -> RegistryAddress | None:
    """The option `registry`: an address, or a mapping with the credentials for it."""
    timeout_s = max(1.0, options.seconds("timeout", "10s"))
    given = options.text_or_mapping("registry")
    if given is None:
        return None
    fields = {"url": given} if isinstance(given, str) else dict(given)
    expected = "the address of a registry, or a mapping of url, username and password"
    for name, value in fields.items():
        if name not in ("url", "username", "password") or not isinstance(value, str):
            raise options.wrong("registry", expected, f"{name}: ...")
    url = str(fields.get("url", "")).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise options.wrong("registry", f"{expected}, http:// or https://", url or None)
    username, password = (str(fields.get(word, "")) for word in ("username", "password"))
    return RegistryAddress(url, username, password, timeout_s)


class Registry:
    """A registry. Schemas never change under their ids, so each is asked for once."""

    def __init__(self, what: str, address: RegistryAddress) -> None:
        self._what = what
        self._address = address
        # A redirect would be sent the credentials, too.
        self._open = urllib.request.build_opener(_NoRedirects).open
        self._schemas: dict[int, Texts] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def schema(self, id: int) -> Texts:
        """The schema with an id, after those it refers to; raises `Unfit` if there is none."""
        if id not in self._schemas:
            found = self._request(f"/schemas/ids/{id}")
            if found is None:
                raise Unfit(absent(id))
            made: dict[str, str] = {}
            self._add_references(found, made)
            kind = found.get("schemaType", "AVRO")
            if kind != "AVRO":
                raise Unfit(f"schema {id} of the registry is {kind}, not Avro")
            self._schemas[id] = (*made.values(), self._text(found))
        return self._schemas[id]

    def register(self, subject: str, text: str) -> int:
        """The id of a schema under a subject, where it is registered if it is new."""
        known = self._ids.get((subject, text))
        if known is not None:
            return known
        path = f"/subjects/{quote(subject, safe='')}/versions"
        told = self._request(path, {"schema": text})
        id = told.get("id") if told is not None else None
        if type(id) is not int:
            raise self._failed(f"it does not say the id of the schema of {subject}")
        self._ids[subject, text] = id
        return id

    def _add_references(self, found: Mapping[str, Any], made: dict[str, str]) -> None:
        """Add the schemas that one refers to by name, in the order in which they can be read."""
        for item in found.get("references") or ():
            try:
                name, subject, version = item["name"], item["subject"], item["version"]
            except (KeyError, TypeError):
                raise self._failed("its answer names a schema without a version") from None
            if name in made:
                continue
            if len(made) >= _REFERENCES_MAX:
                raise Unfit(f"a schema that refers to more than {_REFERENCES_MAX} others")
            path = f"/subjects/{quote(str(subject), safe='')}/versions/{version}?deleted=true"
            other = self._request(path)
            if other is None:
                raise Unfit(f"the registry has no version {version} of {subject}")
            made[name] = ""  # Keeps schemas that refer to each other from being asked forever.
            self._add_references(other, made)
            del made[name]
            made[name] = self._text(other)

    def _text(self, found: Mapping[str, Any]) -> str:
        text = found.get("schema")
        if not isinstance(text, str):
            raise self._failed("its answer holds no schema")
        return text

    def _request(self, path: str, body: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """The answer to a request; None if what is asked for does not exist."""
        address = self._address
        headers = {"Accept": f"{_JSON}, application/json"}
        if address.username or address.password:
            pair = f"{address.username}:{address.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        data = None
        if body is not None:
            headers["Content-Type"] = _JSON
            data = json.dumps(body).encode()
        request = urllib.request.Request(address.url + path, data, headers)
        try:
            with self._open(request, timeout=address.timeout_s) as answer:
                told = _object(answer.read(2 * TEXT_MAX + 1))
        except urllib.error.HTTPError as error:
            return self._refused(error)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise self._failed(str(reason) or type(error).__name__) from error
        if told is None:
            raise self._failed("its answer is not a JSON object of a schema")
        return told

    def _refused(self, error: urllib.error.HTTPError) -> dict[str, Any] | None:
        """None if what was asked for does not exist; otherwise raises an error."""
        try:
            with error:
                told = _object(error.read(TEXT_MAX)) or {}
        except (OSError, http.client.HTTPException):
            told = {}
        # A 404 without a code comes from something that is not a registry.
        if error.code == 404 and told.get("error_code") in (40401, 40402, _NO_SCHEMA):
            return None
        reason = f"it answers {error.code}: {told.get('message') or error.reason}"
        if error.code in (409, 422):
            raise InvalidError(
                f"{self._what}: the registry {self._address.url} refuses the schema: {reason}",
                hint="change the view or the compatibility of the subject, or use another topic",
            )
        raise self._failed(reason)

    def _failed(self, reason: str) -> StepwellError:
        return UnavailableError(
            f"{self._what} cannot use the registry {self._address.url}: {reason}",
            hint="check that the registry runs, and that its address and credentials are right",
        )


def absent(id: int) -> str:
    """The reason to refuse a value whose schema does not exist."""
    return f"the registry has no schema {id}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
