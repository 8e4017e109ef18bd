"""The most recent of values that are made again if need be."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """A mapping of limited size, which forgets what came first. Safe for several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[object, T] = {}
        self._lock = threading.Lock()

    def get(self, key: object) -> T | None:
        return self._values.get(key)

    def put(self, key: object, value: T) -> None:
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._size:
                del self._values[next(iter(self._values))]
