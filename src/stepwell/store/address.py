"""A store as another process opens it, also on another machine.

    here     address = address_of(store)         the URI, and what this process reaches it with
    there    store = open_address(address, env)

What a bucket is reached with may be secret: it is in no text that this value is printed as, and it
is handed to processes, never stored. Variables that name a file or a service of one machine are not
handed on: the other machine has its own, or needs none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from stepwell.env import Env, with_variables
from stepwell.errors import ConfigError
from stepwell.store.base import Store
from stepwell.store.locate import BUCKETS, open_store
from stepwell.store.patient import PatientStore
from stepwell.store.retry import LOOK_S

_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_OF_A_MACHINE = re.compile(r".*_(FILE|PATH|CREDENTIALS|SERVICE_ACCOUNT)|AWS_(CONTAINER|PROFILE).*")


@runtime_checkable
class WithOptions(Protocol):
    """A store that was opened with options of its own."""

    @property
    def options(self) -> Mapping[str, str | bool]: ...


@dataclass(frozen=True, slots=True)
class Address:
    uri: str
    options: Mapping[str, str | bool] = field(default_factory=dict, repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of the environment."""
    patience_s: float = LOOK_S

    @property
    def is_directory(self) -> bool:
        return self.uri.startswith("file://")


def address_of(store: Store, environ: Mapping[str, str] | None = None) -> Address:
    """`ConfigError` if no other process can open it."""
    options = store.options if isinstance(store, WithOptions) else {}
    address = address_at(store.uri, environ, options)
    if isinstance(store, PatientStore):
        address = replace(address, patience_s=store.patience.retry.patience_s)
    return address


def address_at(
    uri: str,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, str | bool] | None = None,
) -> Address:
    scheme = uri.partition("://")[0]
    if scheme not in ("file", *BUCKETS):
        raise ConfigError(
            f"{uri} cannot be opened by another process, as Spark's workers would have to",
            hint="take a shared directory or a bucket, or spark.master local[*]",
        )
    prefix = _PREFIXES.get(scheme, "\0")
    environ = os.environ if environ is None else environ
    variables = {
        name: value
        for name, value in environ.items()
        if name.startswith(prefix) and not _OF_A_MACHINE.fullmatch(name)
    }
    return Address(uri, dict(options or {}), variables)


def open_address(address: Address, env: Env) -> Store:
    """The store; what the address lacks comes from the environment of this process."""
    with with_variables(address.variables):
        return open_store(address.uri, env, None, patience_s=address.patience_s, **address.options)
