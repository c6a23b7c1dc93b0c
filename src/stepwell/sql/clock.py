"""Replace clock functions in a query with the recorded time of the transaction (J11).

Only these words are replaced, in place; the rest of the text stays as the user wrote it. Spark
reads a word such as `current_date` as a column if there is one of that name, which the text alone
does not tell. So `statements` refuses such names in tables and views, and a query that declares one
itself means its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache

from stepwell.text import Source, Token, unquote_name

_MOMENT = "TIMESTAMP '{time}'"
_BARE = {
    "current_timestamp": _MOMENT,
    "current_date": "CAST(" + _MOMENT + " AS DATE)",
    "localtimestamp": "CAST(" + _MOMENT + " AS TIMESTAMP_NTZ)",
    "current_time": "CAST(CAST(" + _MOMENT + " AS TIMESTAMP_NTZ) AS TIME)",
}
_CALLED = {
    **_BARE,
    "now": _MOMENT,
    "curdate": _BARE["current_date"],
    "unix_timestamp": "unix_timestamp(" + _MOMENT + ")",
}
_VALUES = frozenset({"END", "NULL", "TRUE", "FALSE"})


def at_time(text: str, time: datetime) -> str:
    """The query with its clock functions fixed at a time.

    >>> at_time("SELECT now(), t.now", datetime(2026, 1, 2, tzinfo=UTC))
    "SELECT TIMESTAMP '2026-01-02 00:00:00.000000Z', t.now"
    """
    moment = time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%fZ")
    tokens = Source("query", text).tokens()
    names = {unquote_name(token.text).lower() for token in _names(tokens)}
    made: list[str] = []
    done = 0
    for i, token in enumerate(tokens):
        word = token.text.lower()
        after = [t.text for t in tokens[i + 1 : i + 3]]
        before = tokens[i - 1].text if i else ""
        called = after == ["(", ")"]
        by = _CALLED.get(word) if called else _BARE.get(word)
        if by is None or before == "." or after[:1] == ["."] or (not called and word in names):
            continue
        made.append(text[done : token.start] + by.format(time=moment))
        done = tokens[i + 2].end if called else token.end
    return "".join(made) + text[done:]


def time_names(text: str) -> list[Token]:
    """The places where a query gives something a name that reads the clock elsewhere.

    >>> [token.text for token in time_names("SELECT now() AS now, a AS current_date, current_time")]
    ['current_date']
    """
    return _names(Source("query", text).tokens())


def reads_as_time(name: str) -> bool:
    """Whether a query reads this word as the time."""
    return name.lower() in _BARE


def _names(tokens: Sequence[Token]) -> list[Token]:
    return [
        token
        for i, token in enumerate(tokens)
        if reads_as_time(unquote_name(token.text)) and _is_name(tokens, i)
    ]


def _is_name(tokens: Sequence[Token], place: int) -> bool:
    """Whether a word is a name: in backticks, of a CTE, or an alias with or without AS."""
    after = [token.text.upper() for token in tokens[place + 1 : place + 3]]
    if tokens[place].kind == "name" or after == ["AS", "("]:
        return True
    if after[:1] == ["("] or place == 0:
        return False
    before = tokens[place - 1]
    match before.kind:
        case "word":
            word = before.text.upper()
            return word == "AS" or word in _VALUES or word not in _keywords()
        case "symbol":
            return before.text in (")", "]")
        case _:
            return True


@cache
def _keywords() -> frozenset[str]:
    """Words that an expression may follow; what follows any other word is its alias."""
    # Imported late: many commands parse statements, and few of them a query.
    from sqlglot.dialects.spark import Spark

    return frozenset(word for key in Spark.Tokenizer.KEYWORDS for word in key.split())
