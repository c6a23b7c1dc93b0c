"""The journal: a log of all input, which only one writer at a time can extend."""
