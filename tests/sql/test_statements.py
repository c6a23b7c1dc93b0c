"""Reading a file of SQL: what it declares, where its statements end, and where it is wrong.

What is said here about tokens, strings and types was compared with Spark's own lexer and parser.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import SqlError
from stepwell.plan.types import (
    contains_floating,
    contains_map_or_variant,
    parse_type,
    why_not_kept,
)
from stepwell.sql.statements import (
    Column,
    MaterializedView,
    Policy,
    Statement,
    Table,
    View,
    parse_statements,
)
from stepwell.text import Source, Span, Tokens, string_value

NOWHERE = Span(0, 0)


def parse(text: str) -> tuple[Statement, ...]:
    return parse_statements(Source("p.sql", text))


def parse_one(text: str) -> Statement:
    (statement,) = parse(text)
    return statement


def table(text: str) -> Table:
    statement = parse_one(text)
    assert isinstance(statement, Table)
    return statement


def failure(text: str) -> SqlError:
    with pytest.raises(SqlError) as caught:
        parse(text)
    return caught.value


def test_a_file_declares_tables_and_views_in_order() -> None:
    """S2, S3, S6: what one file says arrives whole, in the spelling of the user."""
    text = """
    -- Orders; as they come in.
    CREATE TABLE Orders (
      id BIGINT NOT NULL PRIMARY KEY,
      customer STRING COMMENT 'who; paid',
      amount DECIMAL(12,2) DEFAULT (1 + 2) * 3 NOT NULL,
      at TIMESTAMP
    ) COMMENT 'all orders';
    CREATE OR REPLACE VIEW big (id, sum COMMENT 'in EUR') AS
      SELECT id, amount FROM orders WHERE amount > 100 -- big ones
    ;
    CREATE MATERIALIZED VIEW `revenue per customer`
      REFRESH POLICY INCREMENTAL COMMENT "of all times"
    AS /* why not */ WITH x AS (SELECT ';') SELECT customer, SUM(amount) FROM orders, x GROUP BY 1
    """
    orders, big, revenue = parse(text)
    assert orders == Table(
        name="Orders",
        columns=(
            Column("id", "bigint", nullable=False),
            Column("customer", "string", comment="who; paid"),
            Column("amount", "decimal(12,2)", nullable=False, default="(1 + 2) * 3"),
            Column("at", "timestamp"),
        ),
        key=("id",),
        comment="all orders",
        span=NOWHERE,
        name_span=NOWHERE,
        source=orders.source,
    )
    assert isinstance(big, View)
    assert big.query == "SELECT id, amount FROM orders WHERE amount > 100"
    assert (big.name, big.columns, big.comment) == ("big", ("id", "sum"), None)
    assert isinstance(revenue, MaterializedView)
    assert revenue.query.startswith("WITH x AS (SELECT ';')")
    assert revenue.query.endswith("GROUP BY 1")
    assert (revenue.name, revenue.policy) == ("revenue per customer", Policy.INCREMENTAL)
    assert (revenue.columns, revenue.comment) == (None, "of all times")
    for statement in (orders, big, revenue):
        assert statement.source.part(statement.span).startswith("CREATE")
        assert statement.name in statement.source.part(statement.name_span)
    assert big.source.part(big.query_span) == big.query
    assert orders.source.part(orders.span).endswith("COMMENT 'all orders'")


@pytest.mark.parametrize("text", ["", ";;", " \n-- nothing\n/* at /* all */ */ ; ", "\ufeff"])
def test_a_file_may_declare_nothing(text: str) -> None:
    """A file of comments is not a mistake."""
    assert parse(text) == ()


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("id INT, b INT", ()),
        ("id INT PRIMARY KEY, b INT", ("id",)),
        ("id INT NOT NULL CONSTRAINT pk PRIMARY KEY, b INT", ("id",)),
        ("id INT, b INT, PRIMARY KEY (b, ID)", ("b", "id")),
        ("PRIMARY KEY (ID), id INT, b INT", ("id",)),
        ("id INT, b INT, CONSTRAINT `the key` PRIMARY KEY (id)", ("id",)),
    ],
)
def test_a_table_has_a_key_or_is_a_bag(columns: str, key: tuple[str, ...]) -> None:
    """S2: a key column that could be NULL would let one row be there twice."""
    found = table(f"CREATE TABLE IF NOT EXISTS t ({columns})")
    assert found.key == key
    assert {column.name for column in found.columns if not column.nullable} == set(key)


def test_words_of_the_language_can_name_columns() -> None:
    """S2: Spark reserves nothing, so a column may have the name of the clause next to it."""
    names = ("primary", "constraint", "unique", "check", "comment", "default", "not", "key")
    found = table(f"create table comment ({', '.join(f'{name} int' for name in names)})")
    assert tuple(column.name for column in found.columns) == names
    assert table("create table t (constraint int primary key)").key == ("constraint",)


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ("DEFAULT 1 NOT NULL", Column("a", "int", nullable=False, default="1")),
        ("DEFAULT b IS NOT NULL", Column("a", "int", default="b IS NOT NULL")),
        ("DEFAULT b IS NOT NULL NOT NULL", Column("a", "int", False, "b IS NOT NULL")),
        ("NOT NULL DEFAULT f(',', ')') COMMENT ''", Column("a", "int", False, "f(',', ')')", "")),
        ("COMMENT 'x' DEFAULT comment", Column("a", "int", True, "comment", "x")),
        ("DEFAULT -1 /* less */ - 2 -- least\n", Column("a", "int", default="-1 /* less */ - 2")),
        ("DEFAULT 0 PRIMARY KEY", Column("a", "int", False, "0")),
    ],
)
def test_a_default_ends_where_the_next_option_begins(options: str, column: Column) -> None:
    """S2: NOT NULL belongs to the expression behind IS, and to the column elsewhere."""
    assert table(f"CREATE TABLE t (a INT {options}, b INT)").columns[0] == column


@pytest.mark.parametrize(
    ("options", "policy", "comment"),
    [
        ("", Policy.AUTO, None),
        ("COMMENT 'c'", Policy.AUTO, "c"),
        ("refresh policy auto", Policy.AUTO, None),
        ("COMMENT 'c' REFRESH POLICY FULL", Policy.FULL, "c"),
        ("REFRESH POLICY INCREMENTAL COMMENT 'c'", Policy.INCREMENTAL, "c"),
    ],
)
@pytest.mark.parametrize("create", ["CREATE", "CREATE OR REPLACE", "create or refresh"])
def test_a_policy_and_a_comment_come_in_any_order(
    create: str, options: str, policy: Policy, comment: str | None
) -> None:
    """S6: a policy that was not understood would be one that is not kept."""
    view = parse_one(f"{create} MATERIALIZED VIEW IF NOT EXISTS v {options} AS SELECT 1")
    assert isinstance(view, MaterializedView)
    assert (view.policy, view.comment, view.query) == (policy, comment, "SELECT 1")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT ';' || \";\" || `;` || 'it''s;' || 'it\\'s;' || '\\\\'",
        "SELECT r'\\', R\"';\" FROM bar",
        "SELECT /*+ BROADCAST(a) */ 1",
        "SELECT 1 -- one; \\\n still; a comment\n + 1",
        "SELECT 1 /* a; /* b; */ c; ' */ + 1",
        "SELECT 1 /*; /*+ no hint here; */ + 1",
        "SELECT 'a\n;\nb'",
        "(((SELECT 1)))",
        "FROM t |> WHERE a > 1",
        "VALUES (1), (2)",
        "SELECT a$b, 1e-5, @x, größe, '😀;', `a``;`",
    ],
)
@pytest.mark.parametrize("end", ["", ";", "\n;", " -- done;\n;", "/* ; */;", "--\\\n;\n;"])
def test_a_query_is_kept_as_it_was_written(query: str, end: str) -> None:
    """S3: one character lost or added, and Spark would answer another question."""
    first, second = parse(f"CREATE VIEW v AS\n{query}{end or ';'}\nCREATE VIEW w AS {query}{end}")
    assert isinstance(first, View)
    assert isinstance(second, View)
    assert (first.query, second.query) == (query, query)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'it''s'", "it's"),
        ('"a""b\'\'"', "a\"b''"),
        (r"'\'\"\\\n\t\0\Z\q'", "'\"\\\n\t\0\x1aq"),
        (r"'\%\_'", r"\%\_"),
        (r"'\u0041\U0001F600\ud83d\ude00\u12'", "A😀😀u12"),
        (r"'\101\400\1'", "A4001"),
        (r"'\''''", "''"),
        (r"r'\n\'", "\\n\\"),
        ("'a\\\nb'", "a\nb"),
    ],
)
def test_a_string_means_what_it_means_to_spark(literal: str, value: str) -> None:
    """A comment must come out as Spark would show it."""
    assert string_value(literal) == value
    assert table(f"CREATE TABLE t (a INT) COMMENT {literal}").comment == value
    assert table(f"CREATE TABLE t (a INT) COMMENT {literal} {literal}").comment == value * 2


TYPES = {
    "boolean": "boolean",
    "BYTE": "tinyint",
    "Short": "smallint",
    "INTEGER": "int",
    "long": "bigint",
    "REAL": "float",
    "double": "double",
    "DEC": "decimal(10,0)",
    "numeric(5)": "decimal(5,0)",
    "DECIMAL ( 38 , 38 )": "decimal(38,38)",
    "date": "date",
    "timestamp": "timestamp",
    "TIMESTAMP_LTZ": "timestamp",
    "timestamp(6) with local time zone": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "TIMESTAMP WITHOUT TIME ZONE": "timestamp_ntz",
    "time": "time(6)",
    "time(9) without time zone": "time(9)",
    "interval year": "interval year",
    "INTERVAL YEAR TO MONTH": "interval year to month",
    "interval day to second": "interval day to second",
    "interval minute": "interval minute",
    "interval": "interval",
    "string": "string",
    "STRING COLLATE UTF8_LCASE": "string collate utf8_lcase",
    "string collate utf8_binary": "string",
    "CHARACTER(5)": "char(5)",
    "varchar(10) collate `UNICODE_CI`": "varchar(10) collate unicode_ci",
    "binary": "binary",
    "variant": "variant",
    "void": "void",
    "GEOMETRY(4326)": "geometry(4326)",
    "geography(ANY)": "geography(any)",
    "ARRAY<ARRAY<INT>>": "array<array<int>>",
    "Map<String, Array<Double>>": "map<string,array<double>>",
    "struct<>": "struct<>",
    "STRUCT<a INT, B: STRING NOT NULL COMMENT 'x'>": "struct<a:int,B:string not null>",
    "struct<`a b`:int, `c``d` int, `größe`: int, `1a`:int, float:int>": (
        "struct<`a b`:int,`c``d`:int,`größe`:int,`1a`:int,float:int>"
    ),
}


@pytest.mark.parametrize(("text", "canonical"), TYPES.items())
def test_equal_types_are_written_alike(text: str, canonical: str) -> None:
    """Two spellings of one type must not look like a changed table to a deploy."""
    assert str(parse_type(text)) == canonical
    assert str(parse_type(canonical)) == canonical
    assert str(parse_type(f"array<struct<x:{text}>>")) == f"array<struct<x:{canonical}>>"


@pytest.mark.parametrize(
    ("ask", "yes", "no"),
    [
        (
            contains_floating,
            ["float", "map<int,array<double>>", "struct<a:struct<b:real>>"],
            ["struct<float:int,`double`:string>", "decimal(5,2)"],
        ),
        (
            contains_map_or_variant,
            ["variant", "array<variant>", "struct<a:map<int,int>>"],
            ["struct<map:int,variant:int>", "array<string>"],
        ),
        (
            lambda type: why_not_kept(type) is not None,
            ["string collate unicode", "array<char(3) collate UTF8_LCASE>", "map<void,void>"],
            ["string", "string collate UTF8_BINARY", "struct<collate:string>"],
        ),
        (
            lambda type: why_not_kept(type) is not None,
            ["array<variant>", "interval year to month", "struct<a:interval>", "map<int,time(3)>"],
            ["interval day to second", "map<int,int>", "struct<time:int,variant:int>"],
        ),
    ],
)
def test_a_type_is_known_by_what_it_contains(
    ask: Callable[[str], bool], yes: list[str], no: list[str]
) -> None:
    """S3: a float taken for exact would drift, a field called float must not count as one."""
    assert [ask(type) for type in yes] == [True] * len(yes)
    assert [ask(type) for type in no] == [False] * len(no)


# A file, its mistake between « and »; below it the message and, unless there is none, the hint.
WRONG = r"""
CREATE TABLE t (id «bigintt»)
    unknown type bigintt
    did you mean BIGINT?
