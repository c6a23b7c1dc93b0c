import pytest

# They assert on behalf of tests, and should say as much when they fail.
pytest.register_assert_rewrite("tests.engine.doubles")
