"""The contract of every store: one suite, run against each of them (`STORES` in conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC

import pytest

from stepwell.errors import ConflictError, InvalidError
from stepwell.store.base import Store
from tests.store.conftest import Open


def names(
    store: Store, prefix: str = "", *, after: str = "", limit: int | None = None
) -> list[str]:
    return [item.path for item in store.list(prefix, after=after, limit=limit)]


def content(store: Store, path: str) -> bytes | None:
    found = store.get(path)
    return None if found is None else found.data


def etag(store: Store, path: str) -> str:
    found = store.get(path)
    assert found is not None
    return found.etag


# Absence


def test_a_new_store_is_empty_and_nothing_in_it_exists(store: Store) -> None:
    """F10: absence has an answer of its own, and it is not an error."""
    assert store.get("a/b") is None
    assert store.get_range("a/b", 0, 10) is None
    assert store.get_range("a/b", 0, 0) is None
    assert not store.exists("a/b")
    assert store.list() == ()
    assert store.list("a/") == ()
    assert store.list("a/", after="a/b", limit=3) == ()


def test_an_object_says_nothing_about_its_neighbours(store: Store) -> None:
    """A folder is not an object, nor is an object a folder, nor a part of a name the name."""
    store.put_new("a/b/c", b"1")
    for path in ("a", "a/b", "a/b/cc", "a/b/d", "b", "a/b/c/d"):
        assert store.get(path) is None
        assert store.get_range(path, 0, 1) is None
        assert not store.exists(path)
        store.delete(path)
    for prefix in ("b/", "a/b/c/", "a/bb/"):
        assert store.list(prefix) == ()
    assert names(store) == ["a/b/c"]


def test_deleting_an_absent_object_is_not_an_error(store: Store) -> None:
    """Collections run twice, and two at once."""
    store.delete("a/b")
    store.put_new("a/b", b"1")
    store.delete("a/b")
    store.delete("a/b")
    assert store.get("a/b") is None
    assert not store.exists("a/b")
    assert store.list() == ()


def test_many_objects_are_deleted_at_once(store: Store) -> None:
    """K3: more than a bucket takes in one request, some of which are not there, one twice."""
    there = [f"many/{number:04d}" for number in range(0, 1010, 101)]
    kept = ["many/0001", "other/a"]
    for path in (*there, *kept):
        store.put_new(path, b"x")
    store.delete(*(f"many/{number:04d}" for number in range(1010) if number != 1), there[0])
    assert names(store) == kept
    store.delete()
    assert names(store) == kept


def test_of_many_objects_none_is_deleted_if_one_has_no_proper_name(store: Store) -> None:
    store.put_new("a/b", b"x")
    with pytest.raises(InvalidError):
        store.delete("a/b", "../b")
    assert names(store) == ["a/b"]


def test_a_deleted_path_can_be_created_again(store: Store) -> None:
    """Nothing of an object stays behind to conflict with the next."""
    store.put_new("a/b", b"first")
    store.delete("a/b")
    store.put_new("a/b", b"second")
    assert content(store, "a/b") == b"second"


# Writing


def test_what_one_handle_wrote_another_one_reads(opened: Open) -> None:
    """A store is a place, not a cache."""
    opened().put_new("a/b", b"bytes")
    other = opened()
    assert content(other, "a/b") == b"bytes"
    assert other.exists("a/b")
    assert names(other) == ["a/b"]


def test_a_conflict_changes_nothing(opened: Open) -> None:
    """F1: what was first stays, byte for byte and under the same etag."""
    store, other = opened(), opened()
    store.put_new("a/b", b"first")
    before = store.get("a/b")
    for data in (b"second", b"first", b"", [b"sec", b"ond"]):
        with pytest.raises(ConflictError, match="a/b"):
            other.put_new("a/b", data)
    assert store.get("a/b") == before
    assert names(store) == ["a/b"]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [b"", b"", b""],
        [b"a", b"", b"b"],
        [bytearray(b"ab"), memoryview(b"cd"), b"ef"],
        [b"%d," % number for number in range(2500)],
        [b"" if number % 2 else b"x" * number for number in range(2100)],
        [b"x" * 1_000_000, b"y", b"", b"z" * 3_000_000],
    ],
    ids=["no part", "empty", "empties", "hole", "kinds", "2500 parts", "2100 parts", "large parts"],
)
def test_parts_are_stored_one_after_another(store: Store, parts: list[bytes]) -> None:
    """A gather-write takes 1024 parts at once, and may stop in the middle of one."""
    expected = b"".join(parts)
    store.put_new("a/parts", parts)
    assert content(store, "a/parts") == expected
    assert [item.size for item in store.list()] == [len(expected)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_can_be_stored_and_swapped(
    store: Store, kind: Callable[[bytes], bytes]
) -> None:
    """The caller's buffer is read, not kept: changing it later changes nothing stored."""
    data = kind(b"some bytes")
    store.put_new("a/b", data)
    if isinstance(data, bytearray):
        data[:4] = b"same"
    found = store.get("a/b")
    assert found is not None
    assert found.data == b"some bytes"
    assert type(found.data) is bytes
    store.replace_if("a/b", kind(b"others"), found.etag)
    assert content(store, "a/b") == b"others"


