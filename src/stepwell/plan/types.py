"""Spark's types: parsing from SQL, canonical text, and properties.

Equal types have the same text, Spark's `simpleString`: in lower case, without
insignificant spaces. It differs where that text could not be parsed again or is incomplete: field
names are in backticks where necessary, NOT NULL fields are marked, collations are in lower case,
and the default collation of strings is omitted. `timestamp` is the type with the session's time
zone, which is Spark's default meaning.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from stepwell.plan.numbers import (
    DIGITS_MAX,
    INTEGER_BITS,
    bounded,
    common_width,
    sum_width,
    width_of,
)
from stepwell.text import Source, Token, Tokens, did_you_mean, quote_name

DEPTH_MAX = 100
"""Maximum nesting depth of types, so that a hostile text is an error and not a stack overflow."""


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: SparkType
    nullable: bool = True

    def __str__(self) -> str:
        name = self.name if _PLAIN.fullmatch(self.name) else quote_name(self.name)
        return f"{name}:{self.type}{'' if self.nullable else ' not null'}"


@dataclass(frozen=True, slots=True)
class SparkType:
    """A type as a tree. `parameters` follows the name: `(12,2)`, `day to second`."""

    name: str
    parameters: str = ""
    elements: tuple[SparkType, ...] = ()
    """The element type of an array, or the key and value types of a map."""
    fields: tuple[Field, ...] = ()
    collation: str | None = None

    def __str__(self) -> str:
        inside = ",".join(map(str, self.elements or self.fields))
        nested = f"<{inside}>" if self.name in _NESTED else ""
        collation = f" collate {self.collation}" if self.collation else ""
        space = " " if self.name == "interval" and self.parameters else ""
        return f"{self.name}{space}{self.parameters}{nested}{collation}"

    def walk(self) -> Iterator[SparkType]:
        """This type and every type inside it."""
        yield self
        for element in (*self.elements, *(field.type for field in self.fields)):
            yield from element.walk()


@functools.lru_cache(maxsize=1024)
def parse_type(text: str) -> SparkType:
    """Parse a type; `str` of the result is its canonical text.

    >>> str(parse_type("STRUCT<Id: LONG NOT NULL, tags ARRAY <STRING>, price numeric( 12, 2 )>"))
    'struct<Id:bigint not null,tags:array<string>,price:decimal(12,2)>'
    """
    tokens = Tokens(Source("type", text))
    type = read_type(tokens)
    if tokens.peek().kind != "end":
        raise tokens.unexpected("expected the end of the type")
    return type


def stored_type(type: str) -> str:
    """The type in which values are stored: VARCHAR becomes STRING, with which Spark computes.

    >>> stored_type("array<varchar(3)>")
    'array<string>'
    """
    return re.sub(r"\bvarchar\(\d+\)", "string", type)


def is_nested(type: str) -> bool:
    return parse_type(type).name in _NESTED


def contains_floating(type: str) -> bool:
    return any(part.name in _FLOATING for part in parse_type(type).walk())


def contains_map_or_variant(type: str) -> bool:
    """Whether a type contains a map or variant: set operations reject these, as do keys."""
    return any(part.name in ("map", "variant") for part in parse_type(type).walk())


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a column cannot be stored, and what to declare or to select instead."""

    why: str
    declare: str
    select: str


@functools.lru_cache(maxsize=10_000)
def why_not_kept(type: str) -> Refused | None:
    """Why no relation (table, view or internal block) can store a type that Spark supports.

    All other types have the same representation in Parquet for Arrow and for Spark.
    """
    for part in parse_type(type).walk():
        if part.name in _UNORDERED - {"map"}:
            return _INCOMPARABLE
        if part.name == "interval" and not part.parameters.startswith(_EXACT_UNITS):
            return _MONTHS
        if part.name == "time":
            return _TIME
        if part.name == "void":
            return _VOID
        if part.collation is not None:
            return _COLLATED
    return None


