"""The text of a SQL file: positions, errors that point at them, and tokens.

Every offset counts characters of the text exactly as the user wrote it. Token boundaries follow
Spark's own lexer as far as needed to find names, strings and the end of a statement: comments nest,
a backslash at the end of a line continues a line comment, and a hint is not a comment. Tokens are
read on demand, so the first of several mistakes in a file is the one reported.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from stepwell.errors import SqlError, ensure

WIDTH_MAX = 100
"""Maximum columns of a source line in a message; a longer line is cut around the position."""

TAB_WIDTH = 4

NAME_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a text, from `start` up to but not including `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Source:
    """A text, and the file name that messages use for it."""

    name: str
    text: str

    def part(self, span: Span) -> str:
        return self.text[span.start : span.end]

    def tokens(self) -> list[Token]:
        """All tokens of the text."""
        tokens = Tokens(self)
        found: list[Token] = []
        while tokens.peek().kind != "end":
            found.append(tokens.take())
        return found

    def called(self) -> frozenset[str]:
        """The names in front of a parenthesis, in lower case: functions, but also words like IN."""
        return frozenset(
            unquote_name(token.text).lower()
            for token, after in pairwise(self.tokens())
            if token.kind in ("word", "name") and after.text == "("
        )

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1; columns count characters."""
        number, start, _ = self._line(offset)
        # Editors hide the byte order mark, so it must not shift the columns of the first line.
        hidden = 1 if number == 1 and self.text.startswith(_MARK) and offset > 0 else 0
        return number, offset - start + 1 - hidden

    def error(
        self, offset: int, message: str, *, hint: str | None = None, length: int = 1
    ) -> SqlError:
        """An error that shows the line of `offset` with carets under `length` characters."""
        line, column = self.place(offset)
        _, start, end = self._line(offset)
        shown, carets = _show(self.text[start:end], offset - start, length)
        text = f"{self.name}:{line}:{column}: {message}\n{shown}\n{carets}"
        return SqlError(text, hint=hint, file=self.name, line=line, column=column)

    def error_at(self, span: Span, message: str, *, hint: str | None = None) -> SqlError:
        """An error with carets under a span, as far as it lies on its first line."""
        return self.error(span.start, message, hint=hint, length=span.end - span.start)

    def _line(self, offset: int) -> tuple[int, int, int]:
        """The number of the line that contains an offset, and the offsets of its start and end."""
        ensure(0 <= offset <= len(self.text), f"offset {offset} lies in {self.name}")
        number, start = 1, 0
        for match in _LINE_END.finditer(self.text):
            if match.end() > offset:
                return number, start, match.start()
            number, start = number + 1, match.end()
        return number, start, len(self.text)


