"""What a Jupyter server shows and culls by: the session's state, told on change and every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .journal_desk import Item
from .link_calls import Call

if TYPE_CHECKING:
    from .link_endpoint import LinkConnection
    from .runner import Runner

TELL_SECONDS = 5.0
PACE_SECONDS = (
    0.05  # between two changes that are told of: a kernel turns busy and idle a thousand times a second
)


@dataclass(slots=True)
class _Watcher:
    call: Call
    told: Item | None = None


class LinkActivity:
    """Those who asked for `activity`."""

    def __init__(self, runner: Runner, describe: Callable[[], Item]) -> None:
        self._describe = describe
        self._watchers: list[_Watcher] = []
        self._tell_at = 0.0
        self._changes_at = 0.0
        self._may_have_changed = False
        self._tells_all = False
        self._time_has_passed = False  # something happened that only moves the time of the last activity
        runner.loop.add_timer(self._next_timer)

    def watch(self, call: Call) -> None:
        watcher = _Watcher(call)
        self._watchers.append(watcher)
        call.connection.on_close.append(lambda: self._forget(watcher))
        self._tell(watcher, self._describe())

    def _next_timer(self) -> float | None:
        if not self._watchers:
            return None
        if self._may_have_changed:
            return self._changes_at
        return self._tell_at if self._time_has_passed else None

    def _forget(self, watcher: _Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def _tell(self, watcher: _Watcher, item: Item) -> None:
        watcher.told = item
        watcher.call.item(item)

    def after_commit(self) -> None:
        """Tell of a change at once, and of those that follow it together; of the passing of time now and then."""
        if not self._watchers:
            return
        now = time.monotonic()
        if now < self._changes_at:
            self._may_have_changed = True
            return
        self._may_have_changed = False
        item = self._describe()
        is_due = now >= self._tell_at
        if is_due:
            self._tell_at = now + TELL_SECONDS
        self._time_has_passed = False
        for watcher in list(self._watchers):
            if watcher.told == item and not self._tells_all:
                continue
            if is_due or watcher.told is None or _lasting(watcher.told) != _lasting(item):
                self._tell(watcher, item)
                self._changes_at = now + PACE_SECONDS
            else:
                self._time_has_passed = True
        self._tells_all = False

    def tell_soon(self) -> None:
        """Tell everybody at the end of this turn, also of what has not changed."""
        self._tell_at = self._changes_at = 0.0
        self._tells_all = True

    def cancel(self, connection: LinkConnection, number: int) -> None:
        for watcher in list(self._watchers):
            if watcher.call.connection is connection and watcher.call.number == number:
                self._forget(watcher)
                watcher.call.result({"cancelled": True})


def _lasting(item: Item) -> Item:
    """What does not change with every message."""
    return {key: value for key, value in item.items() if key != "last_activity"}