_LIKE_EACH_OTHER = (
    {"float", "double", "tinyint", "smallint"},
    {"double", "int"},
    {"date", "timestamp"},
    {"date", "timestamp_ntz"},
)


def one_to_one(a: str, b: str) -> bool:
    """Whether a value of one type equals at most one value of the other.

    If not, as in `'1' = 1` and `'01' = 1`, rows that match the same row need not match each other.
    """
    if a == b or any({a, b} <= alike for alike in _LIKE_EACH_OTHER):
        return True
    one, other = width_of(a), width_of(b)
    # Otherwise Spark may have no type that holds both.
    return one is not None and other is not None and common_width(one, other)[0] <= DIGITS_MAX


def adds_exactly(type: str) -> bool:
    """Whether `a + b` of two numbers of this type keeps every digit.

    The sum of two decimals is one digit wider. If that makes 39 digits, Spark drops one fractional
    digit, unless there are six or fewer.

    >>> [adds_exactly(f"decimal({digits})") for digits in ("38,10", "38,2", "37,10")]
    [False, True, True]
    """
    width = width_of(type)
    return width is None or bounded(sum_width(width, width))[1] == width[1]


def without_maps(value: str, type: str) -> str:
    """SQL for a comparable form of a value: each map becomes an array of entries sorted by key."""
    return _without_maps(value, parse_type(type), 0)


def _without_maps(value: str, type: SparkType, depth: int) -> str:
    if all(part.name != "map" for part in type.walk()):
        return value
    one = f"e{depth}"
    if type.name == "struct":
        fields = [
            _without_maps(f"{value}.{quote_name(f.name)}", f.type, depth) for f in type.fields
        ]
        return f"IF({value} IS NULL, NULL, struct({', '.join(fields)}))"
    inside = type.elements[-1]
    if type.name == "array":
        return f"transform({value}, {one} -> {_without_maps(one, inside, depth + 1)})"
    entry = f"struct({one}.key, {_without_maps(f'{one}.value', inside, depth + 1)})"
    return f"array_sort(transform(map_entries({value}), {one} -> {entry}))"


def can_be_key(type: str) -> bool:
    """Whether Spark can order values of the type, and so group, sort and compare them."""
    return all(part.name not in _UNORDERED for part in parse_type(type).walk())


def why_not_stored(type: SparkType) -> str | None:
    """Why no file can hold a column of this type, or None. A query's result may still have it."""
    for part in type.walk():
        if part.name == "void":
            return "a column cannot be of type void"
        if str(part) == "interval":
            return "a column of type interval needs its units, such as DAY TO SECOND"
        if part.name in ("decimal", "char", "varchar") and part.parameters.startswith("(0"):
            return f"{part} holds no value"
        if part.name == "struct":
            names = [field.name.lower() for field in part.fields]
            twice = [field.name for field in part.fields if names.count(field.name.lower()) > 1]
            if not names:
                return "a struct needs at least one field"
            if twice:
                return f"two fields of a struct are called {twice[-1]}"
    return None


def read_type(tokens: Tokens, depth: int = 1) -> SparkType:
    """Read a type from the tokens and leave the rest."""
    token = tokens.peek()
    if token.kind != "word":
        hint = "write a type without backticks" if token.kind == "name" else None
        raise tokens.unexpected("expected a type", hint=hint)
    if depth > DEPTH_MAX:
        raise tokens.wrong(f"types nest deeper than {DEPTH_MAX}")
    word = token.text.lower()
    name = _NAMES.get(word)
    if name is None:
        raise tokens.wrong(f"unknown type {token}", hint=_suggestion(word))
    tokens.take()
    if name in _NESTED:
        return _read_nested(tokens, name, depth)
    if name == "interval":
        return SparkType(name, _read_units(tokens))
    type = SparkType(name, _read_parameters(tokens, token, name))
    if name in _TIMESTAMPS:
        return _read_zone(tokens, token, type)
    if name == "time":
        tokens.skip("WITHOUT", "TIME", "ZONE")
    if name in _STRINGS and tokens.skip("COLLATE"):
        collation = tokens.name("a collation").value.lower()
        # The default collation of strings is omitted.
        if collation != "utf8_binary":
            return SparkType(name, type.parameters, collation=collation)
    return type