CREATE TABLE t (id ARRAY<«text»>)
    unknown type text
    in Spark it is STRING
CREATE TABLE t (id int«(»11))
    int takes no parameters
    write int alone
CREATE TABLE t (id «varchar»)
    varchar needs a length
    for example varchar(10)
CREATE TABLE t (id decimal(«39»))
    expected a number from 0 to 38, found 39
CREATE TABLE t (id decimal(5,«6»))
    expected a number from 0 to 5, found 6
CREATE TABLE t (id map<int«>»)
    expected ",", found ">"
    for example MAP<STRING, INT>
CREATE TABLE t (id interval day to «month»)
    expected HOUR or MINUTE or SECOND, found month
CREATE TABLE t (id «interval»)
    a column of type interval needs its units, such as DAY TO SECOND
CREATE TABLE t (id «array<void>»)
    a column cannot be of type void
CREATE TABLE t (a «struct<x:int, X:int>»)
    two fields of a struct are called X
CREATE TABLE t (id«)»
    expected a type, found ")"
CREATE TABLE t («)»
    expected a column, found ")"
    a table has at least one column
CREATE TABLE t (id int,«)»
    expected a column, found ")"
    remove the comma before it
CREATE TABLE t (id int«»
    expected "," or ")", found the end of the file
CREATE TABLE a«.»b (id int)
    a name has one part only
    leave out the part before the dot; a name with a dot in it needs backticks
CREATE TABLE «a$b» (id int)
    a$b is not a plain name
    choose a name without $
CREATE VIEW «`a$errors`» AS SELECT 1
    a view name cannot contain $
    choose a name without $: Stepwell reserves such names, as orders$errors
CREATE TABLE «my-table» (id int)
    my-table is not a plain name
    write it in backticks: `my-table`
CREATE TABLE t («2nd» int)
    2nd is not a plain name
    write it in backticks: `2nd`
CREATE TABLE «"a b"» (id int)
    expected a table name, found "a b"
    write names in backticks: `a b`
CREATE TABLE «``» (id int)
    a table name cannot be empty
CREATE TABLE t (a int, «A» string)
    column A is declared twice
    column names are case-insensitive
CREATE VIEW v (a, «A») AS SELECT 1, 2
    column A is declared twice
    column names are case-insensitive
CREATE TABLE t (amount int, PRIMARY KEY («amuont»))
    the table has no column amuont
    did you mean amount?
CREATE TABLE t (a int, PRIMARY KEY (a, «A»))
    the primary key names A twice
CREATE TABLE t (a int PRIMARY KEY, «PRIMARY» KEY (a))
    the table has a primary key already, in line 1
    name all columns of the key in one place: PRIMARY KEY (a, b)
CREATE TABLE t («a» map<int,int> PRIMARY KEY)
    a cannot be in the primary key: its type is map<int,int>
    values of this type cannot be compared; choose other columns
CREATE TABLE t (a struct<b variant>, c int, PRIMARY KEY (c, «a»))
    a cannot be in the primary key: its type is struct<b:variant>
    values of this type cannot be compared; choose other columns
CREATE TABLE t (a int, PRIMARY KEY «a»)
    expected "(", found a
    for example PRIMARY KEY (id)
CREATE TABLE t (a int «NULL»)
    expected "," or ")", found NULL
    leave it out: a column takes NULL unless it is NOT NULL
CREATE TABLE t (a int «DEFUALT» 5)
    expected "," or ")", found DEFUALT
    did you mean DEFAULT?
CREATE TABLE t (a int DEFAULT«)»
    expected an expression, found ")"
    for example DEFAULT 0
CREATE TABLE t (a int COMMENT «5»)
    expected a comment, found 5
    write it in quotes: '...'
CREATE TABLE t (a int COMMENT '' «COMMENT» '')
    a second COMMENT for one column
CREATE TABLE t (a int, CONSTRAINT x «CHECK» (a > 0))
    CHECK cannot be declared
    only PRIMARY KEY and NOT NULL are supported
CREATE TABLE t (a int) «USING» parquet
    expected ";", found USING
    leave it out: Stepwell chooses the format
CREATE TABLE t (a int) «PARTITIONED» BY (a)
    expected ";", found PARTITIONED
    leave it out: Stepwell lays out files by the key
CREATE TABLE t (a int) «LOCATION» '/x'
    expected ";", found LOCATION
    leave it out: stepwell.yml names the store
CREATE VIEW v «TBLPROPERTIES» ('a' = 'b') AS SELECT 1
    expected AS and a query, found TBLPROPERTIES
    leave it out: settings belong in stepwell.yml
CREATE TABLE t (a int) COMMENT 'x' «COMMENT» 'y'
    expected ";", found COMMENT
CREATE TABLE t «AS» SELECT 1
    expected "(" and the columns, found AS
    a table is filled from outside; for a query use CREATE MATERIALIZED VIEW name AS query
CREATE TABLE t (a int) «CREATE» VIEW v AS SELECT 1
    expected ";", found CREATE
CREATE OR «REPLACE» TABLE t (a int)
    a table is never replaced
    leave OR REPLACE out: deploying changes a table in place
CREATE «TEMPORARY» VIEW v AS SELECT 1
    expected TABLE, VIEW or MATERIALIZED VIEW, found TEMPORARY
    leave it out: a view belongs to its pipeline and stores nothing
CREATE «TABEL» t (a int)
    expected TABLE, VIEW or MATERIALIZED VIEW, found TABEL
    did you mean TABLE?
CREATE VIEW «AS» SELECT 1
    expected a view name, found AS
CREATE VIEW v AS« »-- nothing
    expected a query, found the end of the file
    for example SELECT * FROM t
CREATE VIEW v (a «INT») AS SELECT 1
    expected "," or ")", found INT
    the types of a view's columns come from its query
CREATE VIEW v «REFRESH» POLICY FULL AS SELECT 1
    a plain view has no refresh
    write CREATE MATERIALIZED VIEW, or leave it out: a plain view stores nothing
CREATE MATERIALIZED VIEW v REFRESH POLICY «INCREMENTL» AS SELECT 1
    expected AUTO, INCREMENTAL or FULL, found INCREMENTL
    did you mean INCREMENTAL?
CREATE MATERIALIZED VIEW v REFRESH POLICY FULL «REFRESH» POLICY FULL AS SELECT 1
    expected AS and a query, found REFRESH
CREATE VIEW v AS SELECT (1, «(»2; SELECT 3))
    this parenthesis is never closed
    add )
