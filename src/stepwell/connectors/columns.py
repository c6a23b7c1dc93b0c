"""Vectorized conversion of input values to a column's type, with a mask of doubtful rows.

This is the fast counterpart of `values.py`. It may flag a valid value, because `Shape.row_of` reads
every flagged row again on its own. It must never accept a value that `row_of` would reject or read
differently.
"""

from __future__ import annotations

from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc

from stepwell.connectors.shape import ShapeColumn
from stepwell.connectors.values import Unfit, fit, read_text
from stepwell.lsm.arrow_types import arrow_type, numbers_of
from stepwell.plan.numbers import DIGITS_MAX, INTEGER_BITS
from stepwell.plan.types import SparkType

_YEAR = r"(?:\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3})"
_DATE = rf"^{_YEAR}-\d\d-\d\d$"
_NAIVE = rf"^{_YEAR}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{{1,6}})?$"
_ZONED = _NAIVE[:-1] + r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)$"
_TEXTS = {
    **dict.fromkeys(INTEGER_BITS, r"^-?\d{1,19}$"),
    "decimal": r"^-?\d+(?:\.\d+)?$",
    "float": r"^-?\d{1,30}(?:\.\d{1,30})?$",
    "double": r"^-?\d{1,30}(?:\.\d{1,30})?$",
    "boolean": r"^(?:true|false)$",
    "date": _DATE,
}
_STRINGS = ("string", "varchar", "char")

Fitted = tuple[pa.Array, pa.Array | None]
"""Values of the column's type, and a mask of the doubtful rows (None if there are none)."""


def raw_type(kind: SparkType) -> pa.DataType | None:
    """The type with which Arrow's JSON reader should read a column; None if it cannot."""
    if kind.name in ("date", "timestamp", "timestamp_ntz", "binary"):
        return pa.string()
    if kind.name == "map":
        return None
    if kind.name == "array":
        element = raw_type(kind.elements[0])
        return None if element is None else pa.list_(element)
    if kind.name == "struct":
        fields = [(field.name, raw_type(field.type)) for field in kind.fields]
        return None if any(raw is None for _, raw in fields) else pa.struct(fields)
    if kind.name == "float":
        # Rounded first to a double and then to a float, like a single value.
        return pa.float64()
    if kind.name in (*INTEGER_BITS, "decimal", "boolean", "double"):
        return arrow_type(kind)
    return pa.string()


def fit_column(values: pa.Array, column: ShapeColumn, *, text: bool) -> Fitted:
    """Convert a column of input values; `text` means that they are fields of a CSV file."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    try:
        if str(values.type) in ("string_view", "large_string"):
            values = values.cast(pa.string())
        fitted, doubt = _all_at_once(values, column, text=text)
    except (pa.ArrowException, ValueError, OverflowError):
        fitted, doubt = _one_by_one(values, column, text=text)
    # A null may stand for an omitted value, to which the default applies.
    if fitted.null_count and (not column.nullable or column.default is not None):
        doubt = either(doubt, fitted.is_null())
    return fitted, doubt


def is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def either(first: pa.Array | None, second: pa.Array | None) -> pa.Array | None:
    """The union of two masks. A null in a mask counts as false."""
    masks = [pc.fill_null(mask, False) for mask in (first, second) if mask is not None]
    return None if not masks else masks[0] if len(masks) == 1 else pc.or_(*masks)


def _all_at_once(values: pa.Array, column: ShapeColumn, *, text: bool) -> Fitted:
    name, doubt = column.kind.name, None
    given = pa.types.is_string(values.type)
    if name in ("array", "map", "struct"):
        raise pa.ArrowNotImplementedError("nested values are read one by one")
    if name in _STRINGS:
        if not given:
            raise pa.ArrowTypeError("not a text")
        if name != "string":
            doubt = pc.greater(pc.utf8_length(values), numbers_of(column.kind)[0])
        return _checked(values.cast(column.arrow), doubt)
    if name in ("timestamp", "timestamp_ntz"):
        moments = _moments(values, column)
        return _checked(moments, _outside(moments, _MOMENTS, column.arrow))
    if given and (text or name == "date") and name in _TEXTS:
        _require(values, _TEXTS[name])
    elif given or name == "binary":
        if name != "binary" or not pa.types.is_binary(values.type):
            raise pa.ArrowTypeError("not a value of this type")
    elif not _same_sort(values.type, column.arrow):
        raise pa.ArrowTypeError("not a value of this type")
    fitted = _cast(values, column.arrow)
    if name in ("float", "double"):
        # A number that is too large becomes infinite, and JSON has no NaN: flag both.
        doubt = pc.invert(pc.is_finite(fitted))
    if name == "date":
        doubt = _outside(fitted, _DAYS, column.arrow)
    return _checked(fitted, doubt)


def _checked(fitted: pa.Array, doubt: pa.Array | None) -> Fitted:
    """Validate decimal precision and UTF-8, which Arrow's readers do not check."""
    fitted.validate(full=True)
    doubt = None if doubt is None else pc.fill_null(doubt, False)
    return fitted, doubt if doubt is not None and pc.any(doubt).as_py() else None


