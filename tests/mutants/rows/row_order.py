"""Results that depend on the order in which rows arrive."""

from tests.mutants.table import Mutant

_LIVES = (
    "tests/execution/test_row_order.py::"
    "test_a_sink_adds_up_to_its_view_bit_by_bit_after_any_number_of_crashes[1]"
)
_ANSWERS = (
    "tests/execution/test_row_order.py::test_a_query_has_one_answer_however_its_rows_are_arranged"
)

MUTANTS = (
    Mutant(
        name="rows-as-they-come",
        file="execution/spark/evaluate.py",
        old="return in_fixed_order(frame) if self._in_order else frame",
        new="return frame",
        tests=(_LIVES,),
    ),
    Mutant(
        name="sorted-by-the-key-alone",
        file="execution/spark/row_order.py",
        old="rows = self._sort(self._ascend(keys), self._gathered(keys, child), read)",
        new="rows = self._sort(self._ascend(keys), self._gathered(keys, child), [])",
        tests=(_ANSWERS,),
    ),
    Mutant(
        name="any-of-equal-rows-is-marked",
        file="execution/spark/row_order.py",
        old="order = self._ascend(self._sort_keys(read))",
        new="order = self._ascend(of[:1])",
        tests=(_ANSWERS,),
    ),
    Mutant(
        name="averages-of-whole-numbers-need-no-order",
        file="execution/spark/row_order.py",
        old='(name == "sum" and kind in _EXACT)',
        new="kind in _EXACT",
        tests=("tests/execution/test_row_order.py::test_a_function_by_itself_has_one_answer",),
    ),
    Mutant(
        name="zeros-of-either-sign-tie",
        file="execution/spark/row_order.py",
        old="yield self._expressions.If(is_zero, self._as_text(column), nothing)",
        new="continue",
        tests=(_ANSWERS,),
    ),
)
