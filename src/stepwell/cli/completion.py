"""`stepwell completion`: the script that lets a shell complete commands and options.

On every Tab the script runs this program with the typed text in the environment. So the script does
not change when commands do.
"""

from __future__ import annotations

import os

PROGRAM = "stepwell"
VARIABLE = "_STEPWELL_COMPLETE"
"""Set by the script: this process only prints completions."""


def script(shell: str) -> str:
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    return str(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))


def prepare() -> None:
    """Answer a shell's completion request, if any, before the command line is parsed."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
