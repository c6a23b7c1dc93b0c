"""From a project on disk to a pipeline: load it, check it, deploy it, open it."""
