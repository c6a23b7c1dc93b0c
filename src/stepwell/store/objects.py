"""A store in a bucket: S3, Google Cloud Storage, Azure Blob Storage, through obstore.

The storage itself makes an object visible as a whole or not at all, and durable before it answers.
A crash leaves only what the storage had accepted. This module bounds the duration of a call and
interprets answers strictly:

* "Absent" is a 404 that says that the object is missing. A missing bucket, or an endpoint that is
  not an object store, is a failure (F10).
* A conflict is an explicit refusal. A request in a race that S3 left undecided is sent again.
* A body shorter than announced is read again, and never returned.

Every failure of a request becomes a `ConflictError` or an `UnavailableError`. A storage that does
not support the request at all is a `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from stepwell.durations import backoff_s
from stepwell.env import Env
from stepwell.errors import (
    ConfigError,
    ConflictError,
    InvalidError,
    StepwellError,
    UnavailableError,
)
from stepwell.model import Bytes
from stepwell.store.answers import VARIABLES, Answer, Scheme
from stepwell.store.base import Listed, Object, check_path, check_prefix, check_range, join, page

if TYPE_CHECKING:
    from obstore import GetOptions, PutMode

NOTHING = "probe/nothing"
"""A path that is never written, used to see how the storage says "absent"."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Time limits of one call. Longer outages are handled above (`retry.py`), not here."""

    connect_timeout_s: float = 5.0
    request_timeout_s: float = 60.0
    retry_timeout_s: float = 3.0
    retries_max: int = 3
    """How often obstore resends one request of a call; a call may have many, such as the pages of a
    listing. Few and quick, because this wait is neither interruptible nor visible.
    """
    backoff_s_min: float = 0.1
    backoff_s_max: float = 1.0
    attempts_max: int = 4
    """Maximum attempts of a request that did not fail: for a short body or an undecided race."""


