"""Iceberg catalogs: connecting, the errors of `pyiceberg`, and the columns of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from stepwell.errors import ConfigError, StepwellError, UnavailableError

try:
    from pyiceberg import exceptions
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
except ImportError as error:
    raise ConfigError(
        "an Iceberg table needs pyiceberg, which is not installed",
        hint="pip install 'stepwell[iceberg]'",
    ) from error

_LOCAL = ("file:", "/")


@dataclass(frozen=True, slots=True)
class IcebergAddress:
    """Where a table is: a catalog, and the table's name in it."""

    identifier: str
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the catalog; they may hold secrets."""

    @property
    def local(self) -> str | None:
        """The folder of the warehouse, if it is on this machine."""
        warehouse = self.catalog.get("warehouse", "")
        if not warehouse.startswith(_LOCAL):
            return None
        return "/" + warehouse.removeprefix("file:").lstrip("/")


class IcebergCatalog:
    """A catalog, connected when it is first needed."""

    def __init__(self, what: str, address: IcebergAddress) -> None:
        self.what = what
        self.address = address
        self._catalog: Catalog | None = None

    def get(self) -> Catalog:
        if self._catalog is None:
            from stepwell.connectors.iceberg_io import NAME

            properties = dict(self.address.catalog)
            if self.address.local is not None:
                properties.setdefault("py-io-impl", NAME)
            name = properties.pop("name", "default")
            try:
                self._catalog = load_catalog(name, **properties)
            except (ValueError, *_CONFIGURED) as error:
                raise ConfigError(
                    f"{self.what}: option catalog: {error}",
                    hint="see the properties of catalogs in the documentation of pyiceberg",
                ) from error
        return self._catalog

    def table(self) -> Table | None:
        """The table as it is now; None if there is none."""
        try:
            return self.get().load_table(self.address.identifier)
        except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
            return None

    def close(self) -> None:
        catalog, self._catalog = self._catalog, None
        engine = getattr(catalog, "engine", None)
        if engine is not None:
            engine.dispose()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the errors of `pyiceberg` and of what it uses into `UnavailableError`."""
        try:
            yield
        except StepwellError:
            raise
        except Exception as error:
            if not _is_outside(error):
                raise
            self.close()
            # A database's own message, without the statement.
            reason = getattr(error, "orig", None) or error
            raise UnavailableError(
                f"{self.what} cannot use {self.address.identifier}: {reason}",
                hint="check the option catalog, and the credentials of catalog and store",
            ) from error


_CONFIGURED = (exceptions.NotInstalledError, exceptions.NoSuchPropertyException)
_FROM = ("pyiceberg.", "sqlalchemy.", "botocore.", "requests.", "pyarrow.")


def _is_outside(error: Exception) -> bool:
    """Whether an error comes from a catalog, a database or a store, not from a bug of ours.

    Catalogs use many libraries, which have no exception class in common.
    """
    return isinstance(error, OSError) or type(error).__module__.startswith(_FROM)


def arrow_schema(schema: Schema) -> pa.Schema:
    return pa.schema(schema_to_pyarrow(schema, include_field_ids=False))
