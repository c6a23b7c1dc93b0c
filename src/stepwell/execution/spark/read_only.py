"""Restrict queries to reading the pipeline's relations (R2).

SQL text can do much more than query: write a directory, run a program, read any file, call any Java
method. Whether it does is decided on plans, never on the text, in two checks:

    parsed     before Spark resolves a single name, because resolving one may read a file, and
               because constants are evaluated during the analysis
    analysed   before anything is computed, because only now every name is a relation or a function

Both checks reject everything that is not known to be harmless: every relation of a plan must be of
a kind listed below, every relation that is read must be the pipeline's, and every function must be
a Spark function that stays within its arguments, or one that the project has registered. The plan
that was checked is the plan that runs; the text is not parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stepwell.errors import InvalidError
from stepwell.execution.spark.plan_nodes import PlanNode, nodes
from stepwell.execution.spark.session import activated, frame_of
from stepwell.sql.known_functions import REACHING, TABLE_FUNCTIONS
from stepwell.text import did_you_mean

_PACKAGE = "org.apache.spark.sql.catalyst."
"""Commands that are executed at once are in another package."""

_QUERIES = frozenset(
    {
        *("Aggregate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit"),
        *("Intersect", "Join", "LateralJoin", "LocalLimit", "LocalRelation", "Offset"),
        *("OneRowRelation", "PipeOperator", "Project", "Repartition"),
        *("RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Union"),
    }
)
"""Kinds of relations that occur in a plan both before and after the analysis."""

_PARSED = _QUERIES | frozenset(
    {
        *("LimitAll", "Pivot", "PlanWithUnresolvedIdentifier", "Unpivot", "UnresolvedHaving"),
        *("UnresolvedHint", "UnresolvedInlineTable", "UnresolvedQualify"),
        *("UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases"),
        *("UnresolvedTableValuedFunction", "UnresolvedWith", "WithWindowDefinition"),
    }
)

_ANALYSED = _QUERIES | frozenset(
    {
        *("CTERelationDef", "CTERelationRef", "Expand", "Range", "RebalancePartitions"),
        *("ResolvedHint", "UnionLoop", "UnionLoopRef", "View", "Window", "WithCTE"),
    }
)

_EXPRESSIONS = {
    "CallMethodViaReflection": "a call of a method of Java",
    "TryReflect": "a call of a method of Java",
    "VariableReference": "a session variable",
    **dict.fromkeys(
        (
            *("XPathBoolean", "XPathDouble", "XPathFloat", "XPathInt", "XPathList", "XPathLong"),
            *("XPathShort", "XPathString"),
        ),
        "an xpath function, which can read a file that a DOCTYPE names,",
    ),
}

_OPTIONS = {"rowvalidationxsdpath", "avroschemaurl"}
"""Options of functions that name a file."""

_OPTIONED = {"from_xml", "schema_of_xml"}
"""Functions with such an option that may be called with other options."""

_QUALIFIERS = ((), ("builtin",), ("system", "builtin"), ("session",), ("system", "session"))

_NAMES = {
    "InsertIntoDir": "INSERT OVERWRITE DIRECTORY",
    "InsertIntoStatement": "INSERT",
    "ScriptTransformation": "TRANSFORM ... USING",
    "RelationTimeTravel": "VERSION or TIMESTAMP AS OF",
    "NamedStreamingRelation": "STREAM",
    "CompoundBody": "BEGIN ... END",
    "UnresolvedExecuteImmediate": "EXECUTE IMMEDIATE",
    "CreateVariable": "DECLARE",
    "SetVariable": "SET VARIABLE",
}

_READS_ONLY = "a query reads the pipeline's tables and views, and changes nothing"


class RefusedError(InvalidError):
    """The text does more than query the pipeline's relations."""

    def __init__(self, message: str, *, hint: str, offset: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.offset = offset
        """The position in the text."""


def read_only(spark: SparkSession, text: str, relations: Collection[str]) -> DataFrame:
    """The rows a text selects, not computed yet; raises `RefusedError` if it does anything else.

    `relations` are the pipeline's own, all registered in the session as temporary views.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # An argument of the command line that is not UTF-8, which Java could not be given.
        raise InvalidError(
            f"the query is not valid Unicode: character {error.start + 1}",
            hint="write it in UTF-8",
        ) from None
    known = {name.lower(): name for name in relations}
    with activated(spark):
        parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    _check_parsed(spark, nodes(spark, parsed), known)
    frame = frame_of(spark, parsed)
    _check_analysed(nodes(spark, frame._jdf.queryExecution().analyzed()), known)
    return frame


def _check_parsed(spark: SparkSession, found: list[PlanNode], known: dict[str, str]) -> None:
    _check_kinds(found, _PARSED)
    # The analysis knows the scope of each; none of them is a file.
    declared = {
        word.lower() for node in found if node.kind == "UnresolvedWith" for word in node.words or ()
    }
    for node in _in_order(found):
        match node.kind:
            case "UnresolvedRelation":
                _check_relation(node, node.words or (), known, declared)
            case "PlanWithUnresolvedIdentifier":
                _check_relation(node, _identifier(spark, node), known, declared)
            case "UnresolvedFunction" | "UnresolvedGenerator":
                _check_function(node, node.words or ())
            case "ExpressionWithUnresolvedIdentifier":
                # The name of a column or of a function: only the analysis could tell which.
                name = _identifier(spark, node)[-1]
                _check_reach(node, name)
                if name.lower() in _OPTIONED:
                    raise RefusedError(
                        f"IDENTIFIER calls {name}, whose options may name a file (an XSD)",
                        hint="write the function's name as it is",
                        offset=node.offset,
                    )
            case "UnresolvedTableValuedFunction":
                _check_table_function(spark, node)


def _check_analysed(found: list[PlanNode], known: dict[str, str]) -> None:
    _check_kinds(found, _ANALYSED)
    for node in _in_order(found):
        if node.kind == "View":
            _check_relation(node, node.words or (), known, set())
        elif node.kind in _EXPRESSIONS:
            raise RefusedError(
                f"{_EXPRESSIONS[node.kind]} is not part of a query",
                hint=_READS_ONLY,
                offset=node.offset,
            )
        elif not node.is_plan:
            for option in node.words or ():
                if option.lower() in _OPTIONS:
                    raise RefusedError(
                        f"the option {option} reads a file", hint=_READS_ONLY, offset=node.offset
                    )


def _check_kinds(found: Iterable[PlanNode], allowed: frozenset[str]) -> None:
    for node in _in_order(found):
        if not node.is_plan:
            continue
        if node.kind not in allowed or not node.class_name.startswith(_PACKAGE):
            raise RefusedError(
                f"{_name(node.kind)} is not part of a query",
                hint=f"{_READS_ONLY}; add rows through a source or with stepwell push",
                offset=node.offset,
            )


def _check_relation(
    node: PlanNode, parts: tuple[str, ...], known: dict[str, str], declared: set[str]
) -> None:
    name = ".".join(parts)
    if len(parts) != 1:
        raise RefusedError(
            f"{name} is not a table or view of this pipeline",
            hint=(
                "a query reads the pipeline's tables and views, whose names have one part; add "
                "files through a source"
            ),
            offset=node.offset,
        )
    if name.lower() not in {*known, *declared}:
        there = "there are: " + ", ".join(sorted(known.values()))
        raise RefusedError(
            f"there is no table or view {name}",
            hint=did_you_mean(name, known.values()) or there,
            offset=node.offset,
        )
    if node.unusual:
        raise RefusedError(
            f"{name} is read with options, or as a stream",
            hint="write its name alone",
            offset=node.offset,
        )


def _check_function(node: PlanNode, parts: tuple[str, ...]) -> None:
    _check_reach(node, parts[-1])
    if node.unusual:
        # Checked before the analysis, which evaluates constants: a schema, the bounds of a range.
        raise RefusedError(
            f"the options of {parts[-1]} may name a file (rowValidationXSDPath)",
            hint="write them as map() of plain texts, without that option",
            offset=node.offset,
        )
    if tuple(part.lower() for part in parts[:-1]) not in _QUALIFIERS:
        raise RefusedError(
            f"the function {'.'.join(parts)} is of another catalog",
            hint=f"call it {parts[-1]}, if the project registers it",
            offset=node.offset,
        )


def _check_reach(node: PlanNode, name: str) -> None:
    why = REACHING.get(name.lower())
    if why is not None:
        raise RefusedError(
            f"the function {name} {why}", hint=f"leave it out: {_READS_ONLY}", offset=node.offset
        )


def _check_table_function(spark: SparkSession, node: PlanNode) -> None:
    parts = node.words or ()
    _check_function(node, parts)
    name = parts[-1].lower()
    if name in TABLE_FUNCTIONS:
        return
    jvm: Any = spark._jvm
    identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(parts[-1])
    if not spark._jsparkSession.sessionState().catalog().isTemporaryFunction(identifier):
        raise RefusedError(
            f"the table function {parts[-1]} is not part of a query",
            hint=f"{_READS_ONLY}; table functions are: {', '.join(sorted(TABLE_FUNCTIONS))}",
            offset=node.offset,
        )


def _identifier(spark: SparkSession, node: PlanNode) -> tuple[str, ...]:
    """The name that IDENTIFIER() makes of a text."""
    if node.words is None:
        raise RefusedError(
            "IDENTIFIER needs a text",
            hint="write the name as a text in quotes, or as it is",
            offset=node.offset,
        )
    parser = spark._jsparkSession.sessionState().sqlParser()
    with activated(spark):
        try:
            parts = parser.parseMultipartIdentifier(node.words[0])
        except PySparkException as error:
            raise RefusedError(
                f"IDENTIFIER is given {node.words[0]!r}, which is not a name",
                hint="write the name as it is",
                offset=node.offset,
            ) from error
    return tuple(str(parts.apply(i)) for i in range(parts.size()))


def _in_order(found: Iterable[PlanNode]) -> list[PlanNode]:
    return sorted(found, key=lambda node: -1 if node.offset is None else node.offset)


def _name(kind: str) -> str:
    """The SQL spelling of a command, derived from its class name.

    >>> _name("ShowTables"), _name("AddJarsCommand")
    ('SHOW TABLES', 'ADD JARS')
    """
    words = re.findall(r"[A-Z][a-z]*", kind.removesuffix("Command").removeprefix("Unresolved"))
    return _NAMES.get(kind) or " ".join(words).upper()
