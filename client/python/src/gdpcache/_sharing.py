"""How memory comes to be shared with a server on the same host, and to be one's own again."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdpcache._channel import TimeIsUpError
from gdpcache._operations import Operation, Sleep, unary
from gdpcache.errors import GdpCacheError, NotFoundError, StatusCode
from gdpcache.v1 import memory_pb2

if TYPE_CHECKING:
    from gdpcache._cuda_regions import EventPair

LETTING_GO = 60.0  # seconds for a server to let go of memory that a call without an answer used
GRACE = 0.02  # seconds that such a call waits for it
_LOOK = 0.005  # seconds between looks whether it has
_HANDOVER_TIMEOUT = 5.0  # seconds for a server on this host to take a descriptor


class SharingUnavailableError(Exception):
    """Memory cannot be shared with this server, or no more of it. Nothing was sent yet: another transport may serve."""


class UnreachableError(SharingUnavailableError):
    """Nor will it be with the next call."""


# What gRPC also says of calls that are lost or whose streams break, whatever the server has made of them. A server that
# says so of itself has failed, or given the call up: what it has begun may go on.
_LOST = (
    StatusCode.CANCELLED,
    StatusCode.UNKNOWN,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.INTERNAL,
    StatusCode.UNAVAILABLE,
)


def may_have_been_done(error: BaseException) -> bool:
    """Whether the server may be doing, or have done, what a call asked for: not when it has answered, nor when the call
    has never begun."""
    if not isinstance(error, GdpCacheError):
        return True
    if error.code is StatusCode.RESOURCE_EXHAUSTED:  # gRPC's, too, of an answer that is too large
        return not error._is_answer
    return error.code in _LOST and not isinstance(error, TimeIsUpError)


class Place(NamedTuple):
    """Where bytes are."""

    region: str
    offset: int


def unregister(session: str, name: str) -> Operation[bool]:
    """Returns when the server has let go of the region: so it has if it does not know it, or the session, any more.
    False if that is not known: a server that cannot be reached will when the session expires."""
    request = memory_pb2.UnregisterMemoryRequest(session=session, name=name)
    try:
        yield from unary("UnregisterMemory", request, memory_pb2.UnregisterMemoryResponse)
    except NotFoundError:
        return True
    except GdpCacheError:
        return False
    return True


class Unsettled:
    """What the server may still use after calls without an answer. Safe for several threads."""

    def __init__(self) -> None:
        self._uses: set[object] = set()

    def begin(self) -> Callable[[], None]:
        """Returns what tells the end."""
        use = object()
        self._uses.add(use)
        return functools.partial(self._uses.discard, use)

    def wait(self) -> Operation[None]:
        while self._uses:
            yield Sleep(_LOOK)


def let_go(
    session: str, names: Iterable[str], keep: object, ended: Callable[[], None], pair: EventPair | None = None
) -> Operation[None]:
    """After a call whose end is not known: until the server has let go of these regions and events it may be at work
    in `keep`, which this holds for so long, and with the pair. `ended` is called when it is known to have."""
    try:
        done = True
        for name in names:
            done = (yield from unregister(session, name)) and done
        if done:
            ended()
    finally:
        if pair is not None:
            pair.close()


def ask(path: str, message: bytes, descriptors: Sequence[int] = ()) -> str:
    """A server's token for one registration, as memory.proto says. SharingUnavailableError where there is none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_HANDOVER_TIMEOUT)
            connection.connect(path)
            socket.send_fds(connection, [message], list(descriptors))
            answer = connection.recv(4096).decode("utf-8", "replace")
    except OSError as error:  # as where server and client are containers with folders of their own
        raise UnreachableError(f"{path}: {error}") from error
    if not answer or answer[0] == "!":
        raise SharingUnavailableError(f"the server refused the memory: {answer[1:] or 'it hung up'}")
    return answer
