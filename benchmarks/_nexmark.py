"""Nexmark: an auction house as a stream of events, its queries as views, changes from a seed.

Of fifty events in a row one is a new person, three are new auctions, 46 are bids. An event is a
function of the seed and its own number, so any part of the stream can be made without the rest, and
it does not matter in which portions it is made. Half of the bids go to one hot auction, three
quarters come from one hot bidder; which ones are hot changes as the stream goes on. One bid in two
hundred is sent twice. All that refers to a person or an auction refers to one that came before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from _changes import (
    Array,
    Change,
    Edit,
    Edited,
    Rows,
    between,
    change_hands,
    edit_rows,
    key_of,
    one_of,
    together,
)

SQL = Path(__file__).resolve().parent / "nexmark"
"""schema.sql and the views, q0.sql to q22.sql."""

KEYS: dict[str, tuple[str, ...]] = {
    "person": ("id",),
    "auction": ("id",),
    "bid": (),
    "side_input": ("key",),
}
TABLES = tuple(KEYS)

# Half a minute before midnight, so that queries by day have more than one.
START = np.datetime64("2026-03-14T23:59:30", "us")
ROUND, AUCTIONS_A_ROUND = 50, 3
FIRST_ID = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
# How many of the latest are still open, or active.
OPEN_AUCTIONS, ACTIVE_PEOPLE = 100, 1000
CHANNELS, EXTRAS, SIDE_INPUTS = 10_000, 1_000, 1_000


# --- the stream -----------------------------------------------------------------------------------


def events(
    first: int, count: int, *, seed: int = 1, per_second: float = 1000
) -> dict[str, pa.Table]:
    """The events with these numbers, from 0, table by table; the side input is not among them.

    `per_second` is how dense they lie in event time: the windows of most queries are 10 seconds.
    """
    numbers = np.arange(first, first + count, dtype=np.int64)
    place = numbers % ROUND
    stream = _Stream(seed, per_second)
    return {
        "person": stream.people(numbers[place == 0]),
        "auction": stream.auctions(numbers[(place > 0) & (place <= AUCTIONS_A_ROUND)]),
        "bid": stream.bids(numbers[place > AUCTIONS_A_ROUND]),
    }


def side_input() -> pa.Table:
    """The small table that q13 looks up."""
    keys = np.arange(SIDE_INPUTS)
    values = [f"value {key}" for key in keys]
    return pa.table([pa.array(keys), pa.array(values)], schema=SCHEMAS["side_input"])


@dataclass(frozen=True, slots=True)
class _Stream:
    """How to make events. Each property of an event has its own series of random numbers."""

    seed: int
    per_second: float

    def people(self, numbers: Array) -> pa.Table:
        names = self._words(numbers, "name", FIRST_NAMES), self._words(numbers, "last", LAST_NAMES)
        digits = [self._words(numbers, f"card {part}", _four_digits()) for part in range(4)]
        columns = {
            "id": FIRST_ID + numbers // ROUND,
            "name": pc.binary_join_element_wise(*names, " "),
            "email_address": pc.binary_join_element_wise(
                pc.utf8_lower(names[1]), self._words(numbers, "mail", MAIL_HOSTS), "@"
            ),
            "credit_card": pc.binary_join_element_wise(*digits, " "),
            "city": self._words(numbers, "city", CITIES),
            "state": self._words(numbers, "state", STATES),
            "date_time": self._time(numbers),
            "extra": self._words(numbers, "extra", _extras()),
        }
        return pa.table(columns, schema=SCHEMAS["person"])

    def auctions(self, numbers: Array) -> pa.Table:
        index = numbers // ROUND * AUCTIONS_A_ROUND + numbers % ROUND - 1
        person = numbers // ROUND
        # So that auctions stay open for about as long as bids go to them, whatever the density.
        open_for = OPEN_AUCTIONS * ROUND // AUCTIONS_A_ROUND
        initial = self._price(numbers, "initial")
        columns = {
            "id": FIRST_ID + index,
            "item_name": self._words(numbers, "item", ITEMS),
            "description": self._words(numbers, "description", _extras()),
            "initial_bid": initial,
            "reserve": initial + self._price(numbers, "reserve"),
            "date_time": self._time(numbers),
            "expires": self._time(numbers + 1 + self._below(numbers, "open", 2 * open_for)),
            "seller": FIRST_ID
            + np.where(
                self._below(numbers, "hot seller", 4) > 0,
                person // 50 * 50,
                person - self._below(numbers, "seller", np.minimum(person + 1, ACTIVE_PEOPLE)),
            ),
            "category": FIRST_CATEGORY + self._below(numbers, "category", CATEGORIES),
            "extra": self._words(numbers, "extra", _extras()),
        }
        return pa.table(columns, schema=SCHEMAS["auction"])

    def bids(self, numbers: Array) -> pa.Table:
        # The same bid as the one before it, but for the first of a round.
        again = (self._below(numbers, "again", 200) == 0) & (numbers % ROUND > AUCTIONS_A_ROUND + 1)
        numbers = numbers - again
        auction = (numbers // ROUND + 1) * AUCTIONS_A_ROUND - 1
        person = numbers // ROUND
        known = self._below(numbers, "known channel", 2) == 0
        channel = np.where(
            known,
            CHANNELS + self._below(numbers, "channel", len(KNOWN_CHANNELS)),
            self._below(numbers, "channel", CHANNELS),
        )
        columns = {
            "auction": FIRST_ID
            + np.where(
                self._below(numbers, "hot auction", 2) > 0,
                auction // OPEN_AUCTIONS * OPEN_AUCTIONS,
                auction - self._below(numbers, "auction", np.minimum(auction + 1, OPEN_AUCTIONS)),
            ),
            "bidder": FIRST_ID
            + np.where(
                self._below(numbers, "hot bidder", 4) > 0,
                person // 100 * 100,
                person - self._below(numbers, "bidder", np.minimum(person + 1, ACTIVE_PEOPLE)),
            ),
            "price": self._price(numbers, "price"),
            "channel": _channels().take(pa.array(channel)),
            "url": _urls().take(pa.array(channel)),
            "date_time": self._time(numbers),
            "extra": self._words(numbers, "extra", _extras()),
        }
        return pa.table(columns, schema=SCHEMAS["bid"])

    def _time(self, numbers: Array) -> Array:
        return START + (numbers * (1_000_000 / self.per_second)).astype("timedelta64[us]")

    def _price(self, numbers: Array, series: str) -> Array:
        """From 1 to a million, in hundredths; as many below a thousand as above it."""
        share = self._random(numbers, series) / 2**64
        return np.rint(100 * 10 ** (6 * share)).astype(np.int64)

    def _words(self, numbers: Array, series: str, words: Sequence[str] | pa.Array) -> pa.Array:
        return pa.array(words).take(pa.array(self._below(numbers, series, len(words))))

    def _below(self, numbers: Array, series: str, limit: int | Array) -> Array:
        return (self._random(numbers, series) % np.asarray(limit, np.uint64)).astype(np.int64)

    def _random(self, numbers: Array, series: str) -> Array:
        """64 random bits for each number: splitmix64, which is a counter and a mixing function."""
        key = int.from_bytes(f"{self.seed} {series}".encode(), "little") % (2**64 - 59)
        mixed = _mix(numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        return _mix(mixed ^ _mix(np.array([key], dtype=np.uint64)))


def _mix(bits: Array) -> Array:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = bits ^ (bits >> np.uint64(31))
    return mixed


# --- changes --------------------------------------------------------------------------------------


class Changes:
    """Draws changes and keeps account of what the tables hold after each.

    The same seed and calls give the same changes. What a method returns has happened: the next one
    sees it. All tables are empty at first, but for the side input.
    """

    def __init__(self, seed: int = 1, per_second: float = 1000) -> None:
        self._draw = np.random.default_rng(seed)
        self._seed, self._per_second = seed, per_second
        self._next = 0
        self._rows = {
            table: Rows(SCHEMAS[table].empty_table(), KEYS[table])
            for table in TABLES
            if table != "side_input"
        }
        self._rows["side_input"] = Rows(side_input(), KEYS["side_input"])

    def current(self) -> dict[str, pa.Table]:
        """All tables as they are now: copies."""
        return {table: rows.current() for table, rows in self._rows.items()}

    def arrivals(self, count: int) -> dict[str, Change]:
        """The next events of the stream."""
        new = events(self._next, count, seed=self._seed, per_second=self._per_second)
        self._next += count
        for table, rows in new.items():
            self._rows[table].add(rows)
        return {table: Change(put=rows) for table, rows in new.items() if rows.num_rows}

    def updates(self, table: str, n: int) -> dict[str, Change]:
        """`n` rows with other values in one or two columns, or by chance in none."""
        return self._change(table, updates=n)

    def deletes(self, table: str, n: int) -> dict[str, Change]:
        """Delete `n` rows, or all if there are fewer. References to them stay."""
        return self._change(table, deletes=n)

    def mixed(self, n: int) -> dict[str, Change]:
        """`n` updates and deletes in each table, and then as many new events."""
        parts = [self._change(table, updates=n, deletes=n) for table in TABLES]
        return together(*parts, self.arrivals(n))

    def _change(self, table: str, *, updates: int = 0, deletes: int = 0) -> dict[str, Change]:
        rows = self._rows[table]
        drawn = rows.sample(self._draw, updates + deletes)
        updated, deleted = np.sort(drawn[:updates]), np.sort(drawn[updates:])
        before, gone = rows.take(updated), rows.take(deleted)
        put = edit_rows(before, EDITS[table], self._draw, self._keys)
        rows.replace(updated, put)
        rows.remove(deleted)
        # Without a key nothing says which row an update is for: the old one goes, a new one comes.
        delete = gone if KEYS[table] else pa.concat_tables([before, gone]).combine_chunks()
        if not put.num_rows and not delete.num_rows:
            return {}
        return {table: Change(put if put.num_rows else None, delete if delete.num_rows else None)}

    def _keys(self, table: str) -> Array:
        return self._rows[table].values(KEYS[table][0])


def _other_time(*columns: str) -> Edit:
    """Seconds or hours earlier or later: another window, session, time of day, or day."""

    def edit(rows: Edited) -> None:
        seconds = rows.pick((-43_200, -3_600, -20, -9, -1, 1, 9, 20, 3_600, 43_200))
        for column in columns:
            rows.columns[column][rows.at] += seconds.astype("timedelta64[s]")

    return edit


def _other_end(rows: Edited) -> None:
    """The auction closes soon after it opened, or much later."""
    columns, at = rows.columns, rows.at
    open_for = rows.pick((1, 5, 100, 10_000)).astype("timedelta64[s]")
    columns["expires"][at] = columns["date_time"][at] + open_for


def _other_channel(rows: Edited) -> None:
    """A channel with its address; the last one has no id, so that q21 leaves the bid out."""
    picked = rows.draw.integers(len(EDITED_CHANNELS), size=len(rows.at))
    channel, url = (np.array(texts) for texts in zip(*EDITED_CHANNELS, strict=True))
    rows.columns["channel"][rows.at] = channel[picked]
    rows.columns["url"][rows.at] = url[picked]


EDITED_CHANNELS = (
    ("Apple", "https://auctions.example/one/two/three/item.htm?query=1"),
    ("channel-7", "https://auctions.example/four/five/six/item.htm?query=1&channel_id=7"),
    ("channel-none", "https://auctions.example/seven"),
)

EDITS: dict[str, tuple[Edit, ...]] = {
    "person": (
        one_of("state", ("AZ", "CA", "ID", "OR", "WA", "WY")),
        one_of("name", ("Kim Ono", "Lou Abel")),
        one_of("city", ("Phoenix", "Portland")),
        _other_time("date_time"),
    ),
    "auction": (
        between("category", FIRST_CATEGORY, FIRST_CATEGORY + CATEGORIES - 1),
        key_of("seller", "person"),
        _other_time("date_time", "expires"),
        _other_end,
        one_of("item_name", ("a map", "a lamp")),
        between("reserve", 100, 100_000_000),
    ),
    "bid": (
        # The highest price many times, so that several bids share the first place.
        one_of("price", (100, 9_999, 10_000, 999_999, 1_000_000, 2_000_000, 100_000_000)),
        between("price", 100, 100_000_000),
        _other_time("date_time"),
        key_of("auction", "auction"),
        key_of("bidder", "person"),
        _other_channel,
        one_of("extra", ("", "ccc", "abc")),
    ),
    "side_input": (
        one_of("value", ("this", "that")),
        change_hands("value"),
    ),
}


# --- schemas and words ----------------------------------------------------------------------------


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(pa.field(name, kind, nullable=False) for name, kind in columns.items())


_LONG, _TEXT, _TIME = pa.int64(), pa.string(), pa.timestamp("us", tz="UTC")

SCHEMAS: Mapping[str, pa.Schema] = {
    "person": _schema(
        id=_LONG,
        name=_TEXT,
        email_address=_TEXT,
        credit_card=_TEXT,
        city=_TEXT,
        state=_TEXT,
        date_time=_TIME,
        extra=_TEXT,
    ),
    "auction": _schema(
        id=_LONG,
        item_name=_TEXT,
        description=_TEXT,
        initial_bid=_LONG,
        reserve=_LONG,
        date_time=_TIME,
        expires=_TIME,
        seller=_LONG,
        category=_LONG,
        extra=_TEXT,
    ),
    "bid": _schema(
        auction=_LONG,
        bidder=_LONG,
        price=_LONG,
        channel=_TEXT,
        url=_TEXT,
        date_time=_TIME,
        extra=_TEXT,
    ),
    "side_input": _schema(key=_LONG, value=_TEXT),
}

FIRST_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "June", "Kai")
LAST_NAMES = ("Abel", "Brook", "Chen", "Dietz", "Engel", "Frost", "Grant", "Hale", "Ito", "Jones")
MAIL_HOSTS = ("mail.example", "post.example", "letters.example")
CITIES = ("Boise", "Cheyenne", "Kent", "Los Angeles", "Phoenix", "Portland", "Redmond", "Seattle")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
ITEMS = ("bicycle", "book", "camera", "chair", "clock", "coat", "guitar", "kettle", "radio", "rug")
KNOWN_CHANNELS = ("Apple", "Google", "Facebook", "Baidu")


@cache
def _four_digits() -> pa.Array:
    return pa.array([f"{number:04}" for number in range(10_000)])


@cache
def _extras() -> pa.Array:
    """Texts of 20 to 100 letters: what an event carries along."""
    draw = np.random.default_rng(1)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    lengths = draw.integers(20, 101, size=EXTRAS)
    return pa.array(["".join(letters[draw.integers(27, size=length)]) for length in lengths])


@cache
def _channels() -> pa.Array:
    return pa.array([*(f"channel-{number}" for number in range(CHANNELS)), *KNOWN_CHANNELS])


@cache
def _urls() -> pa.Array:
    """The address of each channel. That of a known one has no id; one in ten others has none."""
    draw = np.random.default_rng(2)
    folders = draw.integers(10_000, size=(CHANNELS + len(KNOWN_CHANNELS), 3))
    urls = []
    for number, (one, two, three) in enumerate(folders.tolist()):
        url = f"https://auctions.example/f{one}/f{two}/f{three}/item.htm?query=1"
        if number < CHANNELS and number % 10:
            url += f"&channel_id={number}"
        urls.append(url)
    return pa.array(urls)
