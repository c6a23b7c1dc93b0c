"""Bytes at paths, on a directory or an object store; and numbered versions on top of them."""
