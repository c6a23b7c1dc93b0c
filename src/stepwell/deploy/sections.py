"""The settings of stepwell.yml, section by section: every key, its type and its default.

Each section is read from nodes, so that an error shows the position of a wrong value. Durations and
sizes need a unit: `60` alone could be seconds or minutes, and is rejected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

from stepwell.deploy.document import Node, check_keys
from stepwell.deploy.references import References
from stepwell.durations import EXAMPLES, parse_duration, unit_hint
from stepwell.engine.bulk import BULK_BYTES
from stepwell.engine.ports import Limits
from stepwell.engine.push_keys import KEEP_S
from stepwell.engine.settings import Settings
from stepwell.engine.transaction import OnError
from stepwell.execution.reference import EXECUTOR_VARIABLE
from stepwell.journal.journal import Settings as JournalSettings
from stepwell.lsm.cache import BYTES_MAX
from stepwell.lsm.large_change import BULK_ROWS
from stepwell.manifest.gc import Settings as CollectSettings
from stepwell.store.retry import PATIENCE_S, Retry
from stepwell.text import did_you_mean

ExecutorName = Literal["spark", "reference"]
SparkValue = str | int | float | bool
C = TypeVar("C", bound=str)

ROOT: Mapping[str, tuple[str, ...]] = {
    "name": (),
    "store": ("address", "patience"),
    "journal": ("store", "keep"),
    "transaction": (
        *("max_rows", "max_bytes", "bulk_bytes", "bulk_rows", "max_latency", "on_error"),
    ),
    "push": ("keep",),
    "checkpoint": ("every", "keep"),
    "gc": ("every", "grace"),
    "cache": ("path", "max_size"),
    "spark": ("master", "driver_memory", "conf"),
    "sources": (),
    "sinks": (),
    "tests": (),
    "protect": (),
    "variables": (),
    "targets": (),
}
"""Every key of a project with the keys in it.

Sources, sinks, tests, variables and targets contain names instead.
"""

MEMORY_MB_LEAST = 512
_OWN_KEYS = {"spark.master": "master", "spark.driver.memory": "driver_memory"}
"""Spark settings that have a key of their own."""
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True, slots=True)
class StoreSection:
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True)
class JournalSection:
    store: str | None = None
    keep_s: float = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class TransactionSection:
    rows_max: int = 100_000
    bytes_max: int = 256 * 2**20
    latency_s_max: float = 0.0
    on_error: OnError = "dead_letter"
    bulk_bytes: int | None = BULK_BYTES
    bulk_rows: int | None = BULK_ROWS


@dataclass(frozen=True, slots=True)
class PushSection:
    keep_s: float = KEEP_S


@dataclass(frozen=True, slots=True)
class CheckpointSection:
    every_s: float = 60.0
    keep: int = 2


@dataclass(frozen=True, slots=True)
class GcSection:
    every_s: float = 600.0
    grace_s: float = 600.0


@dataclass(frozen=True, slots=True)
class SparkSection:
    master: str = "local[*]"
    driver_memory: str = "2g"
    conf: Mapping[str, SparkValue] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class CacheSection:
    path: str | None = None
    """None for the default, below the user's cache directory."""
    bytes_max: int = BYTES_MAX


@dataclass(frozen=True, slots=True)
class Sections:
    journal: JournalSection
    transaction: TransactionSection
    push: PushSection
    checkpoint: CheckpointSection
    gc: GcSection
    spark: SparkSection
    executor: ExecutorName
    store: StoreSection = field(default_factory=StoreSection)
    cache: CacheSection = field(default_factory=CacheSection)

    def settings(self) -> Settings:
        """Return the engine's settings."""
        return Settings(
            limits=Limits(self.transaction.rows_max, self.transaction.bytes_max),
            bulk_bytes=self.transaction.bulk_bytes,
            latency_s_max=self.transaction.latency_s_max,
            push_keep_s=self.push.keep_s,
            checkpoint_every_s=self.checkpoint.every_s,
            checkpoint_keep=self.checkpoint.keep,
            on_error=self.transaction.on_error,
            collect_every_s=self.gc.every_s,
            collect=self.collect(),
            journal=JournalSettings(retry=Retry(self.store.patience_s)),
        )

    def collect(self) -> CollectSettings:
        """Return the settings of the garbage collector."""
        return CollectSettings(
            grace_s=self.gc.grace_s,
            journal_keep_s=self.journal.keep_s,
            checkpoint_keep=self.checkpoint.keep,
        )