def _outside(values: pa.Array, limits: tuple[object, object], kind: pa.DataType) -> pa.Array:
    """Flag times before year 1 or after year 9999, which only Parquet can represent."""
    first, last = (pa.scalar(limit).cast(kind) for limit in limits)
    return pc.or_(pc.less(values, first), pc.greater(values, last))


_MOMENTS = (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999))
_DAYS = (date(1, 1, 1), date(9999, 12, 31))


def _cast(values: pa.Array, to: pa.DataType) -> pa.Array:
    if values.type == to:
        return values
    if pa.types.is_decimal(to) and pa.types.is_integer(values.type):
        # Arrow checks whether every number of that type would fit, not just the actual values.
        values = values.cast(pa.decimal128(DIGITS_MAX, to.scale))
    if pa.types.is_float32(to) and pa.types.is_string(values.type):
        values = values.cast(pa.float64())
    return values.cast(to)


def _same_sort(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast between these types is either exact or an error."""
    numeric = pa.types.is_integer(given) or pa.types.is_decimal(given)
    if pa.types.is_floating(wanted):
        return bool(pa.types.is_floating(given))
    if pa.types.is_integer(wanted) or pa.types.is_decimal(wanted):
        return bool(numeric)
    return bool(given == wanted or (pa.types.is_date(given) and pa.types.is_date(wanted)))


def _moments(values: pa.Array, column: ShapeColumn) -> pa.Array:
    zoned = column.kind.name == "timestamp"
    if pa.types.is_timestamp(values.type):
        if values.type.tz is not None and not zoned:
            raise pa.ArrowTypeError("a time with a zone is not a valid TIMESTAMP_NTZ")
        if values.type.unit == "ns":
            # Truncate to microseconds, as Spark does.
            values = pc.floor_temporal(values, unit="microsecond")
        return values.cast(column.arrow)
    if zoned and pc.all(pc.match_substring_regex(values, _ZONED)).as_py() is not False:
        return values.cast(column.arrow)
    _require(values, _NAIVE)
    return values.cast(pa.timestamp("us")).cast(column.arrow)


def _require(values: pa.Array, pattern: str) -> None:
    if pc.all(pc.match_substring_regex(values, pattern)).as_py() is False:
        raise pa.ArrowInvalid("not all values look as expected")


def _one_by_one(values: pa.Array, column: ShapeColumn, *, text: bool) -> Fitted:
    made: list[object] = []
    doubt: list[bool] = []
    for given in values:
        try:
            value = given.as_py()
            if text and value is not None:
                made.append(read_text(value, column.kind))
            else:
                made.append(fit(value, column.kind))
            doubt.append(False)
        except (Unfit, ValueError, OverflowError, ArithmeticError, pa.ArrowException):
            # A value that cannot even be decoded, such as text that is not UTF-8, is reported when
            # its row is read on its own.
            made.append(None)
            doubt.append(True)
    return pa.array(made, column.arrow), pa.array(doubt, pa.bool_()) if any(doubt) else None