def test_ten_megabytes_come_back_as_they_went(store: Store) -> None:
    """Larger than one multipart chunk, one socket buffer, one write."""
    data = bytes(range(256)) * 40_000 + b"end"
    store.put_new("runs/large", data)
    assert content(store, "runs/large") == data
    assert store.get_range("runs/large", len(data) - 5, 100) == data[-5:]
    with pytest.raises(ConflictError):
        store.put_new("runs/large", data)
    store.replace_if("runs/large", data[::-1], etag(store, "runs/large"))
    assert content(store, "runs/large") == data[::-1]


def test_an_empty_object_is_an_object(store: Store) -> None:
    """F10: no bytes is not the same as no object."""
    store.put_new("a/empty", b"")
    assert content(store, "a/empty") == b""
    assert store.exists("a/empty")
    assert [(item.path, item.size) for item in store.list()] == [("a/empty", 0)]
    for start, length in ((0, 0), (0, 1), (5, 0), (5, 7)):
        assert store.get_range("a/empty", start, length) == b""
    with pytest.raises(ConflictError):
        store.put_new("a/empty", b"")
    store.replace_if("a/empty", b"full", etag(store, "a/empty"))
    store.replace_if("a/empty", b"", etag(store, "a/empty"))
    assert content(store, "a/empty") == b""


# Reading


def test_a_range_is_shorter_only_where_the_object_ends(store: Store) -> None:
    """F10: what lies behind the end is not bytes of an object that is there, not absence."""
    data = b"0123456789"
    store.put_new("a/b", data)
    for start in (0, 1, 5, 9, 10, 11, 1000):
        for length in (0, 1, 5, 9, 10, 11, 1000):
            assert store.get_range("a/b", start, length) == data[start : start + length]


# Replacing


def test_a_swap_takes_the_etag_of_what_it_replaces(opened: Open) -> None:
    """Each version has an etag of its own, the same for every handle."""
    store, other = opened(), opened()
    store.put_new("a/b", b"1")
    seen = []
    for text in (b"2", b"3", b"", b"5"):
        seen.append(etag(store, "a/b"))
        assert etag(other, "a/b") == seen[-1]
        other.replace_if("a/b", text, seen[-1])
        assert content(store, "a/b") == text
    assert len(set(seen)) == len(seen)
    assert names(store) == ["a/b"]


def test_a_stale_swap_is_a_conflict_and_changes_nothing(opened: Open) -> None:
    """F1: the loser of a compare-and-swap must find out, and the winner must not."""
    store, other = opened(), opened()
    store.put_new("a/b", b"1")
    stale = etag(store, "a/b")
    store.replace_if("a/b", b"2", stale)
    before = store.get("a/b")
    for handle in (store, other):
        with pytest.raises(ConflictError, match="a/b"):
            handle.replace_if("a/b", b"3", stale)
    assert store.get("a/b") == before


def test_nothing_to_swap_is_a_conflict_and_creates_nothing(store: Store) -> None:
    """A swap that came after a deletion must not bring the object back."""
    store.put_new("a/b", b"1")
    old = etag(store, "a/b")
    store.delete("a/b")
    for path in ("a/b", "a/c", "new/d"):
        with pytest.raises(ConflictError, match=path):
            store.replace_if(path, b"2", old)
        assert not store.exists(path)
    assert store.list() == ()


# Listing