def check_shape(entries: Mapping[str, Node], what: str = "stepwell.yml") -> None:
    """Reject unknown keys, also in targets that are not selected."""
    known = {name: keys for name, keys in ROOT.items() if what == "stepwell.yml" or name in _OWN}
    if "executor" in entries:
        raise entries["executor"].key_error(
            "executor is not a setting: Spark computes every pipeline", hint="remove it"
        )
    check_keys(what, entries, known)
    entries = with_store_mapping(entries)
    for name, keys in known.items():
        if keys and name in entries:
            check_keys(name, entries[name].mapping(name), dict.fromkeys(keys))
    if "targets" in entries:
        for name, node in entries["targets"].mapping("targets").items():
            check_shape(node.mapping(f"target {name}"), f"target {name}")


def with_store_mapping(entries: Mapping[str, Node]) -> Mapping[str, Node]:
    """Expand `store: ADDRESS` to `store: {address: ADDRESS}`."""
    node = entries.get("store")
    if node is None or node.content is None or isinstance(node.content, Mapping):
        return entries
    return {**entries, "store": Node({"address": node}, node.source, node.span, node.key)}


_SIZE = r"([1-9]\d{0,11})(B|[KMG]i?B)"
_OWN = [name for name in ROOT if name not in ("name", "targets")]


def read_sections(entries: Mapping[str, Node], references: References) -> Sections:
    def section(name: str) -> Reader:
        found = entries[name].mapping(name) if name in entries else {}
        return Reader(f"{name}.", found, references)

    journal, transaction = section("journal"), section("transaction")
    checkpoint, gc, spark = section("checkpoint"), section("gc"), section("spark")
    store, cache = section("store"), section("cache")
    usual = TransactionSection()
    return Sections(
        JournalSection(
            journal.text("store", None), journal.seconds("keep", JournalSection().keep_s, least=0)
        ),
        TransactionSection(
            transaction.count("max_rows", usual.rows_max, least=1),
            transaction.size("max_bytes", usual.bytes_max),
            transaction.seconds("max_latency", usual.latency_s_max, least=0),
            transaction.choice("on_error", get_args(OnError), usual.on_error),
            transaction.size_or_off("bulk_bytes", usual.bulk_bytes),
            transaction.count_or_off("bulk_rows", usual.bulk_rows, least=1),
        ),
        PushSection(section("push").seconds("keep", PushSection().keep_s, least=1)),
        CheckpointSection(
            checkpoint.seconds("every", CheckpointSection().every_s, least=1),
            checkpoint.count("keep", CheckpointSection().keep, least=1),
        ),
        GcSection(
            gc.seconds("every", GcSection().every_s, least=1),
            gc.seconds("grace", GcSection().grace_s, least=0),
        ),
        SparkSection(
            spark.text("master", None) or SparkSection().master,
            spark.memory("driver_memory", SparkSection().driver_memory),
            spark.conf("conf"),
        ),
        _executor(),
        StoreSection(store.seconds("patience", StoreSection().patience_s, least=0)),
        CacheSection(cache.text("path", None), cache.size("max_size", CacheSection().bytes_max)),
    )


def _executor() -> ExecutorName:
    """Spark, unless `stepwell.testing` has chosen the reference executor."""
    return "reference" if os.environ.get(EXECUTOR_VARIABLE) == "reference" else "spark"


