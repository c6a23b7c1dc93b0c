"""The endpoint of a pipeline, under peers that misbehave and a machine that runs short."""
