"""What both clients' channels have in common."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass

from gdpcache import _socket_path
from gdpcache._server import DEFAULT_ADDRESS, Address
from gdpcache.errors import DeadlineExceededError

MAX_RECEIVE_BYTES = 64 << 20

# What is sent is the server's to judge. What comes is a frame of about a megabyte, or an answer whose tensors needed no
# stream: a server that sends more than the C++ client takes, too, must not fill the memory. A pause before reconnecting
# is as short as a restart of the server. Neither tensors nor tokens travel through a web proxy that happens to be
# configured for the machine.
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)


def address(given: str | None) -> str:
    """What the caller says, else $GDPCACHE_SERVER, else where a server without flags listens. A Unix socket must not be
    one that another user may have put there: gRPC connects later, and anew when a connection breaks."""
    text = Address(given or os.environ.get("GDPCACHE_SERVER") or DEFAULT_ADDRESS).text
    if text.startswith("unix:"):
        _socket_path.check(text.removeprefix("unix:"))
    return text


# gRPC tells the time in nanoseconds since 1970: a deadline that is centuries away has passed long ago.
_LONGEST_SECONDS = 100 * 365 * 86_400


class TimeIsUpError(DeadlineExceededError):
    """The time was up before the next step of an operation began: of that step the server knows nothing."""

    def __init__(self) -> None:
        super().__init__("the timeout has passed")


@dataclass(slots=True)
class Deadline:
    """When an operation has to be over."""

    at: float  # of time.monotonic()

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Whoever would wait for longer than a lifetime has no deadline."""
        return cls(time.monotonic() + seconds if seconds < _LONGEST_SECONDS else math.inf)

    def remaining(self) -> float | None:
        """Seconds, as gRPC takes them: None without end. Raises when it is over."""
        if math.isinf(self.at):
            return None
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeIsUpError
        return left

    def is_over(self) -> bool:
        """To the accuracy with which the two ends of a call know of it."""
        return time.monotonic() > self.at - 0.01

    def detached(self, wait: float | None) -> float | None:
        """Seconds to wait for what goes on by itself: never an error."""
        left = None if math.isinf(self.at) else max(self.at - time.monotonic(), 0.0)
        return left if wait is None else wait

    def sleep(self, seconds: float) -> float:
        """Of a pause, what the time allows."""
        left = self.remaining()
        return seconds if left is None else min(seconds, left)