CREATE VIEW v AS SELECT 1«)»
    this parenthesis closes nothing
    remove it
CREATE VIEW v AS SELECT «'»it''s
    this string is never closed
    add '
CREATE VIEW v AS SELECT «R»"a
    this string is never closed
    add "
CREATE VIEW v AS SELECT «`»a``b
    this name in backticks is never closed
    add `
CREATE VIEW v AS «/*» a /* b */ SELECT 1
    this comment is never closed
    add */
«INSERT» INTO t VALUES (1)
    expected CREATE, found INSERT
    tables are filled by sources or by stepwell push
«SELECT» 1
    expected CREATE, found SELECT
    use CREATE VIEW or CREATE MATERIALIZED VIEW name AS query
«(»SELECT 1)
    expected CREATE, found "("
    use CREATE VIEW or CREATE MATERIALIZED VIEW name AS query
«CRAETE» TABLE t (a int)
    expected CREATE, found CRAETE
    did you mean CREATE?
"""


@pytest.mark.parametrize("case", re.findall(r"^\S.*(?:\n .*)+", WRONG, re.MULTILINE))
def test_a_mistake_is_shown_where_it_is(case: str) -> None:
    """S2, S3, S6: nothing is taken that would then be ignored, and the place is exact."""
    marked, message, *hint = (line.strip() for line in case.splitlines())
    text = marked.replace("«", "").replace("»", "")
    start, end = marked.index("«"), marked.index("»") - 1
    error = failure(text)
    carets = " " * start + "^" * max(end - start, 1)
    assert error.message == f"p.sql:1:{start + 1}: {message}\n{text}\n{carets}"
    assert error.hint == (hint[0] if hint else None)
    assert (error.file, error.line, error.column) == ("p.sql", 1, start + 1)


def test_a_mistake_in_a_later_line_is_shown_with_its_line() -> None:
    """S2: the line of an editor, whatever ends its lines, and the line of the first of two."""
    error = failure("CREATE TABLE t (a INT);\n\r\r\n-- two\nCREATE VIEW\n  `T` AS SELECT 1")
    shown = "  `T` AS SELECT 1\n  ^^^"
    assert error.message == f"p.sql:6:3: T is declared twice, first in line 1\n{shown}"
    assert (error.line, error.column) == (6, 3)
    error = failure("CREATE TABLE t (\r\n  a INT PRIMARY KEY,\r\n  b INT,\r\n  PRIMARY KEY (a, b))")
    shown = "  PRIMARY KEY (a, b))\n  ^^^^^^^"
    assert error.message == f"p.sql:4:3: the table has a primary key already, in line 2\n{shown}"


def test_the_first_of_several_mistakes_is_reported() -> None:
    """A quote left open at the end of a file must not hide what is wrong before it."""
    assert "unknown type x" in str(failure("CREATE TABLE t (a x); CREATE VIEW v AS SELECT 'a"))


@pytest.mark.parametrize(
    ("text", "shown", "carets"),
    [
        ("\tab\t\tBAD", "    ab      BAD", "            ^^^"),
        ("日本 BAD", "日本 BAD", "     ^^^"),
        ("e\u0301 BAD", "e\u0301 BAD", "  ^^^"),
        ("\u200b\x1b BAD", "\ufffd\ufffd BAD", "   ^^^"),
        ("BAD" + "," * 200, "BAD" + "," * 97 + "…", "^^^"),
        ("." * 200 + "BAD", "…" + "." * 50 + "BAD", " " * 51 + "^^^"),
        ("." * 99 + "BAD" + "," * 99, "…" + "." * 50 + "BAD" + "," * 47 + "…", " " * 51 + "^^^"),
        ("." * 97 + "BAD", "." * 97 + "BAD", " " * 97 + "^^^"),
        ("日" * 99 + "BAD", "…" + "日" * 25 + "BAD", " " * 51 + "^^^"),
    ],
)
def test_carets_stand_below_the_mistake(text: str, shown: str, carets: str) -> None:
    """Tabs, wide, combined and invisible characters must not push the caret away from the word."""
    error = Source("p.sql", f"first\n{text}\nlast").error(6 + text.index("BAD"), "no", length=3)
    assert error.message == f"p.sql:2:{text.index('BAD') + 1}: no\n{shown}\n{carets}"


def test_a_place_is_found_at_every_edge_of_a_text() -> None:
    """The end of a file is a place as well, and a mark that no editor shows is none."""
    assert Source("p.sql", "").error(0, "empty").message == "p.sql:1:1: empty\n\n^"
    assert Source("p.sql", "a\n").error(2, "end").message == "p.sql:2:1: end\n\n^"
    assert Source("p.sql", "ab").error(1, "long", length=9).message == "p.sql:1:2: long\nab\n ^"
    assert Source("p.sql", "\ufeffab").place(1) == (1, 1)
    assert failure("\ufeffx").column == 1


@pytest.mark.parametrize("text", ["CREATE TABLE `{}` (a INT)", "CREATE VIEW v (`{}`) AS SELECT 1"])
def test_names_have_limits(text: str) -> None:
    """S2: a name becomes part of a path and of a terminal's output."""
    assert parse(text.format("ü" * 100))
    assert "has at most 200 bytes, not 202" in str(failure(text.format("ü" * 101)))
    for character in "\n\t\0\x1b\x85\u2028\ud800":
        assert "cannot contain control characters" in str(failure(text.format(f"a{character}b")))
    for name in ("a.b", "a b", "😀", "1", "日本", "a'b;--", "..", "select"):
        assert parse(text.format(name))