class ObjectsStore:
    """A store in a bucket. `options` are obstore's own (`endpoint`, `region`, ...).

    Missing options come from the environment: `AWS_*`, `GOOGLE_*`, `AZURE_*`.
    """

    def __init__(
        self,
        scheme: Scheme,
        bucket: str,
        prefix: str,
        env: Env,
        settings: Settings | None = None,
        **options: str | bool,
    ) -> None:
        self.uri = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        self._scheme = scheme
        self._bucket = bucket
        self._env = env
        self._settings = settings or Settings()
        self.options: Mapping[str, str | bool] = options
        self._client = self._connect(prefix, options)
        # Azure may list a folder before names that sort before its slash; S3 directory buckets list
        # in no order at all. For these, only a complete listing can be sorted and cut.
        self._ordered = scheme != "az" and not bucket.endswith("--x-s3")
        self._proven = False

    def _connect(self, prefix: str, options: Mapping[str, str | bool]) -> Any:
        s = self._settings
        client: Callable[..., Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[self._scheme]
        # Not as obstore's `client_options`: those would silently replace all client settings of the
        # environment (AWS_ALLOW_HTTP, proxies, certificates).
        timeouts = {
            "connect_timeout": f"{round(s.connect_timeout_s * 1000)}ms",
            "timeout": f"{round(s.request_timeout_s * 1000)}ms",
        }
        retries = {
            "max_retries": s.retries_max,
            "retry_timeout": timedelta(seconds=s.retry_timeout_s),
            "backoff": {
                "init_backoff": timedelta(seconds=s.backoff_s_min),
                "max_backoff": timedelta(seconds=s.backoff_s_max),
                "base": 2,
            },
        }
        try:
            return client(
                self._bucket,
                prefix=prefix or None,
                config={**timeouts, **options},
                retry_config=retries,
            )
        except Exception as error:
            raise ConfigError(
                f"cannot open {self.uri}: {Answer(error).cause}",
                hint=f"check the store's options and the environment: {VARIABLES[self._scheme]}",
            ) from error

    def get(self, path: str) -> Object | None:
        found = self._read(path, None)
        return None if found is None else Object(*found)

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        check_range(start, length)
        if length == 0:  # HTTP cannot express an empty range.
            return b"" if self.exists(path) else None
        found = self._read(path, (start, start + length))
        return None if found is None else found[0]

    def exists(self, path: str) -> bool:
        # Not by HEAD: its 404 has no body, and cannot say whether object or bucket is missing.
        return self._read(path, (0, 1)) is not None

    def _read(self, path: str, span: tuple[int, int] | None) -> tuple[bytes, str] | None:
        """Read bytes and etag; never returns fewer bytes than announced."""
        check_path(path)
        options: GetOptions = {} if span is None else {"range": span}
        problem: Exception | None = None
        for attempt in range(self._settings.attempts_max):
            self._pause(attempt)
            try:
                answer = obstore.get(self._client, path, options=options)
            except FileNotFoundError as error:
                self._check_absent(path, error)
                return None
            except Exception as error:
                if span and Answer(error).status == 416:  # The range starts after the end.
                    return b"", ""
                raise self._failed("read", path, error) from error
            meta = answer.meta
            start, end = span or (0, meta["size"])
            expected = min(end, meta["size"]) - start
            # Google compares generations where the others compare etags.
            etag = meta["version"] if self._scheme == "gs" else meta["e_tag"]
            try:
                data = bytes(answer.bytes())
            except BaseError as error:  # The connection broke in the middle of the body.
                problem = error
                continue
            if len(data) == expected and etag:
                return data, etag
            problem = ValueError(
                f"expected {expected} bytes and an etag, found {len(data)}, {etag}"
            )
        raise self._failed("read", path, problem) from problem

    def put_new(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        self._put(path, join(data), "create", f"{self.uri}/{path} exists")

    def replace_if(self, path: str, data: Bytes, etag: str) -> None:
        mode: PutMode = {"version": etag} if self._scheme == "gs" else {"e_tag": etag}
        self._put(path, join(data), mode, f"{self.uri}/{path} is not the object with etag {etag}")

    def _put(self, path: str, body: bytes, mode: PutMode, conflict: str) -> None:
        check_path(path)
        problem: Exception | None = None
        for attempt in range(self._settings.attempts_max):
            self._pause(attempt)
            try:
                # In one request: a multipart upload is not one conditional write.
                obstore.put(self._client, path, body, mode=mode, use_multipart=False)
                return
            except (AlreadyExistsError, PreconditionError, FileNotFoundError) as error:
                answer = Answer(error)
                if answer.undecided:
                    problem = error
                    continue
                # A missing object to replace is a conflict. A missing bucket is not.
                if answer.status == 404 and (mode == "create" or not answer.absent):
                    raise self._failed("write", path, error) from error
                raise ConflictError(conflict) from error
            except Exception as error:
                raise self._failed("write", path, error) from error
        raise self._failed("write", path, problem) from problem

    def list(
        self, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> tuple[Listed, ...]:
        check_prefix(prefix)
        offset = after if self._ordered and _is_path(after) else None
        # A chunk may span several pages, so a large one would fetch more than needed.
        size = 1000 if limit is None else max(1, min(limit, 1000))
        found: list[Listed] = []
        seen = False
        try:
            for chunk in obstore.list(self._client, prefix or None, offset=offset, chunk_size=size):
                seen = True
                for meta in chunk:
                    path = meta["path"]
                    # Skip hidden names and the "folder" objects of other tools.
                    if path > after and path.startswith(prefix) and _is_path(path):
                        found.append(Listed(path, meta["size"], meta["last_modified"]))
                if self._ordered and limit is not None and len(found) >= limit:
                    break
        except Exception as error:
            raise self._failed("list", prefix, error) from error
        if not seen:
            self._check_empty(prefix)
        self._proven = True
        return page(found, after, limit)

    def delete(self, *paths: str) -> None:
        for path in paths:
            check_path(path)
        if not paths:
            return
        try:
            # obstore splits the request: S3 takes 1,000 paths at once and Azure 256. For Google it
            # sends several requests at a time.
            obstore.delete(self._client, paths)
        except FileNotFoundError as error:
            if len(paths) == 1:
                self._check_absent(paths[0], error)
                return
            # One object was absent; the state of the others is unknown.
            for path in paths:
                self.delete(path)
        except Exception as error:
            raise self._failed("delete", paths[0], error) from error

    def _check_absent(self, path: str, error: FileNotFoundError) -> None:
        """Return if the storage said that this object is missing; raise for any other answer."""
        if not Answer(error).absent:
            raise self._failed("find", path, error) from error
        self._proven = True

    def _check_empty(self, prefix: str) -> None:
        """Accept an empty listing only from an endpoint that has proved to be an object store.

        obstore takes any page without an object in it for an empty listing, even a proxy's login
        page, and an empty listing creates a new pipeline (K4). One GET, made once, settles it.
        """
        if self._proven:
            return
        try:
            obstore.get(self._client, NOTHING)
        except FileNotFoundError as error:
            self._check_absent(NOTHING, error)
        except Exception as error:
            raise self._failed("list", prefix, error) from error
        else:
            raise UnavailableError(
                f"cannot list {self.uri}/{prefix}: the endpoint does not answer as an object store"
                f" does: it has an object {NOTHING}",
                hint="check the endpoint, and whether a proxy answers in its place",
                lasting=True,
            )

    def _pause(self, attempt: int) -> None:
        if attempt:
            s = self._settings
            self._env.sleep(backoff_s(attempt, s.backoff_s_min, s.backoff_s_max, self._env))

    def _failed(self, verb: str, path: str, error: Exception | None) -> StepwellError:
        answer = Answer(error)
        message = f"cannot {verb} {self.uri}/{path}: {answer.cause}"
        unable = isinstance(error, NotImplementedError) or answer.code == "NotImplemented"
        if unable and verb == "write":
            return ConfigError(message, hint="Stepwell needs storage with conditional writes")
        hint = answer.hint(self._scheme, self._bucket)
        return UnavailableError(message, hint=hint, lasting=answer.lasting)


def _is_path(text: str) -> bool:
    try:
        check_path(text)
    except InvalidError:
        return False
    return True
