"""The command line: thin skins over the layers below, and the only place that prints."""
