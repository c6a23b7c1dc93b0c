"""The names of all objects that a pipeline stores, formatted and parsed only here.

Numbers are padded to 20 digits so that listing order is log order. User-supplied names are
percent-encoded, so that they can contain any character and never leave their folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, unquote

from stepwell.model import Position, Transaction, checksum, is_ulid
from stepwell.store.probe import PROBE_PREFIX

MANIFESTS = "manifest/"
JOURNAL = "journal/"
IDENTITY = "journal/identity.json"
BOUNDARY = "gc/boundary.json"
JOURNAL_BOUNDARY = "journal/boundary.json"
WATCH = "journal/watch.json"
BARRIERS = "journal/barriers.json"
RESOURCES = "deploy/resources.json"
DEPLOY_LOG = "deploy/resources.json.wal/"
DEPLOY_LOG_KEPT = "deploy/resources.json.wal.kept/"
LEASE = "deploy/lease.json"
PLACE = "place.txt"
LAST_ERROR = "last_error.json"

Kind = Literal[
    "manifest",
    "entry",
    "identity",
    "run",
    "spill",
    "checkpoint",
    "outbox",
    "boundary",
    "watch",
    "barriers",
    "probe",
    "resources",
    "deploy_log",
    "deploy_kept",
    "lease",
    "place",
    "last_error",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Name:
    """The parsed path of an object."""

    kind: Kind
    number: int | None = None
    owner: str | None = None
    id: str | None = None


def manifest(id: int) -> str:
    return f"{MANIFESTS}{id:020d}.json"


def entry(position: Position) -> str:
    return f"{JOURNAL}{position:020d}.arrow"


def run(relation: str, id: str) -> str:
    return f"runs/{_encode(relation)}/{id}.parquet"


def spill(id: str) -> str:
    return f"spill/{id}.parquet"


def checkpoint(id: str) -> str:
    return f"checkpoints/{id}.json"


def outbox(sink: str, transaction: Transaction, id: str) -> str:
    return f"outbox/{_encode(sink)}/{transaction:020d}-{id}.parquet"


def deploy_log(number: int) -> str:
    return f"{DEPLOY_LOG}{number:020d}.json"


def parse(path: str) -> Name:
    """Parse a path; the kind is `unknown` for names not made by Stepwell, which it never deletes.

    >>> parse("runs/big%20orders/01ARZ3NDEKTSV4RRFFQ69G5FAV.parquet")
    Name(kind='run', number=None, owner='big orders', id='01ARZ3NDEKTSV4RRFFQ69G5FAV')
    """
    if path == IDENTITY:
        return Name("identity")
    if path in (BOUNDARY, JOURNAL_BOUNDARY):
        return Name("boundary")
    if path == WATCH:
        return Name("watch")
    if path == BARRIERS:
        return Name("barriers")
    if path == RESOURCES:
        return Name("resources")
    if path == LEASE:
        return Name("lease")
    if path == PLACE:
        return Name("place")
    if path == LAST_ERROR:
        return Name("last_error")
    if path.startswith(PROBE_PREFIX):
        return Name("probe")
    for kind, pattern in _PATTERNS:
        match = pattern.fullmatch(path)
        if match is None:
            continue
        found = match.groupdict()
        number, owner, id = found.get("number"), found.get("owner"), found.get("id")
        if id is not None and not is_ulid(id):
            continue
        return Name(
            kind,
            number=None if number is None else int(number),
            owner=None if owner is None else _decode(owner),
            id=id,
        )
    return Name("unknown")


_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("manifest", re.compile(r"manifest/(?P<number>\d{20})\.json")),
    ("entry", re.compile(r"journal/(?P<number>\d{20})\.arrow")),
    ("run", re.compile(r"runs/(?P<owner>[^/]+)/(?P<id>[^/]+)\.parquet")),
    ("spill", re.compile(r"spill/(?P<id>[^/]+)\.parquet")),
    ("checkpoint", re.compile(r"checkpoints/(?P<id>[^/]+)\.json")),
    ("deploy_log", re.compile(re.escape(DEPLOY_LOG) + r"(?P<number>\d{20})\.json")),
    ("deploy_kept", re.compile(re.escape(DEPLOY_LOG_KEPT) + r"(?P<id>[^/]+)/[\w.]+")),
    ("outbox", re.compile(r"outbox/(?P<owner>[^/]+)/(?P<number>\d{20})-(?P<id>[^/]+)\.parquet")),
)


_NAME_MAX = 200
"""File systems take 255 bytes; a longer name ends in `~` and its checksum, and cannot be parsed."""


def _encode(name: str) -> str:
    encoded = quote(name, safe="").replace("~", "%7E")
    # quote() keeps dots, but a leading dot would make the name hidden, or `..`.
    if encoded.startswith("."):
        encoded = f"%2E{encoded[1:]}"
    if len(encoded) > _NAME_MAX:
        return f"{encoded[: _NAME_MAX - 33]}~{checksum([name.encode()])}"
    return encoded


def _decode(owner: str) -> str | None:
    return None if "~" in owner else unquote(owner)
