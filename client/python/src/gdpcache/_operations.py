"""How one core serves a blocking and an asyncio client.

An operation is a generator. It yields what has to be done outside of it (a call of the server, a wait) and is sent the
result, or thrown the error, of a call as a `GdpCacheError`. All logic lives in operations; `client.py` and `aio.py`
hold the two drivers that perform their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from gdpcache.errors import protocol_error

T = TypeVar("T")

SERVICE = "/gdpcache.v1.StateCache/"


@dataclass(slots=True)
class Unary:
    """One message there, one back. The result is the answer's bytes."""

    path: str
    request: bytes
    wait_for_ready: bool = False


@dataclass(frozen=True)
class Stream:
    """Messages there, drawn from `requests` as the transport takes them, and messages back, given to `receive`, at the
    same time. Also for calls that stream one way only. `receive` raises to give the call up."""

    path: str
    requests: Iterator[bytes]
    receive: Callable[[bytes], None]


@dataclass(frozen=True)
class Blocking:
    """Something of this machine that may take a moment, done on another thread. The result is the function's. When the
    operation's time is up it is left alone, so whatever it uses must be its own, and it must come to an end."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Sleep:
    """A pause. Of 0 seconds: the place to stop at when the time is up, in the middle of something long."""

    seconds: float


@dataclass(frozen=True)
class Detached:
    """What has to be done also when the operation's time is up, or when it has failed: it goes on by itself, for as
    long as `timeout` seconds. Its errors are nobody's. The operation waits for it at most `wait` seconds, None: as long
    as its own time allows."""

    operation: Generator[Any, Any, object]
    timeout: float
    wait: float | None


Request = Unary | Stream | Blocking | Sleep | Detached
Operation = Generator[Request, Any, T]


def parse(message_class: type[T], data: bytes) -> T:
    """A message of the server."""
    try:
        return message_class.FromString(data)  # type: ignore[attr-defined,no-any-return]
    except Exception as error:  # protobuf's DecodeError, whose module is not the same in every release
        raise protocol_error(f"{message_class.__name__}: {error}") from None


def unary(method: str, request: Any, response_class: type[T], *, wait_for_ready: bool = False) -> Operation[T]:
    """A unary call of the service."""
    answer = yield Unary(SERVICE + method, request.SerializeToString(), wait_for_ready)
    return parse(response_class, answer)
