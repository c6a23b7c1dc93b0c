"""Outages of a pipeline's stores: reported as events and in the status, cut short when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stepwell.engine.events import Events, StoreAvailable, StoreUnavailable
from stepwell.model import format_time
from stepwell.store.base import Store
from stepwell.store.patient import PatientStore
from stepwell.store.retry import Outage, Patience, Recovery


@dataclass(frozen=True, slots=True)
class OutageStatus:
    store: str
    since: str
    until: str
    """When the waiting calls give up."""
    error: str


class Outages:
    """The outages of some stores. A store that does not retry has none."""

    def __init__(self, stores: Iterable[Store], events: Events) -> None:
        self._events = events
        self._all: list[Patience] = []
        for store in stores:
            if isinstance(store, PatientStore) and store.patience not in self._all:
                self._all.append(store.patience)
                store.patience.listener = self._tell
                store.patience.relax()  # An earlier session may have hurried it.

    def status(self) -> tuple[OutageStatus, ...]:
        found = [patience.outage for patience in self._all]
        return tuple(
            OutageStatus(item.store, format_time(item.since), format_time(item.until), item.error)
            for item in found
            if item is not None
        )

    def hurry(self) -> None:
        """Make waiting calls give up soon: the process is about to end."""
        for patience in self._all:
            patience.hurry()

    def relax(self) -> None:
        for patience in self._all:
            patience.relax()

    def _tell(self, what: Outage | Recovery) -> None:
        if isinstance(what, Outage):
            event = StoreUnavailable(what.store, what.since, what.until, what.error)
            self._events.emit(event)
        else:
            self._events.emit(StoreAvailable(what.store, what.after_s))
