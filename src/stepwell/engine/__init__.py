"""The pipeline at work: open it, take input in, commit, publish."""
