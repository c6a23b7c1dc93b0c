"""`stepwell completion`: the script that lets a shell complete commands and options.

The script asks this program on every Tab, with what was typed so far in the environment. So it
never has to be written anew when commands change.
"""

from __future__ import annotations

import os

PROGRAM = "stepwell"
VARIABLE = "_STEPWELL_COMPLETE"
"""Set by the script: this process is to print completions, and to do nothing else."""


def script(shell: str) -> str:
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    return str(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))


def prepare() -> None:
    """Before a command line is parsed: if a shell asks, answer in the way of its script."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