def test_deep_nesting_is_an_error_and_not_a_crash() -> None:
    """A hostile file must not end the process."""
    assert parse(f"CREATE TABLE t (a {'array<' * 99}int{'>' * 99})")
    for opening in ("array<", "map<int,", "struct<a:"):
        assert "types nest deeper than 100" in str(failure(f"CREATE TABLE t (a {opening * 9999}"))
    view = parse_one(f"CREATE VIEW v AS SELECT {'(' * 9999}1{')' * 9999}")
    assert isinstance(view, View)
    assert len(view.query) == 9999 * 2 + 8


# Random definitions, rendered with random case, space and comments


class Exact(str):
    """A piece of a text that stays as it is."""

    __slots__ = ()


Pieces = list[str]
GAPS = [" ", "\n", "\t\r\n ", "-- it's; \" `\n", "/* ; ' /* ` */ ) */", "\u00a0"]
PLAIN = re.compile(r"[^\W\d]\w*")
CHARACTERS = st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(" '\"`;\\")
TEXT = st.text(CHARACTERS, max_size=8)
NAMES = st.text(st.sampled_from("abcXYZ_019 `'\";.-日ß"), min_size=1, max_size=6)
SCALARS = {
    "INT": "int",
    "LONG": "bigint",
    "DOUBLE": "double",
    "DEC ( 7 )": "decimal(7,0)",
    "NUMERIC ( 12 , 2 )": "decimal(12,2)",
    "VARCHAR ( 5 )": "varchar(5)",
    "STRING COLLATE UNICODE": "string collate unicode",
    "TIMESTAMP WITHOUT TIME ZONE": "timestamp_ntz",
    "INTERVAL DAY TO SECOND": "interval day to second",
    "VARIANT": "variant",
}
DEFAULTS = ["0", "-1.5e3", "f(1, ')')", "x IS NOT NULL", "array(1, 2)[0]", "CAST('a;' AS STRING)"]


