"""Stepwell keeps SQL materialized views up to date on Apache Spark.

Importing the package is cheap on purpose: nothing heavy is loaded before it is used.
"""

__version__ = "0.1.0"
