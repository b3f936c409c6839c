"""A store in which everything happens that a network and a cloud can do, one step at a time.

For `model_runs`: every verb is a step of an `Interleaver`, and before, in or after it a machine may die or freeze, a
reply may be lost, a create may be asked for again (409), a put may land much later, or land twice. What lands and what
is deleted is shown to a witness at that moment. It judges nothing itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from spotwarp.errors import AlreadyExists, CorruptObject, ObjectMissing, StoreConflict, StoreUnavailable
from spotwarp.persistence.store.api import Buffer, ObjectMeta
from spotwarp.testing.interleaving import Interleaver


class Watcher(Protocol):
    """Sees every effect as it happens."""

    def landed(self, key: str, data: bytes) -> None:
        """An object was written."""
        ...

    def deleted(self, key: str) -> None:
        """An object is gone."""
        ...

    def read(self, key: str, reader: str) -> None:
        """The life `reader` is about to be answered a get."""
        ...


@dataclass
class Hazards:
    """How many of each misfortune may still happen, and how likely one is at each chance for it."""

    crashes: int = 0
    freezes: int = 0
    lost: int = 0
    """Applied, but not answered."""
    late: int = 0
    """Not answered; applied later, if the name is still free."""
    twice: int = 0
    """A put that lands again later."""
    conflicts: int = 0
    refusals: int = 0
    """503: not applied."""
    chance: float = 0.05

    def strike(self, name: str, chance: random.Random) -> bool:
        """Whether it happens now; takes it off the budget."""
        if not getattr(self, name) or chance.random() >= self.chance:
            return False
        setattr(self, name, getattr(self, name) - 1)
        return True


@dataclass
class ModelStore:
    """See the module. `mortal` groups may crash and freeze; `on_crash` is told of a crash before it happens."""

    world: Interleaver
    watcher: Watcher
    hazards: Hazards
    freeze_s: tuple[float, float]
    mortal: set[str] = field(default_factory=set)
    on_crash: Callable[[str], None] = lambda group: None
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    landed_again: set[str] = field(default_factory=set)
    _in_flight: list[tuple[str, bytes, bool]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """See `Store`."""
        return "model://"

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        self._begin()
        self._write(key, bytes(data))
        self._end()
        if "/packs/" in key and self._strikes("twice"):
            self._in_flight.append((key, bytes(data), False))

    def put_new(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        self._begin()
        if self._strikes("conflicts"):
            raise StoreConflict(f"409 for {key}")
        if key in self.objects:
            raise AlreadyExists(f"{key} exists")
        if self._strikes("late"):
            self._in_flight.append((key, bytes(data), True))
            raise StoreUnavailable(f"no answer for {key}")
        self._write(key, bytes(data))
        self._end()

    def get(self, key: str) -> bytes:
        """See `Store`."""
        self._begin()
        task = self.world.current
        self.watcher.read(key, task.group if task else "")
        return self._find(key)[0]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store`."""
        self._begin()
        data = self._find(key)[0][start : start + length]
        if len(data) < length:
            raise CorruptObject(f"{key} is shorter")
        return data

    def head(self, key: str) -> ObjectMeta:
        """See `Store`."""
        self._begin()
        data, modified = self._find(key)
        return ObjectMeta(key, len(data), modified)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """See `Store`."""
        self._begin()
        found = [(k, v) for k, v in self.objects.items() if k.startswith(prefix + "/")]
        return iter([ObjectMeta(key, len(data), modified) for key, (data, modified) in sorted(found)])

    def delete(self, key: str) -> None:
        """See `Store`."""
        self._begin()
        if self.objects.pop(key, None) is not None:
            self.watcher.deleted(key)
        self._end()

    def still(self) -> None:
        """No misfortune any more, and what is under way is lost."""
        self.hazards = Hazards()
        self._in_flight.clear()

    # ---- misfortune ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The request is on its way: the last moment for its sender to die."""
        self.world.step(self.world.random.uniform(0.0, 0.1))
        self._land()
        task = self.world.current
        if task is None:
            return
        if task.group in self.mortal and self._strikes("crashes"):
            self.on_crash(task.group)
            self.world.kill(task.group)
        if task.group in self.mortal and self._strikes("freezes"):
            self.world.freeze(task.group, self.world.random.uniform(*self.freeze_s))
            self.world.step()
        if self._strikes("refusals"):
            raise StoreUnavailable("503")

    def _end(self) -> None:
        """The answer is on its way back."""
        if self._strikes("lost"):
            raise StoreUnavailable("no answer")

    def _strikes(self, name: str) -> bool:
        return self.hazards.strike(name, self.world.random)

    def _land(self) -> None:
        for flight in list(self._in_flight):
            if self.world.random.random() < 0.1:
                self._in_flight.remove(flight)
                key, data, only_new = flight
                if not (only_new and key in self.objects):
                    if not only_new:
                        self.landed_again.add(key)
                    self._write(key, data)

    def _write(self, key: str, data: bytes) -> None:
        self.objects[key] = (data, self.world.wall())
        self.watcher.landed(key, data)

    def _find(self, key: str) -> tuple[bytes, datetime]:
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectMissing(f"{key} is not in the store") from None