@st.composite
def types(draw: st.DrawFn, depth: int = 0) -> tuple[Pieces, str]:
    """The pieces of a type, and its canonical text."""
    kind = draw(st.sampled_from(["scalar", "scalar", "array", "map", "struct"]))
    if kind == "scalar" or depth == 2:
        text = draw(st.sampled_from(sorted(SCALARS)))
        return text.split(), SCALARS[text]
    first, one = draw(types(depth + 1))
    if kind == "array":
        return ["ARRAY", "<", *first, ">"], f"array<{one}>"
    second, other = draw(types(depth + 1))
    if kind == "map":
        return ["MAP", "<", *first, ",", *second, ">"], f"map<{one},{other}>"
    fields = [Exact("a"), ":", *first, ",", Exact("`b c`"), *second, "NOT", "NULL"]
    return ["STRUCT", "<", *fields, ">"], f"struct<a:{one},`b c`:{other} not null>"


def commas(items: Iterable[Pieces]) -> Pieces:
    return [piece for item in items for piece in (",", *item)][1:]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table, Pieces]:
    """A table, and the pieces of a statement that declares it."""

    def quoted(name: str) -> Exact:
        plain = PLAIN.fullmatch(name) and draw(st.booleans())
        return Exact(name if plain else "`" + name.replace("`", "``") + "`")

    def comment_pieces(comment: str | None) -> Pieces:
        if comment is None:
            return []
        quote = draw(st.sampled_from(["\\'", "''"]))
        escaped = comment.replace("\\", "\\\\").replace("'", quote)
        return ["COMMENT", Exact(f"'{escaped}'")]

    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique_by=str.lower))
    described = {name: draw(types()) for name in names}
    able = [name for name in names if not contains_map_or_variant(described[name][1])]
    key = draw(st.lists(st.sampled_from(able), unique=True, max_size=3)) if able else []
    inline = len(key) == 1 and draw(st.booleans())
    columns: list[Column] = []
    items: list[Pieces] = []
    for name in names:
        pieces, type = described[name]
        nullable = draw(st.booleans())
        default = draw(st.none() | st.sampled_from(DEFAULTS))
        comment = draw(st.none() | TEXT)
        columns.append(Column(name, type, nullable and name not in key, default, comment))
        options = [
            [] if nullable else ["NOT", "NULL"],
            [] if default is None else ["DEFAULT", Exact(default)],
            comment_pieces(comment),
            ["PRIMARY", "KEY"] if inline and key == [name] else [],
        ]
        items.append([quoted(name), *pieces, *itertools.chain(*draw(st.permutations(options)))])
    if key and not inline:
        listed = commas([quoted(name)] for name in key)
        items.insert(draw(st.integers(0, len(items))), ["PRIMARY", "KEY", "(", *listed, ")"])
    name, comment = draw(NAMES), draw(st.none() | TEXT)
    table = Table(
        name=name,
        columns=tuple(columns),
        key=tuple(key),
        comment=comment,
        span=NOWHERE,
        name_span=NOWHERE,
        source=Source("nowhere", ""),
    )
    head = ["CREATE", "TABLE", *draw(st.sampled_from([[], ["IF", "NOT", "EXISTS"]])), quoted(name)]
    return table, [*head, "(", *commas(items), ")", *comment_pieces(comment)]


