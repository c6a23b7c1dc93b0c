"""Spark settings that change the meaning of a query. They belong to a view just as its text does.

A pipeline uses Stepwell's values (ANSI arithmetic, UTC, case-insensitive names) unless its project
overrides them under `spark: conf:`. The project's values are recorded with its program; a session
that the caller provides does not override them.
"""

from __future__ import annotations

from collections.abc import Mapping

Value = str | int | float | bool

SUBSTITUTE = "spark.sql.variable.substitute"
"""Whether `${env:HOME}` in a query is replaced. Never: a query reads relations, nothing else."""

DEFAULTS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.session.timeZone": "UTC",
    SUBSTITUTE: "false",
}
"""Settings that Stepwell defines where Spark leaves them to the environment. All others keep
Spark's defaults."""

_FAMILIES = ("spark.sql.ansi.", "spark.sql.decimalOperations.", "spark.sql.legacy.")
_OTHERS = frozenset(
    f"spark.sql.{name}"
    for name in (
        "caseSensitive",
        "charAsVarchar",
        "crossJoin.enabled",
        "groupByAliases",
        "groupByOrdinal",
        "mapKeyDedupPolicy",
        "orderByOrdinal",
        "parser.escapedStringLiterals",
        "parser.quotedRegexColumnNames",
        "preserveCharVarcharTypeInfo",
        "readSideCharPadding",
        "session.timeZone",
        "storeAssignmentPolicy",
        "stableDerivedColumnAlias.enabled",
        "timestampType",
        "variable.substitute",
    )
)


def changes_meaning(name: str) -> bool:
    """Whether a query may mean something else under another value of this setting.

    >>> changes_meaning("spark.sql.session.timeZone")
    True
    >>> changes_meaning("spark.sql.shuffle.partitions")
    False
    """
    return name.startswith(_FAMILIES) or name in _OTHERS


def meaning(conf: Mapping[str, Value]) -> dict[str, str]:
    """The settings in `conf` that change the meaning of a query and differ from `DEFAULTS`.

    >>> meaning({"spark.sql.ansi.enabled": False, "spark.sql.caseSensitive": "false"})
    {'spark.sql.ansi.enabled': 'false'}
    """
    texts = {name: text_of(value) for name, value in sorted(conf.items())}
    return {
        name: text
        for name, text in texts.items()
        if changes_meaning(name) and text != DEFAULTS.get(name)
    }


def has_usual_types(conf: Mapping[str, Value]) -> bool:
    """Whether Spark computes with types as `plan/coercion` says: as it does by default, under ANSI.

    >>> has_usual_types({"spark.sql.session.timeZone": "Europe/Berlin"})
    True
    >>> has_usual_types({"spark.sql.legacy.setopsPrecedence.enabled": True})
    False
    """
    changed = set(meaning(conf)) - {"spark.sql.session.timeZone"}
    return not changed and "spark.sql.extensions" not in conf


def default_of(name: str) -> str:
    """The default value of a setting."""
    return DEFAULTS.get(name, "as Spark has it")


def text_of(value: Value) -> str:
    """A value in Spark's spelling: `true` in a YAML file is not Python's `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
