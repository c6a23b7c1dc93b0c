"""How other processes of this machine ask the one that runs a pipeline, instead of fencing it."""
