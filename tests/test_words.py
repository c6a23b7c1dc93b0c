"""Words that Stepwell no longer uses, so that they do not come back.

The list holds a regular expression and the wording to use instead. It is checked over the
documentation, the results of the benchmarks, the Makefile, the examples and templates, and over the
package: its string literals (messages, hints and help texts), its docstrings and its comments.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "stepwell"
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs").glob("*.py"),
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")),
        ROOT / "benchmarks" / "RESULTS.md",
        *(
            path
            for folder in (ROOT / "examples", PACKAGE / "cli" / "templates")
            for path in folder.rglob("*")
            if path.suffix in (".sql", ".yml")
        ),
    ]
)

# A placeholder of an f-string is checked as this.
HOLE = "{}"

INSTEAD: dict[str, str] = {
    r"(?i)\banew\b": "again, recompute, rewrite, rebuild",
    r"(?i)\bwhoever\b": "name the process, the thread or the user",
    r"(?i)\bwhomever\b": "name the process, the thread or the user",
    r"(?i)\bnobody\b": "no process, no user, unknown",
    r"(?i)(?<!\bthere) is no (?!longer\b|more\b|worse\b|slower\b)": "is not a (valid)",
    r"(?i)\bwhich there is not\b": "unknown column x",
    r"(?i)\bof which is known\b": "estimate, upper bound",
    r"(?i)\bbeside\b": "next to, in addition to, in the background",
    r"(?i)\b(?:kept incrementally|views? (?:is|are) kept(?! up\b))": "maintained incrementally",
    r"(?i)\bmerg(?:es?|ed|ing) (?:runs|files)\b|\bruns are merged\b": "compaction",
    r"(?i)\bstands? (?:in(?! for\b)|here|there|above|below)\b": "is in, belongs in",
    r"(?i)\bof Spark's\b": "a Spark worker, a Spark setting",
    r"(?i)\bin good order\b": "cleanly",
    r"(?i)\ball the same\b": "anyway",
    r"(?i)\bfor ever\b": "forever",
    r"(?i)\bgo(?:es)? on (?:where|from)\b": "continue",
    r"(?i)\blets? (?:it )?go\b|\bletting go\b": "delete, free",
    r"(?i)\brubbish\b": "garbage, orphan, unreferenced",
    r"(?i)\bmend(?:s|ed|ing)?\b": "fix, repair",
    r"(?i)\bwitness(?:es)?\b": "high-water mark",
    r"(?i)\bchores?\b": "background task",
    r"(?i)\bwhat goes and comes\b": "change set",
    r"(?i)\bin doubt\b": "not supported, undecided, uncertain",
    r"(?i)\bsomebody\b": "name the process, the thread or the user",
    r"(?i)\b(?:pipeline|process|round|transaction)s? go(?:es)? on\b": "continue",
    r"(?i)\bdoes not pay\b(?! for\b)": "is not worth it",
    r"(?i)\bso many\b": "N, at most N, the given number",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    """A reader who knows other engines must not have to learn a private language."""
    assert found_in(page.read_text(encoding="utf-8")) == []


def test_messages_use_the_words_of_the_field() -> None:
    """A message is read in a hurry, by someone who has not read the code."""
    modules = sorted(PACKAGE.rglob("*.py"))
    assert modules, "found no module to check"
    findings = [
        f"{module.relative_to(ROOT)}:{line}: {finding}"
        for module in modules
        for line, text in literals(module.read_text(encoding="utf-8"))
        for finding in found_in(text)
    ]
    assert findings == []


def test_docstrings_and_comments_use_the_words_of_the_field() -> None:
    """The next reader of the code knows other engines, too."""
    findings = [
        f"{module.relative_to(ROOT)}:{line}: {finding}"
        for module in sorted((ROOT / "src").rglob("*.py"))
        for line, text in prose(module.read_text(encoding="utf-8"))
        for finding in found_in(text)
    ]
    assert findings == []


@pytest.mark.parametrize(
    "text",
    [
        "the view is computed anew",
        "Whoever holds the lease is asked",
        "for whomever it concerns",
        "held by nobody knows whom",
        "'x' is no INT",
        "'x' is no {}",
        "{} is no clone",
        "reads a column x, which there is\nnot",
        "a result of which is known only its size",
        "runs in a thread beside the loop",
        "a view that is kept incrementally",
        "every view is kept",
        "merging files failed",
        "runs are merged",
        "its own words stand above",
        "spark.master stands in conf",
        "a worker of Spark's",
        "stopped, in good order",
        "committed all the same",
        "it waits for ever",
        "it goes on where it stopped",
        "let it go: delete it",
        "remove rubbish",
        "Mend the row",
        "mended by the next deploy",
        "a witness of the latest manifest",
        "after the chores",
        "what goes and comes is\nwritten",
        "a type in\ndoubt",
        "at most so many rows",
        "when somebody asks",
        "so the pipeline\ngoes on",
        "if it does not pay",
        "End after so many.",
    ],
)
def test_an_abandoned_word_is_found(text: str) -> None:
    """A list that matches nothing would let everything through, also across a line end."""
    assert len(found_in(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a renewed lease",
        "who ever heard of it",
        "'x' is not a valid INT",
        "there is no {} in this folder",
        "There is no clone",
        "the process is no longer needed",
        "which is no worse than a crash",
        "besides the journal",
        "views are kept up to date",
        "the checkpoint is kept for a week",
        "MERGE INTO a table, one merge by key",
        "the S3 stand-in",
        "it stands in for Spark",
        "forever",
        "go on",
        "a recommended setting, an amended commit",
        "no doubt",
        "does not pay for it",
        "as many files as there are",
    ],
)
def test_a_word_close_to_an_abandoned_one_is_not_found(text: str) -> None:
    """A rule that cries wolf is switched off."""
    assert found_in(text) == []


def test_every_expression_of_the_list_is_needed() -> None:
    """Each matches something of its own: a misspelt one would protect nothing."""
    samples = dict.fromkeys(INSTEAD, 0)
    (marked,) = test_an_abandoned_word_is_found.pytestmark  # type: ignore[attr-defined]
    for text in marked.args[1]:
        for pattern in INSTEAD:
            samples[pattern] += bool(re.search(pattern, joined(text)))
    assert [pattern for pattern, count in samples.items() if not count] == []


def test_literals_are_messages_and_neither_docstrings_nor_comments() -> None:
    """Otherwise the rule would be blind to f-strings, or report what no user reads."""
    source = '''
"""Docstring anew."""
LIMIT = 3
"""About LIMIT, anew."""

def f(x):
    """Docstring anew."""
    # comment anew
    raise ValueError("first " f"{x} is no {LIMIT}" " last")
'''
    assert [text for _, text in literals(source)] == ["first {} is no {} last"]


def test_prose_is_docstrings_and_comments_with_their_lines_joined() -> None:
    """A phrase that is wrapped in a comment would not be found."""
    source = '''
"""Docstring anew."""
LIMIT = 3
"""About LIMIT."""

def f(x):
    # a comment which is for
    # ever

    return "a # in a text"  # at the end
'''
    assert list(prose(source)) == [
        (2, "Docstring anew."),
        (4, "About LIMIT."),
        (7, "a comment which is for ever"),
        (10, "at the end"),
    ]


def found_in(text: str) -> list[str]:
    """The abandoned words of a text, each with the wording to use instead."""
    line = joined(text)
    return [
        f"{match.group().strip()!r}: say {instead}"
        for pattern, instead in INSTEAD.items()
        for match in re.finditer(pattern, line)
    ]


def joined(text: str) -> str:
    """The text on one line, for a phrase may be wrapped."""
    return re.sub(r"\s+", " ", text)


def literals(source: str) -> Iterator[tuple[int, str]]:
    """The string literals of a module that are not docstrings, with their lines."""
    tree = ast.parse(source)
    apart: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            apart.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            apart.update(node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(_piece(value) for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in apart:
            yield node.lineno, node.value


def prose(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, then its comments, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    comment, first, last = "", 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.removeprefix("#").strip()
            if comment and line == last + 1:
                comment, last = f"{comment} {text}", line
                continue
            if comment:
                yield first, comment
            comment, first, last = text, line, line
    if comment:
        yield first, comment


def _piece(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else HOLE
