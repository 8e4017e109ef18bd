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
    timeout: float | None = None  # seconds of its own, for what has to be done after the operation's time is up


@dataclass(frozen=True)
class Stream:
    """Messages there, drawn from `requests` as the transport takes them, and messages back, given to `receive`, at the
    same time. Also for calls that stream one way only. `receive` raises to give the call up."""

    path: str
    requests: Iterator[bytes]
    receive: Callable[[bytes], None]


@dataclass(frozen=True)
class Blocking:
    """Something of this machine that may take a moment. The result is the function's."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Sleep:
    seconds: float


Request = Unary | Stream | Blocking | Sleep
Operation = Generator[Request, Any, T]


def parse(message_class: type[T], data: bytes) -> T:
    """A message of the server."""
    try:
        return message_class.FromString(data)  # type: ignore[attr-defined,no-any-return]
    except Exception as error:  # protobuf's DecodeError, whose module is not the same in every release
        raise protocol_error(f"{message_class.__name__}: {error}") from None


def unary(
    method: str, request: Any, response_class: type[T], *, wait_for_ready: bool = False, timeout: float | None = None
) -> Operation[T]:
    """A unary call of the service."""
    answer = yield Unary(SERVICE + method, request.SerializeToString(), wait_for_ready, timeout)
    return parse(response_class, answer)