class Reader:
    """Reads the keys of one section; messages show them with `prefix`."""

    def __init__(self, prefix: str, entries: Mapping[str, Node], references: References) -> None:
        self._prefix = prefix
        self._entries = entries
        self._references = references

    def text(self, key: str, default: str | None) -> str | None:
        node, value = self._get(key)
        if node is None:
            return default
        if not isinstance(value, str) or not value:
            raise self._wrong(node, key, "a text")
        return value

    def count(self, key: str, default: int, *, least: int) -> int:
        node, value = self._get(key)
        if node is None:
            return default
        if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value, re.ASCII):
            value = int(value)  # A value from the environment is always a text.
        if type(value) is not int or value < least:
            raise self._wrong(node, key, f"a whole number of at least {least}")
        return value

    def count_or_off(self, key: str, default: int | None, *, least: int) -> int | None:
        """Return a number, or None for `off`."""
        node, value = self._get(key)
        if node is None:
            return default
        return None if value is False or value == "off" else self.count(key, 0, least=least)

    def seconds(self, key: str, default: float, *, least: float) -> float:
        node, value = self._get(key)
        if node is None:
            return default
        seconds = parse_duration(value)
        if seconds is None:
            raise self._wrong(node, key, f"a duration such as {EXAMPLES}", unit_hint(node.content))
        if seconds < least:
            raise self._wrong(node, key, f"at least {least:g}s")
        return seconds

    def size(self, key: str, default: int) -> int:
        node, value = self._get(key)
        if node is None:
            return default
        found = re.fullmatch(_SIZE, str(value), re.ASCII)
        if found is None:
            raise self._wrong(node, key, "a size such as 64MB or 1GiB")
        return int(found[1]) * _BYTES[found[2]]

    def size_or_off(self, key: str, default: int | None) -> int | None:
        """Return a size, or None for `off`."""
        node, value = self._get(key)
        if node is None:
            return default
        if value is False or value == "off":
            return None
        if re.fullmatch(_SIZE, str(value), re.ASCII) is None:
            raise self._wrong(node, key, "a size such as 64MB or 1GiB, or off")
        return self.size(key, 0)

    def memory(self, key: str, default: str) -> str:
        """Return a memory size in Java's notation."""
        node, value = self._get(key)
        if node is None:
            return default
        found = re.fullmatch(r"([1-9]\d{0,8})([mg])", str(value), re.ASCII | re.IGNORECASE)
        if found is None:
            raise self._wrong(node, key, "a size such as 800m or 4g")
        if int(found[1]) * (1024 if found[2] in "gG" else 1) < MEMORY_MB_LEAST:
            raise self._wrong(node, key, f"at least {MEMORY_MB_LEAST}m, which Spark needs itself")
        return str(value).lower()

    def choice(self, key: str, known: tuple[C, ...], default: C) -> C:
        node, value = self._get(key)
        if node is None:
            return default
        for name in known:
            if value == name:
                return name
        raise self._wrong(node, key, " or ".join(known), did_you_mean(str(node.content), known))

    def conf(self, key: str) -> Mapping[str, SparkValue]:
        node = self._entries.get(key)
        found: dict[str, SparkValue] = {}
        for name, item in {} if node is None else node.mapping(key).items():
            value = self._references.scalar(item)
            if value is None:
                raise item.error(f"{name} must be a text, a number, true or false")
            if not name.startswith("spark."):
                hint = f"did you mean spark.{name}?"
                raise item.key_error(f"{name} is not a Spark setting", hint=hint)
            if name in _OWN_KEYS:
                own = f"{self._prefix}{_OWN_KEYS[name]}"
                raise item.key_error(f"{name} cannot be set in conf", hint=f"set {own} instead")
            found[name] = value
        return found

    def _get(self, key: str) -> tuple[Node | None, object]:
        node = self._entries.get(key)
        return (node, None) if node is None else (node, self._references.scalar(node))

    def _wrong(self, node: Node, key: str, expected: str, hint: str | None = None) -> Exception:
        message = f"{self._prefix}{key} must be {expected}, found {node.shown}"
        return node.error(message, hint=hint)
