"""The error that ended the last run, for `stepwell status` of a pipeline that has stopped.

    <store>/last_error.json     {time, type, message, hint}

A run that ends with an error writes it, and a run that succeeds deletes it: at its first flush, or
at its end. It is a note for people. Nothing else reads it, so a crash that loses it, a store that
does not answer, or damage to it never stops a pipeline. An error that says that another process
has the pipeline is not noted: that process knows the state of the pipeline.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from stepwell.env import Env
from stepwell.errors import ConflictError, CorruptError, FencedError, StepwellError
from stepwell.journal import paths
from stepwell.manifest.manifest import Manifests
from stepwell.store.base import Store
from stepwell.store.patient import impatient
from stepwell.store.records import Record, nullable, text, time
from stepwell.store.sealed import read_sealed, seal

FORMAT = "stepwell-last-error/1"
_REPORT = "this is a bug in Stepwell: report it"


@dataclass(frozen=True, slots=True)
class LastError:
    time: datetime
    type: str
    """The name of its class."""
    message: str
    hint: str | None


def note_error(store: Store, env: Env, error: Exception) -> None:
    """Note the error that ends a run, if the store has a pipeline and takes the note now."""
    if isinstance(error, (ConflictError, FencedError)):
        return
    # Whatever fails here must not hide the error that is to be noted.
    with suppress(Exception):
        store = impatient(store)
        if Manifests(store, env).latest_id() is not None:
            _write(store, seal(FORMAT, _RECORD.write(_note(error, env.now()))))


def forget_error(store: Store) -> None:
    """Delete the note after a success. If the store does not answer, the next success does."""
    with suppress(StepwellError):
        impatient(store).delete(paths.LAST_ERROR)


def last_error(store: Store) -> LastError | None:
    """Return the error that ended the last run; None if it succeeded, or the note is corrupt."""
    try:
        return check_last_error(store)
    except CorruptError:
        return None


def check_last_error(store: Store) -> LastError | None:
    """The same, but raise `CorruptError` if the note is corrupt. Only reads."""
    found = read_sealed(store, paths.LAST_ERROR, FORMAT)
    return None if found is None else _RECORD.read(found[0])


def _note(error: Exception, now: datetime) -> LastError:
    kind = type(error).__name__
    if isinstance(error, StepwellError):
        return LastError(now, kind, error.message, error.hint)
    return LastError(now, kind, f"unexpected {kind}: {error}", _REPORT)


def _write(store: Store, data: bytes) -> None:
    """Replace the note. Two failing runs may race; either note is true."""
    found = store.get(paths.LAST_ERROR)
    if found is None:
        store.put_new(paths.LAST_ERROR, data)
    else:
        store.replace_if(paths.LAST_ERROR, data, found.etag)


_RECORD = Record(
    LastError,
    time=time,
    type=text,
    message=text,
    hint=nullable(text),
)
