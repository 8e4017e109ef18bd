"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
