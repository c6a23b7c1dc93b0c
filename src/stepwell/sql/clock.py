"""Replace clock functions in a query with the recorded time of the transaction (J11).

Only these words are replaced, in place; the rest of the text stays as the user wrote it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from stepwell.text import Source

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


def at_time(text: str, time: datetime) -> str:
    """The query with its clock functions fixed at a time.

    >>> at_time("SELECT now(), t.now", datetime(2026, 1, 2, tzinfo=timezone.utc))
    "SELECT TIMESTAMP '2026-01-02 00:00:00.000000Z', t.now"
    """
    moment = time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%fZ")
    source = Source("query", text)
    tokens = source.tokens()
    made: list[str] = []
    done = 0
    for i, token in enumerate(tokens):
        word = token.text.lower()
        after = [t.text for t in tokens[i + 1 : i + 3]]
        before = tokens[i - 1].text if i else ""
        called = after == ["(", ")"]
        by = _CALLED.get(word) if called else _BARE.get(word)
        if by is None or before == "." or after[:1] == ["."]:
            continue
        made.append(text[done : token.start] + by.format(time=moment))
        done = tokens[i + 2].end if called else token.end
    return "".join(made) + text[done:]
