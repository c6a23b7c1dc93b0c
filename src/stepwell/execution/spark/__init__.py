"""The Spark backend: the only package that imports pyspark."""
