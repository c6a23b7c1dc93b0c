"""The running pipeline: open, ingest, commit, publish."""
