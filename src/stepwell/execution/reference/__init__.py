"""The reference backend: evaluates plans row by row on Python counters. The oracle of the tests."""

EXECUTOR_VARIABLE = "STEPWELL_TESTING_EXECUTOR"
"""Environment variable by which `stepwell.testing` chooses this executor for projects."""
