"""Liveness of the process that claimed a pipeline, or of another one that is about to."""

from __future__ import annotations

from stepwell.endpoint.client import connect
from stepwell.engine.open import Seen
from stepwell.env import Env
from stepwell.errors import ClaimedError
from stepwell.model import Claim
from stepwell.process import Liveness, liveness


def writer_liveness(claim: Claim, env: Env) -> Liveness:
    """Return `DEAD` if the pipeline may be opened; a claim of our own process does not count."""
    here = env.process
    return Liveness.DEAD if claim.process == here else liveness(claim.process, here)


def seen_of(claim: Claim | None, store_uri: str) -> Seen:
    """Make the `Seen` of a command that found no running process: it checks again before its claim.

    A `run` that was started in the meantime is reachable long before it claims the pipeline.
    """

    def check() -> None:
        client = connect(store_uri)
        if client is not None:
            client.close()
            raise ClaimedError(
                f"process {client.pid} has started to run the pipeline in {store_uri}"
            )

    return Seen(claim, check)
