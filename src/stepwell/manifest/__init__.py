"""The manifest of a pipeline, checkpoints, clones, and garbage collection."""
