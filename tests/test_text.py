"""Names and strings survive being written as SQL and read again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepwell.text import Source, quote_name, quote_text, string_value, unquote_name

ODD = st.text(st.sampled_from("ab`'\"\\.$ %_\n0é"), max_size=6)


@given(ODD)
def test_a_quoted_name_is_read_as_the_name_it_was(name: str) -> None:
    """A name with a backtick in it must not end early, or the rest of it would run as SQL."""
    (token,) = Source("name", quote_name(name)).tokens()
    assert (token.kind, unquote_name(token.text)) == ("name", name)


@given(ODD)
def test_a_quoted_string_is_read_as_the_text_it_was(text: str) -> None:
    """A text with a quote or a backslash in it must not end early."""
    (token,) = Source("text", quote_text(text)).tokens()
    assert token.kind == "string"
    assert string_value(token.text) == text


@given(ODD)
def test_a_name_is_quoted_by_the_mark_of_another_dialect(name: str) -> None:
    """delta-rs reads a name in double quotes, in which a double quote stands twice."""
    quoted = quote_name(name, '"')
    assert quoted[0] == quoted[-1] == '"'
    assert quoted[1:-1].replace('""', "") == name.replace('"', "")
    assert quoted[1:-1].count('"') == 2 * name.count('"')


def test_a_plain_word_spells_itself() -> None:
    """A lone backtick is not a quoted name."""
    assert [unquote_name(text) for text in ("total", "`", "")] == ["total", "`", ""]
