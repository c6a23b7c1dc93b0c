import pytest

# It asserts on behalf of tests, and should say as much when it fails.
pytest.register_assert_rewrite("tests.execution.executor_contract")
