"""TPC-H: its tables from tpchgen-cli, its 22 queries as views, and changes drawn from a seed.

The standard changes its data by adding orders and by deleting orders. `Changes` does that, and also
inserts, updates and deletes rows of any table, since a view has to follow those as well. Updates
aim at what the queries look at: dates move across the borders of filters, customers change their
nation, parts their brand. References are not preserved: a customer can be deleted while its orders
stay.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from _changes import (
    Array,
    Change,
    Columns,
    Edit,
    Edited,
    Rows,
    between,
    both_of,
    change_hands,
    edit_rows,
    key_of,
    near,
    one_of,
    pack,
    together,
    unpack,
)

SQL = Path(__file__).resolve().parent / "tpch"
"""schema.sql and the views, q01.sql to q22.sql."""

KEYS: dict[str, tuple[str, ...]] = {
    "region": ("r_regionkey",),
    "nation": ("n_nationkey",),
    "supplier": ("s_suppkey",),
    "customer": ("c_custkey",),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}
TABLES = tuple(KEYS)


# --- the data -------------------------------------------------------------------------------------


def generate(folder: Path, scale: float) -> dict[str, Path]:
    """A Parquet file for each table, made at the first call for this folder and scale.

    The smallest scale is 0.01: the standard's rule for who supplies which part names a supplier
    twice when there are few, and then `partsupp` has no key.
    """
    home = folder / f"tpch-{scale:g}"
    if not home.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            raw, made = Path(name) / "raw", Path(name) / "made"
            options = ["--scale-factor", f"{scale:g}", "--output-dir", str(raw), "--quiet"]
            subprocess.run([_tool(), "parquet", *options], check=True)
            made.mkdir()
            for table in TABLES:
                _with_plain_strings(raw / f"{table}.parquet", made / f"{table}.parquet")
            _check_pairs(made / "partsupp.parquet", scale)
            try:
                made.rename(home)
            except OSError:
                # Another process was faster, and what it made is the same.
                if not home.exists():
                    raise
    return {table: home / f"{table}.parquet" for table in TABLES}


def load(folder: Path, scale: float) -> dict[str, pa.Table]:
    """The tables in memory, generated if need be: about 2 GB at scale factor 1."""
    return {table: pq.read_table(file) for table, file in generate(folder, scale).items()}


def load_some_orders(folder: Path, scale: float, one_in: int) -> dict[str, pa.Table]:
    """Enough to change orders at a large scale: one order in a given number, with its lines.

    Of customers there are the keys, of other tables nothing. The last order is among them, so that
    keys that are made are new.
    """
    files = generate(folder, scale)
    last = int(pc.max(pq.read_table(files["orders"], columns=["o_orderkey"]).column(0)).as_py())
    tables = {table: pq.read_schema(file).empty_table() for table, file in files.items()}
    tables["customer"] = pq.read_table(files["customer"], columns=["c_custkey"])
    for table in ("orders", "lineitem"):
        key = pc.field(KEYS[table][0])
        rest = pc.subtract(key, pc.multiply(pc.divide(key, one_in), one_in))
        tables[table] = ds.dataset(files[table]).to_table(filter=rest == last % one_in)
    return tables


def _tool() -> str:
    """Installed next to the running Python, which need not be on the path."""
    folder = str(Path(sys.executable).parent)
    found = shutil.which("tpchgen-cli", path=folder) or shutil.which("tpchgen-cli")
    if found is None:
        raise FileNotFoundError("tpchgen-cli is not installed\nhint: make setup")
    return found


def _with_plain_strings(source: Path, target: Path) -> None:
    """The same rows with strings as string: some Arrow kernels lack string_view."""
    with pq.ParquetFile(source) as file:
        schema = pa.schema(
            pa.field(
                field.name,
                pa.string() if field.type == pa.string_view() else field.type,
                nullable=False,
            )
            for field in file.schema_arrow
        )
        with pq.ParquetWriter(target, schema) as writer:
            for batch in file.iter_batches(batch_size=1_000_000):
                writer.write_batch(batch.cast(schema))


def _check_pairs(partsupp: Path, scale: float) -> None:
    pairs = pq.read_table(partsupp, columns=["ps_partkey", "ps_suppkey"])
    different = pairs.group_by(pairs.column_names).aggregate([]).num_rows
    if different < pairs.num_rows:
        raise ValueError(
            f"scale {scale:g}: expected {pairs.num_rows} keys in partsupp, found {different}\n"
            "hint: 0.01 and every scale from 0.03 on have a key"
        )


# --- changes --------------------------------------------------------------------------------------


class Changes:
    """Draws changes and keeps account of what the tables hold after each.

    The same tables, seed and calls give the same changes. What a method returns has happened: the
    next one sees it.
    """

    def __init__(self, tables: Mapping[str, pa.Table], seed: int = 1) -> None:
        self._draw = np.random.default_rng(seed)
        self._rows = {table: Rows(tables[table], KEYS[table]) for table in TABLES}
        self._next_key = {
            table: int(self._rows[table].ever(key[0]).max(initial=0)) + 1
            for table, key in KEYS.items()
            if len(key) == 1
        }

    def current(self) -> dict[str, pa.Table]:
        """All tables as they are now. Copies them, so not for large scales."""
        return {table: rows.current() for table, rows in self._rows.items()}

    def count(self, table: str) -> int:
        """How many rows a table holds now."""
        return len(self._rows[table])

    def new_orders(self, fraction: float) -> dict[str, Change]:
        """New orders with their lines: a share of the existing orders, at least one.

        Each is made after another order, at another time, for another customer (who may not have
        ordered before), of other parts and quantities. One in twenty orders much of everything.
        """
        draw, orders, lines = self._draw, self._rows["orders"], self._rows["lineitem"]
        order = unpack(orders.take(np.sort(orders.sample(draw, self._share(fraction)))))
        old_keys = order["o_orderkey"]
        line = unpack(lines.take(lines.where("l_orderkey", old_keys)))
        by_key = np.argsort(old_keys)
        order_of = by_key[np.searchsorted(old_keys, line["l_orderkey"], sorter=by_key)]
        count, line_count = len(old_keys), len(order_of)

        order["o_orderkey"] = self._fresh_keys("orders", count)
        line["l_orderkey"] = order["o_orderkey"][order_of]
        customers = self._keys("customer")
        if len(customers):
            order["o_custkey"] = customers[draw.integers(len(customers), size=count)]
        order["o_orderpriority"] = np.array(PRIORITIES)[draw.integers(5, size=count)]

        date = order["o_orderdate"]
        order["o_orderdate"] = np.clip(date + draw.integers(-365, 366, size=count), FIRST, LAST)
        shift = (order["o_orderdate"] - date)[order_of]
        for column in ("l_shipdate", "l_commitdate", "l_receiptdate"):
            line[column] += shift
        _set_status(order, line, order_of, draw)

        piece_price = line["l_extendedprice"] * 100 // line["l_quantity"]
        pieces = draw.integers(1, 51, size=line_count)
        bulk = (draw.random(count) < 0.05)[order_of]
        pieces[bulk] = draw.integers(44, 51, size=np.count_nonzero(bulk))
        other = draw.permutation(line_count)
        line["l_partkey"], line["l_suppkey"] = line["l_partkey"][other], line["l_suppkey"][other]
        line["l_quantity"] = pieces * 100
        line["l_extendedprice"] = piece_price[other] * pieces
        line["l_discount"] = draw.integers(0, 11, size=line_count)
        line["l_tax"] = draw.integers(0, 9, size=line_count)
        charge = line["l_extendedprice"] * (100 - line["l_discount"]) * (100 + line["l_tax"])
        total = np.bincount(order_of, weights=charge, minlength=count)
        order["o_totalprice"] = np.rint(total / 10_000).astype(np.int64)

        put = {"orders": pack(order, orders.schema), "lineitem": pack(line, lines.schema)}
        orders.add(put["orders"])
        lines.add(put["lineitem"])
        return {table: Change(put=rows) for table, rows in put.items()}

    def delete_orders(self, fraction: float) -> dict[str, Change]:
        """Delete orders with their lines: a share of the existing ones, at least one."""
        orders, lines = self._rows["orders"], self._rows["lineitem"]
        order_positions = np.sort(orders.sample(self._draw, self._share(fraction)))
        line_positions = lines.where("l_orderkey", orders.ever("o_orderkey")[order_positions])
        deleted = {"orders": orders.take(order_positions), "lineitem": lines.take(line_positions)}
        orders.remove(order_positions)
        lines.remove(line_positions)
        return {table: Change(delete=rows) for table, rows in deleted.items()}

    def inserts(self, table: str, n: int) -> dict[str, Change]:
        """`n` new rows; at least one in three with a key that was deleted before, if any was.

        Fewer for `lineitem`, when there are fewer orders: each gets one more line.
        """
        return self._change(table, inserts=n)

    def updates(self, table: str, n: int) -> dict[str, Change]:
        """`n` rows with other values in one or two columns, or a few, or by chance in none."""
        return self._change(table, updates=n)

    def deletes(self, table: str, n: int) -> dict[str, Change]:
        """Delete `n` rows, or all if there are fewer. References to them stay."""
        return self._change(table, deletes=n)

    def mixed(self, n: int) -> dict[str, Change]:
        """`n` inserts, updates and deletes in each table at once, at most of one row in fifty.

        Regions and nations are few, and the queries ask for some by name: of these one goes in one
        batch and comes back in the next.
        """
        parts = []
        for table, rows in self._rows.items():
            count = min(n, max(1, len(rows) // 50))
            few = len(rows) < 50
            missing = len(rows.left()) > 0
            parts.append(
                self._change(
                    table,
                    updates=count,
                    inserts=0 if few and not missing else count,
                    deletes=0 if few and missing else count,
                )
            )
        return together(*parts)

    def _change(
        self, table: str, *, inserts: int = 0, updates: int = 0, deletes: int = 0
    ) -> dict[str, Change]:
        rows = self._rows[table]
        # Other rows for each, so that no key is in the change twice. With little left to draw
        # from, what is updated comes first.
        drawn = rows.sample(self._draw, updates + deletes)
        updated, deleted = np.sort(drawn[:updates]), np.sort(drawn[updates:])
        new, back = self._new_rows(table, inserts)
        changed = self._edited(table, rows.take(updated))
        gone = rows.take(deleted)
        rows.replace(updated, changed)
        rows.add(new, back=back)
        rows.remove(deleted)
        put = pa.concat_tables([changed, new]).combine_chunks()
        if not put.num_rows and not gone.num_rows:
            return {}
        return {table: Change(put if put.num_rows else None, gone if gone.num_rows else None)}

    def _new_rows(self, table: str, n: int) -> tuple[pa.Table, Array]:
        """Rows to add, and the positions at which those among them that come back were before."""
        rows = self._rows[table]
        left = rows.left()
        back: Array = np.sort(self._draw.choice(left, min((n + 2) // 3, len(left)), replace=False))
        keys = self._fresh_key_columns(table, n - len(back))
        count = len(next(iter(keys.values())))
        models = rows.now() if len(rows) else left
        fresh = unpack(rows.take(models[self._draw.integers(len(models), size=count)]))
        fresh.update(keys)
        new = pa.concat_tables([rows.take(back), pack(fresh, rows.schema)])
        return self._edited(table, new), back

    def _fresh_key_columns(self, table: str, n: int) -> Columns:
        """Keys that were never there, and the columns that repeat them in words."""
        if table == "partsupp":
            return self._fresh_pairs(n)
        if table == "lineitem":
            return self._fresh_lines(n)
        keys = self._fresh_keys(table, n)
        columns = {KEYS[table][0]: keys}
        if table == "supplier":
            columns["s_name"] = np.array([f"Supplier#{key:09}" for key in keys], object)
        if table == "customer":
            columns["c_name"] = np.array([f"Customer#{key:09}" for key in keys], object)
        return columns

    def _fresh_keys(self, table: str, n: int) -> Array:
        first = self._next_key[table]
        self._next_key[table] += n
        return np.arange(first, first + n)

    def _fresh_pairs(self, n: int) -> Columns:
        """Parts that a supplier did not have before."""
        parts, suppliers = self._keys("part"), self._keys("supplier")
        rows = self._rows["partsupp"]
        used = rows.ever("ps_partkey") << 32 | rows.ever("ps_suppkey")
        found = np.zeros(0, dtype=np.int64)
        for _ in range(100):
            if len(found) >= n or not len(parts) or not len(suppliers):
                break
            part = parts[self._draw.integers(len(parts), size=2 * n)]
            supplier = suppliers[self._draw.integers(len(suppliers), size=2 * n)]
            pairs = np.unique(np.concatenate([found, part << 32 | supplier]))
            found = self._draw.permutation(pairs[~np.isin(pairs, used)])
        return {"ps_partkey": found[:n] >> 32, "ps_suppkey": found[:n] & 0xFFFFFFFF}

    def _fresh_lines(self, n: int) -> Columns:
        """One more line for each of `n` orders."""
        orders, rows = self._rows["orders"], self._rows["lineitem"]
        keys = np.sort(orders.ever("o_orderkey")[orders.sample(self._draw, n)])
        line_keys = rows.ever("l_orderkey")
        # Lines that are gone count too: they may come back.
        of_these = np.isin(line_keys, keys)
        last = np.zeros(len(keys), dtype=np.int32)
        at = np.searchsorted(keys, line_keys[of_these])
        np.maximum.at(last, at, rows.ever("l_linenumber")[of_these])
        return {"l_orderkey": keys, "l_linenumber": last + 1}

    def _edited(self, table: str, rows: pa.Table) -> pa.Table:
        return edit_rows(rows, EDITS[table], self._draw, self._keys)

    def _keys(self, table: str) -> Array:
        return self._rows[table].values(KEYS[table][0])

    def _share(self, fraction: float) -> int:
        return max(1, round(fraction * len(self._rows["orders"])))


# The standard's own dates: of the first and the last order, and what it takes for today.
FIRST, LAST, TODAY = (np.datetime64(day) for day in ("1992-01-01", "1998-08-02", "1995-06-17"))
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")


def _set_status(order: Columns, line: Columns, order_of: Array, draw: np.random.Generator) -> None:
    """What follows from the dates of an order and its lines, as the standard has it."""
    received = line["l_receiptdate"] <= TODAY
    returned = draw.random(len(order_of)) < 0.5
    line["l_returnflag"] = np.where(received, np.where(returned, "R", "A"), "N")
    opened = line["l_shipdate"] > TODAY
    line["l_linestatus"] = np.where(opened, "O", "F")
    count = len(order["o_orderkey"])
    lines, open_lines = (
        np.bincount(order_of, weights=weights, minlength=count) for weights in (None, opened)
    )
    order["o_orderstatus"] = np.where(open_lines == 0, "F", np.where(open_lines == lines, "O", "P"))


# --- how rows change ------------------------------------------------------------------------------


def _late_or_not(rows: Edited) -> None:
    """The line arrives a day before it was promised, on that day, or a day late."""
    columns, at = rows.columns, rows.at
    days = rows.draw.integers(-1, 2, size=len(at))
    columns["l_commitdate"][at] = columns["l_receiptdate"][at] + days


def _other_quantity(rows: Edited) -> None:
    """Few or many pieces, at the same price each; several numbers are borders of filters."""
    columns, at = rows.columns, rows.at
    piece_price = columns["l_extendedprice"][at] * 100 // columns["l_quantity"][at]
    pieces = rows.pick((1, 2, 5, 10, 11, 20, 21, 23, 24, 25, 30, 31, 40, 49, 50))
    columns["l_quantity"][at] = pieces * 100
    columns["l_extendedprice"][at] = piece_price * pieces


def _other_nation(rows: Edited) -> None:
    """A customer moves, and gets a telephone number there, whose country code is ten more."""
    nations = rows.keys("nation")
    if len(nations):
        moved = rows.pick(nations)
        rows.columns["c_nationkey"][rows.at] = moved
        phones = rows.columns["c_phone"][rows.at]
        rows.columns["c_phone"][rows.at] = np.array(
            [f"{10 + nation}{phone[2:]}" for nation, phone in zip(moved, phones, strict=True)]
        )


EDITS: dict[str, tuple[Edit, ...]] = {
    "region": (change_hands("r_name"), one_of("r_comment", ("near", "far", "farther"))),
    "nation": (
        change_hands("n_name"),
        key_of("n_regionkey", "region"),
        one_of("n_comment", ("small", "large", "larger")),
    ),
    "supplier": (
        key_of("s_nationkey", "nation"),
        # Brazil, Canada, France, Germany and Saudi Arabia, which the queries name.
        one_of("s_nationkey", (2, 3, 6, 7, 20)),
        between("s_acctbal", -99_999, 999_999),
        one_of(
            "s_comment",
            ("Customer reports Complaints", "no Complaints of a Customer", "quick and quiet"),
        ),
        one_of("s_address", ("1 Old Road", "2 New Road")),
        one_of("s_phone", ("13-555-010-0000", "31-555-010-0001")),
    ),
    "customer": (
        _other_nation,
        between("c_acctbal", -99_999, 999_999),
        one_of(
            "c_mktsegment",
            ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"),
        ),
        one_of("c_address", ("1 Old Street", "2 New Street")),
        one_of("c_comment", ("pays at once", "pays late")),
    ),
    "part": (
        one_of("p_brand", ("Brand#12", "Brand#23", "Brand#34", "Brand#45", "Brand#55")),
        both_of(
            ("p_brand", "p_container"),
            (
                ("Brand#12", "SM CASE"),
                ("Brand#23", "MED BOX"),
                ("Brand#34", "LG BOX"),
                ("Brand#45", "JUMBO PKG"),
            ),
        ),
        one_of(
            "p_type",
            (
                "ECONOMY ANODIZED STEEL",
                "MEDIUM POLISHED COPPER",
                "PROMO BURNISHED TIN",
                "STANDARD PLATED BRASS",
                "LARGE BRUSHED NICKEL",
            ),
        ),
        both_of(
            ("p_type", "p_size"),
            (
                ("STANDARD PLATED BRASS", 14),
                ("STANDARD PLATED BRASS", 15),
                ("STANDARD PLATED COPPER", 15),
                ("STANDARD PLATED COPPER", 49),
            ),
        ),
        one_of("p_size", (1, 3, 5, 6, 9, 10, 11, 14, 15, 16, 49, 50)),
        one_of("p_container", ("SM PKG", "MED BAG", "MED BOX", "LG CASE", "WRAP JAR")),
        one_of(
            "p_name",
            (
                "forest green linen olive peru",
                "green forest linen olive peru",
                "forest linen olive peru snow",
                "linen olive peru snow wheat",
            ),
        ),
        one_of("p_mfgr", ("Manufacturer#1", "Manufacturer#5")),
        between("p_retailprice", 90_000, 200_000),
    ),
    "partsupp": (
        one_of("ps_availqty", (1, 10, 50, 500, 5_000, 9_999)),
        between("ps_supplycost", 100, 100_000),
        one_of("ps_supplycost", (100, 200, 100_000)),
        one_of("ps_comment", ("in stock", "on demand")),
    ),
    "orders": (
        near(
            "o_orderdate",
            (
                "1993-07-01",
                "1993-10-01",
                "1994-01-01",
                "1995-01-01",
                "1995-03-15",
                "1996-01-01",
                "1997-01-01",
            ),
        ),
        key_of("o_custkey", "customer"),
        one_of("o_orderpriority", PRIORITIES),
        one_of("o_orderstatus", ("F", "O", "P")),
        between("o_totalprice", 100_000, 50_000_000),
        one_of("o_shippriority", (0, 1)),
        one_of(
            "o_comment",
            ("special pending requests", "requests that are not special", "as always"),
        ),
    ),
    "lineitem": (
        near(
            "l_shipdate",
            (
                "1994-01-01",
                "1995-01-01",
                "1995-03-15",
                "1995-09-01",
                "1995-10-01",
                "1996-01-01",
                "1996-04-01",
                "1997-01-01",
                "1998-09-02",
            ),
        ),
        near("l_receiptdate", ("1994-01-01", "1995-01-01")),
        _late_or_not,
        _other_quantity,
        between("l_discount", 4, 8),
        between("l_tax", 0, 8),
        one_of("l_returnflag", ("A", "N", "R")),
        one_of("l_linestatus", ("F", "O")),
        one_of("l_shipmode", ("AIR", "MAIL", "SHIP", "REG AIR", "TRUCK")),
        one_of("l_shipinstruct", ("DELIVER IN PERSON", "NONE", "TAKE BACK RETURN")),
        change_hands("l_partkey", "l_suppkey"),
    ),
}
