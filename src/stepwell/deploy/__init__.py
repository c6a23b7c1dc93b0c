"""From a project on disk to a pipeline: read it, check it, open it."""
