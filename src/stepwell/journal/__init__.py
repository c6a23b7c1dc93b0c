"""The journal: what came in, entry by entry, in an order only one writer at a time can extend."""
