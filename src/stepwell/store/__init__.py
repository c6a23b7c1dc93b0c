"""Byte objects at paths in a directory or object store, and numbered versions on top of them."""