TokenKind = Literal["word", "name", "string", "symbol", "end"]
"""`word`: letters, digits and `_`; `name`: in backticks; `symbol`: any other token."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    text: str
    start: int
    end: int

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the file"
        first = _LINE_END.split(self.text)[0][:40]
        cut = "" if first == self.text else "…"
        shown = "".join(_cell(character, 0)[0] for character in first) + cut
        return f'"{shown}"' if self.kind == "symbol" else shown


@dataclass(frozen=True, slots=True)
class Name:
    """A name as spelled, without backticks, and its span."""

    value: str
    span: Span


class Tokens:
    """A cursor over the tokens of a source; words compare case-insensitively."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.last_end = 0
        """The end offset of the last token taken."""
        self._ahead: list[Token] = []

    def peek(self, ahead: int = 0) -> Token:
        while len(self._ahead) <= ahead:
            behind = self._ahead[-1].end if self._ahead else self.last_end
            self._ahead.append(_token(self.source, behind))
        return self._ahead[ahead]

    def take(self) -> Token:
        token = self.peek()
        del self._ahead[0]
        self.last_end = token.end
        return token

    def at(self, *texts: str, ahead: int = 0) -> bool:
        """Whether these words and symbols, given in upper case, come next."""
        # Stop at the first mismatch: looking further ahead could hit a broken token too early.
        return all(is_text(self.peek(place), text) for place, text in enumerate(texts, ahead))

    def skip(self, *texts: str) -> bool:
        """Take these words and symbols if they come next."""
        found = self.at(*texts)
        if found:
            for _ in texts:
                self.take()
        return found

    def expect(self, *texts: str, hint: str | None = None) -> None:
        for text in texts:
            if not self.skip(text):
                expected = text if text.isalpha() else f'"{text}"'
                raise self.unexpected(f"expected {expected}", hint=hint)

    def unexpected(self, expected: str, *, hint: str | None = None) -> SqlError:
        """An error at the next token that says what was expected there."""
        return self.wrong(f"{expected}, found {self.peek()}", hint=hint)

    def wrong(self, message: str, *, hint: str | None = None) -> SqlError:
        """An error at the next token; at the end of the file, right after the last token taken."""
        token = self.peek()
        if token.kind == "end":
            return self.source.error(self.last_end, message, hint=hint)
        return self.source.error(token.start, message, hint=hint, length=len(token.text))

    def name(self, what: str, *, limited: bool = True) -> Name:
        """Take a name, plain or in backticks. If `limited`, it can name a file or a column."""
        token = self.peek()
        if token.kind == "string" and token.text.startswith('"'):
            hint = f"write names in backticks: {quote_name(string_value(token.text))}"
            raise self.unexpected(f"expected {what}", hint=hint)
        if token.kind not in ("word", "name"):
            raise self.unexpected(f"expected {what}")
        self.take()
        quoted = token.kind == "name"
        value = unquote_name(token.text)
        problem = _name_problem(value) if limited else None
        if problem:
            raise self.source.error_at(token.span, f"{what} {problem}")
        if self.at("."):
            hint = "leave out the part before the dot; a name with a dot in it needs backticks"
            raise self.wrong("a name has one part only", hint=hint)
        behind = self.peek()
        apart = behind.start > token.end or behind.kind != "symbol" or behind.text in "()[]<>,:;"
        if not quoted and (value[0].isdigit() or not apart):
            span = Span(token.start, _end(_JOINED, self.source.text, token.start))
            whole = self.source.part(span)
            hint = f"write it in backticks: {quote_name(whole)}"
            hint = "choose a name without $" if "$" in whole else hint
            raise self.source.error_at(span, f"{whole} is not a plain name", hint=hint)
        return Name(value, token.span)

    def string(self, what: str) -> str:
        """Take a string and return its value. Adjacent literals form one string."""
        if self.peek().kind != "string":
            raise self.unexpected(f"expected {what}", hint="write it in quotes: '...'")
        value = ""
        while self.peek().kind == "string":
            value += string_value(self.take().text)
        return value

    def take_until(self, is_over: Callable[[Token | None], bool]) -> Span | None:
        """Take tokens up to the end of the statement or, outside parentheses, up to the first
        position where `is_over` is true. `is_over` receives the previous token.
        """
        start, before, opened = self.peek().start, None, list[Token]()
        while True:
            token = self.peek()
            ended = token.kind == "end" or self.at(";")
            if ended and opened:
                message = "this parenthesis is never closed"
                raise self.source.error_at(opened[-1].span, message, hint="add )")
            if ended or (not opened and is_over(before)):
                return Span(start, self.last_end) if before else None
            if self.at("("):
                opened.append(token)
            elif self.at(")"):
                if not opened:
                    raise self.wrong("this parenthesis closes nothing", hint="remove it")
                opened.pop()
            before = self.take()


def is_text(token: Token, text: str) -> bool:
    return token.kind in ("word", "symbol") and token.text.isascii() and token.text.upper() == text


