"""`stepwell init`: create the files of a new project, and show the next steps.

Nothing is overwritten.
"""

from __future__ import annotations

from pathlib import Path

from stepwell.cli.choices import Template
from stepwell.cli.screen import Screen
from stepwell.errors import InvalidError

TEMPLATES = Path(__file__).parent / "templates"


NEXT = {
    Template.ORDERS: (
        ("stepwell run --once", "load the sample orders, then exit"),
        ('stepwell query "SELECT * FROM revenue"', "the view, up to date"),
        ("stepwell run", "keep it up to date: load new files from data/orders"),
        ("stepwell push orders FILE", "in another terminal: rows of any other file"),
    ),
    Template.EMPTY: (
        ("edit pipeline.sql and stepwell.yml", "your tables and views, sources and sinks"),
        ("stepwell validate", "is everything right?"),
        ("stepwell run", "create the pipeline, and keep its views up to date"),
    ),
}


def show(folder: str, template: Template, *, json: bool) -> None:
    target = Path(folder)
    source = TEMPLATES / template.value
    # Stored without its dot, or git would apply it to the templates.
    files = {
        Path(".gitignore") if path.name == "gitignore" else path.relative_to(source): path
        for path in source.rglob("*")
        if path.is_file()
    }
    names = sorted(files)
    for name in names:
        if (target / name).exists():
            raise InvalidError(
                f"{target / name} already exists; nothing was written",
                hint="choose another folder: stepwell init DIR",
            )
    try:
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(files[name].read_bytes())
    except OSError as error:
        raise InvalidError(f"{target} cannot be written to: {error.strerror}") from error
    screen = Screen()
    if json:
        screen.json({"folder": str(target), "files": [str(name) for name in names]})
        return
    for name in names:
        screen.line(f"wrote {target / name}")
    screen.line()
    screen.line("next:")
    steps = [("cd " + folder, "where the project is")] if folder != "." else []
    screen.facts([*steps, *NEXT[template]], indent="  ")
