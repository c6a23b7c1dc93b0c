"""Any sequence of calls on a store gives what a dictionary would give."""

from __future__ import annotations

import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stepwell.env import SystemEnv
from stepwell.errors import ConflictError
from stepwell.store.base import Store
from stepwell.store.disk import RealDisk
from stepwell.store.local import LocalStore
from stepwell.store.memory import MemoryStore
from stepwell.testing import ManualEnv, SimulatedDisk

ENV = SystemEnv()
# Few, so that calls meet; none is a folder of another, which a directory cannot hold.
PATHS = st.sampled_from(["a/1", "a/2", "a/b/1", "a-b/1", "b", "c/d/e/f"])
PREFIXES = st.sampled_from(["", "a/", "a/b/", "a-b/", "c/", "c/d/", "d/"])
DATA = st.binary(max_size=6)


class StoreModel(RuleBasedStateMachine):
    """Conflicts and all: what the dictionary says must happen, happens."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.model: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.store: Store = MemoryStore(ENV)

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize(kind=st.sampled_from(["memory", "local", "named", "simulated"]))
    def open(self, kind: str) -> None:
        if kind == "local":
            self.store = LocalStore(self.folder.name, ENV)
        elif kind == "named":
            self.store = LocalStore(self.folder.name, ENV, RealDisk(ENV, unnamed=False))
        elif kind == "simulated":
            env = ManualEnv()
            self.store = LocalStore("/pipelines", env, SimulatedDisk(env))

    @rule(path=PATHS, parts=st.lists(DATA, max_size=3))
    def put_new(self, path: str, parts: list[bytes]) -> None:
        try:
            self.store.put_new(path, parts)
        except ConflictError:
            assert path in self.model
        else:
            assert path not in self.model
            self.model[path] = b"".join(parts)

    @rule(path=PATHS)
    def look(self, path: str) -> None:
        found = self.store.get(path)
        assert (found and found.data) == self.model.get(path)
        if found:
            self.etags[path] = found.etag

    @rule(path=PATHS, data=DATA)
    def swap(self, path: str, data: bytes) -> None:
        """With the current etag; after it, unless the bytes are the same, that one is stale."""
        found = self.store.get(path)
        if found is None:
            return
        self.store.replace_if(path, data, found.etag)
        assert self.model[path] == found.data
        self.model[path] = data
        if data != found.data:
            try:
                self.store.replace_if(path, b"stale", found.etag)
            except ConflictError:
                pass
            else:
                raise AssertionError("a stale etag was accepted")

    @rule(path=PATHS, data=DATA)
    def swap_nothing(self, path: str, data: bytes) -> None:
        if path in self.model:
            return
        try:
            self.store.replace_if(path, data, self.etags.get(path, "none"))
        except ConflictError:
            return
        raise AssertionError("something absent was replaced")

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        self.store.delete(path)
        self.model.pop(path, None)

    @rule(path=PATHS, start=st.integers(0, 8), length=st.integers(0, 8))
    def get_range(self, path: str, start: int, length: int) -> None:
        data = self.model.get(path)
        expected = None if data is None else data[start : start + length]
        assert self.store.get_range(path, start, length) == expected
        assert self.store.exists(path) == (path in self.model)

    @rule(prefix=PREFIXES, after=PATHS | PREFIXES, limit=st.none() | st.integers(0, 4))
    def list(self, prefix: str, after: str, limit: int | None) -> None:
        wanted = sorted(path for path in self.model if path.startswith(prefix) and path > after)
        found = self.store.list(prefix, after=after, limit=limit)
        assert [item.path for item in found] == wanted[:limit]

    @invariant()
    def everything_is_listed_with_its_size(self) -> None:
        found = [(item.path, item.size) for item in self.store.list()]
        assert found == sorted((path, len(data)) for path, data in self.model.items())


StoreModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestStoreModel = StoreModel.TestCase
