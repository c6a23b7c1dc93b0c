"""The address of a store: all that another process, also on another machine, needs to open it.

    here     address = address_of(store)         the URI, and the credentials of this process
    there    store = open_address(address, env)

The options and variables of an address may hold credentials. They are left out of its `repr`, and
are passed to processes but never stored. Variables that name a file or a service of one machine are
not passed on: the other machine has its own, or needs none.
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
    """A store that was opened with options."""

    @property
    def options(self) -> Mapping[str, str | bool]: ...


@dataclass(frozen=True, slots=True)
class Address:
    uri: str
    options: Mapping[str, str | bool] = field(default_factory=dict, repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables."""
    patience_s: float = LOOK_S

    @property
    def is_directory(self) -> bool:
        return self.uri.startswith("file://")


def address_of(store: Store, environ: Mapping[str, str] | None = None) -> Address:
    """The address of an open store; raises `ConfigError` if no other process can open it."""
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
            hint="use a shared directory or a bucket, or spark.master local[*]",
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
    """Open the store; settings missing from the address come from this process's environment."""
    with with_variables(address.variables):
        return open_store(address.uri, env, None, patience_s=address.patience_s, **address.options)