@given(tables(), st.lists(st.sampled_from(GAPS), min_size=1), st.booleans())
def test_a_table_is_read_however_it_is_laid_out(
    declared: tuple[Table, Pieces], gaps: list[str], upper: bool
) -> None:
    """S2: case, space and comments carry no meaning, everything else does."""
    table, pieces = declared
    text = ""
    for piece, gap in zip(pieces, itertools.cycle(gaps), strict=False):
        text += piece if isinstance(piece, Exact) else piece.upper() if upper else piece.lower()
        text += gap
    assert parse(text) == (table,)


QUERY_PARTS = [
    *("'a;b'", '"a;--"', "`a;``;`", " r'\\'", "'\\';'", "''';'", "(';')", "(x)", "/*+ a */ "),
    *("/* ; /* ' */ */", "-- ; '\n", "-- ;\\\n; ' \n", " ", "\n", "x", "1", "+", "é", "$", "["),
]


@given(st.lists(st.lists(st.sampled_from(QUERY_PARTS), max_size=8), max_size=6), st.booleans())
def test_no_statement_is_lost_between_two_others(queries: list[list[str]], last: bool) -> None:
    """S3: a `;` in a string or a comment ends nothing, any other one does."""
    texts = [f"CREATE VIEW v{n} AS 1 {''.join(parts)}\n+1" for n, parts in enumerate(queries)]
    statements = parse(";".join(texts) + (";" if last else ""))
    assert [statement.name for statement in statements] == [f"v{n}" for n in range(len(texts))]
    for statement, text in zip(statements, texts, strict=True):
        assert isinstance(statement, View)
        assert statement.source.part(statement.span) == text
        assert statement.source.part(statement.query_span) == statement.query
        assert text == f"CREATE VIEW {statement.name} AS {statement.query}"