def _read_nested(tokens: Tokens, name: str, depth: int) -> SparkType:
    hint = f"for example {_NESTED[name]}"
    tokens.expect("<", hint=hint)
    if name == "struct":
        type = SparkType(name, fields=tuple(_read_fields(tokens, depth)))
    else:
        elements = [read_type(tokens, depth + 1)]
        if name == "map":
            tokens.expect(",", hint=hint)
            elements.append(read_type(tokens, depth + 1))
        type = SparkType(name, elements=tuple(elements))
    tokens.expect(">", hint=hint)
    return type


def _read_fields(tokens: Tokens, depth: int) -> Iterator[Field]:
    if tokens.at(">"):
        return
    while True:
        name = tokens.name("a field name", limited=False).value
        tokens.skip(":")
        type = read_type(tokens, depth + 1)
        nullable = not tokens.skip("NOT", "NULL")
        if tokens.skip("COMMENT"):
            tokens.string("a comment")
        yield Field(name, type, nullable)
        if not tokens.skip(","):
            return


def _read_units(tokens: Tokens) -> str:
    """The units of an interval; empty for the kind that mixes months and days."""
    for units in _UNITS:
        first = tokens.peek().text.upper()
        if first not in units or not tokens.at(first):
            continue
        tokens.take()
        later = units[units.index(first) + 1 :]
        if not tokens.skip("TO"):
            return first.lower()
        last = tokens.peek().text.upper()
        if last in later and tokens.skip(last):
            return f"{first.lower()} to {last.lower()}"
        expected = f"expected {' or '.join(later)}" if later else f"no unit is finer than {first}"
        raise tokens.unexpected(expected)
    return ""


def _read_parameters(tokens: Tokens, type: Token, name: str) -> str:
    """Read and check precision, scale, length or reference system, in parentheses."""
    if not tokens.at("("):
        if name in _REQUIRED:
            needed, example = _REQUIRED[name]
            raise tokens.source.error(
                type.start,
                f"{type.text} needs {needed}",
                hint=f"for example {type.text}({example})",
                length=len(type.text),
            )
        return _DEFAULTS.get(name, "")
    if name not in _LIMITS and name not in _GEOGRAPHIC:
        raise tokens.wrong(f"{type.text} takes no parameters", hint=f"write {type.text} alone")
    tokens.take()
    if name in _GEOGRAPHIC:
        parameter = "any" if tokens.skip("ANY") else str(_read_number(tokens, 0, _INT_MAX))
    else:
        number = _read_number(tokens, *_LIMITS[name])
        parameter = str(number)
        if name == "decimal":
            scale = _read_number(tokens, 0, number) if tokens.skip(",") else 0
            parameter = f"{number},{scale}"
    tokens.expect(")")
    # A timestamp always has microseconds.
    return "" if name in _TIMESTAMPS else f"({parameter})"


def _read_number(tokens: Tokens, least: int, most: int) -> int:
    token = tokens.peek()
    digits = token.text if token.kind == "word" and token.text.isascii() else ""
    # Check the length first: Python refuses to parse a number with thousands of digits.
    if not digits.isdigit() or len(digits) > 20 or not least <= int(digits) <= most:
        raise tokens.unexpected(f"expected a number from {least} to {most}")
    tokens.take()
    return int(digits)


def _read_zone(tokens: Tokens, token: Token, type: SparkType) -> SparkType:
    if token.text.lower() != "timestamp":
        return type
    if tokens.skip("WITHOUT", "TIME", "ZONE"):
        return SparkType("timestamp_ntz")
    tokens.skip("WITH", "LOCAL", "TIME", "ZONE")
    return type


