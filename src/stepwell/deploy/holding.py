"""Whether the process that claimed a pipeline may still be at work on it, or another one is."""

from __future__ import annotations

from stepwell.endpoint.client import connect
from stepwell.engine.open import Seen
from stepwell.env import Env
from stepwell.errors import ClaimedError
from stepwell.model import Claim
from stepwell.process import Liveness, liveness


def writer_liveness(claim: Claim, env: Env) -> Liveness:
    """`DEAD`: the pipeline may be opened. A claim of our own process stands in nobody's way."""
    here = env.process
    return Liveness.DEAD if claim.process == here else liveness(claim.process, here)


def seen_of(claim: Claim | None, store_uri: str) -> Seen:
    """What a command has seen that found nobody to ask: right before its claim it asks again.

    A `run` that was started meanwhile is reachable long before it claims the pipeline.
    """

    def check() -> None:
        client = connect(store_uri)
        if client is not None:
            client.close()
            raise ClaimedError(f"process {client.pid} has begun to run the pipeline in {store_uri}")

    return Seen(claim, check)