WORDS = ["CREATE", "TABLE", "VIEW", "AS", "PRIMARY KEY", "INT", "t", *"(),;`'"]
SOUP = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=15)


@given(SOUP.map(" ".join) | SOUP.map("".join) | st.text())
def test_any_text_is_read_or_refused_at_a_place(text: str) -> None:
    """Any file gives its statements, or an error with a line and a column."""
    error = None
    try:
        statements = parse(text)
    except SqlError as refusal:
        statements, error = (), refusal
    assert all(a.span.end <= b.span.start for a, b in itertools.pairwise(statements))
    if error:
        lines = re.split("\r\n|\r|\n", text)
        assert error.line is not None
        assert error.column is not None
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
        assert set(error.message.rpartition("\n")[2]) <= {" ", "^"}


@given(st.text(st.sampled_from("'\"`\\-/*+; \nrRa1é😀."), max_size=20))
def test_tokens_and_what_lies_between_them_are_the_text(text: str) -> None:
    """S3: offsets are exact, so a query cut out by them is the one that was written."""
    tokens = Tokens(Source("p.sql", text))
    end = 0
    with contextlib.suppress(SqlError):  # Something behind the last token is never closed.
        while tokens.peek().kind != "end":
            token = tokens.take()
            between = text[end : token.start].strip()
            assert token.text == text[token.start : token.end] != ""
            assert between == "" or between.startswith(("--", "/*"))
            end = token.end
