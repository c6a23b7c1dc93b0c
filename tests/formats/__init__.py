"""Stored pipelines of every format, and whether today's code still reads them."""
