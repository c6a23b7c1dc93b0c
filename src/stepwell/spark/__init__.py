"""Spark: the only layer that imports pyspark. It implements the ports of the engine."""
