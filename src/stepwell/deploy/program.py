"""What a pipeline computes, as its manifest records it, so that no other state is mistaken for it.

    {"format": 1, "executor": "spark", "statements": {"revenue": "<checksum>", ...}}

A checksum is of a statement's tokens: comments, line ends and indentation may change. Anything else
may not, until views can be changed in place: rows stored for one query are no answer to another,
and a view that was added would begin without the rows that came before it.
"""

from __future__ import annotations

from stepwell.deploy.project import Project
from stepwell.errors import InvalidError
from stepwell.model import checksum
from stepwell.query.source import Source, Tokens
from stepwell.query.statements import Statement
from stepwell.store.sealed import Json

FORMAT = 1
"""The next, when stored relations mean something else for the same statements."""


def program_of(project: Project, executor: str | None = None) -> Json:
    """`executor`: the one that is used, if not the project's."""
    return {
        "format": FORMAT,
        "executor": executor or project.sections.executor,
        "statements": {s.name.lower(): _checksum(s) for s in project.statements},
    }


def check_program(project: Project, known: Json, executor: str | None = None) -> None:
    """Refuse a project whose pipeline was made by other statements. None: nothing is recorded."""
    mine = program_of(project, executor)
    if known is None or known == mine:
        return
    raise InvalidError(
        f"the pipeline in {project.store} was made by a project that differs: "
        + ", ".join(_differences(known, mine)),
        hint="views cannot be changed in place yet: undo the change, or give another store "
        "(`--store`) and let it take in everything anew",
    )


def _differences(known: Json, mine: Json) -> list[str]:
    found = [
        f"its {key} was {known.get(key)}, not {mine[key]}"
        for key in ("format", "executor")
        if known.get(key) != mine[key]
    ]
    before, now = known.get("statements", {}), mine["statements"]
    for name in sorted({*before, *now}):
        if name not in before:
            found.append(f"{name} is new")
        elif name not in now:
            found.append(f"{name} is gone")
        elif before[name] != now[name]:
            found.append(f"{name} has changed")
    return found


def _checksum(statement: Statement) -> str:
    text = statement.source.text[statement.span.start : statement.span.end]
    tokens, parts = Tokens(Source(statement.source.name, text)), []
    while (token := tokens.take()).kind != "end":
        # Told apart by length: no two lists of tokens give the same bytes.
        body = token.text.encode()
        parts.append(f"{token.kind} {len(body)} ".encode() + body)
    return checksum(parts)