def quote_text(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_name(name: str, mark: str = "`") -> str:
    """A SQL name in backticks, or in the quote character of another dialect.

    >>> quote_name("a`b"), quote_name('a"b', '"')
    ('`a``b`', '"a""b"')
    """
    return mark + name.replace(mark, mark * 2) + mark


def unquote_name(text: str) -> str:
    """The name spelled by a token; a plain word spells itself.

    >>> unquote_name("`a``b`"), unquote_name("ab")
    ('a`b', 'ab')
    """
    if len(text) < 2 or text[0] != "`" or text[-1] != "`":
        return text
    return text[1:-1].replace("``", "`")


def _name_problem(name: str) -> str | None:
    if not name:
        return "cannot be empty"
    if any(unicodedata.category(character) in _INVISIBLE for character in name):
        return "cannot contain control characters"
    size = len(name.encode())
    return None if size <= NAME_BYTES_MAX else f"has at most {NAME_BYTES_MAX} bytes, not {size}"


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint with the closest match for `word` among `known`, or None if nothing is close."""
    spelled = {name.lower(): name for name in known if name.lower() != word.lower()}
    close = difflib.get_close_matches(word.lower(), spelled, n=1)
    return f"did you mean {spelled[close[0]]}?" if close else None


def string_value(literal: str) -> str:
    """The value of a string literal, by Spark's rules.

    >>> string_value(r"'it''s \\u0041\\n'")
    "it's A\\n"
    >>> string_value(r"r'\\n'")
    '\\\\n'
    """
    if literal[0] in "rR":
        return literal[2:-1]
    value = _ESCAPE[literal[0]].sub(_unescape, literal[1:-1])
    # Join surrogate pairs, as in \uD83D\uDE00, into one character.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape(match: re.Match[str]) -> str:
    if match["code"] is not None:
        code = int(match["code"][1:], 16)
        return chr(code) if code <= 0x10FFFF else "\ufffd"
    if match["octal"] is not None:
        return chr(int(match["octal"], 8))
    character = match[0][1:]
    # The wildcards of LIKE keep their backslash, because LIKE itself interprets it.
    return match[0] if character in "%_" else _ESCAPED.get(character, character)


_BACKSLASH = r"\\(?:(?P<code>u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|(?P<octal>[01][0-7]{2})|.)"
_ESCAPE = {quote: re.compile(f"{_BACKSLASH}|{quote}{quote}", re.DOTALL) for quote in "'\""}
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}

# Categories of control characters, surrogates, line separators and paragraph separators.
_INVISIBLE = ("Cc", "Cs", "Zl", "Zp")
_MARK = "\ufeff"
_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANK = re.compile(r"\s+")
_WORD = re.compile(r"\w+")
# The delimiters of a hint, whose content consists of ordinary tokens, and single characters.
_SYMBOL = re.compile(r"/\*\+|\*/|.", re.DOTALL)
_JOINED = re.compile(r"[^\s()\[\]<>,:;'\"`]{1,100}")
_LINE_COMMENT = re.compile(r"--(?:\\\n|[^\r\n])*")
# A hint inside a comment does not nest, as in Spark.
_COMMENT_EDGE = re.compile(r"/\*(?!\+)|\*/")
# Body only: with the closing quote in the pattern, backtracking could end at a doubled quote.
_QUOTED = {
    "'": re.compile(r"'[^'\\]*(?:(?:\\.|'')[^'\\]*)*", re.DOTALL),
    '"': re.compile(r'"[^"\\]*(?:(?:\\.|"")[^"\\]*)*', re.DOTALL),
    "`": re.compile(r"`[^`]*(?:``[^`]*)*"),
}


@lru_cache(maxsize=65_536)
def _token(source: Source, behind: int) -> Token:
    """The first token at or after an offset. Statements are read several times, by many checks."""
    text = source.text
    start = _skip_blank(source, behind)
    if start == len(text):
        return Token("end", "", start, start)
    character = text[start]
    kind: TokenKind
    if character in _QUOTED:
        kind, noun = ("name", "name in backticks") if character == "`" else ("string", "string")
        end = _end(_QUOTED[character], text, start)
        if text[end : end + 1] != character:
            raise source.error(start, f"this {noun} is never closed", hint=f"add {character}")
        end += 1
    elif character in "rR" and text[start + 1 : start + 2] in ("'", '"'):
        kind, end = "string", text.find(text[start + 1], start + 2) + 1
        if end == 0:
            raise source.error(start, "this string is never closed", hint=f"add {text[start + 1]}")
    else:
        kind, end = "word", start
        while end < len(text) and _is_word(text[end]):
            end = max(_end(_WORD, text, end), end + 1)
        if end == start:
            kind, end = "symbol", _end(_SYMBOL, text, start)
    return Token(kind, text[start:end], start, end)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """The end of the match of a pattern at `start`; `start` if it does not match."""
    match = pattern.match(text, start)
    return match.end() if match else start


def _skip_blank(source: Source, offset: int) -> int:
    """The offset after white space and comments."""
    text = source.text
    if offset == 0 and text.startswith(_MARK):
        offset = 1
    while True:
        end = _end(_LINE_COMMENT, text, _end(_BLANK, text, offset))
        if end > offset:
            offset = end
        elif text.startswith("/*", offset) and not text.startswith("/*+", offset):
            offset = _comment_end(source, offset)
        else:
            return offset


def _comment_end(source: Source, start: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(source.text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise source.error(start, "this comment is never closed", hint="add */", length=2)


def _is_word(character: str) -> bool:
    # Combining marks count; otherwise names in Hindi or with decomposed accents would be split.
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"


def _show(line: str, at: int, length: int) -> tuple[str, str]:
    """A line as a terminal shows it, and the line of carets below it."""
    cells: list[tuple[str, int]] = []
    column = 0
    for character in line:
        cell = _cell(character, column)
        column += cell[1]
        cells.append(cell)
    cells.append(("", 1))  # The position after the last character, where a file ends.
    first, last = _window([width for _, width in cells], at)
    before = ("…" if first > 0 else "") + "".join(text for text, _ in cells[first:at])
    indent = sum(width for _, width in cells[first:at]) + (first > 0)
    until = min(at + max(length, 1), last, max(len(line), at + 1))
    carets = max(sum(width for _, width in cells[at:until]), 1)
    after = "".join(text for text, _ in cells[at:last]) + ("…" if last < len(line) else "")
    return (before + after).rstrip(), " " * indent + "^" * carets


def _window(widths: list[int], at: int) -> tuple[int, int]:
    """The first cell to show and the first to leave out, so that the cell at `at` is visible."""
    if sum(widths) <= WIDTH_MAX + 1:
        return 0, len(widths)
    first, before = at, 0
    while first > 0 and before + widths[first - 1] <= WIDTH_MAX // 2:
        first -= 1
        before += widths[first]
    last, shown = at, before
    while last < len(widths) and shown + widths[last] <= WIDTH_MAX:
        shown += widths[last]
        last += 1
    return first, max(last, at + 1)


def _cell(character: str, column: int) -> tuple[str, int]:
    """A character as a terminal shows it at a column, and its width in columns."""
    if character == "\t":
        width = TAB_WIDTH - column % TAB_WIDTH
        return " " * width, width
    category = unicodedata.category(character)
    if category in _INVISIBLE or category == "Cf":
        # Invisible, and some of them control the terminal.
        return "\ufffd", 1
    if category in ("Mn", "Me"):
        return character, 0
    return character, 2 if unicodedata.east_asian_width(character) in "WF" else 1
