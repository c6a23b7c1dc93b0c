"""Planted bugs, and the tests that must notice each of them."""
