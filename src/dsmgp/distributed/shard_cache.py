"""The shards of one process: what each is built from, and those that are in memory.

Any number of threads may call at the same time. What is known of a shard is an immutable :class:`ShardState`, which is
replaced as a whole. A thread leases the shard that it computes on: a shard in use is never dropped, each is built by one
thread, and a thread whose shard does not fit waits until others have finished with theirs. No thread leases two shards at
once, so none waits for ever.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from dsmgp.distributed.shard import Shard, ShardPlan

__all__ = ["ShardCache", "ShardCaches", "ShardLimit", "ShardState", "ShardStates"]


@dataclass(frozen=True)
class ShardState:
    """All that is needed to build a shard as it is now, wherever it is called.

    Attributes
    ----------
    plan : ShardPlan, or a reference to one
    n_bytes : float
        Estimated size of the shard in memory.
    conditioned : dict
        For each posterior, by key, the arguments of :meth:`Shard.condition` (without ``loo_rows``), or a reference to
        them. Never changed in place.
    """

    plan: Any
    n_bytes: float = 0.0
    conditioned: dict[int, Any] = field(default_factory=dict)


class ShardStates:
    """States of the shards of a worker pool, by number.

    Parameters
    ----------
    put : callable
        Returns what is kept of a value: itself, or a reference to it.
    """

    def __init__(self, put: Callable[[Any], Any] = lambda value: value) -> None:
        self._put, self._numbers = put, itertools.count()
        self._states: dict[int, ShardState] = {}
        # Reentrant: posteriors are dropped by finalizers, which run wherever garbage is collected.
        self._lock = threading.RLock()

    def add(self, plans: Sequence[ShardPlan]) -> list[int]:
        """Add shards, and return their numbers."""
        new = {next(self._numbers): ShardState(self._put(plan), plan.n_bytes) for plan in plans}
        with self._lock:
            self._states.update(new)
        return list(new)

    def condition(self, number: int, arguments: tuple[Any, ...]) -> None:
        """Record that a shard is conditioned; the first argument is the key of the posterior."""
        kept = self._put(arguments)
        with self._lock:
            state = self._states[number]
            conditioned = {**state.conditioned, arguments[0]: kept}
            self._states[number] = replace(state, conditioned=conditioned)

    def drop(self, number: int, key: int) -> None:
        """Forget the posterior under a key."""
        with self._lock:
            if number in self._states:
                state = self._states[number]
                others = {k: kept for k, kept in state.conditioned.items() if k != key}
                self._states[number] = replace(state, conditioned=others)

    def remove(self, number: int) -> None:
        """Forget a shard."""
        with self._lock:
            self._states.pop(number, None)

    def __getitem__(self, number: int) -> ShardState:
        return self._states[number]


@dataclass(eq=False)
class _Entry:
    """A shard in memory, or a place reserved for it."""

    n_bytes: float
    n_users: int = 0
    shard: Shard | None = None
    # Held while the shard is built or conditioned.
    lock: threading.Lock = field(default_factory=threading.Lock)


class ShardCache:
    """Shards in memory, as many as fit; others are built when they are called.

    Parameters
    ----------
    memory : float
        Bytes that shards may use. One is always held, however large.
    fetch : callable
        Returns the value of a reference in a :class:`ShardState`.

    Attributes
    ----------
    most_bytes : float
        Most bytes that shards have taken together, by the estimates of their plans.
    """

    def __init__(
        self, memory: float = float("inf"), fetch: Callable[[Any], Any] = lambda value: value
    ) -> None:
        self.memory, self.fetch, self.most_bytes = memory, fetch, 0.0
        self._entries: OrderedDict[int, _Entry] = OrderedDict()  # least recently used first
        self._waiting: deque[object] = deque()  # threads that need room, in order of arrival
        self._changed = threading.Condition()  # its lock is reentrant, as finalizers need it

    def call(self, number: int, state: ShardState, method: str, *arguments: Any) -> Any:
        """Call a method of a shard."""
        with self.lease(number, state) as shard:
            return getattr(shard, method)(*arguments)

    @contextmanager
    def lease(self, number: int, state: ShardState) -> Iterator[Shard]:
        """Hold a shard in memory, conditioned as its state says; it is built if need be."""
        entry = self._reserve(number, state.n_bytes)
        try:
            with entry.lock:
                if entry.shard is None:
                    entry.shard = Shard(self.fetch(state.plan))
                for key, arguments in state.conditioned.items():
                    if key not in entry.shard.posteriors:
                        entry.shard.condition(*self.fetch(arguments))
            yield entry.shard
        finally:
            with self._changed:
                entry.n_users -= 1
                unbuilt = entry.shard is None and not entry.n_users
                if unbuilt and self._entries.get(number) is entry:
                    del self._entries[number]
                self._changed.notify_all()

    def __contains__(self, number: int) -> bool:
        """Whether a shard is in memory, or about to be."""
        return number in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def drop(self, number: int, key: int) -> None:
        """Forget a posterior of a shard."""
        entry = self._entries.get(number)
        if entry is not None and entry.shard is not None:
            entry.shard.drop(key)

    def remove(self, number: int) -> None:
        """Forget a shard."""
        with self._changed:
            self._entries.pop(number, None)
            self._changed.notify_all()

    def _reserve(self, number: int, n_bytes: float) -> _Entry:
        """Return the entry of a shard, in use now; wait for room if it has to be built and does not fit."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                # In turn: others, whose shards are in memory, could keep one from ever finding room.
                while self._waiting[0] is not ticket or not self._has_room(number, n_bytes):
                    self._changed.wait()
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
            entry = self._entries.get(number)
            if entry is None:
                entry = self._entries[number] = _Entry(n_bytes)
            entry.n_users += 1
            self._entries.move_to_end(number)
            self.most_bytes = max(self.most_bytes, self._n_bytes)
            return entry

    def _has_room(self, number: int, n_bytes: float) -> bool:
        """Drop shards that nobody uses until another one fits; return whether it does."""
        if number in self._entries:
            return True
        for other, entry in list(self._entries.items()):
            if self._n_bytes + n_bytes <= self.memory:
                break
            if not entry.n_users:
                del self._entries[other]
                assert entry.shard is not None
                entry.shard.posteriors.clear()
        return not self._entries or self._n_bytes + n_bytes <= self.memory

    @property
    def _n_bytes(self) -> float:
        return sum(entry.n_bytes for entry in list(self._entries.values()))


