"""The Spark functions that the compiler knows by name; all others are left to Spark.

The tables answer three questions. Is it an aggregate (then it ends a group)? Is it nondeterministic
(then a stored view must not use it)? Does it read the clock (then its result changes without a
change of the input)? Names are those of Spark 4.3's function registry, in lower case.
"""

from __future__ import annotations

from sqlglot import exp

AGGREGATES = frozenset(
    {
        "any",
        "any_value",
        "approx_count_distinct",
        "approx_percentile",
        "approx_top_k",
        "array_agg",
        "avg",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bitmap_construct_agg",
        "bitmap_or_agg",
        "bitmap_and_agg",
        "bool_and",
        "bool_or",
        "collect_list",
        "collect_set",
        "corr",
        "count",
        "count_if",
        "count_min_sketch",
        "covar_pop",
        "covar_samp",
        "every",
        "first",
        "first_value",
        "grouping",
        "grouping_id",
        "hll_sketch_agg",
        "hll_union_agg",
        "histogram_numeric",
        "kurtosis",
        "last",
        "last_value",
        "listagg",
        "max",
        "max_by",
        "mean",
        "measure",
        "median",
        "min",
        "min_by",
        "mode",
        "percentile",
        "percentile_approx",
        "percentile_cont",
        "percentile_disc",
        "regr_avgx",
        "regr_avgy",
        "regr_count",
        "regr_intercept",
        "regr_r2",
        "regr_slope",
        "regr_sxx",
        "regr_sxy",
        "regr_syy",
        "schema_of_variant_agg",
        "skewness",
        "some",
        "std",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "string_agg",
        "sum",
        "theta_sketch_agg",
        "theta_union_agg",
        "theta_intersection_agg",
        "try_avg",
        "try_sum",
        "var_pop",
        "var_samp",
        "variance",
    }
)

ZERO_WHEN_EMPTY = frozenset({"count", "count_if", "regr_count", "approx_count_distinct"})
"""Aggregates that return 0 instead of NULL for no rows."""

ARRAY_WHEN_EMPTY = frozenset({"collect_list", "collect_set", "array_agg"})

IN_ANY_ORDER = frozenset(
    {
        "approx_count_distinct",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bitmap_construct_agg",
        "bitmap_or_agg",
        "bool_and",
        "bool_or",
        "count",
        "count_if",
        "count_min_sketch",
        "every",
        "max",
        "median",
        "min",
        "percentile",
        "percentile_cont",
        "percentile_disc",
        "regr_count",
        "some",
    }
)
"""Aggregates whose result is independent of row order, for arguments of any type."""

UNSTABLE = frozenset(
    {
        "rand",
        "random",
        "randn",
        "randstr",
        "uniform",
        "uuid",
        "shuffle",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "current_user",
        "session_user",
        "user",
        "current_catalog",
        "current_database",
        "current_schema",
        "version",
    }
)
"""Functions that are nondeterministic, or depend on where and by whom they are run."""

CLOCK = frozenset(
    {
        "now",
        "current_timestamp",
        "current_date",
        "curdate",
        "current_time",
        "localtimestamp",
        "unix_timestamp",
    }
)
"""Functions that are constant within a transaction: its recorded time replaces them."""

GENERATORS = frozenset(
    {
        "explode",
        "explode_outer",
        "posexplode",
        "posexplode_outer",
        "inline",
        "inline_outer",
        "stack",
        "json_tuple",
        "variant_explode",
        "variant_explode_outer",
    }
)

_NAMES: dict[type[exp.Expr], str] = {
    exp.ArrayAgg: "collect_list",
    exp.ArrayUniqueAgg: "collect_set",
    exp.ApproxDistinct: "approx_count_distinct",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
    exp.GroupConcat: "listagg",
    exp.Explode: "explode",
    exp.ExplodeOuter: "explode_outer",
    exp.Posexplode: "posexplode",
    exp.PosexplodeOuter: "posexplode_outer",
    exp.Inline: "inline",
}


def name_of(node: exp.Expr) -> str | None:
    """The lower-case Spark name of the function that this node calls; None if it calls none."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    if isinstance(node, exp.Func) and not isinstance(node, exp.Connector):
        return _NAMES.get(type(node)) or node.sql_name().lower()
    return None


def is_aggregate(node: exp.Expr) -> bool:
    """Whether this node itself calls an aggregate function."""
    return isinstance(node, exp.AggFunc) or name_of(node) in AGGREGATES


def is_generator(node: exp.Expr) -> bool:
    return name_of(node) in GENERATORS


def unstable(node: exp.Expr) -> str | None:
    """The name of the first function in the tree that is in `UNSTABLE`, if any."""
    for function in node.find_all(exp.Func):
        name = name_of(function)
        if name in UNSTABLE:
            return name
    return None


def time_windows(node: exp.Expr) -> list[exp.Anonymous]:
    """Calls of `window(...)`, which is not a scalar expression: it repeats rows or drops them."""
    return [call for call in node.find_all(exp.Anonymous) if call.name.lower() == "window"]


def is_time_window(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() == "window"


def has_time_window(node: exp.Expr) -> bool:
    return bool(time_windows(node))


def own_time_windows(node: exp.Expr) -> list[exp.Anonymous]:
    """Calls of `window(...)` outside subqueries."""
    if isinstance(node, exp.Query):
        return []
    if isinstance(node, exp.Anonymous) and is_time_window(node):
        return [node]
    return [call for child in node.iter_expressions() for call in own_time_windows(child)]


def reads_clock(node: exp.Expr) -> bool:
    """Whether anything in the tree reads the clock."""
    for part in node.walk():
        if isinstance(part, exp.CurrentTimestamp | exp.CurrentDate | exp.CurrentTime):
            return True
        if isinstance(part, exp.Func) and name_of(part) in CLOCK:
            # With an argument, unix_timestamp(x) only converts x.
            if name_of(part) == "unix_timestamp" and list(part.iter_expressions()):
                continue
            return True
    return False


def contains_aggregate(node: exp.Expr) -> bool:
    """Whether the expression calls an aggregate, outside subqueries and window functions."""
    if isinstance(node, exp.Query):
        return False
    if isinstance(node, exp.Window):
        # sum(sum(x)) OVER (...): the inner sum is an aggregate, the outer one is not.
        function = node.this
        while isinstance(function, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
            function = function.this
        inside = list(function.iter_expressions())
        inside += node.args.get("partition_by") or []
        if node.args.get("order"):
            inside.append(node.args["order"])
        return any(map(contains_aggregate, inside))
    if is_aggregate(node):
        return True
    return any(contains_aggregate(child) for child in node.iter_expressions())