def _suggestion(word: str) -> str:
    if word in _ELSEWHERE:
        return f"in Spark it is {_ELSEWHERE[word]}"
    return did_you_mean(word, (name.upper() for name in _NAMES)) or (
        "see the data types of Spark SQL, such as BIGINT, STRING, DECIMAL(12,2), TIMESTAMP"
    )


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT_MAX = 2**31 - 1

_EXACT = {*INTEGER_BITS, "decimal"}
_FLOATING = {"float", "double"}
_STRINGS = {"string", "char", "varchar"}
_TIMESTAMPS = {"timestamp", "timestamp_ntz"}
_GEOGRAPHIC = {"geometry", "geography"}
_UNORDERED = {"map", "variant"} | _GEOGRAPHIC
_EXACT_UNITS = ("day", "hour", "minute", "second")
_INCOMPARABLE = Refused(
    "whose values cannot be compared, so that rows could not be deleted",
    "STRING, and read it with parse_json or the like",
    "what is needed of it, as with variant_get, or to_json of it all",
)
_MONTHS = Refused(
    "which cannot be exchanged with Spark",
    "INT, a number of months, of which make_ym_interval(0, months) makes an interval",
    "it as a number, as with extract(MONTH FROM ...), or CAST it to STRING",
)
_TIME = Refused(
    "which Spark does not have by default", "STRING, or as a TIMESTAMP", "it CAST to STRING"
)
_VOID = Refused(
    "which is always NULL and of no type", "a type", "it CAST, as in CAST(NULL AS STRING)"
)
_COLLATED = Refused(
    "under which strings that differ are equal, so that one could not take the other's place",
    "STRING, and write COLLATE where it is compared",
    "CAST(lower(...) AS STRING) or the like, and write COLLATE where it is compared",
)
_NESTED = {"array": "ARRAY<INT>", "map": "MAP<STRING, INT>", "struct": "STRUCT<a: INT, b: STRING>"}

# Spark's names for types, each mapped to the name that canonical text uses.
_NAMES = {
    **{name: name for name in ("boolean", "date", "binary", "variant", "void", "interval", "time")},
    **{name: name for name in (*_EXACT, *_FLOATING, *_STRINGS, *_TIMESTAMPS, *_GEOGRAPHIC)},
    **{name: name for name in _NESTED},
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "character": "char",
    "timestamp_ltz": "timestamp",
}
_LIMITS = {
    "decimal": (0, DIGITS_MAX),
    "char": (0, _INT_MAX),
    "varchar": (0, _INT_MAX),
    "time": (0, 9),
    "timestamp": (6, 6),
    "timestamp_ntz": (6, 6),
}
_DEFAULTS = {"decimal": "(10,0)", "time": "(6)"}
_REQUIRED = {
    **dict.fromkeys(("char", "varchar"), ("a length", "10")),
    **dict.fromkeys(_GEOGRAPHIC, ("a reference system", "4326")),
}
# An interval has months or seconds, never both, and ranges from a coarser unit to a finer one.
_UNITS = (("YEAR", "MONTH"), ("DAY", "HOUR", "MINUTE", "SECOND"))
# Names that other databases use for types that have another name in Spark.
_ELSEWHERE = {
    **dict.fromkeys(("text", "clob", "uuid", "nvarchar", "varchar2", "enum"), "STRING"),
    **dict.fromkeys(("bytes", "blob", "bytea", "varbinary"), "BINARY"),
    **dict.fromkeys(("datetime", "timestamptz"), "TIMESTAMP"),
    **dict.fromkeys(("json", "jsonb"), "VARIANT"),
    **dict.fromkeys(("number", "money"), "DECIMAL(p,s)"),
    **dict.fromkeys(("int8", "int64", "serial", "bigserial"), "BIGINT"),
    **dict.fromkeys(("int4", "int32"), "INT"),
    **dict.fromkeys(("float4", "float32"), "FLOAT"),
    **dict.fromkeys(("float8", "float64"), "DOUBLE"),
    "int2": "SMALLINT",
    "bool": "BOOLEAN",
    "list": "ARRAY<...>",
    "row": "STRUCT<...>",
}
