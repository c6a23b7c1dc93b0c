"""Whether the process that claimed a pipeline may still be at work on it."""

from __future__ import annotations

from stepwell.env import Env
from stepwell.model import Claim
from stepwell.process import Liveness, liveness


def writer_liveness(claim: Claim, env: Env) -> Liveness:
    """`DEAD`: the pipeline may be opened. A claim of our own process stands in nobody's way."""
    here = env.process
    return Liveness.DEAD if claim.process == here else liveness(claim.process, here)
