"""What both clients' channels have in common."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass

from gdpcache._server import DEFAULT_ADDRESS, Address
from gdpcache.errors import DeadlineExceededError

# Messages are as large as the server allows; a pause before reconnecting is as short as a restart of the server.
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def address(given: str | None) -> str:
    """What the caller says, else $GDPCACHE_SERVER, else where a server without flags listens."""
    return Address(given or os.environ.get("GDPCACHE_SERVER") or DEFAULT_ADDRESS).text


@dataclass(slots=True)
class Deadline:
    """When an operation has to be over."""

    at: float  # of time.monotonic()

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float | None:
        """Seconds, as gRPC takes them: None without end. Raises when it is over."""
        if math.isinf(self.at):
            return None
        left = self.at - time.monotonic()
        if left <= 0:
            raise DeadlineExceededError("the timeout has passed")
        return left

    def for_call(self, own: float | None) -> float | None:
        return self.remaining() if own is None else own

    def sleep(self, seconds: float) -> float:
        """Of a pause, what the time allows."""
        left = self.remaining()
        return seconds if left is None else min(seconds, left)
