"""The command line: thin wrappers over the layers below, and the only place that prints."""
