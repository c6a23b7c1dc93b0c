"""Open a store by its address: a directory, `file://`, `s3://`, `gs://`, `az://`.

An address never holds a secret: credentials come from the environment. An address that seems to
contain credentials is refused, and the error does not repeat it.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING

from stepwell.env import Env
from stepwell.errors import ConfigError
from stepwell.store.base import Store
from stepwell.store.local import LocalStore
from stepwell.store.memory import SHARED
from stepwell.store.patient import PatientStore
from stepwell.store.retry import LOOK_S, Retry

if TYPE_CHECKING:
    from stepwell.store.answers import Scheme
    from stepwell.store.objects import Settings

BUCKETS: tuple[Scheme, ...] = ("s3", "gs", "az")


def open_store(
    uri_or_path: str,
    env: Env,
    settings: Settings | None = None,
    *,
    patience_s: float = LOOK_S,
    **options: str | bool,
) -> Store:
    """Open the store at an address. Makes no request: a missing store shows at the first call.

    A failed call is retried for `patience_s`. `settings` and `options` (`endpoint`, `region`, ...)
    apply to buckets; missing ones come from the environment.
    """
    store = _open(uri_or_path, env, settings, options)
    return store if uri_or_path in SHARED else PatientStore(store, env, Retry(patience_s))


def _open(
    uri_or_path: str, env: Env, settings: Settings | None, options: dict[str, str | bool]
) -> Store:
    if not uri_or_path:
        raise ConfigError("the store's address is empty", hint=_FORMS)
    scheme, address = _split(uri_or_path)
    if scheme in ("", "file"):
        if options:
            raise ConfigError(f"a directory takes no options, found {', '.join(sorted(options))}")
        return LocalStore(_directory(scheme, address), env)
    for known in BUCKETS:
        if scheme == known:
            return _open_bucket(known, address, env, settings, options)
    if uri_or_path in SHARED:
        return SHARED[uri_or_path]
    if scheme == "memory":
        raise ConfigError(
            "a memory:// store ends with its process, so it has no address to open",
            hint="in tests, pass a MemoryStore as the store itself",
        )
    close = difflib.get_close_matches(scheme, [*_OTHER_NAMES, "file", *BUCKETS], 1, 0.4)
    meant = f"did you mean {_OTHER_NAMES.get(close[0], close[0])}://? " if close else ""
    raise ConfigError(f"unknown kind of store {scheme}://", hint=meant + _FORMS)


def _open_bucket(
    scheme: Scheme,
    address: str,
    env: Env,
    settings: Settings | None,
    options: dict[str, str | bool],
) -> Store:
    matched = _BUCKET_AND_PREFIX.fullmatch(address)
    if not matched:
        # The address is not repeated: it may contain a password.
        raise ConfigError(
            f"this {scheme}:// address is not of the form {scheme}://bucket/prefix",
            hint="credentials and options come from the environment, never from the address",
        )
    try:
        # Imported here, so that a pipeline in a directory does not pay for it.
        from stepwell.store.objects import ObjectsStore
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "obstore":
            raise
        raise ConfigError(
            f"a store at {scheme}:// needs the package obstore, which is not installed",
            hint="pip install obstore",
        ) from error
    return ObjectsStore(scheme, matched[1], matched[2] or "", env, settings, **options)


def _split(address: str) -> tuple[str, str]:
    """Split an address into scheme and rest; the scheme of a plain path is empty."""
    matched = _SCHEME.match(address)
    scheme = matched[1].lower() if matched else ""
    if matched and matched[2]:
        return scheme, address[matched.end() :]
    if scheme in ("file", *BUCKETS):
        # `s3:/bucket` would be a directory named `s3:`, which is never intended.
        raise ConfigError(f"{scheme}: must be followed by two slashes", hint=_FORMS)
    return "", address


def _directory(scheme: str, address: str) -> str:
    if not scheme:
        return os.path.expanduser(address)
    if not address.startswith("/") and "@" in address:
        # The address is not repeated: see `_open_bucket`.
        raise ConfigError("this file:// address is not that of a directory", hint=_FORMS)
    if not address.startswith("/"):
        raise ConfigError(
            f"file://{address} is not the address of a directory on this machine",
            hint=f"file:///{address} is absolute; for a relative path write ./{address}",
        )
    return address


_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "google": "gs"} | dict.fromkeys(
    ("azure", "abfs", "abfss", "wasb", "wasbs", "adl"), "az"
)
_FORMS = "a store is a directory, file:///directory, s3://bucket/prefix, gs://... or az://..."
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_SEGMENT = r"[^./\\\x00-\x1f\x7f?#][^/\\\x00-\x1f\x7f?#]*"
_BUCKET_AND_PREFIX = re.compile(
    rf"([A-Za-z0-9$][A-Za-z0-9._-]*)(?:/+|/({_SEGMENT}(?:/{_SEGMENT})*)/*)?"
)