def test_a_listing_is_sorted_and_cut_as_asked(store: Store) -> None:
    """Names are zero-padded so that listing order is log order; that needs a listing in order."""
    paths = ["b/2", "a/9", "a/10", "a-b/1", "a/b/c", "a", "c/ü", "c/~", "c/z", "a.b/1", "c/日本"]
    paths.remove("a")  # A directory cannot hold a file and a folder of one name.
    for path in paths:
        store.put_new(path, path.encode())
    assert names(store) == sorted(paths)
    assert names(store, "a/") == ["a/10", "a/9", "a/b/c"]
    assert names(store, "a/b/") == ["a/b/c"]
    assert names(store, "c/") == sorted(path for path in paths if path.startswith("c/"))
    for after in ("", "a", "a/", "a/10", "a/100", "a/9", "b", "b/2", "c/z", "c/~", "c/ü", "d"):
        for limit in (None, 0, 1, 2, 3, 100):
            expected = [path for path in sorted(paths) if path > after]
            assert names(store, after=after, limit=limit) == expected[:limit]
    assert names(store, "a/", after="a/10", limit=1) == ["a/9"]
    assert names(store, "a/", after="b") == []
    assert names(store, "b/", after="a/zzz") == ["b/2"]


def test_a_listing_knows_size_and_time(store: Store) -> None:
    """Collectors decide by both."""
    store.put_new("a/b", b"12345")
    (item,) = store.list("a/")
    assert item.size == 5
    assert item.modified.tzinfo is not None
    assert item.modified.utcoffset() == UTC.utcoffset(None)
    store.replace_if("a/b", b"123", etag(store, "a/b"))
    assert [item.size for item in store.list()] == [3]


def test_a_listing_continues_behind_the_first_thousand(store: Store) -> None:
    """F10: S3 answers a thousand at a time; a first page taken for all would hide the rest."""
    paths = [f"journal/{number:020}.arrow" for number in range(1, 1004)]
    with ThreadPoolExecutor(1 if "simulated" in store.uri else 8) as pool:
        list(pool.map(lambda path: store.put_new(path, b""), reversed(paths)))
    store.put_new("manifest/1", b"")
    assert names(store, "journal/") == paths
    assert names(store) == [*paths, "manifest/1"]
    assert names(store, "journal/", limit=1002) == paths[:1002]
    assert names(store, "journal/", after=paths[1]) == paths[2:]
    assert names(store, "journal/", after=paths[1000]) == paths[1001:]
    assert names(store, "journal/", after=paths[500], limit=2) == paths[501:503]
    assert names(store, after=paths[-1]) == ["manifest/1"]


# Paths

BAD_PATHS = [
    *("", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "a/./b"),
    *(".a", "a/.b", "a\\b", "a\nb", "a\tb", "a\x00b", "a\x7fb", "\x1f", "a\ud800b"),
]


@pytest.mark.parametrize("path", BAD_PATHS, ids=repr)
def test_a_path_that_could_leave_the_store_is_refused(store: Store, path: str) -> None:
    """A name from a user must not reach outside, nor to the names a store keeps for itself."""
    calls: list[Callable[[], object]] = [
        lambda: store.get(path),
        lambda: store.get_range(path, 0, 1),
        lambda: store.put_new(path, b"x"),
        lambda: store.replace_if(path, b"x", "etag"),
        lambda: store.delete(path),
        lambda: store.exists(path),
    ]
    for call in calls:
        with pytest.raises(InvalidError):
            call()
    assert store.list() == ()


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
def test_a_range_counts_from_the_beginning(store: Store, start: int, length: int) -> None:
    """Counting from the end means something else on each storage, so it is refused on all."""
    store.put_new("a", b"12345")
    with pytest.raises(InvalidError):
        store.get_range("a", start, length)


@pytest.mark.parametrize("prefix", ["a", "/", "a//", "../", ".a/", "a/../", "a\\/"])
def test_a_listing_prefix_is_whole_segments(store: Store, prefix: str) -> None:
    """On S3 a prefix `run` would match `runs/` as well; no store may differ from another there."""
    with pytest.raises(InvalidError):
        store.list(prefix)


@pytest.mark.parametrize(
    "name", ["a b", "a%20b", "a+b", "a#b?c=d&e", "ü日本", "a'b\"c", "a*[b]{c}|^~$@!"]
)
def test_a_name_comes_back_as_it_went(store: Store, name: str) -> None:
    """An address is not a name: whatever escaping a storage needs stays between it and us."""
    store.put_new(f"odd/{name}", name.encode())
    assert content(store, f"odd/{name}") == name.encode()
    assert names(store, "odd/") == [f"odd/{name}"]
    store.delete(f"odd/{name}")
    assert store.list() == ()


def test_the_uri_names_the_place(store: Store) -> None:
    """Messages are built from it."""
    scheme, _, rest = store.uri.partition("://")
    assert scheme in ("memory", "file", "s3")
    assert rest
    assert not rest.endswith("/")