@dataclass(frozen=True)
class ShardLimit:
    """Which shards have how much memory together.

    Attributes
    ----------
    group : int
        Names the shards: those of one fit, load or update.
    memory : float
        Bytes.
    """

    group: int = 0
    memory: float = float("inf")


class ShardCaches:
    """Shards of several models, each of which has its own memory.

    Parameters
    ----------
    fetch : callable
        As in :class:`ShardCache`.
    """

    def __init__(self, fetch: Callable[[Any], Any]) -> None:
        self.fetch = fetch
        self.of_group: dict[int, ShardCache] = {}

    def call(
        self, limit: ShardLimit, number: int, state: ShardState, method: str, *arguments: Any
    ) -> Any:
        """Call a method of a shard of a group."""
        cache = self.of_group.setdefault(limit.group, ShardCache(fetch=self.fetch))
        cache.memory = limit.memory
        return cache.call(number, state, method, *arguments)

    def drop(self, number: int, key: int) -> None:
        """Forget a posterior of a shard."""
        for cache in self.of_group.values():
            cache.drop(number, key)

    def remove(self, number: int) -> None:
        """Forget a shard."""
        for cache in self.of_group.values():
            cache.remove(number)
        self.of_group = {group: cache for group, cache in self.of_group.items() if len(cache)}
